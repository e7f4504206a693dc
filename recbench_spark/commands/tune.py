"""Search settings of models on validation rows.

    recbench tune --config movielens_1m_rating --set dataset.path=DIR --warehouse DIR
    recbench tune --config movielens_1m_graph --set dataset.path=DIR --warehouse DIR
    recbench tune --config FILE --warehouse DIR --budget 32 --extend

The section `search` of the benchmark file declares the spaces. Validation rows are a share of the training
rows of one fold, whose test rows are never used; they are test rows of other folds. Rating models
are judged by RMSE, models that rank by the file's headline: each setting is then a model of a night over
the training rows, in the suite NAME-search, and its run is stored like any other. Each trial is a
row of `trials`; an interrupted search continues with the missing trials, and a larger budget adds to the
smaller one. --extend continues beyond every edge with a best value, with the same budget again. Runs of the
same model on the same log that use the best setting get their provenance from the search.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from contextlib import suppress
from functools import partial

from recbench_spark import cli
from recbench_spark.config import FOLD_HOLDOUTS, Benchmark, SearchSettings, load_benchmark
from recbench_spark.core.inputs import pin_inputs
from recbench_spark.errors import OK, ConfigError, FallbackToSpark

if __name__ != "flags":
    from recbench_spark.boards.search_spaces import Setting
    from recbench_spark.boards.searches import expected_best, late_gain
    from recbench_spark.boards.settings import MAX_SETTINGS
    from recbench_spark.commands.benchmark import choose_fit_runner
    from recbench_spark.commands.dry_runs import check_log
    from recbench_spark.commands.runners import run_job
    from recbench_spark.commands.warehouses import check_journal_path, check_warehouse
    from recbench_spark.config.placeholders import fill_placeholders
    from recbench_spark.engine.choices import EngineChoice
    from recbench_spark.night.benchmark_checks import check_benchmark
    from recbench_spark.night.runners import choose_runner
    from recbench_spark.query.command_lines import query_command
    from recbench_spark.runtime.journal import Journal
    from recbench_spark.sources import arrow_files
    from recbench_spark.storage.file_tables import FileTables
    from recbench_spark.tuning.fold_fits import FitPlanner
    from recbench_spark.tuning.folds import open_folded_log
    from recbench_spark.tuning.search import (
        SearchResult,
        Trials,
        check_searches,
        extend_searches,
        make_searches,
        read_searches,
        run_searches,
        trial_setting,
    )
    from recbench_spark.tuning.trials import RankingTrials, RatingTrials, check_trials


def parser() -> cli.Parser:
    """Make the command's parser."""
    flags = cli.Parser(__doc__ or "")
    add = flags.add_argument
    cli.add_flags(flags, "config", "warehouse")
    add("--models", help="some of the models that the file declares spaces for")
    add("--budget", type=cli.parse_count, help="settings per method (default: search.budget)")
    add("--extend", action="store_true", help="continue beyond edges with a best value")
    add("--threads", type=cli.parse_threads, default=1, help="threads of each fit of ratings (default 1)")
    cli.add_flags(flags, "set", "logical-date", "engine", "dry-run")
    add("--log", help=cli.JOURNAL)
    return flags


@pin_inputs()
def main(args: argparse.Namespace) -> int:
    """Check the file, run the search, print the best settings.

    Warnings come with them.
    """
    benchmark = fill_placeholders(load_benchmark(args.config, args.set), args.logical_date)
    search = resolve_search(benchmark, args.models, args.budget)
    check_benchmark(benchmark)
    check_journal_path(args.log, "--log")
    check_searches(benchmark, search)
    if benchmark.evaluation.task == "ranking":
        check_trials(benchmark)
    if args.dry_run:
        check_warehouse(args.warehouse)
        print("\n".join([dry_run(benchmark, search), *check_log(benchmark.dataset)]))
        check_validation(benchmark, search)
        print(f"runner      {choose_engine(args, benchmark, search)[0].describe()}")
        return OK
    chosen = choose_engine(args, benchmark, search)
    return run_job(
        f"search {benchmark.name}", args, chosen, partial(search_settings, args, benchmark, search)
    )


def choose_engine(
    args: argparse.Namespace, benchmark: Benchmark, search: SearchSettings
) -> tuple[EngineChoice, int]:
    """Choose the runner for the models' trials.

    Rating models need the same runner as in `benchmark`, ranking models the same as a night with them.
    """
    models = [model for model in benchmark.models if model.name in search.spaces]
    if benchmark.evaluation.task == "ranking":
        searched = benchmark.model_copy(update={"models": tuple(models)})
        return choose_runner(args.engine, searched, args.warehouse, night=True)
    return choose_fit_runner(args, benchmark, models, len(models) * search.budget * search.seeds)


def search_settings(
    args: argparse.Namespace, benchmark: Benchmark, search: SearchSettings, store: FileTables
) -> int:
    """Run the search; print the best settings and their warnings."""
    journal = Journal()
    journal.write_log(store, f"{benchmark.name}-search", args.log)
    trials = make_trials(store, benchmark, search, args, journal)
    results = run_searches(trials, search, make_searches(benchmark, search, trials), journal)
    if args.extend:
        known = read_searches(store.rows, trials.log_id)
        extra = extend_searches(benchmark, search, trials, known)
        results |= run_searches(trials, search, extra, journal) if extra else {}
    print("\n\n".join(describe_result(one) for one in results.values()))
    print(f"\none row per trial: {query_command(store.root, 'trials')}")
    return OK


