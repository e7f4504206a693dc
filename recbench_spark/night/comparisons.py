"""Compare a night's runs with each other and earlier nights.

These are the previous one and a pinned one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.analyses.comparisons.changes import ChangeRows
from recbench_spark.analyses.comparisons.comparisons import (
    LOOK_KEY,
    compare_beside,
    metric_scales,
    sum_looks,
)
from recbench_spark.analyses.comparisons.counted import WHOLE_RANKING, CountedNumber
from recbench_spark.analyses.comparisons.differences import ComparedRun, ComparisonGroup, ComparisonPlan
from recbench_spark.analyses.comparisons.evidence import find_allowed_fall
from recbench_spark.analyses.comparisons.slice_falls import compare_groups, compare_slices
from recbench_spark.analyses.comparisons.spreads import spread_measure
from recbench_spark.config import MANDCG, Comparisons, digest
from recbench_spark.core import revisions
from recbench_spark.core.definitions import Definition
from recbench_spark.metrics.beyond_accuracy import OVERALL, PER_USER
from recbench_spark.metrics.kernels.about import about_metric, best_when
from recbench_spark.models.settings import MODELS
from recbench_spark.night.beyond_means import compare_beyond_means, select_tonight
from recbench_spark.night.code_provenance import CodeChange, code_changes
from recbench_spark.night.compared_rows import add_facts, open_runs, read_numbers
from recbench_spark.night.night import AGE_COLUMNS, BenchmarkNight, describe_metric, sort_by_age
from recbench_spark.query.answers import list_texts, make_query_runner
from recbench_spark.reports.frame_values import is_missing
from recbench_spark.reports.phrases import format_decimals, format_signed
from recbench_spark.runtime.journal import Journal
from recbench_spark.schemas import (
    COMPARISONS,
    METRICS,
    RANKINGS,
    RUNS,
    SLICE_COMPARISONS,
    USER_METRICS,
)
from recbench_spark.storage.commits import Addition


@dataclass(frozen=True)
class ComparedNight:
    """A night's comparison, where it has one.

    Attributes:
        comparison_id: id of its rows in `comparisons`; None where nothing was compared.
        additions: these rows; empty where the table has them.
    """

    comparison_id: str | None = None
    additions: tuple[Addition, ...] = ()


def compare_night(
    night: BenchmarkNight,
    journal: Journal,
    narrow: Callable[[ComparisonPlan], ComparisonPlan] = lambda plan: plan,
) -> ComparedNight:
    """Compare a night's runs, if the file asks for it.

    The same runs with the same settings are compared once. `narrow` may leave out what nobody asks for.
    """
    comparisons = night.benchmark.comparisons
    if comparisons is None and not night.benchmark.regressions:
        return ComparedNight()
    plan = make_plan(night, comparisons or Comparisons())
    if plan is None or not (plan := narrow(plan)).groups:
        return ComparedNight()
    number_part = [plan.numbers] if plan.numbers else []
    name = digest(
        plan.runs,
        plan.groups,
        _comparison_settings(night),
        revisions.select_revisions("comparisons"),
        *number_part,
        length=32,
    )
    if night.store.has(COMPARISONS, "comparison_id", name):
        return ComparedNight(name)
    with journal.stage("comparisons", f"compare {len(plan.runs)} runs", suite=night.benchmark.name):
        rows, spreads = _comparison_rows(night, plan, name)
        slices = _compare_slices(night, plan, name, journal)
        others = compare_beyond_means(night, plan, name, spreads)
    # Rows of `comparisons` come last: they say that the night is compared.
    compared = Addition(COMPARISONS, name, rows, named_by="comparison_id")
    return ComparedNight(name, (*slices, *others, compared))


def _comparison_settings(night: BenchmarkNight) -> list[object]:
    benchmark = night.benchmark
    rules = [rule.model_dump() for rule in benchmark.regressions]
    compared = (benchmark.comparisons or Comparisons()).model_dump()
    return [compared, rules, benchmark.evaluation.bootstrap.model_dump()]


def _comparison_rows(
    night: BenchmarkNight, plan: ComparisonPlan, name: str
) -> tuple[pa.Table, pa.Table | None]:
    """Compare the runs, and add columns that identify the comparison.

    The other result has spreads over users, where the file asks for them.
    """
    run_ids = list_owners(plan.runs, plan.numbers)
    user_metrics, tasks = open_runs(night.store, USER_METRICS, run_ids)
    pairs = any(group.kind == "pair" for group in plan.groups)
    looks = list_earlier_looks(night, plan) if pairs else ()
    wanted = night.benchmark.comparisons or Comparisons()
    spreads = {"spreads": spread_measure(select_tonight(night, plan))} if wanted.users else {}
    rows, beside = compare_beside(user_metrics, plan, sum_looks(looks), tasks, spreads)
    facts = {
        "comparison_id": name,
        "suite": night.benchmark.name,
        "split_id": night.split_id,
        "estimator": "holdout",
        "minimum_difference": plan.min_users,
        "compared_at": datetime.now(UTC),
    }
    return add_facts(rows, facts, COMPARISONS), beside.get("spreads")


def _compare_slices(
    night: BenchmarkNight, plan: ComparisonPlan, name: str, journal: Journal
) -> list[Addition]:
    """Compare the runs by the slices that regressions watch, if any.

    The journal names the values with few users.
    """
    if not night.benchmark.regression_slices:
        return []
    watched = [rule for rule in plan.rules if rule.slice]
    of_users = tuple(rule for rule in watched if rule.slice in night.benchmark.user_slices)
    of_items = tuple(rule for rule in watched if rule not in of_users)
    tables = []
    if of_users:
        user_metrics, tasks = open_runs(night.store, USER_METRICS, list_owners(plan.runs, plan.numbers))
        tonight = [run.run_id for run in plan.runs if run.logical_date == night.logical_date]
        rankings, _ = open_runs(night.store, RANKINGS, tonight)
        labelled = ChangeRows(user_metrics, rankings)
        tables.append(compare_slices(night.store.engine, labelled, replace(plan, rules=of_users), tasks))
    if of_items:
        numbers = read_numbers(night.store, [run.run_id for run in plan.runs])
        tables.append(compare_groups(numbers, replace(plan, rules=of_items)))
    rows = pa.concat_tables(tables)
    pooled = rows.filter(pc.is_valid(rows.column("pooled"))).to_pylist()
    for text in sorted({f"values judged together{name_slice(row)}" for row in pooled}):
        journal.say(text)
    facts = {"comparison_id": name, "suite": night.benchmark.name, "compared_at": datetime.now(UTC)}
    rows = add_facts(rows, facts, SLICE_COMPARISONS)
    return [Addition(SLICE_COMPARISONS, name, rows, named_by="comparison_id")]


def list_owners(runs: Iterable[ComparedRun], numbers: Iterable[CountedNumber]) -> list[str]:
    """Return the ids of runs and of their numbers' owners."""
    return sorted({run.run_id for run in runs} | {number.owner for number in numbers})


