"""Estimators under exposure bias: by hand, against loops over orders, and over all exposures."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from recbench_spark.analyses.exposure.kernels import exposure
from recbench_spark.analyses.exposure.kernels.exposure import (
    EstimatorSettings,
    Parts,
    Rewards,
    contributions,
    reason,
    restrict,
)
from recbench_spark.core.definitions import Definition
from recbench_spark.core.ratios import scaling
from recbench_spark.core.resampling import bootstrap_sums, poisson_weights, replicate_means
from recbench_spark.errors import ConfigError, DataError
from recbench_spark.metrics.kernels.accuracy import measure
from recbench_spark.ranking.kernels.rankings import Rankings
from tests import oracles
from tests.oracles import make_rankings

KS = (1, 2, 4)
METRICS = ("hit", "precision", "recall", "dcg", "ndcg")
COUNT = Definition(hit="count")
SETTINGS = EstimatorSettings(clip=3.0, switch=3.0, shrink=2.0)
CHANCES = [1.0, 0.5, 0.25, 0.125]

SCORES = st.dictionaries(st.integers(0, 7), st.sampled_from([0.0, 0.5, 1.0, 2.0]), min_size=1, max_size=6)
TRUTH = st.dictionaries(st.integers(0, 7), st.sampled_from([0.0, 1.0, 2.0]), min_size=1, max_size=4)
USERS = st.lists(st.tuples(SCORES, TRUTH), min_size=1, max_size=4)
DEFINITIONS = st.builds(
    Definition,
    hit=st.just("count"),
    ties=st.sampled_from(["id", "expected", "id_descending"]),
    gain=st.sampled_from(["binary", "linear"]),
    ideal=st.sampled_from(["min_k_relevant", "k", "relevant"]),
    recall_by=st.sampled_from(["relevant", "min_k_relevant"]),
    precision_by=st.sampled_from(["k", "list"]),
    empty_users=st.sampled_from(["leave_out", "zero"]),
    discount=st.sampled_from(["log2", "ln"]),
)


def draw_chances(users: Any) -> Any:
    """A chance for each truth item, by its id."""
    return np.array([CHANCES[item % 4] for _, truth in users for item in truth])


def compute_weights(truth: Mapping[int, float], estimator: str) -> dict[int, float]:
    w = {item: 1 / CHANCES[item % 4] for item in truth}
    if estimator == "clipped_ips":
        return {item: min(x, SETTINGS.clip) for item, x in w.items()}
    relevant = oracles.relevant_items(truth, COUNT)
    if estimator == "snips_user" and relevant:
        mean = sum(w[item] for item in relevant) / len(relevant)
        return {item: x / mean for item, x in w.items()}
    return w


def sum_weighted_gains(
    metric: str, truth: Mapping[int, float], w: Mapping[int, float], d: Definition
) -> Any:
    relevant = oracles.relevant_items(truth, d)
    if metric in ("dcg", "ndcg"):
        return {item: w[item] * oracles._gain(grade, d) for item, grade in truth.items()}
    return {item: w[item] * (item in relevant) for item in truth}


def rank_weight(metric: str, rank: int, d: Definition) -> float:
    return oracles._discount(rank, d) if metric in ("dcg", "ndcg") else 1.0


def slow_total(metric: str, order: Any, gains: Any, k: int | None, d: Definition) -> float:
    total = sum(gains.get(item, 0) * rank_weight(metric, r, d) for r, item in enumerate(order[:k], 1))
    if metric == "precision":
        return total / oracles._precision_length(order, {}, k, d)
    return total


def slow_most(metric: str, order: Any, gains: Any, k: int | None, d: Definition) -> float:
    best = sorted(gains.values(), reverse=True)
    if metric == "recall":
        return sum(best) if d.recall_by == "relevant" else sum(best[:k])
    if d.ideal == "k":
        return best[0] * sum(rank_weight(metric, r, d) for r in range(1, oracles._cut(order, k) + 1))
    at = None if d.ideal == "relevant" else k
    return sum(g * rank_weight(metric, r, d) for r, g in enumerate(best[:at], 1))


def slow_parts(estimator: str, metric: str, user: Any, k: int | None, d: Definition) -> tuple[float, float]:
    """Numerator and denominator of one user, the mean over all orders of ties where they are expected."""
    scores, truth = user
    relevant = oracles.relevant_items(truth, d)
    if not relevant and d.empty_users == "leave_out":
        return math.nan, math.nan
    w = compute_weights(truth, estimator)
    gains = sum_weighted_gains(metric, truth, w, d)
    every = list(oracles.orders(scores))
    every = {"id": every[:1], "id_descending": every[-1:], "expected": every}[d.ties]
    total = sum(slow_total(metric, order, gains, k, d) for order in every) / len(every)
    pooled = estimator == "snips_global"
    if metric in exposure.SUMS:
        return total, sum(w[item] for item in relevant) if pooled else 1.0
    most = slow_most(metric, every[0], gains, k, d)
    if pooled:
        return total, most
    return (total / most, 1.0) if most else (0.0, 1.0)


@pytest.mark.full
@settings(max_examples=150)
@given(USERS, DEFINITIONS)
def test_weighted_estimators_equal_loops_over_orders(users: Any, d: Definition) -> None:
    result = contributions(
        make_rankings(users),
        draw_chances(users),
        METRICS,
        KS,
        d,
        estimators=exposure.WEIGHTED,
        settings=SETTINGS,
    )
    assert len(result) == 20
    for (estimator, metric), parts in result.items():
        cuts = exposure.columns(metric, KS)
        slow = [[slow_parts(estimator, metric, user, k, d) for k in cuts] for user in users]
        expected = np.array(slow, dtype=float).reshape(len(users), len(cuts), 2)
        np.testing.assert_allclose(parts.numerator, expected[..., 0], rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(parts.denominator, expected[..., 1], rtol=1e-12, atol=1e-12)


@settings(max_examples=60)
@given(USERS, DEFINITIONS)
def test_equal_chances_give_the_holdout(users: Any, d: Definition) -> None:
    rankings = make_rankings(users)
    plain = measure(rankings, [m for m in METRICS if m != "dcg"], KS, d)
    one = np.ones(len(rankings.relevance))
    result = contributions(rankings, one, METRICS, KS, d, estimators=exposure.ESTIMATORS, settings=SETTINGS)
    for (estimator, metric), parts in result.items():
        if estimator in ("snips_global", "ips_pooled") and metric in exposure.QUOTIENTS:
            continue
        held = result["holdout", metric]
        if not held.numerator[:, 0].any() and not any(oracles.relevant_items(t, d) for _, t in users):
            # Pooled weights of nobody have no quotient, whatever empty users count.
            continue
        np.testing.assert_allclose(parts.estimate(), held.estimate(), rtol=1e-12, atol=1e-13)
        if metric != "dcg":
            np.testing.assert_allclose(held.numerator, plain[metric], rtol=1e-12, atol=1e-13)


@settings(max_examples=40)
@given(USERS, st.integers(1, 3))
def test_batches_of_users_change_nothing(users: Any, cut: int) -> None:
    whole = contributions(
        make_rankings(users), draw_chances(users), METRICS, KS, COUNT, estimators=["ips"], settings=SETTINGS
    )
    for part, rows in ((users[:cut], slice(None, cut)), (users[cut:], slice(cut, None))):
        if part:
            result = contributions(
                make_rankings(part),
                draw_chances(part),
                METRICS,
                KS,
                COUNT,
                estimators=["ips"],
                settings=SETTINGS,
            )
            for key, parts in result.items():
                np.testing.assert_array_equal(parts.numerator, whole[key].numerator[rows])


@settings(max_examples=60)
@given(USERS, DEFINITIONS)
def test_what_items_add_sums_to_the_metric(users: Any, d: Definition) -> None:
    rankings = make_rankings(users)
    user = np.repeat(np.arange(len(users)), np.diff(rankings.offsets))
    held = contributions(
        rankings, np.ones(len(user)), METRICS, KS, d, estimators=["holdout"], settings=SETTINGS
    )
    for name, added in exposure.addends(rankings, METRICS, KS, d).items():
        total = np.zeros((len(users), added.shape[1]))
        np.add.at(total, user, added)
        value = held["holdout", name].numerator
        # A user whose gains allow no ideal has no NDCG, and nothing to add to it.
        np.testing.assert_allclose(total[~np.isnan(value)], value[~np.isnan(value)], rtol=1e-12, atol=1e-13)
    with pytest.raises(ConfigError, match="is not a sum"):
        exposure.addends(rankings, ["mrr"], KS, d)


def test_by_hand() -> None:
    """Ranks 1 and 3 of two relevant items with chances 1/2 and 1/8: w = 2 and 8."""
    users = [({0: 9.0, 1: 8.0, 2: 7.0}, {0: 1.0, 2: 1.0})]
    chance = np.array([1 / 2, 1 / 8])
    result = contributions(
        make_rankings(users), chance, METRICS, (1,), COUNT, estimators=exposure.WEIGHTED, settings=SETTINGS
    )
    assert result["ips", "hit"].numerator[0, 0] == 2 and result["snips_user", "hit"].numerator[0, 0] == 0.4
    assert result["clipped_ips", "recall"].numerator[0, 0] == 2 / 5
    assert result["ips", "recall"].numerator[0, 0] == result["snips_user", "recall"].numerator[0, 0] == 0.2
    # At rank 1 the ideal shows the item of weight 8; uncut it shows 8 then 2.
    log3 = math.log2(3)
    np.testing.assert_allclose(result["ips", "ndcg"].numerator[0], [2 / 8, (2 + 8 / 2) / (8 + 2 / log3)])
    parts = result["snips_global", "dcg"]
    assert parts.size is not None and parts.size[0, 0] == 2 and parts.denominator[0, 0] == 10
    assert parts.estimate()[0] == pytest.approx(2 / 10 * 2)


def world() -> tuple[Any, Any, Any]:
    """Two users, four items each, every relevance known; chances; a wrong reward model."""
    users = [
        ({0: 4.0, 1: 3.0, 2: 2.0, 3: 1.0}, {0: 1.0, 1: 0.0, 2: 1.0, 3: 0.0}),
        ({0: 1.0, 1: 3.0, 2: 3.0, 3: 9.0}, {0: 1.0, 1: 1.0, 2: 0.0, 3: 0.0}),
    ]
    model = np.array([0.9, 0.3, 0.2, 0.6, 0.1, 0.8, 0.5, 0.4])
    return users, draw_chances(users), model


def expectation(estimator: str, rewards_of: Any) -> dict[str, Any]:
    """The mean over all 2^8 patterns of exposure of what the estimator says."""
    users, chance, model = world()
    full, definition = make_rankings(users), Definition(hit="count", empty_users="zero")
    total: dict[str, Any] = dict.fromkeys(exposure.SUMS, 0.0)
    for shown in itertools.product([False, True], repeat=8):
        keep = np.array(shown)
        likely = np.prod(np.where(keep, chance, 1 - chance))
        if likely:
            seen = restrict(full, keep)
            rewards = rewards_of(model, keep)
            result = contributions(
                seen,
                chance[keep],
                exposure.SUMS,
                KS,
                definition,
                estimators=[estimator],
                settings=SETTINGS,
                rewards=rewards,
            )
            for name, value in total.items():
                total[name] = value + likely * result[estimator, name].numerator.mean(axis=0)
    return total


def select_rewards(model: Any, keep: Any) -> Rewards:
    """Lists are (0, 1, 2, 3) and (3, 1, 2, 0); model values stand in the order of truth items."""
    return Rewards(np.array([0, 4, 8]), model[[0, 1, 2, 3, 7, 5, 6, 4]], model[keep])


def make_world() -> Any:
    users, chance, _ = world()
    definition = Definition(hit="count", empty_users="zero")
    result = contributions(
        make_rankings(users),
        chance,
        exposure.SUMS,
        KS,
        definition,
        estimators=["holdout"],
        settings=SETTINGS,
    )
    return {name: result["holdout", name].numerator.mean(axis=0) for name in exposure.SUMS}


@pytest.mark.parametrize("estimator", ["ips", "dr"])
def test_over_all_exposures_the_mean_is_the_truth(estimator: str) -> None:
    """Also of dr, whose reward model is wrong."""
    truth, result = make_world(), expectation(estimator, select_rewards)
    for name in exposure.SUMS:
        np.testing.assert_allclose(result[name], truth[name], rtol=1e-12)


def test_a_weight_at_the_switch_is_trusted() -> None:
    """Weights are compared in float32, as those of a table in float32 are."""
    weight = np.array([1.0, 3.0, np.nextafter(np.float32(3.0), np.float32(4.0))])
    assert exposure.correction_weights("switch_dr", weight, SETTINGS).tolist() == [1.0, 3.0, 0.0]
    assert exposure.correction_weights("dros", weight[:1], SETTINGS).tolist() == [2 / 3]


@pytest.mark.parametrize("estimator", ["holdout", "clipped_ips", "dm", "switch_dr", "dros"])
def test_the_others_are_biased_with_a_wrong_model(estimator: str) -> None:
    truth, result = make_world(), expectation(estimator, select_rewards)
    assert np.abs(result["hit"] - truth["hit"]).max() > 0.02


@pytest.mark.parametrize("estimator", exposure.MODELLED)
def test_a_right_model_needs_no_chances(estimator: str) -> None:
    users, _, _ = world()
    relevance = make_rankings(users).relevance
    truth, wrong = make_world(), np.full(8, 0.07)
    definition = Definition(hit="count", empty_users="zero")
    keep = np.array([True, False] * 4)
    result = contributions(
        restrict(make_rankings(users), keep),
        wrong[keep],
        exposure.SUMS,
        KS,
        definition,
        estimators=[estimator],
        settings=SETTINGS,
        rewards=select_rewards(relevance, keep),
    )
    for name in exposure.SUMS:
        np.testing.assert_allclose(result[estimator, name].numerator.mean(axis=0), truth[name], rtol=1e-12)


def make_pooled_world() -> tuple[Any, Any]:
    """Relevant at ranks 1 (always shown) and 3 (chance 1/4) for one user, at 2 (chance 1/2) for another."""
    users = [
        ({0: 9.0, 1: 8.0, 2: 7.0}, {0: 1.0, 2: 1.0}),
        ({0: 9.0, 1: 8.0, 2: 7.0}, {1: 1.0}),
    ]
    return users, np.array([1.0, 1 / 4, 1 / 2])


def pool_users(keep: Any, estimator: str = "ips_pooled", metric: str = "ndcg") -> Parts:
    users, chance = make_pooled_world()
    seen = restrict(make_rankings(users), keep)
    return contributions(
        seen, chance[keep], [metric], (2,), COUNT, estimators=[estimator], settings=SETTINGS
    )[estimator, metric]


def test_pooled_by_hand() -> None:
    """All shown: w 1 and 4, and 2: mean number (5 + 2) / 2, of which the first two ranks hold two."""
    every, discount = np.ones(3, bool), 1 / math.log2(3)
    mean_dcg, ideal = (1 + 2 * discount) / 2, 1 + discount
    uncut = (1 + 4 / 2 + 2 * discount) / 2 / (1 + discount + 1 / 2 + 0.5 / math.log2(5))
    np.testing.assert_allclose(pool_users(every).estimate(), [mean_dcg / ideal, uncut], rtol=1e-14)
    np.testing.assert_allclose(
        pool_users(every, metric="recall").estimate(), [(1 + 2) / (5 + 2)], rtol=1e-14
    )
    # Nothing of the second user was shown: counted all the same, with 0 of 0.
    parts = pool_users(np.array([True, False, False]))
    assert parts.numerator[:, 0].tolist() == [1, 0] and parts.denominator[:, 0].tolist() == [1, 0]
    assert parts.estimate()[0] == pytest.approx(1 / 2 / (1 / 2))


def outcomes(estimator: str = "ips_pooled") -> list[tuple[Fraction, tuple[Fraction, Fraction], float]]:
    """Yield for each pattern of exposure its probability, the sums of both parts and the estimate at 2."""
    result = []
    for first, second in itertools.product([True, False], repeat=2):
        likely = Fraction(1, 4) if first else Fraction(3, 4)
        parts = pool_users(np.array([True, first, second]), estimator)
        sums = [sum(map(Fraction, part[:, 0]), Fraction(0)) for part in (parts.numerator, parts.denominator)
                if not np.isnan(part[:, 0]).any()]  # fmt: skip
        result.append((likely / 2, tuple(sums), float(parts.estimate()[0])))
    return result


def test_both_sides_of_the_pooled_quotient_are_unbiased() -> None:
    """In fractions, over all exposures: the mean of sums is the sum over all that is relevant."""
    discount = Fraction(1 / math.log2(3))
    for place, truth in ((0, 1 + discount), (1, 3)):
        assert sum(likely * sums[place] for likely, sums, _ in outcomes()) == truth


@pytest.mark.full
def test_pooled_ndcg_converges_to_its_estimand_and_weighted_ndcg_does_not() -> None:
    """The exact mean over all exposures of 1, 2, 4 ... copies of the world."""
    discount = 1 / math.log2(3)
    estimand = (1 + discount) / 2 / (1 + 0.5 * discount)
    one = {sums: likely for likely, sums, _ in outcomes()}
    copies, errors = one, []
    for n in (1, 2, 4, 8, 16, 32):
        if n > 1:
            copies = _add(copies, copies)
        means = {
            sums: float(sums[0] / (2 * n))
            / np.interp(float(sums[1] / (2 * n)), [0, 1, 2], [0, 1, 1 + discount])
            for sums in copies
        }
        errors.append(sum(float(copies[sums]) * mean for sums, mean in means.items()) - estimand)
    assert all(abs(after) < 0.6 * abs(before) for before, after in itertools.pairwise(errors[1:]))
    assert abs(errors[-1]) < 0.004
    # What is left is not chance: users have two and one relevant items.
    mean_ndcg = (1 / (1 + discount) + discount) / 2
    assert 0 < mean_ndcg - estimand < 0.003
    # The weighted NDCG is a mean over users: more of them make it no better.
    weighted = sum(float(likely) * value for likely, _, value in outcomes("ips"))
    assert weighted - mean_ndcg > 0.1


def _add(one: dict[Any, Fraction], other: dict[Any, Fraction]) -> dict[Any, Fraction]:
    result: dict[Any, Fraction] = {}
    for (a, p), (b, q) in itertools.product(one.items(), other.items()):
        both = (a[0] + b[0], a[1] + b[1])
        result[both] = result.get(both, Fraction(0)) + p * q
    return result


def test_ideals_of_a_mean_user() -> None:
    """One and a half relevant items, at 1, 2 and uncut."""
    half, discount = 0.5 / math.log2(3), 1 / math.log2(3)
    wanted: dict[tuple[str, str, str], list[float]] = {
        ("ndcg", "ideal", "min_k_relevant"): [1, 1 + half, 1 + half],
        ("ndcg", "ideal", "relevant"): [1 + half, 1 + half, 1 + half],
        ("ndcg", "ideal", "k"): [1, 1 + discount, math.nan],
        ("ndcg", "discount", "ln"): [1 / math.log(2)] + [1 / math.log(2) + 0.5 / math.log(3)] * 2,
        ("recall", "recall_by", "relevant"): [1.5, 1.5],
        ("recall", "recall_by", "min_k_relevant"): [1, 1.5],
    }
    for (metric, axis, value), ideal in wanted.items():
        number = np.full(len(exposure.columns(metric, (1, 2))), 1.5)
        result = exposure.ideal_value(metric, number, (1, 2), Definition(**{axis: value}))  # type: ignore[arg-type]
        np.testing.assert_allclose(result, ideal[: len(number)], rtol=1e-14)


def test_pooled_reasons() -> None:
    assert "ips" in str(reason("ips_pooled", "dcg", COUNT, SETTINGS))
    assert "gains of 0 and 1" in str(reason("ips_pooled", "ndcg", Definition(gain="linear"), SETTINGS))
    assert "factor" in str(reason("ips_pooled", "recall", COUNT, EstimatorSettings(chances=False)))


def test_a_cut_list_has_no_uncut_model_value() -> None:
    users, chance, model = world()
    rewards = Rewards(np.array([0, 2, 4]), model[:4], model)
    result = contributions(
        make_rankings(users),
        chance,
        ["dcg"],
        (1, 2),
        COUNT,
        estimators=["dm"],
        settings=SETTINGS,
        rewards=rewards,
    )
    value = result["dm", "dcg"].numerator
    assert np.isfinite(value[:, :2]).all() and np.isnan(value[:, 2]).all()
    assert value[0].tolist()[:2] == pytest.approx([0.9, 0.9 + 0.3 / math.log2(3)])


@pytest.mark.parametrize(
    ("estimator", "metric", "axes", "words"),
    [
        ("ips", "mrr", {}, "no sum"),
        ("ips", "hit", {}, "no sum"),
        ("dm", "dcg", {}, "no reward model"),
        ("snips_user", "precision", {"precision_by": "min_k_relevant"}, "not known"),
        ("ips", "ndcg", {"negative_grades": "worst"}, "below 0"),
    ],
)
def test_reasons(estimator: str, metric: str, axes: Any, words: str) -> None:
    assert words in str(reason(estimator, metric, Definition(**axes), SETTINGS))


def test_reasons_of_models_and_scales() -> None:
    assert "relevant" in str(reason("dr", "ndcg", COUNT, SETTINGS, rewards=True))
    assert "grades" in str(reason("dr", "dcg", Definition(gain="linear"), SETTINGS, rewards=True))
    assert reason("dr", "dcg", COUNT, SETTINGS, rewards=True) is None
    scale = EstimatorSettings(chances=False)
    assert "factor" in str(reason("ips", "dcg", COUNT, scale))
    assert reason("ips", "recall", COUNT, scale) is reason("snips_global", "hit", COUNT, scale) is None
    assert reason("stratified", "mrr", COUNT, scale) is None
    with pytest.raises(ConfigError, match="unknown estimator 'snip'"):
        reason("snip", "dcg", COUNT, SETTINGS)


def test_what_has_a_reason_has_no_parts_and_chances_are_checked() -> None:
    users, chance, _ = world()
    result = contributions(
        make_rankings(users), chance, ["mrr"], KS, COUNT, estimators=exposure.ESTIMATORS, settings=SETTINGS
    )
    assert list(result) == [("holdout", "mrr")]
    with pytest.raises(DataError, match="not positive"):
        contributions(
            make_rankings(users), chance * 0, ["dcg"], KS, COUNT, estimators=["ips"], settings=SETTINGS
        )


def test_stratified_by_hand() -> None:
    """Two strata: items 0, 1 and items 2, 3. User 1 has no positive in the second."""
    users = [
        ({0: 9.0, 1: 8.0, 2: 7.0, 3: 6.0}, {0: 1.0, 2: 1.0, 3: 1.0}),
        ({0: 9.0, 1: 8.0, 2: 7.0, 3: 6.0}, {1: 1.0, 3: 0.0}),
    ]
    stratum = np.array([0, 1, 1, 0, 1])
    values, sizes = exposure.measure_by_stratum(
        make_rankings(users), stratum, 2, ["recall", "mrr"], (1, 3), definition=COUNT
    )
    assert sizes.tolist() == [[1, 2], [1, 1]]
    np.testing.assert_array_equal(values["recall"][0], [[1, 1], [0, 0.5]])
    np.testing.assert_array_equal(values["recall"][1], [[0, 1], [math.nan, math.nan]])
    mean = np.nanmean(values["recall"], axis=0)
    value, share = exposure.combine_strata(mean, sizes.sum(axis=0))
    np.testing.assert_allclose(value, [2 / 5 * 1 / 2, 2 / 5 * 1 + 3 / 5 * 1 / 2])
    assert share.tolist() == [1, 1]
    np.testing.assert_allclose(values["mrr"][:, :, 2], [[1, 1 / 3], [1 / 2, math.nan]])


@given(st.lists(st.floats(0, 1), min_size=1, max_size=4), st.integers(1, 10_000))
def test_one_stratum_is_the_plain_mean_to_the_last_bit(values: list[float], size: int) -> None:
    mean = np.array([values])
    value, share = exposure.combine_strata(mean, np.array([size]))
    assert np.array_equal(value, values) and (share == 1).all()
    assert np.isnan(exposure.combine_strata(np.full((1, 1), np.nan), np.array([size]))[0]).all()


def test_a_stratum_without_positives_is_left_out_and_said_so() -> None:
    mean = np.array([[0.5], [math.nan]])
    value, share = exposure.combine_strata(mean, np.array([30, 10]))
    assert value.tolist() == [0.5] and share.tolist() == [0.75]
    replicates, _ = exposure.combine_strata(np.stack([mean, [[0.2], [0.6]]]), np.array([[30, 10], [1, 3]]))
    np.testing.assert_allclose(replicates, [[0.5], [0.5]])


@settings(max_examples=50)
@given(USERS, st.integers(0, 3))
def test_strata_equal_the_oracle_on_restricted_truth(users: Any, seed: int) -> None:
    d = Definition(ties="expected")
    stratum_of = np.random.default_rng(seed).integers(0, 2, 8)
    stratum = np.array([stratum_of[item] for _, truth in users for item in truth])
    values, _ = exposure.measure_by_stratum(make_rankings(users), stratum, 2, ["ndcg"], (2,), definition=d)
    for u, (scores, truth) in enumerate(users):
        for s in range(2):
            inside = {item: grade for item, grade in truth.items() if stratum_of[item] == s}
            expected = oracles.value("ndcg", scores, inside, 2, d)
            assert values["ndcg"][u, s, 0] == pytest.approx(expected, abs=1e-12, nan_ok=True)


def many(u: int) -> tuple[Any, Any]:
    """Users with two relevant items of twenty at random ranks, and their chances."""
    rng = np.random.default_rng(0)
    above = np.array([rng.choice(20, 2, replace=False) for _ in range(u)]).ravel()
    zero = np.zeros_like(above)
    rankings = Rankings(np.arange(u + 1) * 2, np.ones(2 * u), above, zero, zero, np.full(u, 20))
    return rankings, rng.choice([1e-3, 0.02, 0.5], 2 * u)


@pytest.mark.parametrize("estimator", ["ips", "snips_global"])
def test_replicates_are_weighted_estimates(estimator: str) -> None:
    rankings, chance = many(300)
    keys = np.arange(300) * 77
    parts = contributions(
        rankings, chance, ["hit"], (3, 9), COUNT, estimators=[estimator], settings=SETTINGS
    )[estimator, "hit"]
    parts.numerator[:7] = parts.denominator[:7] = np.nan
    f, g = scaling(float(np.nanmax(parts.numerator))), scaling(float(np.nanmax(parts.denominator)))
    scaled = Parts(parts.numerator * f, parts.denominator * g, parts.size)
    whole = exposure.replicate_sums(scaled, keys, 12, 4)
    rows = [slice(0, 100), slice(100, 300)]
    batches = [
        exposure.replicate_sums(Parts(*(x[r] for x in part)), keys[r], 12, 4)
        for r in rows
        for part in [[x for x in (scaled.numerator, scaled.denominator, scaled.size) if x is not None]]
    ]
    assert (np.sum(batches, axis=0) == whole).all()
    result = exposure.replicate_estimates(whole) * (g / f)
    for r, weight in enumerate(poisson_weights(keys, 12, 4).T):
        drawn = [None if x is None else np.repeat(x, weight, axis=0) for x in vars(parts).values()]
        np.testing.assert_allclose(result[r], Parts(*drawn).estimate(), rtol=1e-7)  # type: ignore[arg-type]


def test_replicates_of_strata_resample_sizes_too() -> None:
    rankings, _ = many(200)
    stratum = np.random.default_rng(1).integers(0, 3, 400)
    values, sizes = exposure.measure_by_stratum(rankings, stratum, 3, ["recall"], (5,), definition=COUNT)
    keys, columns = np.arange(200), values["recall"].reshape(200, 3)
    mean = replicate_means(*bootstrap_sums(keys, columns, 8, 0)).reshape(8, 3, 1)
    size = bootstrap_sums(keys, sizes.astype(float), 8, 0)[0] * 2.0**-30
    result, _ = exposure.combine_strata(mean, size)
    for r, weight in enumerate(poisson_weights(keys, 8, 0).T):
        drawn = np.repeat(columns, weight, axis=0), np.repeat(sizes, weight, axis=0).sum(axis=0)
        expected = sum(np.nanmean(drawn[0], axis=0) * drawn[1]) / drawn[1].sum()
        assert result[r, 0] == pytest.approx(expected, rel=1e-7)


def test_diagnostics_by_hand() -> None:
    """Weights 1 (198 rows) and 50 (2 rows): the largest 1 % are the two."""
    result = exposure.diagnostics(np.array([1.0, 50.0]), np.array([198, 2]))
    assert (result.rows, result.largest) == (200, 50.0)
    assert result.effective == pytest.approx(298**2 / (198 + 5000))
    assert result.top_share == pytest.approx(100 / 298)
    half = exposure.diagnostics(np.array([50.0, 1.0]), np.array([2, 99]), top=0.005)
    assert half.top_share == pytest.approx(50 / 199)
    assert exposure.diagnostics(np.ones(3), np.ones(3)).effective == 3
    assert math.isnan(exposure.diagnostics(np.array([]), np.array([])).top_share)


def test_parts_of_nobody_are_nan() -> None:
    nobody = np.full((2, 1), math.nan)
    assert math.isnan(Parts(nobody, nobody).estimate()[0])


@pytest.mark.data
def test_most_popular_on_coat_as_published_and_beside_its_estimates(shared_data: Path) -> None:
    """Open loop, most popular, ratings >= 4, training items kept, ties expected; 237 users."""
    folder = shared_data / "coat"
    train, opened = np.loadtxt(folder / "train.ascii"), np.loadtxt(folder / "test.ascii")
    count = (train > 0).sum(axis=0)
    d = Definition(ties="expected", threshold=4.0, candidates="all", hit="count")
    opened_rankings, _, _ = popular(opened, count)
    ks = (100, 30, 20, 10, 5)
    value = measure(opened_rankings, ["ndcg"], ks, d)["ndcg"]
    assert (~np.isnan(value[:, 0])).sum() == 237
    published = [0.12482, 0.06709, 0.05588, 0.03522, 0.02561, 0.24194]
    np.testing.assert_allclose(np.nanmean(value, axis=0), published, atol=5e-6)
    # The closed loop flatters most popular; its own propensities bring recall down towards the truth.
    rankings, users, items = popular(train, count)
    chance = np.clip(np.loadtxt(folder / "propensities.ascii"), 0.01, 1.0)[users, items]
    result = contributions(
        rankings, chance, ["recall"], ks, d, estimators=["holdout", "snips_user"], settings=SETTINGS
    )
    truth = np.nanmean(measure(opened_rankings, ["recall"], ks, d)["recall"], axis=0)
    plain, weighted = (result[name, "recall"].estimate() for name in ("holdout", "snips_user"))
    assert (plain > truth).all() and (np.abs(weighted - truth) < np.abs(plain - truth)).all()


def popular(rating_ui: Any, count_i: Any) -> tuple[Rankings, Any, Any]:
    """Return the rank of each rated item when all items are ranked by count, and its users and items."""
    users, items = np.nonzero(rating_ui)
    above = (count_i[None] > count_i[:, None]).sum(axis=1)
    tied = (count_i[None] == count_i[:, None]).sum(axis=1) - 1
    smaller = np.tril(count_i[None] == count_i[:, None], -1).sum(axis=1)
    offsets = np.cumsum([0, *(rating_ui > 0).sum(axis=1)])
    length = np.full(len(rating_ui), len(count_i))
    parts = above[items], tied[items], smaller[items]
    return Rankings(offsets, rating_ui[users, items], *parts, length), users, items
