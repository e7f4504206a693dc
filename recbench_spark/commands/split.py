"""Split a log: labelled rows, catalogue, user blocks and manifest as Delta tables, audited.

    python jobs/split.py --config movielens_1m --set dataset.path=DIR --warehouse DIR
    python jobs/split.py --log ratings.parquet --columns user_id=user,item_id=movie,event_time=ts \\
        --protocol TO_LS --warehouse DIR
    python jobs/split.py --log ... --set split.holdout=folds --set split.folds=10 --warehouse DIR

The same log and settings are the same split_id, which is not made twice. Gates such as
--gate 'future_rows of train above 0' end the job with exit code 3. Exit codes: 0 fine, 1 failed,
2 wrong usage or configuration, 3 a quality gate failed.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import Any

from recbench_spark import cli
from recbench_spark.config import PROTOCOLS, Benchmark, Gate, load_benchmark, make_benchmark, parse
from recbench_spark.errors import OK, ConfigError
from recbench_spark.journal import Journal, write_json
from recbench_spark.placeholders import on_night
from recbench_spark.protocol.manifests import table
from recbench_spark.schemas import MANIFESTS
from recbench_spark.session import get_session
from recbench_spark.steps.gates import failure, gate_checks
from recbench_spark.steps.splitting import of_split, prepare_split, split_identity
from recbench_spark.store import Store

GATE = re.compile(
    r"(?P<fact>\w+)(?: of (?P<part>\S+))? (?P<side>above|below) (?P<bound>\S+)(?: (?P<action>warn|fail))?"
)


def parser() -> cli.Parser:
    """The flags of this job."""
    flags = cli.Parser(__doc__ or "")
    given = flags.add_mutually_exclusive_group(required=True)
    given.add_argument("--config", help="benchmark file, or its name under conf/benchmarks")
    given.add_argument("--log", metavar="PATH", help="interactions: CSV, Parquet or Delta, file or folder")
    flags.add_argument("--warehouse", required=True, help="directory or catalog.schema of the tables")
    flags.add_argument("--columns", default="", help="with --log: ours=theirs,... e.g. user_id=userId")
    flags.add_argument(
        "--reader", help="with --log: csv, parquet, delta, movielens_1m ... (default: by name)"
    )
    flags.add_argument(
        "--protocol", choices=list(PROTOCOLS), help="name of a split; others by --set split.KEY="
    )
    flags.add_argument("--gate", action="append", default=[], metavar="TEXT",
                       help="'FACT [of PART] above|below NUMBER [warn|fail]'")  # fmt: skip
    flags.add_argument("--set", action="append", default=[], metavar="A.B=C", help="replace one setting")
    flags.add_argument("--logical-date", type=cli.day, help="fills {logical_date} in, YYYY-MM-DD")
    flags.add_argument("--dry-run", action="store_true", help="check the flags and say what would be done")
    flags.add_argument(
        "--journal", help="JSON-lines log (default: WAREHOUSE/logs/split-ID.jsonl where local)"
    )
    return flags


def main(args: argparse.Namespace) -> int:
    """Check the flags, split, print the audit, hold the gates."""
    benchmark = benchmark_of(args)
    if args.dry_run:
        print(f"dataset    {benchmark.dataset.reader} {benchmark.dataset.path or ''}".rstrip())
        print(f"split      {benchmark.split.describe()}\nwarehouse  {args.warehouse}")
        return OK
    journal = Journal()
    if args.journal:
        journal.write_to(args.journal)
    journal.say(f"split {benchmark.dataset.name}: starting Spark")
    store = Store(get_session(f"recbench-spark split {benchmark.dataset.name}"), args.warehouse)
    split_id, _ = split_identity(store, benchmark)
    if store.folder and not args.journal:
        journal.write_to(store.folder / "logs" / f"split-{split_id}.jsonl")
    prepare_split(store, benchmark, split_id, journal)
    return print_audit(store, benchmark, split_id, journal)


def benchmark_of(args: argparse.Namespace) -> Benchmark:
    """The benchmark whose dataset, split and gates are meant."""
    protocol = [f"split.protocol={args.protocol}"] if args.protocol else []
    if args.config:
        if args.columns or args.reader:
            raise ConfigError(
                "--columns and --reader go with --log", "use --set dataset.columns.user_id=..."
            )
        benchmark = load_benchmark(args.config, [*protocol, *args.set])
    else:
        benchmark = make_benchmark(document(args), [*protocol, *args.set], "flags")
    extra = [parse(Gate, gate(text), f"--gate '{text}'") for text in args.gate]
    return on_night(benchmark.model_copy(update={"gates": (*benchmark.gates, *extra)}), args.logical_date)


def document(args: argparse.Namespace) -> dict[str, Any]:
    """The flags as a benchmark file; a model must stand in one, and none is run here."""
    pairs = [pair.partition("=") for pair in args.columns.split(",") if pair]
    for ours, equals, theirs in pairs:
        if not (ours and equals and theirs):
            raise ConfigError(f"--columns {args.columns}: expected ours=theirs,...", "e.g. user_id=userId")
    dataset = {
        "name": re.sub(r"[^A-Za-z0-9_.-]", "_", Path(args.log).name.lstrip("._-"))[:64] or "log",
        "reader": args.reader or reader_of(args.log),
        "path": args.log,
        "columns": {ours: theirs for ours, _, theirs in pairs},
    }
    return {"name": "split", "dataset": dataset, "models": [{"name": "popular", "kind": "popular"}]}


def reader_of(path: str) -> str:
    """The reader meant by a path's name or content."""
    if Path(path, "_delta_log").is_dir():
        return "delta"
    names = [path, *(str(entry) for entry in sorted(Path(path).glob("*")))]
    text = any(name.removesuffix(".gz").endswith((".csv", ".tsv")) for name in names)
    return "csv" if text else "parquet"


def gate(text: str) -> dict[str, Any]:
    """A gate from words: `future_rows of train above 0 warn`."""
    words = GATE.fullmatch(text.strip())
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


def print_audit(store: Store, benchmark: Benchmark, split_id: str, journal: Journal) -> int:
    """The audit on the terminal; GateError where a gate fails the job."""
    facts = [row.asDict() for row in of_split(store, MANIFESTS, split_id).collect()]
    print(f"split {split_id}: {benchmark.dataset.name}, {benchmark.split.describe()}")
    print(table(facts))
    checks = gate_checks(benchmark.gates, facts)
    for check in checks:
        verdict = "passed" if check.passed else check.severity
        print(f"gate {verdict}: {check.check} is {check.observed:g} ({check.detail})")
    error = failure(checks)
    journal.record("split", split_id=split_id, gates=len(checks), error=str(error) if error else None)
    if store.folder is not None:
        result = {
            "split_id": split_id,
            "exit_code": error.exit_code if error else OK,
            "error": error and str(error),
        }
        write_json(store.folder / "results" / f"split-{split_id}.json", result)
    if error:
        raise error
    query = f"SELECT part, count(*) AS n FROM splits WHERE split_id = '{split_id}' GROUP BY part"
    print(f"tables splits, items, user_blocks, manifests in {store.root}; ask in SQL:")
    print(f'  {sys.executable} jobs/query.py --warehouse {store.root} "{query}"')
    return OK
