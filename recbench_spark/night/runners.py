"""Choose a log's runner: this machine's processes, or Spark."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial

from recbench_spark.config import Benchmark, ModelConfig, PublishedModel
from recbench_spark.engine.choices import EngineChoice, require_spark
from recbench_spark.errors import ConfigError, FallbackToSpark
from recbench_spark.models.adapters.model_adapter import make_adapter
from recbench_spark.schemas import ITEMS, MANIFESTS, SPLITS, TABLES, USER_BLOCKS, Table
from recbench_spark.splits.rules import estimate_rows
from recbench_spark.storage.arrow_store import ArrowStore, needs_no_java

MOST_ROWS = 20_000_000
"""Most rows `auto` splits without Spark."""


def choose_runner(
    requested: str, benchmark: Benchmark, root: str, *, night: bool = False
) -> tuple[EngineChoice, int]:
    """Choose the runner for a split or a night.

    The rows of its log are counted too (0 for Spark).

    Args:
        requested: auto, local or spark.
        benchmark: the log, the split, the slices; for a night, all else.
        root: the warehouse.
        night: its models are evaluated too.

    Raises:
        ConfigError: `local` is requested, and only Spark can do this.
    """
    count = partial(_count_rows, benchmark, night=night)
    return choose_job_runner(requested, root, count, NIGHT_TABLES if night else SPLIT_TABLES)


def choose_job_runner(
    requested: str, root: str, count: Callable[[], int], tables: Sequence[Table]
) -> tuple[EngineChoice, int]:
    """Choose a job's runner, like `choose_runner`.

    Args:
        requested: auto, local or spark.
        root: the warehouse.
        count: counts the rows in the job's log, 0 where it has none; FallbackToSpark: the job needs Spark.
        tables: those it may append rows to.

    Raises:
        ConfigError: `local` is requested, and only Spark can do this.
    """
    if why := find_wish(requested):
        return EngineChoice("spark", why), 0
    try:
        if not needs_no_java(root):
            raise FallbackToSpark(f"warehouse {root} is no folder and no object storage")
        n = count()
        ArrowStore(root, read_only=True, any_version=True).check_appendable(tables)
    except FallbackToSpark as error:
        return require_spark(requested, error), 0
    size = f"{n:,} rows" if n else "tables of the warehouse"
    if requested == "local":
        return EngineChoice("local", f"{size}, as requested"), n
    if n > MOST_ROWS:
        return EngineChoice("spark", f"{size}, up to {MOST_ROWS:,} are taken without it"), 0
    limit = f" of this machine (up to {MOST_ROWS:,})" if n else ""
    return EngineChoice("local", f"{size}{limit}, without Spark"), n


def count_log(benchmark: Benchmark) -> int:
    """Estimate the number of rows in a benchmark's log.

    Raises:
        FallbackToSpark: Spark must read it.
    """
    return estimate_rows(benchmark.dataset)


def count_no_log() -> int:
    """Return 0, for jobs without a log."""
    return 0


SPLIT_TABLES = (SPLITS, ITEMS, USER_BLOCKS, MANIFESTS)
NIGHT_TABLES = tuple(
    table for table in TABLES.values() if not table.name.startswith(("board", "submissions", "speed"))
)
"""Tables a split or a night may append rows to."""

SESSIONS = {
    "PYSPARK_GATEWAY_PORT": "spark-submit started this job",
    "SPARK_REMOTE": "SPARK_REMOTE names a server of Spark Connect",
}
"""Environment variables by which a caller asks for a Spark session."""


def find_wish(requested: str) -> str:
    """Say who asked for Spark; empty: nobody.

    The wish is the flag, or with `auto` the environment.
    """
    if requested != "auto":
        return "as requested" if requested == "spark" else ""
    return next((why for name, why in SESSIONS.items() if os.environ.get(name)), "")


def require_local_night(benchmark: Benchmark) -> None:
    """Check that a night's models and measures run without Spark.

    Raises:
        FallbackToSpark: one does not.
    """
    for model in benchmark.models:
        if not isinstance(model, PublishedModel) and not _runs_local(model):
            raise FallbackToSpark(f"model {model.name} (kind {model.kind}) runs on Spark")


def _runs_local(model: ModelConfig) -> bool:
    """Tell whether a model needs no Spark.

    The module of another model may not even load without Spark.
    """
    try:
        return make_adapter(model).runs_local
    except (ConfigError, ModuleNotFoundError):
        return False


def _count_rows(benchmark: Benchmark, night: bool) -> int:
    """Count the log rows tasks read by themselves.

    Raises:
        FallbackToSpark: the night, the log or the split needs Spark.
    """
    if night:
        require_local_night(benchmark)
    return count_log(benchmark)
