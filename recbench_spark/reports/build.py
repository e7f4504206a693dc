"""Make facts of a report from rows of the result tables (pandas frames, from Spark or `deltalake`)."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import combinations, groupby, pairwise
from typing import Any

import pandas as pd

from recbench_spark.checks import TRAINING_ROWS
from recbench_spark.errors import DataError, SchemaError, nearest
from recbench_spark.kernels.metrics.about import place_in_reports
from recbench_spark.reports.corrections import is_corrected, make_corrections
from recbench_spark.reports.facts import (
    Agreement,
    AgreementRow,
    CheckRow,
    CurveFacts,
    CurveLine,
    DefinitionFacts,
    Leaderboard,
    LeaderboardRow,
    ManifestFacts,
    MetricEstimate,
    MultiverseFacts,
    Number,
    PairFacts,
    Report,
    ReportedMeasure,
    RunFacts,
    SliceFacts,
)
from recbench_spark.reports.phrases import defaults_in_words, definition_in_words, summarise

PART_ORDER = ("test", "open_loop", "valid")
SLICE_ORDER = ("head", "torso", "tail", "cold")
FACT_ORDER = ("rows_read", "duplicates_dropped", "rows", "users", "items", "overlap", "future_share")
SEVERITIES = ("error", "warning", "info")
CURVES_PER_PART = 4
SLICES_PER_KEY = 12


def make_report(
    latest: pd.DataFrame,
    runs: pd.DataFrame,
    checks: pd.DataFrame,
    manifests: pd.DataFrame,
    headline: str,
    sql_lines: Sequence[str],
    pairs: pd.DataFrame | None = None,
    regressions: Sequence[str] = (),
) -> Report:
    """Return the facts of one suite's latest night.

    `latest` has the columns of the view `latest_metrics`, the other frames those of their tables; rows of
    other runs or splits are ignored. `headline` is `metric@k` or `metric`. `pairs` has the columns of
    `multiverse_pairs`. `regressions` has one sentence for each, without a full stop.

    Raises:
        SchemaError: a column is missing.
        DataError: `latest` holds more than one suite.
    """
    numbers = read_numbers(latest)
    uncorrected = [number for number in numbers if not is_corrected(number)]
    metric, k, note = choose_headline(uncorrected, headline)
    check_rows = make_checks(checks, numbers)
    boards = tuple(
        add_training_rows(board, check_rows) for board in make_leaderboards(uncorrected, metric, k)
    )
    agreements = make_agreements(boards)
    models = _list_models(boards, numbers)
    run_facts = make_runs(runs, numbers)
    return Report(
        suite=numbers[0].suite if numbers else "no results",
        logical_date=max((number.logical_date for number in numbers), default=""),
        level=_interval_level(run_facts),
        models=models,
        summary=summarise(boards, agreements, regressions, (*describe_failed_attempts(run_facts), *note)),
        leaderboards=boards,
        agreements=agreements,
        curves=make_curves(numbers, boards),
        slices=make_slices(numbers, boards),
        multiverse=make_multiverse(pairs) if pairs is not None else (),
        checks=check_rows,
        manifests=make_manifests(manifests, numbers),
        definitions=make_definitions(numbers),
        defaults=defaults_in_words(),
        runs=run_facts,
        sql_lines=tuple(sql_lines),
        corrections=make_corrections(numbers, boards),
        regressions=tuple(regressions),
    )


def make_multiverse(pairs: pd.DataFrame) -> tuple[MultiverseFacts, ...]:
    """Return the shares of each part, from rows of the view `multiverse_pairs`."""
    parts = sorted(pairs.part.unique(), key=lambda part: _order_index(part, PART_ORDER))
    return tuple(_make_part_multiverse(part, pairs[pairs.part == part]) for part in parts)


def _make_part_multiverse(part: str, pairs: pd.DataFrame) -> MultiverseFacts:
    """Return the shares of a part, with models sorted by the worlds they win, over all protocols."""
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

    return MultiverseFacts(
        part, models, matrix("share"), matrix("low"), matrix("high"),
        int(grouped.worlds.max()), counted.suite.nunique(),
    )  # fmt: skip


def make_pairs(pairs: pd.DataFrame) -> tuple[PairFacts, ...]:
    """Return each pair once with its share in each suite; the least certain pair comes first."""
    counted = pairs[pairs.model < pairs.other].astype({"won": float, "worlds": float})
    facts = [
        _make_pair(str(part), str(model), str(other), rows)
        for (part, model, other), rows in counted.groupby(["part", "model", "other"])
    ]
    return tuple(sorted(facts, key=lambda pair: (abs(pair.share - 0.5), pair.part, pair.model, pair.other)))


def _make_pair(part: str, model: str, other: str, rows: pd.DataFrame) -> PairFacts:
    sums = rows.groupby("suite")[["won", "worlds"]].sum()
    by_protocol = tuple((str(suite), row.won / row.worlds) for suite, row in sums.iterrows())
    return PairFacts(part, model, other, rows.won.sum() / rows.worlds.sum(), by_protocol)


def read_numbers(latest: pd.DataFrame) -> tuple[Number, ...]:
    """Read the rows of `latest_metrics` that may be ranked: those of the splits of the last night."""
    numbers = [_read_number(row) for row in _records(latest, "latest_metrics", _NUMBER_COLUMNS)]
    suites = sorted({number.suite for number in numbers})
    if len(suites) > 1:
        raise DataError(f"a report is about one suite, not {', '.join(suites)}", "filter on suite")
    last: dict[str, str] = {}
    for number in numbers:
        last[number.dataset] = max(last.get(number.dataset, ""), number.logical_date)
    current = {n.split_id for n in numbers if n.logical_date == last[n.dataset]}
    return tuple(number for number in numbers if number.split_id in current)


_NUMBER_COLUMNS = (
    *("suite", "logical_date", "dataset", "split", "split_id", "model", "model_kind", "source"),
    *("run_id", "part", "metric", "definition", "k", "estimator", "slice_key", "slice_value"),
    *("value", "ci_low", "ci_high", "n"),
)


def _read_number(row: dict[str, Any]) -> Number:
    return Number(
        suite=_text(row["suite"]),
        logical_date=_text(row["logical_date"])[:10],
        dataset=_text(row["dataset"]),
        split=_text(row["split"]),
        split_id=_text(row["split_id"]),
        model=_text(row["model"]),
        model_kind=_text(row["model_kind"]),
        source=_text(row["source"]),
        run_id=_text(row["run_id"]),
        part=_text(row["part"]),
        measure=ReportedMeasure(
            row["metric"], _whole(row["k"]), _text(row["definition"]), _text(row["estimator"])
        ),
        slice_key=_optional(row["slice_key"]),
        slice_value=_optional(row["slice_value"]),
        estimate=MetricEstimate(
            math.nan if _is_missing(row["value"]) else float(row["value"]),
            _real(row["ci_low"]),
            _real(row["ci_high"]),
            _whole(row["n"]) or 0,
        ),
    )


def choose_headline(numbers: Sequence[Number], headline: str) -> tuple[str, int | None, tuple[str, ...]]:
    """Choose metric and cut-off that models are ranked by, with a note if `headline` was not measured."""
    name, _, cut = headline.partition("@")
    headline_key = (name, int(cut) if cut.isdecimal() else None)
    measured = {(n.measure.metric, n.measure.k) for n in numbers if n.slice_key is None}
    if not measured or headline_key in measured:
        return (*headline_key, ())
    same = [pair for pair in measured if pair[0] == name]
    metric, k = min(same or measured, key=lambda pair: (place_in_reports(pair[0]), -(pair[1] or 0)))
    label = ReportedMeasure(metric, k, "", "").label
    return metric, k, (f"{headline} was not measured; models are ranked by {label} instead.",)


def make_leaderboards(numbers: Iterable[Number], metric: str, k: int | None) -> tuple[Leaderboard, ...]:
    """Return one board for each split, part, definition and estimator that has values of the metric."""
    overall = [number for number in numbers if number.slice_key is None]
    chosen = [n for n in overall if (n.measure.metric, n.measure.k) == (metric, k)]
    keys = {(n.split_id, n.part, n.measure) for n in chosen}
    boards = [
        _make_board(
            [n for n in chosen if (n.split_id, n.part, n.measure) == key],
            [n for n in overall if (n.split_id, n.part) == key[:2]],
        )
        for key in keys
    ]
    return tuple(
        sorted(boards, key=lambda b: (*_order_key(b.part, PART_ORDER), b.dataset, b.split_id, b.measure))
    )


def add_training_rows(board: Leaderboard, checks: Sequence[CheckRow]) -> Leaderboard:
    """Add the number of training items in each model's lists, for models whose lists are not filtered."""
    if all(row.model_kind in UNFILTERED_KINDS for row in board.rows):
        return board
    rows_by_model = {
        model: int(check.observed or 0)
        for check in checks
        if check.check == TRAINING_ROWS
        for model in check.models
    }
    rows = tuple(replace(row, training_rows=rows_by_model.get(row.model, 0)) for row in board.rows)
    return replace(board, rows=rows)


