"""Make a report's facts from rows of the result tables.

The rows are pandas frames, from Spark or `deltalake`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from recbench_spark.errors import DataError
from recbench_spark.metrics.kernels.about import place_in_reports
from recbench_spark.reports import facts, leaderboards
from recbench_spark.reports.facts import CheckRow, ManifestFacts, Number, RunFacts
from recbench_spark.reports.frame_values import (
    format_json,
    is_missing,
    order_key,
    read_facts,
    read_real,
    read_records,
    read_text,
)
from recbench_spark.reports.phrases import defaults_in_words, definition_in_words, summarise
from recbench_spark.reports.sections import make_multiverse
from recbench_spark.schemas import TIME_FACTS

FACT_ORDER = (
    "rows_read", "rejected_rows", "later_rows", "duplicates_dropped", "repeats_dropped", "rows", "users",
    "items", "overlap", "future_share", "future_selection",
)  # fmt: skip
SEVERITIES = ("error", "warning", "info")


def make_report(
    latest: pd.DataFrame,
    runs: pd.DataFrame,
    checks: pd.DataFrame,
    manifests: pd.DataFrame,
    headline: str,
    *,
    sql_lines: Sequence[str],
    pairs: pd.DataFrame | None = None,
    regressions: Sequence[str] = (),
) -> facts.Report:
    """Make the facts for a suite's latest night.

    `latest` has the columns of the view `latest_metrics`, the other frames those of their tables; rows
    from other runs or splits are ignored. `headline` is `metric@k` or `metric`. `pairs` has the columns
    of `multiverse_pairs`. `regressions` has one sentence for each, without a full stop.

    Raises:
        SchemaError: a column is missing.
        DataError: `latest` holds more than one suite.
    """
    numbers = read_numbers(latest)
    uncorrected = [number for number in numbers if not leaderboards.is_corrected(number)]
    metric, k, note = leaderboards.choose_headline(uncorrected, headline)
    check_rows = make_checks(checks, numbers)
    ranked = leaderboards.make_leaderboards(uncorrected, metric, k)
    boards = tuple(leaderboards.add_training_rows(board, check_rows) for board in ranked)
    agreements = leaderboards.make_agreements(boards)
    run_facts = make_runs(runs, numbers)
    models = [row.model for board in boards for row in board.rows]
    return facts.Report(
        suite=numbers[0].suite if numbers else "no results",
        logical_date=max((number.logical_date for number in numbers), default=""),
        level=_interval_level(run_facts),
        models=tuple(dict.fromkeys([*models, *sorted({number.model for number in numbers})])),
        summary=summarise(boards, agreements, regressions, (*describe_failed_attempts(run_facts), *note)),
        leaderboards=boards,
        agreements=agreements,
        curves=leaderboards.make_curves(numbers, boards),
        slices=leaderboards.make_slices(numbers, boards),
        multiverse=make_multiverse(pairs) if pairs is not None else (),
        checks=check_rows,
        manifests=make_manifests(manifests, numbers),
        definitions=make_definitions(numbers),
        defaults=defaults_in_words(),
        runs=run_facts,
        sql_lines=tuple(sql_lines),
        corrections=leaderboards.make_corrections(numbers, boards),
        regressions=tuple(regressions),
    )


def read_numbers(latest: pd.DataFrame) -> tuple[Number, ...]:
    """Read the rows of `latest_metrics` on the last night's splits.

    Only these may be ranked.
    """
    numbers = [_read_number(row) for row in read_records(latest, "latest_metrics", _NUMBER_COLUMNS)]
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
    low, high = read_real(row["ci_low"]), read_real(row["ci_high"])
    return read_facts(
        Number,
        row,
        logical_date=read_text(row["logical_date"])[:10],
        measure=read_facts(facts.ReportedMeasure, row),
        estimate=read_facts(facts.MetricEstimate, row, low=low, high=high),
    )


def make_checks(checks: pd.DataFrame, numbers: Iterable[Number]) -> tuple[CheckRow, ...]:
    """Collect the shown runs' checks: failed first, then by severity.

    Equal ones share a row.
    """
    model_of = {number.run_id: number.model for number in numbers}
    columns = ("run_id", "check", "severity", "observed", "threshold", "passed", "detail")
    merged: dict[CheckRow, set[str]] = {}
    for row in read_records(checks, "checks", columns):
        if row["run_id"] in model_of:
            merged.setdefault(read_facts(CheckRow, row, models=()), set()).add(model_of[row["run_id"]])
    rows = [replace(check, models=tuple(sorted(models))) for check, models in merged.items()]
    return tuple(sorted(rows, key=_order_check))


def _order_check(row: CheckRow) -> tuple[Any, ...]:
    return row.passed, *order_key(row.severity, SEVERITIES), row.check, row.models, row.detail


def make_manifests(manifests: pd.DataFrame, numbers: Iterable[Number]) -> tuple[ManifestFacts, ...]:
    """Collect the counts of the shown splits."""
    splits = {n.split_id: (n.dataset, n.split) for n in sorted(numbers, key=lambda n: n.split_id)}
    rows = read_records(manifests, "manifests", ("split_id", "part", "fact", "value", "detail"))
    return tuple(
        _make_manifest(split_id, *names, [row for row in rows if row["split_id"] == split_id])
        for split_id, names in splits.items()
        if any(row["split_id"] == split_id for row in rows)
    )


def _make_manifest(split_id: str, dataset: str, split: str, rows: list[dict[str, Any]]) -> ManifestFacts:
    counts = {
        (row["fact"], row["part"]): read_real(row["value"])
        for row in rows
        if row["fact"] not in TIME_FACTS and not is_missing(row["value"])
    }
    order = ("log", "train", "valid", "test", "open_loop")
    parts = tuple(sorted({part for _, part in counts}, key=lambda part: order_key(part, order)))
    shown = tuple(sorted({fact for fact, _ in counts}, key=lambda fact: order_key(fact, FACT_ORDER)))
    values = tuple(tuple(counts.get((fact, part)) for part in parts) for fact in shown)
    entries = [(read_text(row["part"]), read_text(row["fact"]), read_text(row["detail"])) for row in rows]
    texts = sorted(text for text in entries if text[2] and text[1] not in shown)
    about = {fact: detail for _, fact, detail in sorted(entries) if detail}
    notes = tuple(about.get(fact, "") for fact in shown)
    return ManifestFacts(split_id, dataset, split, parts, shown, notes, values, tuple(texts))


def make_runs(runs: pd.DataFrame, numbers: Sequence[Number]) -> tuple[RunFacts, ...]:
    """Collect the shown runs, then the night's unresolved failures.

    A failed attempt is left out if a later one succeeded.
    """
    shown = {number.run_id for number in numbers}
    nights = {(number.suite, number.logical_date) for number in numbers}
    rows = read_records(runs, "runs", ("run_id", "suite", "logical_date", "model", "status"))
    began: dict[tuple[str, str], str] = {}
    for row in rows:
        if row["run_id"] in shown:
            model = _model_and_dataset(row)
            began[model] = max(began.get(model, ""), read_text(row.get("started_at")))
    made = []
    for row in rows:
        night = (read_text(row["suite"]), read_text(row["logical_date"])[:10])
        model = _model_and_dataset(row)
        later = model not in began or read_text(row.get("started_at")) > began[model]
        if row["run_id"] in shown or (row["status"] == "failed" and night in nights and later):
            made.append(_make_run(row))
    return tuple(sorted(made, key=lambda run: (run.status == "succeeded", run.model, run.run_id)))


def _model_and_dataset(row: dict[str, Any]) -> tuple[str, str]:
    """Return model and dataset of a row in `runs`.

    Attempts on other data are not compared in time.
    """
    return read_text(row["model"]), read_text(row.get("dataset"))


def describe_failed_attempts(runs: Sequence[RunFacts]) -> tuple[str, ...]:
    """Describe each model whose figures come from an earlier attempt.

    The last attempt of such a model failed.
    """
    _, outdated = find_failed(runs)
    return tuple(f"{model}'s last attempt failed: its figures are of an earlier one." for model in outdated)


def find_failed(runs: Sequence[RunFacts]) -> tuple[list[str], list[str]]:
    """Separate failed models without figures from those with old ones."""
    succeeded = {(run.model, run.dataset) for run in runs if run.status == "succeeded"}
    failed = {(run.model, run.dataset) for run in runs if run.status == "failed"}
    return sorted({model for model, _ in failed - succeeded}), sorted({m for m, _ in failed & succeeded})


def _make_run(row: dict[str, Any]) -> RunFacts:
    edge = row.get("at_grid_edge")
    return read_facts(
        RunFacts,
        row,
        at_grid_edge=() if edge is None or is_missing(edge) else tuple(map(str, edge)),
        started_at=read_text(row.get("started_at"))[:19],
        config=format_json(read_text(row.get("config_json"))),
    )


def make_definitions(numbers: Iterable[Number]) -> tuple[facts.DefinitionFacts, ...]:
    """Collect every definition in use with its metrics.

    A definition's differences from the defaults are in words.
    """
    metrics: dict[str, set[str]] = {}
    for number in numbers:
        metrics.setdefault(number.measure.definition, set()).add(number.measure.metric)
    made = []
    for text, names in sorted(metrics.items()):
        ordered = sorted(names, key=lambda metric: (place_in_reports(metric), metric))
        made.append(facts.DefinitionFacts(text, tuple(ordered), definition_in_words(text)))
    return tuple(made)


def _interval_level(runs: Iterable[RunFacts]) -> float | None:
    """Return the level all intervals share, by the runs' settings.

    The result is None if they do not agree.
    """
    sections = [section for run in runs for section in _find_settings("bootstrap", run.config)]
    levels = {float(section["level"]) for section in sections if "level" in section}
    return levels.pop() if len(levels) == 1 else None


def _find_settings(name: str, config: str) -> list[dict[str, Any]]:
    """Find every settings group with this name, at any depth."""
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
