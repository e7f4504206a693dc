"""Measure the replay of generated auctions of 8 ads: seconds of each step, in CPU and wall-clock time.

    python jobs/bench/replay.py --auctions 1000000 --queries 100000 --replicates 1000

Queries follow Zipf's law with exponent 1. The steps: cut the log into parts (counts included), the position
curve, the sort of one model, the first operating point and a further one (both without intervals), and the
bootstrap of one model at one point. Numbers are compiled before they are measured.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Callable
from typing import TypeVar

from recbench_spark import cli
from recbench_spark.config import Bootstrap
from recbench_spark.config.replay import AuctionLog, AuctionWorld, ReplaySettings
from recbench_spark.data.auction_worlds import LOGGED, make_auctions
from recbench_spark.data.readers.auctions import check_auctions
from recbench_spark.kernels.simulation.mechanism import OperatingPoint
from recbench_spark.simulation.auction_log import make_parts
from recbench_spark.simulation.replay import Replayer

Result = TypeVar("Result")
POINT = vars(LOGGED)
FURTHER = OperatingPoint(exponent=1.0, main_floor=0.05, main_slots=3, reserve=0.01, side_slots=2)


def parser() -> cli.Parser:
    """Make the parser of the flags."""
    flags = cli.Parser(__doc__ or "")
    flags.add_argument("--auctions", type=int, default=1_000_000, help="auctions (1,000,000)")
    flags.add_argument("--queries", type=int, default=100_000, help="queries (100,000)")
    flags.add_argument("--replicates", type=int, default=1000, help="bootstrap replicates (1000)")
    return flags


def main(args: argparse.Namespace) -> int:
    """Measure a small log to compile the kernels, then the log of the flags; print one line of JSON."""
    measure_replay(1000, 100, 10)
    print(json.dumps(measure_replay(args.auctions, args.queries, args.replicates)))
    return 0


def measure_replay(auctions: int, queries: int, replicates: int) -> dict[str, float | list[float]]:
    """Return CPU and wall-clock seconds of each step, and the largest resident memory in GiB."""
    world = AuctionWorld(auctions=auctions, queries=queries, zipf=1.0)
    generated = make_auctions(world)
    seconds: dict[str, float | list[float]] = {"auctions": auctions, "queries": queries}

    def measure(name: str, step: Callable[[], Result]) -> Result:
        cpu, wall = time.process_time(), time.perf_counter()
        result = step()
        seconds[name] = [round(time.process_time() - cpu, 3), round(time.perf_counter() - wall, 3)]
        return result

    checked = measure("check", lambda: check_auctions(generated.log, AuctionLog(world=world), "log"))
    models = {"new": generated.predict(0.3, 0)}
    log = measure("layout", lambda: make_parts(checked, models, 1))
    none = ReplaySettings.model_validate({"points": [POINT], "bootstrap": {"replicates": 0}})
    replayer = measure("curve", lambda: Replayer.from_log(log, none))
    orders = measure("sort", lambda: replayer.rank("new", 1.0))
    measure("first point", lambda: replayer.replay("new", LOGGED, orders))
    measure("further point", lambda: replayer.replay("new", FURTHER, orders))
    settings = none.model_copy(update={"bootstrap": Bootstrap(replicates=replicates)})
    with_intervals = measure("log with intervals", lambda: Replayer.from_log(log, settings))
    measure("point with intervals", lambda: with_intervals.replay("new", LOGGED, orders))
    seconds["peak_gib"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2)
    return seconds


if __name__ == "__main__":
    cli.run(main, parser())
