"""Item-kNN over all items; each task computes the neighbours of a block of items."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from recbench_spark.config import ItemKnnModel
from recbench_spark.evaluation.ranking import sources
from recbench_spark.evaluation.ranking.known_items import KnownItems
from recbench_spark.evaluation.ranking.source_rows import neighbour_rows
from recbench_spark.kernels.streams import Batches
from recbench_spark.models import item_knn
from recbench_spark.storage import shared_arrays
from recbench_spark.storage.frame_blocks import FrameBlocks
from recbench_spark.storage.shared_arrays import SharedRows
from recbench_spark.storage.shared_rows import share_rows, write_parquet
from recbench_spark.training.model_adapter import ModelAdapter, SplitData, Trained

ITEMS_A_TASK = 512
"""Items whose neighbours are computed together; this bounds a task's block of the product."""

HISTORIES = T.StructType([T.StructField("items", T.ArrayType(T.IntegerType()))])
COUNTS = T.StructType([T.StructField("item_id", T.StringType()), T.StructField("users", T.LongType())])


class ItemKnnAdapter(ModelAdapter[ItemKnnModel]):
    """Adapter of item-kNN: the most similar items of each item; users are known by their items alone."""

    folds_prefixes: ClassVar[bool] = True

    def fit(self, data: SplitData) -> Trained:
        """Compute the neighbours of all items; see `train_item_knn`."""
        known, longest = data.training_catalogue, self.settings.max_history
        cut = partial(item_knn.cut_histories, find=known.find, threshold=data.threshold, longest=longest)
        histories = data.open_by_user(item_knn.COLUMNS, cut, HISTORIES).rows()
        return train_item_knn(histories, known, self.settings, data.scratch_folder())

    def source(self, trained: Trained, data: SplitData) -> sources.NeighbourSource:
        """Return the neighbours of each item and their weights."""
        assert trained.similarities is not None
        means = None
        if self.settings.scores == "centred_mean":
            count = partial(item_knn.count_item_users, threshold=data.threshold)
            means = item_means(data.open_by_user(item_knn.COLUMNS, count, COUNTS))
        rows = neighbour_rows(data.items, trained.similarities, means)
        return sources.NeighbourSource(share_rows(data.store.scratch, rows), data.n_items)


def train_item_knn(histories: DataFrame, known: KnownItems, model: ItemKnnModel, scratch: str) -> Trained:
    """Compute cosine item-kNN from histories (`models.item_knn.cut_histories`).

    The user x item matrix is written once and mapped by every worker. A task multiplies the rows of its
    items with the matrix and selects the neighbours.

    Args:
        histories: items (indices) of each user.
        known: the items.
        model: number of neighbours, and if weights are scaled to sum to 1.
        scratch: folder that all executors can read; must not exist yet.
    """
    shared = SharedRows(Path(scratch).name, write_parquet(histories, scratch))
    blocks = histories.sparkSession.range(
        0, known.n_items, ITEMS_A_TASK, numPartitions=-(-known.n_items // ITEMS_A_TASK)
    )
    task = partial(_find_neighbours, shared=shared, known=known, model=model)
    return Trained(
        similarities=blocks.mapInArrow(task, "item_id STRING, neighbour_id STRING, weight DOUBLE")
    )


def item_means(counts: FrameBlocks) -> DataFrame:
    """Return item_id, mean: the share of all users with a relevant training row of the item.

    One row per task and item is shuffled. The driver receives a number per task.

    Args:
        counts: results of `models.item_knn.count_item_users`.
    """
    users = sum(counts.each(_count_users))
    rows = counts.rows().where("item_id IS NOT NULL").groupBy("item_id")
    return rows.agg((F.sum("users") / F.lit(users)).alias("mean"))


def _count_users(counts: pa.Table) -> int:
    return int(pc.sum(counts.filter(pc.is_null(counts.column("item_id"))).column("users")).as_py())


def _find_neighbours(
    batches: Batches, shared: SharedRows, known: KnownItems, model: ItemKnnModel
) -> Batches:
    matrix = shared.arrays(partial(_write_matrix, n_items=known.n_items))
    ids = known.ids()
    for batch in batches:
        for start in batch.column(0).to_pylist():
            block = range(start, min(start + ITEMS_A_TASK, known.n_items))
            similar = item_knn.find_neighbours(matrix, known.n_items, block, model)
            yield item_knn.name_neighbours(similar, ids)


def _write_matrix(rows: ds.Dataset, folder: Path, n_items: int) -> None:
    histories = rows.to_table(columns=["items"]).column("items").combine_chunks()
    for name, array in item_knn.build_matrix(histories, n_items).items():
        shared_arrays.save_array(folder, name, array)
