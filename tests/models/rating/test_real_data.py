"""Rating models on MovieLens 100K, its first fifth held out: the order of models that the papers found."""

from __future__ import annotations

import numpy as np
import pytest

from recbench_spark.models.rating.interface import Ratings, check_ratings
from recbench_spark.models.rating.registry import fit, make_settings


def first_fifth(folder) -> tuple[Ratings, Ratings]:
    """u1: the first 20,000 rows of u.data are the test part."""
    rows = np.loadtxt(folder / "ml-100k" / "u.data", dtype=np.int64)
    users, items = (np.unique(rows[:, column], return_inverse=True)[1] for column in (0, 1))
    ratings = check_ratings(users, items, rows[:, 2], (1, 5), rows[:, 3])
    out = np.arange(len(ratings)) < 20_000
    return ratings.rows(~out), ratings.rows(out)


@pytest.mark.data
@pytest.mark.slow
def test_models_in_the_papers_order(shared_data) -> None:
    train, test = first_fifth(shared_data)

    def error(**settings) -> float:
        return float(fit(train, make_settings(settings), 1, test).rmse_s[-1])

    gibbs = {"kind": "bayesian_mf", "dims": 8, "samples": 64, "keep": 0}
    result = [
        error(kind="means", means="global"),
        error(kind="means"),
        error(kind="item_neighbours"),
        error(**gibbs),
        error(**gibbs, features="u,i,iu"),
        error(**gibbs, features="u,i,t,iu"),
        error(**gibbs, features="u,i,t,iu,ii"),
    ]
    assert (np.diff(result) < 0).all(), np.round(result, 4)
    assert result[3] < 0.915 and result[-1] < 0.895
