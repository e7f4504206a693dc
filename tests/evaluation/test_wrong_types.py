"""A wrong option of the calls without a config file ends in one sentence, whatever its type is."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest

import recbench_spark
from recbench_spark.config import Bootstrap, CandidateDraw
from recbench_spark.errors import ConfigError, RecbenchError
from recbench_spark.metrics.predictions import Views

TRUTH = pd.DataFrame({"user_id": [1, 1, 2], "item_id": [1, 2, 3]})
LISTS = pd.DataFrame({"user_id": [1, 1, 2], "item_id": [1, 3, 3], "rank": [1, 2, 1]})
USERS = pd.DataFrame({"user_id": [1, 2], "vector": [[1.0, 0.0], [0.0, 1.0]]})
ITEMS = pd.DataFrame({"item_id": [1, 2, 3], "vector": [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]})
OUTCOMES = pd.DataFrame(
    {"user_id": [1, 2], "item_id": [1, 2], "prediction": [0.5, 0.6], "outcome": [0.0, 1.0]}
)

ODD: tuple[Any, ...] = (
    2.5, float("nan"), "x", b"x", ["x"], {"a": 1}, object(), Bootstrap, np.array([1.5, 2.5]),
    np.array([[1, 2]]), pd.Series([0.5]), pd.DataFrame({"a": [1]}), pd.NA, 2j, [None], [[1]], [True], len,
)  # fmt: skip
"""None of them is right anywhere."""

OF_FRAMES = ("k", "metrics", "preset", "definition", "bootstrap", "truth", "lists")
OF_VECTORS = ("similarity", "uncut", "draw", "features_name", "engine", "embeddings", "scratch")


def by_frames(**options: Any) -> pd.DataFrame:
    return recbench_spark.evaluate_frames(**{"truth": TRUTH, "lists": LISTS, **options})


def by_vectors(**options: Any) -> Any:
    return recbench_spark.evaluate(TRUTH, **{"embeddings": (USERS, ITEMS), "k": (1,), **options})


def by_outcomes(**options: Any) -> Any:
    return recbench_spark.evaluate_predictions(**{"predictions": OUTCOMES, **options})


def cases() -> Iterator[Any]:
    of_outcomes = ("bootstrap", "views", "engine")
    rooms = ((by_frames, OF_FRAMES), (by_vectors, OF_VECTORS), (by_outcomes, of_outcomes))
    for call, names in rooms:
        for name, (n, value) in itertools.product(names, enumerate(ODD)):
            if not (name in ("features_name", "scratch") and isinstance(value, str)):
                yield pytest.param(call, {name: value}, id=f"{call.__name__}-{name}-{n}")
    for axis, (n, value) in itertools.product(("gain", "users"), enumerate(ODD)):
        yield pytest.param(by_frames, {"definition": {axis: value}}, id=f"{axis}-{n}")
    for key, (n, value) in itertools.product(("replicates", "level", "seed"), enumerate(ODD)):
        if not (key == "level" and n == 0):
            yield pytest.param(by_frames, {"bootstrap": {key: value}}, id=f"{key}-{n}")


@pytest.mark.parametrize(("call", "options"), cases())
def test_a_wrong_type_is_one_sentence(call: Any, options: dict[str, Any]) -> None:
    with pytest.raises(RecbenchError) as error:
        call(**options)
    assert len(str(error.value).splitlines()) <= 2
    assert len(error.value.message) < 500


@pytest.mark.parametrize("call", [by_frames, by_vectors])
def test_a_metric_that_stands_twice_is_refused(call: Any) -> None:
    with pytest.raises(ConfigError, match="metrics: 'ndcg' is given twice"):
        call(metrics=["ndcg", "recall", "ndcg"])


def test_what_can_be_read_once_counts_whole() -> None:
    once = by_frames(metrics=(name for name in ["ndcg", "recall"]), k=(k for k in [1, 2]))
    pd.testing.assert_frame_equal(once, by_frames(metrics=["ndcg", "recall"], k=[1, 2]))


def test_a_set_of_metrics_has_one_order() -> None:
    frame = by_frames(metrics={"recall", "ndcg", "hit"}, k={2, 1})
    assert list(frame.metric.unique()) == ["hit", "ndcg", "recall"]


@pytest.mark.parametrize("sides", [(USERS,), (USERS, ITEMS, ITEMS), (USERS, None), USERS])
def test_embeddings_are_two_tables(sides: Any) -> None:
    with pytest.raises(ConfigError, match="embeddings is"):
        by_vectors(embeddings=sides)


def test_an_unknown_engine_is_refused() -> None:
    with pytest.raises(ConfigError) as error:
        by_vectors(engine="locl")
    assert "did you mean 'local'?" in error.value.hint


def test_keys_and_values_are_settings_too() -> None:
    plain = by_frames(bootstrap=Bootstrap(replicates=50, seed=7))
    pd.testing.assert_frame_equal(plain, by_frames(bootstrap={"replicates": 50, "seed": 7}))
    with pytest.raises(ConfigError) as error:
        by_frames(bootstrap={"replicate": 50})
    assert "did you mean 'replicates'?" in error.value.hint
    options = {"definition": {"candidates": "uniform"}, "train": TRUTH.head(1)}
    drawn = by_vectors(draw={"n": 1, "seed": 3}, **options).metrics.to_pandas()
    same = by_vectors(draw=CandidateDraw(n=1, seed=3), **options).metrics.to_pandas()
    pd.testing.assert_frame_equal(drawn, same)


@pytest.mark.parametrize(
    "settings",
    [{"quantiles": "x"}, {"quantiles": 2.5}, {"thresholds": "x"}, {"fpr": (0.1,)}, {"fpr": None}],
)
def test_views_are_numbers(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        Views(**settings)
