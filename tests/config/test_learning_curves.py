"""The section `evaluation.learning_curve` and switches: refusals before Spark, and keys that stay."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from recbench_spark.config import Benchmark, Evaluation, LearningCurve, parse
from recbench_spark.core import revisions
from recbench_spark.core.definitions import make_definition
from recbench_spark.errors import ConfigError
from recbench_spark.night.benchmark_checks import check_benchmark
from recbench_spark.night.code_provenance import run_revisions
from recbench_spark.night.night import describe_metric
from recbench_spark.night.run_keys import hash_run_key, list_switched_models

FILE: dict[str, Any] = {
    "name": "curves",
    "dataset": {"name": "curves", "reader": "world"},
    "split": {"holdout": "n_given", "n": 5, "held_out": {"of": "users", "test": 0.2, "valid": 0.2}},
    "models": [
        {"name": "popular", "kind": "popular"},
        {"name": "als", "kind": "als"},
        {"name": "switch", "kind": "switch", "first": "popular", "then": "als"},
    ],
    "evaluation": {
        "metrics": ["ndcg"],
        "k": [5],
        "parts": ["valid", "test"],
        "learning_curve": {"given": 5},
    },
}


def change(path: str, value: Any) -> dict[str, Any]:
    """The file with one value replaced; None removes the key."""
    document = deepcopy(FILE)
    *keys, last = path.split(".")
    place: Any = document
    for key in keys:
        place = place[int(key)] if key.isdigit() else place[key]
    if value is None:
        place.pop(int(last) if last.isdigit() else last)
    else:
        place[int(last) if last.isdigit() else last] = value
    return document


def check(document: dict[str, Any]) -> Benchmark:
    benchmark = parse(Benchmark, document, "tests")
    check_benchmark(benchmark)
    return benchmark


def test_a_file_with_curves_and_a_switch_passes() -> None:
    benchmark = check(FILE)
    assert benchmark.evaluation.all_metrics == ("ndcg", "mandcg")
    assert [model.name for model in benchmark.curve_models] == ["popular", "als"]
    assert [model.name for model in list_switched_models(benchmark, benchmark.models[2])] == [
        "popular",
        "als",
    ]
    assert list_switched_models(benchmark, benchmark.models[0]) == ()
    described = describe_metric(benchmark.evaluation, benchmark.evaluation.resolve(), "mandcg")
    assert described == "v1;curve=1 to 5 given by time, test common, minimum 1, users fixed"
    check({**FILE, "headline": "mandcg@5", "comparisons": {"metrics": ["mandcg"]}})


SWITCH = "models.2"
NO_RIDGE = {"name": "als", "kind": "als", "regularization": 0.0}


BAD = [
    ("evaluation.learning_curve.given", 0, "0 is no number of given ratings: 1 to 1000"),
    ("evaluation.learning_curve.given", 1001, "1001 is no number of given ratings"),
    ("evaluation.learning_curve.given", True, "given"),
    ("evaluation.learning_curve.given", [], "ascending"),
    ("evaluation.learning_curve.given", [5, 2], "ascending"),
    ("evaluation.learning_curve.given", [2, 2], "ascending|twice"),
    ("evaluation.learning_curve.order", "place", "order"),
    ("evaluation.learning_curve.draws", 3, "one order by time"),
    ("evaluation.learning_curve.minimum", 0, "minimum"),
    ("evaluation.learning_curve.user", "fixed", "user"),
    ("evaluation.metrics", ["recall"], "needs the metric ndcg"),
    ("evaluation.user_metrics", False, "needs user_metrics"),
    ("evaluation.task", "rating", "not for task 'rating'"),
    ("evaluation.definition", {"candidates": "all"}, "learning curves with candidates 'all'"),
    ("split", {"holdout": "n_given", "n": 5}, "needs users held out"),
    ("split.held_out.of", "items", "needs users held out"),
    ("split.parts", ["quiz", "test"], "split.parts divides"),
    ("evaluation.parts", ["test", "open_loop"], "part 'open_loop' is of no held-out users"),
    ("models.1", {"name": "als", "kind": "truth"}, "model als: kind 'truth' cannot fold users in"),
    ("models.1", {"name": "als", "kind": "nsvd1"}, "model als: kind 'nsvd1' cannot fold users in"),
    ("models.1", NO_RIDGE, "a regulariser of 0"),
    (f"{SWITCH}.then", "popular", "a switch from 'popular' to itself"),
    (f"{SWITCH}.then", "alz", "no model 'alz'"),
    (f"{SWITCH}.then", "switch", "no model 'switch'"),
    (f"{SWITCH}.then", None, "name both"),
    (f"{SWITCH}.at", 5, "the points are 1 to 5"),
    (f"{SWITCH}.at", 0, "at"),
    (f"{SWITCH}.at", "never", "at"),
    ("split.held_out.valid", 0.0, "validation users, and there are none|does not hold out 'valid'"),
    ("evaluation.parts", ["test"], "validation users, and there are none"),
    ("evaluation.parts", ["valid"], "add test to evaluation.parts"),
    ("evaluation.learning_curve", None, "a switch needs evaluation.learning_curve"),
]


@pytest.mark.parametrize(("path", "value", "words"), BAD)
def test_bad_settings_are_named_before_spark(path: str, value: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check(change(path, value))


def test_a_pair_is_chosen_among_two_models_or_more() -> None:
    document = change(SWITCH, {"name": "switch", "kind": "switch"})
    assert [model.name for model in list_switched_models(check(document), check(document).models[2])] == [
        "popular",
        "als",
    ]
    del document["models"][1]
    with pytest.raises(ConfigError, match="no two models"):
        check(document)
    with pytest.raises(ConfigError, match="'at' needs the names"):
        check(change(SWITCH, {"name": "switch", "kind": "switch", "at": 3}))


def test_sums_that_no_task_can_hold_are_refused() -> None:
    document = change("evaluation.learning_curve.given", 1000)
    document["evaluation"]["bootstrap"] = {"replicates": 9000}
    message = "points x metrics x cut-offs x bootstrap.replicates are 18,000,000.*at most 16,777,216"
    with pytest.raises(ConfigError, match=message):
        check(document)


def test_vectors_of_teams_depend_on_the_revision_of_the_fold_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Item vectors alone rank by a fold-in; with vectors of users nothing is folded in."""
    ours = {
        "kind": "embeddings",
        "items": "i.parquet",
        "fold_in": {"unobserved_weight": 1, "regulariser": 1},
    }
    models = [{"name": "items", **ours}, {"name": "both", **ours, "users": "u.parquet"}]
    plain = {"metrics": ["ndcg"], "k": [5]}
    benchmark = parse(
        Benchmark, {**FILE, "models": models, "evaluation": plain, "headline": "ndcg@5"}, "tests"
    )
    before = [run_revisions(benchmark, make_definition(), model) for model in benchmark.models]
    monkeypatch.setitem(revisions.REVISIONS, "fold_in", 7)
    after = [run_revisions(benchmark, make_definition(), model) for model in benchmark.models]
    assert after == [{**before[0], "fold_in": 7}, before[1]]


