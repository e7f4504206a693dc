"""MF-BPR and LightGCN in a night: pairs of the training part become vectors of users and items.

The fit runs in the driver's process, or in `processes` on its host or under tasks of Spark. Each process
holds 4 bytes per pair for each of the two directions, the vectors and Adam's moments. Tasks write pairs
as Parquet; vectors return as Parquet, block by block. A fit that was killed goes on from its checkpoint,
with the same bits as one that was not. With a warehouse on object storage checkpoints lie on the disk of
the driver's host, and copies of them in the warehouse (`checkpoint_copies`).
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from recbench_spark.errors import DataError, StoreError
from recbench_spark.indexing import add_dense_index
from recbench_spark.models.fold_in_settings import FoldInSettings, make_ridge_fold_in, require_fold_in
from recbench_spark.models.lightgcn import LightGcnModel
from recbench_spark.models.mf_bpr import MfBprModel
from recbench_spark.models.networks.factors import (
    FactorNetwork,
    FactorTask,
    UserItemPairs,
    make_pairs,
    split_pairs,
)
from recbench_spark.models.networks.fitting import Report, Task, WatchedTask
from recbench_spark.runtime.journal import Journal
from recbench_spark.runtime.session import cache_frame
from recbench_spark.storage.block_arrays import map_file
from recbench_spark.storage.objects import open_output
from recbench_spark.storage.shared_arrays import replace_array
from recbench_spark.storage.shared_rows import load_parquet, share_rows
from recbench_spark.storage.uris import join_uri
from recbench_spark.training.frames import ItemTable, keep_relevant
from recbench_spark.training.model_adapter import ModelAdapter, SplitData, Trained
from recbench_spark.training.multiprocess_fit import fit_as_configured, require_common_folder

ROWS_A_BATCH = 1 << 14

PAIRS, TEST = "pairs_by_user", "test_by_user"
"""Subfolders of a fit's folder that all its processes read."""

Settings = MfBprModel | LightGcnModel


class FactorAdapter(ModelAdapter[Any]):
    """Adapter of MF-BPR and LightGCN: vectors of users and items."""

    needs_files: ClassVar[bool] = True
    keeps_checkpoints: ClassVar[bool] = True
    folds_prefixes: ClassVar[bool] = True

    def fit(self, data: SplitData) -> Trained:
        """Fit the vectors; see the module for the way of the data."""
        settings: Settings = self.settings
        say = find_journal(data).say
        folder = fit_folder(data, settings.processes)
        known = data.choose_items(settings)
        pairs, users = read_pairs(data, known)
        say(f"model {settings.name}: {len(pairs.item):,} pairs of {pairs.users:,} users")
        test = read_test_pairs(data, known, users, pairs) if settings.watch else None
        final = fit_factors(pairs, settings, folder, lambda text: say(f"  {text}"), test)
        seen = np.flatnonzero(np.bincount(pairs.item, minlength=pairs.items))
        items = with_vectors(data, "item", known.rows, final[pairs.users :], chosen=seen)
        return Trained(with_vectors(data, "user", users, final[: pairs.users]), items)

    def check_prefixes(self) -> None:
        """Check that the file says how users are folded in. Raises ConfigError."""
        require_fold_in(self.settings.name, self.settings.fold_in)

    def make_fold_in(self, data: SplitData) -> FoldInSettings:
        """Return a ridge regression on the final item vectors."""
        return make_ridge_fold_in(
            require_fold_in(self.settings.name, self.settings.fold_in), data.threshold
        )


def find_journal(data: SplitData) -> Journal:
    """Return the journal of the night, or a new one."""
    return getattr(data, "journal", None) or Journal()


def fit_folder(data: SplitData, processes: int) -> Path:
    """Return the work folder of a fit. It belongs to this run alone, and survives if the run is killed.

    Args:
        data: the split, with the lease of the fit.
        processes: number of processes; all of them must see the folder.

    Raises:
        StoreError: the warehouse is a catalog where Spark writes, or a host of the fit's
            processes does not see the folder.
    """
    if data.lease is None:
        raise StoreError(
            f"{data.store.root} is neither a folder nor an object storage, and a fit needs one",
            "--warehouse must be a folder that the driver and all workers see, or s3://, gs://, abfss://, hdfs://",
        )
    require_common_folder(data.lease.work, processes)
    return data.lease.work


def collect_rows(data: SplitData, rows: DataFrame) -> pa.Table:
    """Return rows in this process; tasks write them to files, which it reads."""
    return share_rows(data.store.scratch, rows).dataset().to_table()


def read_pairs(data: SplitData, known: ItemTable) -> tuple[UserItemPairs, DataFrame]:
    """Return relevant training pairs by dense index, and user_id, user_index of their users."""
    rows = keep_relevant(data.train_rows, data.threshold).select("user_id", "item_id").distinct()
    users = cache_frame(add_dense_index(rows.select("user_id").distinct(), F.col("user_id"), "user_index"))
    user_e, item_e = index_pairs(data, rows, users, known)
    if not len(user_e):
        raise DataError("no training rows are relevant", "lower the relevance threshold")
    return make_pairs(user_e, item_e, users.count(), known.size), users


