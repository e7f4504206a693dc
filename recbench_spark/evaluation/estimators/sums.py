"""Sums over the rows of a frame, with one row of numbers per task: no row is shuffled or collected."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame

from recbench_spark.engine.versions import collect_arrow
from recbench_spark.kernels.arrays import Floats
from recbench_spark.kernels.streams import Batches
from recbench_spark.kernels.sums import Sums, total_from_rows


def largest_values(rows: DataFrame, parts: Callable[[pa.RecordBatch], Floats]) -> Floats:
    """Return the largest absolute value of each column of `parts`, (rows, c); 0 where all are NaN."""

    def reduce(batches: Batches) -> Batches:
        maxima = [np.nanmax(np.abs(parts(batch)), axis=0, initial=0.0) for batch in batches]
        if maxima:
            yield _to_single_row(pa.array(np.max(maxima, axis=0)))

    tasks = collect_arrow(rows.mapInArrow(reduce, "numbers ARRAY<DOUBLE>"))
    most: Floats = np.max([row.values.to_numpy() for row in tasks.column("numbers")], axis=0)
    return most


def sum_batches(
    rows: DataFrame, sums: Callable[[pa.RecordBatch], list[Sums]], shapes: Sequence[tuple[int, ...]]
) -> list[Sums]:
    """Add up the sums of all batches, one of each shape; order and partitioning do not change a bit."""
    names = [f"sums_{n}" for n in range(len(shapes))]

    def reduce(batches: Batches) -> Batches:
        total: list[Sums] = []
        for batch in batches:
            addends = sums(batch)
            total = [one + other for one, other in zip(total, addends, strict=True)] if total else addends
        if total:
            lists = [pa.array([part.numbers()], pa.list_(pa.int64())) for part in total]
            yield pa.RecordBatch.from_arrays(lists, names)

    tasks = collect_arrow(rows.mapInArrow(reduce, ", ".join(f"{name} ARRAY<LONG>" for name in names)))
    return [total_from_rows(tasks.column(name), shape) for name, shape in zip(names, shapes, strict=True)]


def _to_single_row(numbers: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.ListArray.from_arrays([0, len(numbers)], numbers)], ["numbers"])
