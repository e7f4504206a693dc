"""Submit a run as predictions or rankings with its provenance; score one again, without training.

    python jobs/bundle.py pack --config FILE --warehouse DIR --model sgd_mf --output BUNDLE
    python jobs/bundle.py pack --config FILE --warehouse DIR --predictions p.parquet --name mine \\
        --method "my method" --output BUNDLE
    python jobs/bundle.py score --config FILE --warehouse DIR --bundle BUNDLE
    python jobs/bundle.py accept --warehouse DIR --entry ID --why "ran it again from its code"
    python jobs/bundle.py retract --warehouse DIR --entry ID --why "trained on the test rows"

A bundle is a folder: `bundle.json` and one Parquet file, (user_id, item_id, prediction, fold) or lists
(user_id, item_id, rank). A digest covers all of it. Scoring compares it with the benchmark's own split,
adds it to the board, and counts the use of the held-out rows (`submissions`). A result that is better than
the noise explains is held back until it is accepted. A retracted row of a board stays in the table
`boards` and is left out of all views. See docs/how_to/submissions.md.
"""

from __future__ import annotations

import argparse
import getpass
import math
from pathlib import Path

from recbench_spark import cli


def parser() -> cli.Parser:
    """Make the parser of the flags."""
    flags = cli.Parser(__doc__ or "")
    flags.add_argument("action", choices=["pack", "score", "accept", "retract"], help="what to do")
    flags.add_argument("--config", help="pack, score: benchmark file, or its name under conf/benchmarks")
    flags.add_argument("--warehouse", required=True, help="directory or catalog.schema of the tables")
    flags.add_argument("--model", help="pack: a model whose fits cover all folds")
    flags.add_argument("--predictions", metavar="PATH", help="pack: predictions made elsewhere")
    flags.add_argument("--lists", metavar="PATH", help="pack: lists made elsewhere")
    flags.add_argument("--name", help="pack: what the run is called")
    flags.add_argument("--method", help="pack: the one name of its method (default: --name)")
    flags.add_argument("--ran-by", choices=["inventor", "rival", "rerun"], default="rerun",
                       help="pack: role of whoever ran it")  # fmt: skip
    flags.add_argument("--who", default=getpass.getuser(), help="who submits or decides (default: you)")
    flags.add_argument("--year", type=year, help="pack: year of the run (default: this one)")
    flags.add_argument("--dims", type=dims, help="pack: factors of the model")
    flags.add_argument("--search-space", action="append", default=[], type=space, metavar="NAME=A,B",
                       help="pack: a setting that was searched, and its values")  # fmt: skip
    flags.add_argument("--output", type=Path, help="pack: folder of the bundle")
    flags.add_argument("--bundle", type=Path, help="score: folder of the bundle")
    flags.add_argument("--accept", action="store_true", help="score: an implausible result counts; --why")
    flags.add_argument("--entry", metavar="ID", help="accept, retract: row of a board (entry_id)")
    flags.add_argument("--why", help="accept, retract, score --accept: the reason, kept in the table")
    flags.add_argument("--set", action="append", default=[], metavar="A.B=C", help="replace one setting")
    flags.add_argument("--logical-date", type=cli.parse_day, help="the night of a bundle of rankings")
    cli.add_engine(flags)
    return flags


def year(text: str) -> int:
    """Parse a year from 1990 to 2100."""
    if not (text.isdecimal() and 1990 <= int(text) <= 2100):
        raise argparse.ArgumentTypeError(f"'{text}' is not a year from 1990 to 2100")
    return int(text)


def dims(text: str) -> int:
    """Parse a number of factors."""
    if not (text.isdecimal() and 1 <= int(text) < 2**31):
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of factors, 1 or more")
    return int(text)


def space(text: str) -> tuple[str, tuple[float, ...]]:
    """Parse NAME=A,B: a setting and the values that were searched.

    >>> space("reg=0.01,0.1")
    ('reg', (0.01, 0.1))
    """
    name, _, values = text.partition("=")
    try:
        numbers = tuple(float(value) for value in values.split(","))
    except ValueError:
        numbers = ()
    if not name or not numbers or not all(map(math.isfinite, numbers)):
        raise argparse.ArgumentTypeError(
            f"'{text}' is not a setting with its numbers, such as reg=0.01,0.1"
        )
    return name, numbers


def main(args: argparse.Namespace) -> int:
    """Run the action of the flags: pack, score, accept or retract."""
    # Imported here, so that --help and wrong flags are answered before anything is loaded.
    from recbench_spark.commands.actions import bundle  # noqa: PLC0415

    return bundle.run(args)
