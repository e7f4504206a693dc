"""Sampled candidates: uniform or by weight, never known ones, the same in every batch."""

from __future__ import annotations

import numpy as np
import pytest

from recbench_spark.errors import ConfigError
from recbench_spark.ranking.kernels.moments import Periods, place_moments
from recbench_spark.ranking.kernels.negatives import draw
from recbench_spark.ranking.kernels.positives import ItemLists

USERS, ITEMS = 600, 40
KEYS = np.random.default_rng(1).integers(-(2**62), 2**62, USERS)
KNOWN = ItemLists(np.arange(USERS + 1) * 3, np.tile([1, 2, 3], USERS))
UNIFORM = np.arange(ITEMS + 1)


def rows(lists: ItemLists) -> list[list[int]]:
    return [part.tolist() for part in np.split(lists.items_p, lists.offsets_u[1:-1])]


def test_no_item_twice_and_none_that_is_known() -> None:
    drawn = rows(draw(KEYS, KNOWN, np.full(USERS, 10), UNIFORM, seed=5))
    assert all(len(items) == len(set(items)) == 10 for items in drawn)
    assert all(not {1, 2, 3} & set(items) for items in drawn)


def test_every_free_item_is_as_likely() -> None:
    drawn = draw(KEYS, KNOWN, np.full(USERS, 10), UNIFORM, seed=5)
    counts = np.delete(np.bincount(drawn.items_p, minlength=ITEMS), [1, 2, 3])
    expected = USERS * 10 / 37
    chi_squared = ((counts - expected) ** 2 / expected).sum()
    assert chi_squared < 67.99  # 36 degrees of freedom, one in a thousand


def test_weights_are_the_odds_of_the_first_draw() -> None:
    weights = np.zeros(ITEMS, np.int64)
    weights[[5, 6]] = 8, 2
    drawn = draw(KEYS, ItemLists.empty(USERS), np.full(USERS, 1), np.append(0, weights.cumsum()), seed=1)
    share = np.mean(drawn.items_p == 5)
    assert abs(share - 0.8) < 4 * np.sqrt(0.8 * 0.2 / USERS)
    assert set(drawn.items_p.tolist()) == {5, 6}


def test_all_free_items_where_more_are_wanted() -> None:
    drawn = rows(
        draw(KEYS[:4], ItemLists(KNOWN.offsets_u[:5], KNOWN.items_p[:12]), np.full(4, 99), UNIFORM, seed=5)
    )
    assert all(sorted(items) == [0, *range(4, ITEMS)] for items in drawn)
    assert drawn[0] != drawn[1]


def test_batches_change_nothing_and_seeds_do() -> None:
    whole = rows(draw(KEYS, KNOWN, np.full(USERS, 10), UNIFORM, seed=5))
    half = ItemLists(KNOWN.offsets_u[:301], KNOWN.items_p[900:])
    assert rows(draw(KEYS[300:], half, np.full(300, 10), UNIFORM, seed=5)) == whole[300:]
    assert rows(draw(KEYS, KNOWN, np.full(USERS, 10), UNIFORM, seed=6)) != whole
    longer = rows(draw(KEYS, KNOWN, np.full(USERS, 12), UNIFORM, seed=5))
    assert [items[:10] for items in longer] == whole


def test_nothing_to_draw_from() -> None:
    with pytest.raises(ConfigError, match="no item"):
        draw(KEYS, KNOWN, np.full(USERS, 1), np.zeros(ITEMS + 1, np.int64), seed=1)


def test_only_items_of_the_moment_are_drawn() -> None:
    """Item n is there from n to n + 20; where fewer are free than wanted, all of them are drawn."""
    begin = np.arange(ITEMS)
    as_of = place_moments(np.arange(USERS) % 50, Periods(np.arange(ITEMS + 1), begin, begin + 20))
    drawn = rows(draw(KEYS, KNOWN, np.full(USERS, 10), UNIFORM, seed=5, as_of=as_of))
    for moment, items in zip(as_of.moment_u, drawn, strict=True):
        free = {item for item in range(ITEMS) if item <= moment < item + 20} - {1, 2, 3}
        assert len(items) == len(set(items)) == min(10, len(free))
        assert set(items) <= free
    every = place_moments(np.zeros(USERS, int), Periods(np.arange(ITEMS + 1), 0 * begin, begin + 1))
    without = rows(draw(KEYS, KNOWN, np.full(USERS, 10), UNIFORM, seed=5))
    assert rows(draw(KEYS, KNOWN, np.full(USERS, 10), UNIFORM, seed=5, as_of=every)) == without
