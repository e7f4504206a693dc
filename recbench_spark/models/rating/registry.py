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
from recbench_spark.core.arrays import Bools
from recbench_spark.core.extras import explain_missing
from recbench_spark.errors import ConfigError, DataError, nearest
from recbench_spark.models.prefix_vectors import PrefixFolder
from recbench_spark.models.rating import (
    adam_factors,
    als,
    bayesian,
    item_neighbours,
    logistic,
    means,
    neural_factors,
    nsvd,
    own,
    rbm,
    sgd,
)
from recbench_spark.models.rating.interface import Fit, FitCall, RatingModel, Ratings, RatingSettings
from recbench_spark.models.rating.sgd import RatingFactorModel
from recbench_spark.models.settings import import_class


class Family(NamedTuple):
    """One kind's settings, learner and model."""

    settings: type[RatingSettings]
    fit: FitCall
    model: type[Any]


FAMILIES: dict[str, Family] = {
    "als_wr": Family(als.AlsSettings, als.fit_als, RatingFactorModel),
    "bayesian_mf": Family(bayesian.BayesianSettings, bayesian.fit_bayesian, bayesian.BayesianModel),
    "item_neighbours": Family(
        item_neighbours.ItemNeighboursSettings,
        item_neighbours.fit_item_neighbours,
        item_neighbours.ItemNeighbours,
    ),
    "means": Family(means.MeansSettings, means.fit_means, means.RatingMeans),
    "nsvd1": Family(nsvd.NsvdSettings, nsvd.fit_nsvd, RatingFactorModel),
    "rbm": Family(rbm.RbmSettings, rbm.fit_rbm, rbm.Rbm),
    "sgd_mf": Family(sgd.SgdSettings, sgd.fit_sgd, RatingFactorModel),
}

IMPLICIT: dict[str, Family] = {
    "als": Family(als.ProductAlsSettings, als.fit_product_als, als.ProductModel),
    "gmf": Family(neural_factors.GmfSettings, neural_factors.fit_gmf, RatingFactorModel),
    "implicit_als": Family(als.ImplicitAlsSettings, als.fit_implicit_als, RatingFactorModel),
    "logistic_mf": Family(logistic.LogisticSettings, logistic.fit_logistic, RatingFactorModel),
    "mlp": Family(neural_factors.MlpSettings, neural_factors.fit_network, neural_factors.NetworkModel),
    "neumf": Family(neural_factors.NeumfSettings, neural_factors.fit_network, neural_factors.NetworkModel),
    "wmf": Family(adam_factors.WmfSettings, adam_factors.fit_wmf, RatingFactorModel),
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
    if isinstance(settings, bayesian.BayesianSettings):
        bayesian.check_ranking(settings, model)
        return
    model_class = (
        own.OwnModel if isinstance(settings, own.VectorLearner) else ALL_FAMILIES[settings.kind].model
    )
    if not (issubclass(model_class, RatingFactorModel) or hasattr(model_class, "score")):
        raise ConfigError(
            f"model {model}: kind '{settings.kind}' predicts pairs and ranks nothing",
            "evaluation.task: rating",
        )


def make_settings(document: Mapping[str, Any], where: str = "settings") -> RatingSettings:
    """Return checked settings from a document; `kind` chooses the learner.

    Raises ConfigError with the key's path and the nearest known one.
    """
    kind = str(document.get("kind", ""))
    if ":" in kind:
        import_class(kind)
        return parse(own.VectorLearner, dict(document), where)
    if kind not in ALL_FAMILIES:
        raise ConfigError(f"{where}: kind: no rating model is called '{kind}'", nearest(kind, ALL_FAMILIES))
    return parse(ALL_FAMILIES[kind].settings, dict(document), where)


def fit(
    train: Ratings, settings: RatingSettings, seed: int, watched: Ratings | None = None, threads: int = 1
) -> Fit:
    """Fit the learner these settings belong to.

    Raises MissingPackageError where it needs an extra.
    """
    if isinstance(settings, own.VectorLearner):
        return own.fit_vectors(train, settings, seed, watched)
    with explain_missing():
        return ALL_FAMILIES[settings.kind].fit(train, settings, seed, watched, threads)


def save(model: RatingModel, path: str | Path) -> Path:
    """Write a model's fields and kind to one `.npz` file.

    The file holds arrays and numbers, never a pickle.
    """
    if isinstance(model, own.OwnModel):
        arrays, kind = model.list_arrays(), model.class_name
    else:
        fields = {field.name: getattr(model, field.name) for field in dataclasses.fields(model)}  # type: ignore[arg-type]
        arrays = {name: np.asarray(value) for name, value in fields.items() if value is not None}
        kind = model.kind
    with Path(path).open("wb") as file:
        np.savez(file, **{own.KIND: np.asarray(kind)}, **arrays)  # type: ignore[arg-type]
    return Path(path)


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
    kind = str(arrays.get(own.KIND, ""))
    fields = {name: array for name, array in arrays.items() if name != own.KIND}
    if ":" in kind:
        return own.make_own_model(kind, fields)
    if kind not in kinds:
        raise DataError(f"{path} holds a model of kind '{kind}'", nearest(kind, kinds))
    known = {field.name: field.default for field in dataclasses.fields(kinds[kind])}
    required = {name for name, default in known.items() if default is dataclasses.MISSING}
    if not required <= set(fields) <= set(known):
        raise DataError(
            f"{path} has fields {sorted(fields)}", f"a model of kind {kind} has {', '.join(known)}"
        )
    model: RatingModel = kinds[kind](**own.plain_values(fields))
    return model


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
        ConfigError: as `RatingSettings.make_fold_in`.
    """
    fold_in = settings.make_fold_in(len(known_i), threshold)
    assert isinstance(model, RatingFactorModel)
    vectors_id = np.where(known_i[:, None], model.q_id, np.float32(0))
    return fold_in.make_folder(vectors_id, np.asarray(model.bias_i + model.mean, np.float64), known_i)
