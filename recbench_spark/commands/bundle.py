"""Hand a run in as predictions or rankings with its provenance; score one again, without training.

    python jobs/bundle.py pack --config FILE --warehouse DIR --model sgd_mf --output BUNDLE
    python jobs/bundle.py pack --config FILE --warehouse DIR --predictions p.parquet --name mine \\
        --method "my method" --output BUNDLE
    python jobs/bundle.py score --config FILE --warehouse DIR --bundle BUNDLE

A bundle is a folder: `bundle.json` and one Parquet file, (user_id, item_id, prediction, fold) or lists
(user_id, item_id, rank). Scoring holds it against the benchmark's own split, enters it on the board, and
counts the look at what is held out (`submissions`).
"""

from __future__ import annotations

import argparse
import getpass
from pathlib import Path

from recbench_spark import cli


def parser() -> cli.Parser:
    """The flags of this job."""
    flags = cli.Parser(__doc__ or "")
    flags.add_argument("action", choices=["pack", "score"])
    flags.add_argument("--config", required=True, help="benchmark file, or its name under conf/benchmarks")
    flags.add_argument("--warehouse", required=True, help="directory or catalog.schema of the tables")
    flags.add_argument("--model", help="pack: a model whose fits cover all folds")
    flags.add_argument("--predictions", metavar="PATH", help="pack: predictions made elsewhere")
    flags.add_argument("--lists", metavar="PATH", help="pack: lists made elsewhere")
    flags.add_argument("--name", help="pack: what the run is called")
    flags.add_argument("--method", help="pack: the one name of its method (default: --name)")
    flags.add_argument("--ran-by", choices=["inventor", "rival", "rerun"], default="rerun")
    flags.add_argument("--who", default=getpass.getuser(), help="who hands it in (default: this user)")
    flags.add_argument("--output", type=Path, help="pack: folder of the bundle")
    flags.add_argument("--bundle", type=Path, help="score: folder of the bundle")
    flags.add_argument("--set", action="append", default=[], metavar="A.B=C", help="replace one setting")
    flags.add_argument("--logical-date", type=cli.day, help="the night of a bundle of rankings")
    return flags


def main(args: argparse.Namespace) -> int:
    """Pack or score."""
    # Here: --help and wrong flags are answered before anything is loaded.
    from recbench_spark.commands import bundling  # noqa: PLC0415

    return bundling.run(args)
