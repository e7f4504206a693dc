"""Splits: a label for each row of the log, a pure function of the data and the seed.

Order {random, temporal} x holdout {ratio, leave one out, last n, n given, folds} x group {user, global}.
Every protocol is one sentence: put rows in order, hold out the last ones. Codes (RO_RS, TO_LS ...) as in
Zhao et al., "A Revisiting Study of Appropriate Offline Evaluation for Top-N Recommendation Algorithms"
(TOIS 2022), section 3. Cuts at an instant, for all users at once, are in `windows`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from recbench_spark.config import HeldOut, Split
from recbench_spark.errors import DataError, ProtocolError
from recbench_spark.protocol.blocks import in_blocks, rows_of, tasks_for
from recbench_spark.protocol.positions import KEY, Numbering, numbered, one_a_pair
from recbench_spark.protocol.windows import part_by_time
from recbench_spark.randomness import hashed, uniform
from recbench_spark.schemas import ABSENT, COMPLETE, with_text_ids

TRAIN, GIVEN, VALID, TEST = "train", "given", "valid", "test"
"""`given`: shown of a held-out user (or item) at evaluation; it does not train the model."""


# ------------------------------------------------------------------------------- duplicates


def without_duplicates(log: DataFrame, keep: str, n: int | None = None) -> DataFrame:
    """One row per (user_id, item_id): the last or first by time, then the highest rating.

    What is still equal goes by part and attributes, so that the order of rows never decides. A pair in
    two parts would be a leak, so this comes before every split. One shuffle by user (`positions`).

    Args:
        log: interactions (`schemas.INTERACTIONS`), ids as text or int64.
        keep: `keep_last`, `keep_first` or `error`, which only looks, by a shuffle of 64-bit hashes.
        n: rows of the log at most; None: they are counted.

    Raises:
        DataError: duplicates are there and `keep` is `error`.
    """
    if keep != "error":
        return one_a_pair(log, keep, n)
    if may_have_duplicates(log, n):
        _refuse_duplicates(log)
    return log


def may_have_duplicates(log: DataFrame, n: int | None = None) -> bool:
    """False only where no pair (user_id, item_id) stands twice. Shuffles 8 bytes a row."""
    pairs = log.select(F.xxhash64("user_id", "item_id").alias("pair"))
    blocks = in_blocks(pairs, F.col("pair"), tasks_for(log, n))
    return not blocks.mapInArrow(_repeated, "pair BIGINT").isEmpty()


def _repeated(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """One value that stands twice, where there is one."""
    table = rows_of(batches)
    if table is not None:
        pair_r = np.sort(table.column("pair").to_numpy())
        doubled = pair_r[1:][np.diff(pair_r) == 0][:1]
        yield pa.RecordBatch.from_arrays([pa.array(doubled)], ["pair"])


def _refuse_duplicates(log: DataFrame) -> None:
    doubled = log.groupBy("user_id", "item_id").count().where("count > 1").limit(1).collect()
    if doubled:
        pair = f"user {doubled[0].user_id}, item {doubled[0].item_id}"
        raise DataError(
            f"the log holds {doubled[0]['count']} rows of {pair}",
            "set dataset.duplicates to keep_last or keep_first",
        )


# ----------------------------------------------------------------------------------- labels


def labelled(
    log: DataFrame, split: Split, duplicates: str | None = None, n: int | None = None
) -> DataFrame:
    """The log with `part` filled in, ids as text; rows that came with a part keep it, counting for nothing.

    Per user (or held-out item): one shuffle by user, in which duplicates are dropped as well. Position p
    counts from the end of the user's order: the first `n_test` positions are test, the next `n_valid` are
    valid. Globally: no shuffle but that of `without_duplicates`. Equal times are ordered by item id, so
    the split is a function of the data.

    Args:
        log: interactions, ids as text or, where they are stored as integers, int64.
        split: order, holdout, group and their amounts.
        duplicates: which row of a pair stays, as in `without_duplicates`; None: no pair stands twice.
        n: rows of the log at most; None: they are counted.

    Raises:
        ProtocolError: a temporal order on a log without times, `given` without parts, an empty train.
        DataError: duplicates that are an error.
    """
    by_owner = split.group == "user" and split.holdout != "given"
    if duplicates == "error" or (duplicates and not by_owner):
        log, duplicates = without_duplicates(log, duplicates, n), None
    if split.holdout == "given":
        _require_parts(log)
        return with_text_ids(log)
    if split.temporal:
        _require_times(log)
    rows = log.drop("part") if log.schema["part"].metadata.get(ABSENT) else log
    if split.group == "user":
        of, within = _owner(split)
        if not split.temporal:
            rows = rows.withColumn(KEY, hashed(*_text("user_id", "item_id"), seed=split.seed))
        key = "event_time" if split.temporal else KEY
        rows = numbered(rows, Numbering(of, within, key, duplicates), n)
        part = (
            _part_by_fold(_fold_of_user(split), split)
            if split.holdout == "folds"
            else _part_by_position(split)
        )
    elif split.temporal:
        part = part_by_time(log, split)
    elif split.holdout == "folds":
        part = _part_by_fold(hashed(*_text("user_id", "item_id"), seed=split.seed), split)
    else:
        part = _part_by_share(split)
    if split.held_out:
        part = _of_held_out(part, split.held_out, split.seed)
    part = _dealt(part, split)
    if "part" in rows.columns:
        part = F.coalesce("part", part)
    return with_text_ids(rows.withColumn("part", part).select(log.columns))


def _text(*names: str) -> list[Column]:
    """Ids as they are hashed: the label of a row does not depend on how its log is stored."""
    return [F.col(name).cast("string") for name in names]


def _owner(split: Split) -> tuple[str, str]:
    """Whose rows are put in order, and which id decides between equal ones."""
    if split.held_out and split.held_out.of == "items":
        return "item_id", "user_id"
    return "user_id", "item_id"


def _part_by_position(split: Split) -> Column:
    """Test, valid, train by position from the end; a user's last remaining row stays in train."""
    n, position = F.col("n"), F.col("position")
    wanted_test, wanted_valid = _wanted(split, n)
    kept = 0 if split.holdout == "n_given" else 1
    n_test = F.least(wanted_test, n - kept)
    n_valid = F.least(wanted_valid, n - kept - n_test)
    return F.when(position <= n_test, TEST).when(position <= n_test + n_valid, VALID).otherwise(TRAIN)


