"""Sampled candidates: the toy example, every draw of small catalogues, simulation, skewed ranks."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any, get_args

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from scipy import stats

from recbench_spark.analyses.sampling.kernels import sampled
from recbench_spark.analyses.sampling.kernels.sampled import NegativeDraw
from recbench_spark.core.definitions import PRESETS, Definition, DrawEstimator, axis_values, make_definition
from recbench_spark.errors import ConfigError
from recbench_spark.metrics.kernels.accuracy import cutoffs, measure
from recbench_spark.ranking.kernels.rankings import Rankings
from tests.oracles import count_sampled_ranks, likely_means, make_rankings

TOY = {"a": [100] * 5, "b": [40, 40, 8437, 9266, 4482], "c": [212, 2, 743, 5342, 1548]}
PRINTED = {
    (True, "mrr", None): (".636592", ".340739", ".326169"),
    (True, "ndcg", None): (".728989", ".447337", ".459986"),
    (True, "recall", 10): ("1.000000", ".400000", ".569422"),
    (False, "mrr", None): (".635805", ".340548", ".325970"),
    (False, "ndcg", None): (".728422", ".447200", ".459834"),
}
KS = (1, 3, None)


def expectation(table_jc: Any, draw: NegativeDraw, rank_r: Any) -> tuple[Any, Any]:
    """Mean and variance of f^(j) over draws, for items of rank r: float64 (r, c) each."""
    chance_rj = draw.chances(rank_r)
    mean = chance_rj @ table_jc
    # Centred before it is squared: values of 10^8 would cancel.
    spread = [p @ (table_jc - e) ** 2 for p, e in zip(chance_rj, mean, strict=True)]
    return mean, np.array(spread)


@pytest.mark.parametrize(("replacement", "metric", "k"), PRINTED)
def test_the_toy_example_to_all_printed_digits(replacement: bool, metric: str, k: int | None) -> None:
    draw = NegativeDraw(10_000, 99, replacement)
    table = sampled.raw(metric, [k], draw)
    result = [expectation(table, draw, np.array(ranks))[0].mean() for ranks in TOY.values()]
    printed = PRINTED[replacement, metric, k]
    assert [f"{value:.6f}".removeprefix("0") for value in result] == list(printed)


def test_the_sample_reorders_the_toy_models() -> None:
    """Exactly C is best and A is worst by average precision; sampled it is the other way round."""
    exact = {
        name: sampled.rank_values("mrr", np.array(r), [None], 10_000).mean() for name, r in TOY.items()
    }
    assert exact["c"] == pytest.approx(sum(1 / r for r in TOY["c"]) / 5)
    assert exact["a"] == 0.01 < exact["b"] < exact["c"]
    draw = NegativeDraw(10_000, 99)
    raw = {
        name: expectation(sampled.raw("mrr", [None], draw), draw, np.array(r))[0].mean()
        for name, r in TOY.items()
    }
    assert raw["a"] > raw["b"] > raw["c"]


# ---------------------------------------------------------------------- under every definition

OF_CANDIDATES = {"candidates_as_of", "first_seen_in", "unavailable"}
"""Axes that go together, and say who is ranked; a rank's values do not depend on them."""

AXES = {
    axis: axis_values(axis)
    for axis in Definition.model_fields
    if axis_values(axis) and axis not in OF_CANDIDATES
}
DEFINITIONS = st.one_of(
    st.sampled_from(sorted(PRESETS)).map(make_definition),
    st.fixed_dictionaries({axis: st.sampled_from(values) for axis, values in AXES.items()})
    .filter(lambda axes: (axes["ties"], axes["auc_ties"]) != ("hashed", "id_descending"))
    .map(lambda axes: make_definition(None, axes)),
)


def run_kernel(metric: str, definition: Definition, n: int, ks: list[int], grade: float = 1.0) -> Any:
    """Run the metric's own kernel for users with one relevant item, at rank 1, 2, .. n: (n, c)."""
    one, above = np.ones(n, dtype=np.int64), np.arange(n)
    rankings = Rankings(np.arange(n + 1), grade * one, above, one * 0, one * 0, one * n)
    return measure(rankings, [metric], ks, definition)[metric]


