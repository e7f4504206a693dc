"""Comparisons of models: scipy and statsmodels on the same pairs, hand values, and error rates."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from scipy import stats

from recbench_spark.analyses.comparisons.kernels import significance
from recbench_spark.analyses.comparisons.kernels.significance import (
    pair_sums,
    paired_t,
    sign_sums,
    wilcoxon,
)
from recbench_spark.core.resampling import bootstrap_sums, mean_and_error, moments, replicate_means
from recbench_spark.errors import DataError

P_VALUES = st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=25)


def users(u: int = 500, m: int = 4, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    return np.clip(rng.beta(1, 3, (u, 1)) + rng.normal(size=(u, m)) * 0.1 + 0.01 * np.arange(m), 0, 1)


def test_all_pairs_equal_scipy() -> None:
    values = users()
    pairs = paired_t(pair_sums(values))
    low, high = pairs.interval(0.9)
    for a, b in itertools.permutations(range(4), 2):
        known = stats.ttest_rel(values[:, a], values[:, b])
        assert pairs.t[a, b] == pytest.approx(known.statistic, rel=1e-6)
        assert pairs.p[a, b] == pytest.approx(known.pvalue, rel=1e-5)
        interval = known.confidence_interval(0.9)
        assert (low[a, b], high[a, b]) == pytest.approx((interval.low, interval.high), rel=1e-6)
        difference = values[:, a] - values[:, b]
        assert pairs.effect[a, b] == pytest.approx(difference.mean() / difference.std(ddof=1), rel=1e-6)
    assert np.isnan(np.diagonal(pairs.t)).all() and (np.diagonal(pairs.mean) == 0).all()


def test_pairs_use_the_users_known_to_both() -> None:
    values = users()
    values[::3, 1] = math.nan
    values[1::5, 2] = math.nan
    sums = pair_sums(values)
    pairs = paired_t(sums)
    both = ~np.isnan(values[:, 1] + values[:, 2])
    assert pairs.users[1, 2] == both.sum() < 500
    known = stats.ttest_rel(values[both, 1], values[both, 2])
    assert pairs.t[1, 2] == pytest.approx(known.statistic, rel=1e-6)
    same = significance.same_users(sums)
    assert same[0, 3] and not same[0, 1] and not same[1, 2] and same[1, 1]


@settings(max_examples=50)
@given(st.lists(st.lists(st.integers(0, 64), min_size=3, max_size=3), min_size=2, max_size=30))
def test_moments_are_exact(rows: Any) -> None:
    values = np.array(rows) / 64
    pairs = paired_t(pair_sums(values))
    for a, b in itertools.product(range(3), repeat=2):
        mean, error, _ = mean_and_error(moments((values[:, a] - values[:, b])[:, None]))
        assert pairs.mean[a, b] == mean[0] and pairs.error[a, b] == pytest.approx(error[0], rel=1e-14)


def test_a_product_of_whole_numbers_is_exact_at_its_largest() -> None:
    """Odd numbers above 2^52: float64 adds no two of them exactly that it does not have to."""
    left, right = np.full((7, 2), 2.0**52 + 1), np.ones((7, 1))
    assert significance._exact_product(left, right).tolist() == [[7 * (2**52 + 1)]] * 2


def test_pair_sums_are_the_same_in_any_order_and_partitioning() -> None:
    values = users(5000, 6)
    values[::7, 2] = math.nan
    order = np.random.default_rng(1).permutation(5000)
    parts = [pair_sums(values[part]) for part in np.array_split(order, 11)]
    assert (np.sum(parts, axis=0) == pair_sums(values)).all()


def test_a_constant_difference_has_no_test_and_large_values_are_refused() -> None:
    base = np.random.default_rng(0).integers(0, 2**20, 1000) / 2**20
    pairs = paired_t(pair_sums(np.column_stack([base, base - 0.125])))
    assert pairs.mean[0, 1] == 0.125 and pairs.error[0, 1] == 0 and math.isnan(pairs.p[0, 1])
    assert math.isnan(paired_t(pair_sums(np.array([[1.0, 0.5]]))).error[0, 1])
    assert math.isnan(paired_t(pair_sums(np.full((3, 2), math.nan))).mean[0, 1])
    for wrong in (17.0, math.inf):
        with pytest.raises(DataError, match="too large"):
            pair_sums(np.array([[wrong, 0.0]]))


def test_bootstrap_of_all_pairs_equals_one_pair_at_a_time() -> None:
    values, keys = users(), np.arange(500)
    values[:9, 3] = math.nan
    sums, totals = bootstrap_sums(keys, values, 200, 0)
    means = np.nanmean(values, axis=0)
    low, high, p = significance.bootstrap_pairs(sums, totals, means)
    one = replicate_means(*bootstrap_sums(keys, values[:, [2]] - values[:, [0]], 200, 0))[:, 0]
    assert (low[2, 0], high[2, 0]) == pytest.approx(tuple(np.quantile(one, [0.025, 0.975])), abs=1e-8)
    observed = means[2] - means[0]
    assert p[2, 0] == (1 + (np.abs(one - observed) >= abs(observed)).sum()) / 201
    assert p[2, 0] == p[0, 2] and low[0, 2] == pytest.approx(-high[2, 0], rel=1e-12)
    assert np.isnan([low[0, 3], high[3, 1], p[2, 3]]).all()


def test_bootstrap_agrees_with_scipy() -> None:
    values = users(400, 2)
    low, high, _ = significance.bootstrap_pairs(
        *bootstrap_sums(np.arange(400), values, 2000, 1), values.mean(axis=0)
    )
    known = stats.bootstrap(
        (values[:, 0] - values[:, 1],),
        np.mean,
        n_resamples=2000,
        method="percentile",
        rng=np.random.default_rng(0),
    )
    width = high[0, 1] - low[0, 1]
    assert low[0, 1] == pytest.approx(known.confidence_interval.low, abs=0.08 * width)
    assert high[0, 1] == pytest.approx(known.confidence_interval.high, abs=0.08 * width)


def test_randomisation_by_all_signs_of_one_pair() -> None:
    """With so many replicates the drawn p is near that over all 2^8 signs, as scipy counts it."""
    difference = np.array([0.3, 0.25, -0.125, 0.5, 0.125, 0.0625, -0.25, 0.375])
    values = np.column_stack([0.5 + difference / 2, 0.5 - difference / 2])
    p = significance.randomisation_p(sign_sums(np.arange(8), values, 20_000, 0))
    known = stats.permutation_test(
        (values[:, 0], values[:, 1]),
        lambda x, y, axis: (x - y).mean(axis=axis),
        permutation_type="samples",
        vectorized=True,
    )
    assert p[0, 1] == pytest.approx(known.pvalue, abs=4 * (known.pvalue / 20_000) ** 0.5)
    assert p[0, 1] == p[1, 0] and p[0, 0] == 1.0


def test_signs_are_fair_independent_and_additive() -> None:
    keys = np.random.default_rng(0).integers(-(2**62), 2**62, 2000)
    signs = significance.random_signs(keys, 130, 3)
    assert set(np.unique(signs)) == {-1, 1}
    assert np.abs(signs.mean(axis=0)).max() < 5 * 2000**-0.5
    correlation = np.corrcoef(signs.T.astype(float))[np.triu_indices(130, 1)]
    assert correlation.std() == pytest.approx(2000**-0.5, rel=0.05)
    assert (significance.random_signs(keys[::-1], 70, 3)[::-1] == signs[:, :70]).all()
    values = users(2000, 3)
    parts = [sign_sums(keys[p], values[p], 50, 3) for p in np.array_split(np.arange(2000), 6)]
    whole = sign_sums(keys, values, 50, 3)
    assert (np.sum(parts, axis=0) == whole).all()
    fixed = np.rint(values * 2**30).astype(np.int64)
    assert (whole[0] == fixed.sum(axis=0)).all()
    assert (whole[1:] == signs[:, :50].T.astype(np.int64) @ fixed).all()
    with pytest.raises(DataError, match="int64"):
        significance.random_signs(keys.astype(float), 2, 0)


@pytest.mark.full
def test_under_the_null_every_test_refuses_as_often_as_it_says() -> None:
    """100 pairs of models alike over 200 users: about 5 % below .05."""
    rng = np.random.default_rng(5)
    values, keys = rng.random((200, 200)), np.arange(200)
    result = {
        "t": paired_t(pair_sums(values)).p,
        "randomisation": significance.randomisation_p(sign_sums(keys, values, 250, 1)),
        "bootstrap": significance.bootstrap_pairs(
            *bootstrap_sums(keys, values, 250, 1), values.mean(axis=0)
        )[2],
    }
    for p in result.values():
        # Pairs of disjoint models are independent.
        assert 0.005 <= (p[np.arange(0, 200, 2), np.arange(1, 200, 2)] < 0.05).mean() <= 0.12
    assert np.nanmax(np.abs(result["t"] - result["randomisation"])) < 0.15


def test_pairs_over_different_users_have_no_randomisation() -> None:
    same = np.array([[True, False], [False, True]])
    p = significance.randomisation_p(sign_sums(np.arange(9), users(9, 2), 20, 0), same)
    assert math.isnan(p[0, 1]) and p[0, 0] == 1


SMALL = st.one_of(
    st.lists(st.integers(-2, 2), min_size=1, max_size=13),
    st.lists(st.integers(-6, 6), min_size=1, max_size=13),
    st.lists(st.integers(-300, 300), min_size=1, max_size=13),
    st.lists(st.integers(-300, 300).filter(bool), min_size=1, max_size=40, unique_by=abs),
)
"""Ties and zeros everywhere, a few, hardly any; none."""


def signed_rank(differences: list[int], zeros: Any) -> significance.Wilcoxon:
    return wilcoxon(*np.unique(differences, return_counts=True), zeros)


@pytest.mark.full
@settings(max_examples=60)
@given(SMALL, st.sampled_from(["wilcox", "pratt"]))
def test_wilcoxon_of_few_users_equals_scipy(differences: list[int], zeros: Any) -> None:
    result = signed_rank(differences, zeros)
    if not any(differences):
        assert (result.p, result.users) == (1.0, 0)
        return
    known = stats.wilcoxon(np.array(differences, float), zero_method=zeros)
    assert result.p == pytest.approx(known.pvalue, rel=1e-13)
    assert math.isnan(result.z) and result.users == np.count_nonzero(differences)


def enumerate_signs(differences: list[int], zeros: str) -> Fraction:
    """2 min(P(T <= t), P(T >= t)) over all patterns of signs, in fractions."""
    kept = [d for d in differences if d or zeros == "pratt"]
    size = [abs(d) for d in kept]
    rank = [Fraction(sum(2 * (s < one) + (s == one) for s in size) + 1, 2) for one in size]
    ranked = [(r, d > 0) for r, d in zip(rank, kept, strict=True) if d]
    t = sum(r for r, up in ranked if up)
    sums = [sum(itertools.compress((r for r, _ in ranked), p)) for p in signs(len(ranked))]
    tail = min(sum(s <= t for s in sums), sum(s >= t for s in sums))
    return min(Fraction(1), Fraction(2 * tail, len(sums)))


def signs(n: int) -> Any:
    return itertools.product([0, 1], repeat=n)


@settings(max_examples=60)
@given(st.lists(st.integers(-3, 3), min_size=1, max_size=9), st.sampled_from(["wilcox", "pratt"]))
def test_wilcoxon_of_few_users_equals_every_pattern_of_signs(differences: list[int], zeros: Any) -> None:
    assert Fraction(signed_rank(differences, zeros).p) == enumerate_signs(differences, zeros)


def test_wilcoxon_with_ties_by_hand() -> None:
    """Four equal differences of one sign: 2 of 16 patterns are as far out; the zero says nothing."""
    assert signed_rank([1, 1, 1, 1, 0], "wilcox").p == 0.125
    assert signed_rank([1, 1, 1, 1, 0], "pratt").p == 0.125
    assert signed_rank([1, 1, -2], "wilcox").p == 1.0, "3 against 3"


@settings(max_examples=60)
@given(
    st.lists(st.integers(-6, 6).filter(bool), min_size=51, max_size=80).map(lambda d: [*d, 0, 0]),
    st.sampled_from(["wilcox", "pratt"]),
)
def test_wilcoxon_of_many_users_equals_scipy(differences: list[int], zeros: Any) -> None:
    result = signed_rank(differences, zeros)
    wanted = np.array(differences, float)
    known = stats.wilcoxon(wanted, zero_method=zeros, method="asymptotic")
    assert result.p == pytest.approx(known.pvalue, rel=1e-12)
    assert abs(result.z) == pytest.approx(abs(known.zstatistic), rel=1e-12)
    above = stats.wilcoxon(wanted, zero_method=zeros, alternative="greater", method="asymptotic")
    assert result.positive == pytest.approx(above.statistic)


@pytest.mark.full
def test_wilcoxon_with_ties_is_exact_up_to_fifty_users() -> None:
    """Against the same enumeration of 2^14 patterns by scipy, which it does when asked: by itself to 13."""
    d = np.random.default_rng(4).integers(-3, 5, 14)
    every = stats.PermutationMethod(n_resamples=2**14)
    known = stats.wilcoxon(d.astype(float), method=every).pvalue
    assert signed_rank(d.tolist(), "wilcox").p == pytest.approx(known, rel=1e-13)
    one_sided = signed_rank([1] * 50, "wilcox")
    assert one_sided.p == 2.0**-49 and math.isnan(one_sided.z)
    assert not math.isnan(signed_rank([1] * 51, "wilcox").z)


@pytest.mark.parametrize("n", [1, 2, 7, 20, 50])
def test_wilcoxon_is_exact_for_few_users_as_scipy_is(n: int) -> None:
    d = np.random.default_rng(n).normal(size=n) + 0.3
    result = wilcoxon(d, np.ones(n))
    assert math.isnan(result.z) and result.p == pytest.approx(
        stats.wilcoxon(d, method="exact").pvalue, rel=1e-12
    )


def test_wilcoxon_of_many_users_from_steps() -> None:
    d = np.random.default_rng(0).normal(size=20_000) * 0.05 + 0.0005
    result = wilcoxon(*np.unique(significance.difference_steps(d), return_counts=True))
    assert result.p == pytest.approx(stats.wilcoxon(d).pvalue, rel=0.02)


@given(P_VALUES)
def test_adjusted_p_values_equal_their_definitions(p: list[float]) -> None:
    """Holm: the largest (n - j) p of those up to it; BH: the least n p / j of those from it on."""
    order, n = sorted(p), len(p)
    holm, bh = significance.holm(np.array(p)), significance.benjamini_hochberg(np.array(p))
    for place, value in enumerate(p):
        i = order.index(value)
        last = n - 1 - order[::-1].index(value)
        assert holm[place] == pytest.approx(min(1, max((n - j) * order[j] for j in range(i + 1))))
        assert bh[place] == pytest.approx(min(1, *(n * order[j] / (j + 1) for j in range(last, n)), 1))


@pytest.mark.full
def test_adjusted_p_values_equal_statsmodels() -> None:
    multitest = pytest.importorskip("statsmodels.stats.multitest")
    p = np.round(np.random.default_rng(0).random(400) ** 3, 3)
    for function, name in ((significance.holm, "holm"), (significance.benjamini_hochberg, "fdr_bh")):
        np.testing.assert_allclose(function(p), multitest.multipletests(p, method=name)[1], rtol=1e-12)


def test_adjusted_p_values_by_hand() -> None:
    p = np.array([[0.01, math.nan], [0.04, 0.03]])
    np.testing.assert_allclose(significance.holm(p), [[0.03, math.nan], [0.06, 0.06]])
    np.testing.assert_allclose(significance.benjamini_hochberg(p), [[0.03, math.nan], [0.04, 0.04]])
    assert significance.holm(np.array([])).tolist() == []
    assert significance.benjamini_hochberg(np.array([0.9, 0.8])).tolist() == [0.9, 0.9]


def test_a_minimum_practical_difference() -> None:
    cases = {
        (0.02, 0.03): "better",
        (-0.03, -0.02): "worse",
        (-0.005, 0.01): "equivalent",
        (0.0, 0.02): "unclear",
    }
    for (low, high), verdict in cases.items():
        assert significance.practical_verdict(low, high, 0.01) == verdict
    assert significance.practical_verdict(0.001, 0.002, 0.0) == "better"


def test_minimum_detectable_difference_equals_statsmodels() -> None:
    power = pytest.importorskip("statsmodels.stats.power")
    result = significance.minimum_detectable(1 / 10_000**0.5)
    assert result == pytest.approx(2.801585 / 100, rel=1e-6)
    assert power.TTestPower().power(result, 10_000, 0.05) == pytest.approx(0.8, abs=1e-3)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=2, max_size=20))
def test_tau_b_equals_scipy(pairs: list[tuple[int, int]]) -> None:
    x, y = (np.array(column) for column in zip(*pairs, strict=True))
    tied = len(set(x.tolist())) == 1 or len(set(y.tolist())) == 1
    expected = math.nan if tied else stats.kendalltau(x, y).statistic
    assert significance.kendall_tau_b(x, y) == pytest.approx(expected, abs=1e-12, nan_ok=True)


def test_dependent_correlations_by_hand() -> None:
    """r = .6, .3, .5, n = 20: |R| = 1 - .36 - .09 - .25 + .18 = .48, rbar = .45."""
    t, p = significance.dependent_correlations(0.6, 0.3, 0.5, 20)
    assert t == pytest.approx(0.3 * math.sqrt(19 * 1.5 / (2 * 19 / 17 * 0.48 + 0.45**2 * 0.125)))
    assert p == pytest.approx(stats.t.sf(t, 17))
    back, q = significance.dependent_correlations(0.3, 0.6, 0.5, 20)
    assert back == -t and p + q == pytest.approx(1)
    assert significance.dependent_correlations(0.4, 0.4, 0.9, 104) == (0.0, 0.5)
    assert all(map(math.isnan, significance.dependent_correlations(0.4, 0.3, 0.2, 9)))
    assert all(map(math.isnan, significance.dependent_correlations(0.9, -0.9, 1.0, 10)))


def test_dependent_correlations_refuse_as_often_as_they_say() -> None:
    rng = np.random.default_rng(0)
    p = []
    for _ in range(600):
        x = rng.normal(size=40)
        y, z = (0.5 * x + rng.normal(size=40) for _ in range(2))
        r = np.corrcoef([x, y, z])
        p.append(significance.dependent_correlations(r[0, 1], r[0, 2], r[1, 2], 40)[1])
    assert 0.03 < (np.array(p) < 0.05).mean() < 0.075


def fixed_interval(mean: float, deviation: float, n: int) -> tuple[float, float]:
    """mean -+ z deviation / sqrt(n): 95 %, valid for one look, chosen before."""
    reach = stats.norm.ppf(0.975) * deviation / math.sqrt(n)
    return mean - reach, mean + reach


@pytest.mark.full
def test_the_sequence_holds_at_all_looks_where_the_fixed_interval_does_not() -> None:
    """60 nights of 50 users without any difference, looked at every night."""
    rng = np.random.default_rng(1)
    broken = np.zeros(2)
    for _ in range(300):
        d = rng.exponential(size=3000) - 1
        running = np.cumsum(d)
        outside = np.zeros(2, dtype=bool)
        for n in range(50, 3001, 50):
            mean, deviation = running[n - 1] / n, d[:n].std(ddof=1)
            low, high = fixed_interval(mean, deviation, n)
            outside[0] |= not low <= 0 <= high
            low, high = significance.sequence_interval(mean, deviation, n, planned=1000)
            outside[1] |= not low <= 0 <= high
        broken += outside
    assert broken[0] / 300 > 0.2 and broken[1] / 300 <= 0.05


def test_the_sequence_by_hand_and_narrowest_where_planned() -> None:
    rho = significance.sequence_rho(400, 0.05)
    assert rho**2 * 400 == pytest.approx(-2 * math.log(0.05) + math.log(1 - 2 * math.log(0.05)))
    low, high = significance.sequence_interval(0.1, 2.0, 400, 400)
    n = 400 * rho**2 + 1
    reach = 2.0 * math.sqrt(2 * n / (400 * rho) ** 2 * math.log(math.sqrt(n) / 0.05))
    assert (low, high) == pytest.approx((0.1 - reach, 0.1 + reach))
    widths = [significance.sequence_interval(0, 1, 400, planned)[1] for planned in (40, 400, 4000)]
    assert widths[1] < min(widths[0], widths[2])
    assert widths[1] < 2 * fixed_interval(0, 1, 400)[1]


def test_the_reach_of_a_few_values_is_students_by_hand() -> None:
    """Three values of deviation 1: 4.3027 (two degrees of freedom, two-sided 95 %) over root 3."""
    assert significance.student_half_width([1.0, 2.0, 3.0]) == pytest.approx(
        4.302652729911275 / math.sqrt(3)
    )
    assert math.isnan(significance.student_half_width([1.0]))
