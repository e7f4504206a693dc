"""Fit rating models over folds and seeds; print means and spreads.

    recbench benchmark --config movielens_1m_rating --set dataset.path=DIR --warehouse DIR
    recbench benchmark --config FILE --warehouse DIR --seeds 1,2,3 --folds 0,1 --models sgd_64

Each (model, fold, seed) is a task of Spark and a row of `fits`; a second start continues where the first
one stopped. This job covers all folds. A night (`recbench nightly`) tests on the one fold that the file
names, with intervals, slices and comparisons. Exit codes: 0 fine, 1 a fit failed, 2 wrong usage or
configuration.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from functools import partial

from recbench_spark import cli
from recbench_spark.config import FOLD_HOLDOUTS, Benchmark, MllibAlsModel, ModelConfig, load_benchmark
from recbench_spark.core.inputs import pin_inputs
from recbench_spark.errors import FAILED, OK, ConfigError, FallbackToSpark

if __name__ != "flags":
    from recbench_spark.boards.fold_statistics import FoldSummary
    from recbench_spark.commands.dry_runs import check_log
    from recbench_spark.commands.runners import run_job
    from recbench_spark.commands.warehouses import check_journal_path, check_warehouse
    from recbench_spark.config.placeholders import fill_placeholders
    from recbench_spark.engine.choices import EngineChoice
    from recbench_spark.models.fits.tasks import Row
    from recbench_spark.models.rating.registry import FAMILIES, gives_ratings
    from recbench_spark.night.benchmark_checks import check_benchmark
    from recbench_spark.night.runners import choose_job_runner, count_log
    from recbench_spark.query.command_lines import query_command
    from recbench_spark.runtime.journal import Journal
    from recbench_spark.schemas import FITS, TRIALS
    from recbench_spark.storage.file_tables import FileTables
    from recbench_spark.tuning.fold_fits import (
        FitPlanner,
        list_named_parts,
        run_distributed,
        run_plan,
        summarise_models,
    )
    from recbench_spark.tuning.folds import open_folded_log


def parser() -> cli.Parser:
    """Make the command's parser."""
    flags = cli.Parser(__doc__ or "")
    add = flags.add_argument
    cli.add_flags(flags, "config", "warehouse")
    add("--models", help="some of the file's models, by name (default: all that predict ratings)")
    add("--seeds", type=cli.parse_seeds, default=(), help="e.g. 1,2,3 (default: each model's own)")
    add("--folds", type=cli.parse_seeds, default=(), help="some folds, e.g. 0,1 (default: all)")
    add("--threads", type=cli.parse_threads, default=1, help="threads of each fit (default 1)")
    cli.add_flags(flags, "set", "logical-date", "engine", "dry-run")
    add("--log", help=cli.JOURNAL)
    return flags


@pin_inputs()
def main(args: argparse.Namespace) -> int:
    """Check the file, label the log, fit models, print results."""
    benchmark = fill_placeholders(load_benchmark(args.config, args.set), args.logical_date)
    models = select_models(benchmark, args.models)
    check_benchmark(benchmark)
    check_journal_path(args.log, "--log")
    check_folds(benchmark, args.folds)
    check_amount(benchmark, models, args.seeds, args.folds)
    if args.dry_run:
        check_warehouse(args.warehouse)
        print(
            "\n".join([dry_run(benchmark, models, args.seeds, args.folds), *check_log(benchmark.dataset)])
        )
        print(f"runner      {choose_engine(args, benchmark, models)[0].describe()}")
        return OK
    chosen = choose_engine(args, benchmark, models)
    return run_job(
        f"benchmark {benchmark.name}", args, chosen, partial(fit_models, args, benchmark, models)
    )


def choose_engine(
    args: argparse.Namespace, benchmark: Benchmark, models: Sequence[ModelConfig]
) -> tuple[EngineChoice, int]:
    """Choose the runner for all fits.

    The runner has as many processes as the rows in all fits together need.
    """
    fits = count_fits(models, list_folds(benchmark, args.folds), args.seeds)
    return choose_fit_runner(args, benchmark, models, fits)


def choose_fit_runner(
    args: argparse.Namespace, benchmark: Benchmark, models: Sequence[ModelConfig], fits: int
) -> tuple[EngineChoice, int]:
    """Choose the runner for the fits, and count their rows."""

    def count() -> int:
        for model in models:
            if isinstance(model, MllibAlsModel):
                raise FallbackToSpark(f"model {model.name} (kind {model.kind}) runs on Spark")
        return count_log(benchmark)

    choice, n = choose_job_runner(args.engine, args.warehouse, count, (FITS, TRIALS))
    return choice, n * fits


def fit_models(
    args: argparse.Namespace, benchmark: Benchmark, models: Sequence[ModelConfig], store: FileTables
) -> int:
    """Label the log, fit the models and print the table."""
    journal = Journal()
    journal.write_log(store, f"{benchmark.name}-fits", args.log)
    log = open_folded_log(store, benchmark, journal)
    fits = FitPlanner(store, benchmark, log, args.threads)
    spread = [model for model in models if isinstance(model, MllibAlsModel)]
    single = [model for model in models if not isinstance(model, MllibAlsModel)]
    plan = fits.over_folds(single, args.seeds, args.folds)
    rows = run_plan(store, plan, journal)
    rows += run_distributed(fits, spread, args.seeds, args.folds, journal)
    print(format_table(rows))
    print(f"one row per fit: {query_command(store.root, 'fits_over_folds')}")
    return FAILED if any(row["status"] == "failed" for row in rows) else OK


