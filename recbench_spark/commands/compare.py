"""Compare models on the same users: files or runs.

    recbench compare --lists als=als.parquet --lists popular=popular.csv --truth truth.parquet --k 10
    recbench compare --warehouse DIR als popular --metrics ndcg@10
    recbench compare --warehouse DIR als@2026-01-01 als@2026-01-02

Paired differences with t, randomisation, bootstrap and Wilcoxon tests, Holm over the family that the output
names, wins, ties and losses of users, and the smallest difference that could have been seen. The last model
is the baseline, or --baseline. Users with a value on one side alone are counted and not compared. Runs of
other definitions, parts or held-out items are refused.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from recbench_spark import cli
from recbench_spark.config import NAME, Bootstrap, parse
from recbench_spark.errors import OK, ConfigError, FallbackToSpark

if __name__ != "flags":
    from recbench_spark.commands.warehouses import require_warehouse
    from recbench_spark.evaluation.compare import compare
    from recbench_spark.evaluation.options import table_columns
    from recbench_spark.sources import arrow_files


def parser() -> cli.Parser:
    """Make the command's parser."""
    flags = cli.Parser(__doc__ or "")
    add = flags.add_argument
    add("runs", nargs="*", metavar="RUN", help="run id, MODEL or MODEL@NIGHT of --warehouse")
    cli.add_flags(flags, "warehouse", required=False)
    cli.add_flags(flags, "suite", default=None, help="suite of the runs, where a name is in several")
    add("--lists", **cli.MANY, metavar="NAME=PATH", help="ranked lists of a model")
    add("--truth", metavar="PATH", help="held-out items, with --lists")
    add("--train", metavar="PATH", help="training items, with --lists")
    cli.add_flags(flags, "columns", help="names of columns: user_id=userId,item_id=movieId")
    add("--preset", help="definition of another library, with --lists")
    cli.add_flags(flags, "set", metavar="definition.AXIS=VALUE", help="one axis, with --lists")
    _add_test_flags(flags)
    _add_output_flags(flags)
    return flags


def _add_test_flags(flags: cli.Parser) -> None:
    """Add the flags which choose what is tested, and how."""
    add = flags.add_argument
    add("--baseline", help="model that all others are compared with (default: the last one)")
    add("--metrics", help="comma-separated, such as ndcg@10,recall (default: all)")
    add("--k", type=cli.parse_cutoffs, default=None, help="cut-offs, e.g. 5,10 (default: all)")
    add("--part", help="part of the split (default: all that every run has)")
    add("--minimum", type=float, default=0.0, help="smallest difference that matters")
    add("--bootstrap", type=cli.parse_count, default=Bootstrap().replicates, help="replicates of tests")
    add("--seed", type=int, default=Bootstrap().seed, help="seed of both")
    add("--slices", metavar="PATH", help="labels of users: user_id and columns of labels")


def _add_output_flags(flags: cli.Parser) -> None:
    """Add the flags for output files."""
    add = flags.add_argument
    add("--latex", metavar="FILE", help="write a table for a paper")
    add("--plot", metavar="FILE", help="write a picture: png, pdf or svg by its ending")
    add("--out", metavar="DIR", help="write Parquet, JSON and LaTeX into this folder")
    add("--format", choices=["table", "json"], default="table", help="what is printed")


def main(args: argparse.Namespace) -> int:
    """Check the flags, compare, print and write the results."""
    check_flags(args)
    settings = {"replicates": args.bootstrap, "seed": args.seed}
    options: dict[str, Any] = {
        "baseline": args.baseline,
        "metrics": cli.parse_names(args.metrics, "--metrics") if args.metrics else None,
        "k": args.k,
        "part": args.part,
        "minimum": args.minimum,
        "bootstrap": parse(Bootstrap, settings, "--bootstrap and --seed"),
        "slices": _read_slices(args.slices),
    }
    if args.warehouse:
        comparison = compare(args.runs, warehouse=args.warehouse, suite=args.suite, **options)
    else:
        comparison = compare(parse_models(args.lists), args.truth, **options, **_list_options(args))
    print_comparison(comparison, args.format)
    if args.latex:
        comparison.to_latex(args.latex)
    if args.plot:
        comparison.plot(args.plot)
    if args.out:
        comparison.save(args.out)
    return OK


def check_flags(args: argparse.Namespace) -> None:
    """Refuse flags which do not go together.

    Raises:
        ConfigError: neither runs in a warehouse nor lists with a truth, or both.
    """
    if bool(args.warehouse) == bool(args.lists):
        raise ConfigError(
            "give either --warehouse with runs, or --lists NAME=PATH several times",
            "recbench compare --warehouse DIR als popular",
        )
    with_lists = {"--truth": args.truth, "--train": args.train, "--columns": args.columns}
    with_lists |= {"--preset": args.preset, "--set": args.set}
    if args.warehouse:
        stray = [flag for flag, value in with_lists.items() if value]
        require_warehouse(args.warehouse)
    else:
        with_runs = {"--suite": args.suite, "RUN": args.runs, "--part": args.part}
        stray = [flag for flag, value in with_runs.items() if value]
        if not args.truth:
            raise ConfigError("--truth is missing", "give a table of user_id, item_id[, relevance]")
    if stray:
        other = "--lists" if args.warehouse else "--warehouse"
        raise ConfigError(f"{stray[0]} has no effect without {other}", "leave it out")
    for flag in ("latex", "plot"):
        folder = Path(getattr(args, flag) or ".").parent
        if not folder.is_dir():
            raise ConfigError(f"--{flag}: there is no folder {folder}", "make it first")


def parse_models(pairs: list[str]) -> dict[str, str]:
    """Parse `NAME=PATH` pairs into a path for each model.

    Raises:
        ConfigError: no such pair, or a name twice.
    """
    models: dict[str, str] = {}
    for pair in pairs:
        name, equals, path = pair.partition("=")
        if not equals or not path or not NAME.fullmatch(name):
            raise ConfigError(f"--lists {pair}: expected NAME=PATH", "e.g. --lists als=als.parquet")
        if name in models:
            raise ConfigError(f"--lists: {name} is given twice", "give each model a name of its own")
        models[name] = path
    return models


def _list_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options which the flags pass to `evaluate`."""
    options = {
        "train": args.train,
        "columns": cli.parse_columns(args.columns, "user_id=userId,item_id=movieId") or None,
        "preset": args.preset,
        "definition": cli.parse_axes(args.set) or None,
    }
    return {name: value for name, value in options.items() if value is not None}


def _read_slices(path: str | None) -> Any:
    if path is None:
        return None
    try:
        return arrow_files.read_table(path, table_columns("slices")[:1], "slices")
    except FallbackToSpark as error:
        raise ConfigError(f"--slices: {error.message}", "give a file of this machine") from None


def print_comparison(comparison: Any, style: str) -> None:
    """Print a comparison as text or as JSON."""
    if style == "json":
        print(json.dumps(comparison.to_record(), indent=2))
        return
    print("\n".join(comparison.describe()))
