"""Take random walks with restart, and find most visited nodes.

A walk goes in hops. A hop follows one edge in a graph with one side, or two edges in a bipartite one (to
the other side and back). Each edge is drawn evenly from the edges into the walk's current node: against
the messages, towards the nodes that can send to it. Before each hop but the first, the walk is back at
its start with probability `restart`. After each hop a visit is counted, but never for the start itself.
With P one hop and e the start, hop t ends at p_t = (restart e + (1 - restart) p_(t-1)) P, p_1 = e P. A
walk whose node has no edges visits nothing in this hop and begins the next one at its start.

Every draw is a hash of the start's id, walk, hop, edge in the hop and seed. No block, batch or retry
changes it, and adding walks or hops keeps the earlier draws. Sources: Eksombatchai et al. 2018 (visit
counts, restarts); Ying et al. 2018, section 3.2 (the T most visited as neighbourhood).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from recbench_spark.core.compiling import compile_kernel, readonly
from recbench_spark.core.hashing import GAMMA, Hashes, mix, stream
from recbench_spark.errors import ConfigError

Nodes = npt.NDArray[np.uint32]
Counts = npt.NDArray[np.uint32]

NOWHERE = np.uint32(2**32 - 1)
"""Value in place of a visit: at the start, or without edges."""

MOST_HOPS = 1 << 14
DRAWS_A_HOP = 4
"""Draw numbers for one hop: restart, two edges, one spare."""


@dataclass(frozen=True)
class Walks:
    """The settings of random walks.

    Attributes:
        walks: walks from each node.
        hops: hops in each walk.
        restart: probability to be back at the start before a hop.
        edges: edges in a hop: 1, or 2 in a bipartite graph.
        top: neighbours to return, T.
        seed: seed for all draws.
    """

    walks: int = 200
    hops: int = 5
    restart: float = 0.5
    edges: int = 1
    top: int = 50
    seed: int = 0

    def __post_init__(self) -> None:
        """Raise ConfigError for numbers out of range."""
        for name, most in {"walks": 1 << 24, "hops": MOST_HOPS, "edges": 2, "top": 1 << 16}.items():
            if not 1 <= getattr(self, name) <= most:
                raise ConfigError(f"{name}: {getattr(self, name)} lies outside 1 to {most}")
        if not 0 <= self.restart < 1:
            raise ConfigError(f"restart: {self.restart} is not a probability below 1", "e.g. 0.5")

    @property
    def visits(self) -> int:
        """Most visits a node's walks can make."""
        return self.walks * self.hops

    @property
    def steps(self) -> int:
        """Most edges a node's walks can follow."""
        return self.visits * self.edges


class MostVisited(NamedTuple):
    """The most visited nodes for each start.

    Attributes:
        indptr: (r + 1,) place where each start's neighbours begin.
        node: (e,) by falling count, then by dense id.
        visits: (e,) visits of each.
        distinct: (r,) number of different nodes visited.
    """

    indptr: npt.NDArray[np.int64]
    node: Nodes
    visits: Counts
    distinct: npt.NDArray[np.int64]


def find_neighbourhoods(
    indptr: npt.NDArray[np.int64], src: Nodes, hash_r: Hashes, first: int, what: Walks
) -> MostVisited:
    """Find the most visited nodes for consecutive starts.

    The walks see the whole adjacency.

    Args:
        indptr: (nodes + 1,) place where each node's edges begin.
        src: (edges,) dense ids.
        hash_r: (r,) the starts' ids, hashed.
        first: the first start's dense id.
        what: how to walk.
    """
    lists = _allocate_lists(len(hash_r), what.top)
    shape = (what.walks, what.hops, what.edges, what.top)
    _find_all(
        readonly(indptr), readonly(src), readonly(hash_r), first, shape, what.restart,
        np.uint64(what.seed), lists,
    )  # fmt: skip
    return _pack_lists(*lists)


def _allocate_lists(rows: int, top: int) -> tuple[Nodes, Counts, Any, Any]:
    """Allocate nodes, visits, numbers of neighbours and of nodes for some starts."""
    counts = (np.empty(rows, np.int64), np.empty(rows, np.int64))
    return np.empty(rows * top, np.uint32), np.empty(rows * top, np.uint32), *counts


