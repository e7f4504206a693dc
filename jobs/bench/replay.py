"""Time auction replays: the kernels, and the job with Spark.

    python jobs/bench/replay.py                                              # 1,048,576 auctions
    python jobs/bench/replay.py --auctions 1000000 --pieces 10 --spark FOLDER

Auctions have 8 ads. A log is made in pieces. Queries follow Zipf's law with exponent 1, and there are a
tenth as many as auctions. The kernels' steps, in one thread's CPU seconds: the log's check; the counts;
the position curve with the log's sums; one operating point for a model, and two, without intervals and
with them. `kernel` sums counts, curve and one point. Kernels are compiled before they are measured. Here
each piece has its own queries, and 65,536 auctions have as many rows as a layout's part.

With --spark the log and two models are written to FOLDER as Parquet, and `recbench replay --engine spark`
replays them in its own warehouse, which is removed afterwards: the first run lays the log out, the
second one takes another model, the third one has four points. Tables with the same size stay for the next
bench. All pieces share their queries, whose click rates differ from piece to piece; this changes no cost.
Wall seconds stand beside CPU seconds of the whole process tree, and beside the machine's load when a run
begins; `peak_gib` is the tree's memory, and `worker_gib` the largest Python process's.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial, reduce
from operator import add
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from jobs.bench import harness
from recbench_spark import cli
from recbench_spark.auctions.auction_log import AuctionParts, LogFacts, LoggedPart, make_part
from recbench_spark.auctions.auctions import check_auctions
from recbench_spark.auctions.kernels.mechanism import OperatingPoint
from recbench_spark.auctions.replay import Replayer
from recbench_spark.auctions.settings import AuctionLog, AuctionWorld, ReplaySettings
from recbench_spark.auctions.worlds import LOGGED, GeneratedAuctions, make_auctions
from recbench_spark.config import Bootstrap
from recbench_spark.storage.leases import make_folder_once

Result = TypeVar("Result")
Seconds = dict[str, float]
POINT = vars(LOGGED)
FURTHER = OperatingPoint(exponent=1.0, main_floor=0.05, main_slots=3, reserve=0.01, side_slots=2)
GRID = [replace(LOGGED, main_floor=floor) for floor in (0.02, 0.04, 0.06, 0.08)]


def parser() -> cli.Parser:
    """Make the flag parser."""
    flags = cli.Parser(__doc__ or "")
    flags.add_argument("--auctions", type=int, default=65_536, help="auctions of a piece (65,536)")
    flags.add_argument("--pieces", type=int, default=16, help="pieces of the log (16)")
    flags.add_argument("--replicates", type=int, default=1000, help="bootstrap replicates (1000)")
    flags.add_argument("--spark", type=Path, metavar="FOLDER", help="measure the job with Spark here")
    harness.add_output_flag(flags)
    return flags


def main(args: argparse.Namespace) -> int:
    """Measure the kernels or the job; print lines of JSON."""
    facts = {"auctions": args.auctions * args.pieces, "pieces": args.pieces, "replicates": args.replicates}
    if args.spark:
        rows = [{**facts, **row} for row in measure_job(args)]
    else:
        measure_kernels(1000, 1, 10)
        seconds = measure_kernels(args.auctions, args.pieces, args.replicates)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        rows = [{**facts, "system": name, "cpu_seconds": spent} for name, spent in seconds.items()]
        rows.append({**facts, "system": "memory", "peak_gib": round(peak, 2)})
    for row in rows:
        print(json.dumps(row))
    harness.append_rows(args.output, rows)
    return 0


def make_pieces(
    auctions: int, pieces: int, common_queries: bool = False
) -> Iterator[tuple[GeneratedAuctions, pa.Table]]:
    """Yield each piece: its world, and its log.

    No other piece has its auction ids.

    Args:
        auctions: auctions in a piece.
        pieces: number of pieces.
        common_queries: whether all pieces share their queries; if not, each has its own.
    """
    queries = max(1, auctions * (pieces if common_queries else 1) // 10)
    for number in range(pieces):
        world = make_auctions(AuctionWorld(auctions=auctions, queries=queries, zipf=1.0, seed=number))
        log = world.log
        for name, count in (("auction_id", auctions), ("query_id", 0 if common_queries else queries)):
            ids = pa.array(log.column(name).to_numpy() + number * count)
            log = log.set_column(log.column_names.index(name), name, ids)
        yield world, log


def measure_kernels(auctions: int, pieces: int, replicates: int) -> Seconds:
    """Return each step's CPU seconds, over all pieces."""
    seconds: Seconds = {}

    def measure(name: str, step: Callable[[], Result]) -> Result:
        results: list[Result] = []
        spent = harness.measure_own_cpu(lambda: results.append(step()))
        seconds[name] = round(seconds.get(name, 0.0) + spent, 3)
        return results[0]

    parts, each = [], []
    settings = AuctionLog(path="log")
    for world, log in make_pieces(auctions, pieces):
        place = log.column_names.index("probability")
        table = log.set_column(place, "probability", pa.array(world.predict(0.3, 0)))
        checked = measure("check", partial(check_auctions, table, settings, "log"))
        each.append(LogFacts.from_log(checked))
        part = measure("counts", partial(make_part, checked, each[0]))
        assert checked.probability_r is not None, "the log has predictions in this column"
        parts.append(LoggedPart(part, {"new": checked.probability_r}, part.auctions_q))
    measure_passes(AuctionParts(tuple(parts), reduce(add, each)), replicates, measure)
    seconds["kernel"] = round(sum(seconds[name] for name in ("counts", "curve", "first point")), 3)
    return seconds


