# ruff: noqa: PLC0415 (each environment has only one of the libraries)
"""Time one split by one library in this process, for `jobs/bench/splits.py`.

    python tools/time_split.py SYSTEM PROTOCOL LOG OUT

The log is Parquet (user_id, item_id: integers; rating; event_time: seconds). Prints one line of JSON:
seconds from reading the log to the split written, CPU seconds of all processes, seconds for the session.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

COLUMNS = {"col_user": "user_id", "col_item": "item_id"}


def split_own(protocol: str, log: str, out: str) -> dict[str, float]:
    """Read, check and label the log, write one Delta table; time the manifest separately."""
    from recbench_spark.config import Dataset, Split
    from recbench_spark.nightly.split import write_labelled_log
    from recbench_spark.protocol.manifests import build_manifest
    from recbench_spark.runtime.session import get_session
    from recbench_spark.schemas import MANIFESTS, SPLITS
    from recbench_spark.storage.store import Store

    dataset = Dataset(name="generated", reader="parquet", path=log)
    settings: dict[str, Any] = {"group": "global"} if protocol == "RO" else {"protocol": protocol}
    split = Split(**settings)
    started = time.perf_counter()
    spark = get_session()
    store = Store(spark, out)
    store.create(SPLITS, MANIFESTS)

    ready = time.perf_counter() - started
    timing = time_run(lambda: write_labelled_log(store, dataset, split, "timed"), ready)
    audited = time.perf_counter()
    files = store.list_partition_files(SPLITS, {"split_id": "timed"}, max_bytes=math.inf)
    facts = build_manifest(store.read(SPLITS), 1, split.model_dump_json(), files=files)
    store.append_rows([{"split_id": "timed", **fact._asdict()} for fact in facts], MANIFESTS, "timed")
    timing["manifest"] = time.perf_counter() - audited
    return timing


def split_with_replay(protocol: str, log: str, out: str) -> dict[str, float]:
    """Split by RePlay: last item or fifth per user, or random rows. It has no random split by user."""
    from replay.splitters import (  # type: ignore[import-not-found]
        LastNSplitter,
        RandomSplitter,
        RatioSplitter,
    )

    names = {"query_column": "user_id", "item_column": "item_id", "timestamp_column": "event_time"}
    splitters: dict[str, Callable[[], Any]] = {
        "TO_LS": lambda: LastNSplitter(N=1, divide_column="user_id", **names),
        "TO_RS": lambda: RatioSplitter(test_size=0.2, divide_column="user_id", **names),
        "RO": lambda: RandomSplitter(test_size=0.2, seed=42, query_column="user_id", item_column="item_id"),
    }
    splitter = splitters[protocol]()
    return split_with_library(splitter.split, log, out)


def split_with_recommenders(protocol: str, log: str, out: str) -> dict[str, float]:
    """Split by recommenders: per user by time or at random, or random rows. It has no leave-one-out."""
    from recommenders.datasets import spark_splitters as theirs  # type: ignore[import-not-found]

    splitters: dict[str, Callable[[Any], Any]] = {
        "TO_RS": lambda rows: theirs.spark_chrono_split(
            rows, ratio=0.8, col_timestamp="event_time", **COLUMNS
        ),
        "RO_RS": lambda rows: theirs.spark_stratified_split(rows, ratio=0.8, **COLUMNS),
        "RO": lambda rows: theirs.spark_random_split(rows, ratio=0.8),
    }
    return split_with_library(splitters[protocol], log, out)


def split_with_library(split: Callable[[Any], Any], log: str, out: str) -> dict[str, float]:
    """Read Parquet, split, write train and test as Parquet."""
    import peer_session

    started = time.perf_counter()
    spark = peer_session.get_session()

    def run() -> None:
        train, test = split(spark.read.parquet(log))
        train.write.parquet(f"{out}/train")
        test.write.parquet(f"{out}/test")

    return time_run(run, time.perf_counter() - started)


def time_run(run: Callable[[], None], session: float) -> dict[str, float]:
    """Return wall and CPU seconds of a run."""
    before, started = cpu_seconds(), time.perf_counter()
    run()
    return {
        "seconds": time.perf_counter() - started,
        "cpu": cpu_seconds() - before,
        "session": session,
    }


def cpu_seconds() -> float:
    """Return CPU seconds of this process and all its descendants, ended ones included. Linux."""
    parents, spent = {}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(stat.parent.name)] = int(fields[1])
        spent[int(stat.parent.name)] = sum(map(int, fields[11:15]))
    family = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    return sum(spent[pid] for pid in family) / os.sysconf("SC_CLK_TCK")


SYSTEMS = {"ours": split_own, "replay": split_with_replay, "recommenders": split_with_recommenders}

if __name__ == "__main__":
    system, *rest = sys.argv[1:]
    print(json.dumps(SYSTEMS[system](*rest)))
