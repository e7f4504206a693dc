"""Graphs of items that users share, in memory: most visited by walks over pairs, or of largest cosine."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from recbench_spark.kernels.graph.csr import Csr
from recbench_spark.kernels.graph.ids import hashed_numbers
from recbench_spark.kernels.graph.simd import AHEAD
from recbench_spark.kernels.graph.walks import Most, Walks, neighbourhoods, shares
from recbench_spark.models.item_knn import binary_matrix, cosine_neighbours
from recbench_spark.models.networks.factors import Pairs
from recbench_spark.models.networks.subgraphs import Adjacency

Ints = npt.NDArray[np.int64]


def both_ways(pairs: Pairs) -> tuple[Ints, npt.NDArray[np.uint32]]:
    """Adjacency of users, then items."""
    order = np.argsort(pairs.item, kind="stable")
    counts = np.bincount(pairs.item, minlength=pairs.items)
    indptr = np.concatenate([pairs.indptr, pairs.indptr[-1] + np.cumsum(counts)])
    src = np.concatenate([pairs.item + np.int32(pairs.users), pairs.user[order]])
    return indptr.astype(np.int64), src.astype(np.uint32)


def connected(pairs: Pairs, top: int, seed: int) -> Adjacency:
    """The items that walks from each item visit most, weighed by visits; none for an item without pairs."""
    return by_visits(visited(pairs, top, seed), pairs)


def visited(pairs: Pairs, top: int, seed: int, walks: int = 200) -> Most:
    """The items that walks of five hops from each item visit most, dense ids after those of users."""
    indptr, src = both_ways(pairs)
    hashes = hashed_numbers(np.arange(pairs.items), 0)
    return neighbourhoods(indptr, src, hashes, pairs.users, Walks(walks, 5, 0.5, 2, top, seed))


def by_visits(most: Most, pairs: Pairs) -> Adjacency:
    """Those items as a graph, weighed by their share of the visits."""
    row = np.repeat(np.arange(pairs.items), np.diff(most.indptr))
    return adjacency(pairs.items, row, most.node.astype(np.int64) - pairs.users, shares(most))


def alike(pairs: Pairs, top: int) -> Adjacency:
    """The items of largest cosine to each (users of both over the root of the product), weighed by it."""
    of_users = binary_matrix(pairs.indptr, pairs.item, pairs.items)
    counts = np.bincount(pairs.item, minlength=pairs.items)
    found = cosine_neighbours(of_users.T.tocsr(), of_users, counts, range(pairs.items), top)
    return adjacency(pairs.items, found.items, found.neighbours, found.weights.astype(np.float32))


def adjacency(items: int, row_e: Ints, node_e: Ints, weight_e: npt.NDArray[np.float32]) -> Adjacency:
    """One block of edges from nodes into rows; dense ids hash as their numbers."""
    order = np.lexsort((node_e, row_e))
    indptr = np.searchsorted(row_e[order], np.arange(items + 1)).astype(np.int64)
    padded = np.append(node_e[order], np.zeros(AHEAD, np.int64)).astype(np.uint32)
    hashes = hashed_numbers(np.arange(items), 0)
    return Adjacency(np.zeros(1, np.int64), (Csr(indptr, padded, weight_e[order]),), hashes)
