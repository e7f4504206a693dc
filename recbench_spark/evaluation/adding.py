"""Adding up what rows contribute, a row of numbers a task: nothing is shuffled, nothing is collected."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import DataFrame

Batches = Iterator[pa.RecordBatch]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def largest(rows: DataFrame, parts: Callable[[pa.RecordBatch], Floats]) -> Floats:
    """The largest absolute value of each column of `parts`, which gives (rows, c); 0 where all are NaN."""

    def reduce(batches: Batches) -> Batches:
        found = [np.nanmax(np.abs(parts(batch)), axis=0, initial=0.0) for batch in batches]
        if found:
            yield _one_row(pa.array(np.max(found, axis=0)))

    tasks = rows.mapInArrow(reduce, "numbers ARRAY<DOUBLE>").toArrow()
    most: Floats = np.max([row.values.to_numpy() for row in tasks.column("numbers")], axis=0)
    return most


def added_up(rows: DataFrame, sums: Callable[[pa.RecordBatch], Ints]) -> Ints:
    """Whole numbers of all batches added up, flat: in any order and partitioning the same bits."""

    def reduce(batches: Batches) -> Batches:
        total: Ints | None = None
        for batch in batches:
            found = sums(batch).ravel()
            total = found if total is None else total + found
        if total is not None:
            yield _one_row(pa.array(total))

    tasks = rows.mapInArrow(reduce, "numbers ARRAY<LONG>").toArrow()
    total: Ints = np.sum([row.values.to_numpy() for row in tasks.column("numbers")], axis=0)
    return total


def _one_row(numbers: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.ListArray.from_arrays([0, len(numbers)], numbers)], ["numbers"])
