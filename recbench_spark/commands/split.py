"""Split a log to audited Delta tables.

    recbench split --config movielens_1m --set dataset.path=DIR --warehouse DIR
    recbench split --log ratings.parquet --columns user_id=user,item_id=movie,event_time=ts \\
        --protocol TO_LS --warehouse DIR
    recbench split --log ... --set split.holdout=folds --set split.folds=10 --warehouse DIR

The same log and settings have the same split_id, and are not split twice. Gates such as
--gate 'future_rows of train above 0' end the job with exit code 3. Exit codes: 0 fine, 1 failed,
2 wrong usage or configuration, 3 a quality gate failed.
"""

from __future__ import annotations

import argparse
import re
from datetime import date
from functools import partial
from typing import Any

from recbench_spark import cli
from recbench_spark.config import PROTOCOLS, Benchmark, Gate, load_benchmark, make_benchmark, parse
from recbench_spark.core.inputs import pin_inputs
from recbench_spark.errors import OK, ConfigError

if __name__ != "flags":
    from recbench_spark.commands.dry_runs import check_log, check_slice_tables
    from recbench_spark.commands.logs import log_settings
    from recbench_spark.commands.runners import run_job
    from recbench_spark.commands.warehouses import check_journal_path, check_warehouse
    from recbench_spark.config.placeholders import fill_placeholders
    from recbench_spark.night.gates import gate_checks, gate_error, select_gates
    from recbench_spark.night.measure_checks import check_measures
    from recbench_spark.night.runners import choose_runner
    from recbench_spark.night.split import identify_split, prepare_split
    from recbench_spark.query.command_lines import query_command
    from recbench_spark.runtime.journal import Journal, write_json
    from recbench_spark.schemas import MANIFESTS
    from recbench_spark.splits.manifests import check_suspects, format_manifest
    from recbench_spark.splits.windows import list_age_facts
    from recbench_spark.storage.file_tables import FileTables


def parser() -> cli.Parser:
    """Make the command's parser."""
    flags = cli.Parser(__doc__ or "")
    add = flags.add_argument
    source = flags.add_mutually_exclusive_group(required=True)
    cli.add_flags(source, "config", required=False)
    cli.add_flags(source, "log")
    cli.add_flags(flags, "warehouse", "columns")
    add("--reader", help="with --log: csv, parquet, delta, movielens_1m ... (default: by name)")
    add("--protocol", choices=list(PROTOCOLS), help="name of a split; others by --set split.KEY=")
    add("--gate", **cli.MANY, metavar="TEXT", help="'FACT [of PART] above|below NUMBER [warn|fail]'")
    cli.add_flags(flags, "set", "logical-date", "engine", "dry-run", "journal")
    return flags


GATE_PATTERN = re.compile(
    r"(?P<fact>\w+)(?: of (?P<part>\S+))? (?P<side>above|below) (?P<bound>\S+)(?: (?P<action>warn|fail))?"
)


@pin_inputs()
def main(args: argparse.Namespace) -> int:
    """Check the flags, split, print the audit, apply the gates."""
    benchmark = build_benchmark(args)
    check_journal_path(args.journal, "--journal")
    if args.dry_run:
        print(f"dataset    {benchmark.dataset.reader} {benchmark.dataset.path or ''}".rstrip())
        print(f"split      {benchmark.split.describe()}\nwarehouse  {args.warehouse}")
        check_warehouse(args.warehouse)
        print(choose_runner(args.engine, benchmark, args.warehouse)[0].describe())
        print(
            "".join(
                f"{line}\n" for line in [*check_log(benchmark.dataset), *check_slice_tables(benchmark)]
            ),
            end="",
        )
        return OK
    journal = Journal()
    if args.journal:
        journal.write_to(args.journal)
    chosen = choose_runner(args.engine, benchmark, args.warehouse)
    work = partial(split_log, benchmark=benchmark, args=args, journal=journal)
    return run_job(f"split {benchmark.dataset.name}", args, chosen, work, journal=journal)


