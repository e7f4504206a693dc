"""Checks of labelled pairs, and the options of their evaluation; both engines share them."""

from __future__ import annotations

from typing import Any

from recbench_spark.checks import Check
from recbench_spark.config import Bootstrap
from recbench_spark.errors import DataError

METRIC_OPTIONS: dict[str, Any] = {"metrics": ("recall",), "bootstrap": Bootstrap(replicates=0)}
"""Options of the ranking, whose own metrics are not read."""


def refuse_self_pairs(own: int) -> None:
    """Refuse queries that are paired with themselves.

    Raises:
        DataError: there are such pairs.
    """
    if own:
        raise DataError(f"pairs: {own} queries are paired with themselves", "leave these rows out")


def lost_queries_check(lost: int) -> Check:
    """Return the check of queries without a vector."""
    return Check("queries without a vector", lost, 0.0, "warning", "their pairs count as misses")
