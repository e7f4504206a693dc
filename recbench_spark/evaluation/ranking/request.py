"""What is asked of a ranking."""

from __future__ import annotations

from dataclasses import dataclass

from recbench_spark.definitions import Definition

USER_CANDIDATES = ("rated", "given", "uniform", "popularity")
"""Candidate modes in which each user brings the candidates."""


SAMPLED = ("uniform", "popularity")
"""Candidate modes in which items are drawn."""


@dataclass(frozen=True)
class RankingRequest:
    """What is ranked: the definition, how long the lists are that are asked for (0: none), and up to
    where ranks are counted (None: all; where users bring the candidates, always all).
    """

    definition: Definition
    top: int = 0
    cutoff: int | None = None
