"""Declarations of metrics: directions, places, bounds; a new metric needs one file."""

import math
import re

import numpy as np
import pytest

from recbench_spark.core.arrays import Floats
from recbench_spark.core.definitions import Definition
from recbench_spark.core.metric_names import ALIASES, translate_name
from recbench_spark.errors import ConfigError
from recbench_spark.metrics.beyond_accuracy import BY_POPULARITY, DIVERSITY, LIST_METRICS
from recbench_spark.metrics.kernels import about, accuracy, learning_curves, predictions
from recbench_spark.metrics.kernels.about import ABOUT, ANY, About
from recbench_spark.metrics.kernels.chunk import Chunk
from recbench_spark.models.settings import PublishedModel
from recbench_spark.ranking.kernels.rankings import Rankings
from recbench_spark.reports.facts import ReportedMeasure

OF_PREDICTIONS = {*predictions.VALUE_METRICS, *predictions.RATES, "gauc", "pauc", "calibration_error"}


def test_every_metric_is_registered() -> None:
    assert learning_curves.register is about.register  # it registers mandcg
    assert set(ABOUT) == {*accuracy.METRICS, *LIST_METRICS, *OF_PREDICTIONS, "mandcg"}


def test_directions_as_the_literature_has_them() -> None:
    errors = {"mse", "rmse", "mae", "nmse", "logloss", "calibration_error", "fnr", "fpr"}
    assert set(about.best_when("small")) == errors | {
        "percentile_rank", "gini", "mean_popularity", "popularity_reo", "popularity_rsp",
        "reo", "rsp", "calibration", "calibration_js",
    }  # fmt: skip
    assert {*about.best_when("near 0")} == {"pe", "popularity_lift", "bias_disparity"}
    assert about.best_when("none") == ("exposure_share", "mean_prediction", "mean_outcome")
    everything = [name for best in ("large", "small", "near 0", "none") for name in about.best_when(best)]
    assert sorted(everything) == sorted(ABOUT)


def test_reports_show_what_ranks_before_what_predicts_and_no_two_in_one_place() -> None:
    placed = [name for name in ABOUT if math.isfinite(about.place_in_reports(name))]
    assert sorted(placed, key=about.place_in_reports) == [
        *("ndcg", "mandcg", "recall", "precision", "map", "mrr", "hit", "auc", "coverage", "f1"),
        *("r_precision", "rbp", "percentile_rank", "novelty", "diversity"),
        *("category_diversity", "subtopic_recall", "calibration", "calibration_js"),
        *("serendipity", "serendipity_primitive", "mean_popularity"),
        *("aplt", "aclt", "popularity_reo", "popularity_rsp", "popularity_lift", "gini", "reo", "rsp"),
        *("group_recall", "exposure_share", "entropy", "bias_disparity"),
        *("rmse", "mae", "mse", "nmse", "logloss", "rig", "pe", "gauc", "pauc", "calibration_error"),
    ]
    assert len({ABOUT[name].place for name in placed}) == len(placed)


def test_every_ranking_metric_has_a_family_and_says_what_it_needs() -> None:
    ranking = {*accuracy.METRICS, *LIST_METRICS}
    assert {name for name, known in ABOUT.items() if known.family} == ranking
    assert {known.family for known in ABOUT.values()} <= {"", *about.FAMILIES}
    assert {name for name in ABOUT if ABOUT[name].family == "accuracy"} == {*accuracy.METRICS}
    needs = {need: {name for name in ABOUT if need in ABOUT[name].needs} for need in about.NEEDS}
    assert needs["uncut"] == {name for name, known in accuracy.METRICS.items() if known.cuts == "uncut"}
    assert needs["train"] >= {*BY_POPULARITY} and DIVERSITY in needs["features"]
    assert {need for known in ABOUT.values() for need in known.needs} <= about.NEEDS


def test_names_of_other_libraries_are_of_our_metrics() -> None:
    assert {*ALIASES.values()} <= {*ABOUT}
    warprec = ("APLT", "ACLT", "PopREO", "ARP", "ShannonEntropy", "ItemCoverage", "Gini", "HitRate")
    ours = ("aplt", "aclt", "popularity_reo", "mean_popularity", "entropy", "coverage", "gini", "hit")
    assert tuple(map(translate_name, warprec)) == ours
    rectools = ("MeanInvUserFreq", "AvgRecPopularity", "CatalogCoverage")
    assert [*map(translate_name, rectools)] == ["novelty", "mean_popularity", "coverage"]


