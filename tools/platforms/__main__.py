"""Run small jobs under each Spark, classic and by Connect, and compare all tables with those of Spark 4.2.

    python -m tools.platforms                                   the whole matrix: make platforms
    python -m tools.platforms --only 3.5 --only 4.1-connect     a part, and 4.2, with which all is compared
    python -m tools.platforms --make                            only make the environments

Environments, warehouses and results are kept in --folder. Results are lines of JSON under a hash of the
code, so a stopped run goes on, and what did not end well runs again. Each cell is a fresh process of
its environment with this checkout; one by Connect has a fresh server. The exit code is 1 if a table differs
or a job failed, unless KNOWN has that verdict. A Python that this machine lacks is no failure.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.platforms.cell import JOBS
from tools.platforms.environments import CELLS, ENVIRONMENTS, THIS, MissingError, make_environment
from tools.platforms.matrix import Matrix
from tools.platforms.page import Rows, write_page, write_table

KNOWN = {
    ("3.5", "als"): "differs: embeddings",  # the last bits of MLlib's vectors
    **{(name, "select"): "refused: " for name, cell in CELLS.items() if cell.server},
    **{(name, "als"): "failed with 1: " for name, cell in CELLS.items() if cell.server},  # no other model
}
"""Verdicts other than `same` that are right; each begins so."""


def main(argv: list[str] | None = None) -> int:
    """Run the cells that are wanted; return 1 if one is not as it should be."""
    args = parser().parse_args(argv)
    folder = args.folder.expanduser().resolve()
    if args.make:
        return max([make_one(folder, name) for name in ENVIRONMENTS])
    cells = [name for name in CELLS if name == THIS or not args.only or name in args.only]
    matrix = Matrix.open(folder, args.minutes * 60)
    matrix.run_cells(cells, args.job or list(JOBS), args.at_once)
    table = write_table(cells, matrix.rows)
    print(table)
    if args.page:
        write_page(args.page, table, matrix.commit)
    wrong = list_wrong(cells, matrix.rows)
    print("\n".join(wrong) or "all as it should be")
    return int(bool(wrong))


def parser() -> argparse.ArgumentParser:
    """Make the parser."""
    flags = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "recbench-platforms")
    flags.add_argument("--folder", type=Path, default=cache, help=f"default: {cache}")
    flags.add_argument("--only", action="append", choices=list(CELLS), help="a cell; may be repeated")
    flags.add_argument("--job", action="append", choices=list(JOBS), help="a job; may be repeated")
    flags.add_argument("--make", action="store_true", help="only make the environments")
    flags.add_argument("--minutes", type=float, default=15, help="most time of a cell (15)")
    flags.add_argument("--at-once", type=int, default=1, help="cells that run side by side (1)")
    flags.add_argument("--page", type=Path, help="write the table to this page of the docs")
    return flags


def make_one(folder: Path, name: str) -> int:
    """Make an environment and print its place; return 1 if it cannot be made."""
    try:
        print(f"{name}: {make_environment(folder, name)}", flush=True)
    except MissingError as error:
        print(f"{name}: {error}", flush=True)
        return 1
    return 0


def list_wrong(cells: Sequence[str], rows: Rows) -> list[str]:
    """Return cell, job and verdict of what is not as it should be."""
    verdicts = {key: str(row["verdict"]) for key, row in rows.items() if key[0] in cells}
    return [f"{' '.join(key)}: {text}" for key, text in verdicts.items() if not is_right(key, text)]


def is_right(key: tuple[str, str], verdict: str) -> bool:
    """Return whether a verdict is as it should be."""
    return verdict.startswith(("same", "reference", "missing: ", KNOWN.get(key, "same")))


if __name__ == "__main__":
    sys.exit(main())