UNFILTERED_KINDS = ("lists", "published")
"""Kinds of models whose lists are not filtered: training items stay in them."""


def _make_board(chosen: list[Number], same_part: list[Number]) -> Leaderboard:
    measure = chosen[0].measure
    sort_keys = {number.model: measure.sort_key(number.estimate.value) for number in chosen}
    ordered = sorted(chosen, key=lambda number: (sort_keys[number.model], number.model))
    others = _other_measures(measure, same_part)
    estimates = {(number.model, number.measure): number.estimate for number in same_part}
    overlaps = [a.estimate.overlaps(b.estimate) for a, b in pairwise(ordered)]
    rows = tuple(
        LeaderboardRow(
            position=1 + sum(other < sort_keys[number.model] for other in sort_keys.values()),
            model=number.model,
            model_kind=number.model_kind,
            source=number.source,
            estimate=number.estimate,
            others=tuple(estimates.get((number.model, other)) for other in others),
            overlaps_next=overlap,
        )
        for number, overlap in zip(ordered, [*overlaps, None], strict=True)
    )
    first = chosen[0]
    return Leaderboard(first.split_id, first.dataset, first.split, first.part, measure, others, rows)


def _other_measures(headline: ReportedMeasure, numbers: Iterable[Number]) -> tuple[ReportedMeasure, ...]:
    """Return one measure for each other metric, at the headline's cut-off and with the most similar
    definition."""
    measures = {n.measure for n in numbers if n.measure.metric != headline.metric}
    candidates = [m for m in measures if m.k in (headline.k, None) and m.estimator == headline.estimator]
    candidates.sort(
        key=lambda m: (
            place_in_reports(m.metric),
            m.metric,
            m.k != headline.k,
            m.definition != headline.definition,
            m.definition,
        )
    )
    return tuple(next(group) for _, group in groupby(candidates, key=lambda m: m.metric))


