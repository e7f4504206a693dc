"""Tell whether a night is too small for Spark's preparations.

They would take longer than its work.
"""

from __future__ import annotations

import math
from pathlib import Path

from recbench_spark.config import Benchmark
from recbench_spark.night import run_keys

SMALL_ROWS = 1_000_000
SMALL_BYTES = 32 << 20
"""Largest small night: rows of a generated log, or input bytes.

The bytes count all input files (log, models and others).
"""


def is_small(benchmark: Benchmark) -> bool:
    """Tell whether all inputs of a night are small.

    Inputs on other machines are never small.

    Args:
        benchmark: the benchmark, with its placeholders filled in.
    """
    dataset = benchmark.dataset
    rows = dataset.world.interactions + dataset.world.open_loop if dataset.reader == "world" else 0
    return rows <= SMALL_ROWS and sum(map(_file_bytes, list_inputs(benchmark))) <= SMALL_BYTES


def list_inputs(benchmark: Benchmark) -> list[str]:
    """List every path a night reads."""
    paths = list(run_keys.evaluation_paths(benchmark).values())

    def record(path: str, **_: object) -> str:
        paths.append(path)
        return ""

    run_keys.hash_split(record, benchmark)
    for model in benchmark.models:
        run_keys.identify_model_inputs(record, model)
    return paths


def _file_bytes(path: str) -> float:
    file_path = Path(path.removeprefix("file://"))
    try:
        files = [file_path] if file_path.is_file() else list(file_path.rglob("*"))
        return sum(file.stat().st_size for file in files) if files else math.inf
    except (OSError, ValueError):
        return math.inf
