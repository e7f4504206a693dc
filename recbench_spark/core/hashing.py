"""Random draws by hash: splitmix64, and Spark's `xxhash64`.

Kernels draw with the first; the second has the same bits as Spark's.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from recbench_spark.core.compiling import compile_kernel, readonly

Hashes = npt.NDArray[np.uint64]

GAMMA = np.uint64(0x9E3779B97F4A7C15)
"""Increment of splitmix64's state from one output to the next."""


@compile_kernel
def mix(x: np.uint64) -> np.uint64:
    """Return splitmix64's output function.

    Source: Steele, Lea and Flood 2014, figure 15.
    """
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@compile_kernel
def splitmix64(state: np.uint64) -> np.uint64:
    """Return the next output after this state."""
    return mix(state + GAMMA)


@compile_kernel
def stream(seed: np.uint64, key: np.uint64) -> np.uint64:
    """Return a key's first state of draws under a seed."""
    return mix(splitmix64(seed) ^ key)


# ------------------------------------------------------------------------------------- xxhash64

_P1, _P2, _P3, _P4, _P5 = (
    np.uint64(0x9E3779B185EBCA87),
    np.uint64(0xC2B2AE3D27D4EB4F),
    np.uint64(0x165667B19E3779F9),
    np.uint64(0x85EBCA77C2B2AE63),
    np.uint64(0x27D4EB2F165667C5),
)


class Texts(NamedTuple):
    """Distinct texts in one buffer.

    Text d is `bytes_b[starts_d[d] : starts_d[d + 1]]`, UTF-8.
    """

    starts_d: npt.NDArray[np.int64]
    bytes_b: npt.NDArray[np.uint8]


def hash_texts(texts: Texts, which_r: npt.NDArray[Any], hashes_r: Hashes) -> Hashes:
    """Extend each row's hash by a text, as Spark's `xxhash64`.

    Args:
        texts: distinct texts.
        which_r: (r,) the text of each row.
        hashes_r: (r,) hash of the columns before it; `start` if there are none.

    Source: the reference implementation of XXH64 (Y. Collet, xxHash specification, version 0.1.1).
    """
    out = np.empty(len(which_r), np.uint64)
    inputs = (texts.starts_d, texts.bytes_b, which_r, hashes_r)
    starts_d, bytes_b, which_r, hashes_r = (readonly(array) for array in inputs)
    _fill_texts(starts_d, bytes_b, which_r, hashes_r, out)
    return out


def hash_bytes(text: bytes, hashes_r: Hashes) -> Hashes:
    """Extend each row's hash by the same text.

    A 64-bit number is its 8 bytes, little-endian.
    """
    texts = Texts(np.array([0, len(text)]), np.frombuffer(text, np.uint8))
    return hash_texts(texts, np.zeros(len(hashes_r), np.int32), hashes_r)


def hash_longs(values_r: npt.NDArray[np.int64], hashes_r: Hashes) -> Hashes:
    """Extend each row's hash by a number, as Spark's `xxhash64`.

    The number has 64 bits.
    """
    out = np.empty(len(values_r), np.uint64)
    _fill_longs(readonly(values_r.view(np.uint64)), readonly(hashes_r), out)
    return out


def hash_numbers(values_r: npt.NDArray[Any], hashes_r: Hashes) -> Hashes:
    """Extend each row's hash by a number, as Spark does.

    The number has 32 or 64 bits; there is one zero and one NaN.
    """
    if values_r.dtype.kind == "f":
        values_r = np.where(np.isnan(values_r), values_r.dtype.type(np.nan), values_r + 0)
    rows, content_b = len(values_r), np.ascontiguousarray(values_r).view(np.uint8)
    texts = Texts(np.arange(rows + 1) * values_r.dtype.itemsize, content_b)
    return hash_texts(texts, np.arange(rows, dtype=np.int32), hashes_r)


def place_hashes(hashes_r: Hashes) -> npt.NDArray[np.float64]:
    """Return numbers in [0, 1), as `randomness.uniform`.

    A number has 53 random bits.
    """
    return (hashes_r >> np.uint64(11)).astype(np.float64) * 2.0**-53


