"""SASRec, GRU4Rec and MemN2N in a night: users' items in the order of time become vectors.

The fit runs in the driver's process, which holds the network and 12 bytes per training row (MemN2N: 28; for
a short time, when the fit begins, about 40). Tasks order the rows of users and write them as Parquet. After
the fit, tasks compute the vector of each user by a forward pass of its history, one user after the other,
and write them as Parquet. So the vector of a user does not depend on partitions or on other users. A killed
fit goes on from its checkpoint, with the same bits.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import ClassVar, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from recbench_spark.errors import DataError
from recbench_spark.evaluation.ranking.sources import Source
from recbench_spark.indexing import add_dense_index
from recbench_spark.kernels.threads import use_one_thread
from recbench_spark.models.memn2n import MemN2NModel
from recbench_spark.models.networks.explanations import Explanation, explain_history
from recbench_spark.models.networks.fitting import fit
from recbench_spark.models.networks.sequence_tasks import SequenceTask, embed_history, read_length
from recbench_spark.models.networks.sequences import Indices, Sequences
from recbench_spark.models.networks.settings import SequenceModelConfig
from recbench_spark.protocol.labels import HISTORY
from recbench_spark.runtime.journal import Journal
from recbench_spark.schemas import SPLITS
from recbench_spark.storage.blocks import Rows
from recbench_spark.storage.host_files import copy_file_to_object, digest_content
from recbench_spark.storage.shared_arrays import SharedRows, flatten_lists
from recbench_spark.storage.shared_rows import load_parquet, share_rows
from recbench_spark.storage.uris import join_uri
from recbench_spark.training.factor_models import find_journal, fit_folder, with_vectors
from recbench_spark.training.frames import ItemTable
from recbench_spark.training.kept_weights import WEIGHTS_FILE, has_weights, keep_weights
from recbench_spark.training.model_adapter import ModelAdapter, SplitData, Trained
from recbench_spark.training.sequence_fold_in import FittedNetwork, HistoryFoldIn, find_network
from recbench_spark.training.sequences import count_order, order_items, require_times

BooleanArray = npt.NDArray[np.bool_]

CHECKPOINT = "checkpoints/best.safetensors"
"""File of a fit's folder with the weights of the best epoch."""


class SequenceAdapter(ModelAdapter[SequenceModelConfig]):
    """Adapter of models that read users' items in the order of time."""

    needs_files: ClassVar[bool] = True
    keeps_checkpoints: ClassVar[bool] = True
    folds_prefixes: ClassVar[bool] = True

    def fit(self, data: SplitData) -> Trained:
        """Fit the network; then compute the vectors of users with training or given rows."""
        settings, journal = self.settings, find_journal(data)
        folder = fit_folder(data, 1)
        known = data.choose_items(settings)
        sequences = write_sequences(data, settings, known, journal)
        task = SequenceTask(sequences, settings)
        result = fit(task, settings.plan(), folder / "checkpoints", lambda text: journal.say(f"  {text}"))
        journal.say(f"  best epoch {result.best}, validation ndcg@10 {result.worth:.5f}; {result.stopped}")
        shutil.copyfile(folder / CHECKPOINT, folder / WEIGHTS_FILE)
        network = FittedNetwork(settings, sequences.items, *share_weights(data, folder / WEIGHTS_FILE))
        histories = list_histories(data, settings, known.rows)
        listed = np.bincount(sequences.item, minlength=sequences.items) > 0
        return Trained(
            embed_users(histories, network, data.store.scratch),
            make_item_rows(data, known.rows, task, listed),
            explanations=explain_users(
                histories, data, network, known.rows, unlisted=np.flatnonzero(~listed)
            ),
        )

    def rank_users(self, trained: Trained, source: Source, data: SplitData) -> Rows | None:
        """Return user_id, vector: the fit gave vectors to held-out users as well."""
        return cast("Rows | None", self.users(trained, source))

    def saved(self, data: SplitData) -> bool:
        """Return true if the model has its vectors, and the weights that fold users in."""
        return super().saved(data) and has_weights(data, self.key(data))

    def save(self, trained: Trained, data: SplitData) -> None:
        """Append to `embeddings` and `explanations`, and publish the weights."""
        keep_weights(data, self.key(data), partial(super().save, trained, data))

    def make_fold_in(self, data: SplitData) -> HistoryFoldIn:
        """Return the network of the fit, which reads each prefix."""
        known = data.choose_items(self.settings)
        network = find_network(data, self.key(data), self.settings, known.size)
        return HistoryFoldIn(network, data.threshold, share_places(data, known))


