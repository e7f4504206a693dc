"""Random draws from a counter, equal for equal keys.

The key is (seed, what, step, row, n). Uniform numbers are the upper 53 bits from splitmix64; normal ones
come in pairs from two uniform ones (Box and Muller 1958). No draw depends on another: threads and row order
change no bit.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from recbench_spark.core.compiling import compile_kernel
from recbench_spark.core.hashing import GAMMA, mix, stream

MASK = 2**64 - 1


@compile_kernel
def draw_state(seed: np.uint64, what: int, step: int, row: int) -> np.uint64:
    """Return the state from which one row's draws start.

    The draws belong to one step and one purpose.
    """
    return stream(stream(stream(seed, np.uint64(what)), np.uint64(step)), np.uint64(row))


@compile_kernel
def uniform(state: np.uint64, n: int) -> float:
    """Return draw n of a state, in (0, 1).

    A draw is never 0, so its logarithm is finite.
    """
    return (np.float64(mix(state + np.uint64(n + 1) * GAMMA) >> np.uint64(11)) + 0.5) * 2.0**-53


@compile_kernel
def fill_normals(state: np.uint64, out: npt.NDArray[np.floating]) -> None:
    """Fill an array with independent standard normal numbers.

    x, y = sqrt(-2 log a) (cos, sin)(2 pi b) for uniform a and b.
    """
    for n in range(0, len(out), 2):
        radius = math.sqrt(-2.0 * math.log(uniform(state, n)))
        angle = 2.0 * math.pi * uniform(state, n + 1)
        out[n] = radius * math.cos(angle)
        if n + 1 < len(out):
            out[n + 1] = radius * math.sin(angle)


@compile_kernel
def _fill_table(seed: np.uint64, what: int, sd: float, table: npt.NDArray[np.floating]) -> None:
    for row in range(len(table)):
        fill_normals(draw_state(seed, what, 0, row), table[row])
        for n in range(table.shape[1]):
            table[row, n] *= sd


def normal_table(
    shape: tuple[int, int], sd: float, seed: int, what: int, dtype: type[np.floating] = np.float32
) -> npt.NDArray[np.floating]:
    """Return (rows, columns) normal numbers with this deviation.

    Row n does not depend on the shape.
    """
    table = np.zeros(shape, dtype)
    _fill_table(as_unsigned(seed), what, sd, table)
    return table


def as_unsigned(seed: int) -> np.uint64:
    """Convert a seed for the hash; negative seeds wrap."""
    return np.uint64(seed & MASK)
