"""Random draws and orders from a counter or a hash, equal for equal keys.

The key of a draw is (seed, what, step, row, n). Uniform numbers are the upper 53 bits from splitmix64;
normal ones come in pairs from two uniform ones (Box and Muller 1958). No draw depends on another: threads
and row order change no bit. Hash orders for ratings are independent of the input row order.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from recbench_spark.core.arrays import Bools, Ints
from recbench_spark.core.compiling import compile_kernel
from recbench_spark.core.hashing import GAMMA, mix, stream
from recbench_spark.models.rating.interface import Ratings
from recbench_spark.models.rating.simd import fetch_number

TRIPLE = np.dtype(
    {"names": ["user", "item", "target"], "formats": [np.uint32, np.uint32, np.float32], "itemsize": 16}
)
"""A rating in an epoch: its three numbers are adjacent, so one memory access loads them."""

AHEAD = 64
"""Prefetch distance: how many steps ahead the target places are loaded."""

Triples = npt.NDArray[np.void]
"""Array (r,) of TRIPLE."""


def make_triples(
    users_r: npt.NDArray[Any], items_r: npt.NDArray[Any], targets_r: npt.NDArray[Any]
) -> Triples:
    """Return ratings as records for an epoch."""
    triples = np.empty(len(users_r), TRIPLE)
    triples["user"], triples["item"], triples["target"] = users_r, items_r, targets_r
    return triples


def shuffle(triples: Triples, seed: int, step: int) -> None:
    """Shuffle in place by draws from (seed, step).

    Row r becomes the former row `permutation(...)[r]`.
    """
    halves_h = triples.view(np.uint64)
    _shuffle_halves(halves_h, np.uint64(stream(as_unsigned(seed), np.uint64(step))))


def hash_order(ratings: Ratings, seed: int) -> Ints:
    """Return (r,) row numbers by hash of (user, item).

    Any input order gives the same sequence. Two ratings by one user for one item are sorted by value.
    """
    keys_r = _hashes(as_unsigned(seed), ratings.users_r, ratings.items_r)
    return np.lexsort((ratings.ratings_r, keys_r))


def draw_held_out(ratings: Ratings, share: float, seed: int) -> Bools:
    """Return (r,) true for held-out ratings.

    For such a rating, the hash of (user, item) lies in the lowest `share`.
    """
    hashes_r = _hashes(as_unsigned(seed), ratings.users_r, ratings.items_r)
    return (hashes_r >> np.uint64(11)).astype(np.float64) < share * 2.0**53


def permutation(rows: int, seed: int, step: int) -> npt.NDArray[np.uint32]:
    """Return (r,) 0 .. r - 1 shuffled by draws from (seed, step).

    Source: Fisher and Yates; Durstenfeld 1964.
    """
    order_r = np.arange(rows, dtype=np.uint32)
    _shuffle(order_r, np.uint64(stream(as_unsigned(seed), np.uint64(step))))
    return order_r


@compile_kernel
def _hashes(seed: np.uint64, users_r: Ints, items_r: Ints) -> npt.NDArray[np.uint64]:
    hashes = np.empty(len(users_r), np.uint64)
    for r in range(len(users_r)):
        hashes[r] = stream(stream(seed, np.uint64(users_r[r])), np.uint64(items_r[r]))
    return hashes


@compile_kernel
def _place(state: np.uint64, last: int) -> np.uint64:
    """Return a drawn place from 0 to last.

    The place is (upper 32 bits times (last + 1)) / 2^32, rounded down.
    """
    return ((mix(state) >> np.uint64(32)) * np.uint64(last + 1)) >> np.uint64(32)


@compile_kernel
def _shuffle(order_r: npt.NDArray[np.uint32], state: np.uint64) -> None:
    for last in range(len(order_r) - 1, 0, -1):
        state += GAMMA
        at = _place(state, last)
        order_r[last], order_r[at] = order_r[at], order_r[last]


@compile_kernel
def _shuffle_halves(halves_h: npt.NDArray[np.uint64], state: np.uint64) -> None:
    ahead = state + np.uint64(AHEAD) * GAMMA
    for last in range(len(halves_h) // 2 - 1, 0, -1):
        state += GAMMA
        ahead += GAMMA
        if last > AHEAD:
            fetch_number(halves_h, 2 * np.int64(_place(ahead, last - AHEAD)))
        row, at = 2 * last, 2 * np.int64(_place(state, last))
        halves_h[row], halves_h[at] = halves_h[at], halves_h[row]
        halves_h[row + 1], halves_h[at + 1] = halves_h[at + 1], halves_h[row + 1]


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
