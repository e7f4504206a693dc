"""A model of another package that has learning curves: item vectors, and a fold-in of its own."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Literal

import numpy as np
from pyspark.sql import functions as F

from recbench_spark.core.arrays import Bools, Floats, Floats32, Ints
from recbench_spark.models.adapters.model_adapter import Behaviour, SplitData, Trained
from recbench_spark.models.prefix_vectors import FoldInSettings, PrefixVectors
from recbench_spark.models.settings import ModelConfig


class MeanVectorModel(ModelConfig):
    """Users as the mean of the vectors of the items that they rated, newer ones `growth` times as much."""

    behaviour: ClassVar[str] = "tests.outside_fold_in:MeanVector"
    kind: Literal["mean_vector"]
    growth: float = 1.0


class MeanVector(Behaviour[MeanVectorModel]):
    """Item vectors are the first two digits of the item's place in the catalogue."""

    folds_prefixes: ClassVar[bool] = True

    def fit(self, data: SplitData) -> Trained:
        """Return a vector for each item, and none for users."""
        digits = [F.col("item_index") % 10, F.floor(F.col("item_index") / 10) % 10]
        vector = F.array(*(digit.cast("float") for digit in digits)).alias("vector")
        return Trained(items=data.items.select("item_id", vector, F.lit(0.0).alias("bias")))

    def make_fold_in(self, data: SplitData) -> FoldInSettings:
        """Return the settings that travel to tasks."""
        return MeanVectorFoldIn(self.settings.growth)


@dataclass(frozen=True)
class MeanVectorFoldIn:
    """Settings of the fold-in."""

    growth: float

    def make_folder(self, vectors_id: Floats32, biases_i: Floats, known_i: Bools) -> MeanVectorFolder:
        """Make the folder in a task."""
        return MeanVectorFolder(vectors_id, self.growth)


@dataclass(frozen=True)
class MeanVectorFolder:
    """Folder of weighted means."""

    vectors_id: Floats32
    growth: float

    def fold(self, offsets: Ints, items: Ints, ratings: Floats) -> PrefixVectors:
        """Return the mean of the vectors up to each row."""
        vectors_pd = np.zeros((len(items), self.vectors_id.shape[1]), np.float32)
        for first, end in pairwise(offsets):
            weights_k = self.growth ** np.arange(end - first)
            rows_kd = self.vectors_id[items[first:end]] * weights_k[:, None]
            vectors_pd[first:end] = np.cumsum(rows_kd, axis=0) / np.cumsum(weights_k)[:, None]
        return PrefixVectors(vectors_pd, items >= 0)
