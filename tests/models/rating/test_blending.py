"""Ridge blends: by hand, against scikit-learn, and their mistakes."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import Ridge

from recbench_spark.errors import DataError
from recbench_spark.models.rating.blending import fit_blend


def test_by_hand() -> None:
    """Predictions 1, 3, ratings 2, 6: deviations -1, 1 and -2, 2, so the weight is 4 / (2 + 2) = 1."""
    blend = fit_blend([[1, 3]], [2, 6], regulariser=2, scale=(1, 5))
    assert (blend.weights_m.tolist(), blend.mean) == ([pytest.approx(1)], 4)
    assert blend.predict(np.array([[1.5, 9.0]])).tolist() == pytest.approx([3.5, 5])


@pytest.mark.parametrize("regulariser", [0.0, 0.5, 20.0])
def test_equals_scikit_learn(regulariser: float) -> None:
    rng = np.random.default_rng(1)
    x, y = rng.normal(3, 1, (4, 60)), rng.normal(3, 1, 60)
    blend, theirs = fit_blend(x, y, regulariser), Ridge(alpha=regulariser).fit(x.T, y)
    assert blend.weights_m == pytest.approx(theirs.coef_, abs=1e-10)
    assert blend.predict(x) == pytest.approx(theirs.predict(x.T), abs=1e-10)


def test_two_equal_models_share_the_weight() -> None:
    x = np.array([[1.0, 2.0, 3.0]] * 2)
    assert fit_blend(x, x[0], regulariser=0).weights_m == pytest.approx([0.5, 0.5])


def test_mistakes_are_named() -> None:
    with pytest.raises(DataError, match="3 predictions for 2 ratings"):
        fit_blend(np.ones((1, 3)), np.ones(2))
    with pytest.raises(DataError, match="not finite"):
        fit_blend(np.full((1, 2), np.nan), np.ones(2))
    with pytest.raises(DataError, match="1 models' predictions for a blend of 2"):
        fit_blend(np.eye(2), np.ones(2)).predict(np.ones((1, 2)))
