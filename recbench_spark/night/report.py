"""Write a night's report: HTML, leaderboard and next queries."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from datetime import date

import pandas as pd

from recbench_spark import reports
from recbench_spark.analyses.comparisons.differences import HOLDOUT
from recbench_spark.analyses.comparisons.kernels.paradoxes import KINDS
from recbench_spark.config import CURVE_METRIC, Benchmark, Comparisons
from recbench_spark.models.graph import GraphNet
from recbench_spark.night.measure_checks import parse_headline
from recbench_spark.night.night import BenchmarkNight, describe_metric
from recbench_spark.night.night_status import report_file
from recbench_spark.night.report_history import (
    describe_regressions,
    make_falls,
    measure_condition,
    read_compared,
    read_falls,
    read_history,
)
from recbench_spark.night.run_keys import choose_curve_cutoff
from recbench_spark.night.verdicts import Judge, describe_doubts, make_judge
from recbench_spark.query.answers import Ask, list_texts, make_query_runner
from recbench_spark.query.command_lines import command_anywhere
from recbench_spark.reports.night_facts import PlantedFault
from recbench_spark.runtime.journal import Journal
from recbench_spark.schemas import CURVE_CROSSINGS, LEARNING_CURVES, RETRIEVAL_RUNS, SELF_TESTS
from recbench_spark.storage.file_tables import FileTables, RowReader
from recbench_spark.storage.table_sql import view_files


def report_night(
    night: BenchmarkNight, journal: Journal, judge: Judge | None = None
) -> tuple[str | None, str]:
    """Write the report, and return its place and the leaderboard.

    A catalog where only Spark writes has no place for files: its report lies below the present folder.
    Where nobody may write there, the journal says so, and the place is None.
    """
    with journal.stage("report", "report"):
        report = make_report(night.store, night.benchmark, night.logical_date, night.split_id, judge)
        planted = read_self_test(night.store, night.benchmark.name, night.logical_date)
        report = replace(report, self_test=planted)
        path: str | None = report_file(night.store.root, night.benchmark.name, night.logical_date)
        try:
            reports.write_report(report, str(path))
        except OSError as error:
            if night.store.file_place():
                raise
            journal.say(f"no report: {error}")
            path = None
    return path, reports.leaderboard_text(report)


def make_report(
    store: FileTables, benchmark: Benchmark, logical_date: date, split_id: str, judge: Judge | None = None
) -> reports.Report:
    """Collect the facts for a suite's night.

    The driver holds published numbers, no row for a user.
    """
    ask = make_query_runner(store)
    latest = read_latest(ask, benchmark, logical_date)
    ids = latest.run_id.unique().tolist()
    id_list, splits = list_texts(ids), list_texts(sorted({split_id, *latest.split_id}))
    failed = f"suite = '{benchmark.name}' AND logical_date = DATE '{logical_date}' AND status = 'failed'"
    regressed = read_falls(store, benchmark, ids, logical_date)
    report = reports.make_report(
        latest,
        ask(f"SELECT * FROM runs WHERE run_id IN ({id_list}) OR ({failed})"),
        ask(f"SELECT * FROM checks WHERE run_id IN ({id_list})"),
        ask(f"SELECT * FROM manifests WHERE split_id IN ({splits})"),
        benchmark.headline,
        sql_lines=sql_lines(store, benchmark, logical_date),
        pairs=read_multiverse_pairs(ask, [benchmark.name]) if benchmark.evaluation.multiverse else None,
        regressions=describe_regressions(regressed),
    )
    report = replace(
        report,
        falls=make_falls(store, regressed),
        has_rules=bool(benchmark.regressions),
        doubts=describe_doubts((judge or make_judge(store, benchmark))(ids)),
    )
    compared = read_compared(ask, ids, report) if benchmark.comparisons else None
    pairs = () if compared is None else reports.make_pairs_compared(compared)
    report = report if compared is None else reports.add_tests(report, compared)
    report = reports.add_nights(report, read_history(ask, benchmark.name, logical_date, report), pairs)
    if benchmark.paradoxes:
        report = add_paradoxes(report, ask, id_list)
    report = add_curves_and_indexes(report, store.rows, benchmark, logical_date, latest)
    if any(isinstance(model, GraphNet) for model in benchmark.models):
        report = replace(report, graphs=reports.make_graphs(read_graph_runs(ask, split_id)))
    if benchmark.comparisons is None:
        return report
    return add_changes(add_beyond_means(report, ask, benchmark, id_list), ask, benchmark, id_list)


def add_changes(report: reports.Report, ask: Ask, benchmark: Benchmark, id_list: str) -> reports.Report:
    """Add why numbers moved since the night before."""
    changes = read_changes(ask, benchmark, id_list)
    return replace(
        report, changes=reports.make_changes(changes), code_changes=reports.describe_code_changes(changes)
    )


def add_beyond_means(
    report: reports.Report, ask: Ask, benchmark: Benchmark, id_list: str
) -> reports.Report:
    """Add spreads over users, gaps between groups and fronts, where the file asks for them."""
    settings, beyond = benchmark.comparisons or Comparisons(), reports.BeyondMeans()
    if settings.fronts:
        beyond = replace(beyond, fronts=reports.make_fronts(read_rows(ask, "fronts", id_list)))
    if settings.users:
        metric, k = parse_headline(benchmark)
        shown = f"metric = '{metric}' AND COALESCE(k, 0) = {k or 0}"
        tables = [read_rows(ask, name, id_list, shown) for name in ("user_spreads", "group_gaps")]
        tables.append(read_rows(ask, "preferences", id_list))
        beyond = replace(beyond, users=reports.make_user_facts(tables, benchmark.headline))
    return replace(report, beyond=beyond)


def read_rows(ask: Ask, table: str, id_list: str, shown: str = "true") -> pd.DataFrame:
    """Read some runs' rows of a table."""
    return ask(f"SELECT * FROM {table} WHERE run_id IN ({id_list}) AND {shown}")