def select_models(benchmark: Benchmark, names: str | None) -> list[ModelConfig]:
    """Return the rating models with these names; None selects all.

    Raises:
        ConfigError: the file has no rating model with such a name.
    """
    candidates = {
        model.name: model
        for model in benchmark.models
        if gives_ratings(model) or (isinstance(model, MllibAlsModel) and not model.implicit)
    }
    if not candidates:
        raise ConfigError(
            f"benchmark {benchmark.name} has no rating model",
            f"kinds: {', '.join(sorted(FAMILIES))}, or als with implicit: false",
        )
    selected = cli.parse_names(names, "--models", candidates) if names else tuple(candidates)
    return [candidates[name] for name in selected]


def check_folds(benchmark: Benchmark, folds: Sequence[int]) -> None:
    """Check that the split has these folds.

    Raises:
        ConfigError: it lacks one.
    """
    split = benchmark.split
    last = split.folds if split.holdout in FOLD_HOLDOUTS else 0
    for fold in folds:
        if fold >= last:
            hint = (
                f"this split has folds {_describe_folds(range(last))}"
                if last
                else "this split has no folds"
            )
            raise ConfigError(f"--folds: no fold {fold}", hint)


MAX_FITS = 10_000_000
"""Most fits in one job. The driver plans a row for each."""


def list_folds(benchmark: Benchmark, folds: Sequence[int]) -> Sequence[int]:
    """Return the fold numbers to fit; [0] without folds."""
    split = benchmark.split
    return folds or (range(split.folds) if split.holdout in FOLD_HOLDOUTS else [0])


def count_fits(models: Sequence[ModelConfig], places: Sequence[int], seeds: Sequence[int]) -> int:
    """Return the number of fits: models times folds times seeds."""
    return len(models) * len(places) * max(1, len(seeds))


def check_amount(
    benchmark: Benchmark, models: Sequence[ModelConfig], seeds: Sequence[int], folds: Sequence[int]
) -> None:
    """Check that the driver can plan so many fits.

    Raises:
        ConfigError: there are too many.
    """
    fits = count_fits(models, list_folds(benchmark, folds), seeds)
    if fits > MAX_FITS:
        message = f"split.folds {benchmark.split.folds}: {fits:,} fits, at most {MAX_FITS:,}"
        raise ConfigError(message, "use fewer folds (split.folds), or only some of them (--folds 0,1)")


def dry_run(
    benchmark: Benchmark, models: Sequence[ModelConfig], chosen: Sequence[int], folds: Sequence[int]
) -> str:
    """Describe the planned fits, without Spark."""
    split, places = benchmark.split, list_folds(benchmark, folds)
    fits = count_fits(models, places, chosen)
    lines = [
        f"benchmark   {benchmark.name}: {benchmark.description}".rstrip(": "),
        f"dataset     {benchmark.dataset.name} ({benchmark.dataset.reader}) {benchmark.dataset.path or ''}",
        f"split       {split.describe()}",
        f"models      {', '.join(f'{model.name} ({model.kind})' for model in models)}",
        f"folds       {_describe_folds(places)}",
        f"fits        {fits}",
    ]
    return "\n".join(lines)


MAX_LISTED_FOLDS = 20
"""Most folds which are listed one by one."""


def _describe_folds(places: Sequence[int]) -> str:
    """Return the fold numbers as text.

    A long list is cut to its first two numbers and its last.
    """
    if len(places) <= MAX_LISTED_FOLDS:
        return ", ".join(map(str, places))
    return f"{places[0]}, {places[1]}, ..., {places[-1]} ({len(places):,})"


def format_table(rows: Sequence[Row]) -> str:
    """Return a table with one line per model.

    The columns are the mean, both spreads, core-hours and the number of failed fits.
    """
    parts = list_named_parts(rows)
    views: list[tuple[str, str | None]] = (
        [(part, part) for part in parts] if len(parts) > 1 else [("", None)]
    )
    lines = [
        f"{'model':24} {'part':8} {'RMSE':>8} {'over folds':>10} {'over seeds':>10} "
        f"{'folds':>5} {'seeds':>5} {'core-h':>7}  not succeeded"
    ]
    for label, part in views:
        summaries = summarise_models(rows, part)
        for model in sorted(summaries, key=lambda model: summaries[model].mean):
            lines.append(
                _format_line(model, label, summaries[model], [row for row in rows if row["model"] == model])
            )
    lost = {row["model"] for row in rows} - set(summarise_models(rows))
    lines += [f"{model:24} no fit succeeded" for model in sorted(lost)]
    return "\n".join(lines)


def _format_line(model: str, part: str, summary: FoldSummary, rows: Sequence[Row]) -> str:
    hours = sum(row.get("cpu_seconds") or 0.0 for row in rows) / 3600
    lost = sum(row["status"] != "succeeded" for row in rows)
    cells = (("-" if math.isnan(x) else f"{x:.4f}") for x in (summary.over_folds, summary.over_seeds))
    spread_cells = " ".join(f"{x:>10}" for x in cells)
    counts = f"{summary.folds:5} {summary.seeds:5} {hours:7.3f}"
    return f"{model:24} {part:8} {summary.mean:8.4f} {spread_cells} {counts}  {lost or ''}".rstrip()
