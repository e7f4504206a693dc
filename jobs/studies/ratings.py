"""Draw figures of rating models over folds.

    python jobs/studies/ratings.py --config FILE --warehouse DIR --figure dimensions \\
        --models sgd_mf,bayesian_mf --dims 16,32,64,128:3,512:1 \\
        --picture docs/measured/ratings_dimensions.png
    python jobs/studies/ratings.py ... --figure steps --dims 16 --picture docs/measured/ratings_steps.png
    python jobs/studies/ratings.py ... --figure setting --vary regularisers=0.02,0.04,0.08 --models sgd_mf

They show errors by dimension, sampling steps, core-hours or a setting. The models are the benchmark
file's, with other numbers of factors; `128:3` means 128 factors on the first three folds. Every fit is a
row of `fits`, so an interrupted study continues, and another figure with the same fits needs no new fit.
Without --picture only the numbers are printed.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from recbench_spark import cli
from recbench_spark.boards.search_spaces import Setting, replace_settings
from recbench_spark.commands.benchmark import select_models
from recbench_spark.config import ModelConfig, load_benchmark
from recbench_spark.errors import FAILED, OK, ConfigError
from recbench_spark.models.fits.tasks import FitTask
from recbench_spark.models.rating.kinds import model_seed
from recbench_spark.models.rating.registry import gives_ratings
from recbench_spark.models.settings import make_model
from recbench_spark.reports import fits as pictures
from recbench_spark.runtime.journal import Journal
from recbench_spark.runtime.session import get_session
from recbench_spark.storage.store import Store
from recbench_spark.tuning.fold_fits import FitPlanner, run_plan
from recbench_spark.tuning.folds import open_folded_log

FIGURES = ("dimensions", "steps", "cost", "setting")


Variation = tuple[str, tuple[float, ...]]
"""A setting and its values."""


class FactorSize(NamedTuple):
    """A number of factors, and folds to fit (None: all)."""

    dims: int
    folds: int | None


def parser() -> cli.Parser:
    """Make the flag parser."""
    flags = cli.Parser(__doc__ or "")
    flags.add_argument("--config", required=True, help="benchmark file, or its name under conf/benchmarks")
    flags.add_argument("--warehouse", required=True, help="directory or catalog.schema of the tables")
    flags.add_argument("--figure", choices=FIGURES, required=True)
    flags.add_argument("--models", help="some of the file's rating models (default: all that have factors)")
    flags.add_argument("--dims", type=sizes, default=(), help="e.g. 16,32,64,128:3 (default: the file's)")
    flags.add_argument("--vary", type=parse_variation, metavar="SETTING=V,V", help="with --figure setting")
    flags.add_argument("--threads", type=cli.parse_count, default=1, help="threads of each fit (default 1)")
    flags.add_argument("--set", action="append", default=[], metavar="A.B=C", help="replace one setting")
    flags.add_argument("--picture", type=Path, help="file of the figure, .svg or .png")
    flags.add_argument("--table", type=Path, help="file of the numbers, .csv")
    return flags


def sizes(text: str) -> tuple[FactorSize, ...]:
    """Parse sizes such as `16,128:3`."""
    matches = [re.fullmatch(r"([1-9][0-9]{0,4})(?::([1-9][0-9]{0,3}))?", part) for part in text.split(",")]
    if not all(matches):
        raise argparse.ArgumentTypeError(f"'{text}' is not a list like 16,32,128:3")
    return tuple(FactorSize(int(m[1]), int(m[2]) if m[2] else None) for m in matches if m)


def parse_variation(text: str) -> Variation:
    """Parse a setting and its values such as `regularisers=0.02,0.04`."""
    name, _, values = text.partition("=")
    return name, cli.parse_numbers(values)


def main(args: argparse.Namespace) -> int:
    """Fit what the figure needs, draw it, print its numbers."""
    if (args.figure == "setting") != (args.vary is not None):
        raise ConfigError("--figure setting and --vary go together", "--vary regularisers=0.02,0.04,0.08")
    benchmark = load_benchmark(args.config, args.set)
    chosen = filter(gives_ratings, select_models(benchmark, args.models))
    models = [model for model in chosen if args.models or hasattr(model, "dims")]
    journal = Journal()
    store = Store(get_session(f"recbench-spark figure {benchmark.name}"), args.warehouse)
    journal.write_log(store, f"{benchmark.name}-figures")
    fits = FitPlanner(store, benchmark, open_folded_log(store, benchmark, journal), args.threads, "figure")
    rows = run_plan(store, fits.plan(make_tasks(fits, models, args.dims, args.vary)), journal)
    done = pd.DataFrame([row for row in rows if row["status"] == "succeeded"])
    table = draw_figure(done, args)
    print(table.to_string(index=False, float_format="{:.4f}".format))
    if args.table:
        table.to_csv(args.table, index=False)
    return FAILED if len(done) < len(rows) else OK


def make_tasks(
    fits: FitPlanner,
    models: Sequence[ModelConfig],
    dims: Sequence[FactorSize],
    vary: tuple[str, tuple[float, ...]] | None,
) -> Iterator[FitTask]:
    """Make a task for each model, size, value and fold.

    Only its row is stored.
    """
    name, values = vary or ("", (0.0,))
    for model in models:
        known = getattr(model, "dims", None)
        for size in dims or (FactorSize(known, None) if known else None,):
            for value in values:
                change: Setting = {"dims": size.dims} if size else {}
                change |= {name: value} if name else {}
                changed = make_model(replace_settings(model.model_dump(), change), f"model {model.name}")
                folds = fits.log.folds[: size.folds if size else None] or (None,)
                for fold in folds:
                    yield fits.task(changed, model_seed(changed), fold, keep=False)


def draw_figure(fits: pd.DataFrame, args: argparse.Namespace) -> pd.DataFrame:
    """Draw the figure if a file is named; return numbers."""
    if fits.empty:
        raise ConfigError("no fit succeeded, so there is nothing to draw", "see the table fits")
    if args.vary:
        name = args.vary[0]
        columns = ["model", "dims", "setting"]
        table = pictures.summarise_fits(pictures.add_setting_column(fits, name), columns)
        figure = pictures.plot_setting(fits, name)
    else:
        table = pictures.summarise_fits(fits, ["model", "dims"])
        figure = pictures.FIGURES[args.figure](fits)
    if args.picture:
        args.picture.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(args.picture, dpi=150)
    return table


if __name__ == "__main__":
    cli.run(main, parser())
