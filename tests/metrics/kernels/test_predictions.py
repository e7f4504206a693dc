"""Value metrics: by hand, against scikit-learn and against loops over pairs."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from sklearn.metrics import log_loss, mean_absolute_error, mean_squared_error, roc_auc_score

from recbench_spark.core.resampling import exact_sums, from_sums
from recbench_spark.errors import DataError
from recbench_spark.metrics.kernels import predictions, roc

PAIRS = st.lists(st.tuples(st.sampled_from([0.1, 0.3, 0.5, 0.9]), st.integers(0, 1)), max_size=14)


def one_user(p: Any, y: Any) -> Any:
    p, y = np.asarray(p, dtype=float), np.asarray(y, dtype=float)
    return predictions.user_sums(np.array([0, len(p)]), p, y)[0]


def arrays(pairs: list[tuple[float, int]]) -> tuple[Any, Any]:
    return np.array([p for p, _ in pairs]), np.array([float(y) for _, y in pairs])


def test_o6_by_hand() -> None:
    p, y = np.array([0.1, 0.9, 0.2, 0.3]), np.array([1.0, 0.0, 1.0, 1.0])
    result = predictions.from_totals(one_user(p, y))
    assert result["mae"] == pytest.approx(0.825) and result["rmse"] == pytest.approx(0.6875**0.5)
    assert result["pe"] == pytest.approx(1.5 / 3 - 1)
    assert result["nmse"] == pytest.approx(0.6875 / (3 / 16))
    assert roc.auc(roc.pair_counts(p, y)) == 0.0


def test_o6_gauc_by_hand() -> None:
    """Lengths 2, 3, 5; positives at ranks {1}, {1, 3}, {1, 2, 6 - 0}: rank sums 1, 4 and 9."""
    y = np.array([1, 0, 1, 0, 1, 1, 0, 1, 0, 1], dtype=float)
    assert sum(rank for rank, hit in enumerate(y[5:], start=1) if hit) == 9
    offsets, p = np.array([0, 2, 5, 10]), -np.array([1, 2, 1, 2, 3, 1, 2, 3, 4, 5.0])
    result, positives = roc.user_aucs(offsets, p, y)
    assert result.tolist() == [1.0, 0.5, 0.5] and positives.tolist() == [1, 2, 3]
    parts = roc.gauc_parts(offsets, p, y)
    assert roc.gauc(from_sums(exact_sums(parts))) == pytest.approx(3.5 / 6)


def test_scikit_learn_agrees() -> None:
    rng = np.random.default_rng(0)
    p, y = rng.random(500), (rng.random(500) < 0.3).astype(float)
    result = predictions.from_totals(one_user(p, y))
    assert result["mse"] == pytest.approx(mean_squared_error(y, p), rel=1e-11)
    assert result["mae"] == pytest.approx(mean_absolute_error(y, p), rel=1e-11)
    assert result["logloss"] == pytest.approx(log_loss(y, p), rel=1e-11)
    base = log_loss(y, np.full(500, y.mean()))
    assert result["rig"] == pytest.approx(1 - log_loss(y, p) / base, rel=1e-10)
    counts = roc.pair_counts(p, y)
    assert roc.auc(counts) == pytest.approx(roc_auc_score(y, p), rel=1e-14)
    for high in (0.05, 0.2, 1.0):
        standard = roc_auc_score(y, p, max_fpr=high)
        # scikit-learn maps the area linearly so that chance gives 1/2 (McClish 1989).
        chance = high / 2
        area = chance + (2 * standard - 1) * (1 - chance) if high < 1 else standard
        assert roc.partial_auc(p, y, 0.0, high) == pytest.approx(area, rel=1e-11)
    halves = [roc.partial_auc(p, y, a, b) * (b - a) for a, b in [(0, 0.37), (0.37, 1)]]
    assert sum(halves) == pytest.approx(roc.auc(counts), rel=1e-12)


@settings(max_examples=200)
@given(st.lists(PAIRS, min_size=1, max_size=4))
def test_user_aucs_equal_a_loop_over_pairs(users: list[Any]) -> None:
    offsets = np.cumsum([0, *map(len, users)])
    result, positives = roc.user_aucs(offsets, *arrays([row for user in users for row in user]))
    assert positives.tolist() == [sum(y for _, y in user) for user in users]
    np.testing.assert_allclose(result, [loop_auc(user) for user in users], rtol=1e-15)


def loop_auc(pairs: list[Any]) -> float:
    twice = [2 * (a > b) + (a == b) for a, y in pairs if y for b, z in pairs if not z]
    return float(Fraction(sum(twice), 2 * len(twice))) if twice else math.nan


@settings(max_examples=200)
@given(PAIRS, st.lists(st.sampled_from([0.1, 0.3, 0.5]), max_size=3))
def test_partitioned_counts_equal_those_of_the_whole(pairs: list[Any], cuts: list[float]) -> None:
    edges = [-math.inf, *sorted(cuts), math.inf]
    chunks = [[(p, y) for p, y in pairs if low < p <= high] for low, high in itertools.pairwise(edges)]
    whole = roc.pair_counts(*arrays(pairs))
    assert roc.combine([roc.pair_counts(*arrays(chunk)) for chunk in chunks]) == whole
    np.testing.assert_equal(roc.auc(whole), loop_auc(pairs))


@settings(max_examples=200)
@given(PAIRS, st.lists(st.sampled_from([0.1, 0.3, 0.5]), max_size=3), st.floats(0, 0.9), st.floats(0.05, 1))
def test_partitioned_areas_equal_that_of_the_whole(
    pairs: list[Any], cuts: list[float], low: float, width: float
) -> None:
    """Also against the curve drawn point by point."""
    high = min(1.0, low + width)
    p, y = arrays(pairs)
    whole = roc.partial_auc(p, y, low, high)
    positives, negatives = int(y.sum()), int((1 - y).sum())
    edges = [-math.inf, *sorted(set(cuts)), math.inf]
    parts = []
    for bottom, top in itertools.pairwise(edges):
        inside, above = (p > bottom) & (p <= top), p > top
        place = (int(y[above].sum()), int((1 - y)[above].sum()))
        parts.append(roc.roc_area(p[inside], y[inside], place, (low * negatives, high * negatives)))
    areas, cut = zip(*parts, strict=True)
    result = roc.area_share(sum(areas), cut, positives * negatives, (low, high))
    np.testing.assert_allclose(result, whole, rtol=1e-12)
    np.testing.assert_allclose(whole, drawn_area(pairs, low, high), rtol=1e-9, atol=1e-12)


def drawn_area(pairs: list[Any], low: float, high: float) -> float:
    """The ROC curve as points, read off at 20,000 places and at its corners."""
    total, wrong = sum(y for _, y in pairs), sum(1 - y for _, y in pairs)
    if not total or not wrong:
        return math.nan
    thresholds = [math.inf, *sorted({p for p, _ in pairs}, reverse=True)]
    fpr = [sum(1 - y for p, y in pairs if p >= t) / wrong for t in thresholds]
    tpr = [sum(y for p, y in pairs if p >= t) / total for t in thresholds]
    # A jump is not part of the area: just after it the curve is at its top.
    x, y = np.array(fpr) + 1e-13 * np.arange(len(fpr)), np.array(tpr)
    at = np.unique(np.concatenate([[low, high], x[(x > low) & (x < high)]]))
    return float(np.trapezoid(np.interp(at, x, y), at) / (high - low))


def test_auc_error_equals_the_variance_of_placements() -> None:
    rng = np.random.default_rng(1)
    p, y = rng.integers(0, 20, 80).astype(float), (rng.random(80) < 0.4).astype(float)
    wins = (p[y == 1][:, None] > p[y == 0]) + 0.5 * (p[y == 1][:, None] == p[y == 0])
    m, n = wins.shape
    variance = wins.mean(axis=1).var(ddof=1) / m + wins.mean(axis=0).var(ddof=1) / n
    assert roc.auc_error(roc.pair_counts(p, y)) == pytest.approx(variance**0.5, rel=1e-12)


def test_pair_counts_do_not_overflow() -> None:
    """Four million rows: the squares alone need 64 bits, their sum more."""
    n = 1 << 21
    p, y = np.repeat([1.0, 0.0], n), np.repeat([1.0, 0.0], n)
    counts = roc.pair_counts(p, y)
    assert counts.squares_x == n * (2 * n) ** 2 == counts.squares_z
    assert roc.auc(roc.combine([counts] * 1)) == 1.0


def test_constant_predictions_give_one_half() -> None:
    assert roc.auc(roc.pair_counts(np.ones(9), np.arange(9.0) % 2)) == 0.5


@given(PAIRS, st.randoms())
def test_order_of_rows_changes_no_bit(pairs: list[Any], random: Any) -> None:
    shuffled = random.sample(pairs, len(pairs))
    assert one_user(*arrays(pairs)).tobytes() == one_user(*arrays(shuffled)).tobytes()


def test_sums_of_users_are_separate() -> None:
    p, y = np.array([0.5, 0.25, 1.0]), np.array([1.0, 0.0, 3.0])
    result = predictions.user_sums(np.array([0, 2, 2, 3]), p, y)
    np.testing.assert_allclose(result[:, 3], [0.25 + 0.0625, 0, 4])
    assert result[:, 0].tolist() == [2, 0, 1] and result[:, 6].tolist() == [0, 0, 1]
    np.testing.assert_allclose(result[0, 5], -math.log(0.5) - math.log(0.75))


def test_a_certain_prediction_costs_the_same_on_both_sides_and_as_in_scikit_learn() -> None:
    wrong = [predictions.from_totals(one_user(*rows))["logloss"] for rows in (([0.0], [1]), ([1.0], [0]))]
    assert wrong[0] == wrong[1] == pytest.approx(52 * math.log(2), rel=1e-15)
    p, y = [0.0, 1.0, 0.3, 1.0, 0.0], [1, 0, 1, 1, 0]
    result = predictions.from_totals(one_user(p, y))["logloss"]
    assert result == pytest.approx(log_loss(y, p), rel=1e-14)
    assert predictions.from_totals(one_user([1.0, 0.0], [1, 0]))["logloss"] == pytest.approx(2.0**-52)


def compute_fractions(p: Any, y: Any) -> dict[str, Fraction]:
    """Compute the exact sums of rows from the differences that float64 gives."""
    error = [Fraction(a - b) for a, b in zip(p.tolist(), y.tolist(), strict=True)]
    return {
        "p": sum(map(Fraction, p.tolist()), Fraction(0)),
        "y": sum(map(Fraction, y.tolist()), Fraction(0)),
        "squared": sum((e * e for e in error), Fraction(0)),
        "absolute": sum(map(abs, error), Fraction(0)),
    }


SCALES = [1e-140, 1e-30, 1e-9, 5e-7, 1e-5, 1.0, 1e3, 1e9, 1e30, 1e140]


@pytest.mark.parametrize("scale", SCALES)
def test_errors_of_any_scale_are_right_to_twelve_digits(scale: float) -> None:
    """Errors of 5e-7 once gave an RMSE of 0; here against fractions, with rows of very different size."""
    rng = np.random.default_rng(int(abs(math.log10(scale))))
    for _ in range(20):
        y = rng.integers(0, 6, 50) * scale
        p = y + rng.lognormal(0, 4, 50) * scale * rng.choice([-1, 1], 50)
        sums = dict(zip(predictions.SUMS, one_user(p, y).tolist(), strict=True))
        for name, known in compute_fractions(p, y).items():
            size = sum(abs(Fraction(x)) for x in p.tolist()) if name == "p" else known
            assert abs(Fraction(sums[name]) - known) <= size * Fraction(2) ** -51, name
        rmse = float(predictions.from_totals(one_user(p, y))["rmse"])
        assert rmse == pytest.approx(math.sqrt(mean_squared_error(y, p)), rel=1e-12)


def test_small_errors_and_rare_events_by_hand() -> None:
    y = np.tile([0.0, 1.0], 500)
    for error in (5e-7, 1e-5):
        result = predictions.from_totals(one_user(np.abs(y - error), y))
        assert result["rmse"] == pytest.approx(error, rel=1e-9), "1 - 5e-7 is rounded to 2^-53"
    p = np.full(1000, 1e-9)
    never = one_user(p, np.zeros(1000))
    assert predictions.from_totals(never)["logloss"] == pytest.approx(1e-9 + 0.5e-18, rel=1e-12)
    once = np.append(np.zeros(999), 1.0)
    assert predictions.from_totals(one_user(p, once))["pe"] == 1e-6 - 1
    assert predictions.from_totals(one_user(p, once))["mean_prediction"] == pytest.approx(1e-9, rel=1e-15)


ROW = st.tuples(st.floats(-1e100, 1e100), st.floats(-1e100, 1e100))


@settings(max_examples=200)
@given(st.lists(ROW, max_size=12), st.randoms())
def test_rows_of_any_size_in_any_order_give_the_same_bits(rows: list[Any], random: Any) -> None:
    shuffled = random.sample(rows, len(rows))
    one, other = (one_user([p for p, _ in some], [y for _, y in some]) for some in (rows, shuffled))
    assert one.tobytes() == other.tobytes()


def test_numbers_beyond_float64_are_refused() -> None:
    with pytest.raises(DataError, match="too large to add up exactly"):
        one_user([1e200], [0.0])


def test_undefined_values_are_nan_with_a_reason() -> None:
    ratings = one_user([3.5, 4.0], [4, 5])
    result = predictions.from_totals(ratings)
    assert math.isnan(result["logloss"]) and result["rmse"] == pytest.approx((1.25 / 2) ** 0.5)
    assert "2 rows have an outcome outside {0, 1}" in predictions.reasons(ratings)["logloss"]
    assert set(predictions.reasons(one_user([0.5], [0]))) == {"nmse", "pe", "rig"}
    assert predictions.reasons(one_user([0.5], [1]))["rig"] == "the outcomes do not vary"
    assert predictions.reasons(one_user([], []))["mse"] == "no rows"


def test_totals_may_have_any_shape() -> None:
    """Return one row of totals per replicate, as a bootstrap does."""
    totals = np.stack([one_user([0.2, 0.6], [0, 1]), one_user([0.1, 0.1], [0, 1])])
    np.testing.assert_allclose(predictions.from_totals(totals)["mse"], [(0.04 + 0.16) / 2, 0.82 / 2])


def test_wrong_rows_are_refused() -> None:
    with pytest.raises(DataError, match="1 of 2 predictions are NaN"):
        one_user([0.5, math.nan], [1, 0])
    with pytest.raises(DataError, match="outcomes of 0 and 1"):
        roc.pair_counts(np.array([0.5]), np.array([3.0]))


# ------------------------------------------------------------------------------ by the prediction


def test_bins_by_hand() -> None:
    """Edges .3 and .6: {.1, .2}, {.3, .5}, {.6}; an edge belongs to the bin above it."""
    p, y = np.array([0.6, 0.1, 0.5, 0.2, 0.3]), np.array([1.0, 0, 1, 1, 0])
    sums = predictions.bin_sums(np.array([0.3, 0.6]), p, y)
    np.testing.assert_allclose(sums[:, :3], [[2, 0.3, 1], [2, 0.8, 1], [1, 0.6, 1]])
    assert predictions.calibration_error(sums) == pytest.approx((0.7 + 0.2 + 0.4) / 5)
    rates = predictions.threshold_rates(sums)
    np.testing.assert_allclose(rates["tpr"], [2 / 3, 1 / 3])
    np.testing.assert_allclose(rates["fnr"], [1 / 3, 2 / 3])
    np.testing.assert_allclose(rates["fpr"], [1 / 2, 0])
    np.testing.assert_allclose(rates["tnr"], [1 / 2, 1])


def test_values_of_bins_by_hand() -> None:
    p, y = np.array([0.1, 0.2, 0.5, 0.8]), np.array([0.0, 1, 1, 1])
    view = predictions.from_totals(predictions.bin_sums(np.array([0.4]), p, y))
    np.testing.assert_allclose(view["mean_prediction"], [0.15, 0.65])
    np.testing.assert_allclose(view["mean_outcome"], [1 / 2, 1])
    np.testing.assert_allclose(view["pe"], [0.3 / 1 - 1, 1.3 / 2 - 1])
    low, high = (-math.log(0.9) - math.log(0.2)) / 2, (-math.log(0.5) - math.log(0.8)) / 2
    np.testing.assert_allclose(view["logloss"], [low, high])
    np.testing.assert_allclose(view["rig"], [1 - low / math.log(2), np.nan])


@settings(max_examples=100)
@given(PAIRS, st.integers(1, 6))
def test_equal_mass_bins_part_the_rows(pairs: list[Any], bins: int) -> None:
    p, y = arrays(pairs)
    edges = predictions.equal_mass_edges(p, bins)
    assert len(edges) < bins and (np.diff(edges) > 0).all() and set(edges) <= set(p)
    sums = predictions.bin_sums(edges, p, y)
    assert sums[:, 0].sum() == len(p) and (not pairs or (sums[:, 0] > 0).all())


def test_equal_mass_bins_of_distinct_predictions_differ_by_at_most_one() -> None:
    p = np.random.default_rng(2).random(103)
    count = predictions.bin_sums(predictions.equal_mass_edges(p, 10), p, np.zeros(103))[:, 0]
    assert sorted(set(count)) == [10, 11] and len(count) == 10


@settings(max_examples=100)
@given(PAIRS, st.lists(st.sampled_from([0.2, 0.3, 0.5, 0.95]), unique=True))
def test_rates_equal_counting(pairs: list[Any], thresholds: list[float]) -> None:
    edges = np.array(sorted(thresholds))
    result = predictions.threshold_rates(predictions.bin_sums(edges, *arrays(pairs)))
    for at, t in enumerate(edges):
        for outcome, hit, miss in ((1, "tpr", "fnr"), (0, "fpr", "tnr")):
            called = [p >= t for p, y in pairs if y == outcome]
            share = sum(called) / len(called) if called else math.nan
            np.testing.assert_allclose([result[hit][at], result[miss][at]], [share, 1 - share])


@given(PAIRS, PAIRS)
def test_bins_of_chunks_add_up(one: list[Any], other: list[Any]) -> None:
    edges = np.array([0.3, 0.5])
    parts = [predictions.bin_sums(edges, *arrays(rows)) for rows in (one, other)]
    whole = predictions.bin_sums(edges, *arrays(one + other))
    np.testing.assert_allclose(parts[0] + parts[1], whole, rtol=1e-15)


def test_perfectly_calibrated_predictions_have_only_noise() -> None:
    """ECE of b bins is about sqrt(2 g (1 - g) b / (pi n)) where all p = g, halved p show as g / 2."""
    rng = np.random.default_rng(3)
    n, bins = 40_000, 10
    p = 0.3 + 1e-6 * rng.random(n)
    y = (rng.random(n) < p).astype(float)
    result = predictions.calibration_error(
        predictions.bin_sums(predictions.equal_mass_edges(p, bins), p, y)
    )
    noise = math.sqrt(2 * 0.3 * 0.7 * bins / (math.pi * n))
    assert 0.4 * noise < result < 1.8 * noise
    half = predictions.calibration_error(
        predictions.bin_sums(predictions.equal_mass_edges(p / 2, bins), p / 2, y)
    )
    assert half == pytest.approx(0.15, abs=0.01)


def test_binned_values_of_wrong_outcomes_are_nan() -> None:
    sums = predictions.bin_sums(np.array([0.5]), np.array([0.4, 0.6]), np.array([1.0, 3.0]))
    assert math.isnan(predictions.calibration_error(sums))
    assert np.isnan(predictions.threshold_rates(sums)["tpr"]).all()
    assert np.isnan(predictions.calibration_error(np.zeros((2, len(predictions.SUMS)))))
    replicates = np.stack([sums, predictions.bin_sums(np.array([0.5]), np.array([0.4]), np.array([0.0]))])
    np.testing.assert_allclose(predictions.calibration_error(replicates), [np.nan, 0.4])
