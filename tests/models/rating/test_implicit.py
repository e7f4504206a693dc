"""The contract of learners of scores: a file restores them, a seed repeats them, no rating matters."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from recbench_spark.models.rating.interface import RatingModel
from recbench_spark.models.rating.registry import IMPLICIT, fit, load, make_settings, save
from tests.models.rating.worlds import plant_ratings

NAMES = {"mlp": {"layers": [8, 4]}, "als": {"rank": 5}}
SIZES = {kind: NAMES.get(kind, {"dims": 5}) for kind in IMPLICIT}
"""Small settings of each kind."""


@pytest.mark.parametrize("kind", sorted(IMPLICIT))
def test_scores_repeat_and_come_back(kind: str, tmp_path) -> None:
    train, test = plant_ratings()
    settings = make_settings(SIZES[kind] | {"kind": kind})
    first = fit(train, settings, 1, test)
    assert isinstance(first.model, RatingModel)
    pairs = test.users_r, test.items_r
    assert (first.model.predict(*pairs) == first.watched_p).all()
    assert (fit(train, settings, 1, test, threads=2).watched_p == first.watched_p).all()
    assert (fit(train, settings, 2, test).watched_p != first.watched_p).any()
    assert (load(save(first.model, tmp_path / "m.npz")).predict(*pairs) == first.watched_p).all()


@pytest.mark.parametrize("kind", sorted(IMPLICIT))
def test_only_pairs_matter(kind: str) -> None:
    """WMF takes ratings as targets by default, and 1 for each pair where a file says so."""
    train, test = plant_ratings()
    settings = make_settings(SIZES[kind] | {"kind": kind} | ({"target": "one"} if kind == "wmf" else {}))
    same = dataclasses.replace(train, ratings_r=np.full(len(train), 2.0), scale=(-np.inf, np.inf))
    result = [fit(rows, settings, 1, test).model for rows in (train, same)]
    assert (result[0].q_id == result[1].q_id).all()
