"""Uniform random numbers from `xxhash64`: they depend on keys and seed, and on nothing else.

`rand()` and `sample()` of Spark are not used, since their numbers depend on how rows are spread over
partitions. Numbers from hashes are the same on every cluster and for every partitioning.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F


def hash_keys(*keys: str | Column, seed: int) -> Column:
    """Return a signed 64-bit hash of the keys and the seed."""
    return F.xxhash64(*keys, F.lit(seed).cast("long"))


def uniform(*keys: str | Column, seed: int) -> Column:
    """Return a number in [0, 1) with 53 random bits, from the keys and the seed."""
    return F.shiftrightunsigned(hash_keys(*keys, seed=seed), 11) * F.lit(2.0**-53)
