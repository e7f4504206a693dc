"""A linear blend of several models' predictions, its weights by ridge regression on a probe part.

Source: Jahrer, Toescher and Legenstein, "Combining predictions for accurate recommender systems" (KDD
2010), section 3.1; the probe part has trained none of the models.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from recbench_spark.errors import DataError
from recbench_spark.models.rating.interface import REAL, Floats, Scale


class Blend(NamedTuple):
    """mean + sum_m weight_m (prediction_m - mean_m).

    Attributes:
        weights_m: (m,) of each model.
        means_m: (m,) mean prediction of each on the probe part.
        mean: mean rating of the probe part.
        scale: lowest and highest rating.
    """

    weights_m: Floats
    means_m: Floats
    mean: float
    scale: Scale

    def predict(self, predictions_mp: Floats) -> Floats:
        """(p,) the blend of (m, p) predictions, clipped. Raises DataError for another number of models."""
        if len(predictions_mp) != len(self.weights_m):
            raise DataError(
                f"{len(predictions_mp)} models' predictions for a blend of {len(self.weights_m)}",
                "give the predictions of the same models in the same order",
            )
        deviations = np.asarray(predictions_mp) - self.means_m[:, None]
        return np.clip(self.mean + self.weights_m @ deviations, *self.scale)


def fit_blend(
    predictions_mp: Floats, ratings_p: Floats, regulariser: float = 1.0, scale: Scale = REAL
) -> Blend:
    """Minimise sum (rating - blend)^2 + regulariser |weights|^2, deviations from the means taken.

    Raises DataError for no pair, unequal lengths, values that are not finite, a negative regulariser.
    """
    x, y = np.atleast_2d(np.asarray(predictions_mp, float)), np.asarray(ratings_p, float)
    if x.shape[1] != len(y) or not len(y):
        raise DataError(f"{x.shape[1]} predictions for {len(y)} ratings", "one column per probe rating")
    if regulariser < 0 or not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise DataError("a prediction is not finite, or the regulariser negative", "correct the probe part")
    means_m, mean = x.mean(axis=1), float(y.mean())
    centred = x - means_m[:, None]
    gram = centred @ centred.T + regulariser * np.eye(len(x))
    weights_m = np.linalg.lstsq(gram, centred @ (y - mean), rcond=None)[0]
    return Blend(weights_m, means_m, mean, scale)