def measure_passes(log: AuctionParts, replicates: int, measure: Callable[..., Any]) -> None:
    """Measure the passes over a log."""
    none = ReplaySettings.model_validate({"points": [POINT], "bootstrap": {"replicates": 0}})
    replayer = measure("curve", lambda: Replayer.from_log(log, none))
    measure("first point", lambda: list(replayer.replay("new", [LOGGED])))
    measure("two points", lambda: list(replayer.replay("new", [LOGGED, FURTHER])))
    settings = none.model_copy(update={"bootstrap": Bootstrap(replicates=replicates)})
    with_intervals = measure("log with intervals", lambda: Replayer.from_log(log, settings))
    measure("point with intervals", lambda: list(with_intervals.replay("new", [LOGGED])))
    measure("two points with intervals", lambda: list(with_intervals.replay("new", [LOGGED, FURTHER])))
    measure("five points with intervals", lambda: list(with_intervals.replay("new", [LOGGED, *GRID])))


def measure_job(args: argparse.Namespace) -> Iterator[harness.Row]:
    """Yield seconds and memory of three runs with Spark.

    The runs are: with the layout, a second model, four points.
    """
    tables = make_tables(args.spark.absolute(), args.auctions, args.pieces)
    one = {**{name: [value] for name, value in POINT.items()}, "exponent": [1]}
    runs: dict[str, tuple[str, dict[str, list[Any]]]] = {
        "layout and first model": ("model-0", one),
        "second model": ("model-1", one),
        "four points": ("model-1", {**one, "main_floor": [0.02, 0.03, 0.05, 0.08]}),
    }
    with tempfile.TemporaryDirectory(prefix="replay-", dir=args.spark) as folder:
        for name, (model, grid) in runs.items():
            config = write_config(Path(folder), tables, model, grid, args.replicates)
            yield {"system": name, **measure_run(config, Path(folder) / "warehouse")}


def measure_run(config: Path, warehouse: Path) -> harness.Row:
    """Run the job once, and measure it.

    Returns seconds, memory and progress lines.
    """
    command = [sys.executable, str(harness.ROOT / "jobs" / "replay.py"), "--config", str(config)]
    load = os.getloadavg()[0]
    run = harness.run_process(
        [*command, "--warehouse", str(warehouse), "--engine", "spark"], sample_every=2.0
    )
    if run.code:
        raise SystemExit(run.errors[-3000:])
    python = (size for name, size in run.largest.items() if name.startswith("python"))
    row = {
        "seconds": round(run.seconds.wall, 1),
        "cpu_seconds": round(run.seconds.cpu, 1),
        "load": round(load, 1),
        "peak_gib": round(run.peak / 2**30, 2),
        "worker_gib": round(max(python, default=0) / 2**30, 2),
        "lines": [line for line in run.errors.splitlines() if line.startswith("[")],
    }
    print(json.dumps(row), file=sys.stderr, flush=True)
    return row


def make_tables(folder: Path, auctions: int, pieces: int) -> Path:
    """Write the log and two models, unless they exist.

    An earlier bench may have written tables of this size. Returns their folder.
    """
    tables = folder / f"{pieces}-pieces-of-{auctions}"
    make_folder_once(tables, partial(write_tables, auctions=auctions, pieces=pieces))
    return tables


def write_tables(folder: Path, auctions: int, pieces: int) -> None:
    """Write the log and two models, a file per piece."""
    for name in ("log", "model-0", "model-1"):
        (folder / name).mkdir(parents=True)
    for number, (world, log) in enumerate(make_pieces(auctions, pieces, common_queries=True)):
        file = f"{number:03d}.parquet"
        pq.write_table(log, folder / "log" / file)
        for model in (0, 1):
            table = log.select(["auction_id", "ad_id"])
            predicted = pa.array(world.predict(0.3, model))
            pq.write_table(table.append_column("probability", predicted), folder / f"model-{model}" / file)


def write_config(
    folder: Path, tables: Path, model: str, grid: dict[str, list[Any]], replicates: int
) -> Path:
    """Write a replay file, and return its path."""
    document = {
        "name": "bench",
        "log": {"path": str(tables / "log")},
        "replay": {"points": grid, "bootstrap": {"replicates": replicates}},
        "models": [
            {"name": model, "path": str(tables / model), "trained_until": "2025-12-31T00:00:00+00:00"}
        ],
    }
    path = folder / "replay.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return path


if __name__ == "__main__":
    cli.run(main, parser())
