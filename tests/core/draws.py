"""Draws by hash on whole numbers of Python: the oracle of `core.hashing`."""

from __future__ import annotations

GAMMA = 0x9E3779B97F4A7C15


def mix(x: int) -> int:
    """splitmix64's output function."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ x >> shift) * factor % 2**64
    return x ^ x >> 31


def stream(seed: int, key: int) -> int:
    """Return the state at which the draws of a key begin under a seed."""
    return mix(mix((seed + GAMMA) % 2**64) ^ key % 2**64)
