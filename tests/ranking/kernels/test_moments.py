"""Candidates of a moment, against masks of all other items."""

from __future__ import annotations

import os
from typing import NamedTuple

import numpy as np
import pytest

from recbench_spark.core.arrays import Ints
from recbench_spark.ranking.kernels.counting import CountingSettings
from recbench_spark.ranking.kernels.moments import (
    ALWAYS,
    Periods,
    UserMoments,
    mark_available,
    place_moments,
)
from recbench_spark.ranking.kernels.positives import ItemLists
from recbench_spark.ranking.kernels.scorers import (
    NUMPY_TILES,
    WHOLE_ROWS,
    DotScorer,
    UserBlock,
    count_ranks,
)

SEEDS = range(*map(int, os.environ.get("RECBENCH_MOMENT_SEEDS", "0,20").split(",")))
LAST = 24


class World(NamedTuple):
    scorer: DotScorer
    users: UserBlock
    truth: ItemLists
    masked: ItemLists
    as_of: UserMoments


def draw_periods(rng: np.random.Generator, items: int, several: bool) -> Periods:
    """No, one or two periods for each item; or one without end."""
    count_i = rng.integers(0, 3, items) if several else np.ones(items, int)
    bounds = [np.sort(rng.choice(30, 2 * count, replace=False)) - 3 for count in count_i]
    times = np.concatenate([*bounds, np.empty(0, np.int64)]).astype(np.int64)
    ends = times[1::2] if several else np.full(len(times) // 2, ALWAYS)
    return Periods(np.append(0, np.cumsum(count_i)), times[::2].copy(), ends.copy())


def draw_world(seed: int) -> World:
    rng = np.random.default_rng(seed)
    users, items, dims = (int(rng.integers(*ends)) for ends in ((1, 40), (2, 150), (0, 9)))
    vectors_id, vectors_ud = (
        rng.integers(-2, 3, (rows, dims)).astype(np.float32) for rows in (items, users)
    )
    bias = rng.integers(0, 3, items) * 1.0 if rng.integers(2) or dims == 0 else None
    scorer = DotScorer(vectors_id, bias, rng.random(items) < 0.9, ("dot", "cosine")[rng.integers(2)])
    as_of = place_moments(rng.integers(0, LAST, users), draw_periods(rng, items, seed % 2 == 1))
    truth, masked = (draw_lists(rng, users, items, most) for most in (5, 12))
    known = mark_available(as_of.periods, truth.items_p, as_of.moment_u[list_owners(truth)])
    truth = ItemLists(truth.offsets_u, np.where(known, truth.items_p, -1))
    return World(scorer, UserBlock(np.arange(users), vectors_ud), truth, masked, as_of)


def draw_lists(rng: np.random.Generator, users: int, items: int, most: int) -> ItemLists:
    count_u = rng.integers(0, most, users)
    return ItemLists(np.append(0, np.cumsum(count_u)), rng.integers(-1, items, count_u.sum()))


def list_owners(lists: ItemLists) -> Ints:
    return np.repeat(np.arange(lists.users), np.diff(lists.offsets_u))


def mask_others(world: World) -> ItemLists:
    """The slow way: every item that is no candidate is masked, user by user."""
    items, lists = len(world.scorer.scored_i), []
    for user, moment in enumerate(world.as_of.moment_u):
        known = mark_available(world.as_of.periods, np.arange(items), np.full(items, moment))
        start, stop = world.masked.offsets_u[user : user + 2]
        lists.append(np.append(world.masked.items_p[start:stop], np.flatnonzero(~known)))
    return ItemLists(np.append(0, np.cumsum([*map(len, lists)])), np.concatenate(lists))


SETTINGS = [
    CountingSettings(),
    CountingSettings(top_k=5),
    CountingSettings(cutoff=4, reduced=True),
    CountingSettings(cutoff=3),
    CountingSettings(top_k=3, cutoff=3),
]


@pytest.mark.parametrize("seed", SEEDS)
def test_hidden_items_count_as_masks_of_all_others(seed: int) -> None:
    world = draw_world(seed)
    scorer, users, truth = world.scorer, world.users, world.truth
    for settings in SETTINGS:
        masks = mask_others(world)
        wanted = count_ranks(scorer, users, truth, masks, device=WHOLE_ROWS, settings=settings)
        for device in (WHOLE_ROWS, NUMPY_TILES):
            counts = count_ranks(
                scorer, users, truth, world.masked, device=device, settings=settings, as_of=world.as_of
            )
            for name, one in vars(wanted).items():
                np.testing.assert_array_equal(getattr(counts, name), one, f"{settings} {device} {name}")
