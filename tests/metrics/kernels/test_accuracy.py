"""Accuracy metrics: against a loop over all orders of ties, by hand, and against scikit-learn."""

from __future__ import annotations

import math
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import assume, given, settings
from sklearn.metrics import average_precision_score, ndcg_score, roc_auc_score

from recbench_spark.core.definitions import Definition, axis_values, make_definition
from recbench_spark.errors import ConfigError
from recbench_spark.metrics.kernels import accuracy
from recbench_spark.metrics.kernels.accuracy import METRICS, cutoffs, measure, relevant_counts
from recbench_spark.ranking.kernels.rankings import Rankings
from tests import oracles

KS = [1, 2, 3, 5, 9]
AXES = {axis: axis_values(axis) for axis in Definition.model_fields if axis_values(axis)}
ITEMS = st.integers(0, 7)
SCORES = st.dictionaries(ITEMS, st.sampled_from([0.25, 0.5, 1.0]), max_size=5)
GRADES = st.dictionaries(ITEMS, st.sampled_from([-2.0, -1.0, 0.0, 1.0, 2.0, 3.0]), max_size=4)
USERS = st.lists(st.tuples(SCORES, GRADES), min_size=1, max_size=3).filter(
    lambda users: any(truth for _, truth in users)
)
DEFINITIONS = st.fixed_dictionaries(
    {
        **{axis: st.sampled_from(values) for axis, values in AXES.items()},
        "threshold": st.sampled_from([None, 0.0, 1.0, 2.0]),
        "persistence": st.sampled_from([0.5, 0.8]),
        "grade_origin": st.sampled_from([0.0, 1.0, -0.5]),
    }
)


def keep_rated(users: list[Any], definition: Definition) -> list[Any]:
    if definition.candidates != "rated":
        return users
    return [({i: s for i, s in scores.items() if i in truth}, truth) for scores, truth in users]


def check(users: list[Any], definition: Definition) -> None:
    users = keep_rated(users, definition)
    result = measure(oracles.make_rankings(users), list(METRICS), KS, definition)
    for name, values in result.items():
        ks = cutoffs(name, KS)
        expected = [[oracles.value(name, s, t, k, definition) for k in ks] for s, t in users]
        np.testing.assert_allclose(values, expected, rtol=1e-11, atol=1e-11, err_msg=name)


@pytest.mark.parametrize("grades", [{0: -2.0, 1: 0.0}, {0: -2.0, 1: -2.0, 2: 0.0}])
def test_an_uncut_ideal_below_k_places_is_no_scale(grades: dict[int, float]) -> None:
    """-2 at the second place of the ideal is -1.26; the first place alone gains 0, or at worst -2."""
    users = [(dict.fromkeys(grades, 0.25), grades)]
    axes = {"negative_grades": "worst", "ideal": "relevant", "gain": "linear", "candidates": "rated"}
    definition = Definition(threshold=0.0, ties="id_descending", **axes)  # type: ignore[arg-type]
    check(users, definition)
    at_1 = measure(oracles.make_rankings(users), ["ndcg"], [1], definition)["ndcg"][0, 0]
    assert math.isnan(at_1) if len(grades) == 3 else at_1 == 1.0


def test_equal_grades_that_add_up_otherwise_from_best_to_worst_are_no_scale() -> None:
    """3 (1 + .63) + 3 / 2 and 3 (1 + .63 + .5) are one sum rounded twice: every order is the best one."""
    users = [(dict.fromkeys(range(3), 0.25), dict.fromkeys(range(3), 3.0))]
    definition = Definition(negative_grades="worst", ideal="k", gain="linear", candidates="rated")
    result = measure(oracles.make_rankings(users), ["ndcg"], [1, 2, 3], definition)["ndcg"]
    assert result.tolist() == [[1.0, 1.0, 1.0, 1.0]]


@settings(max_examples=300)
@given(USERS, DEFINITIONS)
def test_every_metric_under_any_definition_equals_the_oracle(
    users: list[Any], axes: dict[str, Any]
) -> None:
    definition = Definition(**axes)
    if definition.ties in ("optimistic", "pessimistic"):
        assume(not any(oracles.has_harmful_relevant_item(truth, definition) for _, truth in users))
    check(users, definition)


