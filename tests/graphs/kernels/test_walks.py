"""Walks with restart against exact probabilities; counts, samples, personalised PageRank."""

from __future__ import annotations

from fractions import Fraction
from math import comb
from typing import Any

import networkx as nx
import numpy as np
import pytest
from scipy import stats

from recbench_spark.core.compiling import readonly
from recbench_spark.errors import ConfigError
from recbench_spark.graphs.kernels import samples, walks
from recbench_spark.graphs.kernels.csr import Csr
from recbench_spark.graphs.kernels.ids import hash_numbers
from recbench_spark.graphs.kernels.walks import NOWHERE, Walks
from tests.graphs.oracle import build_csr

SEEDS = 200


def a_graph(n: int, edges: int, seed: int = 0) -> Csr:
    """Hubs, duplicate edges, a loop, nodes without edges; both ways."""
    draw = np.random.default_rng(seed)
    ends = (n * draw.random((edges, 2)) ** 2 * 0.9).astype(int).tolist()
    return build_csr(n, [*map(tuple, ends), *((b, a) for a, b in ends if a != b), (3, 3)])


def two_sides(left: int, right: int, edges: int) -> Csr:
    draw = np.random.default_rng(1)
    ends = np.stack([draw.integers(0, left, edges), left + draw.integers(0, right, edges)], 1).tolist()
    return build_csr(left + right, [*map(tuple, ends), *((b, a) for a, b in ends)])


def hop_matrix(csr: Csr, edges: int) -> np.ndarray:
    """(n, n) probabilities of one hop, exact to float64; a walk without an edge is lost."""
    n = len(csr.indptr) - 1
    one = np.zeros((n, n))
    for v in range(n):
        row = csr.src[csr.indptr[v] : csr.indptr[v + 1]]
        np.add.at(one[v], row, 1 / max(len(row), 1))
    return one if edges == 1 else one @ one


def laws(matrix: np.ndarray, start: int, hops: int, restart: float) -> list[np.ndarray]:
    """Return the end of each hop by the equation of `walks`; a lost walker starts again."""
    e = np.eye(len(matrix))[start]
    result = [e @ matrix]
    while len(result) < hops:
        p, lost = result[-1], 1 - result[-1].sum()
        result.append((restart * p.sum() * e + lost * e + (1 - restart) * p) @ matrix)
    return result


def law(csr: Csr, start: int, hop: int, restart: float, edges: int) -> np.ndarray:
    return laws(hop_matrix(csr, edges), start, hop + 1, restart)[hop]


def hashes(n: int) -> np.ndarray:
    return hash_numbers(np.arange(n), 0)


def list_ends(csr: Csr, start: int, what: Walks) -> np.ndarray:
    """(walks, hops) ends of one start's hops."""
    return walks.list_visits(
        csr.indptr, csr.src, hashes(len(csr.indptr) - 1)[start : start + 1], start, what
    )[0]


def p_value(ends: np.ndarray, start: int, expected: np.ndarray) -> float:
    """Chi-square of one position a walk; rare nodes put together, the start and lost walks as one."""
    n = len(expected)
    seen = np.bincount(np.minimum(ends, n), minlength=n + 1).astype(float)
    want = np.append(expected, 1 - expected.sum()) * len(ends)
    want[n] += want[start]
    want[start] = 0
    order = np.argsort(-want)
    seen, want = seen[order], want[order]
    assert seen[want <= 1e-9].sum() == 0  # nothing that cannot be
    keep = max(2, int(np.count_nonzero(want >= 8)))
    groups = [np.append(x[: keep - 1], x[keep - 1 :].sum()) for x in (seen, want)]
    return float(stats.chisquare(*groups).pvalue)


