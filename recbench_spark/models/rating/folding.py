"""Fold-in of prefixes by the rating models that allow it, with the settings that they were fitted with."""

from __future__ import annotations

import numpy as np

from recbench_spark.errors import ConfigError
from recbench_spark.kernels.arrays import Bools
from recbench_spark.models.prefix_fold_in import decompose_items
from recbench_spark.models.prefix_vectors import PairFolder, PrefixFolder, RatingFolder
from recbench_spark.models.rating.als import AlsSettings, ImplicitAlsSettings
from recbench_spark.models.rating.interface import RatingModel, RatingSettings
from recbench_spark.models.rating.sgd import RatingFactorModel, SgdSettings

FOLDING_KINDS = ("als_wr", "implicit_als", "sgd_mf")
"""Kinds whose users follow from fixed items by one ridge regression."""


def make_prefix_folder(
    settings: RatingSettings, model: RatingModel, known_i: Bools, threshold: float | None = None
) -> PrefixFolder:
    """Make the folder of a fitted model.

    Args:
        settings: those of the fit.
        model: its result.
        known_i: items with training rows.
        threshold: lowest rating of a liked row, for models of pairs; None: above 0.

    Raises:
        ConfigError: users of this kind of model cannot be folded in, or not without a regulariser.
    """
    if not isinstance(model, RatingFactorModel) or settings.kind not in FOLDING_KINDS:
        raise ConfigError(
            f"a model of kind '{settings.kind}' cannot fold users in", f"kinds: {', '.join(FOLDING_KINDS)}"
        )
    factors_id = np.where(known_i[:, None], model.q_id, 0.0).astype(np.float64)
    if isinstance(settings, ImplicitAlsSettings):
        spectrum = decompose_items(factors_id, settings.unobserved_weight)
        strengths = (settings.unobserved_weight, settings.regulariser, settings.frequency)
        return PairFolder(factors_id, known_i, spectrum, *strengths, threshold)
    ridge, bias_ridge = _find_ridges(settings)
    return RatingFolder(factors_id, known_i, ridge, float(model.mean), model.bias_i, bias_ridge)


def _find_ridges(settings: RatingSettings) -> tuple[float, float | None]:
    """Return the regularisers of a user's factors and bias; None: users have no bias."""
    if isinstance(settings, AlsSettings):
        return settings.regulariser, settings.regulariser
    assert isinstance(settings, SgdSettings)
    ridges = settings.regularisers
    if not (ridges.user_factors and (ridges.user_biases or not settings.biases)):
        raise ConfigError(
            "sgd_mf: a regulariser of 0 leaves users with few ratings without a solution",
            "regularisers.user_factors and regularisers.user_biases above 0",
        )
    return ridges.user_factors, ridges.user_biases if settings.biases else None
