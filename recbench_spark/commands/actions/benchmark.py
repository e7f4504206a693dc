"""What `jobs/benchmark.py` does."""

from __future__ import annotations

import argparse
import math
import shlex
import sys
from collections.abc import Sequence

from recbench_spark import cli
from recbench_spark.commands.dry_runs import check_log
from recbench_spark.commands.warehouses import check_journal_path, check_warehouse
from recbench_spark.config import FOLD_HOLDOUTS, AlsModel, Benchmark, ModelConfig, load_benchmark
from recbench_spark.errors import FAILED, OK, ConfigError
from recbench_spark.inputs import pin_inputs
from recbench_spark.leaderboard.fold_statistics import FoldSummary
from recbench_spark.models.rating.registry import FAMILIES
from recbench_spark.nightly.night import check_benchmark
from recbench_spark.placeholders import fill_placeholders
from recbench_spark.runtime.journal import Journal
from recbench_spark.runtime.session import get_session
from recbench_spark.storage.store import Store
from recbench_spark.training.fits.tasks import Row
from recbench_spark.tuning.fold_fits import FitPlanner, run_distributed, run_plan, summarise_models
from recbench_spark.tuning.folds import open_folded_log


@pin_inputs()
def run(args: argparse.Namespace) -> int:
    """Check the file, label the log, fit, tell."""
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
        return OK
    journal = Journal()
    journal.say(f"benchmark {benchmark.name}: starting Spark")
    store = Store(get_session(f"recbench-spark {benchmark.name}"), args.warehouse)
    write_log(store, journal, args.log, f"{benchmark.name}-fits")
    log = open_folded_log(store, benchmark, journal)
    fits = FitPlanner(store, benchmark, log, args.threads)
    spread = [model for model in models if isinstance(model, AlsModel)]
    single = [model for model in models if not isinstance(model, AlsModel)]
    plan = fits.over_folds(single, args.seeds, args.folds)
    rows = run_plan(store, plan, journal)
    rows += run_distributed(fits, spread, args.seeds, args.folds, journal)
    print(format_table(rows))
    command = [sys.executable, "jobs/query.py", "--warehouse", store.root, "fits_over_folds"]
    print(f"a row a fit: {shlex.join(command)}")
    return FAILED if any(row["status"] == "failed" for row in rows) else OK


def write_log(store: Store, journal: Journal, asked: str | None, name: str) -> None:
    """Where JSON lines go: as asked, else beside the tables where these are local."""
    if asked:
        journal.write_to(asked)
    elif store.folder:
        journal.write_to(store.folder / "logs" / f"{name}.jsonl")


def select_models(benchmark: Benchmark, asked: str | None) -> list[ModelConfig]:
    """The rating models of a file, or those named. ConfigError for a name that is none of them."""
    known = {model.name: model for model in benchmark.models if is_rating_model(model)}
    if not known:
        raise ConfigError(
            f"benchmark {benchmark.name} has no rating model",
            f"kinds: {', '.join(sorted(FAMILIES))}, or als with implicit: false",
        )
    wanted = cli.parse_names(asked, "--models", known) if asked else tuple(known)
    return [known[name] for name in wanted]


def is_rating_model(model: ModelConfig) -> bool:
    """Whether a model predicts ratings and can be fitted here: in one task, or by Spark itself."""
    return model.kind in FAMILIES or (isinstance(model, AlsModel) and not model.implicit)


def check_folds(benchmark: Benchmark, folds: Sequence[int]) -> None:
    """ConfigError for a fold that the protocol does not have."""
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
"""Fits of one start: each is a row that the driver plans."""


def list_folds(benchmark: Benchmark, folds: Sequence[int]) -> Sequence[int]:
    """Return the numbers of the folds that are fitted; one place where the split has none."""
    split = benchmark.split
    return folds or (range(split.folds) if split.holdout in FOLD_HOLDOUTS else [0])


def count_fits(models: Sequence[ModelConfig], places: Sequence[int], seeds: Sequence[int]) -> int:
    """Return the number of fits."""
    return len(models) * len(places) * max(1, len(seeds))


def check_amount(
    benchmark: Benchmark, models: Sequence[ModelConfig], seeds: Sequence[int], folds: Sequence[int]
) -> None:
    """ConfigError for more fits than can be planned."""
    fits = count_fits(models, list_folds(benchmark, folds), seeds)
    if fits > MAX_FITS:
        message = f"split.folds {benchmark.split.folds}: {fits:,} fits, at most {MAX_FITS:,}"
        raise ConfigError(message, "fewer folds (split.folds), or some of them (--folds 0,1)")


def dry_run(
    benchmark: Benchmark, models: Sequence[ModelConfig], chosen: Sequence[int], folds: Sequence[int]
) -> str:
    """What would be fitted, in words, without Spark."""
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
"""Folds that are listed one by one."""


def _describe_folds(places: Sequence[int]) -> str:
    """The numbers of folds; of many the first ones and the last one."""
    if len(places) <= MAX_LISTED_FOLDS:
        return ", ".join(map(str, places))
    return f"{places[0]}, {places[1]}, ..., {places[-1]} ({len(places):,})"


def format_table(rows: Sequence[Row]) -> str:
    """A line a model: mean over folds, both spreads, core-hours, what failed."""
    parts = sorted({part for row in rows for part in row.get("rmse_by_part") or {} if not part.isdecimal()})
    views: list[tuple[str, str | None]] = (
        [(part, part) for part in parts] if len(parts) > 1 else [("", None)]
    )
    lines = [
        f"{'model':24} {'part':8} {'RMSE':>8} {'over folds':>10} {'over seeds':>10} "
        f"{'folds':>5} {'seeds':>5} {'core-h':>7}  not succeeded"
    ]
    for label, part in views:
        found = summarise_models(rows, part)
        for model in sorted(found, key=lambda model: found[model].mean):
            lines.append(
                _format_line(model, label, found[model], [row for row in rows if row["model"] == model])
            )
    lost = {row["model"] for row in rows} - set(summarise_models(rows))
    lines += [f"{model:24} no fit succeeded" for model in sorted(lost)]
    return "\n".join(lines)


def _format_line(model: str, part: str, found: FoldSummary, rows: Sequence[Row]) -> str:
    hours = sum(row.get("cpu_seconds") or 0.0 for row in rows) / 3600
    lost = sum(row["status"] != "succeeded" for row in rows)
    spreads = (("-" if math.isnan(x) else f"{x:.4f}") for x in (found.over_folds, found.over_seeds))
    told = " ".join(f"{x:>10}" for x in spreads)
    counts = f"{found.folds:5} {found.seeds:5} {hours:7.3f}"
    return f"{model:24} {part:8} {found.mean:8.4f} {told} {counts}  {lost or ''}".rstrip()
