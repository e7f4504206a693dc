"""What a reader of a number should know of its inputs: exclusions, gaps, ties."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from recbench_spark.checks import Check, warn_above_zero

HEAVY_TIES = 0.1
"""Share of truth items that tie with another candidate from which a model is flagged."""


def ranking_checks(
    rankings: DataFrame, parts: Sequence[str], threshold: float | None = None, *, lists: bool = False
) -> list[Check]:
    """Facts of the rankings of one run, by one aggregation without a shuffle of rows.

    Args:
        rankings: rows of the table `rankings`.
        parts: held-out parts.
        threshold: relevance from which an item is relevant; None: above 0.
        lists: whether they are of given lists, which end somewhere: what they leave out is not a warning.
    """
    relevant = F.exists("relevance", lambda r: r > 0 if threshold is None else r >= threshold)
    found = rankings.groupBy("part").agg(
        F.count("*").alias("users"),
        F.count_if(F.col("length") == 0).alias("silent"),
        F.count_if(~relevant).alias("barren"),
        F.sum(F.size("above")).alias("truth"),
        F.sum(F.size(F.filter("above", lambda a: a < 0))).alias("unranked"),
        F.sum(F.size(F.filter("tied", lambda t: t > 0))).alias("tied"),
    )
    facts = {row.part: row for row in found.collect()}
    return [check for part in parts for check in _checks_of_part(part, facts.get(part), lists)]


def _checks_of_part(part: str, row: Row | None, lists: bool) -> list[Check]:
    if row is None:
        return [Check(f"{part}: users", 0, None, "warning", "no user has truth in this part")]
    ties = "ties are broken by item id; see ties=expected"
    return [
        Check(f"{part}: users", row.users, None, "info", "users in the truth"),
        Check(f"{part}: users without relevant items", row.barren, None, "info",
              "left out of the averages, or 0, as `empty_users` says"),
        warn_above_zero(f"{part}: users without output", row.silent, "they count 0, or as `users` says"),
        Check(f"{part}: unranked truth items", float(row.unranked or 0), None if lists else 0.0,
              "info" if lists else "warning", "not scored or listed"),
        Check(f"{part}: tied truth items", row.tied / max(row.truth, 1), HEAVY_TIES, "warning", ties),
    ]  # fmt: skip


def list_checks(rows: DataFrame, users: DataFrame, items: DataFrame) -> list[Check]:
    """What of given lists or scores cannot count: duplicates, unknown users and items, training items.

    Shuffles the rows by (user, item) for the exact count of duplicates.

    Args:
        rows: user_id, item_id of the lists.
        users: rows of `users_of_parts`.
        items: catalogue.
    """
    pairs = rows.groupBy("user_id", "item_id").count()
    total = pairs.agg(F.sum("count"), F.count("*")).first()
    n_rows, n_pairs = (total[0] or 0, total[1]) if total else (0, 0)
    unknown_items = rows.join(items.select("item_id"), "item_id", "left_anti").count()
    unknown_users = rows.join(users.select("user_id"), "user_id", "left_anti")
    lost = unknown_users.select("user_id").distinct().count()
    return [
        Check("list rows", n_rows, None, "info", "rows read"),
        warn_above_zero("duplicate list rows", n_rows - n_pairs, "the best-ranked one is kept"),
        warn_above_zero("list rows of unknown items", unknown_items, "they keep their place"),
        Check("listed users without truth", lost, None, "info", "not averaged"),
    ]  # fmt: skip


def training_items_in_lists(rows: DataFrame, train: DataFrame) -> Check:
    """Given rows that recommend what the user already has. One join by (user, item)."""
    known = rows.join(train.select("user_id", "item_id"), ["user_id", "item_id"], "left_semi").count()
    return warn_above_zero("list rows of training items", known, "lists count as they are")