@settings(max_examples=400)
@given(st.sampled_from(sorted(sampled.RANK_METRICS)), DEFINITIONS, st.integers(2, 40), st.data())
def test_values_of_a_rank_are_those_of_the_definitions_own_kernel(
    metric: str, definition: Definition, n: int, data: Any
) -> None:
    ks = sorted(data.draw(st.sets(st.integers(1, n), min_size=1, max_size=3)))
    columns, ranks = cutoffs(metric, ks), np.arange(1, n + 1)
    if sampled.no_value(metric, definition):
        with pytest.raises(ConfigError, match="has no value of a single rank"):
            sampled.rank_values(metric, ranks, columns, n, definition)
        return
    grade = data.draw(st.sampled_from([1.0, 2.0, 5.0]))
    result = sampled.rank_values(metric, ranks, columns, n, definition)
    np.testing.assert_allclose(result, run_kernel(metric, definition, n, ks, grade), rtol=1e-12, atol=1e-15)
    between = sampled.rank_values(metric, np.arange(1.0, n, 0.25), columns, n, definition)
    assert (np.diff(between, axis=0) <= 1e-15).all(), "between whole ranks values fall as the formula does"


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("metric", sampled.RANK_METRICS)
def test_every_preset_has_a_value_of_a_rank_that_is_its_own(preset: str, metric: str) -> None:
    definition = make_definition(preset)
    if preset == "sklearn" or (preset, metric) == ("torchmetrics", "ndcg"):
        assert "an item has no single rank" in str(sampled.no_value(metric, definition))
        return
    columns = cutoffs(metric, [1, 3, 10])
    result = sampled.rank_values(metric, np.arange(1, 31), columns, 30, definition)
    np.testing.assert_allclose(result, run_kernel(metric, definition, 30, [1, 3, 10]), rtol=1e-13)


def test_presets_by_hand() -> None:
    def at(preset: str, metric: str, rank: int) -> float:
        value = sampled.rank_values(metric, np.array([rank]), [10], 1000, make_definition(preset))
        return float(value[0, 0])

    third = 1 / math.log2(3)
    assert at("lenskit", "ndcg", 2) == 1.0 and at("recbench", "ndcg", 2) == third
    assert at("rectools", "ndcg", 2) == pytest.approx(
        third / sum(1 / math.log2(i + 1) for i in range(1, 11))
    )
    assert at("elliot", "map", 2) == pytest.approx(sum(Fraction(1, i) for i in range(2, 11)) / 10)
    assert at("cornac", "mrr", 20) == 0.05 and at("recbench", "mrr", 20) == 0.0


def test_only_ndcg_asks_what_a_relevant_item_gains() -> None:
    free = Definition(gain="linear", threshold=0)
    assert sampled.no_value("ndcg", free) == "relevant items may have no gain"
    assert {sampled.no_value(metric, free) for metric in sampled.RANK_METRICS if metric != "ndcg"} == {None}
    assert sampled.no_value("ndcg", Definition(gain="linear", threshold=0.5)) is None
    stars = Definition(gain="linear", grade_origin=3.0)
    assert sampled.no_value("ndcg", stars) == "relevant items may have no gain"
    assert sampled.no_value("ndcg", stars.model_copy(update={"threshold": 4.0})) is None


def test_only_precision_at_hits_by_the_last_rank_looks_at_ties_from_below() -> None:
    above = {"ties": "optimistic", "ap_ties": "last_rank", "ap": "precision_at_hits"}
    assert sampled.rank_definition("map", Definition(**above)).ties == "pessimistic"
    assert sampled.rank_definition("ndcg", Definition(**above)).ties == "optimistic"
    for axis in ("ap_ties", "ap"):
        for value in sorted(set(axis_values(axis)) - {above[axis]}):
            assert sampled.rank_definition("map", Definition(**above | {axis: value})).ties == "optimistic"


@pytest.mark.parametrize("preset", ["recbench", "elliot", "cornac", "lenskit", "rectools"])
@pytest.mark.parametrize("metric", ["map", "mrr", "ndcg"])
def test_corrections_aim_at_the_definition(preset: str, metric: str) -> None:
    """Least squares gives, where draws distinguish all ranks, the definition's value of every rank."""
    draw, definition = NegativeDraw(6, 5), make_definition(preset)
    table = sampled.least_squares(metric, [1, 3, None], draw, definition)
    mean, _ = expectation(table, draw, np.arange(1, 7))
    np.testing.assert_allclose(mean, run_kernel(metric, definition, 6, [1, 3]), atol=1e-9)


