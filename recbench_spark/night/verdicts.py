"""Read what a night may say of each model, and which numbers it replaced."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from recbench_spark.config import Benchmark
from recbench_spark.errors import OK, VERDICT_CODES, RecbenchError
from recbench_spark.metrics.result_views import name_figure
from recbench_spark.night.measure_checks import parse_headline
from recbench_spark.night.result_files import VerdictRecord
from recbench_spark.query.answers import Ask, list_texts, make_query_runner
from recbench_spark.reports.frame_values import is_missing
from recbench_spark.reports.phrases import format_decimals, format_signed
from recbench_spark.schemas import COMPARISONS
from recbench_spark.storage.arrow_store import ArrowStore, needs_no_java
from recbench_spark.storage.file_tables import FileTables

Judge = Callable[[Iterable[str]], list[VerdictRecord]]
"""Returns the verdicts on some runs."""

KINDS = ("pair", "baseline", "previous")
"""Comparisons by which a model is judged; the first one a model has counts."""


def read_verdicts(ask: Ask, benchmark: Benchmark, run_ids: Iterable[str]) -> list[VerdictRecord]:
    """Read the verdicts on some runs, sorted by model, part and metric.

    The list is empty where the file asks for no comparison.
    """
    if benchmark.comparisons is None and not benchmark.regressions:
        return []
    names = ", ".join(VerdictRecord.model_fields)
    rows = ask(
        f"SELECT {names} FROM model_verdicts WHERE run_id IN ({list_texts(sorted(run_ids))}) "
        "ORDER BY model, part, metric, k, kind, definition"
    )
    return [VerdictRecord.model_validate(_read_row(row)) for row in rows.to_dict("records")]


def make_judge(store: FileTables, benchmark: Benchmark) -> Judge:
    """Return a function from run ids to their verdicts, which judges the same runs once."""
    ask = make_query_runner(store)
    read = cache(lambda run_ids: read_verdicts(ask, benchmark, run_ids))
    return lambda run_ids: read(frozenset(run_ids))


def _read_row(row: Mapping[Any, Any]) -> dict[str, Any]:
    known = {str(name): None if is_missing(value) else value for name, value in row.items()}
    return {**known, "k": known["k"] and int(known["k"]), "other_date": str(known["other_date"])[:10]}


def select_headline(verdicts: Sequence[VerdictRecord], benchmark: Benchmark) -> list[VerdictRecord]:
    """Return each model's verdict on the headline, by part."""
    metric, k = parse_headline(benchmark)
    best: dict[tuple[str, str, str], VerdictRecord] = {}
    for one in sorted(verdicts, key=lambda one: KINDS.index(one.kind)):
        if (one.metric, one.k) == (metric, k):
            best.setdefault((one.model, one.part, one.definition), one)
    return [best[key] for key in sorted(best)]


def describe_doubts(verdicts: Iterable[VerdictRecord]) -> tuple[str, ...]:
    """Describe models that are too good, or cannot be judged.

    There is one sentence for each model and reason.
    """
    doubts: dict[tuple[str, str, str], str] = {}
    for one in verdicts:
        if one.verdict in ("too good", "cannot tell"):
            doubts.setdefault((one.model, one.verdict, str(one.reason)), describe_verdict(one))
    return tuple(doubts.values())


def choose_doubt_code(verdicts: Iterable[VerdictRecord], benchmark: Benchmark) -> int:
    """Return the exit code for doubts that the file lists in `exit_on`.

    It is 0 without them; of two codes the smaller one counts.
    """
    codes = [VERDICT_CODES[one.verdict] for one in verdicts if one.verdict in benchmark.exit_on]
    return min(codes, default=OK)


def describe_verdict(one: VerdictRecord) -> str:
    """Describe a verdict with its numbers."""
    if one.verdict == "cannot tell":
        return f"{one.model}: cannot tell, the check '{one.reason}' did not pass"
    other = f"of {one.other}" if one.kind == "pair" else f"on {one.other_date}"
    values = f"{format_decimals(one.value or 0)}, {format_decimals(one.other_value or 0)} {other}"
    figure = f"{name_figure(one.metric, one.k)} of {one.part} is {values}"
    reason = f" ({one.reason})" if one.reason else ""
    return f"{one.model}: {one.verdict}{reason}, {figure}: {format_signed(one.difference or 0)}"


def describe_restatements(ask: Ask, benchmark: Benchmark, run_ids: Iterable[str]) -> tuple[str, ...]:
    """Describe numbers of these runs that moved their night's too far.

    Without a bound in the file there are none.
    """
    if benchmark.restated is None:
        return ()
    rows = ask(
        "SELECT model, part, metric, k, value_before, value, difference, cause FROM restatements "
        f"WHERE run_id IN ({list_texts(sorted(run_ids))}) AND estimator = 'holdout' "
        f"AND slice_key IS NULL AND ABS(difference) > {benchmark.restated.above!r} "
        "ORDER BY model, part, metric, k"
    )
    return tuple(_describe_move(row) for row in rows.to_dict("records"))


def _describe_move(row: Mapping[Any, Any]) -> str:
    figure = name_figure(row["metric"], None if is_missing(row["k"]) else int(row["k"]))
    return (
        f"{row['model']}: {figure} of {row['part']} is {format_decimals(row['value'])}, "
        f"{format_decimals(row['value_before'])} before on this night: "
        f"{format_signed(row['difference'])}, by {row['cause']}"
    )


def describe_power(root: str, benchmark: Benchmark) -> list[str]:
    """Say the smallest differences that the suite's last night could tell.

    The list is empty where no night was compared, or only Spark reads the warehouse.
    """
    compared = benchmark.comparisons is not None or bool(benchmark.regressions)
    try:
        store = ArrowStore(root, read_only=True) if compared and needs_no_java(root) else None
    except RecbenchError:  # there is no warehouse yet
        return []
    if store is None or not store.exists(COMPARISONS.name):
        return []
    ask, suite = make_query_runner(store), f"suite = {list_texts([benchmark.name])}"
    last = f"SELECT MAX(logical_date) FROM comparisons WHERE {suite}"
    runs = ask(f"SELECT DISTINCT run_id FROM comparisons WHERE {suite} AND logical_date IN ({last})")
    verdicts = select_headline(read_verdicts(ask, benchmark, runs.run_id), benchmark)
    return [
        f"{one.model} with {one.other if one.kind == 'pair' else 'its night before'}: "
        f"{name_figure(one.metric, one.k)} of {one.part} {format_decimals(one.detectable)}"
        for one in verdicts
        if one.detectable is not None
    ]
