"""The whole flow of a night. Read this first.

    read a log -> split -> train or open each model -> rank and measure all -> publish -> report

Every step reads tables and returns rows for tables, which `commit` appends. A model whose run key has
succeeded on this night is not run again. A run becomes visible by its row in `runs`, written last.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import UTC, date, datetime
from itertools import islice

from recbench_spark.config import Benchmark, ModelConfig, PublishedModel, RetrievedModel, SwitchModel
from recbench_spark.config.placeholders import fill_placeholders
from recbench_spark.core.inputs import pin_inputs
from recbench_spark.errors import FAILED, GATE, Interrupted, RecbenchError, is_cancelled
from recbench_spark.night.batched_evaluation import (
    RankableModel,
    ends_night,
    group_models,
    measure_group,
    needs_candidates,
    open_model,
    rank_group,
    read_models_per_pass,
)
from recbench_spark.night.benchmark_checks import check_ranking
from recbench_spark.night.candidates import list_missing_draws
from recbench_spark.night.changes import explain_changes
from recbench_spark.night.comparisons import compare_night, describe_regressions
from recbench_spark.night.crossings import find_night_crossings
from recbench_spark.night.gates import gate_error
from recbench_spark.night.mending import mend_night
from recbench_spark.night.model_fits import fit_models_in_tasks, train_model
from recbench_spark.night.night import (
    BenchmarkNight,
    check_night_gates,
    count_attempts,
    hold_night,
    list_missing_models,
    open_night,
    require_split,
    require_truth,
    yesterday_stamp,
)
from recbench_spark.night.night_status import NightOutcome
from recbench_spark.night.paradoxes import find_paradoxes
from recbench_spark.night.rating_evaluation import predict_model
from recbench_spark.night.report import report_night, sql_lines
from recbench_spark.night.results import (
    Attempt,
    add_published_figures,
    add_runs,
    write_night,
    write_results,
)
from recbench_spark.night.split import prepare_split
from recbench_spark.night.verdicts import make_judge
from recbench_spark.runtime.failures import describe_with_trace
from recbench_spark.runtime.journal import Journal
from recbench_spark.storage.commits import add_checks, commit, commit_together
from recbench_spark.storage.file_tables import FileTables


@pin_inputs()
def run_night(
    store: FileTables, benchmark: Benchmark, logical_date: date, journal: Journal, force: bool = False
) -> NightOutcome:
    """Evaluate a benchmark file's models for one night.

    A failing model does not stop the others.

    Raises:
        FallbackToSpark: the warehouse has no Spark, and a step needs it.
    """
    with hold_caches(store):
        return _run_night(store, benchmark, logical_date, journal, force)


def _run_night(
    store: FileTables, benchmark: Benchmark, logical_date: date, journal: Journal, force: bool
) -> NightOutcome:
    mend_night(store, fill_placeholders(benchmark, logical_date), logical_date, journal)
    night = open_night(store, benchmark, logical_date)
    check_ranking(night.benchmark)  # `open_night` has checked all else
    attempts = count_attempts(night)
    todo = night.benchmark.models if force else list_missing_models(night, attempts)
    if force or not todo:
        return make_attempts(night, todo, attempts, journal)
    with hold_night(night, journal):
        attempts = count_attempts(night)  # another job may have completed some meanwhile
        return make_attempts(night, list_missing_models(night, attempts), attempts, journal)


def hold_caches(store: FileTables) -> AbstractContextManager[None]:
    """Return a context to free a night's cached frames.

    At its end the context removes the frames from Spark's memory.
    """
    if store.spark is None:
        return nullcontext()
    from recbench_spark.runtime.session import cache_scope  # noqa: PLC0415

    return cache_scope()


def make_attempts(
    night: BenchmarkNight, todo: Sequence[ModelConfig], attempts: Mapping[str, int], journal: Journal
) -> NightOutcome:
    """Evaluate some models; compare and report the night's runs."""
    store, benchmark, logical_date = night.store, night.benchmark, night.logical_date
    if todo:
        store.delete_orphans(yesterday_stamp(store))
        prepare_split(store, benchmark, night.split_id, journal, logical_date)
        require_truth(night)
        if night.curves is not None:
            night.curves.require_users()
        stop_at_gates(night, todo, attempts, journal)
    run_ids, failed, held = run_models(night, todo, attempts, journal)
    compared = compare_night(night, journal)
    commit(store, *compared.additions)
    for step in (find_paradoxes, explain_changes, find_night_crossings):
        commit(store, *step(night, journal))
    skipped = tuple(model.name for model in benchmark.models if model not in todo)
    judge = make_judge(store, benchmark)
    path, leaderboard = report_night(night, journal, judge) if run_ids or skipped else (None, "")
    lines = tuple(sql_lines(store, benchmark, logical_date))
    regressions = describe_regressions(night, compared.comparison_id)
    outcome = NightOutcome(run_ids, skipped, failed, path, leaderboard, lines, regressions, held)
    return write_night(night, outcome, judge, compared.comparison_id)


