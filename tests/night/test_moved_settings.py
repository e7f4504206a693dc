"""Every setting that can move a number moves a definition, the key of the run, or the name of the split."""

from __future__ import annotations

from typing import Any

import pytest

from recbench_spark.commands import evaluate as evaluate_action
from recbench_spark.commands import evaluate as evaluate_command
from recbench_spark.config import Benchmark, Dataset, Evaluation, Split
from recbench_spark.config.evaluation import Bootstrap, CandidateDraw, Exposure, Propensities, Strata
from recbench_spark.evaluation.options import KINDS
from recbench_spark.night import standalone_runs
from recbench_spark.night.run_keys import evaluation_paths, hash_run_key, hash_split

MODEL = {"name": "popular", "kind": "popular"}
LOG = {"name": "log", "reader": "csv", "path": "log.csv"}
PERIOD = {"order": "temporal", "holdout": "period", "group": "global", "length": "5d"}
EXPOSED = {"propensities": {"method": "given", "path": "chances.csv"}}

# A value of each field that is not its default, and the section that it needs beside it.
EVALUATION: dict[str, Any] = {
    "metrics": ["recall"],
    "k": [7],
    "curve": True,
    "parts": ["valid"],
    "preset": "rectools",
    "definition": {"gain": "linear"},
    "candidates_path": "candidates.csv",
    "features": "features.csv",
    "item_groups": {"path": "genres.csv", "column": "genre"},
    "draw": {"n": 7},
    "slices": [],
    "bootstrap": {"seed": 7},
    "user_metrics": False,
    "multiverse": True,
    "exposure": EXPOSED,
    "uncut": False,
    "task": "rating",
    "learning_curve": {"given": 5},
}
DRAW = {"n": 7, "per": "positive", "seed": 7, "estimators": ["rank_estimate"]}
BOOTSTRAP = {"replicates": 7, "level": 0.9, "seed": 7}
EXPOSURE: dict[str, Any] = {
    "propensities": {"method": "steck"},
    "estimators": ["ips"],
    "clip": 7,
    "switch": 7,
    "shrink": 7,
    "strata": {"n": [3]},
    "without_most_popular": 0.5,
    "rewards": "rewards.csv",
}
STRATA = {"kind": "equal_count", "n": [3]}
PROPENSITIES: dict[str, Any] = {
    "method": "steck",
    "law": "exact",
    "scale": "largest",
    "floor": 0.5,
    "path": "chances.csv",
    "item_features": "items.csv",
    "user_features": "users.csv",
    "rate": 0.5,
}
NEEDS = {
    "path": {"method": "given"},
    "item_features": {"method": "logistic_regression"},
    "user_features": {"method": "logistic_regression"},
}


def make_benchmark(**sections: Any) -> Benchmark:
    rates = sections.get("evaluation", {}).get("task") == "rating"
    return Benchmark.model_validate(
        {
            "name": "moved",
            "dataset": LOG,
            "split": {"protocol": "RO_RS", "valid": False},
            "models": [{"name": "means", "kind": "means"} if rates else MODEL],
            **sections,
        }
    )


def list_keys(benchmark: Benchmark) -> tuple[str, str, str]:
    """The split, the key of the run, and the definition in words; each path is its own content."""
    split_id, _ = hash_split(lambda path, **_: path, benchmark)
    definition = benchmark.evaluation.resolve()
    key = hash_run_key(benchmark, definition, split_id, {}, benchmark.models[0])
    return split_id, key, definition.describe()


@pytest.mark.parametrize("name", Evaluation.model_fields)
def test_a_setting_of_the_evaluation(name: str) -> None:
    split = {"held_out": {"test": 0.2}} if name == "learning_curve" else {}
    base = list_keys(make_benchmark(split=split))
    moved = list_keys(make_benchmark(evaluation={name: EVALUATION[name]}, split=split))
    assert moved[1] != base[1]


@pytest.mark.parametrize(
    ("name", "fields", "moved"),
    [("draw", CandidateDraw, DRAW), ("bootstrap", Bootstrap, BOOTSTRAP), ("exposure", Exposure, EXPOSURE)],
)
def test_settings_below(name: str, fields: type[Any], moved: dict[str, Any]) -> None:
    start: dict[str, Any] = {"exposure": {}} if name == "exposure" else {}
    base = list_keys(make_benchmark(evaluation=start))
    for field in fields.model_fields:
        assert list_keys(make_benchmark(evaluation={name: {field: moved[field]}}))[1] != base[1], field


