"""Replay logged auctions with models of click probability.

    recbench replay --config demo --warehouse DIR      # a generated log, results in seconds
    recbench replay --config FILE --warehouse DIR

The file (conf/replays/demo.yaml is one) names a log with one row for each participant of an auction, shown
or not: auction_id, query_id, ad_id, position (from 1; NULL: not shown), clicked[, event_time, bid, block
(main, side), quality, probability, user_id]; operating points; and models, each a table auction_id, ad_id,
probability. Each model ranks every auction by bid x probability^exponent x quality, and its clicks are
estimated from the log: at the same slot, moved along the position curve, or by the slot's reference rate
(docs/how_to/auctions.md). Only rows later than every model's trained_until are replayed.

Printed, and written to WAREHOUSE/replays, checks and runs. Up to 20 million rows the whole log is held by
one process. Larger ones are replayed with Spark: the log is laid out once below WAREHOUSE/auction_logs, and
later runs with other models read only this layout. Both give the same numbers. A replay that has succeeded
on the same day is not run again without --force.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from recbench_spark import cli
from recbench_spark.config import digest
from recbench_spark.core.inputs import pin_inputs, require_unchanged
from recbench_spark.errors import OK, ConfigError, DataError, FallbackToSpark

if __name__ != "flags":
    from recbench_spark.auctions import replays
    from recbench_spark.auctions.auctions import REQUIRED
    from recbench_spark.auctions.log_layout import MOST_ROWS_OF_A_PART
    from recbench_spark.auctions.replay import LOGGED
    from recbench_spark.auctions.settings import ReplayFile, load_replay
    from recbench_spark.commands.table_descriptions import describe_table
    from recbench_spark.commands.warehouses import check_warehouse
    from recbench_spark.engine.choices import EngineChoice
    from recbench_spark.engine.local import LocalEngine, choose_workers
    from recbench_spark.night.standalone_runs import find_finished_replay, publish_replays
    from recbench_spark.runtime.journal import Journal
    from recbench_spark.schemas import REPLAYS, arrow_rows
    from recbench_spark.sources import arrow_files
    from recbench_spark.storage.arrow_store import ArrowStore, is_local_folder, needs_no_java
    from recbench_spark.storage.blocks import Engine
    from recbench_spark.storage.local_files import COMPRESSED
    from recbench_spark.storage.shared_arrays import host_folder
    from recbench_spark.storage.uris import join_uri, link_place


def parser() -> cli.Parser:
    """Make the command's parser."""
    flags = cli.Parser(__doc__ or "")
    add = flags.add_argument
    cli.add_flags(flags, "config", help="replay file, or its name under conf/replays")
    cli.add_flags(flags, "warehouse", help="folder or object storage of the tables")
    add("--same-log", action="store_true", help="replay all rows, also those that models were fitted to")
    add("--parts", type=int, help="parts of the log, at least; the numbers are the same")
    cli.add_flags(flags, "engine", "force")
    cli.add_flags(flags, "logical-date", help="the day evaluated (default: today)")
    cli.add_flags(flags, "dry-run")
    return flags


MOST_ROWS = 100_000_000
"""Most log rows which one process holds, about 10 GB."""

FEW_ROWS = 20_000_000
"""Most rows held in memory, about 3 GB.

Rows in the log and the models count together. With more, `auto` chooses Spark.
"""

SHOWN = ("click_yield", "main_line_yield", "ads_per_view", "revenue_per_view")
"""Metrics to print, with their differences to the logged policy."""


@pin_inputs()
def main(args: argparse.Namespace) -> int:
    """Check flags, read the log, replay models, write and print."""
    file = load_replay(args.config)
    check_flags(args)
    until = file.end_training(args.same_log)
    lines = describe_replay(file, until)
    choice = choose_engine(args.engine, file, args.warehouse)
    require_engine(choice.engine, args.warehouse)
    if args.dry_run:
        check_warehouse(args.warehouse)
        print("\n".join([*lines, choice.describe()]))
        return OK
    journal, started = Journal(), datetime.now(UTC)
    journal.say(lines[0])
    journal.say(choice.describe())
    store = ArrowStore(args.warehouse)
    run = identify_replay(file, args) | {"started_at": started}
    if not args.force and (run_ids := find_finished_replay(store.rows, run)):
        print(f"nothing to do: this replay has succeeded, runs {', '.join(run_ids)} (--force: run again)")
        return OK
    moment = None if until is None else int(until.timestamp() * 1_000_000)
    outcome = make_outcome(file, args, choice.engine, moment, journal)
    require_unchanged()
    publish_outcome(file, args, store, outcome, run)
    return OK


