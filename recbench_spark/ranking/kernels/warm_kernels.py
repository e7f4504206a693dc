"""Call of each kernel for ranks and drawn candidates, to compile it."""

from __future__ import annotations

import numpy as np

from recbench_spark.core.compiling import readonly
from recbench_spark.core.extras import has_module
from recbench_spark.ranking.kernels import negatives
from recbench_spark.ranking.kernels.counting import CountingSettings
from recbench_spark.ranking.kernels.moments import Periods, mark_available, place_moments
from recbench_spark.ranking.kernels.positives import ItemLists
from recbench_spark.ranking.kernels.scorers import (
    DotScorer,
    HashScorer,
    NeighbourScorer,
    Scorer,
    UserBlock,
    count_listed,
    count_ranks,
)

SETTINGS = (
    CountingSettings(),
    CountingSettings(top_k=2),
    CountingSettings(cutoff=2, reduced=False),
    CountingSettings(cutoff=2, reduced=True),
)
"""Settings for ranks, with lists, and up to a cut-off by both ways."""


def warm() -> None:
    """Rank two users with each kind of scorer.

    The users are ranked with lists and without, on arrays as workers map them.
    """
    truth = ItemLists(np.array([0, 1, 3]), np.array([0, 1, 2]))
    masked = ItemLists(np.array([0, 1, 2]), np.array([3, 3]))
    users = UserBlock(np.arange(2), np.ones((2, 3), np.float32), masked)
    scorers: list[Scorer] = [
        DotScorer(readonly(np.eye(4, 3, dtype=np.float32)), readonly(np.zeros(4))),
        DotScorer(readonly(np.eye(4, 3, dtype=np.float32)), None, None, "cosine"),
        NeighbourScorer(readonly(np.arange(5)), readonly(np.arange(4)), readonly(np.ones(4))),
        HashScorer(np.arange(4), seed=1),
    ]
    for scorer in scorers:
        for settings in SETTINGS:
            count_ranks(scorer, users, truth, masked, settings=settings)
        if scorer.products is not None and has_module("torch"):
            count_ranks(scorer, users, truth, masked, device="cpu:0", settings=SETTINGS[1])
        count_listed(scorer, users, truth, truth, top_k=1)
    negatives.draw(np.arange(2), masked, np.ones(2, np.int64), np.arange(5), seed=1)
    periods = Periods(np.arange(5), np.zeros(4, np.int64), np.ones(4, np.int64))
    mark_available(periods, np.arange(4), np.zeros(4, np.int64))
    as_of = place_moments(np.zeros(2, np.int64), periods)
    count_ranks(scorers[0], users, truth, masked, settings=SETTINGS[0], as_of=as_of)
