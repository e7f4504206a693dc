"""Training models into tables, and opening any model as a source of scores."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from recbench_spark import training
from recbench_spark.data import worlds
from recbench_spark.data.handed_over import meet, read_embeddings
from recbench_spark.evaluation.ranking import sources
from recbench_spark.schemas import EMBEDDINGS, ITEMS, SIMILARITIES, SPLITS
from recbench_spark.sharing import scratch_folder, share
from recbench_spark.steps.night import Night, model_key
from recbench_spark.store import Store


def train(night: Night, model: Any) -> bool:
    """Train what is trained here, into `embeddings` or `similarities`; True if anything was done."""
    key = model_key(night, model)
    trainers = {"popular": _popular, "als": _als, "item_knn": _item_knn, "truth": _truth}
    if model.kind not in trainers:
        return False
    if any(night.store.has(table, "model_id", key) for table in (EMBEDDINGS, SIMILARITIES)):
        return False
    _append_model(night.store, trainers[model.kind](night, model), key)
    return True


def _append_model(store: Store, trained: training.Trained, key: str) -> None:
    """Both sides of a model in one commit: a killed run leaves no half of it behind."""
    sides = [
        frame.withColumnRenamed(f"{side}_id", "id").withColumn("side", F.lit(side))
        for side, frame in (("user", trained.users), ("item", trained.items))
        if frame is not None
    ]
    if sides:
        rows = reduce(DataFrame.unionByName, sides).withColumn("model_id", F.lit(key))
        store.append(rows, EMBEDDINGS, once=key)
    if trained.similarities is not None:
        rows = trained.similarities.withColumn("model_id", F.lit(key))
        store.append(rows, SIMILARITIES, once=key)


def train_rows(night: Night) -> DataFrame:
    """The training part: user_id, item_id, rating."""
    return night.table(SPLITS).where("part = 'train'").select("user_id", "item_id", "rating")


def _popular(night: Night, model: Any) -> training.Trained:
    return training.train_popular(night.table(ITEMS))


def _als(night: Night, model: Any) -> training.Trained:
    scratch = scratch_folder(night.store)
    threshold = night.definition.threshold
    trained = training.train_als(train_rows(night), night.table(ITEMS), model, threshold, scratch)
    return _with_folded_users(night, model, trained)


def _with_folded_users(night: Night, model: Any, trained: training.Trained) -> training.Trained:
    """Vectors also of users held out from training, from the rows given of them."""
    held_out = night.benchmark.split.held_out
    if not (held_out and held_out.of == "users"):
        return trained
    assert trained.users is not None
    given = night.table(SPLITS).where("part = 'given'").select("user_id", "item_id", "rating")
    threshold, scratch = night.definition.threshold, scratch_folder(night.store)
    folded = training.fold_in(given, trained, night.table(ITEMS), model, threshold, scratch)
    return replace(trained, users=trained.users.unionByName(folded))


def _item_knn(night: Night, model: Any) -> training.Trained:
    scratch = scratch_folder(night.store)
    threshold = night.definition.threshold
    return training.train_item_knn(train_rows(night), night.table(ITEMS), model, threshold, scratch)


def _truth(night: Night, model: Any) -> training.Trained:
    users, items = worlds.true_factors(night.spark, night.benchmark.dataset.world)
    return training.Trained(users=users, items=items)


def open_model(night: Night, model: Any) -> tuple[sources.Source, DataFrame | None]:
    """The item side as shared rows, and the user vectors where there are any."""
    items = night.table(ITEMS)
    if model.kind == "random":
        return _hash_source(night, items, model.seed), None
    if model.kind == "item_knn":
        return _neighbour_source(night, model, items), None
    users, vectors, kind = _vectors(night, model)
    source = _dot_source(night, items, vectors, kind, model.name)
    return source, users if source.dims else None


def _vectors(night: Night, model: Any) -> tuple[DataFrame, DataFrame, str]:
    if model.kind == "embeddings":
        users, vectors = read_embeddings(night.spark, model.users, model.items)
        return users, vectors, model.similarity
    rows = night.store.read(EMBEDDINGS).where(F.col("model_id") == model_key(night, model))
    users, vectors = (
        rows.where(F.col("side") == side).select(F.col("id").alias(f"{side}_id"), "vector", "bias")
        for side in ("user", "item")
    )
    return users.drop("bias"), vectors, "dot"


def _dot_source(
    night: Night, items: DataFrame, vectors: DataFrame, kind: str, name: str
) -> sources.DotSource:
    dims = sources.dimensions(vectors, f"model {name}")
    meet(vectors, items, "item_id", (f"model {name}", "catalogue"))
    shared = share(night.store, sources.vector_rows(items, vectors))
    return sources.DotSource(shared, night.n_items, dims, kind)  # type: ignore[arg-type]


def _hash_source(night: Night, items: DataFrame, seed: int) -> sources.HashSource:
    shared = share(night.store, items.select("item_index", "item_id"))
    return sources.HashSource(shared, night.n_items, seed)


def _neighbour_source(night: Night, model: Any, items: DataFrame) -> sources.NeighbourSource:
    rows = night.store.read(SIMILARITIES).where(F.col("model_id") == model_key(night, model))
    centred = model.scores == "centred_mean"
    means = training.item_means(train_rows(night), night.definition.threshold) if centred else None
    shared = share(night.store, sources.neighbour_rows(items, rows, means))
    return sources.NeighbourSource(shared, night.n_items)
