"""Fold-in of prefixes by rating models, with their fitted settings."""

from __future__ import annotations

import numpy as np

from recbench_spark.core.arrays import Bools
from recbench_spark.errors import ConfigError
from recbench_spark.models.fold_in_settings import ConfidenceFoldIn, FoldInSettings, PairFoldIn, RidgeFoldIn
from recbench_spark.models.prefix_vectors import PrefixFolder
from recbench_spark.models.rating.als import AlsSettings, ImplicitAlsSettings, ProductAlsSettings
from recbench_spark.models.rating.interface import RatingModel, RatingSettings
from recbench_spark.models.rating.sgd import RatingFactorModel, SgdSettings

FOLDING_KINDS = ("als", "als_wr", "implicit_als", "sgd_mf")
"""Kinds whose users follow from fixed items by one ridge regression."""


def choose_fold_in(
    settings: RatingSettings, items: int | None = None, threshold: float | None = None
) -> FoldInSettings:
    """Return a fitted model's fold-in.

    Args:
        settings: settings of the fit.
        items: number of items in the ridge of iALS, as in the fit; None: only items known in training.
        threshold: lowest rating of a liked row, for models of pairs; None: above 0.

    Raises:
        ConfigError: this kind cannot fold users in, or not without a regulariser.
    """
    if isinstance(settings, ImplicitAlsSettings):
        strengths = (settings.unobserved_weight, settings.regulariser, settings.frequency)
        return PairFoldIn(*strengths, items, threshold)
    if isinstance(settings, AlsSettings):
        return RidgeFoldIn(settings.regulariser, settings.regulariser)
    if isinstance(settings, ProductAlsSettings):
        return _choose_product_ridge(settings, threshold)
    if isinstance(settings, SgdSettings):
        return _choose_sgd_ridges(settings)
    raise ConfigError(
        f"a model of kind '{settings.kind}' cannot fold users in", f"kinds: {', '.join(FOLDING_KINDS)}"
    )


def _choose_product_ridge(settings: ProductAlsSettings, threshold: float | None) -> FoldInSettings:
    ridge = settings.regularization
    if not ridge:
        raise ConfigError(
            "als: a regulariser of 0 leaves users with few ratings without a solution",
            "regularization above 0",
        )
    if settings.implicit:
        return ConfidenceFoldIn(ridge, settings.alpha, threshold, settings.frequency)
    return RidgeFoldIn(ridge, frequency=settings.frequency)


def make_prefix_folder(
    settings: RatingSettings, model: RatingModel, known_i: Bools, threshold: float | None = None
) -> PrefixFolder:
    """Make the prefix folder for a fitted model in memory.

    A task in a night makes the same one from stored vectors.

    Args:
        settings: settings of the fit.
        model: its result.
        known_i: items with training rows.
        threshold: lowest rating of a liked row, for models of pairs; None: above 0.

    Raises:
        ConfigError: as `choose_fold_in`.
    """
    fold_in = choose_fold_in(settings, len(known_i), threshold)
    assert isinstance(model, RatingFactorModel)
    vectors_id = np.where(known_i[:, None], model.q_id, np.float32(0))
    return fold_in.make_folder(vectors_id, np.asarray(model.bias_i + model.mean, np.float64), known_i)


def _choose_sgd_ridges(settings: SgdSettings) -> RidgeFoldIn:
    """Return the ridges on a user's factors and bias.

    A model without biases has no ridge for them.
    """
    ridges = settings.regularisers
    if "users" in settings.centring:
        raise ConfigError(
            f"sgd_mf: centring '{settings.centring}' subtracts means of users, which no fold-in has",
            "centring: global, items or none",
        )
    if not (ridges.user_factors and (ridges.user_biases or not settings.biases)):
        raise ConfigError(
            "sgd_mf: a regulariser of 0 leaves users with few ratings without a solution",
            "regularisers.user_factors and regularisers.user_biases above 0",
        )
    return RidgeFoldIn(ridges.user_factors, ridges.user_biases if settings.biases else None)
