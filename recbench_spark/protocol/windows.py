"""Compute global cuts in time, at one instant for all users, exactly and without sorting the log."""

from __future__ import annotations

from datetime import UTC, tzinfo
from itertools import pairwise

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from recbench_spark.config import Split
from recbench_spark.errors import ProtocolError
from recbench_spark.protocol.labels import LATER, TRAIN, VALID
from recbench_spark.protocol.manifests import refuse_empty
from recbench_spark.protocol.periods import find_period

BUCKETS = 1 << 14
"""Counts that a pass of `find_time` collects: four passes for a log of a century in microseconds."""


def find_instants(log: DataFrame, split: Split, zone: tzinfo = UTC) -> tuple[int, int, int]:
    """Find the starts of validation, test and `later`: held-out rows come after all training rows.

    Only the times of rows without a part are read; Spark caches them for that time. Days, weeks and months
    of a period are those of the zone.

    Raises:
        ProtocolError: there are no training rows, or no test rows.
    """
    times = log.where(F.col("part").isNull()).select("event_time").cache()
    facts = times.agg(
        F.min("event_time").alias("low"), F.max("event_time").alias("high"), F.count("*")
    ).first()
    if facts is None or facts.low is None:
        raise ProtocolError("no rows to split", "the log has none, or all of them came with a part")
    low, high, n = facts
    if split.holdout == "period":
        valid, start, end = find_period(split, high, zone)
    else:
        valid, start, end = _share_instants(times, split, (low, high, n))
    refuse_empty(_count_parts(times, split, (valid, start, end)), split, low, high)
    times.unpersist()
    return valid, start, end


def _count_parts(times: DataFrame, split: Split, cuts: tuple[int, int, int]) -> dict[str, int]:
    """Count the rows of each part; test rows count under the name of their first part."""
    bounds = [None, *cuts, None]
    names = (TRAIN, VALID, split.parts[0], LATER)
    time = F.col("event_time")
    counts = [
        F.count_if((F.lit(True) if a is None else time >= a) & (F.lit(True) if b is None else time < b))
        for a, b in pairwise(bounds)
    ]
    (row,) = times.agg(*(count.alias(name) for count, name in zip(counts, names, strict=True))).collect()
    return {name: int(row[name]) for name in names}


def _share_instants(times: DataFrame, split: Split, facts: tuple[int, int, int]) -> tuple[int, int, int]:
    """Find the instants of the first validation row and the first test row in order of time.

    All rows of one instant are on one side, so a share can be larger than the requested one, but not
    smaller.
    """
    low, high, n = facts
    n_test, n_valid = (int(share * n + 1e-9) for share in (split.ratio[2], split.ratio[1]))
    if not n_test:
        raise ProtocolError(f"a share of {split.ratio[2]:g} of {n} rows is not a row", "hold out more")
    start = find_time(times, n - n_test, low, high)
    valid = find_time(times, n - n_test - n_valid, low, high) if n_valid else start
    return valid, start, high + 1


def find_time(times: DataFrame, place: int, low: int, high: int) -> int:
    """Find the time at a place (from 0) in the ascending order of times, exactly.

    Rows are counted in BUCKETS equal ranges, then in those of the range that holds the place, until a range
    is one microsecond: at most four passes over one column, without a sort, with a shuffle only of counts.

    Args:
        times: event_time.
        place: 0 <= place < number of rows.
        low: the smallest time.
        high: the largest time.
    """
    while low < high:
        width = -(-(high - low + 1) // BUCKETS)
        inside = times.where(F.col("event_time").between(low, high))
        bucket = F.expr(f"(event_time - {low}L) div {width}L").alias("bucket")
        for row in sorted(inside.groupBy(bucket).count().collect()):
            if place < row["count"]:
                break
            place -= row["count"]
        low += row["bucket"] * width
        high = min(high, low + width - 1)
    return low
