"""Call of each kernel for hashes, sums and resampling, to compile it."""

from __future__ import annotations

import numpy as np

from recbench_spark.core.hashing import hash_bytes, hash_longs, start
from recbench_spark.core.ratios import exact_moments
from recbench_spark.core.resampling import bootstrap_sums, exact_sums


def warm() -> None:
    """Hash, resample and add up two rows."""
    hash_longs(np.arange(2), hash_bytes(b"any", start(2)))
    bootstrap_sums(np.arange(2), np.ones((2, 1)), replicates=2, seed=1)
    exact_sums(np.ones((2, 1)))
    exact_moments(np.ones((2, 1)), np.ones((2, 1)))
