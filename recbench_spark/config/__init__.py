"""The benchmark file: strict, frozen, checked before Spark starts.

An unknown key, a value of the wrong type or out of range is a ConfigError that names the file, the
path of the key and the nearest known key. The application's settings live here; Spark's stay with
spark-submit; secrets live in neither.
"""

from __future__ import annotations

from recbench_spark.config.base import (
    ELSEWHERE,
    INT,
    LONGEST,
    LONGEST_CURVE,
    NAME,
    SECRET,
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
from recbench_spark.config.dataset import LOG_COLUMNS, OFFSET, TABLE_READERS, Dataset, World
from recbench_spark.config.documents import DEEPEST, REPEATED, Loader, load_yaml
from recbench_spark.config.evaluation import (
    DEFAULT_METRICS,
    EXPOSURE_SLICES,
    Bootstrap,
    Draw,
    Evaluation,
    Exposure,
    Propensities,
    Slice,
    Strata,
)
from recbench_spark.config.graph import GraphModel, GraphSource
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
    ScoresModel,
    TruthModel,
)
from recbench_spark.config.searching import Range, Search
from recbench_spark.config.split import FOLDED, KEYS_OF_HOLDOUTS, NETFLIX, PROTOCOLS, HeldOut, Split

__all__ = [
    "BENCHMARKS",
    "DEEPEST",
    "DEFAULT_METRICS",
    "ELSEWHERE",
    "EXPOSURE_SLICES",
    "FOLDED",
    "INT",
    "KEYS_OF_HOLDOUTS",
    "LOG_COLUMNS",
    "LONGEST",
    "LONGEST_CURVE",
    "NAME",
    "NETFLIX",
    "OFFSET",
    "PROTOCOLS",
    "REPEATED",
    "SECRET",
    "TABLE_READERS",
    "UNITS",
    "AlsModel",
    "Benchmark",
    "Bootstrap",
    "Comparisons",
    "Count",
    "Dataset",
    "Draw",
    "Duration",
    "EmbeddingsModel",
    "Evaluation",
    "Exposure",
    "Gate",
    "GraphModel",
    "GraphSource",
    "HeldOut",
    "ItemKnnModel",
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
    "Range",
    "Regression",
    "ScoresModel",
    "Search",
    "Seed",
    "Share",
    "Slice",
    "Split",
    "Strata",
    "Strict",
    "TruthModel",
    "World",
    "digest",
    "find_benchmark",
    "load_benchmark",
    "load_yaml",
    "make_benchmark",
    "parse",
    "refuse_secrets",
    "seconds",
]