@pytest.mark.parametrize(
    ("csr", "start", "hop", "edges"),
    [
        (a_graph(400, 3000), 5, 1, 1),  # two hops
        (a_graph(400, 3000), 5, 4, 1),
        (two_sides(150, 250, 2500), 170, 0, 2),
        (two_sides(150, 250, 2500), 170, 2, 2),
    ],
    ids=["two hops", "five hops", "over the other side", "and back thrice"],
)
def test_one_position_a_walk_has_the_exact_law_over_many_seeds(csr, start, hop, edges) -> None:
    expected = law(csr, start, hop, 0.5, edges)
    result = [
        p_value(list_ends(csr, start, Walks(3000, hop + 1, 0.5, edges, seed=s))[:, hop], start, expected)
        for s in range(SEEDS)
    ]
    assert stats.kstest(result, "uniform").pvalue > 0.01


def test_a_walker_that_restarts_too_seldom_is_found_out() -> None:
    csr = a_graph(400, 3000)
    ends = list_ends(csr, 5, Walks(60_000, 5, 0.45))[:, 4]
    assert p_value(ends, 5, law(csr, 5, 4, 0.5, 1)) < 1e-6
    assert p_value(ends, 5, law(csr, 5, 4, 0.45, 1)) > 1e-3


def test_on_five_thousand_nodes_from_a_hub() -> None:
    csr = a_graph(5000, 40_000)
    ends = list_ends(csr, 0, Walks(100_000, 2, 0.5))[:, 1]
    assert p_value(ends, 0, law(csr, 0, 1, 0.5, 1)) > 1e-3


@pytest.mark.full
def test_heavy_nodes_are_recalled() -> None:
    csr, what = a_graph(2000, 8000), Walks(1000, 5, 0.5, top=50)
    recalls, matrix = [], hop_matrix(csr, 1)
    for start in range(40, 60):
        expected = np.sum(laws(matrix, start, 5, 0.5), axis=0)
        expected[start] = 0
        heavy = np.flatnonzero(expected * 1000 > 20)  # 4.5 standard errors above nothing
        most = walks.find_neighbourhoods(csr.indptr, csr.src, hashes(2000)[start : start + 1], start, what)
        recalls.append(np.isin(heavy, most.node).mean() if len(heavy) else 1.0)
    assert np.mean(recalls) > 0.98


def test_the_most_visited_are_those_of_the_visits_counted_one_by_one() -> None:
    csr, what = a_graph(300, 1500), Walks(70, 4, 0.3, top=12, seed=9)
    h = hashes(300)
    made = walks.list_visits(csr.indptr, csr.src, h, 0, what).reshape(300, -1)
    result = walks.find_neighbourhoods(csr.indptr, csr.src, h, 0, what)
    weights = walks.visit_shares(result)
    for v in range(300):
        nodes, counts = np.unique(made[v][made[v] != NOWHERE], return_counts=True)
        order = np.lexsort((nodes, -counts))[:12]
        a, b = result.indptr[v : v + 2]
        assert result.node[a:b].tolist() == nodes[order].tolist() and v not in result.node[a:b]
        assert result.visits[a:b].tolist() == counts[order].tolist()
        assert result.distinct[v] == len(nodes)
        total = int(counts[order].sum())
        assert weights[a:b].tolist() == [np.float32(c / total) for c in counts[order]]
    again = walks.find_most_visited(made, 12)
    assert all(np.array_equal(x, y) for x, y in zip(result, again, strict=True))


def test_a_start_alone_longer_walks_and_more_of_them_keep_their_draws() -> None:
    csr, h = a_graph(300, 1500), hashes(300)
    whole = walks.list_visits(csr.indptr, csr.src, h, 0, Walks(20, 4))
    assert (walks.list_visits(csr.indptr, csr.src, h[90:93], 90, Walks(20, 4)) == whole[90:93]).all()
    assert (walks.list_visits(csr.indptr, csr.src, h, 0, Walks(30, 6))[:, :20, :4] == whole).all()
    assert (walks.list_visits(csr.indptr, csr.src, h, 0, Walks(20, 4, seed=1)) != whole).any()


