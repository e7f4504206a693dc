"""All rating models by kind: parse settings, fit, save and load.

To add one, write a module with settings (a `kind`), a function with the signature of `interface.FitCall`
and a frozen dataclass which predicts, and add one line here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

import numpy as np

from recbench_spark.config import parse
from recbench_spark.core.extras import explain_missing
from recbench_spark.errors import ConfigError, DataError, nearest
from recbench_spark.models.rating.adam_factors import GmfSettings, WmfSettings, fit_gmf, fit_wmf
from recbench_spark.models.rating.als import (
    AlsSettings,
    ImplicitAlsSettings,
    ProductAlsSettings,
    ProductModel,
    fit_als,
    fit_implicit_als,
    fit_product_als,
)
from recbench_spark.models.rating.bayesian import (
    BayesianModel,
    BayesianSettings,
    check_ranking,
    fit_bayesian,
)
from recbench_spark.models.rating.interface import Fit, FitCall, RatingModel, Ratings, RatingSettings
from recbench_spark.models.rating.item_neighbours import (
    ItemNeighbours,
    ItemNeighboursSettings,
    fit_item_neighbours,
)
from recbench_spark.models.rating.logistic import LogisticSettings, fit_logistic
from recbench_spark.models.rating.means import MeansSettings, RatingMeans, fit_means
from recbench_spark.models.rating.neural_factors import (
    MlpSettings,
    NetworkModel,
    NeumfSettings,
    fit_network,
)
from recbench_spark.models.rating.nsvd import NsvdSettings, fit_nsvd
from recbench_spark.models.rating.own import KIND, OwnModel, VectorLearner, fit_vectors, make_own_model
from recbench_spark.models.rating.rbm import Rbm, RbmSettings, fit_rbm
from recbench_spark.models.rating.sgd import RatingFactorModel, SgdSettings, fit_sgd
from recbench_spark.models.settings import import_class


class Family(NamedTuple):
    """One kind's settings, learner and model."""

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
    "als": Family(ProductAlsSettings, fit_product_als, ProductModel),
    "gmf": Family(GmfSettings, fit_gmf, RatingFactorModel),
    "implicit_als": Family(ImplicitAlsSettings, fit_implicit_als, RatingFactorModel),
    "logistic_mf": Family(LogisticSettings, fit_logistic, RatingFactorModel),
    "mlp": Family(MlpSettings, fit_network, NetworkModel),
    "neumf": Family(NeumfSettings, fit_network, NetworkModel),
    "wmf": Family(WmfSettings, fit_wmf, RatingFactorModel),
}
"""Learners of ranking scores. Scores are no ratings, even if a learner reads the ratings (wmf). With
`implicit: false`, `als` predicts ratings."""

ALL_FAMILIES = FAMILIES | IMPLICIT


def gives_scores(settings: Mapping[str, Any]) -> bool:
    """Return true for a learner whose scores are no ratings.

    Such learners are IMPLICIT and every `module:Class`.
    """
    kind = settings["kind"]
    return ":" in kind or bool(settings.get("implicit", kind in IMPLICIT))


def gives_ratings(model: Any) -> bool:
    """Return true if a learner here predicts ratings.

    `model`: the settings of a learner or a model.
    """
    return model.kind in ALL_FAMILIES and not gives_scores(model.model_dump())


def learns_relevant(settings: Mapping[str, Any]) -> bool:
    """Return true for a score learner which takes only relevant pairs."""
    return gives_scores(settings) and settings.get("positives", "relevant") == "relevant"


def check_ranking_model(settings: RatingSettings, model: str) -> None:
    """Check that a fitted model can rank.

    A model ranks by vectors, or by its own scores (`interface.ScoringModel`). Users' classes
    (`module:Class`) show this only after their fit.

    Raises ConfigError with the model and the reason.
    """
    if isinstance(settings, BayesianSettings):
        check_ranking(settings, model)
    elif not isinstance(settings, VectorLearner) and not _gives_ranking(ALL_FAMILIES[settings.kind].model):
        raise ConfigError(
            f"model {model}: kind '{settings.kind}' predicts pairs and ranks nothing",
            "evaluation.task: rating",
        )


