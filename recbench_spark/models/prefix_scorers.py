"""References to models for learning curves, opened by tasks.

Such models rank users after each given rating. The same fold-in gives users vectors from all given rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.core.arrays import Floats, Floats32, Ints
from recbench_spark.core.ids import encode_texts
from recbench_spark.errors import DataError
from recbench_spark.models.prefix_vectors import FoldInSettings, PrefixFolder
from recbench_spark.ranking.kernels.scorers import DotScorer, Scorer
from recbench_spark.ranking.known_items import KnownItems
from recbench_spark.ranking.sources import OPEN_MODELS, Source
from recbench_spark.storage.shared_arrays import bound_lists


@dataclass(frozen=True)
class PrefixScorer:
    """Opens a model in a learning-curve task.

    Attributes:
        source: the item side, mapped from one copy per host.
        fold_in: makes prefix vectors; None for a model which scores by history or by item alone.
    """

    source: Source
    fold_in: FoldInSettings | None = None

    def open(self) -> tuple[Scorer, PrefixFolder | None]:
        """Return the scorer and the folder, opened once per worker.

        Only a model with vectors has a folder.
        """
        return self.source.scorer(), None if self.fold_in is None else _open_folder(self)


@lru_cache(maxsize=OPEN_MODELS)
def _open_folder(model: PrefixScorer) -> PrefixFolder:
    scorer = model.source.scorer()
    if model.fold_in is None or not isinstance(scorer, DotScorer):
        raise DataError("only models with item vectors fold users in")
    products = scorer.products
    return model.fold_in.make_folder(products.vectors_id, products.bias_i, products.scored_i)


COLUMNS = ("user_id", "item_id", "rating", "part")
"""Columns of the labelled rows."""

VECTORS = ("user_id", "vector")
"""Columns of the result."""

USERS_AT_ONCE = 1 << 10
"""Users whose histories are folded together, with their items' vectors."""


def fold_given_rows(rows: pa.Table, known: KnownItems, model: PrefixScorer) -> pa.Table:
    """Compute user vectors from all their given rows.

    Users unknown to the model have none.

    Args:
        rows: all labelled rows of some users (COLUMNS).
        known: the catalogue.
        model: the item side and its fold-in.

    Returns:
        user_id, vector.
    """
    given = rows.filter(pc.equal(rows.column("part").cast(pa.string()), "given"))
    users, items = (encode_texts(given.column(name)) for name in COLUMNS[:2])
    item_r = known.find(items.dictionary)[0][items.indices.to_numpy()]
    user_r, rating_r = users.indices.to_numpy(), given.column("rating").to_numpy()
    order = np.lexsort((rating_r, item_r, user_r))
    order = order[item_r[order] >= 0]
    folder = model.open()[1]
    assert folder is not None
    dims = model.source.dims
    parts = [
        _fold_users(folder, *(column[chosen] for column in (user_r, item_r, rating_r)))
        for chosen in _cut_users(user_r[order], order)
    ]
    numbers = np.concatenate([np.empty(0, np.int64), *(number for number, _ in parts)])
    vectors = np.concatenate([np.empty((0, dims), np.float32), *(vectors for _, vectors in parts)])
    bounds = pa.array(np.arange(0, vectors.size + 1, dims), pa.int32())
    lists = pa.ListArray.from_arrays(bounds, pa.array(vectors.ravel(), pa.float32()))
    return pa.table([users.dictionary.take(pa.array(numbers)), lists], list(VECTORS))


def _cut_users(user_o: Ints, order: Ints) -> list[Ints]:
    """Cut rows sorted by user into blocks of USERS_AT_ONCE users."""
    starts = np.flatnonzero(np.diff(user_o, prepend=-1))[USERS_AT_ONCE::USERS_AT_ONCE]
    return np.split(order, starts) if len(order) else []


def _fold_users(
    folder: PrefixFolder, user_r: Ints, item_r: Ints, rating_r: Floats
) -> tuple[Ints, Floats32]:
    """Return users whose rows give a vector, and these vectors."""
    numbers, place_r = np.unique(user_r, return_inverse=True)
    offsets = bound_lists(place_r, len(numbers)).to_numpy().astype(np.int64)
    folded = folder.fold(offsets, item_r, rating_r)
    last_u = offsets[1:] - 1
    known_u = folded.known_p[last_u]
    return numbers[known_u].astype(np.int64), folded.vectors_pd[last_u[known_u]].astype(np.float32)
