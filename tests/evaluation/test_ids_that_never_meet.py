"""Ids that never meet: refused where another spelling meets, else named wherever a value is shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

import recbench_spark
from recbench_spark.core.ids import SPELLINGS, respell
from recbench_spark.engine.local import LocalEngine
from recbench_spark.errors import DataError
from recbench_spark.metrics.result import Result
from recbench_spark.sources.dealt_ids import DealtIds, deal_ids
from recbench_spark.sources.input_rows import open_table

USERS = ["u1", "u2", "u3"]


def rows(items: Sequence[Any], users: Sequence[Any] = USERS, **more: Any) -> pd.DataFrame:
    return pd.DataFrame({"user_id": users, "item_id": items, **more})


def make_lists(items: Sequence[Any], users: Sequence[Any] = USERS) -> pd.DataFrame:
    return rows(items, users, rank=1)


def vectors(name: str, ids: Sequence[str]) -> pd.DataFrame:
    return pd.DataFrame({name: ids, "vector": [[1.0, n] for n in range(len(ids))]})


def evaluate(truth: Any, **options: Any) -> Result:
    return recbench_spark.evaluate(truth, k=2, metrics=["hit"], bootstrap=0, **options)


SPELT = [
    (["a", "b", "c"], ["a ", " b", " c"], "blanks around ids"),
    (["a", "b", "c"], ["\u00a0a", "\ufeffb", "c\t"], "blanks around ids"),
    (["SKU-1", "SKU-2", "SKU-3"], ["sku_1", "sku_2", "sku_3"], "capital letters and separators"),
    (["B00A", "B00B", "B00C"], ["b00a", "b00b", "b00c"], "capital letters"),
    (["True", "False", "None"], ["true", "false", "none"], "capital letters"),
    (["0001", "0002", "0003"], ["00001", "00002", "00003"], "zeros in front"),
    (["p007", "p008", "p009"], ["p7", "p8", "p9"], "zeros in front"),
    (["10.0", "11.0", "12.0"], ["10", "11", "12"], "a point and zeros behind"),
    (["'a'", "'b'", "'c'"], ["a", "b", "c"], "quotes"),
]


@pytest.mark.parametrize(("ours", "theirs", "change"), SPELT)
def test_ids_that_meet_in_another_spelling_are_refused(ours: Any, theirs: Any, change: str) -> None:
    with pytest.raises(DataError) as error:
        evaluate(rows(ours), lists=make_lists(theirs))
    assert f"and 3 of 3 without {change}\n" in str(error.value)
    assert all(repr(item) in str(error.value) for item in (*ours, *theirs))
    with pytest.raises(DataError, match=f"user_id of lists and user_id of truth .* without {change}"):
        evaluate(rows(["a"] * 3, ours), lists=make_lists(["a"] * 3, theirs))
    sides = {"train": rows(ours), "scores": rows(theirs, score=1.0)}
    with pytest.raises(DataError, match=f"without {change}"):
        evaluate(rows(theirs), **sides)
    with pytest.raises(DataError, match=f"without {change}"):
        evaluate(rows(ours), embeddings=(vectors("user_id", USERS), vectors("item_id", theirs)))


@pytest.mark.parametrize("n", [120, 5000])
def test_hardly_any_common_id_does_not_hide_the_others(n: int) -> None:
    ours, theirs = [f"I{i}" for i in range(n)], ["I0", *(f"i{i}" for i in range(1, n))]
    with pytest.raises(DataError, match=f"have 1 ids in common, and {n} of {n} without capital letters"):
        evaluate(rows(ours, ["u"] * n), lists=make_lists(theirs, ["u"] * n))


NAMES = [f"i{n}" for n in range(150)]
PART = [
    # Half of these ids have zeros in front; a third ends in a blank; a fifth has a capital letter.
    ([f"{n:03}" for n in range(200)], [str(n) for n in range(200)], "zeros in front"),
    (NAMES, [name + " " * (n % 3 == 0) for n, name in enumerate(NAMES)], "blanks around ids"),
    (NAMES[:50], [name.replace("i", "I" if n % 5 == 0 else "i") for n, name in enumerate(NAMES[:50])],
     "capital letters"),
]  # fmt: skip


@pytest.mark.parametrize("engine", ["local", pytest.param("spark", marks=pytest.mark.spark)])
@pytest.mark.parametrize(("ours", "theirs", "change"), PART)
def test_some_ids_in_another_spelling_are_a_warning_with_three_of_each(
    ours: list[str], theirs: list[str], change: str, engine: str, request: pytest.FixtureRequest
) -> None:
    truth, lists = rows(ours, ["u"] * len(ours)), make_lists(theirs, ["u"] * len(ours))
    lists["rank"] = range(1, len(ours) + 1)
    if engine == "spark":
        truth, lists = map(request.getfixturevalue("spark").createDataFrame, (truth, lists))
    (check,) = [check for check in evaluate(truth, lists=lists).checks if "two spellings" in check.check]
    apart = sorted({*theirs} - {*ours})
    assert not check.passed and check.check == "item_id of lists and truth in two spellings"
    assert check.observed == pytest.approx(len(apart) / len(ours))
    assert f"{len(ours)} of {len(ours)} would be common without {change}; " in check.detail
    assert all(repr(one) in check.detail for one in (*apart[:3], *sorted({*ours} - {*theirs})[:3]))


def test_few_ids_in_another_spelling_and_other_ids_are_none() -> None:
    ours = [f"i{n}" for n in range(100)]
    few = [name.upper() if n < 9 else name for n, name in enumerate(ours)]
    other = [name if n % 2 else f"x{n}" for n, name in enumerate(ours)]
    for theirs in (few, other):
        made = evaluate(rows(ours, ["u"] * 100), lists=make_lists(theirs, ["u"] * 100))
        assert not [check for check in made.checks if "two spellings" in check.check]


def test_whole_numbers_have_one_spelling() -> None:
    assert (
        evaluate(rows([1, 2, 3], [1, 2, 3]), lists=make_lists([-1, -2, -3], [1, 2, 3])).metrics.num_rows
        == 1
    )


def test_a_truth_outside_of_the_catalogue_is_refused() -> None:
    truth, other = rows(["a", "b", "c"]), ["x", "y", "z"]
    sides = vectors("user_id", USERS), vectors("item_id", other)
    with pytest.raises(DataError, match=r"'a', 'b', 'c'\n.*item embeddings .*'x', 'y', 'z'"):
        evaluate(truth, embeddings=sides)
    with pytest.raises(DataError, match="item_id of train and lists"):
        evaluate(truth, lists=make_lists(other), train=rows(other))
    # Lists know new items that training does not.
    assert evaluate(truth, lists=make_lists(["a", "b", "c"]), train=rows(["a", "y", "z"])).metrics.num_rows


def read_warnings(result: Result, capsys: pytest.CaptureFixture[str]) -> str:
    """Return the warnings of a result, which are in its text and below its numbers."""
    result.metrics.show()
    shown = capsys.readouterr().out
    lines = [line for line in shown.splitlines() if line.startswith("warning: ")]
    assert lines and all(line in repr(result) for line in lines)
    return "\n".join(lines)


def test_what_stands_with_a_warning_is_named_where_it_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    truth = rows(["a", "b", "c"])
    missed = evaluate(truth, lists=make_lists(["x", "y", "z"]))
    assert "item_id of lists not in truth: 1 (0 ids in common" in read_warnings(missed, capsys)
    few = evaluate(truth, embeddings=(vectors("user_id", USERS), vectors("item_id", ["a", "y"])))
    assert "item_id of truth not in item embeddings: 0.66" in read_warnings(few, capsys)
    trained = evaluate(truth, scores=rows(["a", "b", "c"], score=1.0), train=truth)
    assert "truth rows that are training rows: 3 (all 3: " in read_warnings(trained, capsys)
    empty = evaluate(truth, lists=make_lists([], []).astype({"user_id": str, "item_id": str}))
    assert "lists without rows: 1 " in read_warnings(empty, capsys)
    several = evaluate(
        truth, lists={"one": make_lists(["x", "y", "z"]), "two": make_lists(["a", "b", "c"])}
    )
    assert "one: item_id of lists not in truth" in read_warnings(several, capsys)


def test_numbers_of_empty_tables_are_rows_with_a_reason() -> None:
    truth, empty = rows(["a", "b", "c"]), make_lists([], []).astype({"user_id": str, "item_id": str})
    wanted = {"metrics": ["coverage", "gini"], "k": [1, 2], "bootstrap": 0}
    values = (
        recbench_spark.evaluate(truth, lists=empty, **wanted).to_pandas().set_index(["metric", "k"]).value
    )
    assert values.loc["coverage"].tolist() == [0.0, 0.0] and values.loc["gini"].isna().all()
    popular = {"metrics": ["novelty", "mean_popularity"], "train": empty[["user_id", "item_id"]]}
    result = recbench_spark.evaluate(truth, lists=make_lists(["a", "b", "c"]), k=1, **popular)
    assert result.to_pandas().value.isna().all()
    assert "train without rows" in repr(result)


@pytest.mark.parametrize("score", ["9007199254740993", "-9007199254740992", "99999999999999999999"])
def test_texts_of_whole_scores_beyond_2_53_are_refused_as_numbers_are(score: str, tmp_path: Any) -> None:
    truth, path = rows(["a", "b", "c"]), tmp_path / "scores.csv"
    frame = rows(["a", "b", "c"], score=["1", "2", score])
    frame.to_csv(path, index=False)
    with pytest.raises(DataError, match="1 rows whose 'score' is not a finite number, below 2"):
        evaluate(truth, lists=str(path))
    with pytest.raises(DataError, match="1 rows whose score is"):
        evaluate(truth, lists=frame)
    run = tmp_path / "run.txt"
    run.write_text("".join(f"u{n} Q0 {item} {n} {score} r\n" for n, item in enumerate("abc", 1)))
    with pytest.raises(DataError, match="below 2"):
        evaluate(truth, lists=str(run))
    good = frame.assign(score=["1e20", "9007199254740991", "9007199254740993.0"])
    assert evaluate(truth, lists=good).metrics.column("value").to_pylist() == [1.0]


def test_spark_refuses_texts_of_whole_scores_beyond_2_53_too(spark: Any, tmp_path: Any) -> None:
    truth = rows(["a", "b", "c"])
    truth.to_csv(tmp_path / "truth.csv", index=False)
    for n, score in enumerate(("9007199254740993", " -9007199254740992", "99999999999999999999")):
        frame, path = rows(["a", "b", "c"], score=["1", "2", score]), str(tmp_path / f"{n}.csv")
        frame.to_csv(path, index=False)
        for engine in ("local", "spark"):
            with pytest.raises(DataError, match="1 rows whose 'score' is not a finite number, below 2"):
                evaluate(str(tmp_path / "truth.csv"), lists=path, engine=engine)
    with pytest.raises(DataError, match="1 rows whose score is"):
        evaluate(spark.createDataFrame(truth), lists=spark.createDataFrame(frame))
    good = frame.assign(score=["1e20", "9007199254740991", "9007199254740993.0"])
    made = evaluate(spark.createDataFrame(truth), lists=spark.createDataFrame(good))
    assert made.to_pandas().value.tolist() == [1.0]


def test_an_empty_id_is_said_to_be_empty_and_how_it_is_counted() -> None:
    with pytest.raises(DataError, match=r"1 rows whose item_id is NULL, NaN or an empty field\n.*a miss"):
        evaluate(rows(["a", "b", "c"]), lists=make_lists(["a", "b", None]))


def test_ids_in_another_spelling_meet_in_tasks_as_in_one(spark: Any) -> None:
    for ours, theirs, _ in SPELT:
        runner = LocalEngine("")
        sides = [(open_table(runner, pa.table({"i": ids})).rows, "i") for ids in (ours, theirs)]
        one, two = (
            DealtIds(
                deal_ids(runner, sides, n),
                (("0",), ("1",)),
                "item_id",
                ("one", "other", "string", "string"),
                n,
            )
            for n in (1, 2)
        )
        for changes in (tuple(SPELLINGS), *((change,) for change in SPELLINGS)):
            assert one.count_respelled(changes) == two.count_respelled(changes), (ours, changes)
    assert respell(pa.array(["A-007 "]), tuple(SPELLINGS)).to_pylist() == ["a7"]
    truth, lists = (spark.createDataFrame(frame) for frame in (rows(list("ABC")), make_lists(list("abc"))))
    with pytest.raises(DataError, match="and 3 of 3 without capital letters"):
        evaluate(truth, lists=lists)


def test_spark_names_and_fills_what_this_process_does(
    spark: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Gaps between ranks, items of no list, truth in training, and the warnings below the numbers."""
    truth, train = rows(["a", "b", "c"], relevance=[0.7, 0.2, 0.9]), rows(["a", "b", "x"])
    lists = pd.DataFrame({"user_id": ["u1"] * 4 + ["u2"], "item_id": [*"aaqbz"], "rank": [2, 3, 7, 9, 4]})
    names = ["hit", "ndcg", "coverage", "gini", "novelty", "mean_popularity", "precision"]
    wanted = {"k": [1, 3, 8, 10], "metrics": names, "bootstrap": 0, "definition": {"threshold": 0.7}}
    ours = recbench_spark.evaluate(
        truth.astype({"relevance": "float32"}), lists=lists, train=train, **wanted
    )
    frames = {"lists": spark.createDataFrame(lists), "train": spark.createDataFrame(train)}
    typed = spark.createDataFrame(truth).selectExpr("user_id", "item_id", "float(relevance) AS relevance")
    theirs = recbench_spark.evaluate(typed, **frames, **wanted)
    by = ["metric", "k"]
    one, two = (result.to_pandas().sort_values(by, ignore_index=True) for result in (ours, theirs))
    pd.testing.assert_frame_equal(one, two, check_exact=True)
    summary = [sorted(check.summary_line() for check in result.checks) for result in (ours, theirs)]
    assert summary[0] == summary[1]
    theirs.metrics.show()
    assert "warning: gaps between ranks: 8 " in capsys.readouterr().out
