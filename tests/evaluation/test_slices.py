"""Predictions by a column: the numbers of a slice are those of its rows alone. Without a JVM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pytest

from recbench_spark.commands.evaluate import main, parser
from recbench_spark.errors import ConfigError, DataError, SchemaError
from recbench_spark.evaluation.predictions import evaluate_predictions
from recbench_spark.schemas import METRICS
from recbench_spark.storage.arrow_store import ArrowStore

ROWS = [
    # The new model of the worked case: it tells main line and sidebar apart, and reverses the main line.
    *(("main", 0.2, hit) for hit in [1] * 4 + [0] * 6),
    *(("main", 0.4, hit) for hit in [1] * 2 + [0] * 8),
    *(("side", 0.05, hit) for hit in [1] + [0] * 19),
    (None, 0.5, 1),
]
TABLE = pa.table(
    {
        "user_id": [f"u{n % 7}" for n in range(len(ROWS))],
        "item_id": [f"i{n}" for n in range(len(ROWS))],
        "prediction": [row[1] for row in ROWS],
        "outcome": [float(row[2]) for row in ROWS],
        "block": [row[0] for row in ROWS],
    }
)


def rows(table: pa.Table, **options: Any) -> list[dict[str, Any]]:
    metrics: list[dict[str, Any]] = evaluate_predictions(table, 20, **options).metrics.to_pylist()
    return metrics


def test_a_slice_has_the_numbers_of_its_rows_alone() -> None:
    sliced = rows(TABLE, slice_by="block")
    for label in ("main", "side"):
        alone = rows(TABLE.filter(pc.equal(TABLE.column("block"), label)))
        plain = [{**row, "slice_key": None, "slice_value": None} for row in alone if not row["slice_key"]]
        mine = [row for row in sliced if (row["slice_key"], row["slice_value"]) == ("block", label)]
        assert [{**row, "slice_key": None, "slice_value": None} for row in mine] == plain
        parts = [row for row in sliced if row["slice_value"] and row["slice_value"].startswith(f"{label},")]
        assert len(mine) + len(parts) == len(alone)
        assert {row["slice_key"] for row in parts} >= {"block,fpr", "block,threshold"}
    assert sliced[: len(rows(TABLE))] == rows(TABLE), "the numbers of all rows stay"


def test_rows_without_a_label_are_counted() -> None:
    (check,) = [
        one
        for one in evaluate_predictions(TABLE, 0, slice_by="block").checks
        if one.check == "rows without block"
    ]
    assert check.observed == 1 and not check.passed


def test_columns_that_cannot_slice() -> None:
    with pytest.raises(SchemaError, match="has no column blok"):
        rows(TABLE, slice_by="blok")
    with pytest.raises(SchemaError, match="prediction holds no text"):
        rows(TABLE, slice_by="prediction")
    many = pa.concat_tables(
        [TABLE.set_column(1, "item_id", [[f"{k}-{n}" for n in range(41)]]) for k in range(3)]
    )
    with pytest.raises(DataError, match="item_id has more than 100 values"):
        rows(many, slice_by="item_id")


def test_the_flag(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, warehouse = str(tmp_path / "predictions.csv"), str(tmp_path / "wh")
    pyarrow.csv.write_csv(TABLE, path)
    flags = ["--warehouse", warehouse, "--model", "new", "--predictions", path, "--bootstrap", "0"]
    assert main(parser().parse_args([*flags, "--slice", "block", "--engine", "local"])) == 0
    assert "auc block main" in capsys.readouterr().out
    stored = ArrowStore(warehouse).read_rows(METRICS).to_pylist()
    auc = {row["slice_value"]: row["value"] for row in stored if row["metric"] == "auc"}
    assert auc["main"] == pytest.approx((4 * 8 * 0 + 4 * 6 / 2 + 2 * 6 + 2 * 8 / 2) / (6 * 14))
    with pytest.raises(SchemaError, match="blok"):
        main(parser().parse_args([*flags, "--slice", "blok", "--dry-run"]))
    lists = ["--warehouse", warehouse, "--model", "m", "--lists", path, "--truth", path, "--slice", "block"]
    with pytest.raises(ConfigError, match="--slice is not used with --lists"):
        main(parser().parse_args(lists))
