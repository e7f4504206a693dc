"""Compute edge sums and maxima with gradients, to train layers.

Numbers are float32 or float64. One thread adds the edges in their order. So the bits do not depend on the
threads of a library, and no array is as large as edges times dimensions. `aggregate` has the same sums
for inference.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from recbench_spark.core.compiling import compile_kernel, readonly

Array = npt.NDArray[Any]


def sum_rows(indptr: Array, place_e: Array, weight_e: Array | None, z: Array) -> Array:
    """Sum sources' rows by destination, (r, m).

    Sums are weighted where there are weights.

    Args:
        indptr: (r + 1,) place where each destination's edges begin.
        place_e: (e,) rows of z.
        weight_e: (e,) or None.
        z: (n, m).
    """
    out = np.zeros((len(indptr) - 1, z.shape[1]), z.dtype)
    _sum_rows(*_prepare_arrays(indptr, place_e, weight_e, z), out, False)
    return out


def sum_rows_gradient(
    indptr: Array, place_e: Array, weight_e: Array | None, grad: Array, rows: int
) -> Array:
    """Return the gradient of `sum_rows` by z, (n, m).

    Args:
        indptr: see `sum_rows`.
        place_e: see `sum_rows`.
        weight_e: see `sum_rows`.
        grad: (r, m) gradient by its result.
        rows: n.
    """
    out = np.zeros((rows, grad.shape[1]), grad.dtype)
    _sum_rows(*_prepare_arrays(indptr, place_e, weight_e, grad), out, True)
    return out


def max_rows(indptr: Array, place_e: Array, z: Array) -> tuple[Array, Array]:
    """Return column maxima over sources' rows, and their rows.

    Maxima and rows are (r, m) each. Among equal rows the first one counts. Destinations without edges get
    zeros and row -1.
    """
    out = np.zeros((len(indptr) - 1, z.shape[1]), z.dtype)
    row = np.full(out.shape, -1, np.int32)
    _max_rows(readonly(indptr), readonly(place_e), readonly(z), out, row)
    return out, row


def max_rows_gradient(row: Array, grad: Array, rows: int) -> Array:
    """Return the gradient of `max_rows` by z, (n, m).

    `grad` is the (r, m) gradient by its result.
    """
    out = np.zeros((rows, grad.shape[1]), grad.dtype)
    _max_rows_gradient(readonly(row), readonly(grad), out)
    return out


def _prepare_arrays(
    indptr: Array, place_e: Array, weight_e: Array | None, x: Array
) -> tuple[Any, Any, Any, Any]:
    weight = np.empty(0, x.dtype) if weight_e is None else weight_e.astype(x.dtype, copy=False)
    return readonly(indptr), readonly(place_e), readonly(weight), readonly(x)


@compile_kernel
def _sum_rows(indptr: Any, place: Any, weight: Any, rows: Any, out: Any, back: bool) -> None:
    """Add rows of sources to destinations; `back`: the other way round."""
    for r in range(len(indptr) - 1):
        for e in range(indptr[r], indptr[r + 1]):
            to, p = (place[e], r) if back else (r, place[e])
            if len(weight):
                for j in range(rows.shape[1]):
                    out[to, j] += weight[e] * rows[p, j]
            else:
                for j in range(rows.shape[1]):
                    out[to, j] += rows[p, j]


@compile_kernel
def _max_rows(indptr: Any, place: Any, z: Any, out: Any, row: Any) -> None:
    for r in range(len(out)):
        for e in range(indptr[r], indptr[r + 1]):
            p = place[e]
            first = e == indptr[r]
            for j in range(z.shape[1]):
                more = first or z[p, j] > out[r, j]
                out[r, j] = z[p, j] if more else out[r, j]
                row[r, j] = p if more else row[r, j]


@compile_kernel
def _max_rows_gradient(row: Any, grad: Any, out: Any) -> None:
    for r in range(len(row)):
        for j in range(row.shape[1]):
            if row[r, j] >= 0:
                out[row[r, j], j] += grad[r, j]
