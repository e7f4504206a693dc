"""Rating models as benchmark-file models, e.g. `{name: mine, kind: sgd_mf, dims: 64}`.

Each learner in `registry` has such a class in its own module: its settings with those of all models.
Here is the base for those of other packages.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from recbench_spark.config import ModelConfig
from recbench_spark.errors import ConfigError
from recbench_spark.models.rating.interface import RatingModelConfig, Ratings, RatingSettings
from recbench_spark.models.rating.means import MeansModel
from recbench_spark.models.rating.own import BlockScores, VectorLearner, Vectors
from recbench_spark.models.rating.registry import ALL_FAMILIES, make_settings


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
