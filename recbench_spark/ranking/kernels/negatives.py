"""Sampled candidates: items drawn by hash, without replacement.

Draw j for user u is a hash of (user key, j, seed); items already drawn or known to the user are skipped. So
a user's candidates depend on the user, the catalogue and the seed alone, not on batch, partition, model or
night. Axes: u users, i items, n draws.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from recbench_spark.core.arrays import Ints
from recbench_spark.core.compiling import compile_kernel
from recbench_spark.core.hashing import mix, stream
from recbench_spark.errors import ConfigError
from recbench_spark.ranking.kernels.moments import NO_MOMENTS, UserMoments, is_available
from recbench_spark.ranking.kernels.positives import ItemLists

ROUNDS = 32
"""Draws per wanted item before a user's remaining items are taken in hash order."""


def draw(
    keys_u: Ints,
    known: ItemLists,
    wanted_u: Ints,
    cumulative_i: Ints,
    seed: int,
    *,
    as_of: UserMoments = NO_MOMENTS,
) -> ItemLists:
    """Draw items for each user, in draw order.

    A user gets fewer if fewer items are left.

    Args:
        keys_u: int64, hashed user ids.
        known: items never drawn for a user (training and truth).
        wanted_u: number of items per user.
        cumulative_i: int64 (i + 1,), running sum of the items' weights from 0: ones for uniform draws,
            training counts for draws by popularity. Items with weight 0 are never drawn.
        seed: the hash seed; another seed gives other items.
        as_of: users' moments: only items that are candidates then are drawn.

    Raises:
        ConfigError: no item has any weight.
    """
    total = int(cumulative_i[-1])
    if total <= 0:
        raise ConfigError("no item to draw candidates from", "popularity draws need training rows")
    offsets = np.concatenate([[0], np.cumsum(wanted_u)]).astype(np.int64)
    items = np.full(offsets[-1], -1, np.int64)
    _fill(
        np.ascontiguousarray(keys_u, np.int64).view(np.uint64),
        known.offsets_u,
        known.items_p,
        offsets,
        cumulative_i,
        np.uint64(seed % 2**64),
        items,
        as_of,
    )
    return _without_gaps(offsets, items)


def _without_gaps(offsets: Ints, items: Ints) -> ItemLists:
    drawn = items >= 0
    running = np.concatenate([[0], np.cumsum(drawn)]).astype(np.int64)
    return ItemLists(running[offsets], items[drawn])


@compile_kernel
def _fill(
    keys_u: npt.NDArray[np.uint64],
    known_offsets: Ints,
    known_items: Ints,
    offsets: Ints,
    cumulative_i: Ints,
    seed: np.uint64,
    items: Ints,
    as_of: UserMoments,
) -> None:
    n_items = len(cumulative_i) - 1
    total = np.uint64(cumulative_i[n_items])
    taken_i = np.full(n_items, -1, np.int64)
    for u in range(len(keys_u)):
        for p in range(known_offsets[u], known_offsets[u + 1]):
            if known_items[p] >= 0:
                taken_i[known_items[p]] = u
        start = stream(seed, keys_u[u])
        at, stop = offsets[u], offsets[u + 1]
        for n in range(ROUNDS * (stop - at)):
            if at == stop:
                break
            item = _item_at(cumulative_i, np.int64(mix(start + np.uint64(n)) % total))
            if taken_i[item] != u and _is_there(as_of, u, item):
                taken_i[item] = u
                items[at] = item
                at += 1
        if at < stop and len(as_of.moment_u):
            for i in range(n_items):
                taken_i[i] = taken_i[i] if _is_there(as_of, u, i) else u
        _take_rest(taken_i, u, start, cumulative_i, items[at:stop])


@compile_kernel
def _is_there(as_of: UserMoments, u: int, item: int) -> bool:
    return len(as_of.moment_u) == 0 or is_available(as_of.periods, item, as_of.moment_u[u])


@compile_kernel
def _item_at(cumulative_i: Ints, place: np.int64) -> int:
    """Return the item whose running-sum interval contains the place."""
    low, high = 0, len(cumulative_i) - 1
    while high - low > 1:
        middle = (low + high) // 2
        if cumulative_i[middle] <= place:
            low = middle
        else:
            high = middle
    return low


@compile_kernel
def _take_rest(taken_i: Ints, u: int, start: np.uint64, cumulative_i: Ints, items: Ints) -> None:
    """Take free items by falling hash, once draws seldom hit."""
    if len(items) == 0:
        return
    free = np.array(
        [i for i in range(len(taken_i)) if taken_i[i] != u and cumulative_i[i + 1] > cumulative_i[i]]
    )
    order = np.argsort(np.array([-np.float64(mix(start ^ np.uint64(i))) for i in free]), kind="mergesort")
    for n in range(min(len(items), len(free))):
        items[n] = free[order[n]]