def test_mandcg_is_a_metric_only_where_there_are_curves() -> None:
    document = {**FILE, "comparisons": {"metrics": ["mandcg"]}, "models": FILE["models"][:2]}
    check(document)
    plain = {**document, "evaluation": {**FILE["evaluation"], "learning_curve": None}}
    with pytest.raises(ConfigError, match=r"mandcg not in evaluation\.metrics"):
        check(plain)


def test_files_without_curves_keep_their_keys() -> None:
    """Settings that came later are neither stored nor hashed while they have their default."""
    assert "learning_curve" not in Evaluation().model_dump()
    document = {**FILE, "models": FILE["models"][:2]}
    plain = {**document, "evaluation": {"metrics": ["ndcg"], "k": [5], "parts": ["valid", "test"]}}
    without, with_curve = parse(Benchmark, plain, "tests"), parse(Benchmark, document, "tests")
    definition = make_definition()
    revised = run_revisions(without, definition, without.models[0])
    assert "learning_curves" not in revised
    keys = {hash_run_key(one, definition, "split", {}, one.models[0]) for one in (without, with_curve)}
    assert len(keys) == 2


def test_the_cut_off_of_the_choice_enters_the_key_of_a_switch() -> None:
    """A headline enters no key, but it decides at which cut-off a switch is chosen."""
    document = change("evaluation.k", [5, 10])
    keys = {
        (model.name, hash_run_key(one, make_definition(), "split", {}, model))
        for headline in ("mandcg@5", "mandcg@10")
        for one in [parse(Benchmark, {**document, "headline": headline}, "tests")]
        for model in one.models
    }
    assert sorted(name for name, _ in keys) == ["als", "popular", "switch", "switch"]


def test_a_setting_of_the_curve_stands_in_the_definition() -> None:
    curve = LearningCurve(given=(1, 2, 5), order="hash", draws=3, seed=7, test="rest", users="as_long_as")
    assert curve.points == (1, 2, 5)
    words = "curve=1,2,5 given by hash x 3 (seed 7), test rest, minimum 1, users as_long_as"
    assert curve.describe() == words