def make_trials(
    store: FileTables,
    benchmark: Benchmark,
    search: SearchSettings,
    args: argparse.Namespace,
    journal: Journal,
) -> Trials:
    """Return the trials which the search will run.

    A rating model's trials are fits, run as tasks; a ranking model's trials are nights.
    """
    if benchmark.evaluation.task == "ranking":
        return RankingTrials(store, benchmark, search, args.logical_date, journal)
    fits = FitPlanner(store, benchmark, open_folded_log(store, benchmark, journal), args.threads, "search")
    return RatingTrials(fits, search)


def resolve_search(benchmark: Benchmark, models: str | None, budget: int | None) -> SearchSettings:
    """Return the file's search with the flags' changes.

    Raises:
        ConfigError: the file has no search, or the budget is too large.
    """
    if benchmark.search is None:
        raise ConfigError(
            f"benchmark {benchmark.name} declares no search",
            "search: {spaces: {MODEL: {rates: {low: 0.001, high: 0.05, log: true}}}}",
        )
    spaces = benchmark.search.spaces
    if budget is not None and budget > MAX_SETTINGS:
        raise ConfigError(
            f"--budget {budget}: at most {MAX_SETTINGS} settings per method", "16 or 32 are usual"
        )
    if models:
        spaces = {name: spaces[name] for name in cli.parse_names(models, "--models", spaces)}
    update = {"spaces": spaces, **({"budget": budget} if budget else {})}
    return benchmark.search.model_copy(update=update)


def check_validation(benchmark: Benchmark, search: SearchSettings) -> None:
    """Check that a local table leaves a row for validation.

    Raises:
        ConfigError: its validation share is less than one row.
    """
    path = benchmark.dataset.path
    if not path or not benchmark.dataset.is_headed:
        return
    with suppress(FallbackToSpark):
        rows = arrow_files.estimate_rows(path)
        if rows * search.share < 1:
            message = f"search.share {search.share:g}: of {rows:,} rows none would be validated on"
            raise ConfigError(message, "0.05 is usual")


def dry_run(benchmark: Benchmark, search: SearchSettings) -> str:
    """Describe the planned trials, without Spark."""
    ranking = benchmark.evaluation.task == "ranking"
    where = f"each user's training rows, {benchmark.headline}" if ranking else "the training rows"
    fold = f" of fold {search.fold}" if benchmark.split.holdout in FOLD_HOLDOUTS else ""
    lines = [
        f"benchmark   {benchmark.name}",
        f"split       {benchmark.split.describe()}",
        f"budget      {search.budget} settings per method, {search.seeds} fits each, {search.method}",
        f"validation  {search.share:.0%} of {where}{fold}{_describe_visible_rows(benchmark)}",
    ]
    for name, space in search.spaces.items():
        lines += [
            f"{name:11} {key}: {_describe_range(bounds.model_dump())}" for key, bounds in space.items()
        ]
    return "\n".join(lines)


def _describe_visible_rows(benchmark: Benchmark) -> str:
    """Describe how the validation rows relate to the other folds."""
    apart = benchmark.split.holdout in FOLD_HOLDOUTS and benchmark.evaluation.task == "rating"
    return "; they are test rows of the other folds" if apart else ""


def _describe_range(bounds: Mapping[str, object]) -> str:
    if bounds["values"]:
        return f"one of {', '.join(map(str, bounds['values']))}"  # type: ignore[call-overload]
    return f"{bounds['low']} to {bounds['high']}{', logarithmic' if bounds['log'] else ''}"


def describe_result(result: SearchResult) -> str:
    """Describe the best setting, its spread and its warnings.

    The expected best value by budget is part of the text.
    """
    best, judged = result.best, result.to_search_trials()
    assert best is not None and judged is not None
    failures = sum(row["value"] is None for row in result.trials)
    lines = [
        f"{result.model}: best of {len(result.trials)} settings: "
        f"validation {result.metric} {best['value']:.4f}"
        + (f" (standard deviation over seeds {best['spread']:.4f})" if best["spread"] else "")
        + (f"; {failures} diverged or failed" if failures else ""),
        f"  {json.dumps(_format_setting(trial_setting(result.space, best)))}",
        f"  {_describe_expected(result)}",
    ]
    for edge in result.edges:
        lines.append(
            f"  warning: the best {edge.name}, {edge.value:g}, lies on the {edge.side} edge of its space:"
            " the best may lie beyond (--extend)"
        )
    return "\n".join(lines)


def _format_setting(setting: Setting) -> Setting:
    return {
        name: int(v) if isinstance(v, float) and v.is_integer() and v >= 1 else v
        for name, v in setting.items()
    }


def _describe_expected(result: SearchResult) -> str:
    judged = result.to_search_trials()
    assert judged is not None
    by_budget, n = expected_best(judged), len(judged.trials)
    shown = sorted({1, 2, 4, 8, 16, 32, 64, 128, n} & set(range(1, n + 1)))
    values = ", ".join(f"{by_budget.expected_n[k - 1]:.4f} of {k}" for k in shown)
    gain = f"; the last doubling of the budget brought {late_gain(judged):.4f}" if n > 1 else ""
    return f"expected best: {values}{gain}"
