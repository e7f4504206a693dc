"""Plant faults in a sample of a finished night, and say what sees them.

    recbench self-test --config FILE --warehouse DIR --logical-date 2026-01-31
    recbench self-test --config FILE --warehouse DIR --logical-date 2026-01-31 --users 500

A sample of the log and of the delivered models lies in a scratch folder, with a warehouse of its own. Two
honest nights run there, then one for each fault, with the file's gates, regressions and checks. The team's
tables get rows at the end alone, in `self_tests`. It runs on this machine, without Spark. The bound
`restated` is no part of it, since each of its nights is made once.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from datetime import date

from recbench_spark import cli
from recbench_spark.config import Benchmark, load_benchmark
from recbench_spark.errors import OK, ConfigError, FallbackToSpark

if __name__ != "flags":
    from recbench_spark.commands.warehouses import require_warehouse
    from recbench_spark.config.placeholders import fill_placeholders
    from recbench_spark.core.text_tables import align_cells
    from recbench_spark.night.benchmark_checks import check_night
    from recbench_spark.night.night import open_night
    from recbench_spark.night.report import report_night
    from recbench_spark.night.runners import choose_runner
    from recbench_spark.runtime.journal import Journal
    from recbench_spark.self_tests.self_test import UNSEEN, SelfTest, run_self_test
    from recbench_spark.storage.arrow_store import ArrowStore


def parser() -> cli.Parser:
    """Make the command's parser."""
    flags = cli.Parser(__doc__ or "")
    cli.add_flags(flags, "config", "warehouse")
    cli.add_flags(flags, "logical-date", required=True, help="the finished night to sample, YYYY-MM-DD")
    flags.add_argument(
        "--users", type=cli.parse_count, default=2000, help="most users of the sample (2000)"
    )
    cli.add_flags(flags, "set")
    return flags


def main(args: argparse.Namespace) -> int:
    """Test a finished night, and print what became of each fault."""
    benchmark = load_benchmark(args.config, args.set)
    check_night(fill_placeholders(benchmark, args.logical_date))
    require_warehouse(args.warehouse)
    print_self_test(probe_night(args.warehouse, benchmark, args.logical_date, Journal(), args.users))
    return OK


def probe_night(
    root: str, benchmark: Benchmark, day: date, journal: Journal, users: int = 2000
) -> SelfTest:
    """Test a finished night, and write its report again.

    Raises:
        ConfigError: the log, a model or the warehouse needs Spark.
    """
    journal.say(f"self-test of {benchmark.name}, night {day}")
    try:
        choose_runner("local", fill_placeholders(benchmark, day), root, night=True)
        store = ArrowStore(root)
        tested = run_self_test(store, benchmark, day, journal.say, users=users)
    except FallbackToSpark as error:
        raise ConfigError(f"a self-test runs without Spark: {error}", "a smaller file for it") from None
    report_night(open_night(store, benchmark, day), journal)
    return tested


def print_self_test(tested: SelfTest) -> None:
    """Print a line for each fault, then lines of YAML for unseen ones."""
    print("\n".join(describe_self_test(tested)), flush=True)


def describe_self_test(tested: SelfTest) -> Sequence[str]:
    """Return the lines that a terminal shows."""
    planted = [one for one in tested.findings if one.applies]
    seen = len(planted) - len(tested.misses)
    cells = [("fault", "seen by", "changed")]
    cells += [(one.fault.name, one.witness, one.changed) for one in planted]
    out = [one for one in tested.findings if not one.applies]
    lines = [
        f"self-test: {seen} of {len(planted)} faults seen, in a sample of {tested.sample.users:,} users",
        "",
        *align_cells(cells, right=()),
    ]
    if out:
        lines += ["", "does not apply:", *(f"  {one.fault.name}: {one.changed}" for one in out)]
    for one in tested.misses:
        rule = one.rule or "no rule on a fact or a metric of this night"
        lines += ["", f"{UNSEEN}: {one.fault.name}, {one.fault.sentence}; this would see it:", f"  {rule}"]
    if tested.honest:
        lines += ["", "rang in the honest night as well, so they prove nothing here:"]
        lines += [f"  {one.sentence}" for one in tested.honest]
    return [*lines, *(f"note: {note}" for note in tested.notes)]