# ------------------------------------------------------------------------------- runs that are compared


def make_plan(night: BenchmarkNight, comparisons: Comparisons) -> ComparisonPlan | None:
    """Plan this night's comparisons.

    The result is None where there are no two runs to compare.
    """
    visible = list_runs(night)
    runs = visible.runs
    tonight = select_tonight_runs(night, runs)
    chosen: list[ComparedRun] = list(tonight)
    groups = [ComparisonGroup("pair", tuple(range(len(tonight))))] if len(tonight) > 1 else []
    for kind, day in (("previous", None), ("baseline", comparisons.baseline_night)):
        for place, run in enumerate(tonight):
            earlier = find_previous_run(run, runs, day) if kind == "previous" or day else None
            if earlier:
                # The previous night can also be the pinned one.
                chosen += [earlier] if earlier not in chosen else []
                groups.append(ComparisonGroup(kind, (place, chosen.index(earlier))))
    if not groups:
        return None
    evaluation = night.benchmark.evaluation
    metrics = tuple(m for m in comparisons.metrics or evaluation.all_metrics if m not in OVERALL)
    numbers = list_counted_numbers(night, visible, chosen)
    return ComparisonPlan(
        tuple(chosen),
        tuple(groups),
        metrics,
        comparisons.k or (*evaluation.cutoffs, None),
        choose_baselines(night, tonight, comparisons.baseline, numbers),
        evaluation.bootstrap.model_copy(update={"replicates": comparisons.replicates}),
        comparisons.minimum_difference,
        comparisons.planned_users,
        best_when("small"),
        night.benchmark.regressions,
        find_night_scales(night, metrics),
        numbers,
        comparisons.planned_nights,
    )


