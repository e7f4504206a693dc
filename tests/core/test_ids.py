"""Ids of frames in this process: against the slow rule for every type, and ids that do not meet."""

from __future__ import annotations

import datetime as dt
import math
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from recbench_spark import evaluate_frames
from recbench_spark.core.checks import CheckWarning
from recbench_spark.errors import ConfigError, DataError, SchemaError
from recbench_spark.sources.arrow_rows import as_table
from tests import id_rule

HIT: dict[str, Any] = {"k": [1], "metrics": ["hit"]}


def hit(truth: Any, lists: Any) -> float:
    return float(evaluate_frames(truth, lists, **HIT).value[0])


def table(**columns: Any) -> pa.Table:
    return pa.table(columns)


@pytest.mark.parametrize("name", id_rule.GOOD)
def test_every_type_means_the_ids_of_the_rule(name: str) -> None:
    """A frame with typed ids meets one with the rule's ids as text, as users and as items."""
    kind, values = id_rule.GOOD[name]
    known = [value for value in values if id_rule.make_id(kind, value) is not None]
    typed = id_rule.column(kind, known)
    text = pa.array([str(id_rule.make_id(kind, value)) for value in known])
    ones = pa.array([1.0] * len(known))
    for ids in (typed, typed.dictionary_encode()):
        for truth, given in ((ids, text), (text, ids)):
            one = table(user_id=truth, item_id=truth), table(user_id=given, item_id=given, score=ones)
            assert hit(*one) == 1
    if len(known) < len(values):
        missing = table(user_id=pa.array(range(len(values))), item_id=id_rule.column(kind, values))
        lists = table(user_id=pa.array([0]), item_id=text[:1], score=pa.array([1.0]))
        result = evaluate_frames(missing, lists, **HIT)
        assert result.n[0] == len(known)  # an empty truth is left out
        with pytest.raises(DataError, match="whose item_id is NULL"):
            hit(table(user_id=[1], item_id=["1"]), missing.append_column("score", [[1.0] * len(values)]))


@pytest.mark.parametrize("name", id_rule.BAD)
def test_values_that_are_no_ids_are_shown(name: str) -> None:
    kind, values, shown = id_rule.BAD[name]
    with pytest.raises(ValueError):
        [id_rule.make_id(kind, value) for value in values]
    bad = id_rule.column(kind, values)
    good = table(user_id=["1"], item_id=["1"])
    with pytest.raises(DataError, match=f"lists: item_id: 1 rows .* e.g. .*({shown})"):
        hit(good, table(user_id=pa.array(["1", "1"]), item_id=bad, score=[1.0, 2.0]))
    with pytest.raises(DataError, match=f"truth: user_id: 1 rows .* e.g. .*({shown})"):
        hit(table(user_id=bad, item_id=["1", "1"]), table(user_id=["1"], item_id=["1"], score=[1.0]))


def test_float16_and_views_of_text() -> None:
    lists = table(user_id=["1"], item_id=["10"], score=[1.0])
    assert hit(table(user_id=["1"], item_id=pa.array(np.array([10.0], np.float16))), lists) == 1
    with pytest.raises(DataError, match="2048"):
        hit(table(user_id=["1"], item_id=pa.array(np.array([2048.0], np.float16))), lists)
    for kind in (pa.string_view(), pa.binary_view(), pa.large_binary()):
        ids = pa.array([b"10"]).cast(kind) if kind != pa.string_view() else pa.array(["10"], kind)
        assert hit(table(user_id=pa.array(["1"], pa.string_view()), item_id=ids), lists) == 1


def test_a_table_of_arrow_stays_as_it_is() -> None:
    """Arrow 18 to 20 crash where they copy one with views of bytes that a cast made."""
    given = table(user_id=["1"], item_id=pa.array([b"10"]).cast(pa.binary_view()))
    assert as_table(given, "truth") is given
    assert as_table(given.to_batches()[0], "truth") == given


@pytest.mark.parametrize(
    "ids",
    [
        pa.array([[1]]),
        pa.array([{"a": 1}]),
        pa.array([dt.datetime(2026, 1, 1)]),
        pa.array([dt.date(2026, 1, 1)]),
        pa.array([dt.timedelta(1)]),
    ],
    ids=str,
)
def test_types_that_hold_no_ids(ids: pa.Array) -> None:
    good = table(user_id=["1"], item_id=["1"], score=[1.0])
    # An array of items is a list in one cell: tests/sources/test_list_columns.py.
    for name in ("user_id",) if pa.types.is_list(ids.type) else ("user_id", "item_id"):
        with pytest.raises(SchemaError, match=f"lists: {name} is .* holds no ids"):
            hit(good, good.set_column(good.column_names.index(name), name, ids))


def test_text_that_is_no_utf8() -> None:
    bad = table(user_id=["1", "1"], item_id=id_rule.not_utf8(), score=[1.0, 1.0])
    with pytest.raises(DataError, match=r"item_id: 1 rows .* UTF-8, e.g. b'caf"):
        hit(table(user_id=["1"], item_id=["1"]), bad)


@pytest.mark.parametrize("frame", [None, 7, pd.DataFrame({"user_id": [1, "a"]}, dtype=object)])
def test_what_is_no_table(frame: Any) -> None:
    with pytest.raises(DataError, match=r"truth: .* is not a table that Arrow can read"):
        hit(frame, table(user_id=["1"], item_id=["1"], score=[1.0]))