def test_k_places_may_gain_more_than_an_uncut_ideal_with_negative_grades() -> None:
    """The ideal is 1 - .75 / log2(3) = .53, and the first place alone gains 1: the value is cut at 1."""
    users = [({3: 0.25, 4: 0.25}, {3: 1.0, 4: -2.0})]
    axes = {"negative_grades": "zero_floor", "ideal": "relevant", "candidates": "rated"}
    definition = Definition(gain="exponential", **axes)  # type: ignore[arg-type]
    check(users, definition)
    assert measure(oracles.make_rankings(users), ["ndcg"], [1], definition)["ndcg"][0, 0] == 1.0


@pytest.mark.parametrize(("axis", "value"), [(a, v) for a, values in AXES.items() for v in values])
@pytest.mark.parametrize("ties", ["id", "expected"])
def test_every_axis_value_equals_the_oracle(axis: str, value: str, ties: str) -> None:
    users = [
        ({1: 0.5, 2: 0.5, 3: 0.5, 4: 1.0, 5: 0.1}, {2: 3.0, 3: 1.0, 5: -1.0, 9: 2.0}),
        ({1: 1.0, 2: 0.5}, {1: 1.0, 2: 2.0}),
        ({}, {1: 1.0}),
        ({1: 1.0}, {}),
        ({1: 1.0, 2: 1.0}, {1: 0.0, 2: -1.0}),
        ({1: 1.0, 2: 1.0, 3: 1.0, 4: 1.0}, {2: 1.0, 4: 1.0, 3: 1.0}),
    ]
    check(users, Definition(**{"gain": "linear", "ties": ties, axis: value}))


@settings(max_examples=60)
@given(USERS, DEFINITIONS)
def test_values_stay_within_bounds_and_ties_are_ordered(users: list[Any], axes: dict[str, Any]) -> None:
    definition = Definition(**axes)
    rankings = oracles.make_rankings(keep_rated(users, definition))
    by_ties = {
        ties: measure(rankings, list(METRICS), KS, definition.model_copy(update={"ties": ties}))
        for ties in AXES["ties"]
    }
    for name in METRICS:
        if name == "map" and definition.ap_by == "hits":  # more hits can have a smaller mean precision
            continue
        # A relevant item below the origin of grades has a negative gain: earlier is worse.
        if name == "ndcg" and (definition.threshold or 0.0) < definition.grade_origin:
            continue
        low, high = by_ties["pessimistic"][name], by_ties["optimistic"][name]
        low, high = (high, low) if name == "percentile_rank" else (low, high)
        for ties in ("id", "expected"):
            value = np.nan_to_num(by_ties[ties][name])
            assert (value <= np.nan_to_num(high) + 1e-12).all(), name
            assert (value >= np.nan_to_num(low) - 1e-12).all(), name
            assert (value >= 0).all() or (name == "ndcg" and axes["negative_grades"] == "signed"), name
            assert name == "hit" or (value <= 1).all(), name


def random_rankings(seed: int, u: int = 60, length: int = 40, levels: int = 12) -> Rankings:
    rng = np.random.default_rng(seed)
    users = []
    for _ in range(u):
        n = int(rng.integers(0, length))
        scores = dict(enumerate(rng.integers(0, levels, n) / levels))
        chosen = rng.choice(length, size=int(rng.integers(0, 12)), replace=False)
        users.append((scores, {int(i): int(rng.integers(0, 30)) / 10 for i in chosen}))
    return oracles.make_rankings(users)


@pytest.mark.parametrize("ties", AXES["ties"])
@pytest.mark.parametrize("gain", ["binary", "exponential"])
def test_batches_and_other_cutoffs_change_no_bit(ties: str, gain: str) -> None:
    rankings, definition = random_rankings(0), Definition(ties=ties, gain=gain)
    whole = measure(rankings, list(METRICS), range(1, 51), definition)
    for cut in (1, 17, 59):
        parts = [rankings.users(0, cut), rankings.users(cut, 60)]
        split = [measure(part, list(METRICS), [7, 3, 50], definition) for part in parts]
        for name in METRICS:
            columns = [cutoffs(name, range(1, 51)).index(k) for k in cutoffs(name, [7, 3, 50])]
            joined = np.concatenate([part[name] for part in split])
            assert joined.tobytes() == np.ascontiguousarray(whole[name][:, columns]).tobytes(), name


