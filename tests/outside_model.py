"""A model of another package: settings and behaviour in one file, named in a benchmark file by its path."""

from __future__ import annotations

from typing import ClassVar, Literal

from pyspark.sql import functions as F

from recbench_spark.models.adapters.model_adapter import Behaviour, SplitData, Trained
from recbench_spark.models.settings import ModelConfig


class NewestModel(ModelConfig):
    """Items by falling id, `step` apart."""

    behaviour: ClassVar[str] = "tests.outside_model:Newest"
    kind: Literal["newest"]
    step: float = 1.0


class Newest(Behaviour[NewestModel]):
    """The place in the catalogue as the item's bias."""

    def fit(self, data: SplitData) -> Trained:
        """One row per item."""
        empty = F.array().cast("array<float>").alias("vector")
        bias = (F.col("item_index") * F.lit(self.settings.step)).alias("bias")
        return Trained(items=data.items.select("item_id", empty, bias))
