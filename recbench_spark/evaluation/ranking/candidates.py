"""Candidates that users bring to a ranking: a table of them, or items drawn for each user."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F


@dataclass(frozen=True)
class Candidates:
    """What each user's items are ranked among.

    rows: user_id, candidates (item indices); where they are drawn, user_id, part, items as
    `negatives.draw_candidates` returns them. with_truth: the truth is a candidate too, also where the
    table does not say so. drawn: how, of SAMPLED; None: given. n_items: of the catalogue, for draws.
    """

    rows: DataFrame
    with_truth: bool = False
    drawn: str | None = None
    n_items: int = 0


def add_candidates(users: DataFrame, found: Candidates | None) -> DataFrame:
    """The users with `candidates`, where they bring any; of uniform draws also `drawn` and `pool`.

    Args:
        users: rows of `users_of_parts`.
        found: the candidates; None: the definition needs none.
    """
    if found is None:
        return users
    if found.drawn is not None:
        return _add_drawn(users, found)
    joined = users.join(found.rows, "user_id", "left")
    if not found.with_truth:
        return joined
    return joined.withColumn("candidates", F.concat("items", F.array_except("candidates", "items")))


def _add_drawn(users: DataFrame, found: Candidates) -> DataFrame:
    rows = found.rows.select("user_id", "part", F.col("items").alias("drawn"))
    joined = users.join(rows, ["user_id", "part"], "left")
    joined = joined.withColumn("candidates", F.concat("items", "drawn"))
    # Popularity draws have no correction: theirs would need the popularity of every rank.
    return _add_pool_size(joined, found.n_items) if found.drawn == "uniform" else joined.drop("drawn")


def _add_pool_size(users: DataFrame, n_items: int) -> DataFrame:
    """How many negatives each user has, and of how many: what the corrections need."""
    known = F.size(F.array_union("items", "masked"))
    return users.withColumn("drawn", F.size("drawn")).withColumn("pool", F.lit(n_items) - known)
