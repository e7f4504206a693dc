"""Split a log: each row gets a label, which is a pure function of the data and the seed.

Order {random, temporal} x holdout {ratio, leave one out, last n, n given, folds} x group {user, global}.
Every protocol puts rows in order and holds out the last ones. Codes (RO_RS, TO_LS ...) as in
Zhao et al., "A Revisiting Study of Appropriate Offline Evaluation for Top-N Recommendation Algorithms"
(TOIS 2022), section 3. This module labels frames of Spark: requirements on the log, and the shuffle.
`rules` has the protocol as plain numbers, `labels` the tasks' part, `windows` cuts at one instant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, tzinfo
from functools import partial

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from recbench_spark.config import Split
from recbench_spark.engine.sessions import SparkEngine
from recbench_spark.errors import DataError, ProtocolError
from recbench_spark.indexing import add_row_index
from recbench_spark.kernels.streams import Batches
from recbench_spark.protocol.labels import (
    OpenLoop,
    SplitRule,
    label_rows,
)
from recbench_spark.protocol.pairs import OPEN_LOOP, DuplicateRule
from recbench_spark.protocol.rules import label_method, make_rule
from recbench_spark.protocol.windows import find_instants
from recbench_spark.schemas import ABSENT, COMPLETE
from recbench_spark.storage.frame_blocks import FrameBlocks, FrameRows, shuffle_blocks
from recbench_spark.storage.packed_blocks import unpack_batches
from recbench_spark.storage.spark_types import cast_ids_to_text

JOINED = OpenLoop()
"""The open loop is a part of the log like any other."""


def label_blocks(
    log: DataFrame,
    split: Split,
    duplicates: DuplicateRule | None = None,
    n: int | None = None,
    numeric: bool = False,
    *,
    open_loop: OpenLoop = JOINED,
    every_fold: bool = False,
    zone: tzinfo = UTC,
) -> FrameBlocks:
    """Label the log with `part`, ids as text. Rows with a part keep it and do not count for others.

    The one shuffle, by user (or held-out item), labels all rows, then drops duplicates inside each part and
    held-out rows whose pair training knows. Position p counts from the end of the user's order: the first
    `n_test` positions are test, the next `n_valid` are valid. In random order all rows of a pair share one
    position. Equal times are ordered by item id (of held-out items by user id), as numbers where all ids
    are whole numbers, else by UTF-8 bytes, as ties of rankings are. So the split is a function of the data,
    and of two items of one instant the one that is last in tie order is tested.

    Args:
        log: interactions, ids as text or, where they are stored as integers, int64.
        split: order, holdout, group and their amounts.
        duplicates: the row of a pair that stays in each part (see `pairs.choose_rows`); `error` searches
            for duplicates by a shuffle of 64-bit hashes; None where no pair is in two rows.
        n: an upper bound of the rows of the log; None to count them.
        numeric: true if these ids are ordered as numbers (see `data.readers.id_order`).
        open_loop: whether it is a separate log, and which of its pairs stay.
        every_fold: true if `part` is the number of the row's fold, as text: all folds in one pass.
        zone: the zone of the days, weeks and months of a period.

    Raises:
        ProtocolError: a temporal split has no times, `given` has no parts, or training is empty.
        DataError: the log has duplicates, and they are an error.
    """
    n = log.count() if n is None else n
    if duplicates == "error":
        _refuse_duplicates(log, n, open_loop.apart)
        duplicates = None
    if split.holdout == "given":
        _require_parts(log)
    elif split.holdout == "consecutive":
        log = _label_stretches(log, split, n, every_fold)
    elif split.temporal:
        _require_times(log)
    cut = None
    if label_method(split) == "instants":
        times = log.where(F.col("part").isNull()).select("event_time").cache()
        cut = find_instants(FrameRows(times), split, zone)
        times.unpersist()
    rule = make_rule(split, duplicates, cut, numeric)
    rule = replace(rule, open_loop=open_loop, every_fold=every_fold)
    return _label_in_tasks(log, rule, n)


def _label_stretches(log: DataFrame, split: Split, n: int, every_fold: bool) -> DataFrame:
    """Add `part` by the row's place in the file: n rows are cut into folds of equal length."""
    place = F.col("_row").cast("long") * split.folds
    fold = F.floor(place / F.lit(max(n, 1))).cast("int")
    name = F.when(fold == split.fold, "test").otherwise("train")
    if split.valid:
        name = F.when(fold == (split.fold + 1) % split.folds, "valid").otherwise(name)
    part = fold.cast("string") if every_fold else name
    return add_row_index(log, "_row").withColumn("part", F.coalesce("part", part)).drop("_row")


def _label_in_tasks(log: DataFrame, rule: SplitRule, n: int) -> FrameBlocks:
    labels_all = rule.by != "given" and log.schema["part"].metadata.get(ABSENT)
    rows = log.drop("part") if labels_all else log
    packed = shuffle_blocks(rows, F.xxhash64(rule.owner), SparkEngine(log.sparkSession).count_tasks(n))
    schema = cast_ids_to_text(log).schema
    return FrameBlocks(packed, partial(label_rows, rule=rule), tuple(schema.names), rule.owner, schema)


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


# ------------------------------------------------------------------------------- duplicates


def may_have_duplicates(log: DataFrame, n: int | None = None, keys: Sequence[Column] = ()) -> bool:
    """Return False only where no pair (user_id, item_id) is in two rows. It shuffles 8 bytes per row.

    `keys`: further columns in which two rows of a pair must be equal.
    """
    pairs = log.select(F.xxhash64("user_id", "item_id", *keys).alias("pair"))
    tasks = SparkEngine(log.sparkSession).count_tasks(log.count() if n is None else n)
    blocks = shuffle_blocks(pairs, F.col("pair"), tasks)
    return not blocks.mapInArrow(_find_repeated, "pair BIGINT").isEmpty()


def _find_repeated(batches: Batches) -> Batches:
    """Return one value that occurs twice, where there is one."""
    table = unpack_batches(batches)
    if table is not None:
        pair_r = np.sort(table.column("pair").to_numpy())
        doubled = pair_r[1:][np.diff(pair_r) == 0][:1]
        yield pa.RecordBatch.from_arrays([pa.array(doubled)], ["pair"])


def _refuse_duplicates(log: DataFrame, n: int | None = None, open_apart: bool = False) -> None:
    """Raise DataError where a pair (user_id, item_id) is in two rows, with one of them as an example."""
    keys = [(F.coalesce("part", F.lit("")) == OPEN_LOOP).alias("open")] if open_apart else []
    if not may_have_duplicates(log, n, keys):
        return
    doubled = log.groupBy("user_id", "item_id", *keys).count().where("count > 1").limit(1).collect()
    if doubled:
        pair = f"user {doubled[0].user_id}, item {doubled[0].item_id}"
        raise DataError(
            f"the log holds {doubled[0]['count']} rows of {pair}",
            "set dataset.duplicates to keep_last or keep_first",
        )