def make_outcome(
    file: ReplayFile, args: argparse.Namespace, engine: str, until: int | None, journal: Journal
) -> replays.ReplayOutcome:
    """Replay the models with a runner.

    A large log is laid out in the warehouse's folder.
    """
    runner: Engine
    if engine == "spark":
        # Imported here: no other replay needs Spark.
        from recbench_spark.engine.sessions import SparkEngine  # noqa: PLC0415
        from recbench_spark.runtime.session import get_session  # noqa: PLC0415

        runner = SparkEngine(get_session(f"recbench-spark replay {file.name}"))
    else:
        rows = count_rows(file)
        if rows <= FEW_ROWS or not is_local_folder(args.warehouse):
            return replays.replay_here(file, until, args.parts)
        runner = LocalEngine(str(host_folder()), choose_workers(rows))
    most = MOST_ROWS_OF_A_PART
    if args.parts:
        most = min(most, max(1, -(-arrow_files.estimate_rows(file.log.path or "") // args.parts)))
    warehouse = Path(args.warehouse)
    return replays.replay_laid_out(runner, file, until, warehouse=warehouse, most=most, report=journal.say)


def publish_outcome(
    file: ReplayFile,
    args: argparse.Namespace,
    store: ArrowStore,
    outcome: replays.ReplayOutcome,
    run: dict[str, Any],
) -> None:
    """Write the results and the page, and print them."""
    marked = [{**row, "same_log": int(args.same_log)} for row in outcome.rows]
    run_ids = publish_replays(store, marked, outcome.checks, outcome.rejects, run)
    print_replays(marked, outcome)
    notes = [f"{'' if check.passed else 'warning: '}{check.summary_line()}" for check in outcome.checks]
    print("\n".join(notes))
    print(f"report: {write_replay_page(store.root, file.name, marked, notes)}")
    print(f"runs {', '.join(run_ids)} in {store.root}")


def check_flags(args: argparse.Namespace) -> None:
    """Check the flags.

    Raises:
        ConfigError: a warehouse which is neither a folder nor an object storage, or fewer than one part.
    """
    if not needs_no_java(args.warehouse):
        raise ConfigError(
            f"--warehouse {args.warehouse}: neither a folder of this machine nor an object storage",
            "give a folder, or s3://, gs://, abfss://, hdfs://",
        )
    if args.parts is not None and not 1 <= args.parts <= 100_000:
        raise ConfigError(f"--parts {args.parts}: must lie in 1 .. 100,000")


def require_engine(engine: str, warehouse: str) -> None:
    """Refuse Spark for a warehouse on object storage.

    Raises:
        ConfigError: Spark tasks map the log's parts from a folder.
    """
    if engine == "spark" and not is_local_folder(warehouse):
        raise ConfigError(
            f"--warehouse {warehouse}: a replay with Spark maps the parts of its log from a folder",
            f"--warehouse FOLDER that all hosts see, or --engine local (up to {MOST_ROWS:,} rows)",
        )


def choose_engine(requested: str, file: ReplayFile, warehouse: str) -> EngineChoice:
    """Choose this machine or Spark, by the number of rows.

    The log's rows and the models' rows count together.

    Raises:
        ConfigError: Spark is requested for a generated log. DataError: the log is too large for the memory
            in one process, and the warehouse is no folder for its layout.
    """
    if file.log.path is None:
        if requested == "spark":
            raise ConfigError("--engine spark: a generated log is replayed in one process", "leave it out")
        return EngineChoice("local", "a generated log, without Spark")
    if requested == "spark":
        return EngineChoice("spark", "as requested")
    if requested == "local":
        if not is_local_folder(warehouse):
            _check_size(file.log.path)
        return EngineChoice("local", "as requested")
    total = count_rows(file)
    if total > FEW_ROWS:
        return EngineChoice("spark", f"{total:,} rows, up to {FEW_ROWS:,} are replayed without it")
    return EngineChoice("local", f"{total:,} rows of this machine (up to {FEW_ROWS:,}), without Spark")


def count_rows(file: ReplayFile) -> int:
    """Return roughly how many rows log and models have together.

    A generated log counts as 0.
    """
    paths = [path for path in (file.log.path, *(model.path for model in file.models)) if path]
    return sum(filter(None, map(_estimate_rows, paths)))


def _estimate_rows(path: str) -> int | None:
    """Return a table's number of rows.

    None leaves the error to the table's reader, which words what is wrong.
    """
    try:
        return arrow_files.estimate_rows(path)
    except FallbackToSpark:
        return None


def describe_replay(file: ReplayFile, until: datetime | None) -> list[str]:
    """Return lines about a file's models, points and tables.

    The tables themselves are looked at.

    Raises:
        MissingError: a table does not exist. SchemaError: a table lacks a column.
    """
    points = file.replay.list_points()
    rows = f"rows after {until:%Y-%m-%d %H:%M:%S%z}" if until else "all rows (--same-log)"
    names = ", ".join(model.name for model in file.models)
    lines = [f"replay {file.name}: {names} at {len(points)} operating points, {rows}"]
    if file.log.path:
        needed = [file.log.columns.get(name, name) for name in REQUIRED]
        lines.append(describe_table("log", file.log.path, needed))
    for model in file.models:
        if model.path:
            lines.append(describe_table(model.name, model.path, ("auction_id", "ad_id", "probability")))
    return lines


def _check_size(path: str) -> None:
    rows = _estimate_rows(path)
    if rows and rows > MOST_ROWS and not path.endswith(COMPRESSED):
        raise DataError(
            f"log {path}: {rows:,} rows, one process replays up to {MOST_ROWS:,}",
            "give a folder as warehouse, or replay a share of the queries: all auctions of each of them",
        )


def identify_replay(file: ReplayFile, args: argparse.Namespace) -> dict[str, Any]:
    """Return this replay's columns in `runs`.

    All runs in the replay share these columns. The result also has each model's inputs.
    """
    log = arrow_files.identity(file.log.path) if file.log.path else digest(file.log.model_dump())
    models = {
        model.name: arrow_files.identity(model.path)
        if model.path
        else digest(model.model_dump(mode="json"))
        for model in file.models
    }
    settings = file.model_dump(mode="json") | {"same_log": args.same_log}
    return {
        "suite": file.name,
        "logical_date": args.logical_date or date.today(),
        "dataset": file.log.path or "generated auctions",
        "settings": settings,
        "inputs": {"truth": log},
        "models": {LOGGED: log, **models},
    }


def write_replay_page(root: str, name: str, rows: list[dict[str, Any]], notes: list[str]) -> str:
    """Write a replay's page into the warehouse's reports.

    Returns:
        The page's URI.
    """
    # Imported here: drawing needs pandas and matplotlib, which the replay itself does not.
    from recbench_spark.reports.page import render_replay, write_page  # noqa: PLC0415
    from recbench_spark.reports.replays import make_replay_facts  # noqa: PLC0415

    table = arrow_rows([{**row, "run_id": ""} for row in rows], REPLAYS).to_pandas()
    facts = make_replay_facts(name, table, notes)
    place = write_page(render_replay(facts), join_uri(root, "reports", f"replay-{name}.html"))
    return link_place(place)


def print_replays(rows: list[dict[str, Any]], outcome: replays.ReplayOutcome) -> None:
    """Print each model's yields at each point, and the cases.

    Differences to the logged policy are printed too.
    """
    queries = rows[0]["queries"]
    print(f"{outcome.participants:,} participants of {queries:,} queries; {outcome.left_out:,} left out")
    wanted = [row for row in rows if row["metric"] in SHOWN and row.get("unseen") in (None, "reference")]
    for row in wanted:
        print(_describe_row(row))
    for row in rows:
        if row["metric"].startswith("share_"):
            print(f"{row['model']:<12} {row['point']} {row['metric']}: {_format_value(row['value'], 4)}")


def _describe_row(row: Mapping[str, Any]) -> str:
    against = f" minus {row['other']}" if row.get("other") else ""
    where = row.get("point") or "as logged"
    interval = ""
    if row.get("ci_low") is not None:
        interval = f" [{row['ci_low']:.6f}, {row['ci_high']:.6f}]"
    value = _format_value(row["value"], 6)
    return f"{row['model'] + against:<26} {where} {row['metric']}: {value}{interval}"


def _format_value(value: float | None, digits: int) -> str:
    """Return a number as text; None becomes "none".

    A share of no ads has no number, for example.
    """
    return "none" if value is None else f"{value:.{digits}f}"
