# ruff: noqa: PLC0415 (each environment has only one of the libraries)
"""Time one library's split, for `jobs/bench/splits.py`.

    python jobs/bench/time_split.py SYSTEM PROTOCOL LOG OUT

The log is Parquet (user_id, item_id: integers; rating; event_time: seconds). The split runs in this
process. Prints one line of JSON: seconds from reading the log to the written split, CPU seconds of all
processes, seconds for the session.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from jobs.bench.harness import measure_call, start_peer_session, time_call

COLUMNS = {"col_user": "user_id", "col_item": "item_id"}


def split_own(protocol: str, log: str, out: str) -> dict[str, float]:
    """Read, check and label the log into one Delta table.

    The manifest is timed separately.
    """
    from recbench_spark.config import Dataset, Split
    from recbench_spark.night.split import write_labelled_log
    from recbench_spark.runtime.session import get_session
    from recbench_spark.schemas import MANIFESTS, SPLITS
    from recbench_spark.splits.labelled_rows import open_labelled
    from recbench_spark.splits.manifests import LogRows, build_manifest
    from recbench_spark.storage.store import Store

    dataset = Dataset(name="generated", reader="parquet", path=log)
    settings: dict[str, Any] = {"group": "global"} if protocol == "RO" else {"protocol": protocol}
    split = Split(**settings)

    def open_store() -> Store:
        store = Store(get_session(), out)
        store.create(SPLITS, MANIFESTS)
        return store

    def audit() -> None:
        rows = open_labelled(store, "timed")
        facts = build_manifest(rows, LogRows(1), split.model_dump_json(), store.engine).facts
        store.append([{"split_id": "timed", **fact._asdict()} for fact in facts], MANIFESTS, "timed")

    session, store = time_call(open_store)
    timing = time_run(lambda: write_labelled_log(store, dataset, split, "timed"), session)
    return {**timing, "manifest": time_call(audit)[0]}


def split_with_replay(protocol: str, log: str, out: str) -> dict[str, float]:
    """Split by RePlay, which has no random split by user.

    Its other splits take the last item or a fifth per user, or random rows.
    """
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
    """Split by recommenders, which has no leave-one-out.

    Its other splits go per user by time or at random, or take random rows.
    """
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
    session, spark = time_call(start_peer_session)

    def run() -> None:
        train, test = split(spark.read.parquet(log))
        train.write.parquet(f"{out}/train")
        test.write.parquet(f"{out}/test")

    return time_run(run, session)


def time_run(run: Callable[[], object], session: float) -> dict[str, float]:
    """Return a run's wall and CPU seconds."""
    spent = measure_call(run)
    return {"seconds": spent.wall, "cpu": spent.cpu, "session": session}


SYSTEMS = {"ours": split_own, "replay": split_with_replay, "recommenders": split_with_recommenders}

if __name__ == "__main__":
    system, *rest = sys.argv[1:]
    print(json.dumps(SYSTEMS[system](*rest)))
