"""The random model, which learns nothing."""

from __future__ import annotations

from typing import ClassVar

from recbench_spark.config import RandomModel
from recbench_spark.evaluation.ranking.sources import HashSource
from recbench_spark.storage.shared_rows import share_rows
from recbench_spark.training.model_adapter import Behaviour, SplitData, Trained


class RandomAdapter(Behaviour[RandomModel]):
    """Adapter of random scores: a uniform score per (user, item) by hash."""

    learns: ClassVar[bool] = False

    def load(self, data: SplitData) -> Trained:
        """Return a model without tables: there is nothing to load."""
        return Trained()

    def source(self, trained: Trained, data: SplitData) -> HashSource:
        """Return the source that hashes the ids of users and items."""
        shared = share_rows(data.store.scratch, data.items.select("item_index", "item_id"))
        return HashSource(shared, data.n_items, self.settings.seed)