def test_chunks_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    rankings, definition = random_rankings(1), Definition(ties="expected", gain="linear")
    whole = measure(rankings, list(METRICS), KS, definition)
    monkeypatch.setattr(accuracy, "CELLS", 30)
    for name, values in measure(rankings, list(METRICS), KS, definition).items():
        assert values.tobytes() == whole[name].tobytes(), name


@pytest.mark.parametrize("ties", AXES["ties"])
def test_order_of_truth_rows_changes_no_bit(ties: str) -> None:
    rankings, definition = random_rankings(2), Definition(ties=ties, gain="exponential")
    rng = np.random.default_rng(3)
    order = np.concatenate(
        [rng.permutation(np.arange(*rankings.offsets[u : u + 2])) for u in range(60)]
    ).astype(int)
    shuffled = Rankings(
        rankings.offsets,
        *(getattr(rankings, name)[order] for name in ("relevance", "above", "tied", "before")),
        rankings.length,
    )
    whole = measure(rankings, list(METRICS), KS, definition)
    for name, values in measure(shuffled, list(METRICS), KS, definition).items():
        assert values.tobytes() == whole[name].tobytes(), name


def test_k_beyond_the_list_equals_the_uncut_value() -> None:
    rankings = random_rankings(4)
    result = measure(rankings, ["ndcg", "map", "mrr", "rbp"], [1000], Definition())
    for name, values in result.items():
        assert values[:, 0].tobytes() == values[:, 1].tobytes(), name


def test_a_perfect_ranking_gives_exactly_one() -> None:
    users = [({i: -float(i) for i in range(9)}, {i: 9.0 - i for i in range(n)}) for n in (1, 4, 9)]
    rankings = oracles.make_rankings(users)
    for gain in AXES["gain"]:
        result = measure(rankings, ["ndcg", "map", "mrr", "hit"], [1, 3, 9], Definition(gain=gain))
        assert all((values == 1.0).all() for values in result.values())
    assert measure(rankings, ["auc"], [], Definition())["auc"][:2].tolist() == [[1.0], [1.0]]


def test_a_model_with_constant_scores_is_not_rewarded() -> None:
    n, relevant, k = 1000, 7, 10
    rankings = oracles.make_rankings([(dict.fromkeys(range(n), 0.0), dict.fromkeys(range(relevant), 1.0))])
    by_ties = {
        ties: measure(rankings, ["hit", "mrr", "recall", "auc"], [k], Definition(ties=ties))
        for ties in AXES["ties"]
    }
    assert by_ties["id"]["recall"].item() == by_ties["optimistic"]["recall"].item() == 1.0
    assert by_ties["pessimistic"]["hit"].item() == 0.0
    assert by_ties["expected"]["recall"].item() == pytest.approx(k / n)
    miss = math.comb(n - relevant, k) / math.comb(n, k)
    assert by_ties["expected"]["hit"].item() == pytest.approx(1 - miss, rel=1e-12)
    first = [math.comb(n - j, relevant - 1) / math.comb(n, relevant) / j for j in range(1, n + 1)]
    assert by_ties["expected"]["mrr"][0, 1] == pytest.approx(math.fsum(first), rel=1e-12)
    assert {values["auc"].item() for values in by_ties.values()} == {0.5}


def lists(rows: list[list[int]], labels: list[list[int]]) -> Rankings:
    """Given lists, best first, and the relevant items."""
    users = [
        ({item: -float(j) for j, item in enumerate(row)}, dict.fromkeys(truth, 1.0))
        for row, truth in zip(rows, labels, strict=True)
    ]
    return oracles.make_rankings(users)


