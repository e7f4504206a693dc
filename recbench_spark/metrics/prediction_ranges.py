"""Statistics from all predictions in order.

They are AUC, partial AUC and the edges of equal-mass bins. The predictions are dealt once by range, and a
task holds one range. In each pass a task returns whole numbers, so no result depends on how many ranges
there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from recbench_spark.core.arrays import Bools, Floats, Ints
from recbench_spark.errors import DataError
from recbench_spark.metrics.kernels import roc
from recbench_spark.storage.blocks import TaskRows
from recbench_spark.storage.packed_blocks import Block, partition_rows

SAMPLE_TABLE, SAMPLE_TASK = 1 << 8, 1 << 12
"""Predictions sampled per table, and per task, to cut the ranges by."""


@dataclass(frozen=True)
class PredictionRange:
    """One task's rows: smallest prediction, row count, and pairs.

    `rows`: their summed whole weights where they have some. `pairs`: None if an outcome is neither 0 nor 1.
    """

    first: float
    rows: int
    pairs: roc.PairCounts | None


@dataclass(frozen=True)
class RangeOffsets:
    """Rows outside a range: rows below, positives and negatives above."""

    below: int
    above: tuple[int, int]


RangeMeasure = Callable[[Floats, Floats, Ints | None], Any]
"""Computes numbers from one range's predictions, outcomes and whole weights; sent to the tasks."""

RangeRunner = Callable[[RangeMeasure], Sequence[Any]]
"""Applies a measure to each range."""


def sample_range(values: Floats, most: int) -> Floats:
    """Return at most so many values, equally spaced in order.

    These values cut all values into parts of about equal size.
    """
    step = -(-len(values) // most) or 1
    return np.asarray(np.sort(values)[step // 2 :: step])


def cut_ranges(sample: Floats, tasks: int) -> Floats:
    """Return each range's lowest prediction, ascending, without the first."""
    return np.unique(np.quantile(sample, np.arange(1, tasks) / tasks, method="nearest"))


def deal_ranges(tables: Iterable[pa.Table], cuts: Floats) -> Iterator[Block]:
    """Partition rows by prediction; equal predictions go to one task."""
    for rows in tables:
        if len(rows):
            task_r = np.searchsorted(cuts, rows.column("prediction").to_numpy(), side="right")
            yield from partition_rows(rows.combine_chunks(), task_r.astype(np.int32))


def run_ranges(rows: TaskRows, select: Callable[[pa.Table], pa.Table], unit: int = 0) -> RangeRunner:
    """Return a function to run measures on the tasks' ranges.

    Args:
        rows: dealt by `deal_ranges`.
        select: chooses the measured rows in a range.
        unit: of whole weights (`roc.whole_weights`), if the rows have a column `weight`.
    """

    def run(measure: RangeMeasure) -> list[Any]:
        measured = rows.each(partial(_measure_range, select=select, measure=measure, unit=unit))
        return [one for one in measured if one is not None]

    return run


def _measure_range(
    rows: pa.Table, select: Callable[[pa.Table], pa.Table], measure: RangeMeasure, unit: int
) -> Any | None:
    chosen = select(rows)
    p, y = (chosen.column(name).to_numpy() for name in ("prediction", "outcome"))
    order, w = np.argsort(p, kind="stable"), None
    if "weight" in chosen.column_names:
        w = roc.whole_weights(chosen.column("weight").to_numpy()[order], unit)
    return measure(p[order], y[order], w) if len(p) else None


def are_binary(outcomes: Floats) -> Bools:
    """Mark outcomes of 0 and 1."""
    binary: Bools = (outcomes == 0) | (outcomes == 1)
    return binary


def count_ranges(each: RangeRunner) -> list[PredictionRange]:
    """Count rows and pairs in the ranges, in ascending order.

    Pairs are counted for outcomes 0 and 1.
    """
    ranges = sorted(each(_count_range), key=lambda one: one.first)
    if all(one.pairs is not None for one in ranges):
        return ranges
    return [replace(one, pairs=roc.PairCounts(0, one.rows, 0, 0, 0)) for one in ranges]


def _count_range(p: Floats, y: Floats, w: Ints | None) -> PredictionRange:
    rows = len(p) if w is None else int(w.sum())
    return PredictionRange(float(p[0]), rows, roc.pair_counts(p, y, w) if are_binary(y).all() else None)


def _range_offsets(ranges: Sequence[PredictionRange]) -> dict[float, RangeOffsets]:
    """Return each range's offsets, by its smallest prediction."""
    offsets, below = {}, 0
    positives, negatives = _count_outcomes(ranges)
    for one in ranges:
        own = _count_outcomes([one])
        positives, negatives = positives - own[0], negatives - own[1]
        offsets[one.first] = RangeOffsets(below, (positives, negatives))
        below += one.rows
    return offsets


def _count_outcomes(ranges: Sequence[PredictionRange]) -> tuple[int, int]:
    pairs = [one.pairs for one in ranges if one.pairs is not None]
    return sum(one.positives for one in pairs), sum(one.negatives for one in pairs)


def edges_and_area(
    each: RangeRunner, ranges: list[PredictionRange], bins: int, rates: tuple[float, float]
) -> tuple[Floats, float]:
    """Compute inner edges of equal-mass bins, and the partial AUC.

    The edges are those of `values.equal_mass_edges`.

    Args:
        each: runs measures, as in `count_ranges`.
        ranges: result of `count_ranges`.
        bins: number of bins; there are fewer where predictions are equal.
        rates: false-positive rates bounding the area.
    """
    rows = sum(one.rows for one in ranges)
    positives, negatives = _count_outcomes(ranges)
    at, within = [rows * b // bins for b in range(1, bins)], (rates[0] * negatives, rates[1] * negatives)
    offsets, binary = _range_offsets(ranges), positives > 0
    looks = each(partial(_look_range, offsets=offsets, at=at, within=within, binary=binary))
    edges = np.unique([edge for some, _, _ in looks for edge in some])
    twice = sum(twice for _, twice, _ in looks)
    area = roc.area_share(twice, [cut for _, _, cut in looks], positives * negatives, rates)
    return edges[edges > ranges[0].first] if ranges else edges, area


def _look_range(
    p: Floats,
    y: Floats,
    w: Ints | None,
    *,
    offsets: Mapping[float, RangeOffsets],
    at: Sequence[int],
    within: tuple[float, float],
    binary: bool,
) -> tuple[list[float], int, float]:
    """Return a range's bin edges, and its two areas.

    The areas are twice the area between whole rows, and the area of cut rows.
    """
    offset = offsets.get(float(p[0]))
    if offset is None:
        raise DataError("the predictions changed between two passes", "run again on a fixed table")
    ends = np.arange(1, len(p) + 1) if w is None else np.cumsum(w)
    inside = [place - offset.below for place in at if 0 <= place - offset.below < ends[-1]]
    edges = [float(p[np.searchsorted(ends, place, side="right")]) for place in inside]
    twice, cut = roc.roc_area(p, y if binary else np.zeros_like(y), offset.above, within, w)
    return edges, twice, cut
