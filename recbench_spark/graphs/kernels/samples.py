"""Sample nodes' neighbours, and rank hard negatives by PageRank.

A sample has a fixed size. Every draw is a hash of node id, seed and number of the draw. Sources: Hamilton
et al. 2017, section 3.1 (samples of fixed size, a fresh one for each layer); Andersen, Chung and Lang
2006 (pushes); Ying et al. 2018, section 3.3 (items ranked 2,000 to 5,000 as hard negatives).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from recbench_spark.core.compiling import compile_kernel, readonly
from recbench_spark.core.hashing import Hashes, stream
from recbench_spark.errors import ConfigError
from recbench_spark.graphs.kernels.csr import Csr, count_offsets, pick_edges
from recbench_spark.graphs.kernels.walks import draw, to_share

Nodes = npt.NDArray[np.int64]


def sample_neighbours(csr: Csr, hash_r: Hashes, size: int, seed: int) -> Csr:
    """Sample `size` neighbours of each node.

    Sampled edges are different; a node with fewer edges draws with replacement, and one without edges gets
    none. Another layer or epoch takes another seed.

    Args:
        csr: edges into the nodes.
        hash_r: (r,) their ids, hashed.
        size: neighbours for each node.
        seed: seed for the draws.

    Raises:
        ConfigError: size is below 1.
    """
    if size < 1:
        raise ConfigError(f"a sample of {size} neighbours", "give at least 1")
    has_neighbours = np.diff(csr.indptr) > 0
    indptr = count_offsets(np.where(has_neighbours, size, 0))
    edge = np.empty(indptr[-1], np.int64)
    _sample_neighbours(readonly(csr.indptr), readonly(hash_r), size, np.uint64(seed), edge)
    return pick_edges(csr, indptr, edge)


@compile_kernel
def _sample_neighbours(indptr: Any, hash_r: Any, size: int, seed: np.uint64, edge: Any) -> None:
    at = 0
    for r in range(len(hash_r)):
        begin, degree = indptr[r], indptr[r + 1] - indptr[r]
        if degree == 0:
            continue
        base = stream(seed, hash_r[r])
        if degree < size:
            for i in range(size):
                edge[at + i] = begin + np.int64(to_share(draw(base, 0, i, 0)) * degree)
        else:
            _sample_distinct(base, begin, degree, edge[at : at + size])
        edge[at : at + size].sort()
        at += size


@compile_kernel
def _sample_distinct(base: np.uint64, begin: int, degree: int, edge: Any) -> None:
    """Draw different edges, all sets with the same probability.

    The method is Floyd's (Bentley and Floyd 1987).
    """
    size = len(edge)
    for i in range(size):
        last = degree - size + i
        chosen = begin + np.int64(to_share(draw(base, 0, i, 0)) * (last + 1))
        for k in range(i):
            if edge[k] == chosen:
                chosen = begin + np.int64(last)
        edge[i] = chosen


def draw_nodes(hash_r: Hashes, share: float, seed: int) -> npt.NDArray[np.bool_]:
    """Draw nodes by hash, each with the same probability.

    Args:
        hash_r: (r,) their ids, hashed.
        share: the probability, from 0 to 1.
        seed: seed for the draws; each minibatch has its own.

    Returns:
        (r,) flags.
    """
    out = np.empty(len(hash_r), np.bool_)
    _draw_nodes(readonly(hash_r), share, np.uint64(seed), out)
    return out


@compile_kernel
def _draw_nodes(hash_r: Any, share: float, seed: np.uint64, out: Any) -> None:
    for r in range(len(hash_r)):
        out[r] = to_share(draw(stream(seed, hash_r[r]), 0, 0, 1)) < share


# --------------------------------------------------------------------------- personalised PageRank


WAITS, REACHED, TOUCHED = np.uint8(1), np.uint8(2), np.uint8(4)
"""Flags of a node while mass is pushed."""


class Band(NamedTuple):
    """Nodes in a band of PageRank ranks, for each query.

    The PageRank is personalised: it starts at the query.

    Attributes:
        indptr: (q + 1,) place where each query's nodes begin.
        node: (e,) dense ids by rank.
        fallback: (q,) true where too few nodes were reached, and the band is a share of these.
    """

    indptr: Nodes
    node: npt.NDArray[np.uint32]
    fallback: npt.NDArray[np.bool_]


def rank_bands(
    adjacency: tuple[Nodes, Any],
    query_q: Nodes,
    side: tuple[int, int],
    ranks: tuple[int, int],
    restart: float = 0.5,
    *,
    least: float = 1e-6,
) -> Band:
    """Return a side's nodes with PageRank ranks low to high.

    Each query has a band.

    Ranks count from 1, `high` is not included, and the query itself has no rank. Where fewer than `high`
    nodes are reached, the band is low / high to 1 of the reached ones: at least the last.

    Args:
        adjacency: indptr and src.
        query_q: (q,) dense ids.
        side: first dense id, and the one after the last, of nodes to rank.
        ranks: low and high.
        restart: probability to end at each step, alpha.
        least: epsilon; at the end, every node may still hold unspread mass, at most `least` for each unit
            of degree. A node without edges gives its mass back to the query.

    Raises:
        ConfigError: the ranks are no band.
    """
    low, high = ranks
    if not 1 <= low < high:
        raise ConfigError(f"ranks {low} to {high} are not a band", "e.g. 2000 to 5000")
    indptr, src = (readonly(np.asarray(array)) for array in adjacency)
    mass, rest, flag = (np.zeros(len(indptr) - 1, kind) for kind in (np.float64, np.float64, np.uint8))
    bands, fallback = [], np.zeros(len(query_q), np.bool_)
    for q, start in enumerate(query_q):
        reached = _push(indptr, src, int(start), restart, least, mass, rest, flag)
        ranked = reached[(reached >= side[0]) & (reached < side[1]) & (reached != start)]
        ranked = ranked[np.lexsort((ranked, -mass[ranked]))]
        mass[reached] = 0.0
        fallback[q] = len(ranked) < high - 1
        begin = min(len(ranked) * low // high, max(len(ranked) - 1, 0)) if fallback[q] else low - 1
        bands.append(ranked[begin : high - 1].astype(np.uint32))
    sizes = np.array([len(nodes) for nodes in bands])
    return Band(count_offsets(sizes), np.concatenate([*bands, np.empty(0, np.uint32)]), fallback)


@compile_kernel
def _push(
    indptr: Any, src: Any, start: int, restart: float, least: float, mass: Any, rest: Any, flag: Any
) -> Any:
    """Spread mass until every node holds too little.

    "Too little" is at most `least` for each unit of degree.

    Returns:
        The nodes that kept some, in order.
    """
    queue, touched = [np.int64(start)], [np.int64(start)]
    rest[start] = 1.0
    flag[start] = WAITS | TOUCHED
    at = 0
    while at < len(queue):
        v = queue[at]
        at += 1
        begin, end = indptr[v], indptr[v + 1]
        amount = rest[v]
        rest[v] = 0.0
        mass[v] += restart * amount
        flag[v] = REACHED | TOUCHED
        each = (1 - restart) * amount / max(end - begin, 1)
        for e in range(begin, max(end, begin + 1)):
            u = np.int64(src[e]) if end > begin else np.int64(start)
            rest[u] += each
            if not flag[u] & TOUCHED:
                touched.append(u)
                flag[u] |= TOUCHED
            if rest[u] > least * max(indptr[u + 1] - indptr[u], 1) and not flag[u] & WAITS:
                queue.append(u)
                flag[u] |= WAITS
        if at > 1 << 16:
            queue = queue[at:]
            at = 0
    reached = np.array([u for u in touched if flag[u] & REACHED])
    for u in touched:
        rest[u] = 0.0
        flag[u] = 0
    reached.sort()
    return reached
