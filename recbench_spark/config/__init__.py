"""The benchmark file: strict, frozen settings, checked before Spark starts.

An unknown key, a wrong type or a value out of range is a ConfigError. It names the file, the key's path and
the nearest known key. This package has only its own settings: pass Spark's to spark-submit, and write
secrets in neither.
"""

from __future__ import annotations

from recbench_spark.analyses.comparisons.settings import Comparisons, Gate, Paradoxes, Regression
from recbench_spark.analyses.curves.settings import LearningCurve
from recbench_spark.boards.settings import SearchSettings, SettingRange
from recbench_spark.config.benchmark import AGE_FACT, Benchmark, gates_with_age, make_age_gate
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
from recbench_spark.config.loading import BENCHMARKS, find_benchmark, load_benchmark, make_benchmark
from recbench_spark.core.documents import load_yaml
from recbench_spark.core.strict_settings import (
    INT,
    MAX_CURVE,
    NAME,
    Count,
    Duration,
    Location,
    Name,
    Seed,
    Share,
    Strict,
    digest,
    parse,
    parse_duration,
    refuse_secrets,
    seconds,
)
from recbench_spark.graphs.settings import GraphModel, GraphSource
from recbench_spark.models.settings import (
    EmbeddingsModel,
    ItemKnnModel,
    ListsModel,
    MllibAlsModel,
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
from recbench_spark.sources.settings import LOG_COLUMNS, Dataset, Events, Least, WorldSettings
from recbench_spark.splits.settings import FOLD_HOLDOUTS, PROTOCOLS, HeldOut, Split
