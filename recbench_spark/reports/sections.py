"""Collect the facts of a report's sections, each from the rows of a view.

Sections are reasons for changes, models whose order is not settled, shares of worlds, learning curves,
and passes over graphs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from recbench_spark.reports import facts
from recbench_spark.reports.facts import ChangeFacts, GroupChange, MetricEstimate, ReportedMeasure
from recbench_spark.reports.frame_values import (
    PART_ORDER,
    order_index,
    order_key,
    read_facts,
    read_real,
    read_records,
    read_value,
)
from recbench_spark.reports.phrases import name_model

# ------------------------------------------------------------------------------- changes between nights

MODELS_PER_PART = 4
GROUPS_PER_KEY = 8
OTHERS = "others"
VISIBLE = 0.00005
"""Smallest change four decimals show."""
OTHER_DIFFERENCES = {
    True: "nothing else differs: log and settings are the same",
    False: "log or settings differ as well; run that night again with this code to tell them apart",
    None: "settings are the same; whether the log is, cannot be known: that code did not identify it by "
    "content; run that night again with this code to tell",
}
"""Sentence on log and settings if the code changed, by `code_alone`."""


def make_changes(changes: pd.DataFrame) -> tuple[ChangeFacts, ...]:
    """Make facts for each model, part and group key.

    The rows have one metric and cut-off. Each part has the models that moved most, each key the groups
    that add most; the others are summed up. A change too small for four decimals is no move: such models
    are left out, and pages leave out such groups.
    """
    made = []
    for _, rows in changes.groupby("part", sort=True):
        moved = (rows.value - rows.other_value).abs().groupby(rows.model).max()
        moved = moved[moved >= VISIBLE]
        models = moved.sort_values(ascending=False, kind="stable").index[:MODELS_PER_PART]
        for model in models:
            model_rows = rows[rows.model == model]
            definition = model_rows.definition.min()
            chosen = model_rows[model_rows.definition == definition]
            groups_by_key = chosen.groupby("group_key", sort=False)
            made += [_make_change(str(key), groups.to_dict("records")) for key, groups in groups_by_key]
    return tuple(made)


def describe_code_changes(changes: pd.DataFrame) -> tuple[str, ...]:
    """Describe each model whose code changed since its night before.

    Its numbers may not have moved.
    """
    if "code_change" not in changes:
        return ()
    columns = ["model", "other_date", "code_change", "code_alone"]
    rows = changes.loc[changes.code_change.notna(), columns].drop_duplicates()
    rows = rows.sort_values(columns[:3], kind="stable")
    sentences = []
    for model, other_date, code, alone in rows.itertuples(index=False, name=None):
        rest = OTHER_DIFFERENCES[None if pd.isna(alone) else bool(alone)]
        sentences.append(f"{model}: the code changed since {str(other_date)[:10]} ({code}); {rest}.")
    return tuple(sentences)


def _make_change(key: str, rows: list[dict[Any, Any]]) -> ChangeFacts:
    first = rows[0]
    groups = sorted((_make_group(row) for row in rows), key=lambda g: (-g.size, g.group))
    shown, rest = groups[:GROUPS_PER_KEY], groups[GROUPS_PER_KEY:]
    return read_facts(
        ChangeFacts,
        first,
        measure=read_facts(ReportedMeasure, first).label,
        other_date=str(first["other_date"])[:10],
        before=read_value(first["other_value"]),
        after=read_value(first["value"]),
        key=key,
        groups=(*shown, _sum_groups(rest)) if rest else tuple(shown),
    )


def _make_group(row: dict[Any, Any]) -> GroupChange:
    return GroupChange(
        str(row["group_value"]),
        (float(row["share_before"]), float(row["share_after"])),
        (read_real(row["mean_before"]), read_real(row["mean_after"])),
        float(row["mix_change"]),
        float(row["within_change"]),
    )


def _sum_groups(rest: Sequence[GroupChange]) -> GroupChange:
    """Sum the remaining groups up as one, without a mean."""
    before, after = (math.fsum(group.share[night] for group in rest) for night in (0, 1))
    mix, within = math.fsum(g.mix for g in rest), math.fsum(g.within for g in rest)
    return GroupChange(f"{len(rest)} {OTHERS}", (before, after), (None, None), mix, within)


# ------------------------------------------------------------------------------- unsettled orders

DISAGREEMENTS_SHOWN = 12
FLIPS_SHOWN, LARGEST_SHOWN = 8, 5
KINDS = ("full", "reversal", "partial")


def make_disagreements(rows: pd.DataFrame, compared: pd.DataFrame) -> facts.Disagreements | None:
    """Return the disagreeing rows in order, with counts.

    The result is None if nothing disagrees.

    Args:
        rows: disagreeing rows of `current_paradoxes`.
        compared: kind, certain and count of all compared pairs.
    """
    if rows.empty:
        return None
    counts = []
    for kind in KINDS:
        kind_rows = compared[compared.kind == kind]
        if len(kind_rows):
            certain = kind_rows[kind_rows.certain.astype(bool)]
            counts.append((kind, int(kind_rows["count"].sum()), int(certain["count"].sum())))
    disagreeing = tuple(_make_disagreement(row) for row in rows.to_dict("records"))
    return facts.Disagreements(disagreeing, tuple(counts), int(compared["count"].sum()))


def make_flips(rows: pd.DataFrame) -> tuple[facts.FlipFacts, ...]:
    """Collect the verdicts that the fewest items or users turn.

    The verdicts come from rows of `flips`, the newest for each verdict. Verdicts no set turns are left out.
    """
    verdict = ["run_id", "other_run_id", "part", "metric", "k", "definition", "removed_are"]
    newest = rows.sort_values("found_at", kind="stable").drop_duplicates(verdict, keep="last")
    turned = newest[newest.removed.notna()]
    turned = turned.assign(share=turned.removed / turned.out_of)
    turned = turned.sort_values(["share", "part", "metric", "k", "model", "other"]).head(FLIPS_SHOWN)
    return tuple(
        read_facts(
            facts.FlipFacts,
            row,
            measure=read_facts(ReportedMeasure, row, estimator="holdout"),
            kind=str(row["removed_are"]),
            largest=tuple(map(str, row["ids"][:LARGEST_SHOWN])),
        )
        for row in turned.to_dict("records")
    )


def describe_flips(flips: Sequence[facts.FlipFacts], kinds: Mapping[str, str]) -> tuple[str, ...]:
    """Describe the two most fragile verdicts, if there are any.

    The fewest items or users turn them.

    Args:
        flips: the verdicts, the most fragile first.
        kinds: each model's kind.
    """
    if not flips:
        return ()
    names = {name: name_model(name, kinds.get(name, "")) for f in flips for name in (f.model, f.other)}
    parts = [
        f"without {one.removed:,} of {one.out_of:,} {one.kind} {names[one.other]} leads {names[one.model]}"
        f" on {one.part} ({one.measure.label})"
        for one in flips[:2]
    ]
    return (f"Few items decide: {', and '.join(parts)}.",)


def _make_disagreement(row: dict[Any, Any]) -> facts.DisagreementFacts:
    total = sum(row["sizes"]) or 1
    arrays = (row[name] for name in ("labels", "sizes", "differences", "lows", "highs", "stratum_users"))
    strata = tuple(
        (str(label), float(size) / total, _make_estimate(difference, low, high, int(n)))
        for label, size, difference, low, high, n in zip(*arrays, strict=True)
    )
    users = int(row["users"])
    return read_facts(
        facts.DisagreementFacts,
        row,
        measure=read_facts(ReportedMeasure, row, estimator="holdout"),
        key=str(row["slice_key"]),
        whole=_make_estimate(row["difference"], row["ci_low"], row["ci_high"], users),
        stratified=_make_estimate(
            row["stratified_difference"], row["stratified_low"], row["stratified_high"], users
        ),
        strata=strata,
    )


def _make_estimate(value: Any, low: Any, high: Any, n: int) -> MetricEstimate:
    return MetricEstimate(read_value(value), read_real(low), read_real(high), n)


# ------------------------------------------------------------------------------- worlds


def make_multiverse(pairs: pd.DataFrame) -> tuple[facts.MultiverseFacts, ...]:
    """Return the shares by part, from rows of `multiverse_pairs`."""
    parts = sorted(pairs.part.unique(), key=lambda part: order_index(part, PART_ORDER))
    return tuple(_make_part_multiverse(part, pairs[pairs.part == part]) for part in parts)


def _make_part_multiverse(part: str, pairs: pd.DataFrame) -> facts.MultiverseFacts:
    """Return a part's shares over all protocols.

    Models are sorted by the worlds they win.
    """
    counted = pairs.astype({"won": float, "worlds": float})
    counted["share"] = counted.won / counted.worlds
    wins = counted.groupby("model").won.sum().sort_values(ascending=False, kind="stable")
    models = tuple(wins.index)
    grouped = counted.groupby(["model", "other"]).agg(
        won=("won", "sum"), worlds=("worlds", "sum"), low=("share", "min"), high=("share", "max")
    )
    grouped["share"] = grouped.won / grouped.worlds

    def matrix(column: str) -> tuple[tuple[float | None, ...], ...]:
        shares = grouped[column].to_dict()
        return tuple(tuple(shares.get((model, other)) for other in models) for model in models)

    return facts.MultiverseFacts(
        part, models, matrix("share"), matrix("low"), matrix("high"),
        int(grouped.worlds.max()), counted.suite.nunique(),
    )  # fmt: skip


def make_pairs(pairs: pd.DataFrame) -> tuple[facts.PairFacts, ...]:
    """Return each pair's share in each suite, least certain first."""
    counted = pairs[pairs.model < pairs.other].astype({"won": float, "worlds": float})
    made = []
    for (part, model, other), rows in counted.groupby(["part", "model", "other"]):
        sums = rows.groupby("suite")[["won", "worlds"]].sum()
        by_protocol = tuple((str(suite), row.won / row.worlds) for suite, row in sums.iterrows())
        share = rows.won.sum() / rows.worlds.sum()
        made.append(facts.PairFacts(str(part), str(model), str(other), share, by_protocol))
    return tuple(sorted(made, key=lambda pair: (abs(pair.share - 0.5), pair.part, pair.model, pair.other)))


