"""A model's rewards beside one run's rankings.

Tasks join and check them, without Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.core.streams import Batches
from recbench_spark.engine.measures import Measure, Measures
from recbench_spark.errors import DataError
from recbench_spark.storage import blocks
from recbench_spark.storage.blocks import ChangedRows, Engine, NamedRows, Rows, Side, deal_sides
from recbench_spark.storage.packed_blocks import decode_dictionaries, unpack_blocks
from recbench_spark.storage.shared_arrays import flatten_lists

NO_REWARDS = pa.schema({"user_id": pa.string(), "item_id": pa.string(), "reward": pa.float64()})

REWARD_COLUMNS = ("truth_rewards", "listed_rewards", "unknown_rewards")
"""Columns added to rankings."""


class WrongRewards(NamedTuple):
    """Counts of improper rewards, repeated ids, and rows without id."""

    wrong: int
    twice: int
    missing: int = 0


def add_rewards(rankings: pa.Table, rewards: pa.Table) -> pa.Table:
    """Add `truth_rewards` and `listed_rewards` to rankings.

    Also adds how many items have no reward (they count 0).

    Args:
        rankings: rows of the table `rankings` with `top_items`.
        rewards: item_id[, user_id], reward: one row per item, or per user and item.
    """
    keys, values = _key_rewards(rewards), rewards.column("reward").combine_chunks().cast(pa.float64())
    users, by_user = rankings.column("user_id").combine_chunks(), "user_id" in rewards.column_names
    unknown_n = np.zeros(len(rankings), np.int64)
    for name, column in (("truth_rewards", "item_ids"), ("listed_rewards", "top_items")):
        lists = rankings.column(column).combine_chunks()
        offsets, _ = flatten_lists(lists)
        items, row_e = lists.flatten(), np.repeat(np.arange(len(rankings)), np.diff(offsets))
        wanted = _join_ids(users.take(pa.array(row_e)), items) if by_user else items
        rewards_e = values.take(pc.index_in(wanted, keys))
        missing_e = pc.and_(pc.is_null(rewards_e), pc.is_valid(items)).to_numpy(zero_copy_only=False)
        unknown_n += np.bincount(row_e[missing_e], minlength=len(rankings))
        bounds = pa.array(offsets, pa.int32())
        rankings = rankings.append_column(name, pa.ListArray.from_arrays(bounds, rewards_e.fill_null(0.0)))
    return rankings.append_column("unknown_rewards", pa.array(unknown_n))


def _join_tables(tables: Iterable[pa.Table]) -> pa.Table:
    """Join item rewards; a task may have none."""
    held = [table for table in tables if len(table)]
    return pa.concat_tables(held) if held else NO_REWARDS.empty_table().select(["item_id", "reward"])


def count_wrong(rewards: pa.Table) -> WrongRewards:
    """Count what `refuse_wrong` refuses.

    Takes all rows of some items, or of some users.
    """
    values = rewards.column("reward").cast(pa.float64())
    is_chance = pc.and_(pc.greater_equal(values, 0), pc.less_equal(values, 1))
    keys = _key_rewards(rewards)
    wrong = len(rewards) - (pc.sum(is_chance).as_py() or 0)
    return WrongRewards(wrong, len(keys) - len(keys.unique()), keys.null_count)


def _sum_unknown(batches: Batches) -> Batches:
    for batch in batches:
        n = pc.sum(batch.column("unknown_rewards")).as_py() or 0
        yield pa.RecordBatch.from_pydict({"n": pa.array([n], pa.int64())})


def _add_up(sums: pa.Table) -> pa.Table:
    return pa.table({"n": [pc.sum(sums.column("n")).as_py()]})


UNKNOWN = Measure(_sum_unknown, (), _add_up, ("unknown_rewards",))
"""Counts items without a reward."""


def reduce_rewarded(
    engine: Engine, measures: Measures, rankings: Rows, rewards: NamedRows
) -> dict[str, pa.Table]:
    """Reduce rankings with the columns of `add_rewards`.

    The result of UNKNOWN is named "unknown". Rewards by item are sent to all tasks, and the driver holds
    them. Rewards by user and item are dealt by user, beside the rankings.

    Args:
        engine: the runner.
        measures: measures by name.
        rankings: one run's rows of `rankings`.
        rewards: item_id[, user_id], reward.

    Raises:
        DataError: as `refuse_wrong`.
    """
    measures = {**measures, "unknown": UNKNOWN}
    needs = [name for measure in measures.values() for name in measure.needs if name not in REWARD_COLUMNS]
    columns = tuple(dict.fromkeys(["user_id", "item_ids", "top_items", *needs]))
    names = (*columns, *REWARD_COLUMNS)
    if "user_id" not in rewards.names:
        table = _join_tables(rewards.each(rewards.names, _join_tables))
        refuse_wrong([count_wrong(table)])
        rewarded = ChangedRows(rankings, columns, partial(add_rewards, rewards=table), names)
        return blocks.reduce_rows(measures, rewarded)
    refuse_wrong(rewards.each(rewards.names, _count_missing))
    counts = (rows.each(["user_id"], blocks.count_table_rows) for rows in (rankings, rewards))
    tasks = engine.count_tasks(sum(map(sum, counts)))
    own = Side(1, rewards, rewards.names)
    refuse_wrong(deal_sides(engine, [own], tasks).then(_unpack_rewards, ()).each(count_wrong))
    dealt = deal_sides(engine, [Side(0, rankings, columns), own], tasks)
    return blocks.reduce_tasks(measures, dealt.then(_add_dealt, names), tasks)


# ------------------------------------------------------------------------------- what tasks do


def _count_missing(tables: Iterable[pa.Table]) -> WrongRewards:
    """Count rows without a user or an item.

    No task could receive them by user.
    """
    return WrongRewards(0, 0, sum(_key_rewards(table).null_count for table in tables))


def _unpack_rewards(sides: Any) -> pa.Table:
    return unpack_blocks(sides[1])


def _add_dealt(sides: Any) -> pa.Table:
    rankings, rewards = (unpack_blocks(sides.get(number, [])) for number in (0, 1))
    if rankings is None:
        return pa.table({})
    return add_rewards(rankings, NO_REWARDS.empty_table() if rewards is None else rewards)


def refuse_wrong(counts: Sequence[WrongRewards]) -> None:
    """Refuse a reward model with invalid or duplicate rows.

    Raises:
        DataError: rows without an id, rewards outside 0..1, or repeated items (of a user), with their
            numbers.
    """
    wrong, twice, missing = (sum(numbers) for numbers in zip((0, 0, 0), *counts, strict=True))
    if missing:
        raise DataError(f"rewards: {missing} rows lack an id", "leave them out")
    if wrong or twice:
        raise DataError(
            f"rewards: {wrong} rows are not a probability within 0..1, {twice} occur twice",
            "give one probability per item, or per item of a user",
        )


def _key_rewards(rewards: pa.Table) -> pa.Array:
    rewards = decode_dictionaries(rewards)
    items = rewards.column("item_id").combine_chunks()
    if "user_id" not in rewards.column_names:
        return items
    return _join_ids(rewards.column("user_id").combine_chunks(), items)


def _join_ids(users: pa.Array, items: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(users, items, "\0")