def start(rows: int) -> Hashes:
    """Return the start value for Spark's `xxhash64`, (rows,)."""
    return np.full(rows, 42, np.uint64)


@compile_kernel
def _fill_texts(
    starts_d: npt.NDArray[np.int64],
    bytes_b: npt.NDArray[np.uint8],
    which_r: npt.NDArray[Any],
    hashes_r: Hashes,
    out_r: Hashes,
) -> None:
    for r in range(len(which_r)):
        at, end = starts_d[which_r[r]], starts_d[which_r[r] + 1]
        state = hashes_r[r] + _P5
        if end - at >= 32:
            state = _hash_lanes(bytes_b, at, end, hashes_r[r])
        out_r[r] = _finish(bytes_b, end - (end - at) % 32, end, state + np.uint64(end - at))


@compile_kernel
def _fill_longs(values_r: Hashes, hashes_r: Hashes, out_r: Hashes) -> None:
    for r in range(len(values_r)):
        state = hashes_r[r] + _P5 + np.uint64(8)
        out_r[r] = _avalanche(_rotate(state ^ _step_lane(np.uint64(0), values_r[r]), 27) * _P1 + _P4)


@compile_kernel
def _hash_lanes(text: npt.NDArray[np.uint8], at: int, end: int, seed: np.uint64) -> np.uint64:
    """Hash whole stretches of 32 bytes, in four lanes."""
    a, b, c, d = seed + _P1 + _P2, seed + _P2, seed, seed - _P1
    while end - at >= 32:
        a, b = _step_lane(a, _word(text, at)), _step_lane(b, _word(text, at + 8))
        c, d = _step_lane(c, _word(text, at + 16)), _step_lane(d, _word(text, at + 24))
        at += 32
    state = _rotate(a, 1) + _rotate(b, 7) + _rotate(c, 12) + _rotate(d, 18)
    for lane in (a, b, c, d):
        state = (state ^ _step_lane(np.uint64(0), lane)) * _P1 + _P4
    return state


@compile_kernel
def _step_lane(lane: np.uint64, word: np.uint64) -> np.uint64:
    return _rotate(lane + word * _P2, 31) * _P1


@compile_kernel
def _finish(text: npt.NDArray[np.uint8], at: int, end: int, state: np.uint64) -> np.uint64:
    """Hash the last bytes (fewer than 32); apply the avalanche."""
    while end - at >= 8:
        state ^= _step_lane(np.uint64(0), _word(text, at))
        state = _rotate(state, 27) * _P1 + _P4
        at += 8
    if end - at >= 4:
        state = _rotate(state ^ (_half(text, at) * _P1), 23) * _P2 + _P3
        at += 4
    while at < end:
        state = _rotate(state ^ (np.uint64(text[at]) * _P5), 11) * _P1
        at += 1
    return _avalanche(state)


@compile_kernel
def _avalanche(state: np.uint64) -> np.uint64:
    """Mix the final state's bits."""
    state = (state ^ (state >> np.uint64(33))) * _P2
    state = (state ^ (state >> np.uint64(29))) * _P3
    return state ^ (state >> np.uint64(32))


@compile_kernel
def _half(text: npt.NDArray[np.uint8], at: int) -> np.uint64:
    """Read four bytes as a little-endian number.

    LLVM compiles this form to one load.
    """
    low = np.uint64(text[at]) | (np.uint64(text[at + 1]) << np.uint64(8))
    high = np.uint64(text[at + 2]) | (np.uint64(text[at + 3]) << np.uint64(8))
    return low | (high << np.uint64(16))


@compile_kernel
def _word(text: npt.NDArray[np.uint8], at: int) -> np.uint64:
    return _half(text, at) | (_half(text, at + 4) << np.uint64(32))


@compile_kernel
def _rotate(x: np.uint64, bits: int) -> np.uint64:
    return (x << np.uint64(bits)) | (x >> np.uint64(64 - bits))
