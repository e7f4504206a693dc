"""Compute dense products: bits depend on row and weights alone.

Libraries for linear algebra add in another order for another number of rows. Here each element is a chain
of fused multiply-adds by rising index, rounded after each: the same on every machine and for every batch.
Four rows at a time share the loaded weights, and each task has one thread.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from recbench_spark.core.compiling import compile_kernel, readonly
from recbench_spark.errors import DataError
from recbench_spark.graphs.kernels.simd import as_single, as_stored, fma

Matrix = npt.NDArray[np.float32]

HALF_MOST = 65504.0
"""Largest number in half precision."""

SINGLE_MOST = float(np.finfo(np.float32).max)
"""Largest number in single precision."""


class Dense(NamedTuple):
    """A dense layer x W^T + b, optionally with relu.

    Attributes:
        weight_t: (d_in, d_out) the transposed weights, contiguous.
        bias: (d_out,).
        relu: true if negative numbers become 0.
    """

    weight_t: Matrix
    bias: Matrix
    relu: bool

    def apply(self, x: npt.NDArray[Any]) -> Matrix:
        """Apply the layer to vectors.

        Takes (r, d_in) float32 or float16, returns (r, d_out) float32.
        """
        out = np.repeat(self.bias[None, :], len(x), axis=0)
        add_product(x, self.weight_t, out)
        return np.maximum(out, 0, out=out) if self.relu else out


def make_dense(weight: npt.NDArray[Any], bias: npt.NDArray[Any] | None, relu: bool = False) -> Dense:
    """Make a layer from torch's weights, (d_out, d_in)."""
    weight_t = np.ascontiguousarray(weight.T, np.float32)
    zeros = np.zeros(weight_t.shape[1], np.float32)
    return Dense(weight_t, zeros if bias is None else np.ascontiguousarray(bias, np.float32), relu)


def add_product(x: npt.NDArray[Any], weight_t: Matrix, out: Matrix) -> None:
    """Add x weight_t to out, in place.

    Args:
        x: (r, d_in) float32 or float16.
        weight_t: (d_in, d_out).
        out: (r, d_out).
    """
    rows = np.ascontiguousarray(x)
    rows = rows.view(np.uint16) if rows.dtype == np.float16 else rows
    _add_product(readonly(rows), readonly(weight_t), out)


@compile_kernel
def _add_product(x: Any, weight_t: Any, out: Any) -> None:
    whole = len(x) // 4 * 4
    for r in range(0, whole, 4):
        _add_four(x[r : r + 4], weight_t, out[r], out[r + 1], out[r + 2], out[r + 3])
    for r in range(whole, len(x)):
        for k in range(x.shape[1]):
            for j in range(out.shape[1]):
                out[r, j] = fma(as_single(x[r, k]), weight_t[k, j], out[r, j])


@compile_kernel
def _add_four(x: Any, weight_t: Any, a: Any, b: Any, c: Any, d: Any) -> None:
    inner = x.shape[1]
    k = 0
    while k + 4 <= inner:
        w0, w1, w2, w3 = weight_t[k], weight_t[k + 1], weight_t[k + 2], weight_t[k + 3]
        a0, a1, a2, a3 = _read_four(x[0], k)
        b0, b1, b2, b3 = _read_four(x[1], k)
        c0, c1, c2, c3 = _read_four(x[2], k)
        d0, d1, d2, d3 = _read_four(x[3], k)
        for j in range(len(a)):
            v0, v1, v2, v3 = w0[j], w1[j], w2[j], w3[j]
            a[j] = fma(a3, v3, fma(a2, v2, fma(a1, v1, fma(a0, v0, a[j]))))
            b[j] = fma(b3, v3, fma(b2, v2, fma(b1, v1, fma(b0, v0, b[j]))))
            c[j] = fma(c3, v3, fma(c2, v2, fma(c1, v1, fma(c0, v0, c[j]))))
            d[j] = fma(d3, v3, fma(d2, v2, fma(d1, v1, fma(d0, v0, d[j]))))
        k += 4
    while k < inner:
        for j in range(len(a)):
            a[j] = fma(as_single(x[0, k]), weight_t[k, j], a[j])
            b[j] = fma(as_single(x[1, k]), weight_t[k, j], b[j])
            c[j] = fma(as_single(x[2, k]), weight_t[k, j], c[j])
            d[j] = fma(as_single(x[3, k]), weight_t[k, j], d[j])
        k += 1


@compile_kernel
def _read_four(row: Any, k: int) -> tuple[np.float32, np.float32, np.float32, np.float32]:
    return as_single(row[k]), as_single(row[k + 1]), as_single(row[k + 2]), as_single(row[k + 3])


def normalise(x: Matrix) -> Matrix:
    """Divide each row by its length, in place.

    A row of zeros does not change.
    """
    _normalise(x)
    return x


@compile_kernel
def _normalise(x: Any) -> None:
    for r in range(len(x)):
        total = 0.0
        for j in range(x.shape[1]):
            total += np.float64(x[r, j]) * np.float64(x[r, j])
        length = np.float32(np.sqrt(total))
        if np.isinf(length):  # the length is too large for float32, or a number is infinite
            for j in range(x.shape[1]):
                x[r, j] = np.float64(x[r, j]) / np.sqrt(total)
        elif total > 0:
            for j in range(x.shape[1]):
                x[r, j] /= length


def store(x: Matrix, out: npt.NDArray[Any], what: str) -> None:
    """Write float32 rows to an array.

    Where the array is float16, numbers are rounded to the nearest half.

    Raises:
        DataError: a number is infinite, NaN or too large for half precision.
    """
    target = out.view(np.uint16) if out.dtype == np.float16 else out
    most = HALF_MOST if out.dtype == np.float16 else SINGLE_MOST
    _refuse(_store(readonly(np.ascontiguousarray(x)), target, np.float32(most)), most, what)


def check_finite(x: Matrix, what: str) -> Matrix:
    """Return the rows unchanged if all numbers are finite.

    Args:
        x: (r, d) float32.
        what: name of the rows in the message.

    Raises:
        DataError: a number is infinite or NaN.
    """
    if not np.isfinite(x).all():
        _refuse(int(np.count_nonzero(~np.isfinite(x))), SINGLE_MOST, what)
    return x


def _refuse(wrong: int, most: float, what: str) -> None:
    if wrong:
        raise DataError(
            f"{what}: {wrong} numbers are beyond {most:g} or not finite",
            "use wire: float32, normalise: true, or smaller features and weights",
        )


@compile_kernel
def _store(x: Any, out: Any, most: np.float32) -> int:
    wrong = 0
    for r in range(len(x)):
        for j in range(x.shape[1]):
            wrong += not abs(x[r, j]) <= most
            out[r, j] = as_stored(x[r, j], out[r, j])
    return wrong
