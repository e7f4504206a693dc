"""Models of another package in a few lines each: they import neither Spark nor torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from recbench_spark.models.rating.interface import Ratings
from recbench_spark.models.rating.kinds import VectorModel
from recbench_spark.models.rating.own import Vectors


class PureSvd(VectorModel):
    """The leading singular vectors of the matrix of ratings (Cremonesi, Koren and Turrin 2010)."""

    kind: Literal["pure_svd"]
    dims: int = 4
    wrong: Literal["", "rows", "text", "nan", "width", "bias"] = ""

    def fit(self, ratings: Ratings, seed: int) -> Vectors:
        """Return U S and V of the dense matrix."""
        dense = np.zeros((ratings.n_users, ratings.n_items))
        dense[ratings.users_r, ratings.items_r] = ratings.ratings_r
        u, s, vt = np.linalg.svd(dense, full_matrices=False)
        users, items = (u * s)[:, : self.dims], vt[: self.dims].T
        return {
            "": Vectors(users, items),
            "rows": Vectors(users[:-1], items),
            "text": Vectors(users.astype(str), items),
            "nan": Vectors(users * np.nan, items),
            "width": Vectors(users, items[:, :-1]),
            "bias": Vectors(users, items, np.zeros(2)),
        }[self.wrong]


@dataclass(frozen=True)
class Distances:
    """Places of users and items: the score is minus their distance, which is no product."""

    users_ud: Any
    items_id: Any
    wrong: str = ""

    def score(self, users: Any, items: Any) -> Any:
        """Return (users, items) numbers."""
        apart = self.users_ud[users][:, None] - self.items_id[items][None]
        scores = -np.linalg.norm(apart, axis=2)
        return {"": scores, "shape": scores.T, "text": scores.astype(str), "nan": scores * np.nan}[
            self.wrong
        ]


class NearestPlace(VectorModel):
    """Users stand in the middle of the items that they rated."""

    kind: Literal["nearest_place"]
    wrong: Literal["", "shape", "text", "nan", "list", "nothing"] = ""

    def fit(self, ratings: Ratings, seed: int) -> Any:
        """Return places in the plane."""
        items = np.random.default_rng(seed).normal(size=(ratings.n_items, 2))
        places = np.zeros((ratings.n_users, 2))
        np.add.at(places, ratings.users_r, items[ratings.items_r])
        places /= np.maximum(np.bincount(ratings.users_r, minlength=ratings.n_users), 1)[:, None]
        if self.wrong == "nothing":
            return None
        return Distances(places, [print] if self.wrong == "list" else items, self.wrong)