def read_self_test(store: FileTables, suite: str, day: date) -> tuple[PlantedFault, ...]:
    """Return the faults of a night's newest self-test, if there was one."""
    rows = store.rows(SELF_TESTS, [("suite", "=", suite), ("logical_date", "=", day)])
    newest = max((row["tested_at"] for row in rows), default=None)
    names = [field.name for field in fields(PlantedFault)]
    kept = sorted((row for row in rows if row["tested_at"] == newest), key=lambda row: row["fault"])
    return tuple(PlantedFault(**{name: row[name] for name in names}) for row in kept)


def add_paradoxes(report: reports.Report, ask: Ask, id_list: str) -> reports.Report:
    """Add disagreements of parts, and the smallest changes that flip verdicts."""
    shown = reports.make_disagreements(*read_disagreements(ask, id_list))
    flips = ask(f"SELECT * FROM flips WHERE run_id IN ({id_list}) AND other_run_id IN ({id_list})")
    facts = reports.make_flips(flips)
    summary = (*report.summary, *reports.describe_flips(facts, reports.map_kinds(report.leaderboards)))
    return replace(report, disagreements=shown, flips=facts, summary=summary)


def read_latest(ask: Ask, benchmark: Benchmark, logical_date: date) -> pd.DataFrame:
    """Read a suite's newest numbers on or before a night."""
    latest = ask(f"SELECT * FROM latest_metrics WHERE suite = '{benchmark.name}'")
    if (latest.logical_date > logical_date).any():
        latest = ask(
            f"SELECT * FROM ({view_until(logical_date)}) AS known WHERE suite = '{benchmark.name}'"
        )
    if len(latest):
        # Datasets no longer run, or renamed by now, do not belong to this night.
        last = latest.groupby("dataset", dropna=False).logical_date.transform("max")
        latest = latest[last == latest.logical_date.max()]
    return latest


def add_curves_and_indexes(
    report: reports.Report,
    read: RowReader,
    benchmark: Benchmark,
    logical_date: date,
    latest: pd.DataFrame,
) -> reports.Report:
    """Add learning curves and indexes, where asked for."""
    if benchmark.evaluation.learning_curve is not None:
        report = replace(
            report, learning_curves=read_learning_curves(read, benchmark, logical_date, latest)
        )
    if benchmark.retrieval is not None:
        facts, wanted = read_retrieval(read, latest), benchmark.retrieval.recall
        choices = () if wanted is None else reports.choose_indexes(facts, wanted)
        report = replace(report, retrieval=facts, chosen_indexes=choices)
    return report


def read_learning_curves(
    read: RowReader, benchmark: Benchmark, logical_date: date, latest: pd.DataFrame
) -> tuple[reports.LearningCurveFacts, ...]:
    """Read the shown runs' learning curves, and the night's crossings.

    The driver holds one row for each point on a curve, and one for each pair of models.
    """
    models = dict(zip(latest.run_id, latest.model, strict=True))
    measured = [("metric", "=", CURVE_METRIC), ("k", "=", choose_curve_cutoff(benchmark))]
    curves = read(LEARNING_CURVES, [("run_id", "in", sorted(models)), *measured]) if models else []
    night = [("suite", "=", benchmark.name), ("logical_date", "=", logical_date)]
    crossings = read(CURVE_CROSSINGS, [*night, *measured]) if models else []
    shown = [row for row in crossings if row["run_id"] in models and row["other_run_id"] in models]
    return reports.make_learning_curves(
        pd.DataFrame(curves, columns=LEARNING_CURVES.names),
        models,
        pd.DataFrame(shown, columns=CURVE_CROSSINGS.names),
    )


def read_retrieval(read: RowReader, latest: pd.DataFrame) -> tuple[reports.RetrievalFacts, ...]:
    """Read the shown runs' indexes.

    The driver holds one row per run, part and cut-off.
    """
    models = dict(zip(latest.run_id, latest.model, strict=True))
    rows = read(RETRIEVAL_RUNS, [("run_id", "in", sorted(models))]) if models else []
    return reports.make_retrieval(pd.DataFrame(rows, columns=RETRIEVAL_RUNS.names), models)


