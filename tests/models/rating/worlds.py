"""Small worlds of ratings with a planted structure, and settings under which each learner is quick."""

from __future__ import annotations

from functools import cache

import numpy as np

from recbench_spark.models.rating.interface import Ratings, check_ratings

SMALL = {
    "rbm": {"dims": 8, "rate": 0.05, "epochs": 60},
    "als_wr": {"dims": 3},
    "item_neighbours": {"shrinkage": 5},
    "nsvd1": {"dims": 3, "rate": 0.05, "epochs": 40},
    "bayesian_mf": {"features": "u,i,t,iu,ii", "dims": 3, "samples": 12},
    "sgd_mf": {"dims": 3, "epochs": 20, "rates": 0.02},
}


@cache
def plant_ratings(
    users: int = 60, items: int = 40, dims: int = 2, noise: float = 0.3
) -> tuple[Ratings, Ratings]:
    """Train and test ratings in half stars, with biases, factors and times: about 1,200 and 130."""
    rng = np.random.default_rng(8)
    truth = 3 + rng.normal(0, 0.5, (users, 1)) + rng.normal(0, 0.5, (1, items))
    truth += rng.normal(0, 0.7, (users, dims)) @ rng.normal(0, 0.7, (dims, items))
    u, i = np.nonzero(rng.random((users, items)) < 0.55)
    values = np.clip(np.round(2 * (truth[u, i] + rng.normal(0, noise, len(u)))) / 2, 1, 5)
    times = rng.integers(0, 50, len(u)) * 86_400
    ratings = check_ratings(u, i, values, (1, 5), times, n_users=users, n_items=items)
    out = rng.random(len(u)) < 0.1
    return ratings.rows(~out), ratings.rows(out)
