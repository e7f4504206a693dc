"""One benchmark under every protocol: how much of a ranking is the protocol's doing?

    python jobs/multiverse.py --config movielens_100k_temporal --set dataset.path=DIR \
        --warehouse warehouse/multiverse --logical-date 2026-01-01

Runs a night for each split x candidates (`--protocols`, `--candidates`), each a suite of its own, with
every defensible definition measured from the same ranks. Prints in what share of all these worlds one
model beats another, and writes a page with the picture. What has been run is not run again.
"""

from __future__ import annotations

import argparse

from recbench_spark import cli, reports
from recbench_spark.benchmark import run_night
from recbench_spark.config import Benchmark, load_benchmark
from recbench_spark.errors import FAILED, OK, DataError
from recbench_spark.journal import Journal
from recbench_spark.session import get_session
from recbench_spark.steps.night import check_benchmark
from recbench_spark.steps.reporting import multiverse_pairs
from recbench_spark.store import Store

PROTOCOLS = ("RO_RS", "TO_RS", "RO_LS", "TO_LS")
CANDIDATES = ("unseen", "uniform")


def parser() -> cli.Parser:
    """The flags of this job."""
    flags = cli.Parser(__doc__ or "")
    flags.add_argument("--config", required=True, help="benchmark file, or its name under conf/benchmarks")
    flags.add_argument("--warehouse", required=True, help="directory of the tables")
    flags.add_argument("--logical-date", required=True, type=cli.day, help="the day evaluated, YYYY-MM-DD")
    flags.add_argument("--protocols", default=",".join(PROTOCOLS), help="splits, comma-separated")
    flags.add_argument("--candidates", default=",".join(CANDIDATES), help="candidates, comma-separated")
    flags.add_argument("--set", action="append", default=[], metavar="A.B=C", help="replace one setting")
    flags.add_argument("--dry-run", action="store_true", help="check the files and say what would be run")
    return flags


def main(args: argparse.Namespace) -> int:
    """Run every protocol, then count worlds."""
    protocols = [
        protocol_of(args, split, candidates)
        for split in cli.names(args.protocols, "--protocols")
        for candidates in cli.names(args.candidates, "--candidates")
    ]
    for benchmark in protocols:
        check_benchmark(benchmark)
    if args.dry_run:
        print("\n".join(f"{one.name}: {one.split.describe()}" for one in protocols))
        return OK
    store = Store(get_session("recbench-spark multiverse"), args.warehouse)
    journal, failed = Journal(), {}
    for n, benchmark in enumerate(protocols, start=1):
        journal.say(f"protocol {n}/{len(protocols)}: {benchmark.name}")
        failed.update(run_night(store, benchmark, args.logical_date, journal).failed)
    print_shares(store, load_benchmark(args.config, args.set).name, protocols)
    return FAILED if failed else OK


def protocol_of(args: argparse.Namespace, split: str, candidates: str) -> Benchmark:
    """The benchmark under one protocol, named after it."""
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


def print_shares(store: Store, name: str, protocols: list[Benchmark]) -> None:
    """The shares on the terminal, and a page."""
    pairs = multiverse_pairs(store, [one.name for one in protocols])
    if pairs.empty:
        raise DataError("no pair of models has run", "see the errors above")
    facts = reports.make_multiverse(pairs)
    print("\n\n".join(reports.multiverse_text(one) for one in facts))
    if store.folder is not None:
        page = reports.render_multiverse(name, facts, reports.make_pairs(pairs))
        print(
            f"page: file://{reports.write_page(page, store.folder / 'reports' / f'{name}-multiverse.html')}"
        )
    print(f"make sql WAREHOUSE={store.root} Q=how_much_is_the_protocols_doing")
