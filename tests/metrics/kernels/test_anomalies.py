"""Cases in which metrics of predictions mislead, each with the number that shows it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from recbench_spark.metrics.kernels import predictions, roc

Group = tuple[float, int, int]
"""A prediction, with how many clicks and how many misses it got."""


def rows(groups: Iterable[Group]) -> tuple[Any, Any]:
    parts = [([p] * (hits + misses), [1.0] * hits + [0.0] * misses) for p, hits, misses in groups]
    return tuple(np.concatenate(column) for column in zip(*parts, strict=True))


def measure_groups(groups: Iterable[Group]) -> dict[str, float]:
    p, y = rows(groups)
    result = predictions.from_totals(predictions.user_sums(np.array([0, len(p)]), p, y)[0])
    bins = predictions.bin_sums(predictions.equal_mass_edges(p, 2), p, y)
    return {
        **{name: float(value) for name, value in result.items()},
        "auc": roc.auc(roc.pair_counts(p, y)),
        "ece": float(predictions.calibration_error(bins)),
    }


# ------------------------------------------------------------------ the same AUC, other calibration


def test_the_same_auc_and_another_calibration() -> None:
    """Two predictors order 200 rows alike; one says 10 % and 40 %, as it comes, the other 40 and 80.

    Clicks 10 of 100 and 40 of 100: AUC = (40 x 90 + (10 x 90 + 40 x 60) / 2) / (50 x 150).
    """
    right = measure_groups([(0.1, 10, 90), (0.4, 40, 60)])
    wrong = measure_groups([(0.4, 10, 90), (0.8, 40, 60)])
    auc = Fraction(40 * 90 * 2 + 10 * 90 + 40 * 60, 2 * 50 * 150)
    assert right["auc"] == wrong["auc"] == float(auc) == 0.7
    assert right["ece"] == pytest.approx(0) and right["pe"] == pytest.approx(0)
    assert wrong["ece"] == pytest.approx((30 + 40) / 200) and wrong["pe"] == pytest.approx(120 / 50 - 1)
    assert right["rig"] > 0 > wrong["rig"], "the other one is worse than predicting 25 % for all"


def test_no_mean_error_and_wrong_everywhere() -> None:
    """20 % too high where 10 % click, 20 % too low where 70 % do: PE is 0, the ECE is not."""
    result = measure_groups([(0.3, 10, 90), (0.5, 70, 30)])
    assert result["pe"] == pytest.approx(0)
    assert result["ece"] == pytest.approx((20 + 20) / 200)


def test_the_base_rate_for_all_is_calibrated_and_worth_nothing() -> None:
    result = measure_groups([(0.25, 50, 150)])
    assert result["ece"] == pytest.approx(0) and result["rig"] == pytest.approx(0)
    assert result["auc"] == 0.5


# --------------------------------------------------------------- a better AUC that earns fewer clicks

BID = {"low": 4, "mid": 1, "high": 1, "top": 1}
CTR = {
    "low": Fraction(2, 100),
    "mid": Fraction(10, 100),
    "high": Fraction(30, 100),
    "top": Fraction(40, 100),
}
AUCTIONS = [("low", "mid"), ("low", "high"), ("low", "top")]
CALM = {"low": 0.02, "mid": 0.10, "high": 0.36, "top": 0.34}
"""Mixes up the two best ads, which never meet, and is right below."""
EAGER = {"low": 0.06, "mid": 0.10, "high": 0.30, "top": 0.40}
"""Orders all ads, and believes three times too much in the ones hardly anybody clicks."""


def expected_clicks(predicted: dict[str, float]) -> Fraction:
    """Each auction shows the ad with the highest bid x prediction."""
    winners = [max(ads, key=lambda ad: BID[ad] * predicted[ad]) for ads in AUCTIONS]
    return sum((CTR[ad] for ad in winners), Fraction(0))


def impressions(predicted: dict[str, float]) -> list[Group]:
    """A hundred impressions of each ad of each auction, clicked as often as they are."""
    hits = {ad: int(100 * CTR[ad]) for ad in CTR}
    return [(predicted[ad], hits[ad], 100 - hits[ad]) for ads in AUCTIONS for ad in ads]


def test_auc_rises_and_clicks_fall_through_overestimated_low_predictions() -> None:
    calm, eager = measure_groups(impressions(CALM)), measure_groups(impressions(EAGER))
    assert eager["auc"] > calm["auc"]
    assert expected_clicks(CALM) == Fraction(80, 100)
    assert expected_clicks(EAGER) == Fraction(72, 100), "low wins where 10 % would have clicked on mid"


def test_what_gives_it_away_is_the_low_range() -> None:
    """PE of the three impressions of `low`: 6 % said, 2 % seen; the other ranges are right."""
    p, y = rows(impressions(EAGER))
    sums = predictions.bin_sums(np.array([0.08, 0.2]), p, y)
    view = predictions.from_totals(sums)
    np.testing.assert_allclose(view["pe"], [2, 0, 0], atol=1e-9)
    assert sums[:, 0].tolist() == [300, 100, 200]


# ---------------------------------------------------------------------- RIG and the base rate


def thin_groups(keep: Fraction) -> list[Group]:
    """The predictions .1 and .5, right when all misses are kept; then a share of them is dropped."""
    return [(0.1, 16, int(144 * keep)), (0.5, 20, int(20 * keep))]


def test_rig_falls_as_the_base_rate_rises_for_the_same_model() -> None:
    """Positives 36; negatives 164, 82, 41: base rate 18 %, 31 %, 47 %. Not one prediction changes."""
    result = [measure_groups(thin_groups(Fraction(1, part))) for part in (1, 2, 4)]
    auc = Fraction(20 * 144 * 2 + 16 * 144 + 20 * 20, 2 * 36 * 164)
    assert [one["auc"] for one in result] == pytest.approx([float(auc)] * 3)
    rig = [one["rig"] for one in result]
    assert rig[0] > 0.1 and rig[0] > rig[1] > rig[2] and rig[2] < 0
    # In closed form: 1 - (g L1 + (1 - g) L0) / H(g), with the mean losses of hits and misses.
    hit = (16 * -math.log(0.1) + 20 * -math.log(0.5)) / 36
    miss = (144 * -math.log(0.9) + 20 * -math.log(0.5)) / 164
    for one, misses in zip(result, (164, 82, 41), strict=True):
        g = 36 / (36 + misses)
        entropy = -(g * math.log(g) + (1 - g) * math.log(1 - g))
        assert one["rig"] == pytest.approx(1 - (g * hit + (1 - g) * miss) / entropy)
    assert [one["pe"] for one in result] == pytest.approx([0, 23.8 / 36 - 1, 17.7 / 36 - 1], abs=1e-9)


def test_rigs_over_two_base_rates_rank_models_wrongly() -> None:
    """On the same data the first model is better; where a quarter of the misses is kept it looks worse."""
    first, second = thin_groups(Fraction(1)), [(0.12, 18, 132), (0.36, 18, 32)]
    assert measure_groups(first)["rig"] > measure_groups(second)["rig"] > 0
    elsewhere = thin_groups(Fraction(1, 4))
    assert measure_groups(elsewhere)["rig"] < 0 < measure_groups(second)["rig"]
    assert measure_groups(elsewhere)["auc"] == measure_groups(first)["auc"] > measure_groups(second)["auc"]


# ------------------------------------------------------------------------------ easy negatives


def test_many_easy_negatives_raise_the_auc() -> None:
    """A thousand rows that nobody would click, and nobody predicts: all pairs with them are won.

    AUC .7 over 50 x 150 pairs becomes (.7 x 50 x 150 + 50 x 1000) / (50 x 1150); the order of the first
    200 rows is the same.
    """
    hard = [(0.1, 10, 90), (0.4, 40, 60)]
    easy = [*hard, (0.001, 0, 1000)]
    assert measure_groups(hard)["auc"] == 0.7
    assert measure_groups(easy)["auc"] == pytest.approx(float(Fraction(5250 + 50_000, 50 * 1150)))
    assert measure_groups(easy)["auc"] > 0.96


# ------------------------------------------------------------------- gains at the ends of the range


def test_a_gain_where_nobody_looks_leaves_the_partial_auc() -> None:
    """Four clicks move from the lowest to the middle group: AUC rises, the first tenth of the ROC stays."""
    before = [(0.6, 20, 20), (0.3, 20, 80), (0.1, 10, 100)]
    after = [(0.6, 20, 20), (0.3, 24, 80), (0.1, 6, 100)]
    auc = [measure_groups(groups)["auc"] for groups in (before, after)]
    pairs = 2 * 50 * 200
    assert auc[0] == float(Fraction(20 * 380 + 20 * 280 + 10 * 100, pairs))
    assert auc[1] == float(Fraction(20 * 380 + 24 * 280 + 6 * 100, pairs)) > auc[0]
    parts = [roc.partial_auc(*rows(groups), 0.0, 0.1) for groups in (before, after)]
    # The first twenty of 200 misses are those of the highest group: 20 / 50 of the clicks, linearly.
    assert parts == pytest.approx([0.2, 0.2])


def test_a_gain_at_the_other_end_leaves_the_rest_of_the_range() -> None:
    """The 40 rows of the highest group are put in order: AUC rises, and nothing from a tenth on changes."""
    before = [(0.6, 20, 20), (0.3, 20, 80), (0.1, 10, 100)]
    after = [(0.7, 15, 5), (0.6, 5, 15), (0.3, 20, 80), (0.1, 10, 100)]
    auc = [measure_groups(groups)["auc"] for groups in (before, after)]
    # Half of the 20 x 20 pairs of the group counted before; now 15 x 15 are won, 15 x 5 + 5 x 15 half.
    gain = Fraction(15 * 15 + 75 - 200, 50 * 200)
    assert auc[1] - auc[0] == pytest.approx(float(gain)) and gain > 0
    for low, high in ((0.1, 0.5), (0.1, 1.0)):
        parts = [roc.partial_auc(*rows(groups), low, high) for groups in (before, after)]
        assert parts[0] == pytest.approx(parts[1])


# ---------------------------------------------------------------------------- unequal costs of errors


def test_one_auc_and_opposite_costs() -> None:
    """Both have AUC .7; the first finds 40 of 50 clicks with 60 of 150 misses, the second 30 with 30.

    Where a lost click costs ten wrong ads the first is better (160 against 230), where it costs one the
    second (70 against 50).
    """
    eager, strict = [(0.8, 40, 60), (0.2, 10, 90)], [(0.8, 30, 30), (0.2, 20, 120)]
    costs = []
    for groups in (eager, strict):
        p, y = rows(groups)
        rates = predictions.threshold_rates(predictions.bin_sums(np.array([0.5]), p, y))
        lost, wrong = float(rates["fnr"][0]) * 50, float(rates["fpr"][0]) * 150
        assert measure_groups(groups)["auc"] == pytest.approx(0.7)
        costs.append((10 * lost + wrong, lost + wrong))
    assert costs == [pytest.approx((160, 70)), pytest.approx((230, 50))]


# -------------------------------------------------------------------------- a better AUC, off the rate


def test_more_auc_and_clicks_underestimated() -> None:
    """45 clicks in 300 rows: mean(p) / CTR is 1.02, and .86 of the model with 3.6 % more AUC."""
    near = measure_groups([(0.306, 30, 70), (0.102, 10, 90), (0.051, 5, 95)])
    far = measure_groups([(0.32, 32, 68), (0.06, 9, 91), (0.007, 4, 96)])
    assert near["pe"] == pytest.approx(0.02) and far["pe"] == pytest.approx(-0.14)
    assert far["auc"] > 1.03 * near["auc"] and far["rig"] < near["rig"]


# -------------------------------------------------------------------------------- the main line alone


def test_better_over_all_and_worse_on_the_main_line() -> None:
    """The new model tells main line and sidebar apart, and orders the main line the wrong way round."""
    main_line = [[(0.4, 40, 60), (0.2, 20, 80)], [(0.2, 40, 60), (0.4, 20, 80)]]
    side = [[(0.3, 5, 95), (0.25, 2, 98)], [(0.05, 5, 95), (0.02, 2, 98)]]
    overall = [measure_groups([*main, *other])["auc"] for main, other in zip(main_line, side, strict=True)]
    on_main = [measure_groups(groups)["auc"] for groups in main_line]
    assert overall[1] > overall[0]
    assert on_main[1] < 0.5 < on_main[0] and sum(on_main) == pytest.approx(1)
