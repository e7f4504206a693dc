"""Truth of each time asked alone, by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from recbench_spark.ranking.kernels.moments import ALWAYS, Periods, place_moments
from recbench_spark.ranking.moments import AS_OF, ItemMoments, OpenMoments
from recbench_spark.ranking.part_users import select_part_users
from recbench_spark.schemas import QUERY_ID
from recbench_spark.splits.user_blocks import BlockPlan, SliceLabel, build_user_blocks, label_times

ITEMS = "abc"
ROWS = [
    # u tests a at 7 and at 3, and c, which never was a candidate, at 7 beside it; v has no other truth.
    *(("u", "a", "test", 7, "late"), ("u", "c", "test", 7, "gone"), ("u", "a", "test", 3, "early")),
    *(("u", "b", "test", 3, "other"), ("u", "b", "train", 1, "known"), ("v", "c", "test", 4, "gone")),
]


def ask(order: list[int], unavailable: Any, keep_empty: bool, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    columns = list(zip(*(ROWS[n] for n in order), strict=True))
    labels = [[("page", one)] for one in columns[4]]
    rows = pa.table({
        **dict(zip(("user_id", "item_id", "part", "event_time"), columns, strict=False)),
        "rating": [1.0] * len(ROWS), "attributes": pa.array(labels, pa.map_(pa.string(), pa.string())),
    })  # fmt: skip
    slices = (SliceLabel("page", "log", "page"), *label_times("availability"))

    def find(ids: pa.Array) -> tuple[Any, Any]:
        return np.array([ITEMS.index(one) for one in ids.to_pylist()]), np.ones(len(ids), int)

    blocks = build_user_blocks(rows, BlockPlan(find, (1, 2), ("test",), slices))
    # a is there until 5 and again from 6 on, b until 3.
    periods = Periods(np.array([0, 2, 3, 3]), np.array([0, 6, 0]), np.array([5, ALWAYS, 3]))
    opened = OpenMoments(place_moments(np.empty(0, np.int64), periods), 0)
    monkeypatch.setattr(ItemMoments, "open", lambda self: opened)
    moments: Any = ItemMoments(*[None] * 2, "log", unavailable)  # type: ignore[list-item]
    questions = select_part_users(blocks, ("test",), None, keep_empty, moments=moments)
    names = ("user_id", QUERY_ID, AS_OF, "items", "item_ids", "slices")
    every = sorted(questions.to_pylist(), key=lambda row: row["user_id"])
    return [tuple(row[name] for name in names) for row in every]


@pytest.mark.parametrize("order", [range(6), range(5, -1, -1), [3, 5, 0, 2, 4, 1]])
def test_a_pair_tested_twice_has_each_its_moment(order: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    early, late = ("u", "1", 3), ("u", "2", 7)
    assert ask(order, "left_out", False, monkeypatch) == [
        (*early, [0], ["a"], [("page", ["early"])]),
        (*late, [0], ["a"], [("page", ["late"])]),
    ]
    assert ask(order, "left_out", True, monkeypatch)[2:] == [("v", None, None, [], [], None)]
    missed = [
        (*early, [-1, 0], ["b", "a"], [("page", ["other", "early"])]),
        (*late, [-1, 0], ["c", "a"], [("page", ["gone", "late"])]),
        ("v", "1", 4, [-1], ["c"], [("page", ["gone"])]),
    ]
    assert ask(order, "miss", False, monkeypatch) == missed
    kept = ask(order, "keep", True, monkeypatch)
    assert [row[3] for row in kept] == [[0, 1], [0, 2], [2]]