# ------------------------------------------------------------------------------- every possible draw


def every_draw(draw: NegativeDraw, rank: int) -> dict[int, Fraction]:
    """P(j | r) by going through all draws; the negatives above the item are 0 .. rank - 2."""
    pool = range(draw.n - 1)
    ways = (
        itertools.product(pool, repeat=draw.m) if draw.replacement else itertools.combinations(pool, draw.m)
    )
    result = [1 + sum(item < rank - 1 for item in way) for way in ways]
    return {j: Fraction(result.count(j), len(result)) for j in range(1, draw.m + 2)}


DRAWS = [
    NegativeDraw(5, 3, True),
    NegativeDraw(4, 4, True),
    NegativeDraw(2, 3, True),
    NegativeDraw(7, 3),
    NegativeDraw(6, 5),
    NegativeDraw(2, 1),
]


@pytest.mark.parametrize("draw", DRAWS, ids=str)
def test_chances_equal_those_of_every_draw(draw: NegativeDraw) -> None:
    chances = draw.chances(np.arange(1, draw.n + 1))
    expected = [[float(p) for p in every_draw(draw, r).values()] for r in range(1, draw.n + 1)]
    np.testing.assert_allclose(chances, expected, rtol=1e-13)


@pytest.mark.parametrize("draw", DRAWS, ids=str)
def test_the_rank_estimate_is_unbiased(draw: NegativeDraw) -> None:
    """E[1 + (n - 1) (j - 1) / m] = r, in fractions."""
    for rank in range(1, draw.n + 1):
        mean = sum(
            p * (1 + Fraction((draw.n - 1) * (j - 1), draw.m)) for j, p in every_draw(draw, rank).items()
        )
        assert mean == rank


@pytest.mark.parametrize("metric", ["hit", "precision", "mrr", "ndcg"])
@pytest.mark.parametrize(
    "draw",
    [NegativeDraw(4, 3, True), NegativeDraw(4, 5, True), NegativeDraw(6, 5), NegativeDraw(2, 1)],
    ids=str,
)
def test_least_squares_is_unbiased_where_the_draws_tell_all_ranks_apart(
    draw: NegativeDraw, metric: str
) -> None:
    """With m + 1 >= n sampled ranks the expected values can be anything, so also f."""
    table = sampled.least_squares(metric, KS, draw)
    for rank in range(1, draw.n + 1):
        mean = sum(float(p) * table[j - 1] for j, p in every_draw(draw, rank).items())
        np.testing.assert_allclose(
            mean, sampled.rank_values(metric, np.array([rank]), KS, draw.n)[0], atol=1e-9
        )


def test_least_squares_has_the_least_bias() -> None:
    draw, ranks = NegativeDraw(12, 3), np.arange(1, 13)
    f = sampled.rank_values("ndcg", ranks, KS, draw.n)

    def bias(table: Any) -> Any:
        return ((expectation(table, draw, ranks)[0] - f) ** 2).sum(axis=0)

    tables = {name: make("ndcg", KS, draw, Definition()) for name, make in sampled.ESTIMATORS.items()}
    for table in tables.values():
        assert (bias(tables["least_squares"]) <= bias(table) + 1e-12).all()
    rng = np.random.default_rng(0)
    for _ in range(20):
        other = tables["least_squares"] + rng.normal(size=(4, 3)) * 0.01
        assert (bias(tables["least_squares"]) < bias(other)).all()


@pytest.mark.parametrize("gamma", [0.01, 0.1, 1.0])
def test_bias_variance_has_the_least_of_what_it_minimises(gamma: float) -> None:
    draw, ranks = NegativeDraw(12, 4, True), np.arange(1, 13)
    f = sampled.rank_values("ndcg", ranks, KS, draw.n)

    def cost(table: Any) -> Any:
        mean, variance = expectation(table, draw, ranks)
        return ((mean - f) ** 2 + gamma * variance).sum(axis=0)

    best = sampled.bias_variance("ndcg", KS, draw, gamma=gamma)
    for other in (make("ndcg", KS, draw, Definition()) for make in sampled.ESTIMATORS.values()):
        assert (cost(best) <= cost(other) + 1e-12).all()
    rng = np.random.default_rng(0)
    for _ in range(20):
        assert (cost(best) < cost(best + rng.normal(size=best.shape) * 0.01)).all()


