"""Run one benchmark under every protocol.

    recbench multiverse --config movielens_100k_temporal --set dataset.path=DIR \
        --warehouse warehouse/multiverse --logical-date 2026-01-01

Runs a night for each split x candidates (`--protocols`, `--candidates`), each a suite of its own, with
every defensible definition measured from the same ranks. Prints in what share of all these worlds one
model beats another, and writes a page with the picture. Nights that have run are not run again.
"""

from __future__ import annotations

import argparse
from functools import partial

from recbench_spark import cli
from recbench_spark.config import Benchmark, load_benchmark
from recbench_spark.core.inputs import pin_inputs
from recbench_spark.errors import FAILED, OK, DataError

if __name__ != "flags":
    from recbench_spark.commands.dry_runs import check_inputs
    from recbench_spark.commands.runners import run_job
    from recbench_spark.commands.warehouses import check_warehouse
    from recbench_spark.config.placeholders import fill_placeholders
    from recbench_spark.engine.choices import EngineChoice
    from recbench_spark.night.benchmark_checks import check_night
    from recbench_spark.night.night_states import record_state
    from recbench_spark.night.runners import choose_runner
    from recbench_spark.query.command_lines import query_command
    from recbench_spark.runtime.journal import Journal
    from recbench_spark.storage.file_tables import FileTables
    from recbench_spark.storage.uris import link_place

PROTOCOLS = ("RO_RS", "TO_RS", "RO_LS", "TO_LS")
CANDIDATES = ("unseen", "uniform")


def parser() -> cli.Parser:
    """Make the command's parser."""
    flags = cli.Parser(__doc__ or "")
    add = flags.add_argument
    cli.add_flags(flags, "config", "warehouse")
    cli.add_flags(flags, "logical-date", required=True, help="the day evaluated, YYYY-MM-DD")
    add("--protocols", default=",".join(PROTOCOLS), help="splits, comma-separated")
    add("--candidates", default=",".join(CANDIDATES), help="candidates, comma-separated")
    cli.add_flags(flags, "set", "engine", "dry-run")
    return flags


@pin_inputs()
def main(args: argparse.Namespace) -> int:
    """Run a night per protocol, then print the models' wins.

    The printed shares say how often one model beats another.
    """
    protocols = [
        make_protocol(args, split, candidates)
        for split in cli.parse_names(args.protocols, "--protocols")
        for candidates in cli.parse_names(args.candidates, "--candidates")
    ]
    for benchmark in protocols:
        check_night(benchmark)
    if args.dry_run:
        check_warehouse(args.warehouse)
        input_lines = check_inputs(fill_placeholders(protocols[0], args.logical_date))
        print("\n".join([*(f"{one.name}: {one.split.describe()}" for one in protocols), *input_lines]))
        print(choose_engine(args, protocols)[0].describe())
        return OK
    return run_job(
        "multiverse", args, choose_engine(args, protocols), partial(run_protocols, args, protocols)
    )


def choose_engine(args: argparse.Namespace, protocols: list[Benchmark]) -> tuple[EngineChoice, int]:
    """Choose one runner for all protocols.

    Spark runs them all where one protocol needs it.
    """
    filled = (fill_placeholders(one, args.logical_date) for one in protocols)
    chosen = [choose_runner(args.engine, one, args.warehouse, night=True) for one in filled]
    return next((one for one in chosen if one[0].engine == "spark"), chosen[0])


def run_protocols(args: argparse.Namespace, protocols: list[Benchmark], store: FileTables) -> int:
    """Run a night for each protocol.

    Finished nights are not run again.
    """
    from recbench_spark.night.run_night import run_night  # noqa: PLC0415

    journal, failed = Journal(), {}
    for n, benchmark in enumerate(protocols, start=1):
        journal.say(f"protocol {n}/{len(protocols)}: {benchmark.name}")
        with record_state(store.root, benchmark.name, args.logical_date, cli.read_error):
            failed.update(run_night(store, benchmark, args.logical_date, journal).failed)
    print_shares(store, load_benchmark(args.config, args.set).name, protocols)
    return FAILED if failed else OK


def make_protocol(args: argparse.Namespace, split: str, candidates: str) -> Benchmark:
    """Return the benchmark under a protocol, which its name includes."""
    name = load_benchmark(args.config, args.set).name
    changes = [
        f"name={name}-{split}-{candidates}",
        f"split.protocol={split}",
        f"evaluation.definition.candidates={candidates}",
        "evaluation.multiverse=true",
        "evaluation.parts=[test]",
        "evaluation.user_metrics=false",
    ]
    return load_benchmark(args.config, [*args.set, *changes])


def print_shares(store: FileTables, name: str, protocols: list[Benchmark]) -> None:
    """Print the shares of wins, and write their page."""
    from recbench_spark import reports  # noqa: PLC0415
    from recbench_spark.night.report import read_multiverse_pairs  # noqa: PLC0415
    from recbench_spark.query.answers import make_query_runner  # noqa: PLC0415

    pairs = read_multiverse_pairs(make_query_runner(store), [one.name for one in protocols])
    if pairs.empty:
        raise DataError("no pair of models has run", "see the errors above")
    facts = reports.make_multiverse(pairs)
    print("\n\n".join(reports.multiverse_text(one) for one in facts))
    if place := store.file_place("reports", f"{name}-multiverse.html"):
        page = reports.render_multiverse(name, facts, reports.make_pairs(pairs))
        print(f"page: {link_place(reports.write_page(page, place))}")
    print(query_command(store.root, "how_much_is_the_protocols_doing"))
