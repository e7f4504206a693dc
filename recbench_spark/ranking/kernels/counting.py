"""Ranks by counting, exact for all blocks, threads and devices.

The score s_ui for user u and item i is, by definition, a float64 number:

    s_ui = (sum_d u_d * v_id, added in index order) / n_i + b_i

from stored float32 vectors, with n_i = 1 (dot) or |v_i| (cosine; 0 for a zero vector) and the item's bias
b_i. The product of two float32 numbers is exact in float64. So a fused multiply-add (which rounds once) and
a product followed by an addition give the same bits: the definition needs no compiler flag. A positive p
has rank `1 + #{c : s_c > s_p}` plus a tie term: a count, without list or sort.

The counting multiplies tiles of users by tiles of items and compares while the tile is in the cache: on
CPUs as 16-bit whole numbers (`words`), on devices in float32 (`devices`). With x the product and E its
error bound,

    x > s_p + E  =>  s > s_p          x < s_p - E  =>  s < s_p

decides all but a few pairs; the pairs in between are scored in float64. Low precision never decides more
than it has proven, so the counts do not depend on how the product was computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from recbench_spark.core.arrays import Bools, Floats, Floats32, Ints
from recbench_spark.core.compiling import compile_kernel, readonly
from recbench_spark.errors import DataError
from recbench_spark.ranking.kernels.instructions import LANES, ROWS
from recbench_spark.ranking.kernels.moments import NO_MOMENTS, UserMoments, order_users
from recbench_spark.ranking.kernels.positives import (
    HiddenPlaces,
    ItemLists,
    Positives,
    RankCounts,
    Tally,
    count_among_positives,
    count_exact,
    find_slots,
    list_arrays,
    list_hidden,
    make_positives,
    make_tally,
)
from recbench_spark.ranking.kernels.products import (
    Pairing,
    Products,
    exact_scores,
    make_pairing,
)
from recbench_spark.ranking.kernels.tiles import count_tile, make_open_pairs
from recbench_spark.ranking.kernels.top import TopCandidates, finish_lists, make_work, top_lists
from recbench_spark.ranking.kernels.word_loops import BLOCK, make_aligned
from recbench_spark.ranking.kernels.words import (
    cut_tiles,
    even_dims,
    round_users,
    word_tiles,
)

USER_TILE, ITEM_TILE = 96, 2048
"""Users and items in one tile: its products take 400 kB and are compared while in the cache."""


@dataclass(frozen=True)
class CountingSettings:
    """Settings for counting: wanted output and tile sizes.

    Attributes:
        top_k: list length; 0: no lists.
        cutoff: K, the last rank to count exactly. Positives beyond K get above = K and no ties. They are no
            longer compared, and users without other positives are no longer multiplied.
        reduced: up to a cut-off, 8-bit products and bounds decide what they can (`ranking.kernels.cutoff`);
            None: where this is faster.
    """

    top_k: int = 0
    cutoff: int | None = None
    threads: int = 1
    user_tile: int | None = None
    item_tile: int | None = None
    reduced: bool | None = None

    @property
    def may_reduce(self) -> bool:
        """True if 8-bit products can give the wanted output."""
        return self.cutoff is not None and not self.top_k and self.reduced is not False


class PreparedBlock(NamedTuple):
    """A block of users, ready for counting on any device."""

    products: Products
    pairing: Pairing
    plan: Positives
    scores_s: Floats
    tally: Tally
    moments: UserMoments = NO_MOMENTS


def prepare_products(
    products: Products, vectors_ud: Floats32, truth: ItemLists, masked: ItemLists
) -> PreparedBlock:
    """Sort the lists, score positives in float64, and compare these.

    Each user's positives are compared with each other.
    """
    pairing = make_pairing(products, vectors_ud)
    plan = make_positives(products.scored_i, truth, masked)
    if truth.users != len(vectors_ud):
        raise DataError(
            f"{len(vectors_ud)} user vectors, truth of {truth.users} users",
            "give one row, possibly empty, to each user",
        )
    scores_s, tally = exact_scores(pairing, plan.slot_users, plan.slot_items), make_tally(plan)
    count_among_positives(plan, scores_s, tally)
    return PreparedBlock(products, pairing, plan, scores_s, tally)


def count_products(
    prepared: PreparedBlock, settings: CountingSettings, users_u: Ints | None = None
) -> tuple[Ints, Floats] | None:
    """Count all tiles on the CPU into `prepared.tally`.

    `users_u`: the block's users to count; None: all. Returns the first K if `top_k` is set.
    """
    if users_u is None:
        users_u = np.arange(len(prepared.pairing.length_u))
    work = make_work(prepared.products, prepared.pairing, settings.top_k)
    if settings.threads > 1:
        next(word_tiles(prepared.products, settings.item_tile or ITEM_TILE), None)  # rounded once, here
    place_i = prepared.products.order.place_i
    hidden = list_hidden(prepared.plan, place_i), place_i[prepared.plan.slot_items]
    count = partial(_count_users, prepared=prepared, hidden=hidden, work=work, settings=settings)
    in_threads(count, order_users(users_u, prepared.moments), settings.threads)
    return finish_lists(users_u, prepared.pairing, settings.top_k, work) if settings.top_k else None


def in_threads(count: Callable[[Ints], None], users_u: Ints, threads: int) -> None:
    """Count users in several threads."""
    parts = np.array_split(users_u, max(1, threads))
    with ThreadPoolExecutor(len(parts)) as pool:
        for done in [pool.submit(count, part) for part in parts]:
            done.result()


@contextmanager
def plain_products() -> Iterator[None]:
    """Forbid TF32 and bfloat16 within float32 products.

    The error bound holds for float32 alone.
    """
    import torch  # noqa: PLC0415

    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _count_users(
    users_u: Ints,
    prepared: PreparedBlock,
    hidden: tuple[HiddenPlaces, Ints],
    work: TopCandidates,
    settings: CountingSettings,
) -> None:
    """Count tiles: outer loop over items, inner one over users.

    So each tile of items is read once.
    """
    products, pairing, plan, scores_s, tally, moments = prepared
    user_tile, item_tile = settings.user_tile or USER_TILE, settings.item_tile or ITEM_TILE
    user_tile, width = -(-user_tile // ROWS) * ROWS, -(-item_tile // BLOCK) * BLOCK
    halves, dims = not products.has_biases, even_dims(products.dims)
    found_n = make_aligned(user_tile * width, np.int16 if halves else np.int32)
    sides = round_users(pairing.vectors_ud, users_u, len(users_u) + user_tile, dims)
    known, cut = (pairing, plan, scores_s), (_cutoff(settings), settings.top_k)
    open_pairs = make_open_pairs(width)
    cuts = cut_tiles(products.order.length_t, item_tile)
    changes = moments.deal(products, cuts)
    for number, tile in enumerate(word_tiles(products, item_tile)):
        found_rt = found_n[: user_tile * LANES * len(tile.packed)].reshape(user_tile, -1)
        absent = *hidden, moments, changes.open(number, found_rt.shape[1], found_rt.dtype.type)
        count_tile(found_rt, users_u, tile, sides, known, absent, cut, (tally, work, open_pairs))
        if settings.cutoff is not None and not settings.top_k:
            open_u = _open_users(users_u, plan.slot_offsets, tally.above, settings.cutoff)
            if np.count_nonzero(open_u) <= 0.9 * len(users_u):
                users_u = users_u[open_u]
                sides = round_users(pairing.vectors_ud, users_u, len(users_u) + user_tile, dims)


@compile_kernel
def _open_users(users_u: Ints, slot_offsets: Ints, above_s: Ints, cutoff: int) -> Bools:
    """Mark users with a positive that may be within the cut-off."""
    out = np.zeros(len(users_u), np.bool_)
    for r in range(len(users_u)):
        for s in range(slot_offsets[users_u[r]], slot_offsets[users_u[r] + 1]):
            out[r] |= above_s[s] < cutoff
    return out


def _cutoff(settings: CountingSettings) -> int:
    return np.iinfo(np.int64).max if settings.cutoff is None else settings.cutoff


@compile_kernel
def count_rows(scores_ri: Floats, first_user: int, scored_i: Bools, plan: Positives, tally: Tally) -> None:
    """Count float64 rows for users from `first_user` on.

    Scores of unranked items become NaN in place.
    """
    for r in range(scores_ri.shape[0]):
        u, row = first_user + r, scores_ri[r]
        for i in range(len(row)):
            if not scored_i[i]:
                row[i] = np.nan
        for m in range(plan.masked_offsets[u], plan.masked_offsets[u + 1]):
            row[plan.masked_items[m]] = np.nan
        for s in range(plan.slot_offsets[u], plan.slot_offsets[u + 1]):
            above, tied, before = count_exact(row, plan.slot_items[s])
            tally.above[s], tally.tied[s], tally.before[s] = above, tied, before


@compile_kernel
def count_lists(
    slot_p: Ints, offsets_u: Ints, scores_c: Floats, truth_offsets: Ints
) -> tuple[Ints, Ints, Ints]:
    """Return above, tied, before for truth entries in scored lists."""
    above, tied, before = np.full(len(slot_p), -1), np.zeros_like(slot_p), np.zeros_like(slot_p)
    for u in range(len(offsets_u) - 1):
        first = offsets_u[u]
        row = scores_c[first : offsets_u[u + 1]]
        for p in range(truth_offsets[u], truth_offsets[u + 1]):
            if slot_p[p] >= 0:
                above[p], tied[p], before[p] = count_exact(row, slot_p[p] - first)
    return above, tied, before


def count_scored_lists(truth: ItemLists, listed: Positives, scores_c: Floats, top_k: int) -> RankCounts:
    """Count among given candidates, whose lists are sorted in `listed`."""
    slot_p = find_slots(*list_arrays(truth), listed.slot_offsets, listed.slot_items)
    offsets = listed.slot_offsets
    counted = count_lists(slot_p, offsets, scores_c, readonly(truth.offsets_u))
    top = top_lists(offsets, listed.slot_items, scores_c, top_k) if top_k else (None, None)
    return RankCounts(*counted, np.diff(offsets), *top)