def test_gamma_of_one_is_the_mean_of_f_given_the_sampled_rank() -> None:
    draw, ranks = NegativeDraw(9, 4), np.arange(1, 10)
    chances = draw.chances(ranks)
    posterior = chances / chances.sum(axis=0)
    expected = posterior.T @ sampled.rank_values("mrr", ranks, KS, draw.n)
    np.testing.assert_allclose(sampled.bias_variance("mrr", KS, draw, gamma=1.0), expected, atol=1e-14)


def test_variance_of_an_estimate_equals_that_of_every_draw() -> None:
    draw = NegativeDraw(6, 3)
    table = sampled.bias_variance("ndcg", KS, draw)
    mean, variance = expectation(table, draw, np.array([4]))
    values = np.array(
        [table[1 + sum(i < 3 for i in way) - 1] for way in itertools.combinations(range(5), 3)]
    )
    np.testing.assert_allclose(mean[0], values.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(variance[0], values.var(axis=0), rtol=1e-10, atol=1e-15)


# ------------------------------------------------------------------------------------ large catalogues


@pytest.mark.parametrize("replacement", [True, False])
def test_chances_agree_with_scipy(replacement: bool) -> None:
    n, m, ranks = 20_000, 60, np.array([1, 2, 40, 61, 700, 13_000, 19_950, 20_000])
    if replacement:
        expected = stats.binom.pmf(np.arange(m + 1), m, ((ranks - 1) / (n - 1))[:, None])
    else:
        expected = stats.hypergeom.pmf(np.arange(m + 1), n - 1, (ranks - 1)[:, None], m)
    np.testing.assert_allclose(
        NegativeDraw(n, m, replacement).chances(ranks), expected, rtol=1e-9, atol=1e-300
    )


@pytest.mark.parametrize("replacement", [True, False])
def test_few_ranks_stand_for_all(replacement: bool) -> None:
    draw, every = NegativeDraw(30_001, 50, replacement), np.arange(1.0, 30_002)
    ranks = sampled.representative_ranks(draw, [10, None])
    assert len(ranks.rank) < 1_500 and ranks.weight.sum() == pytest.approx(draw.n, rel=1e-14)
    few, all_ = draw.chances(ranks.rank), draw.chances(every)
    pairs, full = (few * ranks.weight[:, None]).T @ few, all_.T @ all_
    assert np.abs(pairs - full).max() < 1e-13 * full.max()
    for metric in sampled.RANK_METRICS:
        ks = [10] if metric == "precision" else [10, None]
        result = (few * ranks.weight[:, None]).T @ sampled.rank_values(metric, ranks.rank, ks, draw.n)
        expected = all_.T @ sampled.rank_values(metric, every, ks, draw.n)
        assert np.abs(result - expected).max() < 1e-13 * expected.max()


def test_em_on_few_ranks_is_em_on_all(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = NegativeDraw(6_000, 40)
    count = np.bincount(np.minimum(np.random.default_rng(0).geometric(0.1, 500) - 1, 40), minlength=41)[
        None
    ]
    few = likely_means(count, "ndcg", [10, None], draw, 50)
    monkeypatch.setattr(sampled, "ONE_BY_ONE", 6_000)
    assert len(sampled.representative_ranks(draw).rank) == 6_000
    every = likely_means(count, "ndcg", [10, None], draw, 50)
    np.testing.assert_allclose(few, every, rtol=1e-8)


def test_tables_of_ten_million_items() -> None:
    draw = NegativeDraw(10_000_000, 100)
    table = sampled.bias_variance("ndcg", [10, None], draw)
    assert np.isfinite(table).all() and len(sampled.representative_ranks(draw, [10]).rank) < 3_000
    assert table[0, 0] < 1e-2, "among 100 of 10^7 items a first place says little"


# ----------------------------------------------------------------------------------------- simulation


def draw_skewed_ranks(n: int, users: int, seed: int) -> Any:
    """Few users find their item near the top: log-uniform mixed with uniform ranks."""
    rng = np.random.default_rng(seed)
    near = np.exp(rng.random(users) * math.log(n)).astype(np.int64)
    return np.where(rng.random(users) < 0.7, np.clip(near, 1, n), rng.integers(1, n + 1, users))


def draw_ranks(ranks: Any, draw: NegativeDraw, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    if draw.replacement:
        return 1 + rng.binomial(draw.m, (ranks - 1) / (draw.n - 1))
    return 1 + rng.hypergeometric(ranks - 1, draw.n - ranks, draw.m)


@pytest.mark.full
@pytest.mark.parametrize("replacement", [True, False])
def test_simulated_draws_agree_with_the_expected_values(replacement: bool) -> None:
    draw, ranks = NegativeDraw(2_000, 50, replacement), draw_skewed_ranks(2_000, 40_000, 0)
    j = draw_ranks(ranks, draw, 1)
    for name in ("sampled", "rank_estimate", "bias_variance", "monotone_least_squares"):
        table = sampled.ESTIMATORS[name]("ndcg", [5, None], draw, Definition())
        mean, variance = expectation(table, draw, ranks)
        error = np.sqrt(variance.sum(axis=0)) / len(ranks)
        assert (np.abs(table[j - 1].mean(axis=0) - mean.mean(axis=0)) < 4.5 * error + 1e-12).all()


@pytest.mark.parametrize("metric", ["hit", "mrr", "ndcg"])
@pytest.mark.parametrize("replacement", [True, False])
def test_corrected_values_are_closer_than_raw_ones_on_skewed_ranks(metric: str, replacement: bool) -> None:
    draw, ks = NegativeDraw(5_000, 100, replacement), [10]
    ranks = draw_skewed_ranks(5_000, 50_000, 2)
    exact = sampled.rank_values(metric, ranks, ks, draw.n).mean()
    j = draw_ranks(ranks, draw, 3)
    off = {
        name: abs(sampled.ESTIMATORS[name](metric, ks, draw, Definition())[j - 1].mean() - exact)
        for name in ("sampled", "rank_estimate", "bias_variance", "monotone_least_squares")
    }
    count = count_sampled_ranks(j, draw.m)[None]
    off["maximum_likelihood"] = abs(likely_means(count, metric, ks, draw)[0, 0] - exact)
    assert off["sampled"] > 0.1
    assert max(off, key=lambda name: off[name]) == "sampled"
    # f of an unbiased rank is not an unbiased f: all first places count 1.
    for name in set(off) - {"sampled", "rank_estimate"}:
        assert off[name] < off["sampled"] / 2.5, f"{name}: {off}"
    assert off["maximum_likelihood"] < 0.02


def test_more_weight_on_variance_gives_less_of_it() -> None:
    draw, ranks = NegativeDraw(3_000, 60), draw_skewed_ranks(3_000, 200, 4)
    variances = [
        expectation(sampled.bias_variance("hit", [10], draw, gamma=gamma), draw, ranks)[1].mean()
        for gamma in (0.001, 0.01, 0.1, 1.0)
    ]
    assert variances == sorted(variances, reverse=True)


def test_a_falling_table_falls() -> None:
    table = sampled.least_squares("ndcg", [5, 20, None], NegativeDraw(3_000, 60), monotone=True)
    assert (np.diff(table, axis=0) <= 1e-12).all()
    assert np.diff(sampled.least_squares("ndcg", [5], NegativeDraw(3_000, 60)), axis=0).max() > 1


# ----------------------------------------------------------------------------------------- likelihood


def test_all_ranks_told_apart_give_the_shares_themselves() -> None:
    """The sampled rank is the rank if all negatives are drawn."""
    draw, count = NegativeDraw(5, 4), np.array([[4, 0, 3, 2, 1]])
    _, share = sampled.rank_distribution(count, draw)
    np.testing.assert_allclose(share, count / 10, atol=1e-12)
    result = likely_means(count, "mrr", [None], draw)[0, 0]
    assert result == pytest.approx(4 / 10 + 3 / 10 / 3 + 2 / 10 / 4 + 1 / 10 / 5)


def test_each_step_raises_the_likelihood() -> None:
    draw, count = NegativeDraw(400, 20), np.bincount(np.arange(21) ** 2 // 20, minlength=21)[None]
    logs = []
    for steps in (0, 1, 2, 5, 20, 100):
        ranks, share = sampled.rank_distribution(count, draw, steps=steps)
        assert share.sum() == pytest.approx(1) and len(ranks.rank) == 400
        logs.append(float((count * np.log(share @ draw.chances(ranks.rank))).sum()))
    assert logs == sorted(logs) and logs[-1] > logs[0] + 1


def test_histograms_are_estimated_row_by_row() -> None:
    draw, rng = NegativeDraw(300, 10), np.random.default_rng(5)
    count = rng.integers(0, 20, (3, 11))
    together = likely_means(count, "ndcg", [5], draw)
    alone = [likely_means(row[None], "ndcg", [5], draw)[0] for row in count]
    np.testing.assert_allclose(together, alone, rtol=1e-10)
    assert np.isnan(likely_means(np.zeros((1, 11), int), "ndcg", [5], draw)).all()
    assert np.isfinite(likely_means(np.eye(11, dtype=int)[:1], "ndcg", [5], draw)).all()


def test_sampled_ranks_count_negatives_only() -> None:
    """Candidates 1..6 with scores 6..1, truth 2, 4 and 9; negatives 1, 3, 5, 6: ranks 2 and 3."""
    scores = {item: 7.0 - item for item in range(1, 7)}
    rankings = make_rankings([(scores, {4: 1.0, 9: 1.0, 2: 1.0}), (scores, {1: 1.0})])
    result = sampled.sampled_ranks(rankings, Definition())
    assert result.tolist() == [3, 0, 2, 1]
    table = sampled.raw("mrr", [None], NegativeDraw(50, 4))
    values = sampled.user_values(np.array([0, 3, 4, 4]), result, table)
    np.testing.assert_allclose(values[:, 0], [(1 / 3 + 0 + 1 / 2) / 3, 1, np.nan])
    assert count_sampled_ranks(result, 4).tolist() == [1, 1, 1, 0, 0]


def test_sampled_ranks_follow_the_rule_for_ties() -> None:
    rankings = make_rankings([({1: 0.0, 2: 0.0, 3: 0.0, 4: 0.0}, {3: 1.0})])
    for ties, rank in {"id": 3, "optimistic": 1, "pessimistic": 4}.items():
        assert sampled.sampled_ranks(rankings, Definition(ties=ties)).tolist() == [rank]


@settings(max_examples=60)
@given(st.integers(2, 60), st.data())
def test_a_constant_stays_what_it_is(n: int, data: Any) -> None:
    """hit@n is 1 for every rank, and so must be what each correction expects."""
    replacement = data.draw(st.booleans())
    draw = NegativeDraw(n, data.draw(st.integers(1, 20 if replacement else min(20, n - 1))), replacement)
    for name in set(sampled.ESTIMATORS) - {"sampled"}:
        mean, _ = expectation(
            sampled.ESTIMATORS[name]("hit", [n], draw, Definition()), draw, np.arange(1, n + 1)
        )
        np.testing.assert_allclose(mean, 1.0, rtol=1e-7, err_msg=name)


def test_wrong_requests_are_refused() -> None:
    for n, m in ((1, 1), (10, 10), (10, 0), (10**6, 5000)):
        with pytest.raises(ConfigError, match=f"{m} negatives from a catalogue of {n} items"):
            NegativeDraw(n, m)
    with pytest.raises(ConfigError, match="did you mean 'ndcg'"):
        sampled.raw("ndgc", [1], NegativeDraw(10, 2))
    with pytest.raises(ConfigError, match="gamma 0 "):
        sampled.bias_variance("hit", [1], NegativeDraw(10, 2), gamma=0)


def test_a_users_value_is_the_same_bits_in_any_company() -> None:
    """Fails where users are differences of one running sum."""
    rng = np.random.default_rng(5)
    count = rng.integers(0, 6, 400)
    offsets = np.concatenate([[0], np.cumsum(count)])
    rank, table = rng.integers(0, 51, offsets[-1]), rng.random((50, 3)) * 1e3
    together = sampled.user_values(offsets, rank, table)
    for u in range(len(count)):
        mine = rank[offsets[u] : offsets[u + 1]]
        alone = sampled.user_values(np.array([0, len(mine)]), mine, table)
        np.testing.assert_array_equal(together[u : u + 1], alone)


def test_the_names_of_a_config_file_are_those_of_the_estimators() -> None:
    assert set(get_args(DrawEstimator)) == {*sampled.ESTIMATORS, "maximum_likelihood"} - {"sampled"}
