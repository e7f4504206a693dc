"""Fold-in settings: small frozen objects, sent to tasks.

There they make a model's folder. They hold what training has fixed beside the item vectors. The vectors
stay in files, mapped by all workers on a host. Axes: i items, d dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from recbench_spark.core.arrays import Bools, Floats, Floats32
from recbench_spark.errors import ConfigError
from recbench_spark.models.fold_in_kinds import FoldInRidge
from recbench_spark.models.prefix_fold_in import decompose_items
from recbench_spark.models.prefix_vectors import ConfidenceFolder, PairFolder, PrefixFolder, RatingFolder


class FoldInSettings(Protocol):
    """Interface of all fold-in settings.

    A class is frozen, and equal objects make equal folders: a worker keeps the folders it has made.
    """

    def make_folder(self, vectors_id: Floats32, biases_i: Floats, known_i: Bools) -> PrefixFolder:
        """Make a model's folder.

        Args:
            vectors_id: (i, d) item vectors by item_index, mapped; zeros where there is none.
            biases_i: (i,) item biases, as they enter scores.
            known_i: (i,) true for items the model scores.
        """


@dataclass(frozen=True)
class RidgeFoldIn:
    """Folds users into rating models by one ridge regression.

    Its targets are ratings minus item biases. It covers explicit ALS (biases of 0), ALS-WR and SGD (biases
    with the overall mean).

    Attributes:
        regulariser: lambda, times the number of ratings; above 0.
        bias_regulariser: lambda of the user's bias; None: users have no bias.
        frequency: the ridge is lambda n^frequency.
    """

    regulariser: float
    bias_regulariser: float | None = None
    frequency: float = 1.0

    def make_folder(self, vectors_id: Floats32, biases_i: Floats, known_i: Bools) -> RatingFolder:
        """Make the folder, as in `FoldInSettings`."""
        return RatingFolder(
            vectors_id,
            known_i,
            self.regulariser,
            biases_i=biases_i,
            bias_regulariser=self.bias_regulariser,
            frequency=self.frequency,
        )


@dataclass(frozen=True)
class ConfidenceFoldIn:
    """Folds users into implicit ALS (see `ConfidenceFolder`).

    Attributes:
        regulariser: lambda, times the number of liked rows; above 0.
        alpha: growth of confidence.
        threshold: lowest rating of a liked row; None: above 0.
        frequency: the ridge is lambda n^frequency.
    """

    regulariser: float
    alpha: float
    threshold: float | None = None
    frequency: float = 1.0

    def make_folder(self, vectors_id: Floats32, biases_i: Floats, known_i: Bools) -> ConfidenceFolder:
        """Make the folder, as in `FoldInSettings`.

        One pass over the items gives their eigenbasis.
        """
        return ConfidenceFolder(
            vectors_id, known_i, decompose_items(vectors_id), self.regulariser, self.alpha, self.threshold,
            self.frequency,
        )  # fmt: skip


@dataclass(frozen=True)
class PairFoldIn:
    """Folds users into pair models (see `PairFolder`).

    It serves iALS as fitted, or any final item vectors.

    Attributes:
        unobserved_weight: alpha_0, the weight of all pairs; above 0.
        regulariser: lambda; above 0.
        frequency: nu; the ridge is lambda (n + alpha_0 items)^nu.
        items: number of items in the ridge; None: only items known in training.
        threshold: lowest rating of a liked row; None: above 0.
    """

    unobserved_weight: float
    regulariser: float
    frequency: float = 1.0
    items: int | None = None
    threshold: float | None = None

    def make_folder(self, vectors_id: Floats32, biases_i: Floats, known_i: Bools) -> PairFolder:
        """Make the folder, as in `FoldInSettings`.

        One pass over the items gives their eigenbasis.
        """
        spectrum = decompose_items(vectors_id, self.unobserved_weight)
        strengths = (self.unobserved_weight, self.regulariser, self.frequency)
        return PairFolder(vectors_id, known_i, spectrum, *strengths, self.threshold, self.items)


def make_ridge_fold_in(model: str, ridge: FoldInRidge | None, threshold: float | None) -> FoldInSettings:
    """Return the fold-in from a model's section `fold_in`.

    The fit of such a model does not say how to fold users in.

    Args:
        model: name of the model.
        ridge: the section.
        threshold: lowest rating of a liked row; None: above 0.

    Raises:
        ConfigError: the section is missing.
    """
    if ridge is None:
        raise ConfigError(
            f"model {model}: learning curves need the ridge regression that folds users in",
            "fold_in: {unobserved_weight: ..., regulariser: ...}, searched on the part valid",
        )
    if ridge.targets == "ratings":
        return RidgeFoldIn(ridge.regulariser, ridge.bias_regulariser)
    assert ridge.unobserved_weight is not None
    strengths = (ridge.unobserved_weight, ridge.regulariser, ridge.frequency)
    return PairFoldIn(*strengths, threshold=threshold)
