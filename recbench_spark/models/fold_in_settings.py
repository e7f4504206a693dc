"""Settings of a fold-in: small frozen objects that travel to tasks and make the folder of a model there.

They hold what training has fixed beside the item vectors. The vectors stay in files that all workers of a
host map. Axes: i items, d dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from recbench_spark.errors import ConfigError
from recbench_spark.kernels.arrays import Bools, Floats, Floats32
from recbench_spark.models.prefix_fold_in import decompose_items
from recbench_spark.models.prefix_vectors import ConfidenceFolder, PrefixFolder, RatingFolder


class FoldInSettings(Protocol):
    """Interface of all settings of a fold-in.

    A class is frozen, and equal objects make equal folders: a worker keeps the folders that it has made.
    """

    def make_folder(self, vectors_id: Floats32, biases_i: Floats, known_i: Bools) -> PrefixFolder:
        """Make the folder of a model.

        Args:
            vectors_id: (i, d) item vectors by item_index, mapped; zeros where there is none.
            biases_i: (i,) biases of the items, as they enter scores.
            known_i: (i,) true for items that the model scores.
        """


@dataclass(frozen=True)
class RidgeFoldIn:
    """Fold-in of Spark's explicit ALS: one ridge regression on the ratings.

    Attributes:
        regulariser: lambda, times the number of ratings; above 0.
    """

    regulariser: float

    def make_folder(self, vectors_id: Floats32, biases_i: Floats, known_i: Bools) -> RatingFolder:
        """Make the folder, as in `FoldInSettings`."""
        return RatingFolder(vectors_id, known_i, self.regulariser)


@dataclass(frozen=True)
class ConfidenceFoldIn:
    """Fold-in of Spark's implicit ALS (see `ConfidenceFolder`).

    Attributes:
        regulariser: lambda, times the number of liked rows; above 0.
        alpha: growth of confidence.
        threshold: lowest rating of a liked row; None: above 0.
    """

    regulariser: float
    alpha: float
    threshold: float | None = None

    def make_folder(self, vectors_id: Floats32, biases_i: Floats, known_i: Bools) -> ConfidenceFolder:
        """Make the folder, as in `FoldInSettings`; one pass over the items finds their eigenbasis."""
        return ConfidenceFolder(
            vectors_id, known_i, decompose_items(vectors_id), self.regulariser, self.alpha, self.threshold
        )


def require_ridge(model: str, regulariser: float, setting: str) -> float:
    """Return the regulariser of a fold-in.

    Raises:
        ConfigError: it is 0.
    """
    if not regulariser > 0:
        raise ConfigError(
            f"model {model}: a regulariser of 0 leaves users with few ratings without a solution",
            f"{setting} above 0",
        )
    return regulariser
