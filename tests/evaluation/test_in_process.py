"""Metrics of frames in this process: by hand, against all orders of ties, in any order of rows."""

from __future__ import annotations

import math
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings

import recbench_spark
from recbench_spark.core.definitions import make_definition
from recbench_spark.errors import ConfigError, DataError, SchemaError
from recbench_spark.evaluation.in_process import evaluate_frames
from tests import oracles

Pairs = list[tuple[Any, Any]]
WANTED, SCORED = ["user_id", "item_id"], ["user_id", "item_id", "score"]
USERS = st.dictionaries(
    st.integers(0, 9),
    st.tuples(
        st.dictionaries(st.integers(-3, 12), st.sampled_from([1.0, 2.0, 3.0]), max_size=5),
        st.dictionaries(st.integers(-3, 12), st.sampled_from([0.0, 1.0, 2.0]), min_size=1, max_size=5),
    ),
    min_size=1,
    max_size=5,
)


def make_truth(pairs: Pairs) -> pd.DataFrame:
    return pd.DataFrame(pairs, columns=WANTED)


def make_lists(rows: list[tuple[Any, Any, Any]], value: str = "score") -> pd.DataFrame:
    return pd.DataFrame(rows, columns=[*WANTED, value])


def values(result: pd.DataFrame) -> dict[tuple[str, int | None], float]:
    return {(row.metric, None if pd.isna(row.k) else row.k): row.value for row in result.itertuples()}


def test_three_users_by_hand() -> None:
    """a: its one item at rank 2; b: nothing listed; c: no truth, left out; d: listed, without truth."""
    truth = make_truth([("a", 1), ("b", 5), ("b", 6), ("c", None)])
    lists = make_lists([("a", 1, 0.1), ("d", 1, 1.0), ("a", 7, 0.9), ("c", 1, 1.0)])
    frame = evaluate_frames(truth, lists, k=[2, 1, 2], metrics=["recall", "ndcg", "precision"])
    assert list(frame.metric) == ["recall"] * 2 + ["ndcg"] * 3 + ["precision"] * 2
    assert list(frame.k.fillna(0)) == [1, 2, 1, 2, 0, 1, 2]
    ndcg = 1 / math.log2(3) / 2
    np.testing.assert_allclose(frame.value, [0, 1 / 2, 0, ndcg, ndcg, 0, 1 / 4], rtol=1e-15)
    # Recalls 1 and 0: variance 1/2, over two users.
    assert frame.stderr[1] == 1 / 2 and set(frame.n) == {2} and set(frame.definition) == {"v1"}
    assert recbench_spark.evaluate_frames is evaluate_frames


@settings(max_examples=60)
@given(USERS, st.sampled_from([None, "replay", "ranx", "mllib"]), st.randoms(), st.booleans())
def test_values_equal_the_oracle(users: Any, preset: str | None, random: Any, text: bool) -> None:
    definition, names = make_definition(preset), ["hit", "recall", "map", "mrr", "ndcg", "auc"]
    rows = [(user, i, score) for user, (scores, _) in users.items() for i, score in scores.items()]
    wanted = [(user, i, grade) for user, (_, grades) in users.items() for i, grade in grades.items()]
    random.shuffle(rows)
    random.shuffle(wanted)
    types = {"user_id": str if text else np.int32, "item_id": np.int64, "score": np.float64}
    lists = make_lists(rows).astype(types)
    truth = pa.Table.from_pandas(pd.DataFrame(wanted, columns=[*WANTED, "relevance"]))
    truth = truth.set_column(0, "user_id", truth["user_id"].cast(pa.string() if text else pa.int64()))
    computed = values(evaluate_frames(truth, lists, k=[1, 3], metrics=names, preset=preset))
    for (name, k), value in computed.items():
        of_users = [oracles.value(name, scores, grades, k, definition) for scores, grades in users.values()]
        known = [v for v in of_users if not math.isnan(v)]
        expected = sum(known) / len(known) if known else math.nan
        assert value == pytest.approx(expected, abs=1e-12, nan_ok=True), (name, k)