def test_pandas_makes_floats_of_whole_numbers_beside_a_missing_one() -> None:
    truth = pd.DataFrame({"user_id": [1, 2, 3], "item_id": [10, 11, None]})
    assert truth.item_id.dtype == float
    lists = pd.DataFrame({"user_id": [1, 2, 3], "item_id": [10, 11, 10], "score": [1.0, 1.0, 1.0]})
    for ids in ("Int64", "category", "object", "string"):
        typed = truth if ids == "string" else truth.astype({"item_id": ids})
        given = lists.astype({"item_id": ids})
        result = evaluate_frames(typed, given, **HIT)
        assert (result.value[0], result.n[0]) == (1, 2), ids


def test_a_truth_that_is_empty_throughout_and_lists_that_are() -> None:
    truth = pd.DataFrame({"user_id": [1, 2], "item_id": [None, None]})
    lists = pd.DataFrame({"user_id": [1], "item_id": [7], "score": [1.0]})
    assert evaluate_frames(truth, lists, **HIT).n[0] == 0
    assert hit(lists, pd.DataFrame({"user_id": [], "item_id": [], "score": []}, dtype=object)) == 0


# ------------------------------------------------------------------------------- ids that do not meet


def pair(users: list[Any], items: list[Any], given_users: list[Any], given_items: list[Any]) -> Any:
    lists = table(user_id=given_users, item_id=given_items, score=[1.0] * len(given_users))
    return table(user_id=users, item_id=items), lists


@pytest.mark.parametrize(
    ("one", "other"),
    [(["u1", "u2"], [1, 2]), (["007"], [7]), ([" 7"], ["7"]), (["7.0"], [7.0]), (["a"], ["A"])],
)
def test_users_that_do_not_meet(one: list[Any], other: list[Any]) -> None:
    items = [1] * len(one)
    with pytest.raises(DataError) as error:
        hit(*pair(one, items, other, [1] * len(other)))
    for ids in (one, other):
        assert (
            ", ".join(repr(value) for value in sorted(pa.array(ids).cast(pa.string()).to_pylist())[:1])
            or ids
        )
    assert "have no id in common" in str(error.value) and "user_id of truth (string)" in str(error.value)
    assert repr(one[0]) in str(error.value) and "hint" in str(error.value)


def test_items_of_two_kinds_cannot_meet_and_others_may_be_missed() -> None:
    with pytest.raises(DataError, match=r"item_id of lists .int64.: '1', '2', '3'\n.*string.: 'i1'"):
        hit(*pair([1], ["i1"], [1, 1, 1, 1], [3, 2, 1, 4]))
    assert hit(*pair([1], [5], [1], [6])) == 0
    assert hit(*pair([1], ["a"], [1], ["b"])) == 0
    # One whole number among the texts: they could have met.
    assert hit(*pair([1, 1], ["a", "9"], [1], [6])) == 0


def test_hardly_any_id_in_common_is_a_loud_warning() -> None:
    users = list(range(300))
    given = [n + 298 for n in users]
    with pytest.warns(
        CheckWarning,
        match="user_id of lists not in truth: 0.99.* .2 ids in common.*user_id of lists .int64.",
    ):
        assert hit(*pair(users, [1] * 300, given, [1] * 300)) == 2 / 300
    given = [n + 297 for n in users]
    assert hit(*pair(users, [1] * 300, given, [1] * 300)) == 3 / 300


# ---------------------------------------------------------------------------- other wishes and values


@pytest.mark.parametrize("k", [(math.nan,), (2**63,), (2**31,), (math.inf,), (True,), ("5",), (1.5,), "5"])
def test_cutoffs_that_are_none(k: Any) -> None:
    with pytest.raises(ConfigError):
        evaluate_frames(*pair([1], [1], [1], [1]), k=k, metrics=["hit"])
    if not isinstance(k, int | str):
        assert evaluate_frames(*pair([1], [1], [1], [1]), k=(2**31 - 1, 1.0), metrics=["hit"]).value[1] == 1


def test_ranks_from_2_to_the_53_on_would_tie() -> None:
    truth = table(user_id=[1], item_id=[1])
    rows = table(user_id=[1, 1], item_id=[2, 1], rank=[2**53 + 1, 2**53])
    with pytest.raises(DataError, match=r"2 rows whose rank is .*2.53 and more"):
        hit(truth, rows)
    with pytest.raises(SchemaError, match="rank is timestamp"):
        hit(truth, rows.set_column(2, "rank", pa.array([1, 2], pa.timestamp("us"))))


@pytest.mark.parametrize("gain", ["exponential", "exponential_above", "linear"])
def test_gains_that_overflow_are_refused(gain: str) -> None:
    """An infinite ideal would drop the user from the mean."""
    definition = {"gain": gain, **({"threshold": 1.0} if gain == "exponential_above" else {})}
    relevance = 1e305 if gain == "linear" else 2000.0
    truth, lists = pair([1, 2], [1, 2], [1, 2], [1, 2])
    with pytest.raises(DataError, match=f"relevance such as {relevance:g}".replace("+", ".")):
        graded = truth.append_column("relevance", [[relevance, 1.0]])
        evaluate_frames(graded, lists, k=[1], metrics=["ndcg"], definition=definition)
    with pytest.raises(DataError, match="1 rows whose relevance is NULL, NaN, infinite"):
        evaluate_frames(truth.append_column("relevance", [[math.inf, 1.0]]), lists, k=[1], metrics=["ndcg"])
