"""Collect model pairs whose order is not settled.

The order differs between strata and whole, or turns without a few items. The facts come from rows of
`current_paradoxes` and `flips`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from recbench_spark.reports.facts import (
    DisagreementFacts,
    Disagreements,
    FlipFacts,
    MetricEstimate,
    ReportedMeasure,
)
from recbench_spark.reports.phrases import name_model

DISAGREEMENTS_SHOWN = 12
FLIPS_SHOWN, LARGEST_SHOWN = 8, 5
KINDS = ("full", "reversal", "partial")


def make_disagreements(rows: pd.DataFrame, compared: pd.DataFrame) -> Disagreements | None:
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
    facts = tuple(_make_disagreement(row) for row in rows.to_dict("records"))
    return Disagreements(facts, tuple(counts), int(compared["count"].sum()))


def make_flips(rows: pd.DataFrame) -> tuple[FlipFacts, ...]:
    """Collect the verdicts that the fewest items or users turn.

    The verdicts come from rows of `flips`, the newest for each verdict. Verdicts no set turns are left out.
    """
    verdict = ["run_id", "other_run_id", "part", "metric", "k", "definition", "removed_are"]
    newest = rows.sort_values("found_at", kind="stable").drop_duplicates(verdict, keep="last")
    turned = newest[newest.removed.notna()]
    turned = turned.assign(share=turned.removed / turned.out_of)
    turned = turned.sort_values(["share", "part", "metric", "k", "model", "other"]).head(FLIPS_SHOWN)
    return tuple(_make_flip(row) for row in turned.to_dict("records"))


def describe_flips(flips: Sequence[FlipFacts], kinds: Mapping[str, str]) -> tuple[str, ...]:
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


def _make_flip(row: dict[Any, Any]) -> FlipFacts:
    return FlipFacts(
        part=str(row["part"]),
        measure=_make_measure(row),
        model=str(row["model"]),
        other=str(row["other"]),
        kind=str(row["removed_are"]),
        removed=int(row["removed"]),
        out_of=int(row["out_of"]),
        largest=tuple(map(str, row["ids"][:LARGEST_SHOWN])),
    )


def _make_disagreement(row: dict[Any, Any]) -> DisagreementFacts:
    total = sum(row["sizes"]) or 1
    arrays = (row[name] for name in ("labels", "sizes", "differences", "lows", "highs", "stratum_users"))
    strata = tuple(
        (str(label), float(size) / total, _make_estimate(difference, low, high, int(n)))
        for label, size, difference, low, high, n in zip(*arrays, strict=True)
    )
    users = int(row["users"])
    return DisagreementFacts(
        part=str(row["part"]),
        measure=_make_measure(row),
        key=str(row["slice_key"]),
        model=str(row["model"]),
        other=str(row["other"]),
        kind=str(row["kind"]),
        certain=bool(row["certain"]),
        whole=_make_estimate(row["difference"], row["ci_low"], row["ci_high"], users),
        stratified=_make_estimate(
            row["stratified_difference"], row["stratified_low"], row["stratified_high"], users
        ),
        strata=strata,
    )


def _make_measure(row: dict[Any, Any]) -> ReportedMeasure:
    k = None if pd.isna(row["k"]) else int(row["k"])
    return ReportedMeasure(str(row["metric"]), k, str(row["definition"]), "holdout")


def _make_estimate(value: Any, low: Any, high: Any, n: int) -> MetricEstimate:
    numbers = [None if pd.isna(number) else float(number) for number in (value, low, high)]
    return MetricEstimate(math.nan if numbers[0] is None else numbers[0], numbers[1], numbers[2], n)
