"""Options and tables that are none are told to a caller of frames, and checks are warnings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import recbench_spark
from recbench_spark.config import Bootstrap
from recbench_spark.core.checks import CheckWarning
from recbench_spark.errors import ConfigError, DataError, RecbenchError
from recbench_spark.evaluation import request_checks
from recbench_spark.evaluation.request_checks import GRADES_WITHOUT_GAIN

USERS = [f"u{n}" for n in range(5)]
TRUTH = pd.DataFrame({"user_id": USERS, "item_id": list("aabbc")})
LISTS = pd.DataFrame({"user_id": USERS, "item_id": list("abbca"), "rank": 1})


def by_frames(truth: Any = TRUTH, lists: Any = LISTS, **options: Any) -> pd.DataFrame:
    return recbench_spark.evaluate_frames(truth, lists, **options)


def by_call(truth: Any = TRUTH, lists: Any = LISTS, **options: Any) -> pd.DataFrame:
    return recbench_spark.evaluate(truth, lists=lists, **options).metrics.to_pandas()


both = pytest.mark.parametrize("call", [by_frames, by_call])


@both
@pytest.mark.parametrize(
    ("options", "report", "hint"),
    [
        ({"k": None}, "k is None", "k=(5, 10)"),
        ({"k": "10"}, "k is '10'", "k=(5, 10)"),
        ({"k": True}, "k is True", "k=(5, 10)"),
        ({"metrics": None}, "metrics is None", "metrics='ndcg@10'"),
        ({"metrics": "ndgc@10"}, "unknown metric 'ndgc'", "did you mean 'ndcg'?"),
        ({"metrics": "hit_rat"}, "unknown metric 'hit_rat'", "did you mean 'hit'?"),
        ({"metrics": "ndcg@ten"}, "metric 'ndcg@ten': 'ten' is no cut-off", "ndcg@10"),
        ({"metrics": ["r_precision@5"]}, "r_precision@5", "without a cut-off: 'r_precision'"),
        ({"metrics": ["hr@5", "hit@5"]}, "'hit' is given twice", "once"),
        ({"columns": {"user": "userId"}}, "columns: unknown 'user'", "did you mean 'user_id'?"),
        ({"columns": ["userId"]}, "columns is ['userId']", "columns={'user_id': 'userId'}"),
        ({"definition": "gain=linear"}, "definition is 'gain=linear'", "definition={'gain': 'linear'}"),
        ({"definition": ["gain"]}, "definition is ['gain']", "definition={'gain': 'linear'}"),
        ({"bootstrap": "none"}, "bootstrap is 'none'", "or 0"),
        ({"bootstrap": 1.5}, "bootstrap is 1.5", "or 0"),
        ({"bootstrap": -1}, "bootstrap=-1", ""),
    ],
)
def test_options_that_are_none_are_told(call: Any, options: dict[str, Any], report: str, hint: str) -> None:
    with pytest.raises(ConfigError) as error:
        call(**options)
    assert report in error.value.message
    assert hint in error.value.hint


@both
@pytest.mark.parametrize(
    "table", [{"u0": ["a"], "u1": ["b"]}, {"u0": ["a"], "u1": ["b", "c"]}, {1: ["a"]}, {}]
)
def test_a_dict_of_lists_is_told_how_to_become_a_frame(call: Any, table: dict[Any, Any]) -> None:
    with pytest.raises(DataError) as error:
        call(lists=table)
    assert "lists: dict is not a table" in error.value.message
    assert "columns=['user_id', 'item_id', 'rank']" in error.value.hint


@both
@pytest.mark.parametrize("values", [pa.string(), pa.large_string(), pa.string_view()])
@pytest.mark.parametrize("index", [pa.uint8(), pa.uint32()])
def test_ids_in_dictionaries_are_their_values(call: Any, values: pa.DataType, index: pa.DataType) -> None:
    """Polars exports Categorical (uint32) and Enum (uint8) like this, and pandas its categories."""

    def encode_ids(frame: pd.DataFrame, names: list[str]) -> pa.Table:
        table = pa.Table.from_pandas(frame)
        for name in names:
            codes = table.column(name).combine_chunks().cast(pa.string()).dictionary_encode()
            pieces = pa.DictionaryArray.from_arrays(
                codes.indices.cast(index), codes.dictionary.cast(values)
            )
            halves = pa.chunked_array([pieces.slice(0, 2), pieces.slice(2)])
            table = table.set_column(table.column_names.index(name), name, halves)
        return table

    names = ["user_id", "item_id"]
    result = call(encode_ids(TRUTH, names), encode_ids(LISTS, [*names, "rank"]))
    pd.testing.assert_frame_equal(result, call())


@both
@pytest.mark.parametrize("none", [0, False, np.int64(0), Bootstrap(replicates=0)])
def test_no_bootstrap_means_no_interval(call: Any, none: Any) -> None:
    metrics = call(bootstrap=none, metrics=["hit"], k=[1])
    assert metrics.ci_low.isna().all() and metrics.ci_high.isna().all()
    assert metrics.value.tolist() == [2 / 5]
    assert call(metrics=["hit"], k=[1]).ci_low.notna().all()
    some = call(bootstrap=50, metrics=["hit"], k=[1])
    pd.testing.assert_frame_equal(some, call(bootstrap=Bootstrap(replicates=50), metrics=["hit"], k=[1]))


PREDICTIONS = {"user_id": USERS, "item_id": list("abcde"), "prediction": [0.1, 0.9, 0.4, 0.6, 0.5]}


def test_predictions_too() -> None:
    rows = pa.table({**PREDICTIONS, "outcome": [0, 1, 0, 0, 1]})
    metrics = recbench_spark.evaluate_predictions(rows, bootstrap=0).metrics.to_pandas()
    # The interval of AUC follows from its standard error.
    assert set(metrics[metrics.ci_low.notna()].metric) == {"auc"}
    with pytest.raises(ConfigError, match="bootstrap is 'no'"):
        recbench_spark.evaluate_predictions(rows, bootstrap="no")


# ------------------------------------------------------------------------------------------- warnings

TIED = LISTS.assign(score=1.0).drop(columns="rank")
MANY = pd.concat([TIED.assign(item_id=item) for item in "abc"])
WARNED: dict[str, tuple[pd.DataFrame, pd.DataFrame, str]] = {
    "nobody has a list": (TRUTH, LISTS.assign(user_id="nobody", rank=range(1, 6)), "have no id in common"),
    "some have none": (TRUTH, LISTS[LISTS.user_id != "u3"], "test: users without output: 1 "),
    "all tied": (TRUTH, MANY, "test: tied truth items: 1 "),
    "a pair twice in a list": (TRUTH, pd.concat([LISTS, LISTS[:2]]), "duplicate list rows: 2 "),
    "a pair twice in the truth": (pd.concat([TRUTH, TRUTH[:1]]), LISTS, "test: duplicate rows: 1 "),
    "grades": (TRUTH.assign(relevance=[1, 2, 3, 4, 5]), LISTS, f"{GRADES_WITHOUT_GAIN}: 5 "),
}  # fmt: skip


@pytest.mark.parametrize("name", WARNED)
def test_frames_warn_of_what_the_command_line_warns_of(name: str) -> None:
    truth, lists, expected = WARNED[name]
    if name == "nobody has a list":
        with pytest.raises(RecbenchError, match=expected):
            by_frames(truth, lists)
        return
    with pytest.warns(CheckWarning) as warned:
        frame = by_frames(truth, lists)
    assert any(expected in str(one.message) for one in warned)
    checks = {check["check"]: check for check in frame.attrs["checks"]}
    assert not checks[expected.rpartition(": ")[0]]["passed"]


def test_a_sound_call_warns_of_nothing_and_writes_to_parquet(tmp_path: Path) -> None:
    frame = by_frames()
    assert all(check["passed"] for check in frame.attrs["checks"])
    frame.to_parquet(tmp_path / "metrics.parquet")


@both
def test_grades_are_told_once_with_both_lines(call: Any) -> None:
    graded = TRUTH.assign(relevance=[1, 2, 3, 4, 5])

    def read_grade_details(**options: Any) -> list[str]:
        checks = recbench_spark.evaluate(graded, lists=LISTS, **options).checks
        return [check.detail for check in checks if check.check == GRADES_WITHOUT_GAIN]

    (detail,) = read_grade_details()
    assert "definition.gain=linear" in detail and "definition.gain=binary" in detail
    for options in ({"definition": {"gain": "binary"}}, {"preset": "ranx"}):
        assert not read_grade_details(**options)
    (detail,) = read_grade_details(metrics=["recall"])
    assert "grades from 1 to 5" in detail and "definition.threshold" in detail
    assert not read_grade_details(metrics=["recall"], definition={"threshold": 4})
    ones = recbench_spark.evaluate(TRUTH.assign(relevance=1.0), lists=LISTS).checks
    assert all(check.check != GRADES_WITHOUT_GAIN for check in ones)


def test_spark_tells_the_same_of_grades(spark) -> None:
    graded = TRUTH.assign(relevance=[1.0, 2.0, 3.0, 4.0, 5.0])
    ours = recbench_spark.evaluate(graded, lists=LISTS).checks
    result = recbench_spark.evaluate(
        spark.createDataFrame(graded), lists=spark.createDataFrame(LISTS), bootstrap=0
    )
    assert {check for check in result.checks if check.check == GRADES_WITHOUT_GAIN} == {
        check for check in ours if check.check == GRADES_WITHOUT_GAIN
    }
    assert result.metrics.where("ci_low IS NOT NULL").isEmpty()
    with pytest.raises(ConfigError, match="k is None"):
        recbench_spark.evaluate(spark.createDataFrame(graded), lists=spark.createDataFrame(LISTS), k=None)


def test_ranks_are_looked_for_where_any_attribute_exists() -> None:
    """A frame of Spark 4.2 by Connect has a column of any name."""

    class Frame:
        columns = ("user_id", "item_id", "rank")

        def __getattr__(self, name: str) -> object:
            return object()

    assert request_checks._has_ranks(Frame())
    assert not request_checks._has_ranks(pa.table({"user_id": ["a"]}))
