"""Models trained here, so that a night has something to stand beside: from training rows to tables.

Every model ends as rows of `embeddings` (vectors and biases) or of `similarities`; what another
system trained is handed over in the same shape and evaluated by the same code.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
from pyspark.ml.recommendation import ALS
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from recbench_spark import shared_files
from recbench_spark.config import AlsModel, ItemKnnModel
from recbench_spark.errors import DataError
from recbench_spark.indexing import dense_index
from recbench_spark.models import fold_in as folding
from recbench_spark.models.item_knn import binary_matrix, cosine_neighbours, scaled_to_one
from recbench_spark.shared_files import Arrays, SharedRows

VECTOR = T.ArrayType(T.FloatType())
ITEMS_A_TASK = 512
"""Items whose neighbours are computed together: bounds a task's block of the product."""


@dataclass(frozen=True)
class Trained:
    """What a model is made of; None where it has no such side."""

    users: DataFrame | None = None
    items: DataFrame | None = None
    similarities: DataFrame | None = None


def relevant(frame: DataFrame, threshold: float | None) -> DataFrame:
    """Rows whose rating makes them relevant."""
    return frame.where(F.col("rating") > 0 if threshold is None else F.col("rating") >= threshold)


def train_popular(items: DataFrame) -> Trained:
    """The number of training interactions as the item's bias; no vectors at all."""
    empty = F.array().cast(VECTOR)
    bias = F.col("n_train").cast("double")
    return Trained(items=items.select("item_id", empty.alias("vector"), bias.alias("bias")))


CHECKPOINT_EVERY = 3
"""Iterations of ALS whose lineage a task deserialises: ten overflow the stack of a small JVM."""


def train_als(
    train: DataFrame, items: DataFrame, model: AlsModel, threshold: float | None, scratch: str
) -> Trained:
    """Alternating least squares by Spark MLlib; implicit: Hu, Koren and Volinsky (ICDM 2008).

    Implicit models see relevant rows, each with preference 1; explicit ones see every rating.

    Args:
        train: user_id, item_id, rating.
        items: item_id, item_index.
        model: rank, iterations ...
        threshold: rating from which a row is relevant.
        scratch: folder all executors can read, for checkpoints.
    """
    rows = relevant(train, threshold).withColumn("rating", F.lit(1.0)) if model.implicit else train
    if rows.limit(1).isEmpty():
        raise DataError(f"model {model.name}: no training rows", "lower the relevance threshold")
    users = dense_index(rows.select("user_id").distinct(), F.col("user_id"), "user_index").cache()
    ratings = rows.join(users, "user_id").join(items.select("item_id", "item_index"), "item_id")
    context = train.sparkSession.sparkContext
    context.setCheckpointDir(scratch)
    blocks = max(2, context.defaultParallelism)
    als = ALS(
        rank=model.rank,
        maxIter=model.iterations,
        regParam=model.regularization,
        alpha=model.alpha,
        implicitPrefs=model.implicit,
        seed=model.seed,
        userCol="user_index",
        itemCol="item_index",
        ratingCol="rating",
        numUserBlocks=blocks,
        numItemBlocks=blocks,
        checkpointInterval=CHECKPOINT_EVERY,
    )
    fitted = als.fit(ratings.select("user_index", "item_index", "rating"))
    return Trained(
        users=_vectors(fitted.userFactors, users, "user"),
        items=_vectors(fitted.itemFactors, items, "item"),
    )


def _vectors(factors: DataFrame, ids: DataFrame, side: str) -> DataFrame:
    found = ids.join(factors, F.col(f"{side}_index") == F.col("id"))
    vector = F.col("features").cast(VECTOR).alias("vector")
    return found.select(f"{side}_id", vector, F.lit(0.0).alias("bias"))


