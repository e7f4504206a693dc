"""Rewards beside rankings, by hand: of items, and of users and items, in any pieces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recbench_spark.analyses.exposure.rewards import add_rewards, reduce_rewarded
from recbench_spark.engine.local import LocalEngine
from recbench_spark.engine.measures import Measure
from recbench_spark.errors import DataError
from recbench_spark.storage.blocks import PieceRows
from recbench_spark.storage.packed_blocks import read_files

RANKINGS = pa.table(
    {
        "user_id": ["u", "v", "w"],
        "item_ids": pa.array([["a", "z"], [], ["b"]]),
        "top_items": pa.array([["b", None, "a"], ["a"], None], pa.list_(pa.string())),
    }
)
OF_ITEMS = pa.table({"item_id": ["a", "b"], "reward": [0.25, 0.5]})
OF_USERS = pa.table({"user_id": ["u", "v", "u"], "item_id": ["a", "a", "b"], "reward": [0.25, 1.0, None]})


def test_items_without_a_reward_count_0() -> None:
    rows = add_rewards(RANKINGS, OF_ITEMS).to_pydict()
    assert rows["truth_rewards"] == [[0.25, 0.0], [], [0.5]]
    assert rows["listed_rewards"] == [[0.5, 0.0, 0.25], [0.25], []]
    assert rows["unknown_rewards"] == [1, 0, 0], "an empty place of a list is no item"


def test_rewards_of_users_and_items() -> None:
    rows = add_rewards(RANKINGS, OF_USERS).to_pydict()
    assert rows["truth_rewards"] == [[0.25, 0.0], [], [0.0]]
    assert rows["listed_rewards"] == [[0.0, 0.0, 0.25], [1.0], []]
    assert rows["unknown_rewards"] == [2, 0, 1]


def sum_rewards(batches: Any) -> Any:
    for batch in batches:
        total = sum(float(sum(rewards)) for rewards in batch.column("listed_rewards").to_pylist())
        yield pa.RecordBatch.from_pydict({"total": [float(total)]})


def add_up(sums: pa.Table) -> pa.Table:
    return pa.table({"total": [sum(sums.column("total").to_pylist())]})


def reduce(folder: Path, rewards: pa.Table, workers: int) -> tuple[float, int]:
    engine = LocalEngine(str(folder), workers)

    def cut(name: str, table: pa.Table) -> PieceRows:
        files = [str(folder / f"{name}-{n}.parquet") for n in range(len(table))]
        for n, file in enumerate(files):
            pq.write_table(table.slice(n, 1), file)
        return PieceRows(engine, files, read_files)

    rows = cut("rewards", rewards)
    object.__setattr__(rows, "names", tuple(rewards.column_names))
    measures = {"sum": Measure(sum_rewards, (), add_up, ("listed_rewards",))}
    results = reduce_rewarded(engine, measures, cut("rankings", RANKINGS), rows)
    return results["sum"].column("total")[0].as_py(), results["unknown"].column("n")[0].as_py()


@pytest.mark.parametrize("workers", [1, 2])
def test_rankings_meet_their_rewards_in_tasks(tmp_path: Path, workers: int) -> None:
    assert reduce(tmp_path, OF_ITEMS, workers) == (1.0, 1)
    whole = OF_USERS.set_column(2, "reward", pa.array([0.25, 1.0, 0.5]))
    assert reduce(tmp_path, whole, workers) == (1.75, 2)
    with pytest.raises(DataError, match=r"1 rows are not a probability .* 0 occur twice"):
        reduce(tmp_path, OF_USERS, workers)
    with pytest.raises(DataError, match=r"0 rows are not a probability .* 1 occur twice"):
        reduce(tmp_path, pa.concat_tables([whole, whole.slice(0, 1)]), workers)


def test_rewards_without_a_row_count_0(tmp_path: Path) -> None:
    """The two truth items and two listed items of u, one listed item of v, one truth item of w."""
    assert reduce(tmp_path, OF_ITEMS.slice(0, 0), 1) == (0.0, 4 + 1 + 1)


@pytest.mark.parametrize("name", ["user_id", "item_id"])
def test_rewards_without_an_id_are_refused(tmp_path: Path, name: str) -> None:
    ids = {"user_id": pa.array(["u", "v"]), "item_id": pa.array(["a", "a"])}
    ids[name] = pa.array([None, "a"], pa.string())
    with pytest.raises(DataError, match="1 rows lack an id"):
        reduce(tmp_path, pa.table({**ids, "reward": [0.25, 0.5]}), 1)