def test_no_edges_no_visits_and_a_dead_end_begins_again() -> None:
    csr = build_csr(4, [(0, 1), (0, 2), (1, 2)])  # 2 and 3 have no edges; 0 -> 1 -> 2, 0 -> 2
    result = walks.find_neighbourhoods(csr.indptr, csr.src, hashes(4), 0, Walks(500, 3, 0.5))
    assert result.indptr.tolist() == [0, 2, 3, 3, 3]
    assert sorted(result.node[:2].tolist()) == [1, 2] and result.node[2] == 2
    assert walks.visit_shares(result)[2] == 1.0


@pytest.mark.parametrize("wrong", [{"top": 0}, {"walks": 0}, {"hops": 0}, {"restart": 1.0}, {"edges": 3}])
def test_walks_that_mean_nothing_are_refused_by_name(wrong) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Walks(**wrong)


# ------------------------------------------------------------------------------------- samples


def test_samples_are_fair_distinct_where_they_can_be_and_fresh_each_layer() -> None:
    csr = build_csr(3, [(0, s) for s in range(5)] + [(1, 7)])
    sets, seen = np.zeros(2**5), []
    for seed in range(6000):
        result = samples.sample_neighbours(csr, hashes(3), 3, seed)
        assert result.indptr.tolist() == [0, 3, 6, 6]
        assert result.src[3:6].tolist() == [7, 7, 7]
        drawn = result.src[:3].tolist()
        assert len(set(drawn)) == 3
        sets[sum(1 << s for s in drawn)] += 1
        seen.append(tuple(drawn))
    assert np.count_nonzero(sets) == comb(5, 3)
    assert stats.chisquare(sets[sets > 0]).pvalue > 1e-3
    assert len(set(seen[:20])) > 5
    few = [samples.sample_neighbours(csr, hashes(3), 6, seed).src[:6] for seed in range(3000)]
    assert stats.chisquare(np.bincount(np.concatenate(few), minlength=5)).pvalue > 1e-3
    with pytest.raises(ConfigError):
        samples.sample_neighbours(csr, hashes(3), 0, 1)


def push_pagerank(csr: Csr, start: int, restart: float, least: float) -> tuple[Any, Any]:
    """Return the nodes that `rank_bands` reaches from a start, and their values."""
    mass, rest, flag = (np.zeros(len(csr.indptr) - 1, kind) for kind in (np.float64, np.float64, np.uint8))
    indptr, src = readonly(csr.indptr), readonly(csr.src)
    reached = samples._push(indptr, src, start, restart, least, mass, rest, flag)
    return reached, mass[reached]


def test_pushes_give_personalised_pagerank() -> None:
    csr = a_graph(120, 700)
    graph = nx.MultiDiGraph()
    graph.add_nodes_from(range(120))
    for v in range(120):
        graph.add_edges_from((v, int(u)) for u in csr.src[csr.indptr[v] : csr.indptr[v + 1]])
    expected = nx.pagerank(
        graph, alpha=0.75, personalization={7: 1}, dangling={7: 1}, tol=1e-12, max_iter=500
    )
    node, mass = push_pagerank(csr, 7, 0.25, 1e-9)
    full = np.zeros(120)
    full[node] = mass
    assert np.abs(full - [expected[v] for v in range(120)]).max() < 1e-6


def test_pagerank_by_hand() -> None:
    csr = build_csr(2, [(0, 1), (1, 0)])
    node, mass = push_pagerank(csr, 0, 0.5, 1e-12)
    assert node.tolist() == [0, 1]
    assert mass == pytest.approx([float(Fraction(2, 3)), float(Fraction(1, 3))], abs=1e-11)