def view_until(day: date) -> str:
    """Return the SQL of `latest_metrics` as of a night.

    Numbers from later nights are left out.
    """
    view = view_files()["latest_metrics"]
    bounded = rf"\1(SELECT * FROM \2 WHERE logical_date <= DATE '{day}') AS \2"
    return re.sub(r"(FROM\s+)(current_\w+)", bounded, view, count=1)


def read_graph_runs(ask: Ask, split_id: str) -> pd.DataFrame:
    """Read the models' passes over this split's graphs.

    A pass may come from any night.
    """
    return ask(f"SELECT * FROM graph_runs WHERE model_id LIKE '{split_id}-%'")


def read_disagreements(ask: Ask, id_list: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Read these runs' clearest disagreements, and counts by kind.

    The rows are those of `current_paradoxes`.
    """
    rows = f"FROM current_paradoxes WHERE run_id IN ({id_list})"
    severity = " ".join(f"WHEN '{kind}' THEN {place}" for place, kind in enumerate(KINDS))
    order = f"certain DESC, CASE kind {severity} END DESC, opposed_share DESC, part, metric, k, model"
    plainest = (
        f"SELECT * {rows} AND kind <> 'none' ORDER BY {order}, other LIMIT {reports.DISAGREEMENTS_SHOWN}"
    )
    return ask(plainest), ask(f"SELECT kind, certain, COUNT(*) AS count {rows} GROUP BY kind, certain")


def read_changes(ask: Ask, benchmark: Benchmark, id_list: str) -> pd.DataFrame:
    """Read these runs' rows of `current_changes` at the headline.

    The rows are sorted by model, part and group.
    """
    headline = measure_condition(*parse_headline(benchmark))
    order = "model, part, group_key, group_value"
    return ask(f"SELECT * FROM current_changes WHERE run_id IN ({id_list}) AND {headline} ORDER BY {order}")


def read_multiverse_pairs(ask: Ask, suites: Sequence[str]) -> pd.DataFrame:
    """Read `multiverse_pairs` for some suites.

    Each pair, metric and protocol has a row.
    """
    return ask(f"SELECT * FROM multiverse_pairs WHERE suite IN ({list_texts(suites)})")


def sql_lines(store: FileTables, benchmark: Benchmark, day: date) -> list[str]:
    """Return commands to paste, with Spark and without it.

    Each command names suite, dataset, metric, estimator and definition, so it selects one number among
    many.
    """
    metric, k = parse_headline(benchmark)
    at = f"k = {k}" if k else "k IS NULL"
    chosen = {
        "suite": benchmark.name,
        "dataset": benchmark.dataset.name,
        "metric": metric,
        "estimator": HOLDOUT,
        "definition": describe_metric(benchmark.evaluation, benchmark.definition, metric),
    }
    conditions = " AND ".join([at, *(f"{name} = {list_texts([value])}" for name, value in chosen.items())])
    columns = "part, estimator, definition, position, model, value"
    sql = f"SELECT {columns} FROM leaderboard WHERE {conditions} ORDER BY part, position, model"
    return [
        *(command_anywhere("query", query, "--warehouse", store.root) for query in ("leaderboard", sql)),
        shlex.join([sys.executable, "-c", _pandas_command(store.root, chosen, k, day)]),
    ]


def _pandas_command(root: str, chosen: Mapping[str, str], k: int | None, day: date) -> str:
    """Return Python code that prints a night's numbers without Spark.

    The last attempt counts. `deltalake` alone opens no table in a folder whose name holds `%20`, so the
    code goes by `delta_tables`.
    """
    run_conditions = [f"(r.{name} == {chosen[name]!r})" for name in ("suite", "dataset")]
    run_conditions += ["(r.status == 'succeeded')", f"(r.logical_date.astype(str) == '{day}')"]
    number_conditions = [
        f"(t.{name} == {chosen[name]!r})" for name in ("metric", "estimator", "definition")
    ]
    number_conditions += [f"(t.k == {k})" if k else "t.k.isna()", "t.slice_key.isna()"]
    columns = ["logical_date", "split_id", "part", "estimator", "definition", "model"]
    return (
        "from recbench_spark.storage.delta_tables import read_dataset as d; "
        f"r, m = (d({root + '/'!r} + n).to_table().to_pandas() for n in ('runs', 'metrics')); "
        f"t = m.merge(r[{' & '.join(run_conditions)}], on='run_id'); "
        f"t = t[{' & '.join(number_conditions)}].sort_values(['finished_at', 'attempt', 'run_id']); "
        f"t = t.drop_duplicates({columns[1:]!r}, keep='last').sort_values(['part', 'model']); "
        f"print(t[{[*columns, 'value', 'ci_low', 'ci_high']!r}].to_string(index=False))"
    )
