"""Lists of candidates and their recall, by hand and against a plain loop."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recbench_spark.ranking.kernels.products import exact_scores, make_pairing, make_products
from recbench_spark.retrieval.kernels.candidates import ItemSets, measure_recall, rank_candidates


def make_sets(rows: list[list[int]]) -> ItemSets:
    offsets = np.cumsum([0] + [len(row) for row in rows])
    return ItemSets(offsets, np.array([i for row in rows for i in sorted(row)], np.int32))


@pytest.mark.full
@given(st.integers(0, 2**31), st.sampled_from(["dot", "cosine"]), st.booleans(), st.integers(1, 12))
def test_lists_are_those_of_a_plain_sort(seed, kind, with_bias, top_k) -> None:
    """Small whole numbers tie often; large common parts leave float32 without a difference."""
    rng = np.random.default_rng(seed)
    users, items, dims = 4, 60, 5
    vectors = rng.integers(-2, 3, (items, dims)).astype(np.float32)
    scale = rng.choice([1.0, 1e-25, 1e25])  # of raw vectors; a cosine divides by it
    if rng.random() < 0.5:
        vectors = (1e4 + rng.normal(size=(items, dims)) * 1e-3).astype(np.float32)
    queries = rng.integers(-2, 3, (users, dims)).astype(np.float32)
    products = make_products(
        vectors, rng.integers(-1, 2, items).astype(float) if with_bias else None, kind=kind
    )
    if kind == "cosine":
        products = make_products(
            vectors * np.float32(scale), products.bias_i if with_bias else None, kind=kind
        )
    pairing = make_pairing(products, queries)
    rows = [np.flatnonzero(rng.random(items) < 0.7).tolist() for _ in range(users)]
    hidden = [np.flatnonzero(rng.random(items) < 0.2).tolist() for _ in range(users)]
    lists = rank_candidates(pairing, make_sets(rows), make_sets(hidden), top_k)
    for u in range(users):
        left = np.array(sorted(set(rows[u]) - set(hidden[u])), np.int64)
        scores = exact_scores(pairing, np.full(len(left), u), left)
        wanted = sorted(zip(-scores, left, strict=True))[:top_k]
        size = len(wanted)
        assert lists.items_uk[u, :size].tolist() == [i for _, i in wanted]
        assert lists.scores_uk[u, :size].tolist() == [-s for s, _ in wanted]
        assert (lists.items_uk[u, size:] == -1).all() and np.isnan(lists.scores_uk[u, size:]).all()


def test_recall_by_hand() -> None:
    """Ties with the last place count; a short catalogue divides by its candidates."""
    exact = np.array([[3.0, 2.0, 2.0], [5.0, 4.0, np.nan], [np.nan] * 3])
    lists = np.array([[2.0, 2.0, 1.0], [4.0, np.nan, np.nan], [np.nan] * 3])
    np.testing.assert_array_equal(measure_recall(lists, exact, 3), [2 / 3, 1 / 2, np.nan])
    np.testing.assert_array_equal(measure_recall(lists, exact, 2), [2 / 2, 1 / 2, np.nan])
    np.testing.assert_array_equal(measure_recall(lists, exact, 1), [0.0, 0.0, np.nan])


@given(st.integers(0, 2**31), st.integers(1, 6))
def test_recall_equals_a_slow_oracle(seed, top_k) -> None:
    """Items with scores from a few values, drawn lists of distinct items."""
    rng = np.random.default_rng(seed)
    score_i = rng.integers(0, 4, 8).astype(float)
    exact = np.sort(score_i)[::-1][None]
    chosen = rng.permutation(8)[: rng.integers(0, 7)]
    row = np.full((1, 8), np.nan)
    row[0, : len(chosen)] = np.sort(score_i[chosen])[::-1]
    least = sorted(score_i, reverse=True)[top_k - 1]
    best = sorted(chosen, key=lambda i: -score_i[i])[:top_k]
    wanted = sum(score_i[i] >= least for i in best) / top_k
    assert measure_recall(row, exact, top_k)[0] == pytest.approx(wanted)