def test_o2_mllib() -> None:
    rankings = lists(
        [[1, 6, 2, 7, 8, 3, 9, 10, 4, 5], [4, 1, 5, 6, 2, 7, 3, 8, 9, 10], [1, 2, 3, 4, 5]],
        [[1, 2, 3, 4, 5], [1, 2, 3], []],
    )
    ks = [1, 2, 3, 4, 5, 10, 15]
    result = measure(rankings, ["precision", "recall", "map", "ndcg"], ks, make_definition("mllib"))
    mean = {name: values.mean(axis=0) for name, values in result.items()}
    third = 1 / 3
    np.testing.assert_allclose(mean["precision"], [third, third, third, 0.75 / 3, 0.8 / 3, 0.8 / 3, 8 / 45])
    np.testing.assert_allclose(mean["recall"][[0, 1, 2, 4, 5]], [1 / 15, 8 / 45, 11 / 45, 16 / 45, 2 / 3])
    first, second = (1 + 2 / 3 + 3 / 6 + 4 / 9 + 5 / 10) / 5, (1 / 2 + 2 / 5 + 3 / 7) / 3
    np.testing.assert_allclose(mean["map"][-1], (first + second) / 3)
    np.testing.assert_allclose(mean["map"][[-1, 0, 1, 2]], [0.355026, third, 0.25, 0.24074], atol=5e-6)
    np.testing.assert_allclose(mean["ndcg"][[2, 4, 5]], [third, 0.328788, 0.487913], atol=5e-7)


def test_o3_recbole() -> None:
    """Hit rows 000 / 111 / 101 / 001 with 1, 3, 4 and 2 relevant items."""
    rankings = lists([[1, 2, 3]] * 4, [[9], [1, 2, 3], [1, 3, 8, 9], [3, 9]])
    result = measure(rankings, ["map", "ndcg"], [1, 2, 3], make_definition("recbole"))
    np.testing.assert_allclose(result["map"][2:, :3], [[1, 1 / 2, 5 / 9], [0, 0, 1 / 6]])
    second, third = 1 / math.log2(3), 1 / 2
    expected = [1, 1 / (1 + second), (1 + third) / (1 + second + third)]
    np.testing.assert_allclose(result["ndcg"][2, :3], expected)
    assert (result["map"][0] == 0).all() and (result["ndcg"][1] == 1).all()


def test_o4_recommenders() -> None:
    grades = dict(enumerate([3.0, 2.0, 3.0, 0.0, 1.0, 2.0, 3.0, 2.0]))
    rankings = oracles.make_rankings([({i: -float(i) for i in range(6)}, grades)])
    definition = make_definition("recommenders", {"gain": "linear"})
    result = measure(rankings, ["ndcg"], [6], definition)["ndcg"]
    assert result[0, 0] == pytest.approx(0.785, abs=5e-4)


def test_o5_rectools() -> None:
    rankings = lists([[7, 8], [1, 2], [1, 2, 3, 4], [1, 2, 3]], [[1, 2], [1], [1, 3, 4], [1, 2, 3]])
    result = measure(rankings, ["map", "ndcg"], [3], make_definition("rectools"))
    np.testing.assert_allclose(result["map"][:, 0], [0, 1, (1 + 2 / 3) / 3, 1])
    ideal = 1 + 1 / math.log2(3) + 1 / 2
    np.testing.assert_allclose(result["ndcg"][:, 0], [0, 1 / ideal, 1.5 / ideal, 1])
    np.testing.assert_allclose(result["ndcg"][1:3, 0], [0.469279, 0.703918], atol=5e-7)


def test_presets_where_libraries_differ_by_hand() -> None:
    """One list of three, relevant items at ranks 1 and 3, five relevant in all, k = 4."""
    rankings = lists([[1, 2, 3]], [[1, 3, 7, 8, 9]])

    def one(preset: str, name: str) -> float:
        return float(measure(rankings, [name], [4], make_definition(preset))[name][0, 0])

    hits = 1 + 2 / 3
    assert one("recbench", "map") == pytest.approx(hits / 4)
    assert one("ranx", "map") == one("rectools", "map") == pytest.approx(hits / 5)
    assert one("cornac", "map") == pytest.approx(hits / 5)
    assert one("lenskit", "map") == pytest.approx(hits / 3)
    assert one("elliot", "map") == pytest.approx((1 + 1 / 2 + 2 / 3 + 2 / 4) / 4)
    assert one("lenskit", "precision") == pytest.approx(2 / 3)
    assert one("lenskit", "recall") == one("recpack", "recall") == pytest.approx(2 / 4)
    assert one("recpack", "hit") == 2.0
    ideal = 1 + 1 + 1 / math.log2(3) + 1 / 2
    assert one("lenskit", "ndcg") == pytest.approx((1 + 1 / math.log2(3)) / ideal)