def start_runs(
    night: BenchmarkNight, todo: Sequence[ModelConfig], attempts: Mapping[str, int]
) -> Iterator[Attempt]:
    """Yield the next attempt at each model.

    An attempt begins when the loop reaches it.
    """
    for n, model in enumerate(todo, start=1):
        yield Attempt(night, model, attempts[model.name] + 1, f"{n}/{len(todo)}")


def stop_at_gates(
    night: BenchmarkNight, todo: Sequence[ModelConfig], attempts: Mapping[str, int], journal: Journal
) -> None:
    """Check a night's gates; if one fails, end the job.

    Every run is recorded as failed.

    Raises:
        GateError: a gate failed.
    """
    checks = check_night_gates(night)
    for check in checks:
        if not check.passed and check.severity == "warning":
            journal.say(f"warning: {check.summary_line()}")
    error = gate_error(checks)
    if error is None:
        return
    runs = list(start_runs(night, todo, attempts))
    for run in runs:
        record_failure(run, error, journal)
    report_run_states(night, runs, journal)
    night.store.end_runs()
    stopped = {model.name: str(error) for model in todo}
    outcome = NightOutcome({}, (), stopped, None, "", (), (), tuple(stopped))
    write_night(night, outcome, make_judge(night.store, night.benchmark))
    raise error


def run_models(
    night: BenchmarkNight, todo: Sequence[ModelConfig], attempts: Mapping[str, int], journal: Journal
) -> tuple[dict[str, str], dict[str, str], tuple[str, ...]]:
    """Run models in sequence, switches between models last.

    Rating models are fitted first, side by side. Models for one ranking pass are opened, then ranked
    together in groups. One model's failure does not touch the others.

    Returns:
        By model name, the run ids of successful models and the messages of failed ones; then the names of
        models stopped by a gate.
    """
    runs: list[Attempt] = []
    ready: list[RankableModel] = []
    try:
        group_size = read_models_per_pass(night)
        fitted = fit_models_in_tasks(night, todo, journal)
        switches = [model for model in todo if isinstance(model, SwitchModel)]
        others = [model for model in todo if not isinstance(model, SwitchModel)]
        started = start_runs(night, [*others, *switches], attempts)
        for run in islice(started, len(others)):
            runs.append(run)
            with catch_failures(run, journal):
                opened = run_model(run, journal, alone=not group_size, fitted=fitted)
                ready += opened
            if run.error or not opened:
                report_run_states(night, [run], journal)
        for group in group_models(ready, group_size):
            run_group(night, group, runs, journal)
        for run, switch in zip(started, switches, strict=True):
            runs.append(run)
            run_switch(run, switch, journal)
    finally:
        night.store.drop_scratch()
        night.store.end_runs()
    failed = {run.model.name: run.error for run in runs if run.error}
    held = tuple(run.model.name for run in runs if run.error and run.exit_code == GATE)
    return {run.model.name: run.run_id for run in runs if not run.error}, failed, held


def run_model(
    run: Attempt, journal: Journal, *, alone: bool, fitted: frozenset[str] = frozenset()
) -> list[RankableModel]:
    """Train or open one model.

    Args:
        run: the attempt.
        journal: journal of the job.
        alone: predict by the model and measure it, now.
        fitted: names of models fitted in this night.

    Returns:
        The opened model, for ranking in a group; empty where the run is complete.
    """
    night, model = run.night, run.model
    if isinstance(model, PublishedModel):
        commit(night.store, add_published_figures(model, run.run_id))
        return []
    with journal.stage("train", f"model {run.place} {model.name}: train", **run.facts) as counts:
        counts["trained"] = train_model(night, model, journal) or model.name in fitted
    if not alone:
        opened = open_model(night, model, run.run_id)
        run.seconds = (datetime.now(UTC) - run.started).total_seconds()
        return [opened]
    run.checks, additions = predict_model(night, model, run.run_id, journal)
    commit(night.store, *additions)
    require_split(night)
    return []


def add_curves(runs: Sequence[Attempt], journal: Journal) -> None:
    """Measure ranked models' learning curves, if wanted.

    The benchmark file asks for them.
    """
    context = runs[0].night.curves if runs else None
    if context is None:
        return
    from recbench_spark.night.learning_curves import list_curve_values, summarise_curves  # noqa: PLC0415

    night, started = runs[0].night, datetime.now(UTC)
    title = f"learning curves of {', '.join(run.model.name for run in runs)}"
    with journal.stage("learning_curves", title, run_ids=[run.run_id for run in runs]) as counts:
        for run in runs:
            with catch_failures(run, journal):
                commit(night.store, *list_curve_values(night, context, run.model, run.run_id))
        measured = [run for run in runs if not run.error]
        checks = context.make_checks()
        commit(
            night.store,
            *summarise_curves(night, [run.run_id for run in measured]),
            *(add_checks(run.run_id, checks) for run in measured),
        )
        counts["failed"] = len(runs) - len(measured)
    seconds = (datetime.now(UTC) - started).total_seconds() / len(runs)
    for run in runs:
        if run.seconds is not None:
            run.seconds += seconds
    for run in measured:
        run.checks = [*run.checks, *checks]


