"""The benchmark file: its settings are strict, frozen, and checked before Spark starts.

An unknown key, a value of the wrong type or out of range is a ConfigError that names the file, the path of
the key and the nearest known key. The settings of this package are here; Spark's settings are passed to
spark-submit; secrets belong in neither.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from recbench_spark.config.base import (
        INT,
        MAX_CURVE,
        MAX_SECONDS,
        NAME,
        SECRET,
        SECRETS_HINT,
        UNITS,
        Count,
        Duration,
        Location,
        M,
        Name,
        Seed,
        Share,
        Strict,
        digest,
        parse,
        refuse_secrets,
        seconds,
    )
    from recbench_spark.config.benchmark import Benchmark
    from recbench_spark.config.comparisons import Comparisons, Gate, Paradoxes, Regression
    from recbench_spark.config.dataset import LOG_COLUMNS, OFFSET, TABLE_READERS, Dataset, WorldSettings
    from recbench_spark.config.documents import MAX_ALIAS_NODES, MAX_DEPTH, Loader, load_yaml
    from recbench_spark.config.evaluation import (
        CURVE_METRIC,
        DEFAULT_METRICS,
        EXPOSURE_SLICES,
        MANDCG,
        Bootstrap,
        CandidateDraw,
        Evaluation,
        Exposure,
        Propensities,
        Slice,
        Strata,
        Views,
    )
    from recbench_spark.config.graph import GraphModel, GraphSource
    from recbench_spark.config.learning_curves import LearningCurve
    from recbench_spark.config.loading import BENCHMARKS, find_benchmark, load_benchmark, make_benchmark
    from recbench_spark.config.models import (
        AlsModel,
        EmbeddingsModel,
        ItemKnnModel,
        ListsModel,
        ModelConfig,
        PopularModel,
        Provenance,
        PublishedModel,
        RandomModel,
        RetrievedModel,
        ScoresModel,
        SwitchModel,
        TruthModel,
    )
    from recbench_spark.config.searching import SearchSettings, SettingRange
    from recbench_spark.config.split import FOLD_HOLDOUTS, HOLDOUT_KEYS, NETFLIX, PROTOCOLS, HeldOut, Split

__all__ = [
    "BENCHMARKS",
    "CURVE_METRIC",
    "DEFAULT_METRICS",
    "EXPOSURE_SLICES",
    "FOLD_HOLDOUTS",
    "HOLDOUT_KEYS",
    "INT",
    "LOG_COLUMNS",
    "MANDCG",
    "MAX_ALIAS_NODES",
    "MAX_CURVE",
    "MAX_DEPTH",
    "MAX_SECONDS",
    "NAME",
    "NETFLIX",
    "OFFSET",
    "PROTOCOLS",
    "SECRET",
    "SECRETS_HINT",
    "TABLE_READERS",
    "UNITS",
    "AlsModel",
    "Benchmark",
    "Bootstrap",
    "CandidateDraw",
    "Comparisons",
    "Count",
    "Dataset",
    "Duration",
    "EmbeddingsModel",
    "Evaluation",
    "Exposure",
    "Gate",
    "GraphModel",
    "GraphSource",
    "HeldOut",
    "ItemKnnModel",
    "LearningCurve",
    "ListsModel",
    "Loader",
    "Location",
    "M",
    "ModelConfig",
    "Name",
    "Paradoxes",
    "PopularModel",
    "Propensities",
    "Provenance",
    "PublishedModel",
    "RandomModel",
    "Regression",
    "RetrievedModel",
    "ScoresModel",
    "SearchSettings",
    "Seed",
    "SettingRange",
    "Share",
    "Slice",
    "Split",
    "Strata",
    "Strict",
    "SwitchModel",
    "TruthModel",
    "Views",
    "WorldSettings",
    "digest",
    "find_benchmark",
    "load_benchmark",
    "load_yaml",
    "make_benchmark",
    "parse",
    "refuse_secrets",
    "seconds",
]

MODULES = (
    "base", "learning_curves", "evaluation", "documents", "split", "dataset", "searching", "comparisons",
    "models", "graph", "benchmark", "loading",
)  # fmt: skip
"""Modules of the names above, in the order in which a name is looked up: the quick ones come first."""


def __getattr__(name: str) -> Any:
    """Import the module of a name on first use: a call that evaluates lists needs no models of a night."""
    if name in __all__:
        for module in MODULES:
            imported = import_module(f"{__name__}.{module}")
            if hasattr(imported, name):
                globals()[name] = getattr(imported, name)
                return globals()[name]
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
