"""Submit a run as predictions or rankings; score one again.

    recbench bundle pack --config FILE --warehouse DIR --model sgd_mf --output BUNDLE
    recbench bundle pack --config FILE --warehouse DIR --predictions p.parquet --name mine \\
        --method "my method" --output BUNDLE
    recbench bundle score --config FILE --warehouse DIR --bundle BUNDLE
    recbench bundle accept --warehouse DIR --entry ID --why "ran it again from its code"
    recbench bundle retract --warehouse DIR --entry ID --why "trained on the test rows"

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
from collections.abc import Sequence
from datetime import UTC, date, datetime
from functools import partial
from pathlib import Path
from typing import Any

from recbench_spark import cli
from recbench_spark.config import Benchmark, load_benchmark
from recbench_spark.core.inputs import pin_inputs
from recbench_spark.errors import OK, ConfigError, DataError, FallbackToSpark

if __name__ != "flags":
    import pyarrow as pa

    from recbench_spark.commands.runners import run_job
    from recbench_spark.commands.table_descriptions import describe_table
    from recbench_spark.commands.warehouses import require_warehouse
    from recbench_spark.config.placeholders import fill_placeholders
    from recbench_spark.night.benchmark_checks import check_benchmark
    from recbench_spark.night.run_night import run_night
    from recbench_spark.night.runners import NIGHT_TABLES, choose_job_runner, count_log, count_no_log
    from recbench_spark.runtime.journal import Journal
    from recbench_spark.schemas import BOARD_DECISIONS, BOARDS, SUBMISSIONS
    from recbench_spark.sources import arrow_files
    from recbench_spark.sources.paths import check_path
    from recbench_spark.sources.text_lines import StoredTable
    from recbench_spark.storage.arrow_store import require_session
    from recbench_spark.storage.file_tables import FileTables
    from recbench_spark.tuning.credit import credit_searches
    from recbench_spark.tuning.decisions import ACCEPTED, RETRACTED, decide_on_entry
    from recbench_spark.tuning.folds import FoldedLog, open_folded_log
    from recbench_spark.tuning.submissions import (
        COLUMNS,
        make_facts,
        pack_bundle,
        read_predictions,
        score_bundle,
    )


def parser() -> cli.Parser:
    """Make the command's parser."""
    flags = cli.Parser(__doc__ or "")
    add = flags.add_argument
    add("action", choices=["pack", "score", "accept", "retract"], help="what to do")
    cli.add_flags(flags, "config", required=False, help="pack, score: benchmark file, or its name")
    cli.add_flags(flags, "warehouse")
    add("--model", help="pack: a model whose fits cover all folds")
    add("--predictions", metavar="PATH", help="pack: predictions made elsewhere")
    add("--lists", metavar="PATH", help="pack: lists made elsewhere")
    add("--name", help="pack: what the run is called")
    add("--method", help="pack: the one name of its method (default: --name)")
    add("--ran-by", choices=["inventor", "rival", "rerun"], default="rerun", help="pack: who ran it")
    add("--who", default=getpass.getuser(), help="who submits or decides (default: you)")
    add("--year", type=year, help="pack: year of the run (default: this one)")
    add("--dims", type=cli.parse_count, help="pack: factors of the model")
    add("--search-space", **cli.MANY, type=space, metavar="NAME=A,B", help="pack: a setting and its values")
    add("--output", type=Path, help="pack: folder of the bundle")
    add("--bundle", type=Path, help="score: folder of the bundle")
    add("--accept", action="store_true", help="score: an implausible result counts; --why")
    add("--entry", metavar="ID", help="accept, retract: row of a board (entry_id)")
    add("--why", help="accept, retract, score --accept: the reason, kept in the table")
    cli.add_flags(flags, "set")
    cli.add_flags(flags, "logical-date", help="the night of a bundle of rankings")
    cli.add_flags(flags, "engine")
    return flags


def year(text: str) -> int:
    """Parse a year from 1990 to 2100."""
    if not (text.isdecimal() and 1990 <= int(text) <= 2100):
        raise argparse.ArgumentTypeError(f"'{text}' is not a year from 1990 to 2100")
    return int(text)


def space(text: str) -> tuple[str, tuple[float, ...]]:
    """Parse NAME=A,B: a setting and the values searched for it.

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


DECISIONS = ("accept", "retract")
"""Actions on a board's row; none needs a benchmark."""


@pin_inputs()
def main(args: argparse.Namespace) -> int:
    """Run the requested action: pack, score, accept or retract."""
    check_flags(args)
    check_files(args)
    if args.action in DECISIONS:
        chosen = choose_job_runner(args.engine, args.warehouse, count_no_log, (BOARD_DECISIONS,))
        return run_job(args.action, args, chosen, partial(decide, args))
    benchmark = fill_placeholders(load_benchmark(args.config, args.set), args.logical_date)
    check_benchmark(benchmark)
    tables = (BOARDS, BOARD_DECISIONS, SUBMISSIONS, *NIGHT_TABLES)
    chosen = choose_job_runner(args.engine, args.warehouse, partial(count_log, benchmark), tables)
    return run_job(f"bundle {benchmark.name}", args, chosen, partial(pack_or_score, args, benchmark))


def decide(args: argparse.Namespace, store: FileTables) -> int:
    """Accept or retract a board's row."""
    decision = ACCEPTED if args.action == "accept" else RETRACTED
    print(f"{decision}: {decide_on_entry(store, args.entry, decision, args.why, args.who)}")
    return OK


