"""A model of another package in a few lines: it imports neither Spark nor torch."""

from __future__ import annotations

from typing import Literal

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
