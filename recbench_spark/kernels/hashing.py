"""One mixing function for every draw that a kernel makes from hashes."""

from __future__ import annotations

import numpy as np

from recbench_spark.kernels.counting import compiled

GAMMA = np.uint64(0x9E3779B97F4A7C15)
"""What the state of splitmix64 grows by from one output to the next."""


@compiled
def mix(x: np.uint64) -> np.uint64:
    """The output function of splitmix64 (Steele, Lea and Flood 2014, figure 15)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@compiled
def splitmix64(state: np.uint64) -> np.uint64:
    """The next output after this state."""
    return mix(state + GAMMA)


@compiled
def stream(seed: np.uint64, key: np.uint64) -> np.uint64:
    """Where the draws of a key begin under a seed."""
    return mix(splitmix64(seed) ^ key)
