"""Uniform random numbers from keys and seed, by `xxhash64`.

They depend on nothing else. Spark's `rand()` and `sample()` are not used, since their numbers depend on how
rows are spread over partitions. Numbers from hashes are the same on every cluster and for every
partitioning.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F


def hash_keys(*keys: str | Column, seed: int) -> Column:
    """Return a signed 64-bit hash of keys and seed."""
    return F.xxhash64(*keys, F.lit(seed).cast("long"))


def uniform(*keys: str | Column, seed: int) -> Column:
    """Return a number in [0, 1) from keys and seed.

    The number has 53 random bits.
    """
    return F.shiftrightunsigned(hash_keys(*keys, seed=seed), 11) * F.lit(2.0**-53)
