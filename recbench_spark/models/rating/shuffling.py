"""Ratings in an order by hash: which row comes when is a function of the seed, not of how the rows lay."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from recbench_spark.kernels.compiling import compiled
from recbench_spark.kernels.hashing import GAMMA, mix, stream
from recbench_spark.models.rating.contract import Ratings
from recbench_spark.models.rating.normals import unsigned


class Triples(NamedTuple):
    """Ratings as an epoch reads them: one after the other, four bytes a column."""

    users_r: npt.NDArray[np.uint32]
    items_r: npt.NDArray[np.uint32]
    targets_r: npt.NDArray[np.float32]

    def in_order(self, order_r: npt.NDArray[np.integer]) -> Triples:
        """Copied into another order: an epoch that jumps through memory takes twice as long."""
        empty = np.empty_like
        copied = Triples(empty(self.users_r), empty(self.items_r), empty(self.targets_r))
        _copy(self, order_r.astype(np.uint32), copied)
        return copied


def hash_order(ratings: Ratings, seed: int) -> npt.NDArray[np.int64]:
    """(r,) row numbers by hash of (user, item): the same ratings in any order give the same sequence.

    Ratings of one user for one item twice come in the order of their values.
    """
    keys_r = _hashes(unsigned(seed), ratings.users_r, ratings.items_r)
    return np.lexsort((ratings.ratings_r, keys_r))


def held_out(ratings: Ratings, share: float, seed: int) -> npt.NDArray[np.bool_]:
    """(r,) true for the ratings held out: those whose hash of (user, item) is in the lowest `share`."""
    hashes_r = _hashes(unsigned(seed), ratings.users_r, ratings.items_r)
    return (hashes_r >> np.uint64(11)).astype(np.float64) < share * 2.0**53


def permutation(rows: int, seed: int, step: int) -> npt.NDArray[np.uint32]:
    """(r,) 0 .. r - 1 shuffled (Fisher and Yates; Durstenfeld 1964) by draws of (seed, step)."""
    order_r = np.arange(rows, dtype=np.uint32)
    _shuffle(order_r, np.uint64(stream(unsigned(seed), np.uint64(step))))
    return order_r


@compiled
def _copy(triples: Triples, order_r: npt.NDArray[np.uint32], out: Triples) -> None:
    for r in range(len(order_r)):
        source = order_r[r]
        out.users_r[r], out.items_r[r] = triples.users_r[source], triples.items_r[source]
        out.targets_r[r] = triples.targets_r[source]


@compiled
def _hashes(
    seed: np.uint64, users_r: npt.NDArray[np.int64], items_r: npt.NDArray[np.int64]
) -> npt.NDArray[np.uint64]:
    hashes = np.empty(len(users_r), np.uint64)
    for r in range(len(users_r)):
        hashes[r] = stream(stream(seed, np.uint64(users_r[r])), np.uint64(items_r[r]))
    return hashes


@compiled
def _shuffle(order_r: npt.NDArray[np.uint32], state: np.uint64) -> None:
    for last in range(len(order_r) - 1, 0, -1):
        state += GAMMA
        # The upper 32 bits of a draw times last + 1, over 2^32: a place from 0 to last.
        at = ((mix(state) >> np.uint64(32)) * np.uint64(last + 1)) >> np.uint64(32)
        order_r[last], order_r[at] = order_r[at], order_r[last]
