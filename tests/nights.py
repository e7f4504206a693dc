"""A night of a small world with models of every kind, for the tests that read its tables."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from recbench_spark.config import Benchmark, parse
from recbench_spark.core.inputs import pin_inputs
from recbench_spark.engine.local import LocalEngine
from recbench_spark.errors import FallbackToSpark
from recbench_spark.evaluation import shuffle
from recbench_spark.night.night import BenchmarkNight, open_night
from recbench_spark.night.run_keys import hash_split
from recbench_spark.night.run_night import NightOutcome, run_night
from recbench_spark.night.runners import require_local_night
from recbench_spark.night.split import prepare_split
from recbench_spark.query import local_engine
from recbench_spark.runtime.journal import Journal
from recbench_spark.runtime.session import cache_scope
from recbench_spark.schemas import Table
from recbench_spark.sources.arrow_files import identity
from recbench_spark.splits.rules import estimate_rows
from recbench_spark.storage.arrow_store import ArrowStore

DATE = date(2026, 1, 1)

SMALL: dict[str, Any] = {
    "name": "small",
    "dataset": {
        "name": "small_world",
        "reader": "world",
        "world": {"users": 120, "items": 60, "interactions": 2500, "open_loop": 800, "seed": 3},
    },
    "split": {"protocol": "RO_RS", "ratio": [0.7, 0.1, 0.2], "seed": 5},
    "models": [
        {"name": "random", "kind": "random"},
        {"name": "popular", "kind": "popular"},
        {"name": "item_knn", "kind": "item_knn", "neighbours": 10},
        {
            "name": "als_4",
            "kind": "als",
            "rank": 4,
            "iterations": 3,
            "provenance": {"search_space": {"rank": [4, 8], "alpha": [0.5, 1, 2]}, "budget": "six"},
        },
        {"name": "truth", "kind": "truth"},
        {
            "name": "paper",
            "kind": "published",
            "figures": {"ndcg@10": 0.25, "rmse": 0.9},
            "provenance": {"source": "published", "year": 2019, "ran_by": "somebody"},
        },
    ],
    "evaluation": {
        "metrics": ["hit", "precision", "recall", "map", "mrr", "ndcg", "auc", "coverage"],
        "k": [5, 10],
        "parts": ["test", "open_loop"],
        "definition": {"threshold": 4},
        "slices": [
            {"key": "popularity", "of": "popularity"},
            {"key": "genre", "of": "log"},
            {"key": "cold_user", "of": "cold_user"},
        ],
        "bootstrap": {"replicates": 50},
    },
}
TINY: dict[str, Any] = {
    "name": "tiny",
    "dataset": {
        "name": "tiny",
        "reader": "world",
        "world": {"users": 40, "items": 30, "interactions": 1000, "open_loop": 0, "seed": 3},
    },
    "models": [
        {"name": "popular", "kind": "popular"},
        {"name": "item_knn", "kind": "item_knn", "neighbours": 10},
    ],
    "evaluation": {"metrics": ["ndcg"], "k": [5], "slices": [], "bootstrap": {"replicates": 10}},
}
"""A night for tests that end processes, and have many of them."""
RANKED = ("random", "popular", "item_knn", "als_4", "truth")


@dataclass(frozen=True)
class Ran:
    """A night that has been run, and what it said."""

    store: Any
    benchmark: Benchmark
    outcome: NightOutcome
    remarks: str
    log: Path

    @property
    def night(self) -> BenchmarkNight:
        return open_night(self.store, self.benchmark, DATE)


def small(**changes: Any) -> Benchmark:
    """The small benchmark with whole sections replaced."""
    return parse(Benchmark, {**SMALL, **changes}, "tests/nights.py")


def models(*names: str) -> list[dict[str, Any]]:
    return [model for model in SMALL["models"] if model["name"] in names]


def run(store: Any, benchmark: Benchmark, day: date = DATE, **options: Any) -> Ran:
    stream = io.StringIO()
    journal = Journal(stream)
    log = (store.folder or Path()) / "logs" / f"{day}.jsonl"
    if store.folder:
        journal.write_to(log)
    outcome = run_night(choose_store(store, benchmark), benchmark, day, journal, **options)
    return Ran(store, benchmark, outcome, stream.getvalue(), log)


PIECES = (1, 3, 17)
"""Numbers of tasks that must change no bit."""


@contextmanager
def work_in(tasks: int) -> Iterator[None]:
    """Let nights of drawn worlds work in so many tasks, and write no report."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("recbench_spark.night.run_night.report_night", lambda *_: (None, ""))
        patch.setattr(LocalEngine, "count_tasks", lambda *_: tasks)
        if tasks > 1:
            patch.setattr(shuffle, "PAIRS_PER_TASK", 1)
        yield


