"""The most popular items."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from recbench_spark.config import PopularModel
from recbench_spark.training.model_adapter import Behaviour, SplitData, Trained


class PopularAdapter(Behaviour[PopularModel]):
    """The number of training interactions as the item's bias; no vectors at all."""

    def fit(self, data: SplitData) -> Trained:
        """See `train_popular`."""
        return train_popular(data.items)


def train_popular(items: DataFrame) -> Trained:
    """One row an item, from the catalogue's counts (item_id, n_train)."""
    empty = F.array().cast("array<float>")
    bias = F.col("n_train").cast("double")
    return Trained(items=items.select("item_id", empty.alias("vector"), bias.alias("bias")))
