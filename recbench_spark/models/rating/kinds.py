"""Rating models as benchmark-file models, e.g. `{name: mine, kind: sgd_mf, dims: 64}`.

Each learner in `registry` has a class here, which joins its settings with those of every model. `means` is
in `models.means`, because a night fits it on the cluster.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from recbench_spark.config import ModelConfig, Seed
from recbench_spark.errors import ConfigError
from recbench_spark.models.rating.adam_factors import GmfSettings, WmfSettings
from recbench_spark.models.rating.als import AlsSettings, ImplicitAlsSettings, ProductAlsSettings
from recbench_spark.models.rating.bayesian import BayesianSettings
from recbench_spark.models.rating.folding import choose_fold_in
from recbench_spark.models.rating.interface import Ratings, RatingSettings
from recbench_spark.models.rating.item_neighbours import ItemNeighboursSettings
from recbench_spark.models.rating.logistic import LogisticSettings
from recbench_spark.models.rating.means import MeansModel
from recbench_spark.models.rating.neural_factors import MlpSettings, NeumfSettings
from recbench_spark.models.rating.nsvd import NsvdSettings
from recbench_spark.models.rating.own import BlockScores, VectorLearner, Vectors
from recbench_spark.models.rating.rbm import RbmSettings
from recbench_spark.models.rating.registry import ALL_FAMILIES, make_settings
from recbench_spark.models.rating.sgd import SgdSettings
from recbench_spark.models.settings import LearntItems

VECTORS = ("rating_vectors", "trained_items")
"""Revisions for kinds which rank by vectors. The first one changes no predicted rating."""


class RatingModelConfig(LearntItems):
    """A learner from `models.rating`, fitted in one task."""

    adapter: ClassVar[str] = "rating_models:RatingAdapter"
    seed: Seed = 42
    """Seed of every random choice in the fit."""

    @property
    def folds_given_rows(self) -> bool:
        """True if a fold-in fits these settings; see `ModelConfig`."""
        try:
            choose_fold_in(learner_settings(self))
        except ConfigError:
            return False
        return True


class AlsModel(ProductAlsSettings, RatingModelConfig):
    """Alternating least squares of products, with MLlib's objective.

    The model learns confidence in pairs, or ratings. With `implicit` it equals `implicit_als` with
    `unobserved_weight` 1 / alpha, up to the scale of its scores; the regulariser counts only a row's pairs.
    """

    adapter: ClassVar[str] = "rating_models:AlsAdapter"
    revised: ClassVar[tuple[str, ...]] = ("trained_items",)
    kind: Literal["als"]


class AlsWrModel(AlsSettings, RatingModelConfig):
    """ALS with weighted regularisation and biases, in one process."""

    revised: ClassVar[tuple[str, ...]] = VECTORS
    kind: Literal["als_wr"]


class BayesianMfModel(BayesianSettings, RatingModelConfig):
    """Bayesian matrix factorisation by Gibbs sampling.

    Its `features` make it timeSVD, SVD++ or a similar model.
    """

    kind: Literal["bayesian_mf"]


class ItemNeighboursModel(ItemNeighboursSettings, RatingModelConfig):
    """Item neighbours, for ratings."""

    kind: Literal["item_neighbours"]


class Nsvd1Model(NsvdSettings, RatingModelConfig):
    """NSVD1: users as sums over their rated items' factors."""

    revised: ClassVar[tuple[str, ...]] = VECTORS
    kind: Literal["nsvd1"]


class RbmModel(RbmSettings, RatingModelConfig):
    """A restricted Boltzmann machine."""

    kind: Literal["rbm"]


class SgdMfModel(SgdSettings, RatingModelConfig):
    """Matrix factorisation by stochastic gradient descent."""

    revised: ClassVar[tuple[str, ...]] = VECTORS
    kind: Literal["sgd_mf"]


class ImplicitAlsMfModel(ImplicitAlsSettings, RatingModelConfig):
    """ALS over all pairs, for ranking: iALS."""

    kind: Literal["implicit_als"]


class LogisticMfModel(LogisticSettings, RatingModelConfig):
    """Logistic matrix factorisation with drawn negatives, for ranking."""

    kind: Literal["logistic_mf"]


class WmfModel(WmfSettings, RatingModelConfig):
    """Weighted matrix factorisation by Adam, for ranking."""

    kind: Literal["wmf"]


class GmfModel(GmfSettings, RatingModelConfig):
    """Generalised matrix factorisation, for ranking.

    Products have learnt weights and a logistic loss.
    """

    kind: Literal["gmf"]


class MlpModel(MlpSettings, RatingModelConfig):
    """A user-item network with a logistic loss, for ranking."""

    kind: Literal["mlp"]


class NeumfModel(NeumfSettings, RatingModelConfig):
    """NeuMF: a network plus factor products, for ranking.

    The loss is logistic.
    """

    kind: Literal["neumf"]


class VectorModel(RatingModelConfig):
    """Base for another package's model: `kind: my_models:MyModel`.

    A subclass returns vectors or scores. It has its own `kind`, settings with defaults, and the function
    `fit`. It needs no Spark: a task calls `fit` with the training pairs, and stores, ranks and measures the
    result. The module lies beside the YAML file, in the working folder or on PYTHONPATH, or goes with
    `--py-files`. Raise `version` when the code changes: a fit with equal settings, data and version is not
    repeated.

        class MyModel(VectorModel):
            kind: Literal["my_model"]
            dims: int = 8

            def fit(self, ratings, seed):
                return Vectors(users_ud, items_id)

    A model whose scores are no products returns an object with a function `score(users, items)`, which
    gives (users, items) numbers for arrays of indices (`own.BlockScores`).

    Attributes:
        positives: `all`: learn from every rated pair; `relevant`: only from those the metric counts.
    """

    fitted_by_version: ClassVar[bool] = True

    positives: Literal["all", "relevant"] = "all"

    def fit(self, ratings: Ratings, seed: int) -> Vectors | BlockScores:
        """Return `Vectors`, or an object with `score`.

        The function gets pairs by dense index, and the model's seed.
        """
        raise NotImplementedError

    def learner(self) -> VectorLearner:
        """Return settings for a task: class name and fields."""
        mine = self.model_dump(exclude=set(RatingModelConfig.model_fields))
        kind = f"{type(self).__module__}:{type(self).__qualname__}"
        return VectorLearner(kind=kind, positives=self.positives, version=self.version, settings=mine)


def learner_settings(model: ModelConfig) -> RatingSettings:
    """Return a model's learner settings.

    Raises ConfigError if it is no rating model.
    """
    if isinstance(model, VectorModel):
        return model.learner()
    if model.kind not in ALL_FAMILIES:
        raise ConfigError(
            f"model {model.name}: kind '{model.kind}' is not a rating model",
            f"kinds: {', '.join(sorted(ALL_FAMILIES))}",
        )
    fields = ALL_FAMILIES[model.kind].settings.model_fields
    document: dict[str, Any] = {name: value for name, value in model.model_dump().items() if name in fields}
    return make_settings(document, f"model {model.name}")


def model_seed(model: ModelConfig) -> int:
    """Return a model's seed; 0 for means, which draw nothing."""
    return 0 if isinstance(model, MeansModel) else int(getattr(model, "seed", 0))