def share_places(data: SplitData, known: ItemTable) -> SharedRows | None:
    """Share item_index and place in the network's tables of each item; None where they are equal."""
    if known.size == data.n_items:
        return None
    places = known.rows.select("item_id", F.col("item_index").alias("place"))
    rows = data.items.select("item_id", "item_index").join(places, "item_id")
    return share_rows(data.store.scratch, rows.select("item_index", "place"))


def write_sequences(
    data: SplitData, settings: SequenceModelConfig, known: ItemTable, journal: Journal
) -> Sequences:
    """Order the training rows in tasks, say how well times order them, and read them in this process.

    Raises:
        DataError: rows without a time, or no relevant training rows.
    """
    require_times(data.read_times("train", "given", "valid"), settings.name, settings.kind)
    ordered = order_items(data.read_times("train"), known.rows)
    shared = share_rows(data.store.scratch, add_dense_index(ordered, F.col("user_id"), "user_index"))
    facts = count_order(load_parquet(data.spark, *shared.files), read_length(settings))
    if not facts.users:
        raise DataError("no training rows are relevant", "lower the relevance threshold")
    journal.say(
        f"model {settings.name}: histories of {facts.users:,} users; {facts.tied:,} have several items of "
        f"their last time and {facts.still:,} of one time alone, in the order of ids; {facts.longer:,} "
        f"have more than the {read_length(settings):,} items that are read"
    )
    table = shared.dataset().to_table(columns=["user_index", "items"]).sort_by("user_index")
    offsets, items = flatten_lists(table.column("items").combine_chunks())
    return Sequences(known.size, offsets.astype(np.int64), items.astype(np.int32))


def list_histories(data: SplitData, settings: SequenceModelConfig, items: DataFrame) -> DataFrame:
    """Return user_id, items of all users with training or given rows, as they are shown at the ranking.

    Items without relevant training rows are left out: nothing of them was learnt.

    Raises:
        DataError: rows of the part valid are to be shown, and there are none.
    """
    parts = (*HISTORY, "valid") if settings.shows_validation else HISTORY
    if settings.shows_validation and data.read_times("valid").isEmpty():
        raise DataError(
            f"model {settings.name}: history 'with_valid', and no relevant row is in the part valid",
            "history: train, or a split with a part valid",
        )
    learnt = data.read_times("train").select("item_id").distinct()
    shown = data.read_times(*parts).join(learnt, "item_id", "left_semi")
    return order_items(shown, items).select("user_id", "items")


def make_item_rows(
    data: SplitData, items: DataFrame, task: SequenceTask, listed: BooleanArray
) -> DataFrame:
    """Return item_id, vector, bias of items with training rows; the others have no place in a list.

    Args:
        data: the split.
        items: item_id, item_index in the tables of the network.
        task: the task after the fit.
        listed: (items,) true for items with relevant training rows.
    """
    with torch.no_grad():
        vectors, biases = task.network.item_vectors().numpy(), task.network.item_biases()
    own = None if biases is None else biases.detach().numpy()
    return with_vectors(data, "item", items, vectors, chosen=np.flatnonzero(listed), biases=own)


def share_weights(data: SplitData, path: Path) -> tuple[str, int, str]:
    """Copy the weights to where all tasks see them; return place, bytes and digest."""
    place = join_uri(data.scratch_folder(), path.name)
    copy_file_to_object(path, place)
    return place, path.stat().st_size, digest_content(path)


# ------------------------------------------------------------------------------- vectors of users


def embed_users(histories: DataFrame, network: FittedNetwork, scratch: str) -> DataFrame:
    """Return user_id, vector, bias of users, computed in tasks and written to scratch.

    A task holds the network and one batch of histories.

    Args:
        histories: user_id, items.
        network: the fitted network.
        scratch: place of rows that all tasks can read.
    """
    vectors = histories.mapInArrow(make_embedding_task(network), "user_id STRING, vector ARRAY<FLOAT>")
    rows = load_parquet(histories.sparkSession, *share_rows(scratch, vectors).files)
    return rows.select("user_id", "vector", F.lit(0.0).alias("bias"))


