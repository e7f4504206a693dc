"""The common interface of rating models: fits, predictions, files.

A fit takes ratings and returns a model made from arrays, which predicts pairs and fits into one file. It
depends on its arguments alone, so it can run as its own task, anywhere, with the same bits.

Axes: r ratings, p pairs to predict, u users, i items, d dimensions, s steps (epochs, sweeps).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from recbench_spark.config import Seed, Strict
from recbench_spark.core.arrays import Floats, Ints
from recbench_spark.errors import ConfigError, DataError
from recbench_spark.models.settings import LearntItems

if TYPE_CHECKING:  # fold-ins compile kernels, and settings are read without numba
    from recbench_spark.models.prefix_vectors import FoldInSettings

Scale = tuple[float, float]

UNSEEN = -1
"""Index of a user or item without training ratings."""

MAX_RATE = 1000.0
"""Largest learning rate; every fit diverges far below it."""

REAL = (-np.inf, np.inf)
"""Scale without bounds, for numbers no one clips."""


@dataclass(frozen=True)
class Ratings:
    """User-item ratings by dense index, validated by `check_ratings`.

    Attributes:
        users_r: (r,) user of each rating, below `n_users`.
        items_r: (r,) item of each rating, below `n_items`.
        ratings_r: (r,) the ratings, within `scale`.
        n_users: number of users; some may have no rating.
        n_items: number of items.
        scale: lowest and highest possible rating; predictions are clipped to it.
        times_r: (r,) seconds since 1970, if the log has times.
    """

    users_r: Ints
    items_r: Ints
    ratings_r: Floats
    n_users: int
    n_items: int
    scale: Scale = REAL
    times_r: Ints | None = None

    def __len__(self) -> int:
        """Return the number of ratings."""
        return len(self.ratings_r)

    def rows(self, chosen: npt.NDArray[Any]) -> Ratings:
        """Return some ratings, with the same users and items.

        `chosen`: a mask or row numbers.
        """
        times_r = None if self.times_r is None else self.times_r[chosen]
        parts = self.users_r[chosen], self.items_r[chosen], self.ratings_r[chosen]
        return Ratings(*parts, self.n_users, self.n_items, self.scale, times_r)


@runtime_checkable
class RatingModel(Protocol):
    """A fitted model which predicts pairs.

    Such a model is a frozen dataclass with arrays and numbers, so `registry.save` can write it.
    """

    kind: ClassVar[str]

    def predict(self, users_p: Ints, items_p: Ints, times_p: Ints | None = None) -> Floats:
        """Return (p,) predicted ratings within the scale.

        An unseen user or item has index `UNSEEN`. Raises DataError for an index out of range, and if the
        model needs times and gets none.
        """
        ...


@runtime_checkable
class ScoringModel(RatingModel, Protocol):
    """A fitted model which ranks by its own scores.

    Such scores are no product of two vectors.
    """

    def score(self, users_b: Ints, items_i: Ints) -> Floats:
        """Return (b, i) finite scores for users and items by index.

        The ranking calls this for one user at a time, with the same items in the same order. So no batch of
        users changes a score, whatever the function computes inside.
        """
        ...


class Fit(NamedTuple):
    """A learner's result: the model and its watched errors.

    Attributes:
        model: the fitted model.
        rmse_s: (s,) RMSE on the watched ratings after each step; empty without them.
        watched_p: (p,) predictions for the watched ratings. A sampler gives the mean over all samples, and
            may store only some in the model. Empty without watched ratings.
        steps: number of epochs or sweeps.
    """

    model: RatingModel
    rmse_s: Floats
    watched_p: Floats
    steps: int


FOLDING_KINDS = ("als", "als_wr", "implicit_als", "sgd_mf")
"""Kinds whose users follow from fixed items by one ridge regression."""


class RatingSettings(Strict):
    """Settings of a learner; `kind` names it.

    Other fields are its own.
    """

    kind: str

    def make_fold_in(self, items: int | None = None, threshold: float | None = None) -> FoldInSettings:
        """Return a fitted model's fold-in.

        Args:
            items: number of items in the ridge of iALS, as in the fit; None: only items known in training.
            threshold: lowest rating of a liked row, for models of pairs; None: above 0.

        Raises:
            ConfigError: this kind cannot fold users in, or not without a regulariser.
        """
        raise ConfigError(
            f"a model of kind '{self.kind}' cannot fold users in", f"kinds: {', '.join(FOLDING_KINDS)}"
        )


class RatingModelConfig(RatingSettings, LearntItems):
    """A learner from `models.rating`, fitted in one task."""

    adapter: ClassVar[str] = "rating_models:RatingAdapter"
    seed: Seed = 42
    """Seed of every random choice in the fit."""

    @property
    def folds_given_rows(self) -> bool:
        """True if a fold-in fits these settings; see `ModelConfig`."""
        try:
            self.make_fold_in()
        except ConfigError:
            return False
        return True


VECTORS = ("rating_vectors", "trained_items")
"""Revisions for kinds which rank by vectors. The first one changes no predicted rating."""


class FitCall(Protocol):
    """The call signature of all learners; see `registry.FAMILIES`."""

    def __call__(
        self, train: Ratings, settings: Any, seed: int, watched: Ratings | None = None, threads: int = 1
    ) -> Fit:
        """Fit to `train`; measure `watched` without learning from it.

        `threads` changes no bit.
        """
        ...


def check_ratings(
    users_r: npt.ArrayLike,
    items_r: npt.ArrayLike,
    ratings_r: npt.ArrayLike,
    scale: Scale = REAL,
    times_r: npt.ArrayLike | None = None,
    *,
    n_users: int | None = None,
    n_items: int | None = None,
    lowest: int = 0,
) -> Ratings:
    """Return valid ratings, ready for a learner.

    `n_users` and `n_items` default to the largest index plus one. `lowest`: smallest index, `UNSEEN` where
    rows may have it. Raises DataError with a wrong row and the reason: columns of unequal length, no rating
    at all, NaN, a rating outside the scale, an index out of range.
    """
    users, items = _whole(users_r, "users"), _whole(items_r, "items")
    ratings = np.asarray(ratings_r, np.float64)
    times = None if times_r is None else _whole(times_r, "times")
    lengths = {len(users), len(items), len(ratings), len(ratings if times is None else times)}
    if len(lengths) > 1:
        raise DataError(f"columns of ratings have unequal lengths {sorted(lengths)}", "one row per rating")
    if not len(ratings):
        raise DataError("there is not a single rating", "check the split: this training part is empty")
    _check_values(ratings, scale)
    n_users = _check_bounds(users, n_users, "user", lowest)
    n_items = _check_bounds(items, n_items, "item", lowest)
    return Ratings(users, items, ratings, n_users, n_items, scale, times)


def rmse(predicted_p: Floats, ratings_p: Floats) -> float:
    """Return sqrt(mean (predicted - rating)^2), NaN without pairs."""
    return float(np.sqrt(np.mean((predicted_p - ratings_p) ** 2))) if len(ratings_p) else float("nan")


@dataclass
class WatchedErrors:
    """Measures a fit on the watched ratings, where there are any.

    Attributes:
        watched: the ratings; None: none.
        rmse_s: (s,) error after each measured step.
        predicted_p: last predictions.
    """

    watched: Ratings | None
    rmse_s: list[float] = field(default_factory=list)
    predicted_p: Floats = field(default_factory=lambda: np.zeros(0))

    def measure(self, model: RatingModel) -> None:
        """Predict the watched ratings and keep the error."""
        if self.watched is not None:
            self.predicted_p = model.predict(self.watched.users_r, self.watched.items_r)
            self.rmse_s.append(rmse(self.predicted_p, self.watched.ratings_r))

    def finish(self, model: RatingModel, steps: int) -> Fit:
        """Return the fit with the last predictions."""
        return Fit(model, np.array(self.rmse_s), self.predicted_p, steps)


def finish_fit(model: RatingModel, watched: Ratings | None, steps: int) -> Fit:
    """Return a fit whose steps are not measured, with watched predictions."""
    watched_p = np.zeros(0) if watched is None else model.predict(watched.users_r, watched.items_r)
    return Fit(model, np.zeros(0), watched_p, steps)


def indices_with_unseen(indices_p: npt.ArrayLike, size: int, what: str) -> Ints:
    """Replace `UNSEEN` by `size`, the row after the last.

    The row after the last holds the values for unseen users or items. Raises DataError for an index below
    -1 or from `size` on.
    """
    indices = _whole(indices_p, f"{what}s")
    wrong = (indices < UNSEEN) | (indices >= size)
    if wrong.any():
        raise DataError(
            f"{what} {indices[wrong][0]} is not among the {size:,} {what}s of the training part",
            f"give {UNSEEN} for a {what} that training has not seen",
        )
    return np.where(indices == UNSEEN, size, indices)


def add_unseen_row(table: npt.NDArray[Any], row: Any = 0.0) -> npt.NDArray[Any]:
    """Append the row for unseen users or items, zeros by default."""
    last = np.broadcast_to(np.asarray(row, table.dtype), (1, *table.shape[1:]))
    return np.concatenate([table, last])


def in_blocks(
    predict: Callable[[Ints, Ints], Floats], users_p: Ints, items_p: Ints, block: int = 1 << 16
) -> Floats:
    """Predict block by block to keep gathered factor rows small."""
    starts = range(0, len(users_p), block)
    parts = [predict(users_p[at : at + block], items_p[at : at + block]) for at in starts]
    return np.concatenate(parts) if parts else np.zeros(0)


def _whole(values: npt.ArrayLike, what: str) -> Ints:
    array = np.asarray(values)
    if array.dtype.kind not in "iu" and len(array):
        raise DataError(f"{what} are {array.dtype}, not whole numbers", "index them from 0 on first")
    return np.ascontiguousarray(array, np.int64)


def _check_values(ratings: Floats, scale: Scale) -> None:
    low, high = scale
    wrong = ~((ratings >= low) & (ratings <= high)) | ~np.isfinite(ratings)
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise DataError(
            f"rating {ratings[row]:g} in row {row} is not on the scale {low:g} to {high:g}"
            f" ({int(wrong.sum()):,} such rows)",
            "correct the rows or give the scale that the ratings are on",
        )


def _check_bounds(indices: Ints, size: int | None, what: str, lowest: int) -> int:
    low, high = int(indices.min()), int(indices.max())
    size = high + 1 if size is None else size
    if low < lowest or high >= size:
        wrong = low if low < lowest else high
        raise DataError(f"{what} {wrong} is not between 0 and {size - 1}", f"index {what}s from 0 on")
    return size