def split_log(store: FileTables, benchmark: Benchmark, args: argparse.Namespace, journal: Journal) -> int:
    """Make the split, print the audit and apply the gates.

    Raises:
        FallbackToSpark: the warehouse has no Spark, which must read a value.
    """
    split_id, _ = identify_split(store, benchmark)
    if not args.journal:
        journal.write_log(store, f"split-{split_id}")
    day = args.logical_date or date.today()
    prepare_split(store, benchmark, split_id, journal, day)
    return print_audit(store, benchmark, split_id, journal, day)


def build_benchmark(args: argparse.Namespace) -> Benchmark:
    """Return a benchmark with the flags' dataset, split and gates."""
    protocol = [f"split.protocol={args.protocol}"] if args.protocol else []
    if protocol and any(text.partition("=")[0].strip() == "split.protocol" for text in args.set):
        raise ConfigError("--protocol and --set split.protocol are one setting", "leave one out")
    if args.config:
        if args.columns or args.reader:
            raise ConfigError(
                "--columns and --reader go with --log", "use --set dataset.columns.user_id=..."
            )
        benchmark = load_benchmark(args.config, [*protocol, *args.set])
    else:
        benchmark = make_benchmark(make_document(args), [*protocol, *args.set], "flags")
    extra = [parse(Gate, parse_gate(text), f"--gate '{text}'") for text in args.gate]
    check_measures(benchmark)
    return fill_placeholders(
        benchmark.model_copy(update={"gates": (*benchmark.gates, *extra)}), args.logical_date
    )


def make_document(args: argparse.Namespace) -> dict[str, Any]:
    """Return the flags as a benchmark file.

    A benchmark file needs a model; this one is never run.
    """
    return {
        "name": "split",
        "dataset": log_settings(args),
        "models": [{"name": "popular", "kind": "popular"}],
    }


def parse_gate(text: str) -> dict[str, Any]:
    """Parse a gate: `future_rows of train above 0 warn`."""
    words = GATE_PATTERN.fullmatch(text.strip())
    try:
        bound = float(words["bound"]) if words else None
    except ValueError:
        bound = None
    if words is None or bound is None:
        raise ConfigError(f"--gate '{text}' is not a gate", "FACT [of PART] above|below NUMBER [warn|fail]")
    return {
        "fact": words["fact"],
        "part": words["part"],
        words["side"]: bound,
        "action": words["action"] or "fail",
    }


def print_audit(store: FileTables, benchmark: Benchmark, split_id: str, journal: Journal, day: date) -> int:
    """Print the audit.

    Raises:
        GateError: a gate fails.
    """
    facts = store.rows(MANIFESTS, [("split_id", "=", split_id)])
    facts += [fact._asdict() for fact in list_age_facts(facts, day, benchmark.dataset.zone)]
    print(f"split {split_id}: {benchmark.dataset.name}, {benchmark.split.describe()}")
    print(format_manifest(facts))
    checks = gate_checks(select_gates(benchmark.gates, benchmark.split, facts), facts)
    for check in checks:
        verdict = "passed" if check.passed else check.severity
        print(f"gate {verdict}: {check.check} is {check.observed:g} ({check.detail})")
    for suspect in check_suspects(facts):
        print(f"warning: {suspect.summary_line()}")
    error = gate_error(checks)
    journal.record("split", split_id=split_id, gates=len(checks), error=str(error) if error else None)
    if place := store.file_place("results", f"split-{split_id}.json"):
        result = {
            "split_id": split_id,
            "exit_code": error.exit_code if error else OK,
            "error": error and str(error),
        }
        write_json(place, result)
    if error:
        raise error
    query = f"SELECT part, count(*) AS n FROM splits WHERE split_id = '{split_id}' GROUP BY part"
    print(f"tables splits, items, user_blocks, manifests in {store.root}; ask in SQL:")
    print(f"  {query_command(store.root, query)}")
    return OK