def pack_or_score(args: argparse.Namespace, benchmark: Benchmark, store: FileTables) -> int:
    """Pack a bundle, or score one."""
    journal = Journal()
    log = open_folded_log(store, benchmark, journal)
    if args.action == "score":
        rank = partial(run_ranking_model, store, args.logical_date or datetime.now(UTC).date(), journal)
        accepted = (args.who, args.why) if args.accept else None
        try:
            entry = score_bundle(store, benchmark, log, args.bundle, rank, accepted=accepted)
        finally:
            store.drop_scratch()
        print(f"{entry.name} by {entry.who}: {entry.metric} {entry.value:.4f} on board {entry.board},"
              f" entry {entry.entry_id}, {entry.evidence}")  # fmt: skip
        return OK
    bundle = run_pack(store, credit_searches(store, benchmark), log, args)
    print(f"bundle {bundle.name}: {bundle.rows:,} rows in {args.output}, digest {bundle.digest}")
    return OK


def run_ranking_model(store: FileTables, day: date, journal: Journal, night: Benchmark) -> str:
    """Run a night with one model and return its run_id.

    Raises:
        DataError: the model fails.
    """
    outcome = run_night(store, night, day, journal, force=True)
    for name, message in outcome.failed.items():
        raise DataError(f"bundle {name}: {message}")
    return next(iter(outcome.run_ids.values()))


def check_flags(args: argparse.Namespace) -> None:
    """Check that the flags go together.

    Raises:
        ConfigError: they do not.
    """
    if args.action in DECISIONS and not (args.entry and (args.why or "").strip()):
        raise ConfigError(f"{args.action} needs --entry and --why", "entry_id is in the view board_best")
    if args.action not in DECISIONS and args.config is None:
        raise ConfigError(f"{args.action} needs --config", "give a benchmark file, or its name")
    if args.accept and not (args.why or "").strip():
        raise ConfigError("--accept needs --why", "the reason is kept in the table board_decisions")
    sources = [args.model, args.predictions, args.lists]
    if args.action == "score" and args.bundle is None:
        raise ConfigError("score needs --bundle", "give the folder that pack wrote")
    if args.action == "pack" and (sum(map(bool, sources)) != 1 or args.output is None):
        raise ConfigError("pack needs --output and one of --model, --predictions, --lists", "see --help")
    if args.action == "pack" and not args.model and not args.name:
        raise ConfigError(
            "pack needs --name for predictions or lists that were made elsewhere",
            "give the name of the run",
        )


def check_files(args: argparse.Namespace) -> None:
    """Check the action's files before Spark starts.

    The action packs, scores or decides on these files.

    Raises:
        ConfigError: no warehouse, or an --output which is a file. MissingError: no such file or folder.
    """
    if args.action in DECISIONS or args.model:
        require_warehouse(args.warehouse)
    tables = {"predictions": args.predictions, "lists": args.lists} if args.action == "pack" else {}
    for task, path in tables.items():
        if path:
            describe_table(task, path, COLUMNS["rankings" if task == "lists" else task])
    if args.action == "pack" and args.output.is_file():
        raise ConfigError(f"--output {args.output} is a file", "give the folder of the bundle")
    if args.action == "score":
        check_path(str(args.bundle))


def run_pack(store: FileTables, benchmark: Benchmark, log: FoldedLog, args: argparse.Namespace) -> Any:
    """Pack a warehouse's model, or a table made elsewhere."""
    if args.model:
        rows, fit = read_predictions(store, benchmark, log, args.model)
        facts = make_facts(benchmark, log, fit, args.who)
        return pack_bundle(rows, args.output, add_flag_facts(facts, args))
    task = "predictions" if args.predictions else "rankings"
    rows = read_rows(store, args.predictions or args.lists, COLUMNS[task], f"{task} {args.name}")
    columns = [*COLUMNS[task], *(["fold"] if "fold" in rows.column_names else [])]
    facts = {
        "name": args.name, "task": task, "who": args.who, "ran_by": args.ran_by,
        "method": args.method or args.name, "benchmark": benchmark.name, "log_id": log.log_id,
        "split": log.split,
    }  # fmt: skip
    return pack_bundle(rows.select(columns), args.output, add_flag_facts(facts, args))


def read_rows(store: FileTables, path: str, columns: Sequence[str], what: str) -> pa.Table:
    """Read a table made elsewhere, by Spark if need be."""
    try:
        return arrow_files.read_table(path, columns, what)
    except FallbackToSpark as error:
        spark = require_session(store, error.message).spark
    from recbench_spark.engine.versions import collect_arrow  # noqa: PLC0415
    from recbench_spark.sources.readers.logs import open_table  # noqa: PLC0415

    rows = StoredTable(collect_arrow(open_table(spark, path)))
    return arrow_files.check_table(rows, columns, what, path)


def add_flag_facts(facts: dict[str, Any], args: argparse.Namespace) -> dict[str, Any]:
    """Add year, factors and search from flags to the facts."""
    provenance: dict[str, Any] = {"year": datetime.now(UTC).year}
    provenance |= {key: value for key, value in facts.get("provenance", {}).items() if value is not None}
    if args.year is not None:
        provenance["year"] = args.year
    if args.search_space:
        provenance["search_space"] = dict(args.search_space)
    dims = facts.get("dims") if args.dims is None else args.dims
    return {**facts, "dims": dims, "provenance": provenance}