def make_agreements(boards: Sequence[Leaderboard]) -> tuple[Agreement, ...]:
    """Compare the part `test` with the uniformly exposed part `open_loop`, if both are there."""
    return tuple(
        _make_agreement(held_out, uniform)
        for held_out in boards
        for uniform in boards
        if (held_out.part, uniform.part) == ("test", "open_loop")
        and (held_out.split_id, held_out.measure) == (uniform.split_id, uniform.measure)
        and len(_finite_models(held_out) & _finite_models(uniform)) > 1
    )


def _finite_models(board: Leaderboard) -> set[str]:
    return {row.model for row in board.rows if math.isfinite(row.estimate.value)}


def _make_agreement(one: Leaderboard, other: Leaderboard) -> Agreement:
    others = {row.model: row for row in other.rows}
    rows = tuple(
        AgreementRow(
            row.model,
            row.position,
            others[row.model].position,
            row.estimate,
            others[row.model].estimate,
        )
        for row in one.rows
        if row.model in others and math.isfinite(row.estimate.value + others[row.model].estimate.value)
    )
    pairs = list(combinations(rows, 2))
    opposite = [
        (a, b)
        for a, b in pairs
        if (a.first_position - b.first_position) * (a.second_position - b.second_position) < 0
    ]
    clear = [
        (a, b)
        for a, b in opposite
        if a.first.overlaps(b.first) is False and a.second.overlaps(b.second) is False
    ]
    return Agreement(one.measure, one.part, other.part, rows, len(pairs), len(opposite), len(clear))


