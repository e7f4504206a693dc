"""The world of `night.py`: models that are vectors, their split, and nights that rank them."""

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
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from jobs.bench.harness import time_call
from jobs.bench.storages import Stage
from recbench_spark import schemas
from recbench_spark.benchmark import run_night
from recbench_spark.config import Benchmark, parse
from recbench_spark.config.models import ModelConfig
from recbench_spark.errors import DataError
from recbench_spark.nightly.batched_evaluation import MODELS_AT_ONCE_SETTING
from recbench_spark.nightly.night import open_night
from recbench_spark.runtime.journal import Journal
from recbench_spark.storage import delta_files
from recbench_spark.storage.objects import read_bytes
from recbench_spark.storage.store import Store
from recbench_spark.training.model_adapter import Behaviour, SplitData, Trained

KNOWN_ITEMS, HELD_OUT_ITEMS, PLANTED_SHARE = 47, 5, 0.3
"""Number of training and held-out items of a user, and the share of held-out vectors in the user's."""

METRICS, KS = ("hit", "precision", "recall", "map", "mrr", "ndcg"), (10, 100)
FIRST_NIGHT = date(2026, 1, 1)


# ------------------------------------------------------------------------------------------- models


KIND = f"{__name__}:StoredFactorsModel"
"""The kind names the module."""


class StoredFactorsModel(ModelConfig):
    """A model of vectors in two files of a folder, for users and items."""

    behaviour: ClassVar[str] = f"{__name__}:StoredFactors"
    kind: Literal[KIND]  # type: ignore[valid-type]
    folder: str


class StoredFactors(Behaviour[StoredFactorsModel]):
    """Vectors that are written to the table `embeddings` on first use, like those of a trained model."""

    def fit(self, data: SplitData) -> Trained:
        """Return the vectors as rows."""
        return Trained(*(self._rows(data.spark, side) for side in ("user", "item")))

    def _rows(self, spark: SparkSession, side: str) -> Any:
        rows = spark.read.parquet(f"{self.settings.folder}/{side}s.parquet")
        return rows.withColumnRenamed("id", f"{side}_id").withColumn("bias", F.lit(0.0))


# ------------------------------------------------------------------------------------------- world


@dataclass(frozen=True)
class NightWorld:
    """The world of the night: a folder of vectors for each model, and (users, n) indices of items."""

    folders: tuple[Path, ...]
    known_un: npt.NDArray[np.int32]
    truth_un: npt.NDArray[np.int32]
    n_items: int


def generate(args: argparse.Namespace, folder: Path) -> NightWorld:
    """Draw random vectors for each model, with users moved towards their held-out items."""
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
            bounds = pa.array(np.arange(len(rows) + 1, dtype=np.int32) * args.dims)
            vectors = pa.ListArray.from_arrays(bounds, pa.array(rows.ravel()))
            ids = pa.array(map(str, range(len(rows))), pa.string())
            pq.write_table(pa.table({"id": ids, "vector": vectors}), place / f"{side}s.parquet")
        folders.append(place)
    return NightWorld(tuple(folders), known, truth, args.items)


def _distinct(draws: np.random.Generator, users: int, items: int, n: int) -> npt.NDArray[np.int64]:
    """Draw n different items for each user: one from each n-th part of the catalogue."""
    return draws.integers(0, items // n, (users, n)) + np.arange(n) * (items // n)


def make_benchmark(args: argparse.Namespace, world: NightWorld) -> Benchmark:
    """Return the benchmark of the night, as a file would declare it."""
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


def store_split(store: Store, night_benchmark: Benchmark, world: NightWorld, folder: Path) -> None:
    """Store user blocks and items as the split of the night, as if they came from a log."""
    split_id = open_night(store, night_benchmark, FIRST_NIGHT).split_id
    columns: dict[str, Any] = {"user": pa.array(np.arange(len(world.truth_un)))}
    for name, rows in (("known", world.known_un), ("truth", world.truth_un)):
        bounds = pa.array(np.arange(len(rows) + 1, dtype=np.int32) * rows.shape[1])
        columns[name] = pa.ListArray.from_arrays(bounds, pa.array(rows.ravel()))
    pq.write_table(pa.table(columns), folder / "blocks.parquet", row_group_size=20_000)
    blocks = store.spark.read.parquet(str(folder / "blocks.parquet"))
    named = F.lit(split_id).alias("split_id")
    store.append(blocks.selectExpr(*BLOCK).select(named, "*"), schemas.USER_BLOCKS)
    items = store.spark.range(world.n_items).selectExpr(*ITEM)
    store.append(items.select(named, "*"), schemas.ITEMS)
    facts = {"split_id": split_id, "fact": "rows", "value": 1.0}
    store.append_rows([{**facts, "part": part} for part in ("train", "test")], schemas.MANIFESTS)


BLOCK = (
    "CAST(user AS STRING) AS user_id",
    "xxhash64(CAST(user AS STRING)) AS user_key",
    "known AS train_items",
    "transform(known, x -> 1.0D) AS train_ratings",
    "map('test', named_struct('item_ids', transform(truth, x -> CAST(x AS STRING)), 'items', truth, "
    "'relevance', transform(truth, x -> 1.0D), 'slices', map())) AS held_out",
)
ITEM = (
    "CAST(id AS STRING) AS item_id",
    "CAST(id AS INT) AS item_index",
    "1L AS n_train",
    "'head' AS popularity",
)


# ------------------------------------------------------------------------------------------- turns


def run_nights(
    store: Store, night_benchmark: Benchmark, days: Any, at_once: str
) -> tuple[float, dict[str, str]]:
    """Run a night; return its seconds and run_ids. Its stages are logged."""
    store.spark.conf.set(MODELS_AT_ONCE_SETTING, at_once)
    day, journal = FIRST_NIGHT + timedelta(days=next(days)), Journal(io.StringIO())
    journal.write_to(name_log(store, day))
    seconds, done = time_call(lambda: run_night(store, night_benchmark, day, journal))
    journal.close()
    if done.failed:
        raise DataError(f"models failed: {done.failed}")
    return seconds, done.run_ids


def name_log(store: Store, day: date) -> str:
    """Return the place of the log of a night."""
    return f"{store.root}/logs/{day}.jsonl"


def read_log(store: Store, day: date) -> list[dict[str, Any]]:
    """Return the rows of the log of a night."""
    return [json.loads(line) for line in (read_bytes(name_log(store, day)) or b"").splitlines()]


def list_stages(store: Store, day: date) -> list[Stage]:
    """Return the stages of a night."""
    stages = []
    for row in read_log(store, day):
        end = datetime.fromisoformat(row["time"]).timestamp()
        stages.append(Stage(row["stage"], end - row.get("seconds", 0.0), end))
    return stages


def read_stages(store: Store, day: date) -> str:
    """Return the seconds of a night by stage, summed over models."""
    seconds: dict[str, float] = {}
    for row in read_log(store, day):
        seconds[row["stage"]] = seconds.get(row["stage"], 0.0) + row.get("seconds", 0.0)
    return ", ".join(f"{stage} {spent:.1f}" for stage, spent in seconds.items() if spent >= 0.05)


def read_metrics(store: Store, runs: dict[str, str]) -> list[Any]:
    """Return the metrics of a night by model, in order."""
    models = {run_id: model for model, run_id in runs.items()}
    table = delta_files.read_rows(store.location("metrics"), [("run_id", "in", list(models))])
    return sorted(({**row, "run_id": models[row["run_id"]]} for row in table.to_pylist()), key=repr)
