"""Ranks from lists: against dictionaries and loops, and the metrics of a worked example."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from recbench_spark.core.definitions import Definition
from recbench_spark.errors import DataError
from recbench_spark.metrics.kernels.accuracy import measure
from recbench_spark.ranking.kernels import lists as lists_module
from recbench_spark.ranking.kernels.lists import (
    NO_KEY,
    HeldOutItems,
    InputLists,
    RankedLists,
    UserItems,
    rank_lists,
)
from tests import oracles

Row = tuple[int, float]
ROWS = st.lists(st.tuples(st.integers(-3, 6), st.sampled_from([1.0, 2.0, 3.0])), max_size=9)
USER = st.tuples(ROWS, ROWS, st.sets(st.integers(-3, 6), max_size=4))
USERS = st.lists(USER, min_size=1, max_size=5)


def flat(users: list[list[Row]]) -> tuple[Any, Any, Any]:
    offsets = np.cumsum([0, *map(len, users)])
    rows = [row for user in users for row in user]
    return offsets, np.array([i for i, _ in rows], dtype=np.int64), np.array([v for _, v in rows])


def rank(
    users: list[tuple[list[Row], list[Row], set[int]]], *, by: str = "score", **options: Any
) -> RankedLists:
    definition = options.pop("definition", Definition())
    offsets, keys, value = flat([rows for rows, _, _ in users])
    given = {by: value.astype(np.int64) if by == "rank" else value}
    train_offsets, train_keys, _ = flat([[(i, 0.0) for i in t] for _, _, t in users])
    truth = HeldOutItems(*flat([t for _, t, _ in users]))
    train = UserItems(train_offsets, train_keys)
    return rank_lists(InputLists(offsets, keys, **given), truth, definition, train, **options)


def keep_best(rows: list[Row], sign: float = 1.0) -> dict[int, float]:
    best: dict[int, float] = {}
    for item, value in rows:
        best[item] = max(best.get(item, -np.inf), sign * value)
    return best


@settings(max_examples=300)
@given(USERS, st.sampled_from(["score", "rank"]), st.booleans(), st.booleans())
def test_ranks_equal_the_oracle(users: list[Any], by: str, mask: bool, rated: bool) -> None:
    definition = Definition(candidates="rated" if rated else "unseen")
    definition = definition.model_copy(update={"gaps": "close"})
    result = rank(users, by=by, mask_train=mask, definition=definition, top=3)
    expected, train_items = [], 0
    for rows, truth, train in users:
        scores = keep_best(rows, -1.0 if by == "rank" else 1.0)
        train_items += len(train & set(scores))
        dropped = train if mask else set()
        kept = {i: s for i, s in scores.items() if i not in dropped}
        grades = dict(sorted(keep_best(truth).items()))
        expected.append(({i: s for i, s in kept.items() if i in grades or not rated}, grades))
    assert result.train_items == train_items
    assert result.duplicates_in_lists == sum(len(r) - len(keep_best(r)) for r, _, _ in users)
    assert result.duplicates_in_truth == sum(len(t) - len(keep_best(t)) for _, t, _ in users)
    check_rankings(result, expected)


def check_rankings(result: RankedLists, expected: list[Any]) -> None:
    assert result.keys.tolist() == [i for _, truth in expected for i in truth]
    assert result.rankings.length.tolist() == [len(scores) for scores, _ in expected]
    if len(result.keys):
        oracle = oracles.make_rankings(expected)
        for name in ("offsets", "relevance", "above", "tied", "before"):
            np.testing.assert_array_equal(getattr(result.rankings, name), getattr(oracle, name), name)
    assert result.top is not None
    for u, (scores, _) in enumerate(expected):
        order = sorted(scores, key=lambda item: (-scores[item], item))
        top = result.top.keys[result.top.offsets[u] : result.top.offsets[u + 1]]
        assert top.tolist() == order[:3]


RANKS = st.lists(st.tuples(st.integers(-3, 6), st.sampled_from([1.0, 2.0, 5.0, 9.0])), max_size=9)


def walk_places(rows: list[Row], train: set[int]) -> dict[int, tuple[int, int, int]]:
    """Fill places one by one: item -> places above it, rows of its rank, those before it."""
    best = {item: -cost for item, cost in keep_best(rows, -1.0).items()}
    seen = {item: rank for item, rank in best.items() if item not in train}
    masked = [rank for item, rank in rows if item in train and item in best]
    places: dict[int, tuple[int, int, int]] = {}
    filled = 0
    for rank in sorted(set(seen.values())):
        filled = max(filled, int(rank) - 1 - sum(one < rank for one in masked))
        group = sorted(item for item in seen if seen[item] == rank)
        places |= {item: (filled, len(group) - 1, n) for n, item in enumerate(group)}
        filled += len(group)
    return places


@settings(max_examples=300)
@given(st.lists(st.tuples(RANKS, ROWS, st.sets(st.integers(-3, 6), max_size=4)), min_size=1, max_size=5))
def test_given_ranks_are_places_that_only_masks_close(users: list[Any]) -> None:
    result = rank(users, by="rank", top=4)
    at, top = 0, result.top
    assert top is not None
    for u, (rows, truth, train) in enumerate(users):
        places = walk_places(rows, train)
        for item in sorted({item for item, _ in truth}):
            got = tuple(int(getattr(result.rankings, name)[at]) for name in ("above", "tied", "before"))
            assert got == places.get(item, (-1, 0, 0))
            at += 1
        slots = {above + before: item for item, (above, _, before) in places.items()}
        assert result.rankings.length[u] == max(slots, default=-1) + 1
        shown = top.keys[top.offsets[u] : top.offsets[u + 1]].tolist()
        assert {n: i for n, i in enumerate(shown) if i != NO_KEY} == {
            n: i for n, i in slots.items() if n < 4
        }


def test_ranks_1_7_9_are_no_1_2_3() -> None:
    """Hit@3 of the item that was shown at 7 is 0, DCG is 1 / log2(8); `gaps=close` moves it to 2."""
    user: Any = ([(4, 1.0), (5, 7.0), (6, 9.0)], [(5, 1.0)], set())
    kept = measure(rank([user], by="rank").rankings, ["hit", "mrr", "ndcg"], [3, 7], Definition())
    assert kept["hit"][0, :2].tolist() == [0.0, 1.0]
    assert kept["mrr"][0, :2].tolist() == [0.0, 1 / 7]
    assert kept["ndcg"][0, 1] == 1 / 3
    closed = Definition(gaps="close")
    moved = measure(rank([user], by="rank", definition=closed).rankings, ["hit"], [3], closed)
    assert moved["hit"][0, 0] == 1.0


def test_a_rank_that_is_no_place_is_refused() -> None:
    user: Any = ([(4, 1.0), (5, 2.0**40)], [(5, 1.0)], set())
    with pytest.raises(DataError, match="is no place in a list"):
        rank([user], by="rank")
    assert rank([user], by="rank", definition=Definition(gaps="close")).rankings.above.tolist() == [1]


@pytest.mark.parametrize("cells", [1, 50, 10**6])
def test_blocks_of_users_change_nothing(cells: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    users: list[Any] = []
    for length in rng.integers(0, 40, 50):
        rows = [(int(i), float(s)) for i, s in rng.integers(0, 60, (length, 2))]
        truth = [(int(i), 1.0) for i in rng.integers(0, 60, 5)]
        users.append((rows, truth, set(rng.integers(0, 60, 4).tolist())))
    monkeypatch.setattr(lists_module, "CELLS", cells)
    result = rank(users, top=3)
    expected = [
        (
            {i: s for i, s in keep_best(rows).items() if i not in train},
            dict(sorted(keep_best(truth).items())),
        )
        for rows, truth, train in users
    ]
    check_rankings(result, expected)


def test_o1_lists_with_scores() -> None:
    scores = [
        [(3, 0.6), (7, 0.5), (10, 0.4), (11, 0.3), (2, 0.2)],
        [(5, 0.6), (8, 0.5), (11, 0.4), (1, 0.3), (3, 0.2)],
        [(4, 1.0), (9, 0.5), (2, 0.1)],
    ]
    truth = [range(5, 11), (4, 6, 7, 10, 11), range(1, 6)]
    users = [(s, [(i, 1.0) for i in t], set()) for s, t in zip(scores, truth, strict=True)]
    names = ["precision", "recall", "ndcg", "map", "mrr", "hit"]
    result = measure(rank(users).rankings, names, [2, 3, 5, 10], Definition())
    mean = {name: values.mean(axis=0) for name, values in result.items()}
    log3 = np.log2(3)
    np.testing.assert_allclose(mean["precision"], [1 / 3, 5 / 9, 1 / 3, 1 / 6])
    np.testing.assert_allclose(mean["recall"][[0, 3]], [(1 / 6 + 0 + 1 / 5) / 3, 14 / 45])
    ndcg = [(1 / log3) / (1 + 1 / log3), 0, 1 / (1 + 1 / log3)]
    np.testing.assert_allclose(result["ndcg"][:, 0], ndcg)
    np.testing.assert_allclose(ndcg[::2], [0.3868528, 0.6131472], atol=5e-8)
    np.testing.assert_allclose(mean["ndcg"][1:4], [0.48976, 0.35396, 0.34018], atol=5e-6)
    np.testing.assert_allclose(mean["map"][:4], [0.25, 0.35185, 0.21111, 0.198148], atol=5e-6)
    np.testing.assert_allclose(mean["mrr"][:4], [0.5, 11 / 18, 11 / 18, 11 / 18])
    np.testing.assert_allclose(mean["hit"], [2 / 3, 1, 1, 1])


def test_duplicated_truth_never_exceeds_one() -> None:
    result = rank([([(1, 2.0), (3, 1.0)], [(1, 1.0), (1, 1.0), (2, 1.0)], set())])
    values = measure(result.rankings, ["ndcg", "map", "recall"], [2], Definition())
    assert result.duplicates_in_truth == 1
    np.testing.assert_allclose(values["ndcg"][:, 0], 1 / (1 + 1 / np.log2(3)))
    assert values["map"][0, 0] == values["recall"][0, 0] == 1 / 2


def test_a_truth_in_order_is_taken_as_it_is() -> None:
    """Rows in the order of keys need no sort; the same rows in another order, or one twice, are sorted."""
    rng = np.random.default_rng(5)
    users = [(rng.permutation(9)[:6], np.sort(rng.choice(9, 4, replace=False))) for _ in range(20)]
    given = [([(int(i), 1.0 / (1 + n)) for n, i in enumerate(shown)], truth) for shown, truth in users]
    in_order, mixed, twice = (
        rank([(rows, [(int(i), 1.0 + i) for i in pick(truth)], set()) for rows, truth in given])
        for pick in (list, rng.permutation, lambda truth: [truth[0], *truth])
    )
    for other in (mixed, twice):
        assert other.keys.tolist() == in_order.keys.tolist()
        for field in ("offsets", "relevance", "above", "tied", "before", "length"):
            left, right = (getattr(result.rankings, field) for result in (in_order, other))
            assert left.dtype == right.dtype and left.tolist() == right.tolist()
    assert (in_order.duplicates_in_truth, twice.duplicates_in_truth) == (0, 20)


def test_rank_wins_over_score() -> None:
    lists = InputLists(
        np.array([0, 2]), np.array([1, 2]), rank=np.array([2, 1]), score=np.array([9.0, 1.0])
    )
    truth = HeldOutItems(np.array([0, 1]), np.array([2]), np.array([1.0]))
    assert rank_lists(lists, truth, Definition()).rankings.above.tolist() == [0]


@pytest.mark.parametrize(
    ("rows", "truth", "message"),
    [
        ([(1, 1.0), (1, 2.0)], [(1, 1.0)], "1 .user, item. pairs .* in the lists"),
        ([(1, 1.0)], [(1, 1.0), (1, 1.0), (1, 2.0)], "2 .user, item. pairs .* in the truth"),
        ([(1, float("nan")), (2, 1.0)], [(1, 1.0)], "1 of 2 scores are NaN"),
        ([(1, float("inf"))], [(1, 1.0)], "scores are NaN or infinite"),
        ([(1, 1.0)], [(1, float("nan"))], "no relevance"),
    ],
)
def test_wrong_rows_are_refused_with_a_hint(rows: Any, truth: Any, message: str) -> None:
    with pytest.raises(DataError, match=message) as error:
        rank([(rows, truth, set())], definition=Definition(duplicates="error"))
    assert error.value.hint


def test_wrong_ranks_are_refused() -> None:
    with pytest.raises(DataError, match="1 ranks are below 1"):
        rank([([(1, 0.0), (2, 1.0)], [(1, 1.0)], set())], by="rank")
    nothing = InputLists(np.array([0, 0]), np.array([], dtype=np.int64))
    with pytest.raises(DataError, match="neither rank nor score"):
        rank_lists(nothing, HeldOutItems(np.array([0, 0]), nothing.keys, np.array([])), Definition())