def make_curves(numbers: Iterable[Number], boards: Iterable[Leaderboard]) -> tuple[CurveFacts, ...]:
    """Return metrics by cut-off for each board: its own metric first, then the board's other columns."""
    overall = [n for n in numbers if n.slice_key is None and n.measure.k is not None]
    curves: list[CurveFacts] = []
    for board in boards:
        board_curves = [
            curve
            for measure in (board.measure, *board.others)
            if len((curve := _make_curve(overall, board, measure)).ks) > 1
        ]
        curves += board_curves[:CURVES_PER_PART]
    return tuple(curves)


def _make_curve(numbers: list[Number], board: Leaderboard, measure: ReportedMeasure) -> CurveFacts:
    board_measure = (measure.metric, measure.definition, measure.estimator)
    points: dict[str, dict[int, MetricEstimate]] = {row.model: {} for row in board.rows}
    for n in numbers:
        if (
            (n.split_id, n.part) == (board.split_id, board.part)
            and (n.measure.metric, n.measure.definition, n.measure.estimator) == board_measure
            and n.measure.k is not None
            and n.model in points
            and math.isfinite(n.estimate.value)
        ):
            points[n.model][n.measure.k] = n.estimate
    lines = tuple(
        CurveLine(model, tuple(sorted(at)), tuple(at[k] for k in sorted(at)))
        for model, at in points.items()
        if at
    )
    ks = tuple(sorted({k for line in lines for k in line.ks}))
    return CurveFacts(board.part, measure, ks, lines)


def make_slices(numbers: Iterable[Number], boards: Iterable[Leaderboard]) -> tuple[SliceFacts, ...]:
    """Return the measure of each board within each kind of slice; of many slices the largest ones."""
    sliced = [number for number in numbers if number.slice_key is not None]
    return tuple(
        _make_slices(board, key, [n for n in board_numbers if n.slice_key == key])
        for board in boards
        if (
            board_numbers := [
                n
                for n in sliced
                if (n.split_id, n.part, n.measure) == (board.split_id, board.part, board.measure)
            ]
        )
        for key in sorted({n.slice_key or "" for n in board_numbers})
    )


def _make_slices(board: Leaderboard, key: str, numbers: list[Number]) -> SliceFacts:
    size: dict[str, int] = {}
    for n in numbers:
        size[n.slice_value or ""] = max(size.get(n.slice_value or "", 0), n.estimate.n)
    largest = sorted(size, key=lambda value: (-size[value], value))[:SLICES_PER_KEY]
    values = tuple(sorted(largest, key=lambda value: _order_key(value, SLICE_ORDER)))
    estimates = {(n.model, n.slice_value or ""): n.estimate for n in numbers}
    rows = tuple(
        (row.model, tuple(estimates.get((row.model, value)) for value in values)) for row in board.rows
    )
    return SliceFacts(board.part, board.measure, key, values, rows, len(size) - len(values))


def make_checks(checks: pd.DataFrame, numbers: Iterable[Number]) -> tuple[CheckRow, ...]:
    """Return the checks of the shown runs, failed ones first, then by severity; equal ones share a row."""
    model_of = {number.run_id: number.model for number in numbers}
    columns = ("run_id", "check", "severity", "observed", "threshold", "passed", "detail")
    merged: dict[CheckRow, set[str]] = {}
    for row in _records(checks, "checks", columns):
        if row["run_id"] in model_of:
            check = CheckRow(
                check=_text(row["check"]),
                severity=_text(row["severity"]),
                passed=bool(row["passed"]),
                observed=_real(row["observed"]),
                threshold=_real(row["threshold"]),
                detail=_text(row["detail"]),
                models=(),
            )
            merged.setdefault(check, set()).add(model_of[row["run_id"]])
    rows = [replace(check, models=tuple(sorted(models))) for check, models in merged.items()]
    return tuple(
        sorted(
            rows,
            key=lambda row: (
                row.passed,
                *_order_key(row.severity, SEVERITIES),
                row.check,
                row.models,
                row.detail,
            ),
        )
    )


