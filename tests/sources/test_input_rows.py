"""Tables of other systems as rows: checked in pieces, with the words of one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recbench_spark.engine.local import LocalEngine
from recbench_spark.errors import DataError, RecbenchError, SchemaError
from recbench_spark.sources import arrow_files
from recbench_spark.sources.column_names import ColumnNames
from recbench_spark.sources.dealt_ids import check_common_ids
from recbench_spark.sources.input_rows import (
    check_input,
    check_vectors,
    count_distinct,
    open_input,
    refuse_twice,
)

ROWS = {"userId": [1, 2, 2, 3], "item_id": ["a", "b", "c", "a"], "score": [0.5, 1.5, 2.5, -1.0]}


def engine(tmp_path: Path) -> LocalEngine:
    return LocalEngine(str(tmp_path))


def write(tmp_path: Path, rows: dict[str, Any], name: str = "t.parquet") -> str:
    """A table of several row groups."""
    pq.write_table(pa.table(rows), tmp_path / name, row_group_size=2)
    return str(tmp_path / name)


def collect(rows: Any, names: tuple[str, ...]) -> list[dict[str, Any]]:
    def keep(tables: Any) -> list[dict[str, Any]]:
        return [row for table in tables for row in table.to_pylist()]

    return [row for task in rows.each(names, keep) for row in task]


def test_a_path_and_a_table_give_the_same_rows(tmp_path: Path) -> None:
    rows = []
    for table in (write(tmp_path, ROWS), pa.table(ROWS)):
        opened = open_input(engine(tmp_path), table, ["user_id"], "scores", ColumnNames())
        checked = check_input(opened, {"score": "double"}, "scores")
        assert (checked.n, checked.ranges) == (4, {"score": (-1.0, 2.5)})
        assert [checked.kinds[name][0] for name in ("user_id", "item_id")] == ["integer", "string"]
        assert count_distinct(engine(tmp_path), checked, "user_id") == 3
        rows.append(collect(checked.rows, checked.names))
    assert rows[0] == rows[1] != []
    assert rows[0][1] == {"user_id": "2", "item_id": "b", "score": 1.5}


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()], ids=str)
def test_text_ids_of_parquet_are_read_as_dictionaries(tmp_path: Path, kind: pa.DataType) -> None:
    draw = np.random.default_rng(5)
    ids = {name: pa.array([f"{x}ü" for x in draw.integers(0, 9, 60)], kind) for name in ("user", "item")}
    path = write(tmp_path, {**ids, "score": draw.random(60)})
    names = ColumnNames({"user_id": "user", "item_id": "item"})
    rows = []
    for table in (path, pq.read_table(path)):
        checked = check_input(open_input(engine(tmp_path), table, [], "t", names), {"score": "double"}, "t")
        rows.append((checked.n, checked.ranges, collect(checked.rows, checked.names)))
        if table is path:
            types = checked.rows.rows.each(["user_id"], lambda tables: [t.schema.types for t in tables])
            assert (
                all(pa.types.is_dictionary(one) for task in types for (one,) in task) and len(types) == 30
            )
    assert rows[0] == rows[1]


WRONG = [
    {"score": [0.5, np.nan, np.inf, None]},
    {"userId": [1.0, 2.5, 3.5, 4.0]},
    {"userId": [1, None, 2, 3]},
    {"item_id": [None, "", "a", "b"]},
    {"item_id": pa.array(["a", "", " ", ""], pa.large_string())},
    {"score": ["1", "x", "2", "a"]},
    {"score": [[1.0], [1.0], [1.0], [1.0]]},
    {"userId": [[1], [1], [1], [1]]},
]


@pytest.mark.parametrize("wrong", WRONG, ids=range(len(WRONG)))
def test_errors_count_the_rows_of_all_pieces(tmp_path: Path, wrong: dict[str, Any]) -> None:
    path, messages = write(tmp_path, {**ROWS, **wrong}), []
    for read in (True, False):
        with pytest.raises(RecbenchError) as caught:
            names = ColumnNames()
            whole = arrow_files.read_table(path, ["user_id"], "scores", names) if read else path
            opened = open_input(engine(tmp_path), whole, ["user_id"], "scores", names)
            check_input(opened, {"score": "double"}, "scores")
        messages.append(caught.value.message.replace(f"scores {path}", "scores"))
    assert messages[0] == messages[1], messages


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match="item_id"):
        open_input(engine(tmp_path), write(tmp_path, {"userId": [1]}), ["item_id"], "lists", ColumnNames())


def test_vectors_are_checked_in_pieces(tmp_path: Path) -> None:
    vectors = {
        "item_id": ["a", "b", "c"],
        "vector": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]],
        "bias": [1, 2, 3],
    }
    for table in (write(tmp_path, vectors), pa.table(vectors)):
        opened = open_input(engine(tmp_path), table, ["item_id"], "items", ColumnNames())
        checked = check_vectors(opened, "item_id", "items")
        assert checked.dims == 2 and checked.names == ("item_id", "vector", "bias")
        assert collect(checked.rows, checked.names)[2] == {
            "item_id": "c",
            "vector": [5.0, 6.0],
            "bias": 3.0,
        }
        refuse_twice(engine(tmp_path), checked, "item_id", "items")
    wrong = write(tmp_path, {**vectors, "vector": [[1.0], [3.0, 4.0], [5.0, 6.0]]})
    with pytest.raises(DataError, match="vectors of 1 to 2 dimensions"):
        check_vectors(open_input(engine(tmp_path), wrong, [], "items"), "item_id", "items")
    twice = open_input(
        engine(tmp_path), write(tmp_path, {**vectors, "item_id": ["a", "b", "a"]}), [], "items"
    )
    with pytest.raises(DataError, match="1 ids occur more than once"):
        refuse_twice(engine(tmp_path), check_vectors(twice, "item_id", "items"), "item_id", "items")


def test_ids_that_never_meet_are_told(tmp_path: Path) -> None:
    runner = engine(tmp_path)
    sides = []
    for name, ids in (("one", ["A", "B", "C"]), ("other", ["a", "b", "d"])):
        table = open_input(runner, write(tmp_path, {"user_id": [1] * 3, "item_id": ids}, name), [], name)
        sides.append((check_input(table, {}, name).rows, "item_id"))
    with pytest.raises(
        DataError, match=r"and 2 of 3 without capital letters\n  item_id of one \(string\): 'A'"
    ):
        check_common_ids(runner, sides, ("one", "other", "string", "string"))
    assert check_common_ids(runner, [sides[0], sides[0]], ("one", "other", "string", "string")) == []


@pytest.mark.spark
def test_a_frame_of_spark_gives_the_same_rows(spark: Any) -> None:
    from recbench_spark.engine.sessions import SparkEngine

    frame = spark.createDataFrame(pa.table(ROWS)).repartition(3)
    opened = open_input(SparkEngine(spark), frame, [], "scores", ColumnNames())
    checked = check_input(opened, {"score": "double"}, "scores")
    assert (checked.n, checked.ranges) == (4, {"score": (-1.0, 2.5)})
    assert checked.kinds == {"user_id": ("integer", "bigint"), "item_id": ("string", "string")}
    assert count_distinct(SparkEngine(spark), checked, "user_id") == 3
    rows = collect(checked.rows, checked.names)
    assert {"user_id": "2", "item_id": "b", "score": 1.5} in rows and len(rows) == 4
    wrong = frame.selectExpr("userId AS user_id", "item_id", "CAST('NaN' AS double) AS score")
    with pytest.raises(DataError, match="scores: 4 rows whose score is NULL, NaN"):
        check_input(open_input(SparkEngine(spark), wrong, [], "scores"), {"score": "double"}, "scores")
