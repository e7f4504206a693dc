"""Power laws: a slow fit over all items, scipy's zeta, draws, and the published exponents."""

from __future__ import annotations

import gzip
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from scipy import special, stats

from recbench_spark.analyses.exposure.kernels import power_law
from recbench_spark.analyses.exposure.kernels.power_law import PowerLaw, fit, goodness, log_zeta
from recbench_spark.errors import DataError

COUNTS = st.one_of(
    st.lists(st.integers(1, 60), min_size=2, max_size=40),
    st.lists(st.integers(1, 60), min_size=55, max_size=160),
).filter(lambda n: len(set(n)) > 1)


def histogram(counts: Any) -> tuple[Any, Any]:
    return np.unique(np.asarray(counts), return_counts=True)


def fit_whole(counts: Any, items: Any, method: power_law.Method = "approximate") -> PowerLaw:
    """The law with the smallest count as xmin: where all items must be in the tail, no other is tried."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(power_law, "SMALLEST_TAIL", int(np.sum(items)))
        return fit(counts, items, method)


def slow_fit(counts: list[int]) -> float:
    """The least distance over every xmin, item by item."""
    result = []
    for xmin in sorted(set(counts))[:-1]:
        tail = sorted(n for n in counts if n >= xmin)
        if len(tail) < min(50, len(counts)):
            continue
        alpha = 1 + len(tail) / sum(math.log(n / (xmin - 0.5)) for n in tail)
        law = [1 - math.exp(log_zeta(alpha, n) - log_zeta(alpha, xmin)) for n in tail]
        data = [sum(other < n for other in tail) / len(tail) for n in tail]
        result.append(max(abs(p - q) for p, q in zip(law, data, strict=True)))
    return min(result)


@pytest.mark.full
@settings(max_examples=60)
@given(COUNTS)
def test_the_approximate_fit_equals_a_loop_over_items(counts: list[int]) -> None:
    law = fit(*histogram(counts))
    assert law.distance == pytest.approx(slow_fit(counts), abs=1e-12)
    tail = [n for n in counts if n >= law.xmin]
    alpha = 1 + len(tail) / sum(math.log(n / (law.xmin - 0.5)) for n in tail)
    assert law.alpha == pytest.approx(alpha, rel=1e-12)
    assert (law.tail, law.items) == (len(tail), len(counts)) and law.xmin < max(counts)
    assert law.error == pytest.approx((alpha - 1) / len(tail) ** 0.5)


@settings(max_examples=15)
@given(COUNTS)
def test_the_exact_fit_maximises_the_likelihood(counts: list[int]) -> None:
    law = fit(*histogram(counts), method="exact")
    tail = np.array([n for n in counts if n >= law.xmin])

    def loss(alpha: float) -> float:
        return len(tail) * float(log_zeta(alpha, law.xmin)) + alpha * float(np.log(tail).sum())

    assert all(loss(law.alpha) <= loss(1 + (law.alpha - 1) * f) for f in (0.99, 0.9999, 1.0001, 1.01))


def test_pruning_changes_nothing_on_long_histograms() -> None:
    counts, items = power_law.draw(1.4, 3, 20_000, np.random.default_rng(0))
    law = fit(counts, items)
    tails = power_law._tails(counts, items)
    alpha = power_law.exponents(tails, "approximate", len(tails.count) - 1)
    every = [power_law._distance(tails, t, alpha[t]) for t in range(len(alpha)) if tails.tail[t] >= 50]
    assert len(every) > 1000 and law.distance == min(every)
    assert law.xmin == counts[int(np.argmin(every))]


def test_zeta_equals_scipy_and_does_not_underflow() -> None:
    alpha, q = np.meshgrid([1.01, 1.5, 2, 3.7, 12, 30], [1, 2, 5, 28, 925, 10**6])
    known = special.zeta(alpha, q)
    fine = known > 1e-290
    np.testing.assert_allclose(log_zeta(alpha, q)[fine], np.log(known[fine]), rtol=1e-13, atol=1e-13)
    assert float(log_zeta(2.0, 1)) == pytest.approx(math.log(math.pi**2 / 6), rel=1e-14)
    # sum (900 + k)^-300 = 900^-300 (1 + (900 / 901)^300 + ...), far below the smallest float64.
    terms = np.exp(-300 * np.log1p(np.arange(400) / 900)).sum()
    assert float(log_zeta(300.0, 900)) == pytest.approx(-300 * math.log(900) + math.log(terms), rel=1e-14)


def test_by_hand() -> None:
    """Counts 2, 2, 8: from 2 on alpha = 1 + 3 / (2 ln(4 / 3) + ln(16 / 3))."""
    law = fit([8, 2, 0], [1, 2, 50])
    assert law.alpha == pytest.approx(1 + 3 / math.log((4 / 3) ** 2 * 16 / 3), rel=1e-14)
    assert (law.xmin, law.tail, law.items) == (2, 3, 3)


def test_draws_follow_the_law_also_beyond_the_table() -> None:
    counts, items = power_law.draw(1.3, 4, 200_000, np.random.default_rng(1))
    assert items.sum() == 200_000 and (np.diff(counts) > 0).all()
    edges = np.array([4, 5, 6, 9, 20, 100, 1000, 4 + power_law.TABLE, 10**6, 10**9])
    survival = np.append(np.exp(log_zeta(1.3, edges) - log_zeta(1.3, 4)), 0.0)
    observed = [
        items[(counts >= a) & (counts < b)].sum() for a, b in zip(edges, [*edges[1:], 2**54], strict=True)
    ]
    assert stats.chisquare(observed, -np.diff(survival) * 200_000).pvalue > 1e-3


def test_both_methods_recover_a_known_exponent_within_their_errors() -> None:
    counts, items = power_law.draw(2.3, 30, 20_000, np.random.default_rng(2))
    laws = [fit_whole(counts, items, method) for method in ("approximate", "exact")]
    for law in laws:
        assert abs(law.alpha - 2.3) < 3 * law.error and law.error == pytest.approx(
            1.3 / 20_000**0.5, rel=0.05
        )


@pytest.mark.full
def test_goodness_accepts_a_power_law_and_refuses_a_poisson() -> None:
    rng = np.random.default_rng(3)
    counts, items = power_law.draw(2.5, 5, 800, rng)
    good = goodness(counts, items, fit(counts, items), 40, seed=1)
    assert good > 0.1 and good == goodness(counts, items, fit(counts, items), 40, seed=1)
    poisson = histogram(1 + rng.poisson(30, 3000))
    above = poisson[0] >= 20
    law = replace(fit_whole(poisson[0][above], poisson[1][above]), items=3000)
    assert law.xmin == 20
    assert goodness(*poisson, law, 40, seed=1) == pytest.approx(1 / 41)


def test_no_tail_is_smaller_than_fifty_items() -> None:
    """The last four of 3,000 items, each shown about 5,000 times, once gave an exponent of 24,981."""
    rng = np.random.default_rng(0)
    for method in ("approximate", "exact"):
        law = fit(*histogram(rng.normal(5000, 70, 3000).astype(int)), method=method)  # type: ignore[arg-type]
        assert law.tail >= power_law.SMALLEST_TAIL
    few = histogram(rng.integers(5, 90, 30))
    assert fit(*few).tail == 30, "of fewer items all are the tail"


def fit_and_compare(counts: Any, **settings: Any) -> PowerLaw:
    law = fit(*histogram(counts), **settings)
    return replace(law, against=power_law.alternatives(*histogram(counts), law))


@pytest.mark.parametrize("spread", [5, 70, 700])
def test_counts_close_together_are_refused_with_the_fit(spread: int) -> None:
    law = fit_and_compare(np.random.default_rng(spread).normal(5000, spread, 3000).astype(int))
    with pytest.raises(DataError) as error:
        power_law.check(law)
    assert f"alpha {law.alpha:.6g} from xmin {law.xmin} on, a tail of {law.tail} of 3000" in str(
        error.value
    )


def test_a_chance_that_a_count_just_has_draws_that_count() -> None:
    """P(X > n) < chance <= P(X >= n): where float64 gives back the logarithm to the last bit."""
    n = np.arange(2, 200)
    chance = np.exp(log_zeta(2.3, n) - log_zeta(2.3, 1))
    just = np.log(chance) + log_zeta(2.3, 1) == log_zeta(2.3, n)
    assert just.sum() > 20
    assert power_law._beyond(2.3, 1, chance[just]).tolist() == n[just].tolist()


@pytest.mark.parametrize(
    ("alpha", "z", "is_law"), [(10.5, 1.64, False), (10.5, 1.65, True), (10.0, -3, True)]
)
def test_a_steep_law_has_to_beat_thinner_tails_at_five_percent(
    alpha: float, z: float, is_law: bool
) -> None:
    """One-sided: the normal law is below 1.645 in 95 % of its draws."""
    law = replace(
        fit_and_compare(np.repeat(*power_law.draw(2.3, 5, 500, np.random.default_rng(1)))), alpha=alpha
    )
    law = replace(law, against=tuple(replace(one, z=z) for one in law.against))
    if is_law:
        power_law.check(law)
        return
    with pytest.raises(DataError, match="tail is as likely"):
        power_law.check(law)


def test_laws_beside_others() -> None:
    """A drawn law is far likelier than a geometric tail; a lognormal one can look alike."""
    counts = np.repeat(*power_law.draw(2.3, 5, 5000, np.random.default_rng(1)))
    law = fit_and_compare(counts)
    power_law.check(law)
    result = {one.name: one for one in law.against}
    assert result["geometric"].z > 5 and abs(result["lognormal"].z) < 2
    thin = fit_and_compare(np.random.default_rng(2).geometric(0.02, 5000))
    assert {one.name: one for one in thin.against}["geometric"].z < 0


@pytest.mark.full
def test_likelihoods_of_alternatives_by_scipy() -> None:
    """The geometric law from its distribution, the lognormal one at the best of a grid of parameters."""
    counts = np.random.default_rng(3).geometric(0.1, 400) + 9
    law = fit_whole(*histogram(counts))
    assert law.xmin == 10
    geometric, lognormal = power_law.alternatives(*histogram(counts), law)
    own = -law.alpha * np.log(counts) - float(log_zeta(law.alpha, 10))
    known = stats.geom(1 / (counts.mean() - 9), loc=9).logpmf(counts)
    gap = own - known
    assert geometric.ratio == pytest.approx(gap.sum())
    assert geometric.z == pytest.approx(gap.sum() / (gap.std() * 400**0.5))
    best = max(
        float((np.log(law_of.sf(counts - 0.5) - law_of.sf(counts + 0.5)) - law_of.logsf(9.5)).sum())
        for mean in np.linspace(0.5, 3.5, 61)
        for law_of in (stats.lognorm(s, scale=math.exp(mean)) for s in np.linspace(0.3, 1.5, 49))
    )
    assert -0.05 < best - (own.sum() - lognormal.ratio) <= 1e-6


def test_one_count_is_no_law() -> None:
    with pytest.raises(DataError, match="two different counts"):
        fit([0, 7], [3, 9])


@pytest.mark.data
def test_coat_and_movielens_as_published(shared_data: Path) -> None:
    coat = (np.loadtxt(shared_data / "coat" / "train.ascii") > 0).sum(axis=0)
    law = fit(*histogram(coat))
    assert law.alpha == pytest.approx(4.014792944527418, abs=1e-13)
    assert (law.xmin, law.tail, law.items) == (28, 82, 300)
    with gzip.open(shared_data / "ml-1m" / "ratings.tsv.gz", "rt") as file:
        items = np.loadtxt(file, skiprows=1, usecols=1, dtype=np.int64)
    law = fit(*histogram(np.bincount(items)))
    assert law.alpha == pytest.approx(3.749694, abs=5e-7) and (law.xmin, law.tail) == (925, 245)
