"""Hash and draw for generated worlds, in numpy like Spark.

The hash is `xxhash64`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from recbench_spark.core.arrays import Ints

Hashes = npt.NDArray[np.uint64]

# One number per purpose is hashed first, so that draws for different purposes are independent.
TASTE, LEVEL, USER_FACTOR, GENRE, ITEM_FACTOR, ITEM_QUALITY, RANK, RATING_NOISE, EXPOSE, WHEN, OPEN = range(
    11
)

PRIME_1, PRIME_2, PRIME_3, PRIME_4, PRIME_5 = (
    np.uint64(prime)
    for prime in (
        0x9E3779B185EBCA87,
        0xC2B2AE3D27D4EB4F,
        0x165667B19E3779F9,
        0x85EBCA77C2B2AE63,
        0x27D4EB2F165667C5,
    )
)


def hash_keys(*keys: Any, seed: int) -> Hashes:
    """Compute Spark's `xxhash64(keys..., seed)` for long columns.

    Keys broadcast as numpy arrays do.
    """
    state: Any = np.array([42], dtype=np.uint64)
    for key in (*keys, seed):
        state = hash_long(np.atleast_1d(key), state)
    hashes: Hashes = state
    return hashes


def hash_long(value: npt.NDArray[Any], state: Hashes) -> Hashes:
    """Compute XXH64 of a 64-bit integer, modulo 2**64.

    Source: Collet's specification, 8 bytes.
    """
    mixed = _rotate(value.astype(np.uint64) * PRIME_2, 31) * PRIME_1
    h: Hashes = (state + PRIME_5 + np.uint64(8)) ^ mixed
    h = _rotate(h, 27) * PRIME_1 + PRIME_4
    h = (h ^ (h >> np.uint64(33))) * PRIME_2
    h = (h ^ (h >> np.uint64(29))) * PRIME_3
    return h ^ (h >> np.uint64(32))


def _rotate(value: Hashes, bits: int) -> Hashes:
    return (value << np.uint64(bits)) | (value >> np.uint64(64 - bits))


def draw_below(bound: int, *keys: Any, seed: int) -> Ints:
    """Draw a whole number 0..bound-1 from keys and seed.

    The draw is uneven by less than bound / 2**64.
    """
    return (hash_keys(*keys, seed=seed) % np.uint64(bound)).astype(np.int64)


def contains(sorted_values: Ints, values: Ints) -> npt.NDArray[np.bool_]:
    """Return whether each value is among the ascending ones."""
    if not len(sorted_values):
        return np.zeros(len(values), dtype=bool)
    place = np.minimum(np.searchsorted(sorted_values, values), len(sorted_values) - 1)
    is_equal: npt.NDArray[np.bool_] = sorted_values[place] == values
    return is_equal