def fold_in(
    given: DataFrame,
    trained: Trained,
    items: DataFrame,
    model: AlsModel,
    threshold: float | None,
    scratch: str,
) -> DataFrame:
    """Vectors of users whom ALS was not trained on, from the rows given of them: one ridge solve each.

    Shuffles the given rows by user; item factors are written once and mapped by every worker. Users of
    whom nothing is given that the model knows get no vector.

    Args:
        given: user_id, item_id, rating of users without training rows.
        trained: what `train_als` found.
        items: item_id, item_index.
        model: rank, regularization, alpha, implicit as trained.
        threshold: rating from which a row is relevant.
        scratch: folder all executors can read; must not exist yet.

    Returns:
        user_id, vector, bias.
    """
    assert trained.items is not None
    factors = trained.items.join(items.select("item_id", "item_index"), "item_id")
    factors.select("item_index", "vector").write.parquet(scratch)
    written = given.sparkSession.read.parquet(scratch)
    shared = SharedRows(Path(scratch).name, tuple(written.inputFiles()))
    rows = relevant(given, threshold).withColumn("rating", F.lit(1.0)) if model.implicit else given
    index = items.join(written.select("item_index"), "item_index").select("item_id", "item_index")
    row = F.struct(F.col("item_index").alias("item"), F.col("rating").alias("rating"))
    found = (
        rows.join(index, "item_id").groupBy("user_id").agg(F.sort_array(F.collect_list(row)).alias("rows"))
    )
    users = found.select(
        "user_id", F.col("rows.item").alias("items"), F.col("rows.rating").alias("ratings")
    )
    task = _fold_task(shared, items.count(), model)
    return users.mapInArrow(task, "user_id STRING, vector ARRAY<FLOAT>, bias DOUBLE")


def _fold_task(shared: SharedRows, n_items: int, model: AlsModel):  # type: ignore[no-untyped-def]
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        arrays = shared.arrays(lambda rows, folder: _build_factors(rows, folder, n_items, model.rank))
        factors_id = np.asarray(arrays["factors"], np.float64)
        for batch in batches:
            offsets, found = shared_files.flat(batch.column("items"))
            ratings = shared_files.flat(batch.column("ratings"))[1]
            if model.implicit:
                settings = (model.regularization, model.alpha)
                vectors_ud = folding.implicit(offsets, found, ratings, factors_id, *settings)
            else:
                vectors_ud = folding.explicit(offsets, found, ratings, factors_id, model.regularization)
            bounds = pa.array(np.arange(0, vectors_ud.size + 1, model.rank), pa.int32())
            vectors = pa.ListArray.from_arrays(bounds, pa.array(vectors_ud.astype(np.float32).ravel()))
            bias = pa.array(np.zeros(batch.num_rows))
            columns = [batch.column("user_id"), vectors, bias]
            yield pa.RecordBatch.from_arrays(columns, ["user_id", "vector", "bias"])

    return run


def _build_factors(rows: ds.Dataset, folder: Path, n_items: int, rank: int) -> None:
    """Item factors by item_index, zeros where training knows no such item: 4 rank bytes an item."""
    factors_id = shared_files.create(folder, "factors", (n_items, rank), np.float32)
    for batch in rows.to_batches(columns=["item_index", "vector"]):
        index = batch.column("item_index").to_numpy()
        factors_id[index] = shared_files.flat(batch.column("vector"))[1].reshape(len(index), rank)