def make_manifests(manifests: pd.DataFrame, numbers: Iterable[Number]) -> tuple[ManifestFacts, ...]:
    """Return the counts of the shown splits."""
    splits = {n.split_id: (n.dataset, n.split) for n in sorted(numbers, key=lambda n: n.split_id)}
    rows = _records(manifests, "manifests", ("split_id", "part", "fact", "value", "detail"))
    return tuple(
        _make_manifest(split_id, *names, [row for row in rows if row["split_id"] == split_id])
        for split_id, names in splits.items()
        if any(row["split_id"] == split_id for row in rows)
    )


def _make_manifest(split_id: str, dataset: str, split: str, rows: list[dict[str, Any]]) -> ManifestFacts:
    counts = {
        (row["fact"], row["part"]): _real(row["value"]) for row in rows if not _is_missing(row["value"])
    }
    order = ("log", "train", "valid", "test", "open_loop")
    parts = tuple(sorted({part for _, part in counts}, key=lambda part: _order_key(part, order)))
    facts = tuple(sorted({fact for fact, _ in counts}, key=lambda fact: _order_key(fact, FACT_ORDER)))
    values = tuple(tuple(counts.get((fact, part)) for part in parts) for fact in facts)
    entries = [(_text(row["part"]), _text(row["fact"]), _text(row["detail"])) for row in rows]
    texts = sorted(text for text in entries if text[2] and text[1] not in facts)
    about = {fact: detail for _, fact, detail in sorted(entries) if detail}
    notes = tuple(about.get(fact, "") for fact in facts)
    return ManifestFacts(split_id, dataset, split, parts, facts, notes, values, tuple(texts))


def make_runs(runs: pd.DataFrame, numbers: Sequence[Number]) -> tuple[RunFacts, ...]:
    """Return the runs shown and then the failed attempts of the night that have no later success."""
    shown = {number.run_id for number in numbers}
    nights = {(number.suite, number.logical_date) for number in numbers}
    rows = _records(runs, "runs", ("run_id", "suite", "logical_date", "model", "status"))
    began: dict[tuple[str, str], str] = {}
    for row in rows:
        if row["run_id"] in shown:
            began[_model_and_dataset(row)] = max(
                began.get(_model_and_dataset(row), ""), _text(row.get("started_at"))
            )
    facts = []
    for row in rows:
        night = (_text(row["suite"]), _text(row["logical_date"])[:10])
        later = (
            _model_and_dataset(row) not in began
            or _text(row.get("started_at")) > began[_model_and_dataset(row)]
        )
        if row["run_id"] in shown or (row["status"] == "failed" and night in nights and later):
            facts.append(_make_run(row))
    return tuple(sorted(facts, key=lambda run: (run.status == "succeeded", run.model, run.run_id)))


def _model_and_dataset(row: dict[str, Any]) -> tuple[str, str]:
    """Return model and dataset of a row of `runs`; attempts on other data are not compared in time."""
    return _text(row["model"]), _text(row.get("dataset"))


def describe_failed_attempts(runs: Sequence[RunFacts]) -> tuple[str, ...]:
    """Return a sentence for each model whose last attempt failed, so that its figures are of an earlier
    one."""
    succeeded = {(run.model, run.dataset) for run in runs if run.status == "succeeded"}
    failed = {(run.model, run.dataset) for run in runs if run.status == "failed"}
    return tuple(
        f"{model}'s last attempt failed: its figures are of an earlier one."
        for model, _ in sorted(failed & succeeded)
    )


