"""The model that ranks the most popular items first."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from recbench_spark.config import PopularModel
from recbench_spark.training.model_adapter import Behaviour, SplitData, Trained


class PopularAdapter(Behaviour[PopularModel]):
    """Adapter of popularity: an item's bias is its number of training interactions; there are no
    vectors."""

    def fit(self, data: SplitData) -> Trained:
        """Take the counts of the catalogue; see `train_popular`."""
        return train_popular(data.items)


def train_popular(items: DataFrame) -> Trained:
    """Return one row per item from the catalogue's counts (item_id, n_train)."""
    empty = F.array().cast("array<float>")
    bias = F.col("n_train").cast("double")
    return Trained(items=items.select("item_id", empty.alias("vector"), bias.alias("bias")))
