"""Prefixes of histories: by hand, against a slow rule, and the same in any order of users and rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recbench_spark.errors import ConfigError
from recbench_spark.splits.kernels.prefixes import PrefixRule, count_points, make_prefixes, order_by_hash


def as_sets(offsets, rule, points=None):  # type: ignore[no-untyped-def]
    """Return {(user, point): (given, truth, masked)} with places of rows."""
    prefixes = make_prefixes(offsets, rule, points)
    parts = {}
    for x, (user, point) in enumerate(
        zip(prefixes.user_x.tolist(), prefixes.point_x.tolist(), strict=True)
    ):
        lists = [
            getattr(prefixes, f"{name}_p")[slice(*getattr(prefixes, f"{name}_offsets")[x : x + 2])].tolist()
            for name in ("given", "truth", "masked")
        ]
        parts[user, point] = tuple(lists)
    return parts


def test_two_users_by_hand() -> None:
    """Users of 4 and 2 rows, L = 2: the second one has no row left to be tested."""
    offsets = np.array([0, 4, 6])
    common = as_sets(offsets, PrefixRule((1, 2)))
    assert common == {(0, 1): ([0], [2, 3], [0, 1]), (0, 2): ([0, 1], [2, 3], [0, 1])}
    rest = as_sets(offsets, PrefixRule((1, 2), test="rest"))
    assert rest == {(0, 1): ([0], [1, 2, 3], [0]), (0, 2): ([0, 1], [2, 3], [0, 1])}
    longer = as_sets(offsets, PrefixRule((1, 2), test="rest", users="as_long_as"))
    assert longer == {**rest, (1, 1): ([4], [5], [4])}


def slow_prefixes(offsets, rule):  # type: ignore[no-untyped-def]
    """Apply the words of the rule to one user and point after another."""
    parts = {}
    for u in range(len(offsets) - 1):
        rows, most = list(range(offsets[u], offsets[u + 1])), rule.given[-1]
        if rule.users == "fixed" and len(rows) < most + rule.minimum:
            continue
        points = [point for point in rule.given if point <= min(most, len(rows) - rule.minimum)]
        for point in points:
            hidden = points[-1] if rule.test == "common" else point
            parts[u, point] = (rows[:point], rows[hidden:], rows[:hidden])
    return parts


@settings(max_examples=150)
@given(
    st.lists(st.integers(0, 9), max_size=6),
    st.sets(st.integers(1, 8), min_size=1, max_size=4),
    st.sampled_from(["common", "rest"]),
    st.integers(1, 3),
    st.sampled_from(["fixed", "as_long_as"]),
)
def test_every_rule_equals_its_words(lengths, points, test, minimum, users) -> None:  # type: ignore[no-untyped-def]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    rule = PrefixRule(tuple(sorted(points)), test, minimum, users)
    expected = slow_prefixes(offsets, rule)
    assert as_sets(offsets, rule) == expected
    counts = [sum(user == u for user, _ in expected) for u in range(len(lengths))]
    assert count_points(offsets, rule).tolist() == counts
    one = rule.given[:1]
    assert as_sets(offsets, rule, one) == {key: rows for key, rows in expected.items() if key[1] in one}


def test_an_order_by_hash_depends_on_keys_alone() -> None:
    draw = np.random.default_rng(0)
    lengths, user_keys = np.array([5, 0, 7, 1]), draw.integers(-(2**60), 2**60, 4)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    item_keys = draw.integers(-(2**60), 2**60, offsets[-1])
    order = order_by_hash(offsets, user_keys, item_keys, 0, 42)
    for u in range(4):
        rows = slice(offsets[u], offsets[u + 1])
        assert sorted(order[rows]) == list(range(offsets[u], offsets[u + 1]))
        shuffled = draw.permutation(item_keys[rows])
        alone = order_by_hash(np.array([0, lengths[u]]), user_keys[u : u + 1], shuffled, 0, 42)
        assert shuffled[alone].tolist() == item_keys[order[rows]].tolist()
    others = [order_by_hash(offsets, user_keys, item_keys, *pair) for pair in ((1, 42), (0, 43))]
    assert all(other.tolist() != order.tolist() for other in others)


def test_every_place_of_an_order_by_hash_is_equally_likely() -> None:
    users, length = 6000, 4
    offsets, keys = np.arange(users + 1) * length, np.arange(users)
    order = order_by_hash(offsets, keys, np.tile(np.arange(length), users), 3, 1)
    first = np.bincount(order[::length] % length, minlength=length)
    assert np.abs(first - users / length).max() < 5 * np.sqrt(users * 3 / 16)


@pytest.mark.parametrize("rule", [PrefixRule((1, 2)), PrefixRule((1, 2), users="as_long_as")])
def test_no_users_give_no_pairs(rule: PrefixRule) -> None:
    prefixes = make_prefixes(np.array([0]), rule)
    assert not len(prefixes.user_x) and prefixes.truth_offsets.tolist() == [0]


@pytest.mark.parametrize("points", [(), (0, 1), (2, 1), (1, 1), (1.5,), (True,)])
def test_wrong_points_are_refused(points: tuple[object, ...]) -> None:
    with pytest.raises(ConfigError, match="are no numbers of given ratings"):
        PrefixRule(points)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="a minimum of 0 test rows"):
        PrefixRule((1, 5, 20), minimum=0)
