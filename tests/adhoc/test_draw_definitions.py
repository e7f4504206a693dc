"""Drawn candidates: their draw is in the definition, and the checks say what was drawn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

import recbench_spark
from recbench_spark.definitions import Definition, make_definition
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
