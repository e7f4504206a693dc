"""Warn by default when a growing log has stopped.

Otherwise a report would show old rows as tonight's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from recbench_spark.analyses.comparisons.settings import Gate
from recbench_spark.core.strict_settings import UNITS, seconds

if TYPE_CHECKING:
    from recbench_spark.config.benchmark import Benchmark
    from recbench_spark.splits.settings import Split

AGE_FACT = "newest_age_days"
"""Fact: days from the log's newest row to the end of the night's day."""

PERIODS, DAYS = 2, 2.0
"""The allowed age: this many period lengths, or this many days without a period."""


def make_age_gate(split: Split) -> Gate:
    """Return the gate which warns when a log has stopped."""
    length = split.length if split.holdout == "period" else None
    days = PERIODS * seconds(length) / UNITS["d"] if length else DAYS
    return Gate(fact=AGE_FACT, part="log", above=days, action="warn")


def grows(benchmark: Benchmark) -> bool:
    """Return whether a file's log grows.

    A log grows if the file uses `{logical_date}`, or measures the last period in a table. Published data
    sets have readers of their own, and never grow.
    """
    dataset, split = benchmark.dataset, benchmark.split
    texts = (dataset.path, dataset.until, *dataset.options.values(), split.start)
    named = any("{logical_date" in text for text in texts if isinstance(text, str))
    return dataset.is_table and (named or (split.holdout == "period" and split.start is None))


def gates_with_age(benchmark: Benchmark) -> tuple[Gate, ...]:
    """Return a file's gates.

    A growing log also gets the default age gate, unless the file has its own.
    """
    gates = benchmark.gates
    if not grows(benchmark) or any(gate.fact == AGE_FACT for gate in gates):
        return gates
    return (*gates, make_age_gate(benchmark.split))
