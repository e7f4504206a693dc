"""One row for each user with all items in one cell: read as rows of a user and an item."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recbench_spark
from recbench_spark.config import Dataset, Split
from recbench_spark.engine.local import LocalEngine
from recbench_spark.errors import DataError, SchemaError
from recbench_spark.models.settings import make_model
from recbench_spark.sources.column_names import ColumnNames
from recbench_spark.sources.log_sources import open_raw_log
from recbench_spark.sources.opened_logs import check_log
from recbench_spark.splits.rules import label_log
from recbench_spark.storage.blocks import return_rows

TRUTH = pa.table({"user_id": [1, 2, 3], "item_id": [12, 21, 30]})
ENTRIES = [[(11, 0.5), (12, 0.9)], [(21, 1.0)], [], None]
ALS = pa.table(
    {
        "user": [1, 2, 3, 4],
        "recommendations": pa.array(
            [None if row is None else [{"item": i, "rating": r} for i, r in row] for row in ENTRIES],
            pa.list_(pa.struct({"item": pa.int32(), "rating": pa.float32()})),
        ),
    }
)
ROWS = {"user_id": [1, 1, 2], "item_id": [11, 12, 21], "rank": [1, 2, 1]}


def unfold(table: pa.Table, what: str = "lists") -> dict[str, list[Any]]:
    named = ColumnNames().rename(table, what)
    return {name: named.column(name).to_pylist() for name in named.column_names}


def test_lists_as_als_gives_them() -> None:
    assert unfold(ALS) == ROWS
    scores = unfold(ALS, "scores")
    assert scores["score"] == pytest.approx([0.5, 0.9, 1.0]) and scores["item_id"] == [11, 12, 21]


@pytest.mark.parametrize(
    "cells", [["11,12", "21,22"], ["[11, 12]", "['21', '22']"], ["11 12", "21 22 "], ["11|12", "21|22"]]
)
def test_cells_of_several_ids(cells: list[str]) -> None:
    rows = unfold(pa.table({"customer_id": ["1", "2"], "sku": cells}))
    assert rows["item_id"] == ["11", "12", "21", "22"] and rows["rank"] == [1, 2, 1, 2]


def test_arrays_with_scores_and_of_a_truth() -> None:
    table = pa.table({"user_id": [1, 2], "item_id": [[11, 12], [21]], "score": [[0.1, 0.2], [0.3]]})
    assert unfold(table)["score"] == [0.1, 0.2, 0.3] and "rank" not in unfold(table)
    with pytest.raises(DataError, match="different lengths"):
        unfold(table.set_column(2, "score", pa.array([[0.1], [0.3]])))
    truth = pa.table({"user_id": [1, 2], "item_id": pa.array([[11, 12], []], pa.list_(pa.int64()))})
    assert unfold(truth, "truth") == {"user_id": [1, 1, 2], "item_id": [11, 12, None]}


def test_a_text_with_a_rank_is_one_id() -> None:
    rows = {"user_id": [1], "item_id": ["The Matrix, 1999"], "rank": [1]}
    assert unfold(pa.table(rows)) == rows


def test_lists_of_als_are_evaluated_from_frames_and_files(tmp_path: Path) -> None:
    pq.write_table(ALS, tmp_path / "als.parquet")
    pq.write_table(TRUTH, tmp_path / "truth.parquet")
    wanted: dict[str, Any] = {"k": [1, 2], "metrics": ["hit"], "bootstrap": 0}
    expected = recbench_spark.evaluate(TRUTH, lists=pa.table(ROWS), **wanted).to_pandas()
    paths = str(tmp_path / "truth.parquet"), str(tmp_path / "als.parquet")
    for truth, lists in ((TRUTH, ALS), (TRUTH.to_pandas(), ALS.to_pandas()), paths):
        got = recbench_spark.evaluate(truth, lists=lists, engine="local", **wanted).to_pandas()
        pd.testing.assert_frame_equal(got, expected)
    assert expected.value.tolist() == [1 / 3, 2 / 3]


@pytest.mark.parametrize("kind", ["lists", "scores", "embeddings"])
def test_columns_of_a_night_enter_a_key_only_where_they_are_given(kind: str) -> None:
    paths = {"users": "u", "items": "i"} if kind == "embeddings" else {"path": "p"}
    plain, named = (
        make_model({"name": "m", "kind": kind, **paths, **more}, "models")
        for more in ({}, {"columns": {"item_id": "thing"}})
    )
    assert "columns" in plain.added_later and named.columns == {"item_id": "thing"}


def test_spark_unfolds_what_this_process_unfolds(spark: Any) -> None:
    frame = spark.createDataFrame(
        [(u, row) for u, row in zip([1, 2, 3, 4], ENTRIES, strict=True)],
        "user INT, recommendations ARRAY<STRUCT<item: INT, rating: FLOAT>>",
    )
    for what in ("lists", "scores"):
        got = ColumnNames().rename_frame(frame, what).toPandas().to_dict("list")
        assert got == unfold(ALS, what)
    cells = spark.createDataFrame([("1", "11, 12"), ("2", "[21, 22]")], "customer_id STRING, sku STRING")
    got = ColumnNames().rename_frame(cells, "lists").toPandas().to_dict("list")
    assert got["item_id"] == ["11", "12", "21", "22"] and got["rank"] == [1, 2, 1, 2]
    truth = spark.createDataFrame([(1, [11, 12]), (2, [])], "user_id INT, item_id ARRAY<INT>")
    rows = ColumnNames().rename_frame(truth, "truth").collect()
    assert [tuple(row) for row in rows] == [(1, 11), (1, 12), (2, None)]


# --------------------------------------------------------------------------------------- logs and times

SESSIONS = [
    ("u1", ["a", "b", "c"], [1, 20, 3], "it"),
    ("u2", [], [], "de"),
    ("u2", ["a", "c"], [4, 25], "de"),
    ("u3", ["b"], [26], "it"),
    ("u1", ["d", "a"], [27, 28], "it"),
]
SPLIT = Split(holdout="period", start="1970-01-01T00:00:20Z", repeats="keep", targets="last")


def make_times(seconds: list[int]) -> list[datetime]:
    return [datetime.fromtimestamp(second, UTC) for second in seconds]


def read_log(path: Path, columns: dict[str, str], groups: int = 1, **more: Any) -> list[Any]:
    dataset = Dataset(name="log", reader="parquet", path=str(path), columns=columns, **more)
    engine = LocalEngine("")
    log = check_log(open_raw_log(dataset), dataset, engine)
    made = label_log(log, dataset, SPLIT, engine).each(return_rows)
    rows = [row for table in made for row in table.select(SHOWN).to_pylist()]
    return sorted(tuple(row.values()) for row in rows)


SHOWN = ["user_id", "item_id", "event_time", "part", "rating"]
STAMPS = pa.timestamp("us", "UTC")


@pytest.mark.parametrize("rows_of_a_group", [1, 2, 100])
def test_a_log_of_sessions_is_the_exploded_log(tmp_path: Path, rows_of_a_group: int) -> None:
    flat = [(user, item, time, land) for user, items, times, land in SESSIONS
            for item, time in zip(items, make_times(times), strict=True)]  # fmt: skip
    users, items, times, lands = zip(*flat, strict=True)
    plain = {"user_id": users, "item_id": items, "event_time": pa.array(times, STAMPS), "land": lands}
    pq.write_table(pa.table(plain), tmp_path / "flat.parquet")
    expected = read_log(tmp_path / "flat.parquet", {})
    owner = {"user_id": [row[0] for row in SESSIONS], "land": [row[3] for row in SESSIONS]}
    arrays = {"items": [row[1] for row in SESSIONS],
              "times": pa.array([make_times(row[2]) for row in SESSIONS], pa.list_(STAMPS))}  # fmt: skip
    entries = [
        [{"item": i, "ts": t} for i, t in zip(row[1], make_times(row[2]), strict=True)] for row in SESSIONS
    ]
    kind = pa.list_(pa.struct({"item": pa.string(), "ts": STAMPS}))
    for name, own, columns in (
        ("arrays", arrays, {"item_id": "items", "event_time": "times"}),
        (
            "structs",
            {"events": pa.array(entries, kind)},
            {"item_id": "events.item", "event_time": "events.ts"},
        ),
    ):
        path = tmp_path / f"{name}.parquet"
        pq.write_table(pa.table({**owner, **own}), path, row_group_size=rows_of_a_group)
        assert read_log(path, columns) == expected
        where = [{"column": "land", "in": ["it"]}]
        assert read_log(path, columns, where=where) == read_log(tmp_path / "flat.parquet", {}, where=where)


def test_arrays_of_a_log_with_different_lengths_are_refused(tmp_path: Path) -> None:
    table = pa.table({"user_id": ["u"], "item_id": [["a", "b"]], "rating": [[1.0]]})
    pq.write_table(table, tmp_path / "log.parquet")
    with pytest.raises(DataError, match="arrays of rating and item_id have different lengths"):
        read_log(tmp_path / "log.parquet", {})


def test_a_field_that_no_struct_has_is_a_missing_column(tmp_path: Path) -> None:
    kind = pa.list_(pa.struct({"item": pa.string()}))
    pq.write_table(
        pa.table({"user_id": ["u"], "events": pa.array([[{"item": "a"}]], kind)}), tmp_path / "log"
    )
    with pytest.raises(SchemaError, match=r"events\.itm"):
        read_log(tmp_path / "log", {"item_id": "events.itm"})


def test_predictions_in_arrays_are_those_of_rows() -> None:
    flat = {"user_id": ["u", "u", "v"], "item_id": ["a", "b", "a"], "prediction": [0.2, 0.9, 0.4],
            "outcome": [0.0, 1.0, 1.0], "weight": [1.0, 2.0, 3.0]}  # fmt: skip
    lists = {name: [values[:2], values[2:]] for name, values in flat.items() if name != "user_id"}
    table = pa.table({"user_id": ["u", "v"], **lists})
    one, other = (
        recbench_spark.evaluate_predictions(rows, bootstrap=0) for rows in (pa.table(flat), table)
    )
    assert one.metrics.equals(other.metrics) and one.truth == other.truth
    with pytest.raises(DataError, match="arrays of weight and item_id have different lengths"):
        recbench_spark.evaluate_predictions(table.set_column(4, "weight", [[[1.0], [3.0]]]), bootstrap=0)


def test_spark_refuses_arrays_of_different_lengths(spark: Any) -> None:
    frame = spark.createDataFrame(
        [(1, [11, 12], [0.5])], "user_id INT, item_id ARRAY<INT>, score ARRAY<DOUBLE>"
    )
    with pytest.raises(DataError, match="lists: arrays of score and item_id have different lengths"):
        ColumnNames().rename_frame(frame, "lists")