def test_ids_are_ordered_as_numbers_or_by_their_bytes() -> None:
    """Two items of one score: 2 stands before 10, "10" before "2", also in one column of two."""
    for item, k1 in ((int, 0.0), (str, 1.0)):
        lists = make_lists([("u", item(2), 1.0), ("u", item(10), 1.0)])
        for wanted in (10, item(10)):
            frame = evaluate_frames(make_truth([("u", wanted)]), lists, k=[1], metrics=["hit"])
            assert frame.value[0] == k1
    mixed = make_lists([("u", "é", 1.0), ("u", "z", 1.0), ("u", "Z", 1.0)]).astype({"item_id": "category"})
    frame = evaluate_frames(make_truth([("u", "é")]), mixed, k=[2, 3], metrics=["hit"])
    assert list(frame.value) == [0, 1]


def test_rank_wins_over_score_and_duplicates_keep_the_best() -> None:
    lists = make_lists([(1, 7, 3), (1, 8, 1), (1, 7, 2)], "rank").assign(score=[9.0, 1.0, 8.0])
    frame = evaluate_frames(make_truth([(1, 7), (1, 7)]), lists, k=[1, 2], metrics=["recall"])
    assert list(frame.value) == [0, 1]
    for truth, rows in ((make_truth([(1, 7), (1, 7)]), lists[:2]), (make_truth([(1, 7)]), lists)):
        with pytest.raises(DataError, match="duplicate"):
            evaluate_frames(truth, rows, definition={"duplicates": "error"})


def test_no_list_at_all() -> None:
    empty = make_lists([]).astype({"score": float})
    frame = evaluate_frames(make_truth([(1, 7)]), empty, k=[1], metrics=["hit", "ndcg"])
    assert list(frame.value) == [0, 0, 0] and set(frame.n) == {1}


GOOD = make_truth([(1, 7)]), make_lists([(1, 7, 1.0)])


@pytest.mark.parametrize(
    ("truth", "lists", "error", "message"),
    [
        (GOOD[0][:0], GOOD[1], DataError, "truth: no rows"),
        (GOOD[0][["user_id"]], GOOD[1], SchemaError, "truth has no column item_id"),
        (GOOD[0], GOOD[1][WANTED], SchemaError, "lists has no column score"),
        (
            GOOD[0],
            make_lists([(1, 7, None), (1, 8, 1.0)]),
            DataError,
            "1 rows whose score is NULL, NaN, infinite",
        ),
        (GOOD[0], make_lists([(1, 7, math.inf)]), DataError, "1 rows whose score is NULL, NaN, infinite"),
        (GOOD[0], make_lists([(1, 7, "good")]), DataError, "1 rows whose score is NULL"),
        (GOOD[0], make_lists([(1, 7, 0)], "rank"), DataError, "1 rows whose rank is a rank below 1"),
        (
            GOOD[0],
            make_lists([(1, 7, 1), (1, 8, None)], "rank"),
            DataError,
            "1 rows whose rank is a rank below 1, NULL",
        ),
        (GOOD[0], make_lists([(1, None, 1.0), (1, 8, 1.0)]), DataError, "1 rows whose item_id is NULL"),
        (
            GOOD[0],
            make_lists([(1, 7.5, 1.0)]),
            DataError,
            "item_id: 1 rows .double. are not a whole number.*7.5",
        ),
        (make_truth([(None, 7), (1, 7)]), GOOD[1], DataError, "1 rows whose user_id is NULL"),
        (GOOD[0].assign(relevance=[None]), GOOD[1], DataError, "1 rows whose relevance is NULL"),
    ],
)
def test_unusable_rows(truth: Any, lists: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        evaluate_frames(truth, lists, k=[1], metrics=["hit"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"metrics": ["ndgc"]}, "unknown metric 'ndgc'"),
        ({"metrics": []}, "metrics"),
        ({"k": []}, "at k"),
        ({"k": [0]}, "cut-off 0"),
        ({"preset": "nobody"}, "unknown preset"),
    ],
)
def test_unusable_wishes(options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        evaluate_frames(*GOOD, **options)
