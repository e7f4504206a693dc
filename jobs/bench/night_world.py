"""Make the world for `night.py`, and run its nights.

The world has models that are vectors, and their split.
"""

from __future__ import annotations

import argparse
import io
import json
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from jobs.bench.harness import time_call
from jobs.bench.storages import Stage
from recbench_spark import schemas
from recbench_spark.config import Benchmark, parse
from recbench_spark.core.hashed_ids import hash_ids
from recbench_spark.errors import DataError
from recbench_spark.metrics.list_rows import make_lists
from recbench_spark.models.adapters.model_adapter import ModelAdapter, SplitData, Trained
from recbench_spark.models.settings import ModelConfig
from recbench_spark.night.batched_evaluation import MODELS_AT_ONCE_SETTING
from recbench_spark.night.night import open_night
from recbench_spark.night.run_night import run_night
from recbench_spark.runtime.journal import Journal
from recbench_spark.storage import delta_files
from recbench_spark.storage.blocks import PieceRows
from recbench_spark.storage.file_tables import FileTables
from recbench_spark.storage.objects import read_bytes
from recbench_spark.storage.packed_blocks import read_files

KNOWN_ITEMS, HELD_OUT_ITEMS, PLANTED_SHARE = 47, 5, 0.3
"""A user's training and held-out items, and the planted share.

The share is that of held-out vectors in the user's.
"""

USERS_PER_FILE = 20_000
"""Users in a piece, as a task reads it."""

METRICS, KS = ("hit", "precision", "recall", "map", "mrr", "ndcg"), (10, 100)
FIRST_NIGHT = date(2026, 1, 1)


# ------------------------------------------------------------------------------------------- models


KIND = f"{__name__}:StoredFactorsModel"
"""The kind names the module."""


class StoredFactorsModel(ModelConfig):
    """A model with two vector files, for users and items."""

    behaviour: ClassVar[str] = f"{__name__}:StoredFactors"
    kind: Literal[KIND]  # type: ignore[valid-type]
    folder: str


class StoredFactors(ModelAdapter[StoredFactorsModel]):
    """Writes stored vectors to `embeddings` on first use.

    The vectors are then like those of a trained model.
    """

    runs_local: ClassVar[bool] = True

    def fit(self, data: SplitData) -> Trained:
        """Return the vectors as rows."""
        return Trained(*(self._open(data, side) for side in ("user", "item")))

    def _open(self, data: SplitData, side: str) -> PieceRows:
        files = sorted(map(str, Path(self.settings.folder).glob(f"{side}s-*.parquet")))
        return PieceRows(data.store.engine, files, read_files)


# ------------------------------------------------------------------------------------------- world


@dataclass(frozen=True)
class NightWorld:
    """The night's world: vector folders and item indices.

    Each model has a folder, and indices are (users, n).
    """

    folders: tuple[Path, ...]
    known_un: npt.NDArray[np.int32]
    truth_un: npt.NDArray[np.int32]
    n_items: int


def generate(args: argparse.Namespace, folder: Path) -> NightWorld:
    """Draw random vectors for each model.

    Users are moved towards their held-out items.
    """
    draws = np.random.default_rng(42)
    known, truth = (
        np.sort(_distinct(draws, args.users, args.items, n), axis=1).astype(np.int32)
        for n in (KNOWN_ITEMS, HELD_OUT_ITEMS)
    )
    folders = []
    for n in range(args.models):
        place = folder / f"model{n}"
        place.mkdir()
        users_ud = draws.standard_normal((args.users, args.dims), np.float32)
        items_id = draws.standard_normal((args.items, args.dims), np.float32)
        users_ud += np.float32(PLANTED_SHARE) * items_id[truth].sum(axis=1)
        for side, rows in (("user", users_ud), ("item", items_id)):
            np.save(place / f"{side}s.npy", rows)
            table = pa.table(
                {
                    f"{side}_id": _name_ids(0, len(rows)),
                    "vector": make_lists(rows),
                    "bias": pa.array(np.zeros(len(rows))),
                }
            )
            for start in range(0, len(rows), USERS_PER_FILE):
                pq.write_table(table.slice(start, USERS_PER_FILE), place / f"{side}s-{start}.parquet")
        folders.append(place)
    return NightWorld(tuple(folders), known, truth, args.items)