def _gives_ranking(model: type[RatingModel]) -> bool:
    return issubclass(model, RatingFactorModel) or hasattr(model, "score")


def make_settings(document: Mapping[str, Any], where: str = "settings") -> RatingSettings:
    """Return checked settings from a document; `kind` chooses the learner.

    Raises ConfigError with the key's path and the nearest known one.
    """
    kind = str(document.get("kind", ""))
    if ":" in kind:
        import_class(kind)
        return parse(VectorLearner, dict(document), where)
    if kind not in ALL_FAMILIES:
        raise ConfigError(f"{where}: kind: no rating model is called '{kind}'", nearest(kind, ALL_FAMILIES))
    return parse(ALL_FAMILIES[kind].settings, dict(document), where)


def fit(
    train: Ratings, settings: RatingSettings, seed: int, watched: Ratings | None = None, threads: int = 1
) -> Fit:
    """Fit the learner these settings belong to.

    Raises MissingPackageError where it needs an extra.
    """
    if isinstance(settings, VectorLearner):
        return fit_vectors(train, settings, seed, watched)
    with explain_missing():
        return ALL_FAMILIES[settings.kind].fit(train, settings, seed, watched, threads)


def save(model: RatingModel, path: str | Path) -> Path:
    """Write a model's fields and kind to one `.npz` file.

    The file holds arrays and numbers, never a pickle.
    """
    if isinstance(model, OwnModel):
        arrays, kind = model.list_arrays(), model.class_name
    else:
        arrays, kind = _list_fields(model), model.kind
    with Path(path).open("wb") as file:
        np.savez(file, **{KIND: np.asarray(kind)}, **arrays)  # type: ignore[arg-type]
    return Path(path)


def _list_fields(model: RatingModel) -> dict[str, Any]:
    fields = {field.name: getattr(model, field.name) for field in dataclasses.fields(model)}  # type: ignore[arg-type]
    return {name: np.asarray(value) for name, value in fields.items() if value is not None}


def load(path: str | Path) -> RatingModel:
    """Read a model of any kind from a file by `save`.

    Raises DataError if the file holds no such model or lacks a field.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, BadZipFile) as error:
        raise DataError(f"{path} holds no model: {error}", "give a file that save() wrote") from None
    return make_stored_model(arrays, path)


def make_stored_model(arrays: Mapping[str, Any], path: str | Path) -> RatingModel:
    """Make a model from its file's arrays, which may be mapped.

    `path` names the file in errors. Raises DataError for an unknown kind, or if a field is missing.
    """
    kinds = {family.model.kind: family.model for family in ALL_FAMILIES.values()}
    kind = str(arrays.get(KIND, ""))
    fields = {name: array for name, array in arrays.items() if name != KIND}
    if ":" in kind:
        return make_own_model(kind, fields)
    if kind not in kinds:
        raise DataError(f"{path} holds a model of kind '{kind}'", nearest(kind, kinds))
    model: RatingModel = _make_model(kinds[kind], fields, path)
    return model


def _make_model(model: type[Any], arrays: dict[str, Any], path: str | Path) -> Any:
    fields = dataclasses.fields(model)
    missing = [f.name for f in fields if f.name not in arrays and f.default is dataclasses.MISSING]
    if missing or not set(arrays) <= {f.name for f in fields}:
        names = ", ".join(f.name for f in fields)
        raise DataError(f"{path} has fields {sorted(arrays)}", f"a model of kind {model.kind} has {names}")
    return model(**{name: _plain(array) for name, array in arrays.items()})


def _plain(array: Any) -> Any:
    """Convert arrays without dimensions to numbers; keep others."""
    if array.ndim == 0:
        return array.item()
    return array
