"""Registry of model adapters, named by string here alone.

Settings load without Spark and torch, so a settings class cannot import the adapter which fits it. Another
package's model names its adapter itself, in `behaviour`.
"""

from __future__ import annotations

from typing import Any

from recbench_spark.errors import ConfigError
from recbench_spark.models.settings import ModelConfig, import_attribute

PACKAGE = __name__.partition(".")[0]

ADAPTERS = {
    "AlsModel": "rating_models:AlsAdapter",
    "EmbeddingsModel": "external_models:EmbeddingsAdapter",
    "GraphNet": "graph_models:GraphNetAdapter",
    "GraphSageModel": "trained_graphs:GraphSageAdapter",
    "ItemKnnModel": "item_knn:ItemKnnAdapter",
    "LightGcnModel": "factor_models:FactorAdapter",
    "ListsModel": "external_models:ListsAdapter",
    "MeansModel": "means:MeansAdapter",
    "MfBprModel": "factor_models:FactorAdapter",
    "MllibAlsModel": "mllib_als:MllibAlsAdapter",
    "PinSageModel": "trained_graphs:PinSageAdapter",
    "PopularModel": "baselines:PopularAdapter",
    "RandomModel": "baselines:RandomAdapter",
    "RatingModelConfig": "rating_models:RatingAdapter",
    "RetrievedModel": "retrieved:RetrievedAdapter",
    "ScoresModel": "external_models:ScoresAdapter",
    "SequenceModelConfig": "sequence_models:SequenceAdapter",
    "SwitchModel": "switches:SwitchAdapter",
    "TruthModel": "baselines:TruthAdapter",
}
"""Settings class -> module and class of its adapter, below `models.adapters`."""


def import_adapter(settings: ModelConfig) -> Any:
    """Return a model's adapter class, imported now.

    Raises:
        ConfigError: its module cannot be imported, or has no such class.
    """
    return import_attribute(name_adapter(type(settings)), f"model {settings.name}: behaviour")


def name_adapter(settings: type[ModelConfig]) -> str:
    """Return a settings class's adapter as `module:Class`.

    A class without one takes its nearest base's.
    """
    for base in settings.__mro__:
        if vars(base).get("behaviour"):
            return str(vars(base)["behaviour"])
        if base.__module__.partition(".")[0] == PACKAGE and base.__name__ in ADAPTERS:
            return f"{PACKAGE}.models.adapters.{ADAPTERS[base.__name__]}"
    raise ConfigError(
        f"{settings.__name__} has no `behaviour`", "name the class that fits it: behaviour = 'module:Class'"
    )
