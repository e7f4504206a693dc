"""Fold-in of prefixes: small frozen settings, and the folders they make.

Settings are sent to tasks. They hold what training has fixed beside the item vectors, which stay in files,
mapped by all workers on a host. There they make a model's folder, one class per model family, with one
method `fold` from arrays to all prefixes' vectors. Unusable rows change no vector: items unknown to
training, and for pair models items which are not liked. A prefix without a usable row has no vector, and
its user is not ranked.

Axes: u users, p given rows, i items, d dimensions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np

from recbench_spark.core.arrays import Bools, Floats, Floats32, Ints
from recbench_spark.errors import ConfigError, DataError
from recbench_spark.models.fold_in_kinds import FoldInRidge
from recbench_spark.models.prefix_fold_in import (
    ItemSpectrum,
    decompose_items,
    fold_in_ials_prefixes,
    fold_in_implicit_prefixes,
    fold_in_prefixes,
    ridge_by_frequency,
    ridge_per_rating,
)
from recbench_spark.ranking.kernels.rankings import mark_relevant


class PrefixVectors(NamedTuple):
    """A vector after each given row, where there is one.

    Attributes:
        vectors_pd: (p, d) in float32, as all vectors are stored; zeros where there is none.
        known_p: true for prefixes with a vector.
    """

    vectors_pd: Floats32
    known_p: Bools


class PrefixFolder(Protocol):
    """Interface for all classes which fold prefixes in."""

    def fold(self, offsets: Ints, items: Ints, ratings: Floats) -> PrefixVectors:
        """Fold all prefixes of the users' rows in.

        Args:
            offsets: (u + 1,) bounds of each user's rows, in the given order.
            items: (p,) item indices; -1 for an item outside the catalogue.
            ratings: (p,) ratings.
        """


class RoundedFolder(ABC):
    """Base for folders which solve in float64 and round last.

    All stored vectors are rounded so.
    """

    @abstractmethod
    def solve(self, offsets: Ints, items: Ints, ratings: Floats) -> tuple[Floats, Bools]:
        """Return all prefixes' vectors in float64, (p, d).

        The second array is true for prefixes with a vector.
        """

    def fold(self, offsets: Ints, items: Ints, ratings: Floats) -> PrefixVectors:
        """Fold all prefixes in, as in `PrefixFolder`."""
        vectors_pd, known_p = self.solve(offsets, items, ratings)
        return PrefixVectors(vectors_pd.astype(np.float32), known_p)


@dataclass(frozen=True)
class RatingFolder(RoundedFolder):
    """Folds users into rating models: r = b_u + b_i + x_u y_i.

    There is a ridge for each rating, and b_i includes the mean. It covers explicit ALS (no biases), ALS-WR
    and SGD. A user bias is solved together with the vector. It moves all scores of a user alike, so the
    ranking ignores it.

    Attributes:
        how: ridges of the vector and the bias.
        factors_id: (i, d) item vectors.
        known_i: items known to training.
        biases_i: subtracted from each item's ratings; None: nothing.
    """

    how: RidgeFoldIn
    factors_id: Floats | Floats32
    known_i: Bools
    biases_i: Floats | None = None

    def solve(self, offsets: Ints, items: Ints, ratings: Floats) -> tuple[Floats, Bools]:
        """Solve all prefixes by ridge regression on ratings minus biases.

        Only vectors of items in these rows are copied, so a task holds no second copy of the item side.
        """
        used_p = mark_known_items(self.known_i, items)
        chosen, place_r = np.unique(items[used_p], return_inverse=True)
        targets_r = ratings[used_p]
        if self.biases_i is not None:
            targets_r = targets_r - self.biases_i[chosen][place_r]
        design_kd, dims = self._make_design(chosen), self.factors_id.shape[1]

        def solve_used(offsets: Ints) -> Floats:
            ridge_n = ridge_per_rating(self.how.regulariser, _longest(offsets), self.how.frequency)
            return fold_in_prefixes(offsets, place_r, targets_r, design_kd, ridge_n)[:, :dims]

        return fold_used_rows(offsets, used_p, dims, solve_used)

    def _make_design(self, chosen_k: Ints) -> Floats:
        """Return some items' vectors, with a column for the user's bias."""
        design_kd = np.asarray(self.factors_id[chosen_k], np.float64)
        if self.how.bias_regulariser is None:
            return design_kd
        # A column of s has the bias s b, and the ridge lambda b^2 of b is lambda / s^2 of s b.
        height = (self.how.regulariser / self.how.bias_regulariser) ** 0.5
        return np.column_stack([design_kd, np.full(len(design_kd), height)])


@dataclass(frozen=True)
class LikedFolder(RoundedFolder):
    """Base for folders of liked rows.

    Attributes:
        how: weights, ridge and threshold.
        factors_id: (i, d) item vectors; zeros for items unknown to training.
        known_i: items known to training.
        spectrum: eigenbasis of all item vectors, with the weight of an unobserved pair.
    """

    how: ConfidenceFoldIn | PairFoldIn
    factors_id: Floats | Floats32
    known_i: Bools
    spectrum: ItemSpectrum

    def solve(self, offsets: Ints, items: Ints, ratings: Floats) -> tuple[Floats, Bools]:
        """Solve all prefixes of liked rows."""
        used_p = mark_known_items(self.known_i, items) & mark_relevant(ratings, self.how.threshold)
        solve_liked = partial(self.solve_liked, items[used_p])
        return fold_used_rows(offsets, used_p, self.factors_id.shape[1], solve_liked)

    @abstractmethod
    def solve_liked(self, liked_r: Ints, offsets: Ints) -> Floats:
        """Solve all prefixes of rows that are all liked."""


@dataclass(frozen=True)
class ConfidenceFolder(LikedFolder):
    """Folds users into implicit ALS.

    Liked rows have strength 1 and confidence 1 + alpha; the spectrum's weight is 1.
    """

    how: ConfidenceFoldIn

    def solve_liked(self, liked_r: Ints, offsets: Ints) -> Floats:
        """Solve all prefixes of rows that are all liked."""
        ridge_n = ridge_per_rating(self.how.regulariser, _longest(offsets), self.how.frequency)
        arrays = (offsets, liked_r, np.ones(len(liked_r)), self.factors_id, self.spectrum)
        return fold_in_implicit_prefixes(*arrays, ridge_n=ridge_n, alpha=self.how.alpha)


@dataclass(frozen=True)
class PairFolder(LikedFolder):
    """Folds users into pair models: iALS as fitted, or any vectors.

    For MF-BPR, LightGCN and vectors from teams, `unobserved_weight` and `regulariser` are settings of the
    fold-in alone; search them on validation users.
    """

    how: PairFoldIn

    def solve_liked(self, liked_r: Ints, offsets: Ints) -> Floats:
        """Solve all prefixes of rows that are all liked."""
        how, n_items = self.how, self.how.items
        n_items = int(self.known_i.sum()) if n_items is None else n_items
        strengths = n_items, how.unobserved_weight, how.frequency
        ridge_n = ridge_by_frequency(how.regulariser, _longest(offsets), *strengths)
        return fold_in_ials_prefixes(offsets, liked_r, self.factors_id, self.spectrum, ridge_n)


def _longest(offsets: Ints) -> int:
    return int(np.diff(offsets).max(initial=0))


def mark_known_items(known_i: Bools, items: Ints) -> Bools:
    """Mark rows of items known to training, (p,).

    -1 is none. Raises DataError for an index too large.
    """
    if len(items) and items.max() >= len(known_i):
        raise DataError(f"item {items.max()} lies outside the catalogue of {len(known_i)} items")
    return np.append(known_i, np.False_)[items]


def fold_used_rows(
    offsets: Ints, used_p: Bools, dims: int, solve_used: Callable[[Ints], Floats]
) -> tuple[Floats, Bools]:
    """Solve for usable rows; spread the vectors over all prefixes.

    A prefix gets the vector of its last usable row. `solve_used` takes the users' bounds among the usable
    rows.
    """
    before_p = np.concatenate([[0], np.cumsum(used_p)])
    used_offsets = before_p[offsets]
    solved = solve_used(used_offsets)
    user_p = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    last_p = before_p[1:] - 1
    known_p = last_p >= used_offsets[user_p]
    vectors_pd = np.zeros((len(used_p), dims))
    vectors_pd[known_p] = solved[last_p[known_p]]
    return vectors_pd, known_p


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
        return RatingFolder(self, vectors_id, known_i, biases_i)


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
        return ConfidenceFolder(self, vectors_id, known_i, decompose_items(vectors_id))


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
        return PairFolder(self, vectors_id, known_i, decompose_items(vectors_id, self.unobserved_weight))


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
