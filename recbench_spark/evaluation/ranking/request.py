"""Requests to a ranking."""

from __future__ import annotations

from dataclasses import dataclass

from recbench_spark.definitions import Definition

USER_CANDIDATES = ("rated", "given", "uniform", "popularity")
"""Candidate modes in which each user has own candidates."""


SAMPLED = ("uniform", "popularity")
"""Candidate modes in which items are drawn."""


@dataclass(frozen=True)
class RankingRequest:
    """Settings of a ranking.

    Attributes:
        definition: the evaluation definition.
        top: length of the requested lists (0: none).
        cutoff: largest rank that is counted; None: all. Where users have own candidates, all are counted.
    """

    definition: Definition
    top: int = 0
    cutoff: int | None = None