@dataclass(frozen=True)
class VisibleRuns:
    """The runs whose numbers count.

    Attributes:
        runs: one run of each model and night.
        beside: a run in `runs` -> all runs of its model, night and split that have numbers of tonight's
            file; only where there are several.
    """

    runs: list[ComparedRun]
    beside: Mapping[str, tuple[str, ...]]


def visible_runs(night: BenchmarkNight) -> list[ComparedRun]:
    """Return one run per model and night (see `list_runs`)."""
    return list_runs(night).runs


def list_runs(night: BenchmarkNight) -> VisibleRuns:
    """Choose one run per model and night, until tonight's.

    Only runs on this suite and dataset whose numbers count (the view `current_metrics`) are taken;
    tonight's must be on this split. For each model and night this is the run with most metrics of
    tonight's file under tonight's definition; among equal ones, the newest. A later run with other
    metrics or another definition hides nothing: numbers of another run on the same split are taken from
    that run (`list_counted_numbers`). The driver holds one row for each run in the suite.
    """
    unmeasured_kinds = [None, *(kind for kind, model in MODELS.items() if not model.measured)]
    filters = [("suite", "=", night.benchmark.name), ("status", "=", "succeeded")]
    names = ["model", "model_kind", "logical_date", "dataset", "split_id", *AGE_COLUMNS]
    number_counts = count_matching_numbers(night)
    candidates: dict[tuple[str, date], list[tuple[int, str, str]]] = {}
    for row in sort_by_age(night.store.rows(RUNS, filters, names)):
        # Tonight's runs must be on this split; others on the same night come from older code or settings.
        tonight = row["logical_date"] == night.logical_date and row["split_id"] == night.split_id
        in_time = tonight or row["logical_date"] < night.logical_date
        same_dataset = row["dataset"] == night.benchmark.dataset.name
        if (
            row["run_id"] in number_counts
            and row["model_kind"] not in unmeasured_kinds
            and in_time
            and same_dataset
        ):
            candidate = number_counts[row["run_id"]], row["run_id"], str(row["split_id"]).partition(".")[0]
            candidates.setdefault((row["model"], row["logical_date"]), []).append(candidate)
    # Among equal counts take the last run, which is the newest.
    best = {
        place: max(reversed(group), key=lambda candidate: candidate[0])
        for place, group in candidates.items()
    }
    most = max((count for count, _, _ in best.values()), default=0)
    # A run without any of these numbers is no previous night, unless no run has any.
    chosen = {place: candidate for place, candidate in best.items() if candidate[0] or not most}
    beside = {
        candidate[1]: tuple(
            run_id for count, run_id, split in candidates[place] if count and split == candidate[2]
        )
        for place, candidate in chosen.items()
    }
    runs = [ComparedRun(run_id, model, day) for (model, day), (_, run_id, _) in chosen.items()]
    return VisibleRuns(runs, {run_id: group for run_id, group in beside.items() if len(group) > 1})


def list_counted_numbers(
    night: BenchmarkNight, visible: VisibleRuns, runs: Iterable[ComparedRun]
) -> tuple[CountedNumber, ...]:
    """List the numbers that count, for models with several runs.

    Only numbers of tonight's file are listed. Nothing is read where every model and night has one run.
    Otherwise the driver holds one row for each number of these runs.
    """
    owners = {run_id: run.run_id for run in runs for run_id in visible.beside.get(run.run_id, ())}
    if not owners:
        return ()
    rows = make_query_runner(night.store)(
        "SELECT run_id, part, metric, definition, k FROM current_metrics "
        f"WHERE run_id IN ({list_texts(sorted(owners))}) AND {_file_condition(night)}"
    )
    numbers = zip(
        rows.run_id, rows.part, rows.metric, rows.definition, rows.k.fillna(WHOLE_RANKING), strict=True
    )
    return tuple(
        sorted(
            CountedNumber(owners[run_id], run_id, part, metric, definition, int(k))
            for run_id, part, metric, definition, k in numbers
        )
    )


def _file_condition(night: BenchmarkNight) -> str:
    """Return the SQL condition for numbers in tonight's file."""
    evaluation = night.benchmark.evaluation
    defined = [
        f"({list_texts([m, describe_metric(evaluation, night.definition, m)])})"
        for m in evaluation.all_metrics
    ]
    counts = "estimator = 'holdout' AND slice_key IS NULL"
    return f"{counts} AND (metric, definition) IN ({', '.join(defined)})"


