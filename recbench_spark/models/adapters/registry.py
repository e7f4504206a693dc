"""Registry of model adapters: the only place that names classes of this package by string.

Settings load without Spark and torch, so a class of settings cannot import the adapter that fits it. A
model of another package names its adapter itself, in `behaviour`.
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
"""Module and class of the adapter of each class of settings of this package, below `models.adapters`."""


def import_adapter(settings: ModelConfig) -> Any:
    """Return the adapter class of a model, imported now.

    Raises:
        ConfigError: its module cannot be imported, or has no such class.
    """
    return import_attribute(name_adapter(type(settings)), f"model {settings.name}: behaviour")


def name_adapter(settings: type[ModelConfig]) -> str:
    """Return `module:Class` of the adapter of a class of settings, or of its nearest base that has one."""
    for base in settings.__mro__:
        if vars(base).get("behaviour"):
            return str(vars(base)["behaviour"])
        if base.__module__.partition(".")[0] == PACKAGE and base.__name__ in ADAPTERS:
            return f"{PACKAGE}.models.adapters.{ADAPTERS[base.__name__]}"
    raise ConfigError(
        f"{settings.__name__} has no `behaviour`", "name the class that fits it: behaviour = 'module:Class'"
    )