# ------------------------------------------------------------------------------- learning curves

COLUMNS = ("run_id", "part", "metric", "k", "definition", "given", "value", "ci_low", "ci_high", "n")

GIVEN = "given ratings"
"""Name of the horizontal axis."""


def make_learning_curves(
    curves: pd.DataFrame, models: dict[str, str], crossings: pd.DataFrame
) -> tuple[facts.LearningCurveFacts, ...]:
    """Return each part's curves and crossings.

    Args:
        curves: rows of `learning_curves` for one metric and cut-off.
        models: run id -> model, for the shown runs.
        crossings: this night's rows of `curve_crossings`, for the same metric and cut-off.
    """
    rows = [row for row in read_records(curves, "learning_curves", COLUMNS) if row["run_id"] in models]
    keys = {(str(row["part"]), str(row["definition"])) for row in rows}
    made = []
    for part, definition in sorted(keys, key=lambda key: (*order_key(key[0], PART_ORDER), key[1])):
        chosen = [row for row in rows if (row["part"], row["definition"]) == (part, definition)]
        here = crossings[(crossings.part == part) & (crossings.definition == definition)]
        shown_first = here.sort_values(["shown", "model", "other"], ascending=[False, True, True])
        sentences = tuple(_describe_crossing(row) for row in shown_first.to_dict("records"))
        made.append(facts.LearningCurveFacts(_make_curve(chosen, models), sentences))
    return tuple(one for one in made if len(one.curve.ks) > 1 and one.curve.lines)