def count_matching_numbers(night: BenchmarkNight) -> dict[str, int]:
    """Count each run's numbers that tonight's file has too.

    The runs are the suite's, and their numbers count.
    """
    rows = make_query_runner(night.store)(
        f"SELECT run_id, COUNT(CASE WHEN {_file_condition(night)} THEN 1 END) AS n "
        f"FROM current_metrics WHERE suite = {list_texts([night.benchmark.name])} "
        "AND estimator = 'holdout' AND slice_key IS NULL GROUP BY run_id"
    )
    return dict(zip(rows.run_id, map(int, rows.n), strict=True))


def select_tonight_runs(night: BenchmarkNight, runs: Iterable[ComparedRun]) -> list[ComparedRun]:
    """Return this night's runs, sorted by model."""
    return sorted(
        (run for run in runs if run.logical_date == night.logical_date), key=lambda run: run.model
    )


def find_previous_run(
    run: ComparedRun, runs: Iterable[ComparedRun], day: date | None
) -> ComparedRun | None:
    """Return the model's run of the night `day`.

    Without `day` it is the last earlier night's.
    """
    earlier = [r for r in runs if r.model == run.model and r.logical_date < run.logical_date]
    matching = [r for r in earlier if day is None or r.logical_date == day]
    return max(matching, key=lambda r: r.logical_date, default=None)


def choose_baselines(
    night: BenchmarkNight,
    tonight: list[ComparedRun],
    named: str | None,
    numbers: Sequence[CountedNumber] = (),
) -> dict[tuple[str, str, int | None], int]:
    """Return the baseline model's place by (part, metric, k).

    Args:
        night: the night.
        tonight: a run of each model.
        named: the baseline named in the benchmark file; None: the best model.
        numbers: the result of `list_counted_numbers`.
    """
    places = {run.run_id: place for place, run in enumerate(tonight)}
    owners = {(n.owner, n.part, n.metric, n.definition, n.k): n.run_id for n in numbers}
    shared_ids = {run_id for n in numbers for run_id in (n.run_id, n.owner)}
    filters = [("run_id", "in", sorted({*places, *shared_ids})), ("estimator", "=", "holdout")]
    names = ["run_id", "part", "metric", "definition", "k", "slice_key", "value"]
    best: dict[tuple[str, str, int | None], tuple[float, int]] = {}
    for row in night.store.rows(METRICS, filters, names):
        number = (row["run_id"], row["part"], row["metric"], row["definition"], row["k"] or WHOLE_RANKING)
        run_id = owners.get(number) if row["run_id"] in shared_ids else row["run_id"]
        if row["slice_key"] is not None or row["value"] is None or run_id not in places:
            continue
        place = places[run_id]
        sort_key = about_metric(row["metric"]).sort_key(row["value"])
        rank = (0.0 if tonight[place].model == named else 1.0, place) if named else (sort_key, place)
        key = (row["part"], row["metric"], row["k"])
        best[key] = min(best.get(key, rank), rank)
    named_ran = named is None or any(run.model == named for run in tonight)
    return {key: place for key, (_, place) in best.items()} if named_ran else {}


def list_metrics_beyond_one(metrics: Iterable[str], definition: Definition) -> list[str]:
    """List the metrics whose values can leave [-1, 1]."""
    beyond = ["hit"] if definition.hit == "count" else []
    beyond += ["ndcg", MANDCG] if definition.negative_grades == "signed" else []
    return [m for m in metrics if m in (*PER_USER, *beyond)]


def find_night_scales(night: BenchmarkNight, metrics: Iterable[str]) -> dict[str, float]:
    """Return `ComparisonPlan.scales`, from all runs in the warehouse."""
    beyond = list_metrics_beyond_one(metrics, night.definition)
    if not beyond or not night.store.exists(USER_METRICS.name):
        return {}
    run_ids = sorted(night.store.list_values(USER_METRICS, "run_id"))
    return metric_scales(night.store.open_rows(USER_METRICS, "run_id", run_ids), beyond)


