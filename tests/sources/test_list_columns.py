"""One row for each user with all items in one cell: read as rows of a user and an item."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recbench_spark
from recbench_spark.errors import DataError
from recbench_spark.models.settings import make_model
from recbench_spark.sources.column_names import ColumnNames

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
