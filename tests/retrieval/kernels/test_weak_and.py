"""Weak-AND: counting and pivots find the set of a plain loop; collisions follow their formulas."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from recbench_spark.errors import ConfigError
from recbench_spark.retrieval.kernels.projections import (
    choose_longest,
    make_projections,
    make_tokens,
)
from recbench_spark.retrieval.kernels.weak_and import (
    Matches,
    make_postings,
    make_threshold,
    match_by_counting,
    match_by_pivots,
    merge_always,
)


def list_candidates(matches: Matches) -> list[list[int]]:
    bounds = matches.offsets_u
    return [matches.items_c[a:b].tolist() for a, b in pairwise(bounds)]


@st.composite
def worlds(draw):
    """Tokens from a small alphabet, so that buckets are uneven; weights with sums that rounding touches."""
    seed = draw(st.integers(0, 2**31))
    rng = np.random.default_rng(seed)
    items, users, bands = draw(st.integers(1, 60)), draw(st.integers(1, 8)), draw(st.integers(1, 9))
    alphabet = draw(st.integers(1, 6))
    weights = rng.choice([0.1, 0.2, 0.3, 1.0], bands) if draw(st.booleans()) else np.ones(bands)
    theta = float(rng.uniform(0.05, 1.0) * weights.sum())
    if draw(st.booleans()):
        theta = float(sum(weights[: rng.integers(1, bands + 1)]))
    theta = min(theta, float(weights.sum()))
    always = rng.random(items) < draw(st.sampled_from([0.0, 0.2, 1.0]))
    return (
        rng.integers(0, alphabet, (items, bands)),
        rng.integers(0, alphabet + 1, (users, bands)),
        weights,
        theta,
        always,
    )


@pytest.mark.full
@given(worlds())
def test_both_ways_find_the_set_of_a_plain_loop(world) -> None:
    items, users, weights, theta, always = world
    wanted = []
    for query in users:
        row = []
        for i, tokens in enumerate(items):
            score = 0.0
            for weight, same in zip(weights, tokens == query, strict=True):
                score += weight * same
            if always[i] or score >= theta:
                row.append(i)
        wanted.append(row)
    postings = make_postings(items, always, largest_bucket=10**6)
    threshold = make_threshold(theta, len(weights), weights)
    for match in (match_by_counting, match_by_pivots):
        assert list_candidates(match(users, postings, threshold, len(items))) == wanted


def test_large_buckets_are_cut_and_counted() -> None:
    tokens = np.array([[7, 1], [7, 2], [7, 1], [7, 1]])
    postings = make_postings(tokens, np.zeros(4, bool), largest_bucket=2)
    assert postings.cut == 2 + 1
    threshold = make_threshold(1.0, 2)
    for match in (match_by_counting, match_by_pivots):
        assert list_candidates(match(np.array([[7, 1], [7, 9], [9, 2]]), postings, threshold, 4)) == [
            [0, 1, 2],
            [0, 1],
            [1],
        ]


@pytest.mark.parametrize(
    ("theta", "weights", "message"),
    [
        (0.0, None, "theta 0"),
        (3.5, None, "theta 3.5 for bands of 3"),
        (1.0, np.array([1.0, 0.0, 1.0]), "positive weight"),
        (1.0, np.ones(2), "2 weights for 3 bands"),
    ],
)
def test_thresholds_that_cannot_be(theta, weights, message) -> None:
    with pytest.raises(ConfigError) as caught:
        make_threshold(theta, 3, weights)
    assert message in f"{caught.value} {caught.value.hint}"


@pytest.mark.parametrize(
    ("bands", "bits", "message"), [(1, 64, "64 bits"), (1, 0, "0 bits"), (0, 8, "0 bands")]
)
def test_bits_and_bands_that_cannot_be(bands, bits, message) -> None:
    with pytest.raises(ConfigError, match=message):
        make_projections(4, bands=bands, bits=bits, seed=1)


# -------------------------------------------------------------------------------------------- tokens


def test_tokens_are_the_signs_of_exact_products() -> None:
    """Also for vectors that are nearly orthogonal to a direction, and for any cut of the rows."""
    projections = make_projections(16, bands=3, bits=20, seed=5)
    rng = np.random.default_rng(1)
    vectors = rng.normal(size=(200, 16)).astype(np.float32)
    across = projections.directions_jd[:40].astype(np.float64)
    vectors[:40] -= (across * ((vectors[:40] * across).sum(1) / (across**2).sum(1))[:, None]).astype(
        np.float32
    )
    vectors[40] = 0.0
    tokens = make_tokens(vectors, projections)
    for n in range(len(vectors)):
        for b in range(3):
            bits = ""
            for j in range(20 * b, 20 * b + 20):
                total = 0.0
                for v, p in zip(vectors[n].tolist(), projections.directions_jd[j].tolist(), strict=True):
                    total += v * p
                bits += "1" if total >= 0.0 else "0"
            assert tokens[n, b] == int(bits, 2)
    for size in (1, 7, 200):
        pieces = [make_tokens(vectors[s : s + size], projections) for s in range(0, 200, size)]
        np.testing.assert_array_equal(np.concatenate(pieces), tokens)


def collision_probability(cosine: float, bits: int) -> float:
    """The probability of an equal token at this cosine."""
    return float((1.0 - np.arccos(cosine) / np.pi) ** bits)


def candidate_probability(cosine: float, *, bits: int, bands: int, least: int) -> float:
    """The probability that two vectors share tokens in at least `least` bands."""
    return float(stats.binom.sf(least - 1, bands, collision_probability(cosine, bits)))


def test_collisions_and_candidates_follow_the_binomial() -> None:
    """One pair a draw, since pairs of one draw are not independent: 200 draws, three sigma."""
    draws, bits, bands, least = 200, 4, 10, 3
    for cosine in (0.3, 0.8, 0.95):
        pair = np.array([[1.0, 0.0], [cosine, np.sqrt(1 - cosine**2)]], np.float32)
        same = np.empty((draws, bands))
        for seed in range(draws):
            tokens = make_tokens(pair, make_projections(2, bands=bands, bits=bits, seed=seed))
            same[seed] = tokens[0] == tokens[1]
        p = collision_probability(cosine, bits)
        assert p == pytest.approx((1 - np.arccos(cosine) / np.pi) ** bits)
        assert abs(same.mean() - p) < 3 * np.sqrt(p * (1 - p) / same.size)
        q = candidate_probability(cosine, bits=bits, bands=bands, least=least)
        assert q == pytest.approx(sum(stats.binom.pmf(j, bands, p) for j in range(least, bands + 1)))
        assert abs((same.sum(1) >= least).mean() - q) < 3 * np.sqrt(q * (1 - q) / draws)


def test_probabilities_of_a_band_by_hand() -> None:
    """A right angle agrees in one bit of two: (1/2)^3; at least one of two bands: 1 - (7/8)^2 = 15/64."""
    assert collision_probability(0.0, 3) == pytest.approx(1 / 8)
    assert candidate_probability(0.0, bits=3, bands=2, least=1) == pytest.approx(15 / 64)


def test_the_longest_items_are_always_candidates() -> None:
    np.testing.assert_array_equal(choose_longest(np.array([1.0, 3.0, 3.0, 2.0]), 0.25), [0, 1, 0, 0])
    np.testing.assert_array_equal(choose_longest(np.array([1.0, 3.0, 3.0, 2.0]), 0.75), [0, 1, 1, 1])


@given(st.lists(st.integers(0, 40), unique=True), st.integers(0, 40))
def test_items_that_are_always_candidates_are_merged_in_order(items: list[int], always: int) -> None:
    first, others = sorted(items[:always]), items[always:]
    items_c = np.array([0] * len(first) + others, np.int32)
    merge_always(items_c, np.array(first, np.int32))
    assert items_c.tolist() == sorted(items)
