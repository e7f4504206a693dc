"""Uniform numbers from `xxhash64`: a function of keys and seed, of nothing else.

Never `rand()` or `sample()`: these depend on how rows are spread over partitions. The same numbers
come out on every cluster and for every split of the rows.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F


def hash_keys(*keys: str | Column, seed: int) -> Column:
    """A signed 64-bit hash of the keys and the seed."""
    return F.xxhash64(*keys, F.lit(seed).cast("long"))


def uniform(*keys: str | Column, seed: int) -> Column:
    """A number in [0, 1) with 53 random bits, from the keys and the seed."""
    return F.shiftrightunsigned(hash_keys(*keys, seed=seed), 11) * F.lit(2.0**-53)
