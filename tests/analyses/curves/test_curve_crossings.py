"""Crossings from sums of tasks equal those of all users at once, bit for bit, under any partitioning."""

from __future__ import annotations

from datetime import date
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from recbench_spark.analyses.comparisons import paired_values
from recbench_spark.analyses.comparisons.differences import ComparedRun
from recbench_spark.analyses.curves import crossings as curve_crossings
from recbench_spark.analyses.curves.crossings import (
    CELL,
    CrossingPlan,
    cut_pairs,
    find_crossings,
    finish_pair,
    sum_pairs,
)
from recbench_spark.analyses.curves.kernels.crossings import bootstrap_crossing
from recbench_spark.config import Bootstrap
from recbench_spark.core.hashed_ids import hash_ids
from recbench_spark.night.crossings import make_rows
from recbench_spark.schemas import CURVE_VALUES, arrow_rows
from tests.table_rows import open_table

GIVEN = (1, 2, 4, 8)
RUNS = tuple(ComparedRun(f"run_{name}", name, date(2026, 1, 1)) for name in "abc")
PLAN = CrossingPlan(RUNS, "ndcg", 5, GIVEN, Bootstrap(replicates=200))


def draw_values(users: int) -> tuple[Any, Any]:
    """Three systems: a falls, b rises, c lies below both; some users lack a point of c."""
    draw = np.random.default_rng(2)
    means = np.array([[0.5, 0.4, 0.3, 0.2], [0.2, 0.3, 0.4, 0.5], [0.1, 0.1, 0.1, 0.1]])
    values = means[None] + draw.normal(size=(users, 3, 4)) * 0.1
    values[::7, 2, 3] = np.nan
    return draw.integers(-(2**62), 2**62, users), values


def make_batch(keys: Any, values: Any, chosen: Any) -> pa.RecordBatch:
    """Rows as one task gets them: by user, a row for each run."""
    rows = [(u, run) for u in chosen for run in range(3)]
    return pa.RecordBatch.from_pydict(
        {
            "part": ["test"] * len(rows),
            "metric": ["ndcg"] * len(rows),
            "definition": ["v1"] * len(rows),
            "user_id": [f"u{u:04}" for u, _ in rows],
            "user_key": [int(keys[u]) for u, _ in rows],
            "run": pa.array([run for _, run in rows], pa.int32()),
            "ks": pa.array([list(GIVEN)] * len(rows), pa.list_(pa.int32())),
            "values": pa.array([values[u, run].tolist() for u, run in rows], pa.list_(pa.float64()),
                               from_pandas=True),
        }
    )  # fmt: skip


def find(keys: Any, values: Any, parts: int) -> list[dict[str, Any]]:
    tasks = np.array_split(np.arange(len(keys)), parts)
    totals = [
        t
        for pairs in cut_pairs(PLAN)
        for task in tasks
        if len(task)
        for t in sum_pairs(PLAN, pairs, iter([make_batch(keys, values, task)]))
    ]
    rows = []
    for pair in ((0, 1), (0, 2), (1, 2)):
        chosen = [
            t
            for t in totals
            if (t.column("first_run")[0].as_py(), t.column("second_run")[0].as_py()) == pair
        ]
        rows += finish_pair(PLAN, pa.Table.from_batches(chosen)).to_pylist()
    return rows


@pytest.mark.parametrize("parts", [1, 3, 17])
def test_sums_of_tasks_give_the_crossing_of_all_users(parts: int) -> None:
    keys, values = draw_values(60)
    for row in find(keys, values, parts):
        a, b = row["first_run"], row["second_run"]
        crossing = bootstrap_crossing(keys, values[:, a], values[:, b], GIVEN, replicates=200)
        assert (row["given"], row["given_low"], row["given_high"]) == (
            crossing.switch.given, crossing.low, crossing.high,
        )  # fmt: skip
        assert row["value"] == crossing.switch.value and row["share_at_ends"] == crossing.share_at_ends
        assert bool(row["swapped"]) == crossing.switch.swapped
        assert row["sign_changes"] == crossing.sign_changes


