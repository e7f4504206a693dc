"""The random model: nothing is learnt."""

from __future__ import annotations

from typing import ClassVar

from recbench_spark.config import RandomModel
from recbench_spark.evaluation.ranking.sources import HashSource
from recbench_spark.storage.shared_rows import share_rows
from recbench_spark.training.model_adapter import Behaviour, SplitData, Trained


class RandomAdapter(Behaviour[RandomModel]):
    """Every (user, item) a uniform score by hash."""

    learns: ClassVar[bool] = False

    def load(self, data: SplitData) -> Trained:
        """There is nothing to load."""
        return Trained()

    def source(self, trained: Trained, data: SplitData) -> HashSource:
        """The ids of the items."""
        shared = share_rows(data.store.scratch, data.items.select("item_index", "item_id"))
        return HashSource(shared, data.n_items, self.settings.seed)
