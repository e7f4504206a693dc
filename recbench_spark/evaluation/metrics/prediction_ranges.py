"""What needs all predictions in order: AUC, partial AUC, edges of equal mass.

The predictions are sorted once by range (a task holds its range); each pass brings back a row of
whole numbers per task, so that no number depends on how many ranges there are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, Row
from pyspark.sql.pandas.types import from_arrow_schema

from recbench_spark.errors import DataError
from recbench_spark.kernels.arrays import Floats
from recbench_spark.kernels.metrics import predictions as values
from recbench_spark.kernels.streams import Batches


@dataclass(frozen=True)
class PredictionRange:
    """One task's rows: the smallest prediction, how many, and the pairs among them (see `values`)."""

    first: float
    rows: int
    pairs: values.PairCounts


@dataclass(frozen=True)
class RangeOffsets:
    """What a task must know of the others: rows below, positives and negatives above its range."""

    below: int
    above: tuple[int, int]


def sort_predictions(predictions: DataFrame) -> DataFrame:
    """prediction, outcome by ascending prediction, kept by Spark: equal ones share a partition."""
    return predictions.select("prediction", "outcome").orderBy("prediction").cache()


_PAIRS = ("positives", "negatives", "wins", "squares_x", "squares_z")
_RANGE = pa.schema(
    [("first", pa.float64()), ("rows", pa.int64()), *((name, pa.string()) for name in _PAIRS)]
)
_LOOK_SCHEMA = pa.schema([("edges", pa.list_(pa.float64())), ("twice", pa.string()), ("cut", pa.float64())])
"""Ints numbers as text: they outgrow 64 bits."""


RangeMeasure = Callable[[Floats, Floats], tuple[object, ...]]
"""Numbers from the predictions and outcomes of one range."""

RangeRunner = Callable[[RangeMeasure, pa.Schema], Sequence[Any]]
"""What carries a measure out on each range: one row a range, its columns as attributes."""


def spark_ranges(ordered: DataFrame) -> RangeRunner:
    """One row from all rows of each task; `ordered`: as `sort_predictions` gives it."""
    return partial(_each_range, ordered)


def local_ranges(p: Floats, y: Floats) -> RangeRunner:
    """All rows as one range of this process, in any order."""
    order = np.argsort(p, kind="stable")

    def each(measure: RangeMeasure, schema: pa.Schema) -> Sequence[Any]:
        if not len(p):
            return []
        return [SimpleNamespace(**dict(zip(schema.names, measure(p[order], y[order]), strict=True)))]

    return each


def count_ranges(each: RangeRunner, binary: bool) -> list[PredictionRange]:
    """The ranges in ascending order; pairs are counted where outcomes are 0 and 1.

    Args:
        each: the ranges, on the cluster or in this process.
        binary: whether all outcomes are 0 or 1.
    """

    def count(p: Floats, y: Floats) -> tuple[float, int, *tuple[str, ...]]:
        pairs = values.pair_counts(p, y if binary else np.zeros_like(y))
        return (float(p.min()), len(p), *(str(getattr(pairs, name)) for name in _PAIRS))

    rows = each(count, _RANGE)
    counts = ([int(getattr(row, name)) for name in _PAIRS] for row in rows)
    found = (
        PredictionRange(row.first, row.rows, values.PairCounts(*numbers))
        for row, numbers in zip(rows, counts, strict=True)
    )
    return sorted(found, key=lambda one: one.first)


def _each_range(ordered: DataFrame, measure: RangeMeasure, schema: pa.Schema) -> list[Row]:
    def rows(batches: Batches) -> Batches:
        filled = [batch for batch in batches if batch.num_rows]
        if filled:
            table = pa.Table.from_batches(filled)
            p, y = (table.column(name).to_numpy() for name in ("prediction", "outcome"))
            row = dict(zip(schema.names, measure(p, y), strict=True))
            yield pa.RecordBatch.from_pylist([row], schema=schema)

    return ordered.mapInArrow(rows, from_arrow_schema(schema)).collect()


def range_offsets(ranges: list[PredictionRange]) -> dict[float, RangeOffsets]:
    """The place of each range, by its smallest prediction."""
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
    """Inner edges of bins of equal mass (`values.equal_mass_edges`), and the partial AUC.

    Args:
        each: as for `count_ranges`.
        ranges: its ranges.
        bins: number of bins, fewer where predictions are equal.
        rates: false-positive rates between which the area is taken.
    """
    places, rows = range_offsets(ranges), sum(one.rows for one in ranges)
    positives, negatives = (
        sum(getattr(one.pairs, name) for one in ranges) for name in ("positives", "negatives")
    )
    at = rows * np.arange(1, bins) // bins
    within = (rates[0] * negatives, rates[1] * negatives)

    def look(p: Floats, y: Floats) -> tuple[list[float], str, float]:
        place = places.get(float(p.min()))
        if place is None:
            raise DataError("the predictions changed between two passes", "run again on a fixed table")
        inside = at[(at >= place.below) & (at < place.below + len(p))] - place.below
        twice, cut = values.roc_area(p, y if positives else np.zeros_like(y), place.above, within)
        return np.sort(p)[inside].tolist(), str(twice), cut

    found = each(look, _LOOK_SCHEMA)
    edges = np.unique([edge for row in found for edge in row.edges])
    area = values.area_share(
        sum(int(row.twice) for row in found), [row.cut for row in found], positives * negatives, rates
    )
    return edges[edges > ranges[0].first] if ranges else edges, area
