"""Recommendation lists through an index: join all partitions, rank exactly."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from recbench_spark.core.arrays import Floats, Floats32, Ints
from recbench_spark.errors import DataError
from recbench_spark.ranking.kernels.products import Products, make_pairing
from recbench_spark.retrieval.faiss_indexes import FaissBuilder
from recbench_spark.retrieval.hash_index import HashBuilder
from recbench_spark.retrieval.interface import IndexBuilder, IndexedItems, IndexReader
from recbench_spark.retrieval.kernels.candidates import ItemSets, rank_candidates
from recbench_spark.retrieval.settings import AnyIndexSettings, HashIndexSettings

CELLS, LEAST_USERS = 1 << 24, 32
"""Candidates held by one search, and the least number of users in it."""


def make_builder(settings: AnyIndexSettings) -> IndexBuilder:
    """Return the builder for this kind of index."""
    return HashBuilder(settings) if isinstance(settings, HashIndexSettings) else FaissBuilder(settings)


def cut_items(products: Products, parts: int, part: int) -> IndexedItems:
    """Return one range of the scored items, ready to index.

    Args:
        products: item side of the scores; a bias becomes one more dimension, and a cosine gives vectors of
            length 1.
        parts: number of ranges; the first ones hold one item more where they cannot be equal.
        part: number of the range, from 0.

    Raises:
        DataError: there are more parts than scored items.
    """
    items_t = np.flatnonzero(products.scored_i)
    if parts > len(items_t):
        raise DataError(f"{parts} parts of an index for {len(items_t)} items", "give fewer index_parts")
    piece = np.array_split(items_t, parts)[part]
    operand = products.item_operand(int(piece[0]), int(piece[-1]) + 1)
    whole = len(operand) == len(piece)  # then the rows need no second copy
    return IndexedItems(operand if whole else operand[piece - piece[0]], piece)


def write_parts(settings: AnyIndexSettings, products: Products, folder: Path) -> list[Path]:
    """Build each partition's index in its own folder; return the folders."""
    folders = [folder / f"part-{part}" for part in range(settings.index_parts)]
    for part, place in enumerate(folders):
        place.mkdir()
        make_builder(settings).build(cut_items(products, settings.index_parts, part), place)
    return folders


class IndexLists(NamedTuple):
    """Lists for a block of users, with their candidate counts.

    `items_uk`: padded with -1. `scores_uk`: padded with NaN. `proposed_u`: candidates per user.
    """

    items_uk: Ints
    scores_uk: Floats
    proposed_u: Ints


def search_lists(
    readers: Sequence[IndexReader], products: Products, vectors_ud: Floats32, masked: ItemSets, top_k: int
) -> IndexLists:
    """Return each user's best unmasked candidates over all partitions.

    Candidates are ordered by score, then by smaller index. A deeper search makes up for training items: its
    depth is K plus the user's masked items, rounded up to a power of two, so a block needs few searches. A
    group holds as many users as have candidates within `CELLS`, and at least `LEAST_USERS`.

    Args:
        readers: one for each partition.
        products: item side of the scores.
        vectors_ud: (users, dims) vectors.
        masked: items which a user's list leaves out.
        top_k: length of the lists; a shorter list is padded with -1.
    """
    pairing = make_pairing(products, vectors_ud)
    queries_ud = products.user_operand(vectors_ud)
    shape = (len(vectors_ud), top_k)
    lists = IndexLists(np.full(shape, -1, np.int64), np.full(shape, np.nan), np.zeros(shape[0], np.int64))
    for depth, group in group_depths(np.diff(masked.offsets_u), top_k):
        most = sum(reader.limit_candidates(depth) for reader in readers)
        step = max(LEAST_USERS, CELLS // max(most, 1))
        for users in np.split(group, range(step, len(group), step)):
            candidates = join_sets([reader.search(queries_ud[users], depth) for reader in readers])
            part = pairing._replace(vectors_ud=pairing.vectors_ud[users], length_u=pairing.length_u[users])
            ranked = rank_candidates(part, candidates, choose_users(masked, users), top_k)
            lists.items_uk[users], lists.scores_uk[users] = ranked
            lists.proposed_u[users] = np.diff(candidates.offsets_u)
    return lists


def group_depths(masked_u: Ints, top_k: int) -> list[tuple[int, Ints]]:
    """Group users by search depth.

    Masked items of a group fit into the same power of two.

    >>> [(depth, users.tolist()) for depth, users in group_depths(np.array([0, 3, 4, 1]), 10)]
    [(10, [0]), (11, [3]), (14, [1, 2])]
    """
    room_u = np.where(masked_u > 0, 2 ** np.ceil(np.log2(np.maximum(masked_u, 1))), 0).astype(np.int64)
    return [(top_k + int(room), np.flatnonzero(room_u == room)) for room in np.unique(room_u)]


def choose_users(sets: ItemSets, users: Ints) -> ItemSets:
    """Return the sets of some users."""
    starts, sizes = sets.offsets_u[users], np.diff(sets.offsets_u)[users]
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    places = np.repeat(starts - offsets[:-1], sizes) + np.arange(offsets[-1])
    return ItemSets(offsets, sets.items_p[places])


def join_sets(sets: Sequence[ItemSets]) -> ItemSets:
    """Return the union of each user's sets.

    Partitions hold ascending item ranges without overlap.
    """
    if len(sets) == 1:
        return sets[0]
    sizes_pu = np.stack([np.diff(one.offsets_u) for one in sets])
    users = np.concatenate([np.repeat(np.arange(sizes_pu.shape[1]), sizes) for sizes in sizes_pu])
    items = np.concatenate([one.items_p for one in sets])
    offsets = np.concatenate([[0], np.cumsum(sizes_pu.sum(axis=0))])
    return ItemSets(offsets, items[np.argsort(users, kind="stable")])