def run_in_pieces(folder: Path, ask: Callable[[Path], Ran], read: Callable[[Ran], object]) -> Ran:
    """Return a world's night in one task; what is read of it is the same in three and in seventeen."""
    nights = []
    for tasks in PIECES:
        with work_in(tasks):
            nights.append(ask(folder / str(tasks)))
    values = [read(one) for one in nights]
    assert values == values[:1] * len(values)
    return nights[0]


def choose_store(store: Any, benchmark: Benchmark) -> Any:
    """The same warehouse without Spark, where the night needs none: a fifth of the time."""
    if isinstance(store, ArrowStore) or store.folder is None or store.schema:
        return store
    try:
        require_local_night(benchmark)
        estimate_rows(benchmark.dataset)
    except FallbackToSpark:
        return store
    return ArrowStore(store.root)


def make_split(store: Any, benchmark: Benchmark) -> BenchmarkNight:
    """Make the split of a benchmark as its night does, and nothing else."""
    with pin_inputs(), cache_scope():
        night = open_night(store, benchmark, DATE)
        prepare_split(store, benchmark, night.split_id, Journal(io.StringIO()))
    return night


class Splits:
    """Warehouses that hold one split and nothing else; each split is made once a session, by its hash.

    A test that needs a night of its own goes on in a copy: half the time of a small night is its split.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def copy(self, benchmark: Benchmark, place: Path) -> ArrowStore:
        """Return a new warehouse at a place, in which the split of a benchmark is made already."""
        original = self.folder / hash_split(identity, benchmark)[0]
        if not original.exists():
            make_split(ArrowStore(str(original)), benchmark)
        return copy_warehouse(ArrowStore(str(original)), place)


def copy_warehouse(store: ArrowStore, place: Path) -> ArrowStore:
    """Return a copy of a warehouse, for a test that writes or counts rows of its own."""
    shutil.copytree(store.root, place, ignore=shutil.ignore_patterns("_scratch"))
    return ArrowStore(str(place))


# ---------------------------------------------------------------- rows, read without Spark


def read_rows(store: Any, table: Table, **values: Any) -> list[SimpleNamespace]:
    """Rows of a table that have these values, with the columns as attributes."""
    filters = [(name, "=", value) for name, value in values.items()]
    return [SimpleNamespace(**row) for row in store.rows(table, filters)]


def read_split(night: BenchmarkNight, table: Table) -> list[SimpleNamespace]:
    """Rows of a night's split."""
    return read_rows(night.store, table, split_id=night.split_id)


def read_pandas(store: Any, table: Table, **values: Any) -> pd.DataFrame:
    """The same rows as `read_rows`, as a frame of pandas."""
    frame = pd.DataFrame(store.rows(table, [(name, "=", value) for name, value in values.items()]))
    return frame.reindex(columns=table.names)


def answer(store: Any, sql: str) -> list[dict[str, Any]]:
    """Rows of a query over tables and views."""
    return local_engine.run_query(ArrowStore(store.root, read_only=True), sql).to_pylist()
