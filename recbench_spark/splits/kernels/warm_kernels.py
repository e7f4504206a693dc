"""Call of each kernel for splits, to compile it."""

from __future__ import annotations

import numpy as np

from recbench_spark.splits.kernels.prefixes import list_ranges


def warm() -> None:
    """List one range."""
    list_ranges(np.array([0]), np.array([1]))
