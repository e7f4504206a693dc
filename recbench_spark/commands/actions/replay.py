"""Replay a log of auctions: the work of `jobs/replay.py`, in this process, without a JVM."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from recbench_spark.commands.dry_runs import describe_table
from recbench_spark.commands.warehouses import check_warehouse
from recbench_spark.config import digest
from recbench_spark.config.replay import ReplayFile, load_replay
from recbench_spark.data import arrow_files
from recbench_spark.data.auction_worlds import GeneratedAuctions, make_auctions
from recbench_spark.data.readers.auctions import (
    REQUIRED,
    CheckedAuctions,
    check_auctions,
    read_auctions,
    read_local_table,
)
from recbench_spark.errors import OK, ConfigError, DataError, FallbackToSpark
from recbench_spark.inputs import pin_inputs, require_unchanged
from recbench_spark.kernels.arrays import Floats
from recbench_spark.kernels.compiling import compile_notice
from recbench_spark.kernels.hashing import splitmix64
from recbench_spark.nightly.results import publish_replays
from recbench_spark.runtime.journal import Journal
from recbench_spark.schemas import REPLAYS, arrow_rows
from recbench_spark.simulation.auction_log import (
    AuctionParts,
    make_parts,
    match_probabilities,
    read_later_rows,
)
from recbench_spark.simulation.replay import LOGGED, replay_models
from recbench_spark.storage.arrow_store import ArrowStore, is_local_folder
from recbench_spark.storage.local_files import COMPRESSED

MOST_ROWS = 100_000_000
"""Most rows of a log that one process holds, about 10 GB."""

SHOWN = ("click_yield", "main_line_yield", "ads_per_view", "revenue_per_view")
"""Metrics that are printed, with their differences to the logged policy."""


@pin_inputs()
def run(args: argparse.Namespace) -> int:
    """Check the flags, read the log, replay the models, write and print the results."""
    file = load_replay(args.config)
    check_flags(args)
    until = file.end_training(args.same_log)
    lines = describe_replay(file, until)
    if args.dry_run:
        check_warehouse(args.warehouse)
        print("\n".join(lines))
        return OK
    journal, started = Journal(), datetime.now(UTC)
    journal.say(lines[0])
    if wait := compile_notice(splitmix64):
        print(wait, file=sys.stderr)
    store = ArrowStore(args.warehouse)
    log, parts = read_parts(file, until, args.parts)
    journal.say(f"{len(log.click_r):,} participants are read")
    rows, checks = replay_models(parts, [model.name for model in file.models], file.replay)
    require_unchanged()
    run = identify_replay(file, args) | {"started_at": started}
    marked = [{**row, "same_log": int(args.same_log)} for row in rows]
    run_ids = publish_replays(store, marked, checks, log.rejects, run)
    print_replays(marked, log)
    notes = [f"{'' if check.passed else 'warning: '}{check.summary_line()}" for check in checks]
    print("\n".join(notes))
    print(f"report: {write_replay_page(store, file.name, marked, notes).as_uri()}")
    print(f"runs {', '.join(run_ids)} in {store.root}")
    return OK


def check_flags(args: argparse.Namespace) -> None:
    """Check the flags.

    Raises:
        ConfigError: a warehouse that is no folder of this machine, or a number of parts below 1.
    """
    if not is_local_folder(args.warehouse):
        raise ConfigError(
            f"--warehouse {args.warehouse}: no folder of this machine", "a replay runs in one"
        )
    if not 1 <= args.parts <= 100_000:
        raise ConfigError(f"--parts {args.parts}: must lie in 1 .. 100,000")


def describe_replay(file: ReplayFile, until: datetime | None) -> list[str]:
    """Return lines about the models, points and tables of a file; the tables are looked at.

    Raises:
        MissingError: a table is not there. SchemaError: it lacks a column.
        DataError: the log is too large for one process.
    """
    points = file.replay.list_points()
    rows = f"rows after {until:%Y-%m-%d %H:%M:%S%z}" if until else "all rows (--same-log)"
    names = ", ".join(model.name for model in file.models)
    lines = [f"replay {file.name}: {names} at {len(points)} operating points, {rows}"]
    if file.log.path:
        needed = [file.log.columns.get(name, name) for name in REQUIRED]
        lines.append(describe_table("log", file.log.path, needed))
        _check_size(file.log.path)
    for model in file.models:
        if model.path:
            lines.append(describe_table(model.name, model.path, ("auction_id", "ad_id", "probability")))
    return lines


def _check_size(path: str) -> None:
    try:
        rows = arrow_files.estimate_rows(path)
    except FallbackToSpark:
        return
    if rows > MOST_ROWS and not path.endswith(COMPRESSED):
        raise DataError(
            f"log {path}: {rows:,} rows, one process replays up to {MOST_ROWS:,}",
            "replay a share of the queries: all auctions of each of them",
        )


def read_parts(
    file: ReplayFile, until: datetime | None, count: int
) -> tuple[CheckedAuctions, AuctionParts]:
    """Read the log and the models, leave out rows that models were fitted to, and cut the log."""
    world = make_auctions(file.log.world) if file.log.world else None
    log = check_auctions(world.log, file.log, "generated log") if world else read_auctions(file.log)
    if until is not None:
        log = read_later_rows(log, int(until.timestamp() * 1_000_000))
    models = read_models(file, log, world)
    if log.probability_r is not None:
        models[LOGGED] = log.probability_r
    return log, make_parts(log, models, count)


def read_models(
    file: ReplayFile, log: CheckedAuctions, world: GeneratedAuctions | None
) -> dict[str, Floats]:
    """Return the probabilities of each model, (r,) in the order of the log."""
    models = {}
    for number, model in enumerate(file.models):
        if model.path:
            table, where = read_local_table(model.path, "model"), f"model {model.name} {model.path}"
        elif world is not None and model.noise is not None:
            predicted = pa.array(world.predict(model.noise, number))
            table = world.log.select(["auction_id", "ad_id"]).append_column("probability", predicted)
            where = f"model {model.name}"
        else:
            raise ConfigError(f"models: {model.name} has no source", "give path")
        models[model.name] = match_probabilities(log, table, where)
    return models


def identify_replay(file: ReplayFile, args: argparse.Namespace) -> dict[str, Any]:
    """Return the columns that the runs of this replay share in `runs`, and the inputs of each model."""
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


def write_replay_page(store: ArrowStore, name: str, rows: list[dict[str, Any]], notes: list[str]) -> Path:
    """Write the page of a replay into the reports of the warehouse and return its path."""
    # Here: drawing needs pandas and matplotlib, which the replay itself does not.
    from recbench_spark.reports.page import render_replay, write_page  # noqa: PLC0415
    from recbench_spark.reports.replays import make_replay_facts  # noqa: PLC0415

    table = arrow_rows([{**row, "run_id": ""} for row in rows], REPLAYS).to_pandas()
    facts = make_replay_facts(name, table, notes)
    return write_page(render_replay(facts), store.folder / "reports" / f"replay-{name}.html")


def print_replays(rows: list[dict[str, Any]], log: CheckedAuctions) -> None:
    """Print the yields of each model and point, their differences to the logged policy, and the cases."""
    print(f"{len(log.click_r):,} participants of {len(log.query_ids):,} queries; {log.left_out:,} left out")
    wanted = [row for row in rows if row["metric"] in SHOWN and row.get("unseen") in (None, "reference")]
    for row in wanted:
        print(_describe_row(row))
    for row in rows:
        if row["metric"].startswith("share_"):
            print(f"{row['model']:<12} {row['point']} {row['metric']}: {row['value']:.4f}")


def _describe_row(row: Mapping[str, Any]) -> str:
    against = f" minus {row['other']}" if row.get("other") else ""
    where = row.get("point") or "as logged"
    interval = ""
    if row.get("ci_low") is not None:
        interval = f" [{row['ci_low']:.6f}, {row['ci_high']:.6f}]"
    value = "none" if row["value"] is None else f"{row['value']:.6f}"
    return f"{row['model'] + against:<26} {where} {row['metric']}: {value}{interval}"
