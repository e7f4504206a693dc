"""Statistics that need all predictions in order: AUC, partial AUC, edges of bins with equal mass.

The predictions are sorted once by range, and a task holds one range. Each pass returns a row of whole
numbers per task, so that no number depends on the number of ranges.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from recbench_spark.errors import DataError
from recbench_spark.kernels.arrays import Floats
from recbench_spark.kernels.metrics import roc
from recbench_spark.kernels.streams import Batches

if TYPE_CHECKING:  # the engine of this process loads no Spark
    from pyspark.sql import DataFrame, Row


@dataclass(frozen=True)
class PredictionRange:
    """Rows of one task: the smallest prediction, the number of rows, and their pairs (see `values`)."""

    first: float
    rows: int
    pairs: roc.PairCounts


@dataclass(frozen=True)
class RangeOffsets:
    """Rows of other tasks around a range: rows below it, and positives and negatives above it."""

    below: int
    above: tuple[int, int]


def sort_predictions(predictions: DataFrame) -> DataFrame:
    """Sort (prediction, outcome) by prediction in a cached frame; equal predictions share a partition."""
    return predictions.select("prediction", "outcome").orderBy("prediction").cache()


_PAIRS = ("positives", "negatives", "wins", "squares_x", "squares_z")
_RANGE = pa.schema(
    [("first", pa.float64()), ("rows", pa.int64()), *((name, pa.string()) for name in _PAIRS)]
)
_LOOK_SCHEMA = pa.schema([("edges", pa.list_(pa.float64())), ("twice", pa.string()), ("cut", pa.float64())])
"""Columns of the second pass. Whole numbers are texts, since they can exceed 64 bits."""


RangeMeasure = Callable[[Floats, Floats], tuple[object, ...]]
"""Function from the predictions and outcomes of one range to numbers."""

RangeRunner = Callable[[RangeMeasure, pa.Schema], Sequence[Any]]
"""Function that applies a measure to each range: one row per range, with its columns as attributes."""


def spark_ranges(ordered: DataFrame) -> RangeRunner:
    """Run measures on the ranges of a Spark frame; `ordered`: from `sort_predictions`."""
    return partial(_each_range, ordered)


def local_ranges(p: Floats, y: Floats) -> RangeRunner:
    """Run measures on all rows as one range of this process; rows can be in any order."""
    order = np.argsort(p, kind="stable")

    def each(measure: RangeMeasure, schema: pa.Schema) -> Sequence[Any]:
        if not len(p):
            return []
        return [SimpleNamespace(**dict(zip(schema.names, measure(p[order], y[order]), strict=True)))]

    return each


def count_ranges(each: RangeRunner, binary: bool) -> list[PredictionRange]:
    """Count rows and pairs of the ranges, in ascending order; pairs are counted for outcomes of 0 and 1.

    Args:
        each: runner of measures, on the cluster or in this process.
        binary: all outcomes are 0 or 1.
    """

    def count(p: Floats, y: Floats) -> tuple[float, int, *tuple[str, ...]]:
        pairs = roc.pair_counts(p, y if binary else np.zeros_like(y))
        return (float(p.min()), len(p), *(str(getattr(pairs, name)) for name in _PAIRS))

    rows = each(count, _RANGE)
    counts = ([int(getattr(row, name)) for name in _PAIRS] for row in rows)
    ranges = (
        PredictionRange(row.first, row.rows, roc.PairCounts(*numbers))
        for row, numbers in zip(rows, counts, strict=True)
    )
    return sorted(ranges, key=lambda one: one.first)


def _each_range(ordered: DataFrame, measure: RangeMeasure, schema: pa.Schema) -> list[Row]:
    from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415

    def rows(batches: Batches) -> Batches:
        filled = [batch for batch in batches if batch.num_rows]
        if filled:
            table = pa.Table.from_batches(filled)
            p, y = (table.column(name).to_numpy() for name in ("prediction", "outcome"))
            row = dict(zip(schema.names, measure(p, y), strict=True))
            yield pa.RecordBatch.from_pylist([row], schema=schema)

    return ordered.mapInArrow(rows, from_arrow_schema(schema)).collect()


def range_offsets(ranges: list[PredictionRange]) -> dict[float, RangeOffsets]:
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
    offsets, rows = range_offsets(ranges), sum(one.rows for one in ranges)
    positives, negatives = (
        sum(getattr(one.pairs, name) for one in ranges) for name in ("positives", "negatives")
    )
    at = rows * np.arange(1, bins) // bins
    within = (rates[0] * negatives, rates[1] * negatives)

    def look(p: Floats, y: Floats) -> tuple[list[float], str, float]:
        offset = offsets.get(float(p.min()))
        if offset is None:
            raise DataError("the predictions changed between two passes", "run again on a fixed table")
        inside = at[(at >= offset.below) & (at < offset.below + len(p))] - offset.below
        twice, cut = roc.roc_area(p, y if positives else np.zeros_like(y), offset.above, within)
        return np.sort(p)[inside].tolist(), str(twice), cut

    looks = each(look, _LOOK_SCHEMA)
    edges = np.unique([edge for row in looks for edge in row.edges])
    area = roc.area_share(
        sum(int(row.twice) for row in looks), [row.cut for row in looks], positives * negatives, rates
    )
    return edges[edges > ranges[0].first] if ranges else edges, area
