"""Rating models as models of a benchmark file: `{name: ours, kind: sgd_mf, dims: 64, seed: 1}`.

A class of each learner of `registry`, its settings beside those that every model has. `means` stands in
`models.means`, since a night fits it on the cluster.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from recbench_spark.config import ModelConfig, Seed
from recbench_spark.errors import ConfigError
from recbench_spark.models.means import MeansModel
from recbench_spark.models.rating.als import AlsSettings, ImplicitAlsSettings
from recbench_spark.models.rating.bayesian import BayesianSettings
from recbench_spark.models.rating.interface import RatingSettings
from recbench_spark.models.rating.item_neighbours import ItemNeighboursSettings
from recbench_spark.models.rating.logistic import LogisticSettings
from recbench_spark.models.rating.nsvd import NsvdSettings
from recbench_spark.models.rating.rbm import RbmSettings
from recbench_spark.models.rating.registry import ALL_FAMILIES, make_settings
from recbench_spark.models.rating.sgd import SgdSettings

VECTORS = ("rating_vectors",)
"""The revision of vectors that lists are made by, of kinds whose predicted ratings it leaves alone."""


class RatingModelConfig(ModelConfig):
    """A learner of `models.rating` in one task; `seed` is that of all its draws."""

    seed: Seed = 42


class AlsWrModel(AlsSettings, RatingModelConfig):
    """ALS with weighted regularisation and biases, in one process."""

    revised: ClassVar[tuple[str, ...]] = VECTORS
    kind: Literal["als_wr"]


class BayesianMfModel(BayesianSettings, RatingModelConfig):
    """Bayesian matrix factorisation by Gibbs sampling: timeSVD, SVD++ and their kin by `features`."""

    kind: Literal["bayesian_mf"]


class ItemNeighboursModel(ItemNeighboursSettings, RatingModelConfig):
    """Nearest items, for ratings."""

    kind: Literal["item_neighbours"]


class Nsvd1Model(NsvdSettings, RatingModelConfig):
    """Users as sums of what they rated."""

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
    """Matrix factorisation with a logistic loss and drawn negatives, for ranking."""

    kind: Literal["logistic_mf"]


def learner_settings(model: ModelConfig) -> RatingSettings:
    """What the learner of a model's kind is given. Raises ConfigError where it is no rating model."""
    if model.kind not in ALL_FAMILIES:
        raise ConfigError(
            f"model {model.name}: kind '{model.kind}' is no rating model",
            f"kinds: {', '.join(sorted(ALL_FAMILIES))}",
        )
    known = ALL_FAMILIES[model.kind].settings.model_fields
    document: dict[str, Any] = {name: value for name, value in model.model_dump().items() if name in known}
    return make_settings(document, f"model {model.name}")


def model_seed(model: ModelConfig) -> int:
    """The seed of a model; means draw nothing."""
    return 0 if isinstance(model, MeansModel) else int(getattr(model, "seed", 0))
