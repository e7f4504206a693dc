"""Folding users in on Spark: the kernel's vectors, for users whom training has not seen."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from recbench_spark.config import MllibAlsModel
from recbench_spark.models.fold_in import fold_in_explicit, fold_in_implicit
from recbench_spark.training import mllib_als
from recbench_spark.training.model_adapter import Trained

FACTORS = np.array([[1.0, 0.5], [-0.5, 2.0], [0.25, 0.75]])
GIVEN = [("u", "a", 5.0), ("u", "c", 3.0), ("v", "b", 4.0), ("v", "new", 5.0), ("w", "new", 5.0)]


@pytest.mark.parametrize("kind", ["explicit", "implicit"])
def test_folded_users_have_the_vectors_of_the_kernel(spark, tmp_path: Path, kind: str) -> None:
    """Item "new" is in the catalogue and has no factors: it counts for nothing."""
    items = spark.createDataFrame(
        [("a", 0), ("b", 1), ("new", 2), ("c", 3)], "item_id string, item_index int"
    )
    vectors = zip("abc", FACTORS.tolist(), strict=True)
    factors = spark.createDataFrame(list(vectors), "item_id string, vector array<float>")
    given = spark.createDataFrame(GIVEN, "user_id string, item_id string, rating double")
    model = MllibAlsModel(
        name="als", kind="mllib_als", rank=2, regularization=0.3, alpha=4, implicit=kind == "implicit"
    )
    trained = Trained(items=factors)
    folded = mllib_als.fold_in(
        given, trained, items, model, 4.0, scratch=str(tmp_path / "factors")
    ).collect()
    by_user = {row.user_id: row.vector for row in folded}
    if kind == "explicit":
        offsets, rated = np.array([0, 2, 3]), np.array([0, 2, 1])
        wanted = fold_in_explicit(offsets, rated, np.array([5.0, 3.0, 4.0]), FACTORS, 0.3)
    else:
        wanted = fold_in_implicit(np.array([0, 1, 2]), np.array([0, 1]), np.ones(2), FACTORS, 0.3, alpha=4)
    assert set(by_user) == {"u", "v"}
    assert by_user["u"] == pytest.approx(wanted[0], rel=1e-5)
    assert by_user["v"] == pytest.approx(wanted[1], rel=1e-5)
