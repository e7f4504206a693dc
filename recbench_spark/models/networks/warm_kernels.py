"""Call of each kernel for networks, to compile it."""

from __future__ import annotations

import numpy as np

from recbench_spark.graphs.kernels.samples import Band
from recbench_spark.models.networks import sampling


def warm() -> None:
    """Draw negatives for two users in each way."""
    indptr, two = np.array([0, 1, 2]), np.arange(2)
    sampling.draw_shared_negatives(0, 4, 2, seed=1)
    sampling.draw_unseen(indptr, two, two, two, 4, seed=1)
    sampling.find_owned_items(indptr, two, two, two, np.zeros((2, 1), np.int64))
    band = Band(indptr, two.astype(np.uint32), two > 1)
    sampling.draw_hard_negatives(band, two, two, 1, np.array([0, 4]), seed=1)