def test_cornac_counts_tied_items_at_the_last_rank_and_strict_pairs() -> None:
    rankings = oracles.make_rankings([(dict.fromkeys(range(6), 0.0), {1: 1.0, 4: 1.0})])
    result = measure(rankings, ["map", "auc"], [3], make_definition("cornac"))
    assert result["map"].tolist() == [[2 / 6, 2 / 6]] and result["auc"].item() == 0.0


def test_negative_grades_by_hand() -> None:
    """Best and worst of the grades 2 and -1 shown with one unrated item."""
    rankings = oracles.make_rankings([({1: 3.0, 2: 2.0, 3: 1.0}, {1: -1.0, 2: 2.0})])
    dcg, best, worst = -1 + 2 / math.log2(3), 2.0, -1.0
    expected = {"clip": 2 / math.log2(3) / best, "zero_floor": dcg / best}
    expected["worst"] = (dcg - worst) / (best - worst)
    expected["signed"] = dcg / best
    for rule, value in expected.items():
        definition = Definition(gain="linear", negative_grades=rule)
        assert measure(rankings, ["ndcg"], [3], definition)["ndcg"][0, 0] == pytest.approx(value)


def test_signed_grades_by_hand() -> None:
    """Stars 5, 1 and 3 around an origin of 3 are grades 2, -2 and 0. The second user has none above 0."""
    users = [
        ({1: 3.0, 2: 2.0, 3: 1.0}, {1: 1.0, 2: 5.0, 3: 3.0}),
        ({1: 3.0, 2: 2.0}, {1: 1.0, 2: 3.0}),
    ]
    definition = Definition(gain="linear", negative_grades="signed", grade_origin=3.0)
    values = measure(oracles.make_rankings(users), ["ndcg"], [1, 2], definition)["ndcg"]
    at_2 = (-2 + 2 / math.log2(3)) / 2
    np.testing.assert_allclose(values, [[-1.0, at_2, at_2], [0.0, 0.0, 0.0]], atol=1e-15)


@pytest.mark.parametrize(("step", "least"), [(1.0, -26.1), (0.5, -65.2)])
def test_signed_values_of_stars_have_a_bound_far_below_zero(step: float, least: float) -> None:
    """Fifty films of the fewest stars come first, and the best grade of the user is one step above 3."""
    scores = {item: float(99 - item) for item in range(51)}
    truth = dict.fromkeys(range(50), step) | {50: 3.0 + step}
    definition = Definition(gain="linear", negative_grades="signed", grade_origin=3.0)
    value = measure(oracles.make_rankings([(scores, truth)]), ["ndcg"], [50], definition)["ndcg"][0, 0]
    discounts = math.fsum(1 / math.log2(rank + 1) for rank in range(1, 51))
    assert value == pytest.approx((step - 3.0) / step * discounts)
    assert least < value < least + 1


def test_an_origin_moves_grades_alone() -> None:
    """Relevance 5, 2 and 4 around 3 is relevance 2, -1 and 1; what is relevant does not change."""
    scores = {1: 3.0, 2: 2.0, 3: 1.0}
    stars, grades = {1: 5.0, 2: 2.0, 3: 4.0}, {1: 2.0, 2: -1.0, 3: 1.0}
    for rule in axis_values("negative_grades"):
        moved = Definition(gain="linear", negative_grades=rule, grade_origin=3.0, threshold=4.0)
        plain = Definition(gain="linear", negative_grades=rule, threshold=1.0)
        of_stars, of_grades = (
            measure(oracles.make_rankings([(scores, truth)]), ["ndcg", "recall"], [1, 2, 3], definition)
            for truth, definition in ((stars, moved), (grades, plain))
        )
        assert {name: values.tolist() for name, values in of_stars.items()} == {
            name: values.tolist() for name, values in of_grades.items()
        }