def _pack_lists(node: Nodes, count: Counts, sizes: Any, distinct: Any) -> MostVisited:
    """Remove each start's unused places."""
    indptr = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    used = np.arange(len(node) // max(len(sizes), 1))[None, :] < sizes[:, None]
    return MostVisited(indptr, node.reshape(used.shape)[used], count.reshape(used.shape)[used], distinct)


def find_most_visited(visit_rv: Nodes, top: int) -> MostVisited:
    """Find the most visited nodes in lists of visits.

    Args:
        visit_rv: (r, visits) dense ids, NOWHERE where there is none.
        top: neighbours to return.
    """
    lists = _allocate_lists(len(visit_rv), top)
    _count_all(readonly(visit_rv), top, lists)
    return _pack_lists(*lists)


def visit_shares(most: MostVisited) -> npt.NDArray[np.float32]:
    """Divide counts by their sum for each start, (e,).

    The shares sum to 1 (L1).
    """
    sums = np.add.reduceat(np.append(most.visits, 0).astype(np.int64), most.indptr[:-1])
    sizes = np.diff(most.indptr)
    return np.asarray(most.visits / np.repeat(sums, sizes), np.float32)


def list_visits(indptr: Any, src: Nodes, hash_r: Hashes, first: int, what: Walks) -> Nodes:
    """List the nodes where hops end, (r, walks, hops).

    NOWHERE stands for the start and for a hop without edges.
    """
    out = np.empty((len(hash_r), what.walks, what.hops), np.uint32)
    shape = (what.walks, what.hops, what.edges)
    _list_visits(readonly(indptr), readonly(src), readonly(hash_r), first, shape, what.restart,
            np.uint64(what.seed), out)  # fmt: skip
    return out


# ------------------------------------------------------------------------------------------ draws


@compile_kernel
def draw(base: np.uint64, walk: int, hop: int, part: int) -> np.uint64:
    """Draw 64 bits for a walk's hop.

    Part 0 decides on a restart; parts 1 and 2 choose edges.
    """
    number = (np.uint64(walk) * np.uint64(MOST_HOPS) + np.uint64(hop)) * np.uint64(DRAWS_A_HOP)
    return mix(base + (number + np.uint64(part) + np.uint64(1)) * GAMMA)


@compile_kernel
def to_share(number: np.uint64) -> float:
    """Convert a draw to [0, 1), with 53 bits."""
    return (number >> np.uint64(11)) * 2.0**-53


# ------------------------------------------------------------------------------------------ walks


@compile_kernel
def _take_hop(
    indptr: Any, src: Any, base: np.uint64, start: int, hop: int, how: Any, at: Any, edge: Any
) -> None:
    """Take all walks from a start one hop on.

    `at` is -1 for a walk that had no edge. Walks go side by side, so the machine waits for many memory
    places at once.
    """
    edges, restart = how
    for w in range(len(at)):
        if at[w] < 0 or (hop > 0 and to_share(draw(base, w, hop, 0)) < restart):
            at[w] = start
    for part in range(1, edges + 1):
        for w in range(len(at)):
            edge[w] = -1
            if at[w] >= 0:
                begin, end = indptr[at[w]], indptr[at[w] + 1]
                if end > begin:
                    edge[w] = begin + np.int64(to_share(draw(base, w, hop, part)) * (end - begin))
        for w in range(len(at)):
            at[w] = np.int64(src[edge[w]]) if edge[w] >= 0 else -1


@compile_kernel
def _find_all(
    indptr: Any, src: Any, hash_r: Any, first: int, shape: Any, restart: float, seed: np.uint64, out: Any
) -> None:
    walks, hops, edges, top = shape
    node, count, sizes, distinct = out
    at, edge = np.empty(walks, np.int64), np.empty(walks, np.int64)
    table = _make_table(walks * hops)
    for r in range(len(hash_r)):
        base, start = stream(seed, hash_r[r]), first + r
        at[:] = start
        used = 0
        for hop in range(hops):
            _take_hop(indptr, src, base, start, hop, (edges, restart), at, edge)
            for w in range(walks):
                if at[w] >= 0 and at[w] != start:
                    used = _add_visit(table, np.uint32(at[w]), used)
        distinct[r] = used
        sizes[r] = _take_top(
            table, used, top, node[r * top : (r + 1) * top], count[r * top : (r + 1) * top]
        )


@compile_kernel
def _list_visits(
    indptr: Any, src: Any, hash_r: Any, first: int, shape: Any, restart: float, seed: np.uint64, out: Any
) -> None:
    walks, hops, edges = shape
    at, edge = np.empty(walks, np.int64), np.empty(walks, np.int64)
    for r in range(len(hash_r)):
        at[:] = first + r
        for hop in range(hops):
            base = stream(seed, hash_r[r])
            _take_hop(indptr, src, base, first + r, hop, (edges, restart), at, edge)
            for w in range(walks):
                out[r, w, hop] = at[w] if at[w] >= 0 and at[w] != first + r else NOWHERE


# ------------------------------------------------------------------------------ walks that travel


def walker_type(hops: int) -> npt.DTypeLike:
    """Return the record type of a walker sent between tasks.

    The record holds the walker's node and the ends of its hops.
    """
    words = [(name, "<u4") for name in ("start", "walk", "at", "degree", "start_degree")]
    return np.dtype([*words, ("path", "<u4", (hops,))])


def make_walkers(start_r: Any, degree_r: Any, what: Walks) -> Any:
    """Make (r walks,) walkers at consecutive starts."""
    group = np.zeros(len(start_r) * what.walks, walker_type(what.hops))
    for name in ("start", "at"):
        group[name] = np.repeat(start_r, what.walks)
    for name in ("degree", "start_degree"):
        group[name] = np.repeat(degree_r, what.walks)
    group["walk"] = np.tile(np.arange(what.walks, dtype=np.uint32), len(start_r))
    return group


def begin_hop(group: Any, hash_w: Hashes, hop: int, what: Walks) -> None:
    """Put walkers back at their starts, in place.

    These walkers restart by chance, or because they had no edge.
    """
    back = group["at"] == NOWHERE
    if hop:
        back |= _draw_restarts(readonly(hash_w), readonly(group["walk"].copy()), hop, what.restart,
                          np.uint64(what.seed))  # fmt: skip
    group["at"] = np.where(back, group["start"], group["at"])
    group["degree"] = np.where(back, group["start_degree"], group["degree"])


def draw_positions(group: Any, hash_w: Hashes, hop: int, part: int, what: Walks) -> Hashes:
    """Draw node and edge place for each walker, (w,).

    Node and place are packed into one number.
    """
    walk_w, at_w, degree_w = (readonly(group[name].copy()) for name in ("walk", "at", "degree"))
    seed = np.uint64(what.seed)
    return np.asarray(_draw_positions(readonly(hash_w), walk_w, at_w, degree_w, hop, part, seed))


def move_walkers(group: Any, node_w: Any, degree_w: Any, hop: int, last: bool) -> None:
    """Move walkers to the sources of their edges, in place.

    The last edge in a hop makes a visit.

    Args:
        group: walkers.
        node_w: (w,) dense ids; NOWHERE without an edge.
        degree_w: (w,) edges into these.
        hop: the hop's number.
        last: true if the hop ends here.
    """
    group["at"], group["degree"] = node_w, degree_w
    if last:
        group["path"][:, hop] = np.where(node_w == group["start"], NOWHERE, node_w)


@compile_kernel
def _draw_restarts(hash_w: Any, walk_w: Any, hop: int, restart: float, seed: np.uint64) -> Any:
    restarts = np.empty(len(walk_w), np.bool_)
    for w in range(len(walk_w)):
        restarts[w] = to_share(draw(stream(seed, hash_w[w]), walk_w[w], hop, 0)) < restart
    return restarts


@compile_kernel
def _draw_positions(
    hash_w: Any, walk_w: Any, at_w: Any, degree_w: Any, hop: int, part: int, seed: np.uint64
) -> Any:
    position_w = np.empty(len(walk_w), np.uint64)
    for w in range(len(walk_w)):
        share = to_share(draw(stream(seed, hash_w[w]), walk_w[w], hop, part))
        place = np.uint64(np.int64(share * degree_w[w]))
        position_w[w] = (np.uint64(at_w[w]) << np.uint64(32)) | place
    return position_w


@compile_kernel
def assign_files(position_w: Any, files: int) -> Any:
    """Assign each position to a file by its hash, (w,).

    So a hub's edges spread over all files.
    """
    file_w = np.empty(len(position_w), np.int32)
    for w in range(len(position_w)):
        file_w[w] = ((mix(position_w[w] + GAMMA) >> np.uint64(32)) * np.uint64(files)) >> np.uint64(32)
    return file_w


# --------------------------------------------------------------------------------------- counting


@compile_kernel
def _make_table(most: int) -> Any:
    """Make a hash table for `most` nodes.

    The arrays are keys, counts, used places and room to sort.
    """
    size = 16
    while size < 2 * most:
        size *= 2
    keys = np.full(size, NOWHERE, np.uint32)
    return keys, np.zeros(size, np.uint32), np.empty(most, np.int64), np.empty(most, np.uint64)


@compile_kernel
def _add_visit(table: Any, node: np.uint32, used: int) -> int:
    """Add one visit, and return the number of different nodes."""
    keys, counts, places, _ = table
    mask = np.uint32(len(keys) - 1)
    place = (node * np.uint32(0x9E3779B1)) >> np.uint32(7) & mask
    while keys[place] != node and keys[place] != NOWHERE:
        place = (place + np.uint32(1)) & mask
    if keys[place] == NOWHERE:
        keys[place] = node
        places[used] = place
        used += 1
    counts[place] += np.uint32(1)
    return used


@compile_kernel
def _take_top(table: Any, used: int, top: int, node: Any, count: Any) -> int:
    """Take the table's top nodes, and empty it.

    Nodes come by falling count, then by rising id; at most `top`.
    """
    keys, counts, places, order = table
    for i in range(used):
        place = places[i]
        order[i] = (np.uint64(counts[place]) << np.uint64(32)) | np.uint64(NOWHERE - keys[place])
        keys[place] = NOWHERE
        counts[place] = np.uint32(0)
    ordered = order[:used]
    if used > 4 * top:
        ordered = _select_largest(ordered, top)
    ordered = np.sort(ordered)
    size = min(len(ordered), top)
    for i in range(size):
        packed = ordered[len(ordered) - 1 - i]
        node[i] = NOWHERE - np.uint32(packed & np.uint64(0xFFFFFFFF))
        count[i] = np.uint32(packed >> np.uint64(32))
    return size


@compile_kernel
def _select_largest(order: Any, top: int) -> Any:
    """Return the `top` largest by a threshold.

    The result has at most 2 `top` numbers; more than four times `top` are given. Packed numbers differ,
    so some threshold has `top` to 2 `top` of them above it. Bisection finds it.
    """
    low, high = np.uint64(0), np.uint64(order.max())
    for _ in range(64):
        middle = low + (high - low) // np.uint64(2)
        above = 0
        for i in range(len(order)):
            above += order[i] > middle
        if above > 2 * top:
            low = middle + np.uint64(1)
        elif above < top:
            high = middle
        else:
            low = middle
            break
    return order[order > low]


@compile_kernel
def _count_all(visit_rv: Any, top: int, out: Any) -> None:
    node, count, sizes, distinct = out
    table = _make_table(visit_rv.shape[1])
    for r in range(len(visit_rv)):
        used = 0
        for v in range(visit_rv.shape[1]):
            if visit_rv[r, v] != NOWHERE:
                used = _add_visit(table, visit_rv[r, v], used)
        distinct[r] = used
        sizes[r] = _take_top(
            table, used, top, node[r * top : (r + 1) * top], count[r * top : (r + 1) * top]
        )
