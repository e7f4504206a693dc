"""Rewards of a model beside the rankings of one run, joined and checked on Spark."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from recbench_spark.errors import DataError


def add_rewards(rankings: DataFrame, rewards: DataFrame) -> DataFrame:
    """Add `truth_rewards` and `listed_rewards`, and the number of items without a reward (they count 0).

    Shuffles the (user, item) rows of truth and lists by item (or user and item), then by user; a task
    holds the items of one user at a time.

    Args:
        rankings: rows of the table `rankings` with `top_items`.
        rewards: item_id[, user_id], reward: one row per item, or per user and item.

    Returns:
        The rankings with truth_rewards, listed_rewards, unknown_rewards.
    """
    by: list[str] = [name for name in ("user_id", "item_id") if name in rewards.columns]
    listed = F.coalesce("top_items", F.array().cast("array<string>"))
    user = ("user_id", "part")
    places = rankings.select(*user, F.posexplode(F.concat("item_ids", listed)).alias("place", "item_id"))
    joined = places.join(rewards.select(*by, "reward"), by, "left")
    entry = F.struct("place", F.coalesce("reward", F.lit(0.0)).alias("reward"))
    grouped = joined.groupBy(*user).agg(
        F.sort_array(F.collect_list(entry)).alias("entries"),
        F.count_if(F.col("reward").isNull() & F.col("item_id").isNotNull()).alias("unknown_rewards"),
    )
    all_rewards = F.coalesce(F.col("entries")["reward"], F.array().cast("array<double>"))
    n = F.size("item_ids")
    return (
        rankings.join(grouped, list(user), "left")
        .withColumns(
            {
                "truth_rewards": F.slice(all_rewards, F.lit(1), n),
                "listed_rewards": F.slice(all_rewards, n + 1, F.size(all_rewards)),
                "unknown_rewards": F.coalesce("unknown_rewards", F.lit(0)),
            }
        )
        .drop("entries")
    )


def check_rewards(rewards: DataFrame) -> None:
    """Refuse a reward model with invalid or duplicate rows. One aggregation.

    Raises:
        DataError: rewards outside of 0..1, or items (of a user) that stand twice, with their numbers.
    """
    by = [name for name in ("user_id", "item_id") if name in rewards.columns]
    value = F.col("reward")
    wrong = value.isNull() | F.isnan(value) | (value < 0) | (value > 1)
    (summary,) = rewards.agg(
        F.count_if(wrong).alias("wrong"), (F.count("*") - F.count_distinct(F.struct(*by))).alias("twice")
    ).collect()
    if summary.wrong or summary.twice:
        raise DataError(
            f"rewards: {summary.wrong} rows are not a probability within 0..1, {summary.twice} occur twice",
            "give one probability per item, or per item of a user",
        )