def test_rated_candidates_best_and_worst_order_give_one_and_zero() -> None:
    grades = {1: 2.0, 2: 1.0, 3: -1.0, 4: -2.0}
    users = [(grades, grades), ({i: -g for i, g in grades.items()}, grades)]
    definition = Definition(gain="linear", negative_grades="worst", candidates="rated")
    result = measure(oracles.make_rankings(users), ["ndcg"], [1, 3, 4], definition)["ndcg"]
    np.testing.assert_allclose(result, [[1.0] * 4, [0.0] * 4], atol=1e-15)


@pytest.mark.parametrize("seed", range(3))
def test_scikit_learn_agrees(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = 30
    grades_ui, scores_ui = rng.integers(0, 4, (8, n)).astype(float), rng.integers(0, 9, (8, n)) / 8
    rankings = oracles.make_rankings(
        [(dict(enumerate(s)), dict(enumerate(g))) for s, g in zip(scores_ui, grades_ui, strict=True)]
    )
    definition = Definition(gain="linear", ties="expected", ap_ties="last_rank")
    result = measure(rankings, ["ndcg", "auc", "map"], [5, 10], definition)
    for u in range(8):
        row = grades_ui[u : u + 1], scores_ui[u : u + 1]
        sklearn = [ndcg_score(*row, k=k) for k in (5, 10, None)]
        np.testing.assert_allclose(result["ndcg"][u], sklearn, rtol=1e-12)
        positive = grades_ui[u] > 0
        assert result["auc"][u, 0] == pytest.approx(roc_auc_score(positive, scores_ui[u]), rel=1e-12)
        ap = average_precision_score(positive, scores_ui[u])
        assert result["map"][u, -1] == pytest.approx(ap, rel=1e-12)


def test_relevant_counts_follow_the_threshold() -> None:
    rankings = oracles.make_rankings([({1: 1.0}, {1: 3.0, 2: 1.0}), ({}, {3: 0.0})])
    assert relevant_counts(rankings, Definition()).tolist() == [2, 0]
    assert relevant_counts(rankings, Definition(threshold=2)).tolist() == [1, 0]


def test_wrong_metrics_and_cutoffs_are_refused_with_a_hint() -> None:
    rankings = random_rankings(5, u=2)
    with pytest.raises(ConfigError, match="did you mean 'ndcg'"):
        measure(rankings, ["ndgc"], [10], Definition())
    for k in (0, -3, 2.5, True):
        with pytest.raises(ConfigError, match="whole number"):
            measure(rankings, ["ndcg"], [10, k], Definition())  # type: ignore[list-item]


def test_no_users_and_no_cutoffs() -> None:
    none = random_rankings(6, u=3).users(0, 0)
    assert measure(none, ["ndcg", "auc"], [10], Definition())["ndcg"].shape == (0, 2)
    some = random_rankings(6, u=3)
    assert measure(some, ["ndcg", "hit"], [], Definition())["ndcg"].shape == (3, 1)


def test_definition_strings_name_only_the_axes_that_matter() -> None:
    definition = Definition(gain="linear", recall_by="min_k_relevant", ties="expected")
    assert definition.describe(METRICS["ndcg"].axes) == "v1;gain=linear;ties=expected"
    assert definition.describe(METRICS["recall"].axes) == "v1;recall_by=min_k_relevant;ties=expected"
    assert definition.describe(METRICS["auc"].axes) == "v1"


@pytest.mark.parametrize("name", METRICS)
def test_a_metric_depends_on_no_axis_that_it_does_not_declare(name: str) -> None:
    rankings = random_rankings(7, u=20)
    plain = measure(rankings, [name], KS, Definition())[name]
    for axis, values in AXES.items():
        for value in values if axis not in METRICS[name].axes else ():
            other = measure(rankings, [name], KS, Definition(**{axis: value}))[name]
            assert other.tobytes() == plain.tobytes(), (axis, value)
