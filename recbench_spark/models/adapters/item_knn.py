"""Item-kNN over all items; tasks find neighbours block by block.

Source: Deshpande and Karypis, TOIS 2004. Histories are cut from labelled rows, whole by user; neighbours
come from blocks of items.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from recbench_spark.config import ItemKnnModel
from recbench_spark.core.arrays import Ints, Ints32
from recbench_spark.core.hashed_ids import hash_encoded
from recbench_spark.core.ids import encode_texts
from recbench_spark.models.adapters.model_adapter import ModelAdapter, SplitData, Trained
from recbench_spark.models.nearest_items import SimilarItems, cosine_neighbours
from recbench_spark.ranking.kernels.rankings import mark_relevant
from recbench_spark.ranking.known_items import KnownItems, share_rows
from recbench_spark.ranking.sources import NeighbourSource, Strings
from recbench_spark.splits.kernels.positions import ascending
from recbench_spark.storage import shared_arrays
from recbench_spark.storage.blocks import Blocks, Engine, return_rows
from recbench_spark.storage.scratch import share_results
from recbench_spark.storage.shared_arrays import Arrays, SharedRows, bound_lists, flatten_lists

COLUMNS = ("user_id", "item_id", "rating", "part")
"""Columns of the labelled rows."""

SIMILARITIES = ("item_id", "neighbour_id", "weight")
"""Columns of a fitted model."""

Find = Callable[[pa.Array], tuple[Ints, Ints]]
"""Maps ids to their index or -1, and to a second number (`KnownItems.find`)."""


# ------------------------------------------------------------------------- labelled rows


def cut_histories(rows: pa.Table, find: Find, threshold: float | None, longest: int) -> pa.Table:
    """Return each user's relevant training items, ascending indices.

    A hash of the pairs shortens long histories.

    Args:
        rows: all labelled rows of some users (COLUMNS).
        find: finds items; unknown ones are left out.
        threshold: lowest rating of a relevant row; None: every rating above 0 is relevant.
        longest: most items in a history.
    """
    users, items = _select_pairs(rows, threshold)
    item_r = find(items.dictionary)[0][items.indices.to_numpy()]
    known_r = item_r >= 0
    key_r = hash_encoded(items, hash_encoded(users)).view(np.int64)[known_r]
    _, user_r = np.unique(users.indices.to_numpy()[known_r], return_inverse=True)
    item_r = item_r[known_r]
    order = ascending(user_r, key_r, item_r)
    user_o = user_r[order]
    kept = order[np.arange(len(order)) - np.searchsorted(user_o, user_o) < longest]
    kept = kept[ascending(user_r[kept], item_r[kept])]
    bounds = bound_lists(user_r[kept], int(user_r.max(initial=-1)) + 1)
    return pa.table({"items": pa.ListArray.from_arrays(bounds, pa.array(item_r[kept], pa.int32()))})


def count_item_users(rows: pa.Table, threshold: float | None) -> pa.Table:
    """Count each item's users with a relevant training row.

    Columns are item_id, users; the NULL row counts users of any item. Arguments as in `cut_histories`.
    Counts over different users can be added.
    """
    users, items = _select_pairs(rows, threshold)
    user_r, item_r = users.indices.to_numpy().astype(np.int64), items.indices.to_numpy()
    pairs = np.unique(user_r * len(items.dictionary) + item_r)
    item_x, n_x = np.unique(pairs % max(len(items.dictionary), 1), return_counts=True)
    ids = [items.dictionary.take(pa.array(item_x)), pa.nulls(1, pa.string())]
    counts = np.append(n_x, len(np.unique(user_r))).astype(np.int64)
    return pa.table({"item_id": pa.concat_arrays(ids), "users": pa.array(counts)})


def _select_pairs(rows: pa.Table, threshold: float | None) -> tuple[pa.DictionaryArray, pa.DictionaryArray]:
    """Return user and item of each relevant training row."""
    grades = rows.column("rating").to_numpy()
    of_train = pc.equal(rows.column("part").cast(pa.string()), "train")
    chosen = rows.filter(pc.and_(of_train, pa.array(mark_relevant(grades, threshold))))
    users, items = (encode_texts(chosen.column(name)) for name in COLUMNS[:2])
    return users, items


# ------------------------------------------------------------------------- matrix and neighbours


def build_matrix(histories: pa.Array, n_items: int) -> Arrays:
    """Return the user x item matrix and its transpose as CSR.

    Each matrix holds 4 bytes per interaction.
    """
    indptr, indices = flatten_lists(histories)
    transposed = binary_matrix(indptr, indices.astype(np.int32), n_items).tocsc()
    return {
        "indptr": indptr,
        "indices": indices.astype(np.int32),
        "indptr_t": transposed.indptr.astype(np.int64),
        "indices_t": transposed.indices.astype(np.int32),
    }


def find_neighbours(matrix: Arrays, ids: Strings, block: range, model: ItemKnnModel) -> pa.RecordBatch:
    """Return a block's item_id, neighbour_id, weight, as the model asks.

    `ids` are (i,), by index.
    """
    items_of_u = binary_matrix(matrix["indptr"], matrix["indices"], len(ids))
    users_of_i = binary_matrix(matrix["indptr_t"], matrix["indices_t"], len(matrix["indptr"]) - 1)
    n_i = np.diff(matrix["indptr_t"])
    similar = cosine_neighbours(users_of_i, items_of_u, n_i, block, model.neighbours)
    if model.scores == "centred_mean":
        similar = normalise_weights(similar)
    sides = (pa.array(ids[index], pa.binary()) for index in (similar.items, similar.neighbours))
    columns = [*(side.cast(pa.string()) for side in sides), pa.array(similar.weights)]
    return pa.RecordBatch.from_arrays(columns, list(SIMILARITIES))


def normalise_weights(similar: SimilarItems) -> SimilarItems:
    """Divide each item's weights by their sum: s_ij / sum_j s_ij."""
    sums = np.bincount(similar.items, similar.weights) if len(similar.items) else np.zeros(0)
    return SimilarItems(similar.items, similar.neighbours, similar.weights / sums[similar.items])


