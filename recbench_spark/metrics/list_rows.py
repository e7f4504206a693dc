"""Rows with lists of one length: users' values, and sums by cell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recbench_spark.core.arrays import Floats, Ints
from recbench_spark.ranking.batch_schemas import USER_VALUES


def make_lists(values_nc: npt.NDArray[Any]) -> pa.ListArray:
    """Return a list per row; NULL for NaN."""
    n, c = values_nc.shape
    flat = np.ascontiguousarray(values_nc).ravel()
    missing = np.isnan(flat) if flat.dtype.kind == "f" else None
    return pa.ListArray.from_arrays(np.arange(n + 1, dtype=np.int32) * c, pa.array(flat, mask=missing))


def repeat_list(numbers: Sequence[int | None], n: int) -> pa.ListArray:
    """Repeat whole numbers as a list column with n rows."""
    bounds = np.arange(n + 1, dtype=np.int32) * len(numbers)
    places = np.tile(np.arange(len(numbers), dtype=np.int32), n)
    return pa.ListArray.from_arrays(bounds, pa.array(numbers, pa.int32()).take(pa.array(places)))


def user_batch(
    ids: pa.Array,
    parts: pa.Array,
    metric: str,
    values_uc: Floats,
    relevant_u: pa.Array,
    *,
    ks: Sequence[int | None],
    definition: str,
) -> pa.RecordBatch:
    """Build `USER_VALUES` from users' values of one metric, (u, c)."""
    n = len(ids)
    columns = {
        "user_id": ids,
        "part": parts,
        "metric": pa.repeat(metric, n),
        "definition": pa.repeat(definition, n),
        "estimator": pa.repeat("holdout", n),
        "ks": repeat_list(ks, n),
        "values": make_lists(values_uc),
        "n_relevant": relevant_u,
    }
    return pa.RecordBatch.from_pydict(columns, schema=USER_VALUES)


def sum_lists(table: pa.Table, name: str, shape: tuple[int, ...]) -> Ints:
    """Add up the lists in a column, number by number."""
    rows = [row.values.to_numpy() for row in table.column(name)]
    return np.sum(rows, axis=0, dtype=np.int64).reshape(shape)
