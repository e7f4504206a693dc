"""Requests to a ranking."""

from __future__ import annotations

from dataclasses import dataclass

from recbench_spark.core.definitions import Definition
from recbench_spark.errors import ConfigError
from recbench_spark.ranking.moments import ItemMoments

USER_CANDIDATES = ("rated", "given", "uniform", "popularity")
"""Candidate modes with own candidates for each user."""


@dataclass(frozen=True)
class RankingRequest:
    """Settings for a ranking.

    Attributes:
        definition: the evaluation definition.
        top: list length, if lists are requested (0: none).
        cutoff: largest rank to count; None: all. Where users have own candidates, all are counted.
        moments: when items were candidates, under `candidates_as_of`; users have their moment `as_of`.
    """

    definition: Definition
    top: int = 0
    cutoff: int | None = None
    moments: ItemMoments | None = None


def refuse_hashed_ties(definition: Definition, what: str) -> None:
    """Refuse hashed ties where ranks are counted without lists.

    Raises:
        ConfigError: the definition has `ties=hashed`.
    """
    if definition.ties == "hashed":
        raise ConfigError(
            f"{what}: definition.ties is 'hashed', which orders lists and scores that are given",
            "definition.ties=id, or give the model's scores or lists",
        )
