"""Item-kNN over all items; tasks find neighbours block by block."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pyarrow.dataset as ds

from recbench_spark.config import ItemKnnModel
from recbench_spark.models import item_knn
from recbench_spark.models.adapters.model_adapter import ModelAdapter, SplitData, Trained
from recbench_spark.ranking.known_items import KnownItems, share_rows
from recbench_spark.ranking.sources import NeighbourSource
from recbench_spark.storage import shared_arrays
from recbench_spark.storage.blocks import Blocks, Engine, return_rows
from recbench_spark.storage.scratch import share_results
from recbench_spark.storage.shared_arrays import SharedRows

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
    folds_prefixes: ClassVar[bool] = True

    def fit(self, data: SplitData) -> Trained:
        """Compute the neighbours of all items; see `train_item_knn`."""
        known, longest = data.training_catalogue, self.settings.max_history
        cut = partial(item_knn.cut_histories, find=known.find, threshold=data.threshold, longest=longest)
        histories = share_results(data.store.scratch, data.open_by_user(item_knn.COLUMNS, cut, ("items",)))
        return train_item_knn(histories, known, self.settings, data.store.engine)

    def source(self, trained: Trained, data: SplitData) -> NeighbourSource:
        """Return each item's neighbours and their weights."""
        assert trained.similarities is not None
        rows = share_rows(trained.similarities, item_knn.SIMILARITIES, data.store.scratch)
        counts = None
        if self.settings.scores == "centred_mean":
            count = partial(item_knn.count_item_users, threshold=data.threshold)
            counted = data.open_by_user(item_knn.COLUMNS, count, ("item_id", "users"))
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
    return Trained(similarities=Blocks(blocks, return_rows, item_knn.SIMILARITIES, read=find))


def _find_neighbours(
    starts: Iterable[int], shared: SharedRows, known: KnownItems, model: ItemKnnModel
) -> Iterator[pa.Table]:
    matrix = shared.arrays(partial(_write_matrix, n_items=known.n_items))
    ids = known.ids()
    batches = []
    for start in starts:
        block = range(start, min(start + ITEMS_A_BLOCK, known.n_items))
        similar = item_knn.find_neighbours(matrix, known.n_items, block, model)
        batches.append(item_knn.name_neighbours(similar, ids))
    if batches:
        yield pa.Table.from_batches(batches)


def _write_matrix(rows: ds.Dataset, folder: Path, n_items: int) -> None:
    histories = rows.to_table(columns=["items"]).column("items").combine_chunks()
    for name, array in item_knn.build_matrix(histories, n_items).items():
        shared_arrays.save_array(folder, name, array)
