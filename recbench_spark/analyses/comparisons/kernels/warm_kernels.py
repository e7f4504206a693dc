"""Call of each kernel for comparisons, to compile it."""

from __future__ import annotations

import numpy as np

from recbench_spark.analyses.comparisons.kernels.significance import random_signs


def warm() -> None:
    """Draw two signs."""
    random_signs(np.arange(2), replicates=1, seed=1)
