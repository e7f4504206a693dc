"""Vectors and ranks of all kinds of fold-in against a refit of each prefix, written with dense matrices.

Vectors are equal within 1e-10 before they
are rounded to float32. Ranks are equal where both roundings are; other prefixes are counted.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from recbench_spark.analyses.curves.learning_curves import CurveRequest, CurveUsers, measure_prefixes
from recbench_spark.core.arrays import Floats
from recbench_spark.core.definitions import Definition
from recbench_spark.models.prefix_vectors import (
    ConfidenceFoldIn,
    FoldInSettings,
    PairFoldIn,
    PrefixFolder,
    RidgeFoldIn,
    RoundedFolder,
)
from recbench_spark.ranking.kernels.scorers import DotScorer
from recbench_spark.splits.kernels.prefixes import PrefixRule
from tests.refits import RefittingFolder

USERS, ITEMS, DIMS, POINTS = 60, 90, 8, 12
LIKED = 4.0

FOLD_INS: dict[str, FoldInSettings] = {
    "als": ConfidenceFoldIn(0.05, 10.0, LIKED),
    "explicit als": RidgeFoldIn(0.1),
    "als_wr, sgd_mf": RidgeFoldIn(0.05, 0.2),
    "embeddings of ratings": RidgeFoldIn(0.3, 1.0),
    "implicit_als": PairFoldIn(0.1, 0.003, 1.0, ITEMS + 7, LIKED),
    "mf_bpr, lightgcn, embeddings": PairFoldIn(0.2, 0.02, 0.5, threshold=LIKED),
}


def draw_model() -> tuple[Any, Floats, Any]:
    """Draw float32 item vectors, biases, and which items training knows."""
    draw = np.random.default_rng(8)
    known_i = draw.random(ITEMS) < 0.95
    vectors_id = np.where(known_i[:, None], draw.normal(size=(ITEMS, DIMS)), 0).astype(np.float32)
    return vectors_id, np.where(known_i, draw.normal(size=ITEMS), 0.0), known_i


def draw_users() -> CurveUsers:
    """Draw users with 15 to 30 items each."""
    draw = np.random.default_rng(9)
    rows = [draw.choice(ITEMS, draw.integers(15, 31), replace=False) for _ in range(USERS)]
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])])
    items = np.concatenate(rows).astype(np.int64)
    return CurveUsers(np.arange(USERS), offsets, items, draw.integers(1, 6, len(items)).astype(float))


@pytest.mark.full
@pytest.mark.parametrize("kind", FOLD_INS)
def test_vectors_equal_refits_before_they_are_rounded(kind: str) -> None:
    model, users, fold_in = draw_model(), draw_users(), FOLD_INS[kind]
    rows = (users.offsets, users.items_p, users.ratings_p)
    folder = fold_in.make_folder(*model)
    assert isinstance(folder, RoundedFolder)
    solved_pd, known_p = folder.solve(*rows)
    exact_pd, expected_p = RefittingFolder(fold_in, model).solve(*rows)
    assert known_p.tolist() == expected_p.tolist()
    assert np.abs(exact_pd).max() > 0.1
    np.testing.assert_allclose(solved_pd, exact_pd, rtol=0, atol=1e-10)
    assert folder.fold(*rows).vectors_pd.tobytes() == solved_pd.astype(np.float32).tobytes()


@pytest.mark.parametrize("test", ["common", "rest"])
@pytest.mark.parametrize("kind", FOLD_INS)
def test_ranks_equal_those_of_refits(kind: str, test: Any) -> None:
    model, users, fold_in = draw_model(), draw_users(), FOLD_INS[kind]
    folders: list[PrefixFolder] = [fold_in.make_folder(*model), RefittingFolder(fold_in, model)]
    vectors = [one.fold(users.offsets, users.items_p, users.ratings_p).vectors_pd for one in folders]
    rounded_apart = (vectors[0] != vectors[1]).any(axis=1).mean()
    assert rounded_apart <= 1e-4
    rule = PrefixRule(tuple(range(1, POINTS + 1)), test=test)
    request = CurveRequest(rule, ("ndcg", "percentile_rank"), (5,), Definition(threshold=LIKED), uncut=True)
    scorer = DotScorer(model[0], model[1], model[2])
    values = [measure_prefixes(scorer, one, users, request) for one in folders]
    for name in values[0]:
        assert np.isfinite(values[0][name]).any()
        np.testing.assert_array_equal(values[0][name], values[1][name])
