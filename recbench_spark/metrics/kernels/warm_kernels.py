"""Call of each kernel for metrics, to compile it."""

from __future__ import annotations

import numpy as np

from recbench_spark.metrics.kernels.predictions import user_sums
from recbench_spark.metrics.kernels.roc import user_aucs
from recbench_spark.metrics.kernels.user_lists import CountedItems, HeadAndTail, sum_labels


def warm() -> None:
    """Add up two predictions, count their pairs, and two labels."""
    user_sums(np.array([0, 2]), np.ones(2), np.ones(2))
    user_aucs(np.array([0, 2]), np.ones(2), np.ones(2))
    sum_labels(CountedItems(np.array([0, 2]), np.arange(2), np.arange(2)), HeadAndTail(1))