def test_bands_hold_their_ranks_and_fall_back_where_too_few_are_reached() -> None:
    csr = two_sides(60, 100, 900)
    queries = np.array([61, 100, 159])
    result = samples.rank_bands((csr.indptr, csr.src), queries, (60, 160), (20, 50))
    for q, query in enumerate(queries):
        node, mass = push_pagerank(csr, int(query), 0.5, 1e-6)
        ranked = [
            v for v, _ in sorted(zip(node, mass, strict=True), key=lambda p: (-p[1], p[0]))
            if v >= 60 and v != query
        ]  # fmt: skip
        assert result.node[result.indptr[q] : result.indptr[q + 1]].tolist() == ranked[19:49]
    assert not result.fallback.any()
    far = samples.rank_bands((csr.indptr, csr.src), queries, (60, 160), (2000, 5000))
    assert far.fallback.all() and (np.diff(far.indptr) == 60).sum() >= 0
    reached = 99  # all other nodes of the side
    assert np.diff(far.indptr).tolist() == [reached - reached * 2000 // 5000] * 3
    alone = build_csr(3, [(0, 1), (1, 0)])
    lonely = samples.rank_bands((alone.indptr, alone.src), np.array([2]), (0, 3), (1, 2))
    assert lonely.fallback.all() and lonely.indptr.tolist() == [0, 0]
    with pytest.raises(ConfigError, match="band"):
        samples.rank_bands((alone.indptr, alone.src), np.array([2]), (0, 3), (5, 5))


@pytest.mark.parametrize("back", [[], [0]], ids=["no edge", "one edge"])
def test_a_node_that_holds_more_than_the_least_is_reached(back: list[int]) -> None:
    """Half of the start's mass goes to its one neighbour, which has one edge or none: a unit of degree."""
    adjacency = np.array([0, 1, 1 + len(back)]), np.array([1, *back])
    reached = samples.rank_bands(adjacency, np.array([0]), (0, 2), (1, 2), 0.5, least=0.49)
    assert reached.node.tolist() == [1]
    held = samples.rank_bands(adjacency, np.array([0]), (0, 2), (1, 2), 0.5, least=0.5)
    assert held.node.tolist() == []


@pytest.mark.parametrize("top", [1, 2, 3, 7])
def test_the_largest_are_all_there_and_at_most_as_many_again(top: int) -> None:
    """Numbers close together, so that bisection comes to stand on one of them."""
    draws = np.random.default_rng(top)
    for _ in range(300):
        n = 4 * top + 1 + int(draws.integers(5))
        order = 1 + draws.permutation(2 * n)[:n].astype(np.uint64)
        result = np.sort(walks._select_largest(order, top))
        assert top <= len(result) <= 2 * top
        assert result.tolist() == np.sort(order)[n - len(result) :].tolist()


@pytest.mark.parametrize("edges", [1, 2])
def test_walkers_that_travel_end_where_those_with_the_graph_do(edges: int) -> None:
    """Each drawn (node, place) is looked up, as the join does it."""
    csr, what = a_graph(50, 150), Walks(walks=8, hops=3, restart=0.5, edges=edges, top=5, seed=3)
    degree, n = np.diff(csr.indptr), 50
    keys = np.concatenate([(v << 32) + np.arange(degree[v]) for v in range(n)]).astype(np.uint64)
    group = walks.make_walkers(np.arange(n), degree, what)
    hash_w = np.repeat(hashes(n), what.walks)
    for hop in range(what.hops):
        walks.begin_hop(group, hash_w, hop, what)
        for part in range(1, edges + 1):
            drawn = walks.draw_positions(group, hash_w, hop, part, what)
            at = np.searchsorted(keys, drawn)
            there = (group["at"] != NOWHERE) & (group["degree"] > 0)
            assert (keys[at[there]] == drawn[there]).all()
            ends = np.where(there, csr.src[np.where(there, at, 0)], NOWHERE).astype(np.uint32)
            beyond = np.where(there, degree[np.where(there, ends, 0)], 0)
            walks.move_walkers(group, ends, beyond, hop, part == edges)
    expected = walks.list_visits(csr.indptr, csr.src, hashes(n), 0, what)
    assert group["path"].reshape(n, what.walks, what.hops).tolist() == expected.tolist()