def _wanted(split: Split, n: Column) -> tuple[Column, Column]:
    """Test and validation rows asked for of a user with n rows."""
    if split.holdout == "ratio":
        return _share(n, split.ratio[2]), _share(n, split.ratio[1])
    if split.holdout == "n_given":
        return F.greatest(n - F.lit(split.n), F.lit(0)), F.lit(0)
    amount = 1 if split.holdout == "leave_one_out" else split.n
    return F.lit(amount), F.lit(amount if split.valid else 0)


def _share(n: Column, ratio: float) -> Column:
    """floor(ratio n), but at least one row where the ratio is above 0."""
    if ratio == 0:
        return F.lit(0)
    # 1e-9: 0.1 * 30 is 3.0000000000000004 in binary, 0.7 * 10 is 6.999999999999999.
    return F.greatest(F.lit(1), F.floor(n * F.lit(ratio) + F.lit(1e-9)).cast("int"))


def _part_by_share(split: Split) -> Column:
    """Each row by its own hash: the shares are those of `ratio` up to chance, without a shuffle."""
    place = uniform(*_text("user_id", "item_id"), seed=split.seed)
    train, valid, _ = split.ratio
    return F.when(place < train, TRAIN).when(place < train + valid, VALID).otherwise(TEST)


def _fold_of_user(split: Split) -> Column:
    """A user's rows dealt in turn; where it begins differs from user to user."""
    return F.col("position") + F.pmod(hashed(*_text("user_id"), seed=split.seed), F.lit(split.folds))


def _part_by_fold(number: Column, split: Split) -> Column:
    fold = F.pmod(number, F.lit(split.folds))
    validation = (split.fold + 1) % split.folds if split.valid else -1
    return F.when(fold == split.fold, TEST).when(fold == validation, VALID).otherwise(TRAIN)


def _of_held_out(part: Column, held_out: HeldOut, seed: int) -> Column:
    """Strong generalisation: others only train, held-out users (or items) only test what is not given."""
    place = uniform(*_text(f"{held_out.of[:-1]}_id"), seed=seed)
    of_held_out = place < held_out.test + held_out.valid
    rest = F.when(part == TRAIN, GIVEN).when(place >= held_out.test, VALID).otherwise(TEST)
    return F.when(of_held_out, rest).otherwise(TRAIN)


def _dealt(part: Column, split: Split) -> Column:
    """Test rows dealt by hash to the held-out parts."""
    if split.parts == (TEST,):
        return part
    # A key of its own: the order of rows goes by the hash of the pair alone.
    key = hashed(*_text("user_id", "item_id"), F.lit("deal"), seed=split.seed)
    card = F.pmod(key, F.lit(len(split.parts)))
    dealt = F.element_at(F.array(*map(F.lit, split.parts)), (card + 1).cast("int"))
    return F.when(part == TEST, dealt).otherwise(part)


def _require_times(log: DataFrame) -> None:
    if log.schema["event_time"].metadata.get(COMPLETE):
        return
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