def make_user_rows(users: int) -> tuple[Any, pa.Table]:
    """Rows of `curve_values` with the wanted cut-off in two places, and the crossings of all users."""
    _, values = draw_values(users)
    names = [f"u{u:04}" for u in range(users)]
    rows = [
        {
            "run_id": f"run_{name}", "user_id": names[u], "user_key": 0, "part": "test", "metric": metric,
            "definition": "v1", "given": list(GIVEN), "points": 4, "n_relevant": 1,
            "ks": [5, None] if u % 2 else [1, 5],
            "values": [curve, other] if u % 2 else [other, curve],
        }
        for metric in ("ndcg", "recall")
        for run, name in enumerate("abc")
        for u in range(users)
        for curve in [[None if np.isnan(x) else x for x in values[u, run].tolist()]]
        for other in [[0.5] * 4]
    ]  # fmt: skip
    return find(hash_ids(pa.array(names)).view(np.int64), values, 1), arrow_rows(rows, CURVE_VALUES)


def test_rows_of_the_table_in_any_pieces_give_these_crossings() -> None:
    wanted, rows = make_user_rows(60)
    for pieces, tasks in ((1, 1), (7, 3)):
        assert read_sorted(find_crossings(open_table(rows, pieces), PLAN, tasks)) == wanted


def read_sorted(crossings: pa.Table) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = crossings.sort_by(
        [("first_run", "ascending"), ("second_run", "ascending")]
    ).to_pylist()
    return rows


def test_pairs_are_cut_into_pieces_that_a_task_can_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = find(*draw_values(40), 3)
    assert cut_pairs(PLAN) == [[(0, 1), (0, 2), (1, 2)]]
    monkeypatch.setattr(curve_crossings, "PIECE_BYTES", 2 * 32 * 4 * 200)
    assert cut_pairs(PLAN) == [[(0, 1), (0, 2)], [(1, 2)]]
    assert find(*draw_values(40), 3) == whole
    monkeypatch.setattr(curve_crossings, "PIECE_BYTES", 1)
    assert [len(pairs) for pairs in cut_pairs(PLAN)] == [1, 1, 1]


def test_a_task_holds_the_sums_of_one_part(monkeypatch: pytest.MonkeyPatch) -> None:
    keys, values = draw_values(30)
    rows = [make_batch(keys, values, np.arange(30))]
    rows.append(rows[0].set_column(0, "part", pa.repeat("valid", rows[0].num_rows)))
    summed = sum_pairs(PLAN, [(0, 1)], iter(rows))
    monkeypatch.setattr(paired_values, "CHUNK_ROWS", 6)  # chunks of two users change no sum
    parts = [row.column("part")[0].as_py() for row in summed]
    assert parts == ["test", "valid"]
    assert find(keys, values, 1)[0] == find(keys, values, 3)[0]


def test_shares_are_adjusted_over_the_pairs_and_models_are_named() -> None:
    rows = make_rows(find(*draw_values(60), 1), PLAN, {"suite": "s"})
    by_pair = {(row["model"], row["other"]): row for row in rows}
    crossing = by_pair["a", "b"]
    assert (crossing["first"], crossing["then"], crossing["given"], crossing["shown"]) == (
        "a",
        "b",
        2,
        True,
    )
    assert crossing["run_id"] == "run_a" and crossing["k"] == 5
    assert not by_pair["a", "c"]["shown"] and by_pair["a", "c"]["share_holm"] == 1.0
    shares = sorted(row["share_at_ends"] for row in rows)
    assert crossing["share_holm"] == min(1.0, 3 * shares[0])


def test_a_point_of_few_users_shows_no_crossing() -> None:
    assert find(*draw_values(9), 1) == []
    assert set(CELL) < set(find(*draw_values(30), 2)[0])
