"""What a reader of a number should know of its inputs: exclusions, gaps, ties."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

HEAVY_TIES = 0.1
"""Share of truth items that tie with another candidate from which a model is flagged."""


@dataclass(frozen=True)
class Check:
    """A row of the table `checks` without its run."""

    check: str
    observed: float
    threshold: float | None
    severity: str
    detail: str

    @property
    def passed(self) -> bool:
        """Whether the observed value is at most the threshold, where there is one."""
        return self.threshold is None or self.observed <= self.threshold


def ranking_checks(rankings: DataFrame, part: str) -> list[Check]:
    """Facts of the rankings of one run and part, by one aggregation without a shuffle of rows."""
    truth = F.size("above")
    unranked = F.size(F.filter("above", lambda a: a < 0))
    tied = F.size(F.filter("tied", lambda t: t > 0))
    row = rankings.agg(
        F.count("*").alias("users"),
        F.sum((F.col("length") == 0).cast("long")).alias("silent"),
        F.sum(truth).alias("truth"),
        F.sum(unranked).alias("unranked"),
        F.sum(tied).alias("tied"),
    ).first()
    if row is None or not row.users:
        return [Check(f"{part}: users", 0, None, "warning", "no user has truth in this part")]
    share = row.tied / max(row.truth, 1)
    return [
        Check(f"{part}: users", row.users, None, "info", "users with truth"),
        warn_above_zero(f"{part}: users without output", row.silent, "they count 0, or as `users` says"),
        warn_above_zero(f"{part}: unranked truth items", row.unranked, "not scored or listed"),
        Check(f"{part}: share of tied truth items", share, HEAVY_TIES, "warning",
              "ties are broken by item id; see ties=expected"),
    ]  # fmt: skip


def warn_above_zero(check: str, observed: float, detail: str) -> Check:
    """A count that is reported, as a warning where it is not 0."""
    return Check(check, float(observed or 0), 0.0, "warning", detail)


def list_checks(rows: DataFrame, users: DataFrame, items: DataFrame, part: str) -> list[Check]:
    """What of given lists or scores cannot count: duplicates, unknown users and items, training items.

    Shuffles the rows by (user, item) for the exact count of duplicates.

    Args:
        rows: user_id, item_id of the lists.
        users: rows of `users_of_part`.
        items: catalogue.
        part: the evaluated part.
    """
    pairs = rows.groupBy("user_id", "item_id").count()
    total = pairs.agg(F.sum("count"), F.count("*")).first()
    n_rows, n_pairs = (total[0] or 0, total[1]) if total else (0, 0)
    unknown_items = rows.join(items.select("item_id"), "item_id", "left_anti").count()
    unknown_users = rows.join(users.select("user_id"), "user_id", "left_anti")
    lost = unknown_users.select("user_id").distinct().count()
    return [
        Check(f"{part}: list rows", n_rows, None, "info", "rows read"),
        warn_above_zero(f"{part}: duplicate list rows", n_rows - n_pairs, "the best-ranked one is kept"),
        warn_above_zero(f"{part}: list rows of unknown items", unknown_items, "they keep their place"),
        Check(f"{part}: listed users without truth", lost, None, "info", "not averaged"),
    ]  # fmt: skip


def training_items_in_lists(rows: DataFrame, train: DataFrame, part: str) -> Check:
    """Given rows that recommend what the user already has. One join by (user, item)."""
    known = rows.join(train.select("user_id", "item_id"), ["user_id", "item_id"], "left_semi").count()
    return warn_above_zero(f"{part}: list rows of training items", known, "lists count as they are")
