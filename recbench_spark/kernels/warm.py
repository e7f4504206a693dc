"""Compile every kernel once, into the cache beside the sources: `python -m recbench_spark.kernels.warm`.

The first night would otherwise wait half a minute for the compiler, once on every host.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from recbench_spark.kernels.hashing import hash_bytes, start
from recbench_spark.kernels.metrics.predictions import user_sums
from recbench_spark.kernels.ranking.counting import Settings
from recbench_spark.kernels.ranking.positives import ItemLists
from recbench_spark.kernels.ranking.scorers import (
    DotScorer,
    HashScorer,
    NeighbourScorer,
    Scorer,
    UserBlock,
    count_listed,
    count_ranks,
)
from recbench_spark.kernels.ratios import exact_moments
from recbench_spark.kernels.resampling import bootstrap_sums


def warm() -> None:
    """Rank two users by each kind of scorer, with lists and without, on arrays as workers map them."""
    truth = ItemLists(np.array([0, 1, 3]), np.array([0, 1, 2]))
    masked = ItemLists(np.array([0, 1, 2]), np.array([3, 3]))
    vectors_ud = np.ones((2, 3), np.float32)
    users = UserBlock(np.arange(2), vectors_ud, masked)
    scorers: list[Scorer] = [
        DotScorer(_mapped(np.eye(4, 3, dtype=np.float32)), _mapped(np.zeros(4))),
        DotScorer(_mapped(np.eye(4, 3, dtype=np.float32)), None, None, "cosine"),
        NeighbourScorer(_mapped(np.arange(5)), _mapped(np.arange(4)), _mapped(np.ones(4))),
        HashScorer(np.arange(4), seed=1),
    ]
    for scorer in scorers:
        for settings in (Settings(), Settings(top_k=2), Settings(cutoff=2)):
            count_ranks(scorer, users, truth, masked, settings=settings)
        count_listed(scorer, users, truth, truth, top_k=1)
    hash_bytes(b"any", start(2))
    bootstrap_sums(np.arange(2), np.ones((2, 1)), replicates=2, seed=1)
    user_sums(np.array([0, 2]), np.ones(2), np.ones(2))
    exact_moments(np.ones((2, 1)), np.ones((2, 1)))


def _mapped(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """As `np.load(mmap_mode="r")` gives them: read-only arrays are a type of their own to numba."""
    array.flags.writeable = False
    return array


if __name__ == "__main__":
    warm()