@pytest.mark.parametrize(
    ("name", "fields", "moved"),
    [("strata", Strata, STRATA), ("propensities", Propensities, PROPENSITIES)],
)
def test_settings_of_exposure(name: str, fields: type[Any], moved: dict[str, Any]) -> None:
    base = list_keys(make_benchmark(evaluation={"exposure": {}}))
    for field in fields.model_fields:
        section = {**NEEDS.get(field, {}), field: moved[field]}
        assert list_keys(make_benchmark(evaluation={"exposure": {name: section}}))[1] != base[1], field


@pytest.mark.parametrize("field", ["n", "per", "seed"])
def test_a_draw_is_named_by_the_definition(field: str) -> None:
    """`estimators` adds rows of their own names and moves no value."""
    sampled = {"definition": {"candidates": "uniform"}}
    base = list_keys(make_benchmark(evaluation=sampled))
    moved = list_keys(make_benchmark(evaluation={**sampled, "draw": {field: DRAW[field]}}))
    assert moved[2] != base[2]


SPLIT: dict[str, Any] = {
    "protocol": {"protocol": "TO_RS"},
    "order": {"order": "temporal"},
    "holdout": {"holdout": "leave_one_out"},
    "group": {"group": "global"},
    "ratio": {"ratio": [0.5, 0.0, 0.5]},
    "valid": {"holdout": "leave_one_out", "valid": True},
    "n": {"holdout": "last_n", "n": 3},
    "parts": {"parts": ["a", "b"]},
    "folds": {"holdout": "folds", "folds": 3},
    "fold": {"holdout": "folds", "fold": 1},
    "start": {**PERIOD, "start": "2026-01-02"},
    "length": {**PERIOD, "length": "6d"},
    "step": {**PERIOD, "step": "2d"},
    "window": {**PERIOD, "window": 1},
    "anchor": {**PERIOD, "anchor": "last_event"},
    "held_out": {"held_out": {"test": 0.2}},
    "open_loop": {"open_loop": "all"},
    "repeats": {"order": "temporal", "repeats": "keep"},
    "targets": {**PERIOD, "targets": "last"},
    "validation": {**PERIOD, "valid": True, "validation": "last_row"},
    "valid_users": {**PERIOD, "valid": True, "validation": "users", "valid_users": 0.2},
    "seed": {"seed": 7},
}
SPLIT_BASES: dict[str, Any] = {
    "valid": {"holdout": "leave_one_out"},
    "fold": {"holdout": "folds"},
    **dict.fromkeys(("start", "length", "step", "window", "anchor"), PERIOD),
    "repeats": {"order": "temporal"},
    "targets": PERIOD,
    "validation": {**PERIOD, "valid": True},
    "valid_users": {**PERIOD, "valid": True, "validation": "users"},
}


@pytest.mark.parametrize("name", Split.model_fields)
def test_a_setting_of_the_split(name: str) -> None:
    base = list_keys(make_benchmark(split=SPLIT_BASES.get(name, {})))
    assert list_keys(make_benchmark(split=SPLIT[name]))[:2] != base[:2]


DATASET: dict[str, Any] = {
    "reader": {"reader": "json"},
    "path": {"path": "other.csv"},
    "columns": {"columns": {"user_id": "customer"}},
    "attributes": {"attributes": ["country"]},
    "options": {"options": {"delimiter": ";"}},
    "time_unit": {"time_unit": "ms"},
    "time_zone": {"time_zone": "Europe/Rome"},
    "bad_rows": {"bad_rows": "reject"},
    "duplicates": {"duplicates": "keep_first"},
    "scale": {"scale": [1, 5]},
    "until": {"until": "2026-01-31"},
    "where": {"where": [{"column": "rating", "above": 0}]},
    "least": {"least": {"user": 5}},
    "events": {"events": {"column": "event", "weights": {"buy": 1}, "targets": ["buy"]}},
    "query": {"query": "session"},
    "world": {"reader": "world", "world": {"seed": 7}},
}
NAMES_ONLY = {"name"}
"""Settings that move no number."""


def test_the_closed_loop_is_part_of_the_split() -> None:
    divided = make_benchmark(dataset={**LOG, "reader": "coat", "closed_loop": "split"})
    given = divided.dataset.model_copy(update={"closed_loop": "as_given"})
    assert list_keys(divided)[0] != list_keys(divided.model_copy(update={"dataset": given}))[0]


