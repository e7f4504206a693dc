"""Make a report's facts from rows of the result tables.

The rows are pandas frames, from Spark or `deltalake`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from recbench_spark.errors import DataError
from recbench_spark.metrics.kernels.about import place_in_reports
from recbench_spark.reports.corrections import is_corrected, make_corrections
from recbench_spark.reports.facts import (
    CheckRow,
    DefinitionFacts,
    Leaderboard,
    ManifestFacts,
    MetricEstimate,
    Number,
    Report,
    ReportedMeasure,
    RunFacts,
)
from recbench_spark.reports.frame_values import (
    format_json,
    is_missing,
    order_key,
    read_optional,
    read_real,
    read_records,
    read_text,
    read_whole,
)
from recbench_spark.reports.leaderboards import (
    add_training_rows,
    choose_headline,
    make_agreements,
    make_curves,
    make_leaderboards,
    make_slices,
)
from recbench_spark.reports.multiverse import make_multiverse
from recbench_spark.reports.phrases import defaults_in_words, definition_in_words, summarise
from recbench_spark.schemas import TIME_FACTS

FACT_ORDER = (
    "rows_read", "rejected_rows", "later_rows", "duplicates_dropped", "repeats_dropped", "rows", "users",
    "items", "overlap", "future_share",
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
) -> Report:
    """Make the facts for a suite's latest night.

    `latest` has the columns of the view `latest_metrics`, the other frames those of their tables; rows
    from other runs or splits are ignored. `headline` is `metric@k` or `metric`. `pairs` has the columns
    of `multiverse_pairs`. `regressions` has one sentence for each, without a full stop.

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
    run_facts = make_runs(runs, numbers)
    return Report(
        suite=numbers[0].suite if numbers else "no results",
        logical_date=max((number.logical_date for number in numbers), default=""),
        level=_interval_level(run_facts),
        models=_list_models(boards, numbers),
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
    return Number(
        suite=read_text(row["suite"]),
        logical_date=read_text(row["logical_date"])[:10],
        dataset=read_text(row["dataset"]),
        split=read_text(row["split"]),
        split_id=read_text(row["split_id"]),
        model=read_text(row["model"]),
        model_kind=read_text(row["model_kind"]),
        source=read_text(row["source"]),
        run_id=read_text(row["run_id"]),
        part=read_text(row["part"]),
        measure=ReportedMeasure(
            row["metric"], read_whole(row["k"]), read_text(row["definition"]), read_text(row["estimator"])
        ),
        slice_key=read_optional(row["slice_key"]),
        slice_value=read_optional(row["slice_value"]),
        estimate=MetricEstimate(
            math.nan if is_missing(row["value"]) else float(row["value"]),
            read_real(row["ci_low"]),
            read_real(row["ci_high"]),
            read_whole(row["n"]) or 0,
        ),
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
            check = CheckRow(
                check=read_text(row["check"]),
                severity=read_text(row["severity"]),
                passed=bool(row["passed"]),
                observed=read_real(row["observed"]),
                threshold=read_real(row["threshold"]),
                detail=read_text(row["detail"]),
                models=(),
            )
            merged.setdefault(check, set()).add(model_of[row["run_id"]])
    rows = [replace(check, models=tuple(sorted(models))) for check, models in merged.items()]
    return tuple(
        sorted(
            rows,
            key=lambda row: (
                row.passed,
                *order_key(row.severity, SEVERITIES),
                row.check,
                row.models,
                row.detail,
            ),
        )
    )


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
    facts = tuple(sorted({fact for fact, _ in counts}, key=lambda fact: order_key(fact, FACT_ORDER)))
    values = tuple(tuple(counts.get((fact, part)) for part in parts) for fact in facts)
    entries = [(read_text(row["part"]), read_text(row["fact"]), read_text(row["detail"])) for row in rows]
    texts = sorted(text for text in entries if text[2] and text[1] not in facts)
    about = {fact: detail for _, fact, detail in sorted(entries) if detail}
    notes = tuple(about.get(fact, "") for fact in facts)
    return ManifestFacts(split_id, dataset, split, parts, facts, notes, values, tuple(texts))


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
            began[_model_and_dataset(row)] = max(
                began.get(_model_and_dataset(row), ""), read_text(row.get("started_at"))
            )
    facts = []
    for row in rows:
        night = (read_text(row["suite"]), read_text(row["logical_date"])[:10])
        later = (
            _model_and_dataset(row) not in began
            or read_text(row.get("started_at")) > began[_model_and_dataset(row)]
        )
        if row["run_id"] in shown or (row["status"] == "failed" and night in nights and later):
            facts.append(_make_run(row))
    return tuple(sorted(facts, key=lambda run: (run.status == "succeeded", run.model, run.run_id)))


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
    return RunFacts(
        run_id=read_text(row["run_id"]),
        model=read_text(row["model"]),
        model_kind=read_text(row.get("model_kind")),
        model_version=read_text(row.get("model_version")),
        status=read_text(row["status"]),
        source=read_text(row.get("source")),
        ran_by=read_text(row.get("ran_by")),
        source_year=read_whole(row.get("source_year")),
        search_space=read_text(row.get("search_space")),
        budget=read_text(row.get("budget")),
        at_grid_edge=()
        if is_missing(edge)
        else tuple(str(name) for name in (() if edge is None else edge)),
        code_version=read_text(row.get("code_version")),
        seconds=read_real(row.get("seconds")),
        n_users=read_whole(row.get("n_users")),
        started_at=read_text(row.get("started_at"))[:19],
        config=format_json(read_text(row.get("config_json"))),
        error=read_text(row.get("error")),
        dataset=read_text(row.get("dataset")),
    )


def make_definitions(numbers: Iterable[Number]) -> tuple[DefinitionFacts, ...]:
    """Collect every definition in use with its metrics.

    A definition's differences from the defaults are in words.
    """
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
    """Return the level all intervals share, by the runs' settings.

    The result is None if they do not agree.
    """
    levels = {
        float(section["level"])
        for run in runs
        for section in _find_settings("bootstrap", run.config)
        if "level" in section
    }
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
