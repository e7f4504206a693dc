"""The true factors of the generated world: no model of this world can be better."""

from __future__ import annotations

from recbench_spark.config import TruthModel
from recbench_spark.data import worlds
from recbench_spark.training.model_adapter import Behaviour, SplitData, Trained


class TruthAdapter(Behaviour[TruthModel]):
    """Adapter of the users' true preferences in the generated world."""

    def fit(self, data: SplitData) -> Trained:
        """Return the true factors of users and items."""
        users, items = worlds.true_factors(data.spark, data.world)
        return Trained(users=users, items=items)