def _make_run(row: dict[str, Any]) -> RunFacts:
    edge = row.get("at_grid_edge")
    return RunFacts(
        run_id=_text(row["run_id"]),
        model=_text(row["model"]),
        model_kind=_text(row.get("model_kind")),
        model_version=_text(row.get("model_version")),
        status=_text(row["status"]),
        source=_text(row.get("source")),
        ran_by=_text(row.get("ran_by")),
        source_year=_whole(row.get("source_year")),
        search_space=_text(row.get("search_space")),
        budget=_text(row.get("budget")),
        at_grid_edge=()
        if _is_missing(edge)
        else tuple(str(name) for name in (() if edge is None else edge)),
        code_version=_text(row.get("code_version")),
        seconds=_real(row.get("seconds")),
        n_users=_whole(row.get("n_users")),
        started_at=_text(row.get("started_at"))[:19],
        config=_pretty_json(_text(row.get("config_json"))),
        error=_text(row.get("error")),
        dataset=_text(row.get("dataset")),
    )


def make_definitions(numbers: Iterable[Number]) -> tuple[DefinitionFacts, ...]:
    """Return every definition in use, with its metrics and its differences from the defaults in words."""
    metrics: dict[str, set[str]] = {}
    for number in numbers:
        metrics.setdefault(number.measure.definition, set()).add(number.measure.metric)
    return tuple(
        DefinitionFacts(
            text,
            tuple(sorted(metrics[text], key=lambda metric: (place_in_reports(metric), metric))),
            definition_in_words(text),
        )
        for text in sorted(metrics)
    )


def _list_models(boards: Iterable[Leaderboard], numbers: Iterable[Number]) -> tuple[str, ...]:
    ranked = [row.model for board in boards for row in board.rows]
    return tuple(dict.fromkeys([*ranked, *sorted({number.model for number in numbers})]))


def _interval_level(runs: Iterable[RunFacts]) -> float | None:
    """Return the level that all intervals share, by the settings of the runs; None if they do not agree."""
    levels = {
        float(section["level"])
        for run in runs
        for section in _find_settings("bootstrap", run.config)
        if "level" in section
    }
    return levels.pop() if len(levels) == 1 else None


def _find_settings(name: str, config: str) -> list[dict[str, Any]]:
    """Return every group of settings with this name, anywhere in the JSON."""
    sections: list[dict[str, Any]] = []

    def keep(group: dict[str, Any]) -> dict[str, Any]:
        if isinstance(group.get(name), dict):
            sections.append(group[name])
        return group

    try:
        json.loads(config, object_hook=keep)
    except json.JSONDecodeError:
        return []
    return sections


# ------------------------------------------------------------------------------- values out of pandas


def _records(frame: pd.DataFrame, what: str, columns: Sequence[str]) -> list[dict[str, Any]]:
    missing = [name for name in columns if name not in frame.columns]
    if missing:
        raise SchemaError(
            f"{what} has no column {', '.join(missing)}", nearest(missing[0], map(str, frame.columns))
        )
    return [{str(name): row[name] for name in row} for row in frame.to_dict("records")]


def _is_missing(value: Any) -> bool:
    return value is None or (pd.api.types.is_scalar(value) and bool(pd.isna(value)))


def _text(value: Any) -> str:
    return "" if _is_missing(value) else str(value)


def _optional(value: Any) -> str | None:
    return None if _is_missing(value) else str(value)


def _real(value: Any) -> float | None:
    return None if _is_missing(value) else float(value)


def _whole(value: Any) -> int | None:
    return None if _is_missing(value) else int(value)


def _pretty_json(text: str) -> str:
    try:
        return json.dumps(json.loads(text), indent=2, sort_keys=True, ensure_ascii=False)
    except json.JSONDecodeError:
        return text


def _order_index(name: str, order: Sequence[str]) -> int:
    return order.index(name) if name in order else len(order)


def _order_key(name: str, order: Sequence[str]) -> tuple[int, str]:
    return _order_index(name, order), name
