"""Candidates of each user for a ranking: a table, or items drawn for each user."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F


@dataclass(frozen=True)
class Candidates:
    """Candidates that each user's truth items are ranked among.

    Attributes:
        rows: user_id, candidates (item indices); for draws user_id, part, items of
            `negatives.draw_candidates`.
        with_truth: truth items are candidates too, even if the table does not list them.
        drawn: mode of the draw, one of SAMPLED; None: a table of the caller.
        n_items: items of the catalogue, for draws.
    """

    rows: DataFrame
    with_truth: bool = False
    drawn: str | None = None
    n_items: int = 0


def add_candidates(users: DataFrame, candidates: Candidates | None) -> DataFrame:
    """Add `candidates` to users who have their own; for uniform draws also `drawn` and `pool`.

    Args:
        users: rows of `rank.select_part_users`.
        candidates: the candidates; None: the definition needs none.
    """
    if candidates is None:
        return users
    if candidates.drawn is not None:
        return _add_drawn(users, candidates)
    joined = users.join(candidates.rows, "user_id", "left")
    if not candidates.with_truth:
        return joined
    return joined.withColumn("candidates", F.concat("items", F.array_except("candidates", "items")))


def _add_drawn(users: DataFrame, candidates: Candidates) -> DataFrame:
    rows = candidates.rows.select("user_id", "part", F.col("items").alias("drawn"))
    joined = users.join(rows, ["user_id", "part"], "left")
    joined = joined.withColumn("candidates", F.concat("items", "drawn"))
    # Popularity draws have no correction: it would need the popularity of every rank.
    return (
        _add_pool_size(joined, candidates.n_items)
        if candidates.drawn == "uniform"
        else joined.drop("drawn")
    )


def _add_pool_size(users: DataFrame, n_items: int) -> DataFrame:
    """Add the number of drawn negatives and the size of the pool they are drawn from, for corrections."""
    known = F.size(F.array_union("items", "masked"))
    return users.withColumn("drawn", F.size("drawn")).withColumn("pool", F.lit(n_items) - known)
