"""Statistics that need all predictions in order: AUC, partial AUC, edges of bins with equal mass.

The predictions are dealt once by range, and a task holds one range. Each pass returns whole numbers of each
task, so that no number depends on the number of ranges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa

from recbench_spark.core.arrays import Bools, Floats, Ints
from recbench_spark.errors import DataError
from recbench_spark.metrics.kernels import roc
from recbench_spark.storage.blocks import TaskRows
from recbench_spark.storage.packed_blocks import Block, partition_rows

SAMPLE_TABLE, SAMPLE_TASK = 1 << 8, 1 << 12
"""Predictions of a table, and of all tables of a task, by which ranges are cut."""


@dataclass(frozen=True)
class PredictionRange:
    """Rows of one task: the smallest prediction, the number of rows, and their pairs.

    `pairs`: None if an outcome is neither 0 nor 1.
    """

    first: float
    rows: int
    pairs: roc.PairCounts | None


@dataclass(frozen=True)
class RangeOffsets:
    """Rows of other tasks around a range: rows below it, and positives and negatives above it."""

    below: int
    above: tuple[int, int]


RangeMeasure = Callable[[Floats, Floats], Any]
"""Function from the predictions and outcomes of one range to numbers; it is sent to the tasks."""

RangeRunner = Callable[[RangeMeasure], Sequence[Any]]
"""Function that applies a measure to each range."""


def sample_range(values: Floats, most: int) -> Floats:
    """Return at most so many values, which cut all of them into parts of about the same size."""
    ordered = np.sort(values)
    step = -(-len(ordered) // most) or 1
    sample: Floats = ordered[step // 2 :: step]
    return sample


def cut_ranges(sample: Floats, tasks: int) -> Floats:
    """Return the lowest prediction of each range but the first, ascending."""
    cuts: Floats = np.unique(np.quantile(sample, np.arange(1, tasks) / tasks, method="nearest"))
    return cuts


def deal_ranges(tables: Iterable[pa.Table], cuts: Floats) -> Iterator[Block]:
    """Partition rows by prediction; equal predictions are sent to one task."""
    for rows in tables:
        if len(rows):
            task_r = np.searchsorted(cuts, rows.column("prediction").to_numpy(), side="right")
            yield from partition_rows(rows.combine_chunks(), task_r.astype(np.int32))


def run_ranges(rows: TaskRows, select: Callable[[pa.Table], pa.Table]) -> RangeRunner:
    """Return a function that runs measures on the ranges that tasks hold.

    Args:
        rows: what `deal_ranges` has dealt.
        select: function from the rows of a range to those that are measured.
    """
    return partial(_measure_ranges, rows, select)


def _measure_ranges(
    rows: TaskRows, select: Callable[[pa.Table], pa.Table], measure: RangeMeasure
) -> list[Any]:
    measured = rows.each(partial(_measure_range, select=select, measure=measure))
    return [one for one in measured if one is not None]


def _measure_range(
    rows: pa.Table, select: Callable[[pa.Table], pa.Table], measure: RangeMeasure
) -> Any | None:
    p, y = (select(rows).column(name).to_numpy() for name in ("prediction", "outcome"))
    order = np.argsort(p, kind="stable")
    return measure(p[order], y[order]) if len(p) else None


def are_binary(outcomes: Floats) -> Bools:
    """Return which outcomes are 0 or 1."""
    binary: Bools = (outcomes == 0) | (outcomes == 1)
    return binary


def count_ranges(each: RangeRunner) -> list[PredictionRange]:
    """Count rows and pairs of the ranges, in ascending order; pairs are counted for outcomes of 0 and 1."""
    ranges = sorted(each(_count_range), key=lambda one: one.first)
    if all(one.pairs is not None for one in ranges):
        return ranges
    return [replace(one, pairs=roc.PairCounts(0, one.rows, 0, 0, 0)) for one in ranges]


def _count_range(p: Floats, y: Floats) -> PredictionRange:
    return PredictionRange(float(p[0]), len(p), roc.pair_counts(p, y) if are_binary(y).all() else None)


def _range_offsets(ranges: Sequence[PredictionRange]) -> dict[float, RangeOffsets]:
    """Return the offsets of each range, by its smallest prediction."""
    below = accumulate((one.rows for one in ranges), initial=0)
    positives, negatives = (
        list(accumulate((getattr(one.pairs, name) for one in ranges[::-1]), initial=0))[-2::-1]
        for name in ("positives", "negatives")
    )
    return {
        one.first: RangeOffsets(rows, (p, n))
        for one, rows, p, n in zip(ranges, below, positives, negatives, strict=False)
    }


def edges_and_area(
    each: RangeRunner, ranges: list[PredictionRange], bins: int, rates: tuple[float, float]
) -> tuple[Floats, float]:
    """Compute inner edges of bins of equal mass (`values.equal_mass_edges`), and the partial AUC.

    Args:
        each: runner of measures, as in `count_ranges`.
        ranges: the ranges of `count_ranges`.
        bins: number of bins; there are fewer where predictions are equal.
        rates: false-positive rates that bound the area.
    """
    rows = sum(one.rows for one in ranges)
    positives, negatives = (
        sum(getattr(one.pairs, name) for one in ranges) for name in ("positives", "negatives")
    )
    look = partial(
        _look_range,
        offsets=_range_offsets(ranges),
        at=rows * np.arange(1, bins) // bins,
        within=(rates[0] * negatives, rates[1] * negatives),
        binary=positives > 0,
    )
    looks = each(look)
    edges = np.unique([edge for some, _, _ in looks for edge in some])
    area = roc.area_share(
        sum(twice for _, twice, _ in looks), [cut for _, _, cut in looks], positives * negatives, rates
    )
    return edges[edges > ranges[0].first] if ranges else edges, area


def _look_range(
    p: Floats,
    y: Floats,
    *,
    offsets: Mapping[float, RangeOffsets],
    at: Ints,
    within: tuple[float, float],
    binary: bool,
) -> tuple[list[float], int, float]:
    """Return the edges of bins in a range, twice its area between whole rows, and the area of cut rows."""
    offset = offsets.get(float(p[0]))
    if offset is None:
        raise DataError("the predictions changed between two passes", "run again on a fixed table")
    inside = at[(at >= offset.below) & (at < offset.below + len(p))] - offset.below
    twice, cut = roc.roc_area(p, y if binary else np.zeros_like(y), offset.above, within)
    return p[inside].tolist(), twice, cut
