"""Time a log's identification beside reading it.

    python jobs/bench/identity.py --rows 10000000 --rounds 4

Timed are the first digest, a second night's, and reading. CSV is read by Spark's readers. Parquet and
Delta are read by Python tasks, which is a split's fastest way, and once more by Spark's readers. CPU
seconds include this process and all its descendants (JVM, workers); wall seconds depend on other work on
the machine.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
from deltalake import write_deltalake

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from jobs.bench.harness import Seconds, add_output_flag, append_rows, measure_call, take_turns
from recbench_spark.config import parse
from recbench_spark.engine.sessions import SparkEngine
from recbench_spark.runtime.session import get_session
from recbench_spark.sources.columnar import COLUMNS, deal_owners, open_columnar_log
from recbench_spark.sources.digests import cache_folder
from recbench_spark.sources.identity import identity
from recbench_spark.sources.readers.logs import open_log
from recbench_spark.sources.settings import Dataset
from recbench_spark.splits.rules import open_log_rows
from recbench_spark.storage.blocks import count_table_rows

FILES = 4

READERS = ("csv", "parquet", "delta")


def main() -> None:
    """Write the logs, measure, print a line for each format."""
    flags = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    flags.add_argument("--rows", type=int, default=10_000_000)
    flags.add_argument("--rounds", type=int, default=4)
    flags.add_argument("--readers", nargs="+", choices=READERS, default=READERS)
    add_output_flag(flags)
    args = flags.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = f"{folder}/cache"
        write_logs(Path(folder), args.rows)
        time.sleep(3)  # new files' identities are not cached
        spark = get_session("recbench-spark bench identity")
        for reader in args.readers:
            path = f"{folder}/{reader}"
            log = parse(Dataset, {"name": "d", "reader": reader, "path": path}, "bench")
            seconds = measure(spark, log, args.rounds)
            print_line(reader, seconds)
            append_rows(args.output, make_rows(reader, args.rows, seconds))
        spark.stop()


def write_logs(folder: Path, rows: int) -> None:
    """Write the same rows in each format, in FILES files."""
    for name in ("csv", "parquet"):
        (folder / name).mkdir()
    for number in range(FILES):
        draw, n = np.random.default_rng(number), rows // FILES
        pairs = {"user_id": draw.integers(0, 500_000, n), "item_id": draw.integers(0, 50_000, n)}
        ratings, times = draw.integers(1, 11, n) / 2, draw.integers(10**9, 2 * 10**9, n)
        table = pa.table({**pairs, "rating": ratings, "event_time": times})
        pacsv.write_csv(table, folder / "csv" / f"{number}.csv")
        pq.write_table(table, folder / "parquet" / f"{number}.parquet")
        write_deltalake(folder / "delta", table, mode="append")


def measure(spark: Any, log: Dataset, rounds: int) -> dict[str, list[Seconds]]:
    """Time each step, once a round, after a warm-up round."""
    digest = partial(identity, spark, str(log.path))

    def digest_anew() -> Seconds:
        shutil.rmtree(cache_folder() or "", ignore_errors=True)
        return measure_call(digest)

    others: dict[str, Callable[[], Any]] = {
        "second": digest,
        "reading": partial(read, spark, log),
        "reading by Spark": partial(read_by_spark, spark, log),
    }
    steps = {"first": digest_anew} | {name: partial(measure_call, step) for name, step in others.items()}
    return take_turns(steps, rounds, warm_ups=1)


def read(spark: Any, log: Dataset) -> None:
    """Read all rows as a split does."""
    files = open_columnar_log(log)
    if files is None:
        read_by_spark(spark, log)
    else:
        rows = open_log_rows(SparkEngine(spark), files)
        tasks = rows.engine.cores
        rows.deal(COLUMNS, partial(deal_owners, owner="user_id", tasks=tasks), tasks).each(len)


def read_by_spark(spark: Any, log: Dataset) -> None:
    """Read all rows by Spark's reader, with value checks."""
    opened = open_log(spark, log)
    opened.rows.each(opened.columns, count_table_rows)


def make_rows(reader: str, rows: int, seconds: dict[str, list[Seconds]]) -> list[dict[str, Any]]:
    """Make the lines for `--output`."""
    facts = {"benchmark": "identity", "reader": reader, "rows": rows}
    return [
        {**facts, "step": name, "round": turn, "seconds": spent.wall, "cpu": spent.cpu}
        for name, turns in seconds.items()
        for turn, spent in enumerate(turns)
    ]


def print_line(reader: str, seconds: dict[str, list[Seconds]]) -> None:
    """Print medians, and the first digest's share of reading."""
    medians = {
        name: [median(column) for column in zip(*times, strict=True)] for name, times in seconds.items()
    }
    words = ", ".join(f"{name} {wall:.2f} s ({cpu:.2f} s CPU)" for name, (wall, cpu) in medians.items())
    shares = [
        f"first / {name} {medians['first'][0] / medians[name][0]:.3f} "
        f"({medians['first'][1] / medians[name][1]:.3f} of CPU)"
        for name in ("reading", "reading by Spark")
    ]
    print(f"{reader}: {words}; {', '.join(shares)}", flush=True)


if __name__ == "__main__":
    main()
