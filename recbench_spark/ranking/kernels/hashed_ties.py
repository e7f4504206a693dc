"""Order of tied items by hash, as in WarpRec 2.2.8.

The hash takes seed, user and item. Each user sees tied items in an own order, whatever batch the user is
in. Its parts are MurmurHash3's 32-bit finaliser (Appleby 2011, public domain) and the multiplier for
Fibonacci hashing (Knuth, The Art of Computer Programming 3, section 6.4). All numbers are whole, modulo
2^32.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint32]

FIBONACCI = np.uint32(0x9E3779B1)
"""2^32 divided by the golden ratio, made odd."""

KEY_BITS = 30
"""Bits in a key: the hash's upper ones."""


def hash_pairs(seed: int, users: npt.NDArray[Any], items: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Return each pair's key, from 0 to 2^30 - 1.

    Among tied items the one with the larger key comes first.

    Args:
        seed: from 0 to 2^63 - 1.
        users, items: whole numbers, whose lowest 32 bits count; shapes are broadcast.
    """
    folded = np.uint32((seed ^ (seed >> 32)) & 0xFFFFFFFF)
    user_part = mix_bits(mix_bits((_to_words(users) * FIBONACCI) ^ folded))
    item_part = mix_bits(_to_words(items) * FIBONACCI + np.uint32(1))
    return (mix_bits(user_part ^ item_part) >> np.uint32(32 - KEY_BITS)).astype(np.int64)


def mix_bits(x: Words) -> Words:
    """Return MurmurHash3's finaliser for 32-bit words.

    The function is a permutation in which every bit reaches all bits.

    >>> hex(int(mix_bits(np.array([1], np.uint32))[0]))
    '0x514e28b7'
    """
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    x = (x ^ (x >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    mixed: Words = x ^ (x >> np.uint32(16))
    return mixed


def _to_words(numbers: npt.NDArray[Any]) -> Words:
    return (np.asarray(numbers, dtype=np.int64) & 0xFFFFFFFF).astype(np.uint32)