def measure_indexes(runs: Sequence[Attempt], group: Sequence[RankableModel], journal: Journal) -> None:
    """Measure the indexes behind retrieved lists.

    A failure fails only the runs with an index.
    """
    retrieved = [run for run in runs if isinstance(run.model, RetrievedModel)]
    if not retrieved:
        return
    from recbench_spark.night.retrieval import measure_retrieval  # noqa: PLC0415

    run_ids = {run.run_id for run in retrieved}
    with catch_failures(retrieved, journal):
        night, ready = retrieved[0].night, [one for one in group if one.run_id in run_ids]
        commit(night.store, measure_retrieval(night, ready, journal))


def run_switch(run: Attempt, model: SwitchModel, journal: Journal) -> None:
    """Measure and publish a switch between two published models."""
    from recbench_spark.night.learning_curves import summarise_curves  # noqa: PLC0415
    from recbench_spark.night.switches import splice_switch  # noqa: PLC0415

    night, facts = run.night, {"run_id": run.run_id, "model": model.name}
    with catch_failures(run, journal), journal.stage("switch", f"{model.name}: switch", **facts):
        choice, values = splice_switch(night, model, run.run_id)
        commit(night.store, values)
        assert night.curves is not None
        checks = [*night.curves.make_checks(), choice.make_check()]
        commit(night.store, *summarise_curves(night, [run.run_id]), add_checks(run.run_id, checks))
        run.checks, run.budget = checks, choice.describe()
        require_split(night)
    report_run_states(run.night, [run], journal)


def run_group(
    night: BenchmarkNight, group: Sequence[RankableModel], runs: Sequence[Attempt], journal: Journal
) -> None:
    """Rank, measure and publish models in one pass.

    One commit publishes all models without a failure.
    """
    group_ids = {ready.run_id for ready in group}
    group_runs = [run for run in runs if run.run_id in group_ids]
    with catch_failures(group_runs, journal):
        if needs_candidates(group):
            commit(night.store, *list_missing_draws(night))
        ranked = rank_group(night, group, journal)
        commit_together(night.store, *ranked.list_files())
        evaluated, additions = measure_group(night, ranked, journal)
        commit_together(night.store, *additions)
        require_split(night)
        for run in group_runs:
            result = evaluated[run.run_id]
            run.checks, run.seconds = result.checks, (run.seconds or 0.0) + result.seconds
            if result.error:
                record_failure(run, result.error, journal)
        add_curves([run for run in group_runs if not run.error], journal)
        measure_indexes([run for run in group_runs if not run.error], group, journal)
    report_run_states(night, group_runs, journal)


# ------------------------------------------------------------------------------- how runs end


@contextmanager
def catch_failures(runs: Attempt | Sequence[Attempt], journal: Journal) -> Iterator[None]:
    """Turn an error inside into these runs' failure.

    The night goes on. This holds for every error: a model may be a user's code, and `sys.exit` in it must
    not end a night.

    Raises:
        Interrupted: Spark's jobs were cancelled.
    """
    try:
        yield
    except (Exception, SystemExit) as error:
        if is_cancelled(error):
            raise Interrupted from error
        # Every other model would fail too, and no run can be written; or Spark makes the night.
        several = [runs] if isinstance(runs, Attempt) else runs
        if ends_night(error, several[0].night.store):
            raise
        for run in several:
            if not run.error:  # an earlier reason is the one to report
                record_failure(run, error, journal)


def record_failure(run: Attempt, error: BaseException, journal: Journal) -> None:
    """Store the reason of a model's failure, and print it."""
    run.error = describe_with_trace(error)
    run.exit_code = error.exit_code if isinstance(error, RecbenchError) else FAILED
    journal.say(f"model {run.place} {run.model.name}: FAILED: {run.error}")


def report_run_states(night: BenchmarkNight, runs: Sequence[Attempt], journal: Journal) -> None:
    """Write ended runs to `runs`, the log and result files.

    Successful runs become visible by their row in `runs`.
    """
    commit(night.store, add_runs(runs))
    for run in runs:
        error = {"error": run.error} if run.error else {}
        journal.record("publish", **run.facts, **error)
    write_results(night.store, night.benchmark, runs)