def _make_curve(rows: list[dict[str, Any]], models: dict[str, str]) -> facts.CurveFacts:
    """Make one line for each model, skipping points without value."""
    points: dict[str, dict[int, MetricEstimate]] = {}
    counts: dict[int, int] = {}
    for row in rows:
        value, given, n = read_real(row["value"]), int(row["given"]), int(row["n"])
        counts[given] = max(counts.get(given, 0), n)
        if value is not None and math.isfinite(value):
            estimate = MetricEstimate(value, read_real(row["ci_low"]), read_real(row["ci_high"]), n)
            points.setdefault(models[str(row["run_id"])], {})[given] = estimate
    curves = sorted(points.items(), key=lambda line: (-line[1][max(line[1])].value, line[0]))
    ordered = [(model, dict(sorted(at.items()))) for model, at in curves]
    lines = tuple(facts.CurveLine(model, tuple(at), tuple(at.values())) for model, at in ordered)
    shown = tuple(sorted({point for line in lines for point in line.ks}))
    measure = read_facts(ReportedMeasure, rows[0], estimator="holdout")
    users = tuple(counts[at] for at in shown)
    return facts.CurveFacts(str(rows[0]["part"]), measure, shown, lines, GIVEN, users)


def _describe_crossing(row: dict[Any, Any]) -> str:
    share = f"adjusted share at the ends {row['share_holm']:.3f}"
    if not row["shown"]:
        return f"{row['model']} and {row['other']}: no crossing shown ({share})."
    return (
        f"{row['first']} up to {row['given']} given ratings, then {row['then']} (interval "
        f"{row['given_low']} to {row['given_high']}): mean {row['value']:.4f} ({share})."
    )


# ------------------------------------------------------------------------------- passes over graphs


RENAMED = {"vectors_projected": "projected", "bytes_shuffled": "shuffled", "predicted_seconds": "predicted"}
"""Facts by the columns of `graph_runs` that have other names."""


def make_graphs(runs: pd.DataFrame) -> tuple[facts.GraphFacts, ...]:
    """Make facts for each model and its passes.

    Passes are in the order they ran.

    Args:
        runs: rows of `graph_runs` for a night's models.
    """
    made = []
    for _, rows in runs.rename(columns=RENAMED).groupby("model_id", sort=True):
        ordered = rows.sort_values(["started_at", "layer"], kind="stable").to_dict("records")
        passes = tuple(read_facts(facts.GraphPass, row) for row in ordered)
        made.append(read_facts(facts.GraphFacts, ordered[0], passes=passes))
    return tuple(sorted(made, key=lambda one: (one.model, one.model_id)))