def binary_matrix(indptr: Ints, indices: Ints32, n_items: int) -> Any:
    """Return a user x item CSR matrix of ones.

    `indptr` and `indices` are its row bounds and item indices. Its type is int32, because sums of ones in
    float32 stop growing at 2^24 users.
    """
    from scipy import sparse  # noqa: PLC0415 (takes half a second, and few runs need it)

    ones = np.ones(len(indices), dtype=np.int32)
    return sparse.csr_matrix((ones, indices, indptr), shape=(len(indptr) - 1, n_items))


ITEMS_A_BLOCK = 512
"""Items whose neighbours are computed together; this bounds a task's block of the product."""

ITEMS_A_TASK = 8192
"""Most items whose neighbours a task holds, and writes as a file."""

TASKS_A_CORE = 4
"""Least number of tasks per core, because items differ in work."""


class ItemKnnAdapter(ModelAdapter[ItemKnnModel]):
    """Ranks by each item's most similar items.

    Users are known by their items alone.
    """

    runs_local: ClassVar[bool] = True
    reads_grades = False
    folds_prefixes: ClassVar[bool] = True

    def fit(self, data: SplitData) -> Trained:
        """Compute the neighbours of all items; see `train_item_knn`."""
        known, longest = data.training_catalogue, self.settings.max_history
        cut = partial(cut_histories, find=known.find, threshold=data.threshold, longest=longest)
        histories = share_results(data.store.scratch, data.open_by_user(COLUMNS, cut, ("items",)))
        return train_item_knn(histories, known, self.settings, data.store.engine)

    def source(self, trained: Trained, data: SplitData) -> NeighbourSource:
        """Return each item's neighbours and their weights."""
        assert trained.similarities is not None
        rows = share_rows(trained.similarities, SIMILARITIES, data.store.scratch)
        counts = None
        if self.settings.scores == "centred_mean":
            count = partial(count_item_users, threshold=data.threshold)
            counted = data.open_by_user(COLUMNS, count, ("item_id", "users"))
            counts = share_results(data.store.scratch, counted)
        return NeighbourSource(rows, data.n_items, data.known_items, counts)


def train_item_knn(
    histories: SharedRows, known: KnownItems, model: ItemKnnModel, engine: Engine
) -> Trained:
    """Compute cosine item-kNN from histories (`models.item_knn.cut_histories`).

    The user x item matrix is built once per host and mapped by every worker. A task multiplies its items'
    rows with the matrix and selects the neighbours.

    Args:
        histories: items (indices) of each user.
        known: the items.
        model: number of neighbours, and if weights are scaled to sum to 1.
        engine: the runner.
    """
    starts = range(0, known.n_items, ITEMS_A_BLOCK)
    tasks = max(TASKS_A_CORE * engine.cores, -(-known.n_items // ITEMS_A_TASK))
    find = partial(_find_neighbours, shared=histories, known=known, model=model)
    blocks = engine.parallelize(starts, max(1, min(tasks, len(starts))))
    return Trained(similarities=Blocks(blocks, return_rows, SIMILARITIES, read=find))


def _find_neighbours(
    starts: Iterable[int], shared: SharedRows, known: KnownItems, model: ItemKnnModel
) -> Iterator[pa.Table]:
    matrix = shared.arrays(partial(_write_matrix, n_items=known.n_items))
    ids, batches = known.ids(), []
    for start in starts:
        block = range(start, min(start + ITEMS_A_BLOCK, known.n_items))
        batches.append(find_neighbours(matrix, ids, block, model))
    if batches:
        yield pa.Table.from_batches(batches)


def _write_matrix(rows: ds.Dataset, folder: Path, n_items: int) -> None:
    histories = rows.to_table(columns=["items"]).column("items").combine_chunks()
    for name, array in build_matrix(histories, n_items).items():
        shared_arrays.save_array(folder, name, array)