def _distinct(draws: np.random.Generator, users: int, items: int, n: int) -> npt.NDArray[np.int64]:
    """Draw n different items for each user.

    Each n-th part of the catalogue gives one item.
    """
    return draws.integers(0, items // n, (users, n)) + np.arange(n) * (items // n)


def make_benchmark(args: argparse.Namespace, world: NightWorld) -> Benchmark:
    """Make the night's benchmark, as a file would declare it."""
    models = [
        {"name": f"model{n}", "kind": KIND, "folder": str(folder)} for n, folder in enumerate(world.folders)
    ]
    metrics = [*METRICS, "auc"] if args.all_ranks else list(METRICS)
    evaluation = {"metrics": metrics, "k": list(KS), "uncut": bool(args.all_ranks), "slices": []}
    return parse(
        Benchmark,
        {
            "name": "bench_night",
            "dataset": {"name": "bench", "reader": "world"},
            "models": models,
            "evaluation": evaluation,
            "headline": "ndcg@10",
        },
        "jobs/bench/night.py",
    )


def _name_ids(start: int, stop: int) -> pa.Array:
    return pa.array(map(str, range(start, stop)), pa.string())


def store_split(store: FileTables, night_benchmark: Benchmark, world: NightWorld) -> None:
    """Store user blocks and items as the night's split.

    The rows look as if they came from a log.
    """
    split_id = open_night(store, night_benchmark, FIRST_NIGHT).split_id
    for start in range(0, len(world.truth_un), USERS_PER_FILE):
        store.append(_make_blocks(world, split_id, start), schemas.USER_BLOCKS)
    n = world.n_items
    columns = {
        "split_id": pa.repeat(split_id, n),
        "item_id": _name_ids(0, n),
        "item_index": pa.array(np.arange(n, dtype=np.int32)),
        "n_train": pa.repeat(1, n),
        "popularity": pa.repeat("head", n),
    }
    store.append(pa.table(columns), schemas.ITEMS)
    facts = {"split_id": split_id, "fact": "rows", "value": 1.0}
    store.append([{**facts, "part": part} for part in ("train", "test")], schemas.MANIFESTS)


def _make_blocks(world: NightWorld, split_id: str, start: int) -> pa.Table:
    """Make rows of `user_blocks` for some users; ratings are 1."""
    known, truth = (rows[start : start + USERS_PER_FILE] for rows in (world.known_un, world.truth_un))
    users, n = _name_ids(start, start + len(truth)), len(truth)
    names, kinds = zip(*((field.name, field) for field in schemas.HELD_OUT), strict=True)
    values = {
        "item_ids": make_lists(truth.astype(str)),
        "items": make_lists(truth),
        "relevance": make_lists(np.ones(truth.shape)),
        "slices": pa.array([[]] * n, schemas.HELD_OUT.field("slices").type),
    }
    held_out = pa.StructArray.from_arrays([values[name] for name in names], fields=list(kinds))
    columns = {
        "split_id": pa.repeat(split_id, n),
        "user_id": users,
        "user_key": pa.array(hash_ids(users).view(np.int64)),
        "train_items": make_lists(known),
        "train_ratings": make_lists(np.ones(known.shape)),
        "held_out": pa.MapArray.from_arrays(
            pa.array(np.arange(n + 1, dtype=np.int32)), pa.repeat("test", n), held_out
        ),
    }
    return pa.table(columns)


# ------------------------------------------------------------------------------------------- turns


def run_nights(
    store: FileTables, night_benchmark: Benchmark, days: Any, at_once: str
) -> tuple[float, dict[str, str]]:
    """Run and log a night; return its seconds and run_ids."""
    if store.spark is not None:
        store.spark.conf.set(MODELS_AT_ONCE_SETTING, at_once)
    day, journal = FIRST_NIGHT + timedelta(days=next(days)), Journal(io.StringIO())
    journal.write_to(name_log(store, day))
    seconds, done = time_call(lambda: run_night(store, night_benchmark, day, journal))
    journal.close()
    if done.failed:
        raise DataError(f"models failed: {done.failed}")
    return seconds, done.run_ids


def name_log(store: FileTables, day: date) -> str:
    """Return the place of a night's log."""
    return f"{store.root}/logs/{day}.jsonl"


def read_log(store: FileTables, day: date) -> list[dict[str, Any]]:
    """Read a night's log."""
    return [json.loads(line) for line in (read_bytes(name_log(store, day)) or b"").splitlines()]


def list_stages(store: FileTables, day: date) -> list[Stage]:
    """List a night's stages."""
    stages = []
    for row in read_log(store, day):
        end = datetime.fromisoformat(row["time"]).timestamp()
        stages.append(Stage(row["stage"], end - row.get("seconds", 0.0), end))
    return stages


def read_stages(store: FileTables, day: date) -> str:
    """Describe a night's seconds by stage, summed over models."""
    seconds: dict[str, float] = {}
    for row in read_log(store, day):
        seconds[row["stage"]] = seconds.get(row["stage"], 0.0) + row.get("seconds", 0.0)
    return ", ".join(f"{stage} {spent:.1f}" for stage, spent in seconds.items() if spent >= 0.05)


def read_metrics(store: FileTables, runs: dict[str, str]) -> list[Any]:
    """Read a night's metrics by model, in order."""
    models = {run_id: model for model, run_id in runs.items()}
    table = delta_files.read_rows(store.location("metrics"), [("run_id", "in", list(models))])
    return sorted(({**row, "run_id": models[row["run_id"]]} for row in table.to_pylist()), key=repr)
