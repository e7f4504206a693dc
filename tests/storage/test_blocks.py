"""Blocks: packed numbers come back as they were, and rows go to their task in their order."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recbench_spark.schemas import RANKINGS, arrow_rows
from recbench_spark.storage.arrow_store import ArrowStore
from recbench_spark.storage.blocks import Side, deal_sides
from recbench_spark.storage.delta_files import write_file
from recbench_spark.storage.file_tables import TaskFiles
from recbench_spark.storage.packed_blocks import are_whole, partition_rows, unpack_blocks

WHOLE = st.one_of(
    st.none(),
    st.integers(-9, 9),
    st.integers(-(2**63), 2**63 - 1),
    st.sampled_from([2**31 - 1, 2**31, -(2**31), -(2**31) - 1]),
    st.integers(-(2**33), 2**33).map(lambda seconds: seconds * 1_000_000),
)
REAL = st.one_of(st.none(), st.floats(width=64), st.floats(width=32), st.sampled_from([0.1, 1e300, -0.0]))


@pytest.mark.full
@settings(max_examples=200)
@given(st.lists(st.tuples(WHOLE, REAL, st.text(max_size=3), st.integers(0, 3)), min_size=1, max_size=12))
def test_rows_come_back_as_they_were(rows: list[tuple[int | None, float | None, str, int]]) -> None:
    whole, real, text, task = zip(*rows, strict=True)
    table = pa.table(
        {"w": pa.array(whole, pa.int64()), "r": pa.array(real, pa.float64()), "t": pa.array(text)}
    )
    blocks = dict(partition_rows(table, np.array(task)))
    assert list(blocks) == sorted(set(task))
    for n, block in blocks.items():
        unpacked = unpack_blocks([block])
        assert unpacked is not None and unpacked.schema == table.schema
        wanted = table.filter(pa.array([t == n for t in task]))
        assert [*map(_exact, unpacked.to_pylist())] == [*map(_exact, wanted.to_pylist())]
    everything = unpack_blocks(blocks.values())
    assert everything is not None and everything.num_rows == len(rows)


def _exact(row: dict[str, object]) -> dict[str, object]:
    real = row["r"]
    shown = "nan" if isinstance(real, float) and math.isnan(real) else repr(real)
    return {**row, "r": shown}


def test_a_partition_without_blocks() -> None:
    assert unpack_blocks([]) is None


def test_files_are_whole_by_their_names_alone() -> None:
    """A file of a compaction, or of a writer that says nothing, is whole by no column."""
    whole, other, plain = (
        f"by-user_id=1/part-{mark}7.parquet" for mark in ("by-user_id-", "by-item_id-", "")
    )
    assert are_whole([whole, whole], "user_id")
    assert not any(are_whole([whole, file], "user_id") for file in (other, plain))
    assert not are_whole([], "user_id")


def test_files_of_all_writers_and_ages_meet_in_one_shuffle(tmp_path: Path) -> None:
    """A task's file, one of `deltalake` with columns that are never NULL, and one older than a column."""
    store, names = ArrowStore(str(tmp_path)), ("run_id", "part", "user_id", "drawn")
    lists = {key: [] for key in ("item_ids", "relevance", "above", "tied", "before")}
    row = {"part": "test", "user_id": "u", "user_key": 1, "length": 5, **lists}
    table = arrow_rows([{**row, "run_id": "r1"}], RANKINGS)
    store.append(table, RANKINGS)
    folder, own = store.location(RANKINGS.name), [name for name in RANKINGS.names if name != "run_id"]
    old = [name for name in own if name != "drawn"]
    files = [
        write_file(table.drop_columns(["run_id"]), folder, {"run_id": run_id}, columns)
        for run_id, columns in (("r2", own), ("r3", old))
    ]
    store.append(TaskFiles(files, folder), RANKINGS, "tasks")
    rows = store.open_rows(RANKINGS, "run_id", ["r1", "r2", "r3"])
    dealt = deal_sides(store.engine, [Side(0, rows, names)], 1)
    (whole,) = dealt.each(lambda sides: unpack_blocks(sides[0]))
    assert whole.sort_by("run_id").to_pylist() == [
        {"run_id": run_id, "part": "test", "user_id": "u", "drawn": None} for run_id in ("r1", "r2", "r3")
    ]
