"""Drawn candidates: their draw is in the definition, and the checks say what was drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import recbench_spark
from recbench_spark.commands import evaluate as evaluate_command
from recbench_spark.core.definitions import Definition, make_definition
from recbench_spark.errors import ConfigError

USERS, ITEMS = 8, 60
RNG = np.random.default_rng(2)
TRUTH = pd.DataFrame({"user_id": np.arange(USERS), "item_id": np.arange(USERS)})
TRAIN = pd.DataFrame({"user_id": np.arange(USERS).repeat(3), "item_id": np.arange(10, 10 + 3 * USERS)})
VECTORS = tuple(
    pd.DataFrame({name: np.arange(n), "vector": RNG.normal(size=(n, 4)).tolist()})
    for name, n in (("user_id", USERS), ("item_id", ITEMS))
)
DRAWS = (
    {"n": 5},
    {"n": 7},
    {"n": 5, "per": "positive"},
    {"n": 5, "seed": 1},
)


def measure(draw: dict[str, Any], mode: str = "uniform", train: pd.DataFrame = TRAIN) -> Any:
    return recbench_spark.evaluate(
        TRUTH, embeddings=VECTORS, train=train, metrics=("ndcg", "coverage"), k=5, bootstrap=0,
        definition={"candidates": mode}, draw=draw,
    )  # fmt: skip


def test_each_draw_is_a_definition_of_its_own() -> None:
    results = [measure(draw) for draw in DRAWS] + [measure(DRAWS[0], "popularity")]
    for metric in ("ndcg", "coverage"):
        texts = {
            row["definition"]
            for one in results
            for row in one.metrics.to_pylist()
            if row["metric"] == metric
        }
        assert len(texts) == len(results)
    (first,) = {row["definition"] for row in results[0].metrics.to_pylist() if row["metric"] == "ndcg"}
    assert first == "v1;candidates=uniform;draw=5 a user without replacement, seed 42"


@pytest.mark.parametrize("other", DRAWS[1:])
def test_numbers_of_two_draws_are_not_compared(other: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="definition"):
        recbench_spark.compare({"few": measure(DRAWS[0]), "other": measure(other)})


def test_a_draw_is_no_axis_to_set_and_exact_metrics_have_none() -> None:
    with pytest.raises(ConfigError, match=r"definition\.draw follows from the settings"):
        make_definition(None, {"draw": "5 a user"})
    assert Definition().describe() == "v1" and "draw" not in Definition().to_settings()
    exact = recbench_spark.evaluate(
        TRUTH, embeddings=VECTORS, train=TRAIN, metrics="ndcg", k=5, bootstrap=0
    )
    assert {row["definition"] for row in exact.metrics.to_pylist()} == {"v1"}


def test_the_check_says_what_was_drawn() -> None:
    """User 0 knows all but 2 of 60 items, beside one in the truth; the others have 56 to draw from."""
    whole = pd.DataFrame({"user_id": 0, "item_id": np.arange(3, ITEMS)})
    train = pd.concat([TRAIN[TRAIN.user_id > 0], whole])
    checks = {check.check: check for check in measure({"n": 10}, train=train).checks}
    drawn = checks["candidates drawn"]
    assert drawn.observed == (2 + 10 * 7) / 8 and drawn.detail.startswith(
        "2 to 10 a user drawn; uniform, 10 a"
    )
    lacking = checks["drawn candidates that a user lacks"]
    assert lacking.observed == 8 and not lacking.passed


# ------------------------------------------------------------------- tables that decide candidates

SCORES = pd.DataFrame({"user_id": np.arange(USERS).repeat(ITEMS), "item_id": list(range(ITEMS)) * USERS})
SCORES = SCORES.assign(score=RNG.normal(size=len(SCORES)))
OTHER = TRAIN.iloc[::-1].iloc[1:]
SYSTEMS: dict[str, dict[str, Any]] = {"scores": {"scores": SCORES}, "embeddings": {"embeddings": VECTORS}}


def measure_masked(train: pd.DataFrame | None, **options: Any) -> Any:
    return recbench_spark.evaluate(
        TRUTH, train=train, **{"metrics": "ndcg", "k": 5, "bootstrap": 0, **options}
    )


@pytest.mark.parametrize("other", [OTHER, None])
@pytest.mark.parametrize("system", SYSTEMS)
def test_other_training_rows_mask_other_items(system: str, other: pd.DataFrame | None) -> None:
    one, two = (measure_masked(train, **SYSTEMS[system]) for train in (TRAIN, other))
    with pytest.raises(ConfigError, match="one and two: their training items are those of other rows"):
        recbench_spark.compare({"one": one, "two": two})
    # The order of rows, repeated rows and the type of ids are no matter.
    alike = pd.concat([TRAIN.iloc[::-1], TRAIN[:3]]).astype(str)
    recbench_spark.compare({"one": one, "two": measure_masked(alike, **SYSTEMS[system])}, bootstrap=9)


def test_training_rows_that_mask_nothing_decide_popularity_alone() -> None:
    lists = SCORES.groupby("user_id").head(7).assign(rank=list(range(1, 8)) * USERS).drop(columns="score")
    metrics = ("ndcg", "novelty")
    one, two = (measure_masked(train, lists=lists, metrics=metrics) for train in (TRAIN, OTHER))
    recbench_spark.compare({"one": one, "two": two}, metrics="ndcg", bootstrap=9)
    with pytest.raises(ConfigError, match="novelty count those of other rows"):
        recbench_spark.compare({"one": one, "two": two})
    every = {"definition": {"candidates": "all"}, "scores": SCORES}
    one, two = (measure_masked(train, **every) for train in (TRAIN, OTHER))
    recbench_spark.compare({"one": one, "two": two}, bootstrap=9)


def test_other_given_candidates_are_refused() -> None:
    few = SCORES[SCORES.item_id < 20][["user_id", "item_id"]]
    given = {"definition": {"candidates": "given"}, "embeddings": VECTORS}
    one, two = (measure_masked(None, candidates=table, **given) for table in (few, few[:-1]))
    with pytest.raises(ConfigError, match="candidates are those of other rows"):
        recbench_spark.compare({"one": one, "two": two})


def test_runs_of_a_warehouse_with_other_training_rows_are_not_compared(tmp_path: Path) -> None:
    tables = {"truth": TRUTH, "train": TRAIN, "other": OTHER, "scores": SCORES}
    paths = {name: str(tmp_path / f"{name}.csv") for name in tables}
    for name, table in tables.items():
        table.to_csv(paths[name], index=False)
    warehouse = str(tmp_path / "w")
    shared = ["--warehouse", warehouse, "--engine", "local", "--bootstrap", "0"]
    for model, train in (("one", "train"), ("two", "other"), ("three", "train")):
        files = ["--scores", paths["scores"], "--truth", paths["truth"], "--train", paths[train]]
        flags = [*shared, "--model", model, *files]
        assert evaluate_command.main(evaluate_command.parser().parse_args(flags)) == 0
    with pytest.raises(ConfigError, match="one and two: their training items are those of other rows"):
        recbench_spark.compare(["one", "two"], warehouse=warehouse)
    recbench_spark.compare(["one", "three"], warehouse=warehouse, bootstrap=9)


@pytest.mark.parametrize("engine", ["local", pytest.param("spark", marks=pytest.mark.spark)])
@pytest.mark.parametrize("mode", ["uniform", "popularity"])
def test_a_trained_item_of_the_truth_stands_beside_drawn_ones(
    mode: str, engine: str, request: pytest.FixtureRequest
) -> None:
    """User u has a in training and in the truth: it is the first of its candidates, and no miss."""
    rows = {
        "truth": [("u", "a"), ("v", "b")],
        "train": [("u", "a"), ("u", "c"), ("v", "d"), ("v", "e"), ("v", "f")],
    }
    tables = [pd.DataFrame(pairs, columns=["user_id", "item_id"]) for pairs in rows.values()]
    items = pd.DataFrame({"item_id": list("abcdef"), "vector": [[float(n)] for n in range(6, 0, -1)]})
    tables += [pd.DataFrame({"user_id": ["u", "v"], "vector": [[1.0], [1.0]]}), items]
    if engine == "spark":
        tables = [request.getfixturevalue("spark").createDataFrame(table) for table in tables]
    truth, train, users, items = tables
    result = recbench_spark.evaluate(
        truth, embeddings=(users, items), train=train, metrics="mrr", k=5, bootstrap=0,
        definition={"candidates": mode}, draw={"n": 3}, uncut=False,
    )  # fmt: skip
    # v has a, c and b itself (of popularity: a and c): a stands before b.
    assert result.to_pandas().value.tolist() == [(1 + 1 / 2) / 2]
    (check,) = [check for check in result.checks if "truth rows that are" in check.check]
    assert check.passed and "misses" not in check.detail
