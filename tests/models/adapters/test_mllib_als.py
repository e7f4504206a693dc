"""`als` beside the ALS of MLlib: both reach the same objective on the same rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recbench_spark.config import MllibAlsModel
from recbench_spark.models.adapters.mllib_als import train_als
from recbench_spark.models.rating.als import ProductAlsSettings, fit_product_als
from recbench_spark.models.rating.interface import check_ratings

USERS, ITEMS = 40, 25


def draw_rows() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of a world of two tastes, each user with some items of either."""
    draw = np.random.default_rng(6)
    taste = np.abs(np.subtract.outer(np.arange(USERS) % 2, np.arange(ITEMS) % 2))
    users, items = np.nonzero(draw.random(taste.shape) < np.where(taste, 0.15, 0.5))
    return users, items, np.clip(4.0 - 2 * taste[users, items] + draw.integers(-1, 2, len(users)), 1, 5)


def objective(settings: Any, p_ud: np.ndarray, q_id: np.ndarray) -> float:
    """Sum over all cells as MLlib states it, with each row's ridge times its number of rows."""
    users, items, ratings = draw_rows()
    seen, stars = np.zeros((USERS, ITEMS)), np.zeros((USERS, ITEMS))
    seen[users, items], stars[users, items] = 1, ratings
    weight, target = (1 + settings.alpha * seen, seen) if settings.implicit else (seen, stars)
    lengths = (seen.sum(1) * (p_ud**2).sum(1)).sum() + (seen.sum(0) * (q_id**2).sum(1)).sum()
    return float((weight * (target - p_ud @ q_id.T) ** 2).sum() + settings.regularization * lengths)


@pytest.mark.parametrize("implicit", [True, False])
def test_both_reach_the_same_objective(spark: Any, tmp_path: Path, implicit: bool) -> None:
    """The value of MLlib lies among those of eight of our starts, which differ by a few per cent."""
    users, items, ratings = draw_rows()
    same = {"rank": 3, "iterations": 40, "regularization": 0.05, "alpha": 8.0, "implicit": implicit}
    settings = ProductAlsSettings(**same)
    known = check_ratings(users, items, ratings, (1, 5), n_users=USERS, n_items=ITEMS)
    ours = [fit_product_als(known, settings, seed).model for seed in range(8)]
    values = sorted(objective(settings, model.p_ud, model.q_id) for model in ours)
    rows = [(f"{u:02}", f"{i:02}", float(r)) for u, i, r in zip(users, items, ratings, strict=True)]
    train = spark.createDataFrame(rows, "user_id string, item_id string, rating double")
    catalogue = spark.createDataFrame(
        [(f"{i:02}", i) for i in range(ITEMS)], "item_id string, item_index int"
    )
    theirs = train_als(
        train, catalogue, MllibAlsModel(name="m", kind="mllib_als", **same), None, str(tmp_path)
    )
    assert theirs.users is not None and theirs.items is not None
    tables = [np.zeros((USERS, 3)), np.zeros((ITEMS, 3))]
    for table, side, name in zip(tables, (theirs.users, theirs.items), ("user_id", "item_id"), strict=True):
        for row in side.collect():
            table[int(row[name])] = row.vector
    value = objective(settings, *tables)
    assert values[0] * 0.995 <= value <= values[-1] * 1.005, (value, values)
    assert values[-1] <= values[0] * 1.05, values