def make_embedding_task(network: FittedNetwork):  # type: ignore[no-untyped-def]
    """Return a function over batches of user_id, items that computes vectors."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        opened, length = None, read_length(network.settings)
        for batch in batches:
            opened = network.open() if opened is None else opened
            offsets, items = flatten_lists(batch.column("items"))
            with use_one_thread():
                rows = [
                    embed_history(opened, items[max(begin, end - length) : end].astype(np.int64) + 1)
                    for begin, end in pairwise(offsets.tolist())
                ]
            yield pa.RecordBatch.from_arrays(
                [batch.column("user_id"), pa.array(rows, pa.list_(pa.float32()))], ["user_id", "vector"]
            )

    return run


def explain_users(
    histories: DataFrame, data: SplitData, network: FittedNetwork, items: DataFrame, *, unlisted: Indices
) -> DataFrame | None:
    """Return rows of `explanations` of the users that the settings list; None for models without attention.

    Users with less than two items have no memory and no rows, and the journal counts them. A task holds
    the network and the weights of one user.

    Args:
        histories: user_id, items.
        data: the split.
        network: the fitted network.
        items: item_id, item_index in the tables of the network.
        unlisted: items that have no place in a list.
    """
    settings = network.settings
    if not isinstance(settings, MemN2NModel) or not settings.explain:
        return None
    is_wanted = F.col("user_id").isin(*settings.explain)
    histories = histories.where(is_wanted & (F.size("items") > 1))
    users, explained = len(set(settings.explain)), histories.count()
    if explained < users:
        find_journal(data).say(f"  explain: {users - explained} of {users} users have no memory")
    names = items.select("item_id", "item_index")
    known = data.table(SPLITS).where(is_wanted & F.col("part").isin(*HISTORY)).join(names, "item_id")
    owned = known.groupBy("user_id").agg(F.collect_set("item_index").alias("owned"))
    rows = histories.join(owned, "user_id", "left").mapInArrow(
        make_explaining_task(network, unlisted), EXPLAINED
    )
    best = names.select(F.col("item_id").alias("best_item_id"), F.col("item_index").alias("best_index"))
    return rows.join(names, "item_index").join(best, "best_index").drop("item_index", "best_index")


EXPLAINED = (
    "user_id STRING, best_index INT, item_index INT, place INT, hop INT, weight DOUBLE, score_change DOUBLE"
)
"""Columns of explanations before items have their ids."""


def make_explaining_task(network: FittedNetwork, unlisted: Indices):  # type: ignore[no-untyped-def]
    """Return a function over batches of user_id, items, owned that explains the best item of each user.

    It is the best one of those that the user does not have and that are not `unlisted`. A user who has all
    of them has no rows.
    """

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        opened, length = None, read_length(network.settings)
        for batch in batches:
            opened = network.open() if opened is None else opened
            for row in batch.to_pylist():
                items, read = row["items"], row["items"][-length:]
                barred = np.unique([*unlisted, *items, *(row["owned"] or ())]).astype(np.int64)
                if len(barred) < network.items:
                    with use_one_thread():
                        explained = explain_history(opened, np.array(read) + 1, barred)
                    yield make_explanation_rows(row["user_id"], read, explained)

    return run


def make_explanation_rows(user: str, items: list[int], explained: Explanation) -> pa.RecordBatch:
    """Return the rows of one user: the memory from the newest item on, hop after hop."""
    hops, n = explained.weight.shape
    memory = np.array(items[:-1][::-1], np.int32)
    columns = {
        "user_id": pa.array([user] * (hops * n), pa.string()),
        "best_index": np.full(hops * n, explained.best, np.int32),
        "item_index": np.tile(memory, hops),
        "place": np.tile(np.arange(n, dtype=np.int32), hops),
        "hop": np.repeat(np.arange(1, hops + 1, dtype=np.int32), n),
        "weight": explained.weight.reshape(-1).astype(np.float64),
        "score_change": np.tile(explained.score_change.astype(np.float64), hops),
    }
    arrays = [column if isinstance(column, pa.Array) else pa.array(column) for column in columns.values()]
    return pa.RecordBatch.from_arrays(arrays, list(columns))
