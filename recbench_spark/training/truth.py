"""The generated world's own factors: the ceiling of its models."""

from __future__ import annotations

from recbench_spark.config import TruthModel
from recbench_spark.data import worlds
from recbench_spark.training.model_adapter import Behaviour, SplitData, Trained


class TruthAdapter(Behaviour[TruthModel]):
    """What users of the generated world really like."""

    def fit(self, data: SplitData) -> Trained:
        """The true factors of users and items."""
        users, items = worlds.true_factors(data.spark, data.world)
        return Trained(users=users, items=items)
