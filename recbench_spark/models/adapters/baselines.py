"""Models without learning: popularity, random scores, true factors.

True factors come from the generated world; no model there can be better.
"""

from __future__ import annotations

from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.config import PopularModel, RandomModel, TruthModel
from recbench_spark.models.adapters.model_adapter import ModelAdapter, SplitData, Trained
from recbench_spark.models.popular import popular_vectors
from recbench_spark.ranking.sources import HashSource
from recbench_spark.splits.worlds import true_factors
from recbench_spark.storage.blocks import StoredRows
from recbench_spark.storage.shared_arrays import SharedRows


class PopularAdapter(ModelAdapter[PopularModel]):
    """Ranks by popularity: an item's bias counts its training interactions."""

    runs_local: ClassVar[bool] = True
    folds_prefixes: ClassVar[bool] = True

    def fit(self, data: SplitData) -> Trained:
        """Take the counts of items with training rows; see `train_popular`."""
        return train_popular(data.open_items())


def train_popular(items: StoredRows) -> Trained:
    """Return one row per item with training rows.

    The catalogue has the counts (item_id, n_train).
    """
    return Trained(items=items.open(("item_id", "n_train"), _score_items, ("item_id", "vector", "bias")))


def _score_items(items: pa.Table) -> pa.Table:
    return popular_vectors(items.filter(pc.greater(items.column("n_train"), 0)))


class RandomAdapter(ModelAdapter[RandomModel]):
    """Ranks by a uniform score per (user, item), drawn by hash."""

    runs_local: ClassVar[bool] = True
    learns: ClassVar[bool] = False
    folds_prefixes: ClassVar[bool] = True

    def load(self, data: SplitData) -> Trained:
        """Return a model without tables: there is nothing to load."""
        return Trained()

    def source(self, trained: Trained, data: SplitData) -> HashSource:
        """Return the source which hashes user and item ids."""
        rows = data.known_items.rows
        return HashSource(SharedRows(f"{rows.key}-ids", rows.files), data.n_items, self.settings.seed)


class TruthAdapter(ModelAdapter[TruthModel]):
    """Ranks by users' true preferences in the generated world."""

    runs_local: ClassVar[bool] = True

    def fit(self, data: SplitData) -> Trained:
        """Return the true factors of users and items."""
        users, items = true_factors(data.store.engine, data.world)
        return Trained(users=users, items=items)
