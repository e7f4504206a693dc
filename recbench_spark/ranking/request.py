"""Requests to a ranking."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.core.definitions import Definition
from recbench_spark.errors import ConfigError
from recbench_spark.ranking.batch_schemas import PROFILES, RANKED_USERS
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
        profiles: rows keep the users' training items, as `batch_schemas.PROFILES`.
    """

    definition: Definition
    top: int = 0
    cutoff: int | None = None
    moments: ItemMoments | None = None
    profiles: bool = False


def choose_ranked_schema(request: RankingRequest) -> pa.Schema:
    """Return the columns of rankings: `RANKED_USERS`, and `PROFILES` where they are asked for."""
    return pa.schema([*RANKED_USERS, *PROFILES]) if request.profiles else RANKED_USERS


def add_profiles(users: pa.Table, request: RankingRequest, *, scored: bool) -> pa.Table:
    """Add `PROFILES` where a request asks for them.

    Args:
        users: history, masked, and candidates where users have their own.
        request: the request; under `candidates=unseen` masked items are closed.
        scored: a model scores the candidates; otherwise lists bring them.
    """
    if not request.profiles:
        return users
    mode = request.definition.candidates
    own = "items" if mode == "rated" else "candidates"
    names = {
        "profile": "history",
        "closed": "masked" if mode == "unseen" else "",
        "offered": own if scored and mode in USER_CANDIDATES else "",
    }
    for name, source in names.items():
        column = pa.nulls(len(users), PROFILES.field(name).type)
        if source in users.column_names:
            column = pc.fill_null(users.column(source).combine_chunks(), [])
        users = users.append_column(name, column)
    return users


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