def test_a_bundle_is_a_family_in_order_of_place() -> None:
    every = about.NEEDS
    names, left_out = about.expand_families(["gini", {"family": "coverage"}, "family:accuracy"], every)
    assert names[:5] == ("gini", "coverage", "entropy", "ndcg", "recall") and not left_out
    assert len(names) == len(set(names)) and {*accuracy.METRICS} < set(names)
    # A metric named by itself stays where it stands, also with a cut-off, and behind the bundle.
    mixed = about.expand_families([{"family": "coverage"}, "Gini@5", "map"], ())
    assert mixed == (("coverage", "entropy", "Gini@5", "map"), ())
    assert about.expand_families([{"family": "coverage"}] * 2, ())[0] == ("coverage", "gini", "entropy")
    assert about.expand_families(["auc", "family:accuracy"], ()) == (
        ("auc", "ndcg", "recall", "precision", "map", "mrr", "hit", "f1", "rbp", "calibrated_recall"),
        ("r_precision (needs uncut)", "percentile_rank (needs uncut)"),
    )
    assert about.expand_families(["ndcg", 3, {"a": 1}], ()) == (("ndcg", 3, {"a": 1}), ())


@pytest.mark.parametrize(
    ("entry", "error", "hint"),
    [
        ({"family": "popularty"}, "unknown family 'popularty'", "did you mean 'popularity'? known: accur"),
        ("family:", "unknown family ''", "known: accuracy, "),
        ("family:coverage@5", "unknown family 'coverage@5'", "did you mean 'coverage'"),
        ({"family": "diversity"}, "no metric is left: diversity", "give what they need"),
    ],
)
def test_bundles_that_cannot_be(entry: object, error: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(error)) as caught:
        about.expand_families([entry], ())
    assert hint in caught.value.hint


def test_bounds_that_are_not_zero_to_one() -> None:
    result = {name: known.bounds for name, known in ABOUT.items() if known.bounds != about.SHARE}
    not_negative = ("mse", "rmse", "mae", "nmse", "logloss", "novelty", "hit", "aclt", "entropy")
    not_negative += ("reo", "rsp", "category_diversity")
    assert result == {
        **dict.fromkeys(not_negative, (0.0, math.inf)),
        **dict.fromkeys(("mean_prediction", "mean_outcome"), ANY),
        "diversity": (0.0, 2.0),
        **dict.fromkeys(("pe", "popularity_lift", "bias_disparity"), (-1.0, math.inf)),
        "calibration": (0.0, -math.log(0.01)),
        "rig": (-math.inf, 1.0),
    }


def test_bounds_follow_the_definition() -> None:
    signed = Definition(gain="linear", negative_grades="signed")
    moved = {name: known for name, known in ABOUT.items() if known.bounds_under(signed) != known.bounds}
    unbounded = dict.fromkeys(("ndcg", "mandcg"), (-math.inf, 1.0))
    assert {name: known.bounds_under(signed) for name, known in moved.items()} == unbounded
    assert ABOUT["ndcg"].bounds_under(Definition()) == about.SHARE


@pytest.mark.parametrize(
    ("best", "order"),
    [
        ("large", [2.0, 0.5, -0.25, -3.0, math.nan]),
        ("small", [-3.0, -0.25, 0.5, 2.0, math.nan]),
        ("near 0", [-0.25, 0.5, 2.0, -3.0, math.nan]),
        ("none", [2.0, 0.5, -0.25, -3.0, math.nan]),
    ],
)
def test_values_sort_from_best_to_worst(best: about.Best, order: list[float]) -> None:
    result = sorted([math.nan, 0.5, -3.0, 2.0, -0.25], key=About(best).sort_key)
    np.testing.assert_array_equal(result, order)


def test_a_new_metric_is_known_everywhere_from_its_registration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(about, "ABOUT", dict(ABOUT))
    monkeypatch.setattr(accuracy, "METRICS", dict(accuracy.METRICS))

    @accuracy.metric("miss", about=About("small", place=15, bounds=(0.0, 1.0)))
    def miss(chunk: Chunk) -> Floats:
        return (chunk.hits == 0).astype(np.float64)

    offsets, above, none, length = (np.array(column) for column in ([0, 1], [2], [0], [9]))
    ranks = Rankings(offsets, np.array([1.0]), above, none, none, length)
    assert accuracy.measure(ranks, ["miss"], [2, 3], Definition())["miss"].tolist() == [[1.0, 0.0]]
    assert ReportedMeasure("miss", 2, "", "holdout").sort_key(0.25) == 0.25
    assert sorted(["recall", "miss", "ndcg"], key=about.place_in_reports) == ["ndcg", "miss", "recall"]
    with pytest.raises(ValueError, match=r"miss@2: 1\.5 lies outside 0 to 1"):
        PublishedModel(name="paper", kind="published", figures={"miss@2": 1.5})