def train_item_knn(
    train: DataFrame, items: DataFrame, model: ItemKnnModel, threshold: float | None, scratch: str
) -> Trained:
    """Cosine item-kNN on relevant rows; histories are cut at `max_history` items, by hash of the user.

    The user x item matrix is written once and mapped by every worker; a task multiplies the rows of
    its items with it and keeps the neighbours: nothing is shuffled but the matrix's own rows.

    Args:
        train: user_id, item_id, rating.
        items: item_id, item_index.
        model: neighbours kept, longest history, whether weights are scaled to sum to 1.
        threshold: rating from which a row is relevant.
        scratch: folder all executors can read; must not exist yet.
    """
    spark = train.sparkSession
    _write_histories(relevant(train, threshold), items, model.max_history, scratch)
    shared = SharedRows(Path(scratch).name, tuple(spark.read.parquet(scratch).inputFiles()))
    n_items = items.count()
    blocks = spark.range(0, n_items, ITEMS_A_TASK, numPartitions=-(-n_items // ITEMS_A_TASK))
    found = blocks.mapInArrow(_neighbour_task(shared, n_items, model), _NEIGHBOURS)
    return Trained(similarities=_with_ids(found, items))


def item_means(train: DataFrame, threshold: float | None) -> DataFrame:
    """item_id, mean: the share of all users with a relevant training row of the item.

    Two shuffles, of distinct users and of one row an item; the driver learns one number.
    """
    rows = relevant(train, threshold)
    users = rows.select("user_id").distinct().count()
    return rows.groupBy("item_id").agg((F.count_distinct("user_id") / users).alias("mean"))


_NEIGHBOURS = "item INT, neighbour INT, weight DOUBLE"


def _write_histories(rows: DataFrame, items: DataFrame, longest: int, folder: str) -> None:
    indexed = rows.join(items.select("item_id", "item_index"), "item_id")
    entry = F.struct(F.xxhash64("user_id", "item_id").alias("key"), F.col("item_index").alias("item"))
    history = F.slice(F.sort_array(F.collect_list(entry)), 1, longest)
    histories = indexed.groupBy("user_id").agg(history.alias("history"))
    histories.select(F.sort_array("history.item").alias("items")).write.parquet(folder)


def _neighbour_task(shared: SharedRows, n_items: int, model: ItemKnnModel):  # type: ignore[no-untyped-def]
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        arrays = shared.arrays(lambda rows, folder: _build_matrix(rows, folder, n_items))
        items_of_u = binary_matrix(arrays["indptr"], arrays["indices"], n_items)
        users_of_i = binary_matrix(arrays["indptr_t"], arrays["indices_t"], len(arrays["indptr"]) - 1)
        n_i = np.diff(arrays["indptr_t"])
        for batch in batches:
            for start in batch.column(0).to_pylist():
                block = range(start, min(start + ITEMS_A_TASK, n_items))
                found = cosine_neighbours(users_of_i, items_of_u, n_i, block, model.neighbours)
                if model.scores == "centred_mean":
                    found = scaled_to_one(found)
                columns = [
                    pa.array(found.items, pa.int32()),
                    pa.array(found.neighbours, pa.int32()),
                    pa.array(found.weights),
                ]
                yield pa.RecordBatch.from_arrays(columns, ["item", "neighbour", "weight"])

    return run


def _build_matrix(rows: ds.Dataset, folder: Path, n_items: int) -> None:
    """The user x item matrix and its transpose as CSR arrays: 4 bytes an interaction each."""
    lists = rows.to_table(columns=["items"]).column("items").combine_chunks()
    indptr, indices = shared_files.flat(lists)
    transposed = binary_matrix(indptr, indices.astype(np.int32), n_items).tocsc()
    matrix: Arrays = {
        "indptr": indptr,
        "indices": indices.astype(np.int32),
        "indptr_t": transposed.indptr.astype(np.int64),
        "indices_t": transposed.indices.astype(np.int32),
    }
    for name, array in matrix.items():
        shared_files.save(folder, name, array)


def _with_ids(found: DataFrame, items: DataFrame) -> DataFrame:
    of_item = items.select(F.col("item_index").alias("item"), "item_id")
    of_neighbour = items.select(
        F.col("item_index").alias("neighbour"), F.col("item_id").alias("neighbour_id")
    )
    named = found.join(of_item, "item").join(of_neighbour, "neighbour")
    return named.select("item_id", "neighbour_id", "weight")
