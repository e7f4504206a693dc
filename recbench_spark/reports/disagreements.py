"""Where strata and whole disagree on two models: rows of `current_paradoxes` as facts."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from recbench_spark.reports.facts import DisagreementFacts, Disagreements, MetricEstimate, ReportedMeasure

DISAGREEMENTS_SHOWN = 12
KINDS = ("full", "reversal", "partial")


def make_disagreements(rows: pd.DataFrame, compared: pd.DataFrame) -> Disagreements | None:
    """The rows in the order given, and the counts; None where nothing disagrees.

    Args:
        rows: of `current_paradoxes`, those that disagree.
        compared: kind, certain, count: of all pairs compared.
    """
    if rows.empty:
        return None
    counts = []
    for kind in KINDS:
        of_kind = compared[compared.kind == kind]
        if len(of_kind):
            sure = of_kind[of_kind.certain.astype(bool)]
            counts.append((kind, int(of_kind["count"].sum()), int(sure["count"].sum())))
    facts = tuple(_make_disagreement(row) for row in rows.to_dict("records"))
    return Disagreements(facts, tuple(counts), int(compared["count"].sum()))


def _make_disagreement(row: dict[Any, Any]) -> DisagreementFacts:
    k = None if pd.isna(row["k"]) else int(row["k"])
    total = sum(row["sizes"]) or 1
    arrays = (row[name] for name in ("labels", "sizes", "differences", "lows", "highs", "stratum_users"))
    strata = tuple(
        (str(label), float(size) / total, _make_estimate(difference, low, high, int(n)))
        for label, size, difference, low, high, n in zip(*arrays, strict=True)
    )
    users = int(row["users"])
    return DisagreementFacts(
        part=str(row["part"]),
        measure=ReportedMeasure(str(row["metric"]), k, str(row["definition"]), "holdout"),
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


def _make_estimate(value: Any, low: Any, high: Any, n: int) -> MetricEstimate:
    known = [None if pd.isna(number) else float(number) for number in (value, low, high)]
    return MetricEstimate(math.nan if known[0] is None else known[0], known[1], known[2], n)