def list_earlier_looks(night: BenchmarkNight, plan: ComparisonPlan) -> Iterator[dict[str, Any]]:
    """Yield every pair's last comparison on each earlier split.

    Each comparison is one look, in this suite. A night on the same split uses the same users and items, and
    is no new look. `HASH.1` is the split `HASH`, made again after retention removed it. Comparisons between
    runs with other revisions do not count either: the same log would be counted twice, under two names and
    with two kinds of numbers. The driver holds a row for each pair, number and split.
    """
    tonight_ids = {run.run_id for run in plan.runs if run.logical_date == night.logical_date}
    own_ids = tonight_ids | {number.owner for number in plan.numbers if number.run_id in tonight_ids}
    code = "SELECT run_id, COALESCE(revisions, '{}') AS code FROM runs"
    own_codes = f"SELECT code FROM ({code}) AS own WHERE run_id IN ({list_texts(sorted(own_ids))})"
    same_code = f"SELECT run_id FROM ({code}) AS every_run WHERE code IN ({own_codes})"
    split = "SPLIT_PART(split_id, '.', 1)"
    names = f"{', '.join(LOOK_KEY)}, kind, with_baseline, users, difference, stderr"
    names += ", allowed_drop, bet_gains, fall_gains"
    pair = "LEAST(model, other), GREATEST(model, other)"
    rows = make_query_runner(night.store)(
        f"SELECT {names} FROM (SELECT {names}, logical_date, compared_at, ROW_NUMBER() OVER ("
        f"PARTITION BY {pair}, {split}, part, metric, definition, k "
        "ORDER BY logical_date DESC, compared_at DESC) AS place FROM comparisons "
        f"WHERE suite = {list_texts([night.benchmark.name])} AND kind = 'pair' "
        f"AND logical_date < DATE '{night.logical_date}' "
        f"AND {split} <> {list_texts([night.split_id.partition('.')[0]])} "
        f"AND run_id IN ({same_code}) AND other_run_id IN ({same_code})) AS looks "
        "WHERE place = 1 ORDER BY logical_date, compared_at"
    )
    for row in rows.to_dict("records"):
        known = {str(name): None if is_missing(value) else value for name, value in row.items()}
        known["k"] = None if known["k"] is None else int(known["k"])
        # Wealth of bets on a fall beyond another bound says nothing about tonight's.
        same = known["allowed_drop"] is not None and known["allowed_drop"] == find_allowed_fall(plan, known)
        yield known if same else known | {"fall_gains": None}


# ------------------------------------------------------------------------------- regressions


def describe_regressions(night: BenchmarkNight, name: str | None) -> tuple[str, ...]:
    """Describe a comparison's regressions, one sentence each."""
    if name is None:
        return ()
    filters = [("comparison_id", "=", name), ("regressed", "=", True)]
    tables = (COMPARISONS, *([SLICE_COMPARISONS] if night.benchmark.regression_slices else []))
    regressed = [row for table in tables for row in night.store.rows(table, filters)]
    regressed.sort(key=lambda row: (row["model"], row["part"], row["metric"], row["k"] or 0, row["kind"]))
    rows = [SimpleNamespace(**row) for row in regressed]
    codes = code_changes(night.store, [(row.other_run_id, row.run_id) for row in rows]) if rows else {}
    return tuple(regression_in_words(row, codes.get((row.other_run_id, row.run_id))) for row in rows)


def name_slice(row: Mapping[str, Any]) -> str:
    """Name a row's slice and value, with a comma before; empty: all users."""
    if row.get("slice_key") is None:
        return ""
    if row["slice_value"] is not None:
        return f", {row['slice_key']} {row['slice_value']}"
    values, more = row["pooled_values"], row["pooled"] - len(row["pooled_values"])
    named = ", ".join(values) + (f" and {more} more" if more else "")
    return f", {row['slice_key']} of few users ({named})"


def regression_in_words(row: SimpleNamespace, code: CodeChange | None = None) -> str:
    """Describe a regression in words.

    The sentence has the fall, its interval, the other night, and the code change.
    """
    at = f"@{row.k}" if row.k else ""
    value, other = format_decimals(row.value), format_decimals(row.other_value)
    interval = (
        f" [{format_signed(row.ci_low)}, {format_signed(row.ci_high)}]" if row.ci_low is not None else ""
    )
    against = f"of {row.other}" if row.kind == "pair" else f"on {row.other_date}"
    users = name_slice(vars(row))
    if users:
        evidence = f", p {row.p_holm:.2g} by Holm over {row.family} tests"
    else:
        evidence = f", e-value {row.e_fall:.3g}" if not is_missing(row.e_fall) else ""
    return (
        f"{row.model}: {row.metric}{at} of {row.part}{users} is {value}, {other} {against}: "
        f"{format_signed(row.difference)}{interval}, allowed {row.allowed_drop:g}{evidence}"
        f"{f'; the code differs, {code.words}' if code else ''}"
    )
