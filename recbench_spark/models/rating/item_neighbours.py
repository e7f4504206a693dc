"""Item neighbours for ratings: predict from a user's similar items.

r_ui = c_ui + sum_j s_ij (r_uj - c_uj) / (sum_j |s_ij|) with c_ui from shrunken means. j runs over the k
items most similar to i among those the user has rated. s_ij = n_ij / (n_ij + shrinkage) times the
correlation of the deviations over the n_ij users with both items. Source: Koren, "Factor in the neighbors"
(TKDD 2010), section 3.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field
from scipy import sparse

from recbench_spark.core.arrays import Floats, Floats32, Ints
from recbench_spark.core.compiling import compile_kernel
from recbench_spark.errors import DataError
from recbench_spark.models.rating import interface
from recbench_spark.models.rating.interface import Fit, Ratings
from recbench_spark.models.rating.means import MeansSettings, RatingMeans, fit_deviations

LARGEST = 40_000
"""Largest number of items: their similarities fill one float32 matrix with 6.4 GB."""


class ItemNeighboursSettings(interface.RatingSettings):
    """Settings: the number of neighbours, and shrinkage."""

    kind: Literal["item_neighbours"] = "item_neighbours"
    neighbours: Annotated[int, Field(ge=1)] = 40
    """Most neighbours used to predict an item."""
    shrinkage: Annotated[float, Field(ge=0)] = 100.0
    """Pseudo-users with similarity 0 added to each pair's common users."""
    user_shrinkage: Annotated[float, Field(ge=0)] = 10.0
    """Pseudo-ratings at the overall mean added to each user's ratings."""
    item_shrinkage: Annotated[float, Field(ge=0)] = 25.0
    """Pseudo-ratings at the overall mean added to each item's ratings."""


class ItemNeighboursModel(ItemNeighboursSettings, interface.RatingModelConfig):
    """Item neighbours, for ratings."""

    kind: Literal["item_neighbours"]


@dataclass(frozen=True)
class ItemNeighbours:
    """Predicts from item similarities and all users' deviations.

    Attributes:
        mean: mean of all ratings; the centre c_ui is its sum with the two biases.
        bias_u: (users,).
        bias_i: (items,).
        starts_u: (users + 1,) bounds of each user's ratings.
        items_r: (r,) the items, user after user, ascending.
        left_r: (r,) r_uj - c_uj, float32.
        similarity_ij: (items, items) float32, 0 on the diagonal.
        neighbours: k.
        scale: (2,) lowest and highest rating.
    """

    mean: float
    bias_u: Floats
    bias_i: Floats
    starts_u: Ints
    items_r: Ints
    left_r: Floats32
    similarity_ij: Floats32
    neighbours: int
    scale: Floats

    kind: ClassVar[str] = "item_neighbours"

    def predict(self, users_p: Ints, items_p: Ints, times_p: Ints | None = None) -> Floats:
        """Return (p,) predictions.

        Without known ids or a rated neighbour, a prediction is the centre alone.
        """
        centre = RatingMeans(self.mean, self.bias_u, self.bias_i, self.scale)
        predicted_p = centre.baseline(users_p, items_p)
        seen = np.flatnonzero(
            (np.asarray(users_p) != interface.UNSEEN) & (np.asarray(items_p) != interface.UNSEEN)
        )
        users, items = np.asarray(users_p)[seen], np.asarray(items_p)[seen]
        history = (self.starts_u, self.items_r, self.left_r)
        predicted_p[seen] += _predict_deviation(users, items, history, self.similarity_ij, self.neighbours)
        return np.clip(predicted_p, self.scale[0], self.scale[1])


def fit_item_neighbours(
    train: Ratings,
    settings: ItemNeighboursSettings,
    seed: int = 0,
    watched: Ratings | None = None,
    threads: int = 1,
) -> Fit:
    """Fit means, then similarities between the remaining deviations.

    Neither seed nor threads matter. Raises DataError for more items than one similarity matrix can hold.
    """
    if train.n_items > LARGEST:
        raise DataError(
            f"{train.n_items:,} items are too many for one matrix of similarities",
            f"at most {LARGEST:,}; leave out items with few ratings",
        )
    users, items = settings.user_shrinkage, settings.item_shrinkage
    centre = fit_deviations(train, MeansSettings(user_shrinkage=users, item_shrinkage=items))
    order = np.lexsort((train.items_r, train.users_r))
    users_r, items_r = train.users_r[order], train.items_r[order]
    left_r = (train.ratings_r[order] - centre.baseline(users_r, items_r)).astype(np.float32)
    starts_u = np.searchsorted(users_r, np.arange(train.n_users + 1))
    shape = (train.n_users, train.n_items)
    similarity = similarities(
        sparse.csr_matrix((left_r, items_r, starts_u), shape=shape), settings.shrinkage
    )
    biases = centre.mean, centre.bias_u, centre.bias_i
    history = starts_u, items_r, left_r
    model = ItemNeighbours(*biases, *history, similarity, settings.neighbours, np.array(train.scale))
    errors = interface.WatchedErrors(watched)
    errors.measure(model)
    return errors.finish(model, 1)


def similarities(left_ui: Any, shrinkage: float) -> Floats32:
    """Return (i, i) shrunken correlations between items.

    n_ij / (n_ij + shrinkage) sum e_ui e_uj / sqrt(sum e_ui^2 sum e_uj^2). All sums are over users with both
    items.
    """
    there, squares = left_ui.copy(), left_ui.copy()
    there.data, squares.data = np.ones_like(left_ui.data), left_ui.data**2
    together = (there.T @ there).toarray()
    norms = (squares.T @ there).toarray()  # (i, j): sum of e_ui^2 over users with both
    products = (left_ui.T @ left_ui).toarray()
    scale = np.sqrt(norms * norms.T) * (together + shrinkage)
    similarity = np.divide(products * together, scale, out=np.zeros_like(products), where=scale > 0)
    np.fill_diagonal(similarity, 0)
    return np.asarray(similarity, np.float32)


@compile_kernel
def _predict_deviation(
    users_p: Ints,
    items_p: Ints,
    history: tuple[Ints, Ints, Floats32],
    similarity_ij: Floats32,
    neighbours: int,
) -> Floats:
    """Return sum s (r - c) / sum |s| over similar rated items.

    Among equally similar ones the smaller item comes first.
    """
    starts_u, items_r, left_r = history
    out = np.zeros(len(users_p))
    for p in range(len(users_p)):
        first, last = starts_u[users_p[p]], starts_u[users_p[p] + 1]
        weights = np.empty(last - first)
        for r in range(first, last):
            weights[r - first] = similarity_ij[items_p[p], items_r[r]]
        best = np.argsort(-weights, kind="mergesort")[:neighbours]
        total, weight = 0.0, 0.0
        for n in best:
            if weights[n] > 0:
                total += weights[n] * left_r[first + n]
                weight += weights[n]
        out[p] = total / weight if weight > 0 else 0.0
    return out
