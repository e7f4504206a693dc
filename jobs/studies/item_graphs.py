"""Build item graphs in memory from shared users.

Links follow walk visits or cosines.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from recbench_spark.graphs.kernels.csr import Csr
from recbench_spark.graphs.kernels.ids import hash_numbers
from recbench_spark.graphs.kernels.simd import PREFETCH_EDGES
from recbench_spark.graphs.kernels.walks import MostVisited, Walks, find_neighbourhoods, visit_shares
from recbench_spark.models.adapters.item_knn import binary_matrix
from recbench_spark.models.nearest_items import cosine_neighbours
from recbench_spark.models.networks.factors import UserItemPairs
from recbench_spark.models.networks.subgraphs import Adjacency

Ints = npt.NDArray[np.int64]


def build_bipartite(pairs: UserItemPairs) -> tuple[Ints, npt.NDArray[np.uint32]]:
    """Return the adjacency for users, then items."""
    order = np.argsort(pairs.item, kind="stable")
    counts = np.bincount(pairs.item, minlength=pairs.items)
    indptr = np.concatenate([pairs.indptr, pairs.indptr[-1] + np.cumsum(counts)])
    src = np.concatenate([pairs.item + np.int32(pairs.users), pairs.user[order]])
    return indptr.astype(np.int64), src.astype(np.uint32)


def build_walk_graph(pairs: UserItemPairs, top: int, seed: int) -> Adjacency:
    """Link each item to those its walks visit most.

    Weights are visits. An item without pairs has no neighbours.
    """
    return build_visit_graph(find_visited_items(pairs, top, seed), pairs)


def find_visited_items(pairs: UserItemPairs, top: int, seed: int, walks: int = 200) -> MostVisited:
    """Return each item's most visited items on five-hop walks.

    Dense item ids follow the users'.
    """
    indptr, src = build_bipartite(pairs)
    hashes = hash_numbers(np.arange(pairs.items), 0)
    return find_neighbourhoods(indptr, src, hashes, pairs.users, Walks(walks, 5, 0.5, 2, top, seed))


def build_visit_graph(most: MostVisited, pairs: UserItemPairs) -> Adjacency:
    """Build a graph of visited items, weighted by visit shares."""
    row = np.repeat(np.arange(pairs.items), np.diff(most.indptr))
    return make_adjacency(pairs.items, row, most.node.astype(np.int64) - pairs.users, visit_shares(most))


def build_cosine_graph(pairs: UserItemPairs, top: int) -> Adjacency:
    """Link each item to those with the largest cosines, as weights.

    The cosine is the number of common users over sqrt(product of both user counts).
    """
    user_rows = binary_matrix(pairs.indptr, pairs.item, pairs.items)
    counts = np.bincount(pairs.item, minlength=pairs.items)
    neighbours = cosine_neighbours(user_rows.T.tocsr(), user_rows, counts, range(pairs.items), top)
    return make_adjacency(
        pairs.items, neighbours.items, neighbours.neighbours, neighbours.weights.astype(np.float32)
    )


def make_adjacency(items: int, row_e: Ints, node_e: Ints, weight_e: npt.NDArray[np.float32]) -> Adjacency:
    """Make one block of edges from nodes into rows.

    Dense ids are hashed as their numbers.
    """
    order = np.lexsort((node_e, row_e))
    indptr = np.searchsorted(row_e[order], np.arange(items + 1)).astype(np.int64)
    padded = np.append(node_e[order], np.zeros(PREFETCH_EDGES, np.int64)).astype(np.uint32)
    hashes = hash_numbers(np.arange(items), 0)
    return Adjacency(np.zeros(1, np.int64), (Csr(indptr, padded, weight_e[order]),), hashes)