def read_test_pairs(
    data: SplitData, known: ItemTable, users: DataFrame, pairs: UserItemPairs
) -> UserItemPairs:
    """Return relevant test pairs of users with training rows, for `watch` alone."""
    rows = keep_relevant(data.test_rows, data.threshold).select("user_id", "item_id").distinct()
    return make_pairs(*index_pairs(data, rows, users, known), pairs.users, pairs.items)


def index_pairs(data: SplitData, rows: DataFrame, users: DataFrame, known: ItemTable) -> tuple[Any, Any]:
    """Return dense indices of users and of items; pairs of other users or items are left out."""
    pairs = rows.join(users, "user_id").join(known.rows.select("item_id", "item_index"), "item_id")
    table = collect_rows(data, pairs.select("user_index", "item_index"))
    return table.column("user_index").to_numpy(), table.column("item_index").to_numpy()


def fit_factors(
    pairs: UserItemPairs,
    settings: Settings,
    folder: Path,
    report: Report,
    test: UserItemPairs | None = None,
) -> np.ndarray:
    """Return (users + items, dims) vectors of the epoch with the best validation score.

    Args:
        pairs: training pairs.
        settings: settings of the model.
        folder: folder of the fit, seen by all its processes.
        report: called with one line per epoch.
        test: pairs to measure beside the fit; None: none.
    """
    task = factor_task(pairs, settings, test)
    if settings.processes > 1:
        save_pairs(folder / PAIRS, pairs)
        if test is not None:
            save_pairs(folder / TEST, test)
    make = partial(load_task, str(folder.absolute()), settings)
    result = fit_as_configured(settings, task, make, folder / "checkpoints", report)
    report(f"best epoch {result.best}, validation recall@20 {result.worth:.5f}; ended: {result.stopped}")
    with torch.no_grad():
        return cast(FactorNetwork, task.module).final().detach().numpy()


def factor_task(pairs: UserItemPairs, settings: Settings, test: UserItemPairs | None = None) -> Task:
    """Return the task to fit; a part of the pairs is split off for validation."""
    train, held = split_pairs(pairs, settings.validation, settings.seed)
    sparse = not settings.weight_decay
    module = FactorNetwork(
        train, settings.dims, settings.layers, settings.seed, settings.spread, sparse=sparse
    )
    task = FactorTask(train, held, module, settings.penalty, settings.negatives, groups=settings.groups)
    if test is None:
        return task
    return WatchedTask(task, "recall@20", FactorTask(pairs, test, module, 0.0).worth)


def load_task(folder: str, settings: Settings) -> Task:
    """Return the same task in another process, from the pairs that the driver wrote to the fit's folder."""
    test = load_pairs(Path(folder, TEST)) if settings.watch else None
    return factor_task(load_pairs(Path(folder, PAIRS)), settings, test)


def save_pairs(folder: Path, pairs: UserItemPairs) -> None:
    """Write pairs as `.npy` files for other processes."""
    replace_array(folder / "size.npy", np.array([pairs.users, pairs.items]))
    replace_array(folder / "indptr.npy", pairs.indptr)
    replace_array(folder / "item.npy", pairs.item)


def load_pairs(folder: Path) -> UserItemPairs:
    """Map the pairs that `save_pairs` wrote."""
    users, items = map_file(folder / "size.npy").tolist()
    return UserItemPairs(users, items, map_file(folder / "indptr.npy"), map_file(folder / "item.npy"))


def with_vectors(
    data: SplitData, name: str, ids: DataFrame, rows: np.ndarray, *, chosen: Any = None, biases: Any = None
) -> DataFrame:
    """Return `NAME_id`, vector, bias, read from a Parquet file of scratch that all executors see.

    Args:
        data: the split.
        name: user or item.
        ids: `NAME_id`, `NAME_index`.
        rows: (n, d) vectors by index.
        chosen: (k,) indices that have a vector; None: all. Items without training rows have none.
        biases: (n,) biases by index; None: 0.
    """
    place = join_uri(data.scratch_folder(), f"{name}s.parquet")
    write_vectors(place, rows, np.arange(len(rows)) if chosen is None else chosen, biases)
    places = ids.select(f"{name}_id", F.col(f"{name}_index").alias("place"))
    vectors = load_parquet(data.spark, place).join(places, "place")
    return vectors.select(f"{name}_id", "vector", "bias")


def write_vectors(
    file: str, rows: np.ndarray, place_k: np.ndarray, biases: np.ndarray | None = None
) -> None:
    """Write place, vector and bias (None: 0) of some rows to a Parquet file, given by its path or URI."""
    vector = pa.list_(pa.float32())
    schema = pa.schema([("place", pa.int32()), ("vector", vector), ("bias", pa.float64())])
    with open_output(file) as stream, pq.ParquetWriter(stream, schema) as out:
        for begin in range(0, len(place_k), ROWS_A_BATCH):
            chosen = place_k[begin : begin + ROWS_A_BATCH]
            vectors = np.ascontiguousarray(rows[chosen], np.float32)
            n, d = vectors.shape
            offsets = pa.array(np.arange(0, n * d + 1, d, dtype=np.int32))
            lists = pa.ListArray.from_arrays(offsets, pa.array(vectors.reshape(-1)))
            places = pa.array(chosen.astype(np.int32))
            bias = np.zeros(n) if biases is None else biases[chosen].astype(np.float64)
            columns = [places, lists, pa.array(bias)]
            out.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