@pytest.mark.parametrize(("as_of", "asked"), [("availability", True), ("first_seen", False)])
def test_periods_of_items_move_runs_that_ask_for_them(as_of: str, asked: bool) -> None:
    periods = {**LOG, "availability": {"path": "periods.csv"}}
    benchmark = make_benchmark(dataset=periods, evaluation={"definition": {"candidates_as_of": as_of}})
    assert (evaluation_paths(benchmark).get("availability") == "periods.csv") is asked
    assert list_keys(make_benchmark(dataset=periods))[0] == list_keys(make_benchmark(dataset=LOG))[0]


OF_RUNS = {"closed_loop", "availability"}
"""Settings with tests of their own, above."""


@pytest.mark.parametrize("name", sorted({*Dataset.model_fields} - NAMES_ONLY - OF_RUNS))
def test_a_setting_of_the_dataset(name: str) -> None:
    base = {"reader": "world"} if name == "world" else {}
    keys = [list_keys(make_benchmark(dataset={**LOG, **section})) for section in (base, DATASET[name])]
    assert keys[0][:2] != keys[1][:2]


# ----------------------------------------------------------------------------------- recbench evaluate

LISTS = ["--lists", "lists.csv", "--truth", "truth.csv"]
VECTORS = ["--embeddings", "users.csv", "items.csv", "--truth", "truth.csv", "--train", "train.csv"]
PREDICTED = ["--predictions", "predictions.csv"]
FLAGS: dict[str, tuple[list[str], list[str]]] = {
    "model": (LISTS, ["--model", "other"]),
    "lists": (LISTS, ["--lists", "other.csv"]),
    "scores": (["--scores", "a.csv", *LISTS[2:]], ["--scores", "b.csv"]),
    "embeddings": (VECTORS, ["--embeddings", "users.csv", "others.csv"]),
    "predictions": (PREDICTED, ["--predictions", "other.csv"]),
    "truth": (LISTS, ["--truth", "other.csv"]),
    "pairs": (["--embeddings", "items.csv", "--pairs", "a.csv"], ["--pairs", "b.csv"]),
    "train": (LISTS, ["--train", "train.csv"]),
    "columns": (LISTS, ["--columns", "user_id=userId"]),
    "candidates": (VECTORS, ["--candidates", "some.csv", "--set", "definition.candidates=given"]),
    "features": (LISTS, ["--features", "features.csv"]),
    "item_groups": (LISTS, ["--item-groups", "genres.csv"]),
    "user_groups": (LISTS, ["--user-groups", "users.csv"]),
    "similarity": (VECTORS, ["--similarity", "cosine"]),
    "k": (LISTS, ["--k", "7"]),
    "metrics": (LISTS, ["--metrics", "recall"]),
    "curve": (LISTS, ["--curve"]),
    "cut": (LISTS, ["--cut"]),
    "preset": (LISTS, ["--preset", "rectools"]),
    "set": (LISTS, ["--set", "definition.users=both"]),
    "quantiles": (PREDICTED, ["--quantiles", "7"]),
    "thresholds": (PREDICTED, ["--thresholds", "0.7"]),
    "fpr": (PREDICTED, ["--fpr", "0,0.2"]),
    "slice": (PREDICTED, ["--slice", "block"]),
    "negatives_kept": (PREDICTED, ["--negatives-kept", "0.5"]),
    "bootstrap": (LISTS, ["--bootstrap", "7"]),
}
NO_NUMBER = {
    "warehouse", "model_id", "dataset", "suite", "logical_date", "engine", "dry_run", "help", "debug",
    "version",
}  # fmt: skip


def find_evaluation_key(flags: list[str]) -> str:
    args = evaluate_command.parser().parse_args(["--warehouse", "w", "--model", "als", *flags])
    kind = next(name for name in KINDS if getattr(args, name))
    run = evaluate_action._identify_run(args, kind, evaluate_action.check_flags(args, kind))
    run["inputs"] = evaluate_action.input_paths(args)
    return str(standalone_runs._standalone_row(run, "truth", (), (kind,))["run_key"])


@pytest.mark.parametrize("name", FLAGS)
def test_a_flag_of_evaluate(name: str) -> None:
    base, moved = FLAGS[name]
    assert find_evaluation_key([*base, *moved]) != find_evaluation_key(base)


def test_each_flag_of_evaluate_is_tried_and_defaults_keep_the_key() -> None:
    known = {action.dest for action in evaluate_command.parser()._actions}
    assert known - NO_NUMBER == set(FLAGS)
    said = ["--similarity", "dot", "--bootstrap", "1000", "--k", "1,3,5,10,20"]
    assert find_evaluation_key([*VECTORS, *said]) == find_evaluation_key(VECTORS)
    assert find_evaluation_key([*PREDICTED, "--quantiles", "10"]) == find_evaluation_key(PREDICTED)
