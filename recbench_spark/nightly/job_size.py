"""Whether a night is so small that Spark's preparations take longer than its work."""

from __future__ import annotations

import math
from pathlib import Path

from recbench_spark.config import Benchmark
from recbench_spark.nightly import run_keys

SMALL_ROWS = 1_000_000
SMALL_BYTES = 32 << 20
"""Rows of a generated log, or bytes of all files that are read: log, models and all else."""


def is_small(benchmark: Benchmark) -> bool:
    """Whether all that a night reads is small; False where it does not lie on this machine.

    Args:
        benchmark: with its placeholders filled in.
    """
    dataset = benchmark.dataset
    rows = dataset.world.interactions + dataset.world.open_loop if dataset.reader == "world" else 0
    return rows <= SMALL_ROWS and sum(map(_file_bytes, _list_paths(benchmark))) <= SMALL_BYTES


def _list_paths(benchmark: Benchmark) -> list[str]:
    """Every path that a night reads."""
    found = list(run_keys.evaluation_paths(benchmark).values())

    def note(path: str, **_: object) -> str:
        found.append(path)
        return ""

    run_keys.hash_split(note, benchmark)
    for model in benchmark.models:
        run_keys.identify_model_inputs(note, model)
    return found


def _file_bytes(path: str) -> float:
    place = Path(path.removeprefix("file://"))
    try:
        files = [place] if place.is_file() else list(place.rglob("*"))
        return sum(file.stat().st_size for file in files) if files else math.inf
    except (OSError, ValueError):
        return math.inf
