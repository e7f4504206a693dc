"""All rating models by kind: settings from a file, a fit from settings, a model from a file.

To add one, write a module with settings (a `kind`), a function with the signature of `interface.FitCall`
and a frozen dataclass that predicts, and add one line here.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from recbench_spark.config import parse
from recbench_spark.errors import ConfigError, nearest
from recbench_spark.models.rating import storage
from recbench_spark.models.rating.als import AlsSettings, ImplicitAlsSettings, fit_als, fit_implicit_als
from recbench_spark.models.rating.bayesian import BayesianModel, BayesianSettings, fit_bayesian
from recbench_spark.models.rating.interface import (
    Fit,
    FitCall,
    RatingModel,
    Ratings,
    RatingSettings,
)
from recbench_spark.models.rating.item_neighbours import (
    ItemNeighbours,
    ItemNeighboursSettings,
    fit_item_neighbours,
)
from recbench_spark.models.rating.logistic import LogisticSettings, fit_logistic
from recbench_spark.models.rating.means import MeansSettings, RatingMeans, fit_means
from recbench_spark.models.rating.nsvd import NsvdSettings, fit_nsvd
from recbench_spark.models.rating.rbm import Rbm, RbmSettings, fit_rbm
from recbench_spark.models.rating.sgd import RatingFactorModel, SgdSettings, fit_sgd


class Family(NamedTuple):
    """The settings, learner and model of a kind."""

    settings: type[RatingSettings]
    fit: FitCall
    model: type[Any]


FAMILIES: dict[str, Family] = {
    "als_wr": Family(AlsSettings, fit_als, RatingFactorModel),
    "bayesian_mf": Family(BayesianSettings, fit_bayesian, BayesianModel),
    "item_neighbours": Family(ItemNeighboursSettings, fit_item_neighbours, ItemNeighbours),
    "means": Family(MeansSettings, fit_means, RatingMeans),
    "nsvd1": Family(NsvdSettings, fit_nsvd, RatingFactorModel),
    "rbm": Family(RbmSettings, fit_rbm, Rbm),
    "sgd_mf": Family(SgdSettings, fit_sgd, RatingFactorModel),
}

IMPLICIT: dict[str, Family] = {
    "implicit_als": Family(ImplicitAlsSettings, fit_implicit_als, RatingFactorModel),
    "logistic_mf": Family(LogisticSettings, fit_logistic, RatingFactorModel),
}
"""Learners of ranking scores; they learn from the pairs and not from their ratings."""

ALL_FAMILIES = FAMILIES | IMPLICIT


def make_settings(document: Mapping[str, Any], where: str = "settings") -> RatingSettings:
    """Return checked settings from a document of a file; `kind` chooses the learner.

    Raises ConfigError with the path of the key and the nearest known one.
    """
    kind = str(document.get("kind", ""))
    if kind not in ALL_FAMILIES:
        raise ConfigError(f"{where}: kind: no rating model is called '{kind}'", nearest(kind, ALL_FAMILIES))
    return parse(ALL_FAMILIES[kind].settings, dict(document), where)


def fit(
    train: Ratings, settings: RatingSettings, seed: int, watched: Ratings | None = None, threads: int = 1
) -> Fit:
    """Fit the learner of these settings."""
    return ALL_FAMILIES[settings.kind].fit(train, settings, seed, watched, threads)


def save(model: RatingModel, path: str | Path) -> Path:
    """Write a model to one `.npz` file."""
    return storage.save(model, path)


def load(path: str | Path) -> RatingModel:
    """Read a model of any kind. Raise DataError if the file holds none."""
    kinds = {family.model.kind: family.model for family in ALL_FAMILIES.values()}
    model: RatingModel = storage.load(path, kinds)
    return model
