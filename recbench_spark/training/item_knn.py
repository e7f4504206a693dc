"""Item-kNN over all items; each task computes the neighbours of a block of items."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from recbench_spark.config import ItemKnnModel
from recbench_spark.evaluation.ranking import sources
from recbench_spark.evaluation.ranking.source_rows import neighbour_rows
from recbench_spark.models.item_knn import binary_matrix, cosine_neighbours, normalise_weights
from recbench_spark.storage import shared_arrays
from recbench_spark.storage.shared_arrays import Arrays, SharedRows
from recbench_spark.storage.shared_rows import share_rows, write_parquet
from recbench_spark.training.model_adapter import ModelAdapter, SplitData, Trained, keep_relevant

ITEMS_A_TASK = 512
"""Items whose neighbours are computed together; this bounds a task's block of the product."""


class ItemKnnAdapter(ModelAdapter[ItemKnnModel]):
    """Adapter of item-kNN: the most similar items of each item; users are known by their items alone."""

    folds_prefixes: ClassVar[bool] = True

    def fit(self, data: SplitData) -> Trained:
        """Compute the neighbours of all items; see `train_item_knn`."""
        scratch = data.scratch_folder()
        known = data.training_items.rows
        return train_item_knn(data.train_rows, known, self.settings, data.threshold, scratch)

    def source(self, trained: Trained, data: SplitData) -> sources.NeighbourSource:
        """Return the neighbours of each item and their weights."""
        assert trained.similarities is not None
        centred = self.settings.scores == "centred_mean"
        means = item_means(data.train_rows, data.threshold) if centred else None
        rows = neighbour_rows(data.items, trained.similarities, means)
        return sources.NeighbourSource(share_rows(data.store.scratch, rows), data.n_items)


def train_item_knn(
    train: DataFrame, items: DataFrame, model: ItemKnnModel, threshold: float | None, scratch: str
) -> Trained:
    """Compute cosine item-kNN on relevant rows; a hash of the user cuts histories at `max_history` items.

    The user x item matrix is written once and mapped by every worker. A task multiplies the rows of its
    items with the matrix and selects the neighbours; only the rows of the matrix are shuffled.

    Args:
        train: user_id, item_id, rating.
        items: item_id, item_index.
        model: number of neighbours, longest history, and if weights are scaled to sum to 1.
        threshold: lowest rating of a relevant row.
        scratch: folder that all executors can read; must not exist yet.
    """
    spark = train.sparkSession
    histories = _collect_histories(keep_relevant(train, threshold), items, model.max_history)
    shared = SharedRows(Path(scratch).name, write_parquet(histories, scratch))
    n_items = items.count()
    blocks = spark.range(0, n_items, ITEMS_A_TASK, numPartitions=-(-n_items // ITEMS_A_TASK))
    neighbours = blocks.mapInArrow(_neighbour_task(shared, n_items, model), _NEIGHBOURS)
    return Trained(similarities=_with_ids(neighbours, items))


def item_means(train: DataFrame, threshold: float | None) -> DataFrame:
    """Return item_id, mean: the share of all users with a relevant training row of the item.

    Two shuffles: of distinct users, and of one row per item. The driver receives one number.
    """
    rows = keep_relevant(train, threshold)
    users = rows.select("user_id").distinct().count()
    return rows.groupBy("item_id").agg((F.count_distinct("user_id") / users).alias("mean"))


_NEIGHBOURS = "item INT, neighbour INT, weight DOUBLE"


def _collect_histories(rows: DataFrame, items: DataFrame, longest: int) -> DataFrame:
    indexed = rows.join(items.select("item_id", "item_index"), "item_id")
    entry = F.struct(F.xxhash64("user_id", "item_id").alias("key"), F.col("item_index").alias("item"))
    history = F.slice(F.sort_array(F.collect_list(entry)), 1, longest)
    histories = indexed.groupBy("user_id").agg(history.alias("history"))
    return histories.select(F.sort_array("history.item").alias("items"))


def _neighbour_task(shared: SharedRows, n_items: int, model: ItemKnnModel):  # type: ignore[no-untyped-def]
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        arrays = shared.arrays(lambda rows, folder: _build_matrix(rows, folder, n_items))
        items_of_u = binary_matrix(arrays["indptr"], arrays["indices"], n_items)
        users_of_i = binary_matrix(arrays["indptr_t"], arrays["indices_t"], len(arrays["indptr"]) - 1)
        n_i = np.diff(arrays["indptr_t"])
        for batch in batches:
            for start in batch.column(0).to_pylist():
                block = range(start, min(start + ITEMS_A_TASK, n_items))
                neighbours = cosine_neighbours(users_of_i, items_of_u, n_i, block, model.neighbours)
                if model.scores == "centred_mean":
                    neighbours = normalise_weights(neighbours)
                columns = [
                    pa.array(neighbours.items, pa.int32()),
                    pa.array(neighbours.neighbours, pa.int32()),
                    pa.array(neighbours.weights),
                ]
                yield pa.RecordBatch.from_arrays(columns, ["item", "neighbour", "weight"])

    return run


def _build_matrix(rows: ds.Dataset, folder: Path, n_items: int) -> None:
    """Write the user x item matrix and its transpose as CSR arrays: 4 bytes per interaction each."""
    lists = rows.to_table(columns=["items"]).column("items").combine_chunks()
    indptr, indices = shared_arrays.flatten_lists(lists)
    transposed = binary_matrix(indptr, indices.astype(np.int32), n_items).tocsc()
    matrix: Arrays = {
        "indptr": indptr,
        "indices": indices.astype(np.int32),
        "indptr_t": transposed.indptr.astype(np.int64),
        "indices_t": transposed.indices.astype(np.int32),
    }
    for name, array in matrix.items():
        shared_arrays.save_array(folder, name, array)


def _with_ids(neighbours: DataFrame, items: DataFrame) -> DataFrame:
    of_item = items.select(F.col("item_index").alias("item"), "item_id")
    of_neighbour = items.select(
        F.col("item_index").alias("neighbour"), F.col("item_id").alias("neighbour_id")
    )
    named = neighbours.join(of_item, "item").join(of_neighbour, "neighbour")
    return named.select("item_id", "neighbour_id", "weight")
