"""Shrunken means of users and items: the baseline for rating models.

r_ui = mu + b_u + b_i. Means shrink towards the overall mean mu. The deviation of the first side is
b_i = sum_{u of i} (r_ui - mu) / (n_i + k_I), and of the other
b_u = sum_{i of u} (r_ui - mu - b_i) / (n_u + k_U).

Source: Koren and Bell, "Advances in collaborative filtering" (2011), section 5.2.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from recbench_spark.core.arrays import Floats, Ints
from recbench_spark.models.rating import interface
from recbench_spark.models.rating.interface import Fit, Ratings
from recbench_spark.models.settings import ModelConfig


class MeansSettings(interface.RatingSettings):
    """Settings: which means, in which order, and their shrinkage.

    Shrinkage counts ratings at the overall mean.
    """

    kind: Literal["means"] = "means"
    means: Literal["global", "users", "items", "items_users", "users_items"] = "items_users"
    """The means, in the order of subtraction."""
    user_shrinkage: Annotated[float, Field(ge=0)] = 10.0
    """Pseudo-ratings at the overall mean added to each user's ratings."""
    item_shrinkage: Annotated[float, Field(ge=0)] = 25.0
    """Pseudo-ratings at the overall mean added to each item's ratings."""


@dataclass(frozen=True)
class RatingMeans:
    """Predicts mu + b_u + b_i, clipped to the scale.

    Attributes:
        mean: mu, the mean of all ratings.
        bias_u: (users,) b_u; 0 for users without ratings.
        bias_i: (items,) b_i.
        scale: (2,) lowest and highest rating.
    """

    mean: float
    bias_u: Floats
    bias_i: Floats
    scale: Floats

    kind: ClassVar[str] = "means"

    def predict(self, users_p: Ints, items_p: Ints, times_p: Ints | None = None) -> Floats:
        """Return (p,) mu + b_u + b_i.

        An unseen user or item has deviation 0.
        """
        return np.clip(self.baseline(users_p, items_p), self.scale[0], self.scale[1])

    def baseline(self, users_p: Ints, items_p: Ints) -> Floats:
        """Return (p,) the same sum, not clipped."""
        users = interface.indices_with_unseen(users_p, len(self.bias_u), "user")
        items = interface.indices_with_unseen(items_p, len(self.bias_i), "item")
        return np.asarray(
            self.mean
            + interface.add_unseen_row(self.bias_u)[users]
            + interface.add_unseen_row(self.bias_i)[items]
        )


def fit_means(
    train: Ratings, settings: MeansSettings, seed: int = 0, watched: Ratings | None = None, threads: int = 1
) -> Fit:
    """Fit the training means; neither seed nor threads matter."""
    model = fit_deviations(train, settings)
    errors = interface.WatchedErrors(watched)
    errors.measure(model)
    return errors.finish(model, 1)


def fit_deviations(train: Ratings, settings: MeansSettings) -> RatingMeans:
    """Fit one side's deviations, then the other's from the remainder."""
    mean = float(train.ratings_r.mean())
    left_r = train.ratings_r - mean
    bias = {"users": np.zeros(train.n_users), "items": np.zeros(train.n_items)}
    rows = {"users": train.users_r, "items": train.items_r}
    shrinkage = {"users": settings.user_shrinkage, "items": settings.item_shrinkage}
    for side in settings.means.split("_"):
        if side != "global":
            sums = np.bincount(rows[side], left_r, minlength=len(bias[side]))
            counts = np.bincount(rows[side], minlength=len(bias[side]))
            bias[side] = sums / np.maximum(counts + shrinkage[side], np.finfo(np.float64).tiny)
            left_r = left_r - bias[side][rows[side]]
    return RatingMeans(mean, bias["users"], bias["items"], np.array(train.scale))


class MeansModel(MeansSettings, ModelConfig):
    """Predicts r_ui = mu + b_i + b_u, with shrunk means.

    The settings are those of `rating.means`. A night fits the model on the cluster
    (`models.adapters.means`). Among many fits it is one task like the others. Items without training rows
    are in no list.
    """

    adapter: ClassVar[str] = "means:MeansAdapter"
    revised: ClassVar[tuple[str, ...]] = ("trained_items",)
    kind: Literal["means"]
