"""Candidates that users bring, joined by hand."""

from __future__ import annotations

import pytest

from recbench_spark.evaluation.ranking.candidates import Candidates, add_candidates

USERS = "user_id string, part string, items array<int>, masked array<int>"
GIVEN = "user_id string, candidates array<int>"
DRAWN = "user_id string, part string, items array<int>"


@pytest.fixture(scope="module")
def users(spark):
    rows = [("u", "test", [3, 5], [1, 5]), ("v", "test", [2], []), ("u", "valid", [1], [])]
    return spark.createDataFrame(rows, USERS)


def by_user(frame, *names: str):
    return {(row.user_id, row.part): tuple(row[name] for name in names) for row in frame.collect()}


def test_nothing_is_joined_where_users_bring_none(users) -> None:
    assert add_candidates(users, None) is users


def test_given_candidates_with_and_without_the_truth(spark, users) -> None:
    rows = spark.createDataFrame([("u", [3, 7])], GIVEN)
    plain = by_user(add_candidates(users, Candidates(rows)), "candidates")
    assert plain == {("u", "test"): ([3, 7],), ("u", "valid"): ([3, 7],), ("v", "test"): (None,)}
    beside = by_user(add_candidates(users, Candidates(rows, with_truth=True)), "candidates")
    assert beside == {("u", "test"): ([3, 5, 7],), ("u", "valid"): ([1, 3, 7],), ("v", "test"): (None,)}


@pytest.mark.parametrize("mode", ["uniform", "popularity"])
def test_drawn_candidates_are_of_a_user_and_part(spark, users, mode: str) -> None:
    drawn = [("u", "test", [8, 0]), ("u", "valid", [9]), ("v", "test", [])]
    rows = spark.createDataFrame(drawn, DRAWN)
    with_candidates = add_candidates(users, Candidates(rows, drawn=mode, n_items=10))
    assert by_user(with_candidates, "candidates") == {
        ("u", "test"): ([3, 5, 8, 0],), ("u", "valid"): ([1, 9],), ("v", "test"): ([2],),
    }  # fmt: skip
    if mode == "popularity":  # no correction is known for these draws
        assert not {"drawn", "pool"} & set(with_candidates.columns)
        return
    # u has three items in truth or training (5 in both), so seven of ten were there to be drawn.
    assert by_user(with_candidates, "drawn", "pool") == {
        ("u", "test"): (2, 7), ("u", "valid"): (1, 9), ("v", "test"): (0, 9),
    }  # fmt: skip
