"""Candidates that users bring, joined by hand."""

from __future__ import annotations

import pyarrow as pa
import pytest

from recbench_spark.ranking.candidates import CandidateRule, add_candidates

LISTS = pa.list_(pa.int32())
USERS = {"user_id": pa.string(), "part": pa.string(), "items": LISTS, "masked": LISTS}
GIVEN = {"user_id": pa.string(), "candidates": LISTS}
DRAWN = {"user_id": pa.string(), "part": pa.string(), "items": LISTS}


def make(rows, types) -> pa.Table:
    return pa.table(
        [pa.array(c, t) for c, t in zip(zip(*rows, strict=True), types.values(), strict=True)], [*types]
    )


@pytest.fixture
def users() -> pa.Table:
    rows = [("u", "test", [3, 5], [1, 5]), ("v", "test", [2], []), ("u", "valid", [1], [])]
    return make(rows, USERS)


def by_user(table: pa.Table, *names: str):
    rows = table.to_pylist()
    return {(row["user_id"], row["part"]): tuple(row[name] for name in names) for row in rows}


def test_a_task_without_candidates(users) -> None:
    for rule in (CandidateRule(), CandidateRule(with_truth=True), CandidateRule(drawn="popularity")):
        assert add_candidates(users, None, rule).column("candidates").null_count == 3


def test_given_candidates_with_and_without_the_truth(users) -> None:
    rows = make([("w", [1]), ("u", [3, 7])], GIVEN)
    plain = by_user(add_candidates(users, rows, CandidateRule()), "candidates")
    assert plain == {("u", "test"): ([3, 7],), ("u", "valid"): ([3, 7],), ("v", "test"): (None,)}
    beside = by_user(add_candidates(users, rows, CandidateRule(with_truth=True)), "candidates")
    assert beside == {("u", "test"): ([3, 5, 7],), ("u", "valid"): ([1, 3, 7],), ("v", "test"): (None,)}


@pytest.mark.parametrize("mode", ["uniform", "popularity"])
def test_drawn_candidates_are_of_a_user_and_part(users, mode: str) -> None:
    rows = make([("u", "test", [8, 0]), ("u", "valid", [9]), ("v", "test", [])], DRAWN)
    with_candidates = add_candidates(users, rows, CandidateRule(drawn=mode, n_items=10))
    assert by_user(with_candidates, "candidates") == {
        ("u", "test"): ([3, 5, 8, 0],), ("u", "valid"): ([1, 9],), ("v", "test"): ([2],),
    }  # fmt: skip
    if mode == "popularity":  # no correction is known for these draws
        assert not {"drawn", "pool"} & set(with_candidates.column_names)
        return
    # u has three items in truth or training (5 in both), so seven of ten were there to be drawn.
    assert by_user(with_candidates, "drawn", "pool") == {
        ("u", "test"): (2, 7), ("u", "valid"): (1, 9), ("v", "test"): (0, 9),
    }  # fmt: skip
