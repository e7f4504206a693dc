"""Splits: a label for each row of the log, a pure function of the data and the seed.

Order {random RO, temporal TO} x holdout {ratio RS, leave one out LS}, per user. Every protocol is one
sentence: put a user's rows in order, hold out the last ones. Codes as in Zhao et al., "A Revisiting
Study of Appropriate Offline Evaluation for Top-N Recommendation Algorithms" (TOIS 2022), section 3.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from recbench_spark.config import Split
from recbench_spark.errors import DataError, ProtocolError
from recbench_spark.randomness import hashed

TRAIN, VALID, TEST = "train", "valid", "test"


def without_duplicates(log: DataFrame, keep: str) -> DataFrame:
    """One row per (user_id, item_id): the last or first by time, then the highest rating.

    What is still equal goes by part and attributes, so that the order of rows never decides.

    A pair in two parts would be a leak, so this comes before every split. One shuffle by pair,
    combined on the map side; a task holds one hash table of its pairs.

    Args:
        log: interactions (`schemas.INTERACTIONS`).
        keep: `keep_last`, `keep_first` or `error`.

    Raises:
        DataError: duplicates are there and `keep` is `error`.
    """
    if keep == "error":
        _refuse_duplicates(log)
    time = F.coalesce("event_time", F.lit(0).cast("long"))
    in_time = -time if keep == "keep_first" else time
    order = F.struct(in_time, "rating", "part", F.map_values("attributes"))
    values = F.struct("rating", "event_time", "part", "attributes")
    best = log.groupBy("user_id", "item_id").agg(F.max_by(values, order).alias("row"))
    return best.select("user_id", "item_id", "row.*")


def _refuse_duplicates(log: DataFrame) -> None:
    doubled = log.groupBy("user_id", "item_id").count().where("count > 1").limit(1).collect()
    if doubled:
        pair = f"user {doubled[0].user_id}, item {doubled[0].item_id}"
        raise DataError(
            f"the log holds {doubled[0]['count']} rows of {pair}",
            "set dataset.duplicates to keep_last or keep_first",
        )


def labelled(log: DataFrame, split: Split) -> DataFrame:
    """The log with `part` filled in: train, valid or test; rows that came with a part keep it.

    One shuffle by user; a task sorts the rows of one user at a time. Position p counts from the end
    of the user's order: the first `n_test` positions are test, the next `n_valid` are valid.
    Equal times are ordered by item id, so the split is a function of the data.

    Args:
        log: interactions without duplicates.
        split: protocol, ratio, seed.

    Raises:
        ProtocolError: a temporal protocol on a log without times, or `given` without parts.
    """
    if split.protocol == "given":
        _require_parts(log)
        return log
    if split.protocol.startswith("TO"):
        _require_times(log)
    # Rows that came with a part (an open loop, say) are no part of a user's order.
    users = Window.partitionBy("user_id", F.col("part").isNull())
    numbered = log.withColumn(
        "position", F.row_number().over(users.orderBy(*_from_the_end(split)))
    ).withColumn("n", F.count("*").over(users))
    part = _part_by_position(split)
    return numbered.withColumn("part", F.coalesce("part", part)).drop("position", "n")


def _from_the_end(split: Split) -> list[Column]:
    """The order of a user's rows, last first."""
    if split.protocol.startswith("TO"):
        return [F.col("event_time").desc(), F.col("item_id").desc()]
    return [hashed("user_id", "item_id", seed=split.seed).desc(), F.col("item_id").desc()]


def _part_by_position(split: Split) -> Column:
    """Test, valid, train by position from the end; a user's last remaining row stays in train."""
    n, position = F.col("n"), F.col("position")
    if split.protocol.endswith("LS"):
        wanted_test, wanted_valid = F.lit(1), F.lit(1 if split.valid else 0)
    else:
        wanted_test, wanted_valid = (_share(n, split.ratio[2]), _share(n, split.ratio[1]))
    n_test = F.least(wanted_test, n - 1)
    n_valid = F.least(wanted_valid, n - 1 - n_test)
    return F.when(position <= n_test, TEST).when(position <= n_test + n_valid, VALID).otherwise(TRAIN)


def _share(n: Column, ratio: float) -> Column:
    """floor(ratio n), but at least one row where the ratio is above 0."""
    if ratio == 0:
        return F.lit(0)
    # 1e-9: 0.1 * 30 is 3.0000000000000004 in binary, 0.7 * 10 is 6.999999999999999.
    return F.greatest(F.lit(1), F.floor(n * F.lit(ratio) + F.lit(1e-9)).cast("int"))


def _require_times(log: DataFrame) -> None:
    missing = log.where(F.col("event_time").isNull() & F.col("part").isNull()).limit(1).count()
    if missing:
        raise ProtocolError(
            "a temporal split (TO_..) needs a time in every row, and this log has rows without",
            "use RO_RS or RO_LS, or map dataset.columns.event_time",
        )


def _require_parts(log: DataFrame) -> None:
    if log.where(F.col("part").isNull()).limit(1).count():
        raise ProtocolError(
            "split.protocol is 'given', and the log has rows without a part",
            "map dataset.columns.part to a column that says train, valid or test",
        )
