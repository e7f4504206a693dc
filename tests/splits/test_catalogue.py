"""The catalogue: dense positions in tie order, popularity classes of equal weight."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F

from recbench_spark.engine.local import LocalEngine
from recbench_spark.engine.sessions import SparkEngine
from recbench_spark.runtime.indexing import add_dense_index
from recbench_spark.splits import item_counts
from recbench_spark.splits.audit import read_labelled
from recbench_spark.splits.item_counts import (
    add_counts,
    count_catalogue,
    count_items,
    number_by_tasks,
    number_items,
)
from recbench_spark.splits.popularity import CLASSES
from recbench_spark.storage.blocks import PieceRows, return_rows


@pytest.fixture
def spread(spark):
    """Seventeen partitions after every shuffle."""
    settings = {"spark.sql.shuffle.partitions": "17", "spark.sql.adaptive.enabled": "false"}
    before = {key: spark.conf.get(key) for key in settings}
    for key, value in settings.items():
        spark.conf.set(key, value)
    yield spark
    for key, value in before.items():
        spark.conf.set(key, value)


@pytest.mark.parametrize("numeric", [True, False])
def test_positions_are_dense_and_in_tie_order_over_many_tasks(tmp_path: Path, numeric: bool) -> None:
    ids = [str(n) for n in random.Random(3).sample(range(-500, 5000), 400)]
    pieces = [make_rows({}, dict.fromkeys(ids[n::3], "test")) for n in range(3)]
    log = PieceRows(LocalEngine(str(tmp_path)), pieces, select_tables)
    ordered = sorted(ids, key=int) if numeric else sorted(ids, key=str.encode)
    with number_by_tasks(log, numeric, 17) as large:
        rows = pa.concat_tables(large.rows.each(return_rows)).sort_by("item_index")
        assert len(large.rows.each(len)) > 5
    assert rows.column("item_id").to_pylist() == ordered
    assert rows.column("item_index").to_pylist() == list(range(400))


def select_tables(pieces: Iterable[pa.Table], columns: Sequence[str]) -> Iterator[pa.Table]:
    return (piece.select(columns) for piece in pieces)


def test_the_index_crosses_partitions(spread) -> None:
    """Guard of the test above: the rows are in several partitions."""
    frame = spread.range(1000).withColumn("key", F.hash("id"))
    indexed = add_dense_index(frame, F.col("key"), "n")
    assert indexed.select(F.spark_partition_id()).distinct().count() > 5
    rows = indexed.orderBy("key").select("n").collect()
    assert [row.n for row in rows] == list(range(1000))


def test_an_index_of_nothing_is_empty(spark) -> None:
    assert add_dense_index(spark.range(0), F.col("id"), "n").collect() == []


# ------------------------------------------------------------------------- counted piece by piece


def make_rows(trained: dict[str, int], others: dict[str, str] | None = None) -> pa.Table:
    """This number of training rows of each item, and one row in another part."""
    rows = [(item, "train") for item, times in trained.items() for _ in range(times)]
    rows += list((others or {}).items())
    items, parts = zip(*rows, strict=True) if rows else ((), ())
    return pa.table({"item_id": pa.array(items, pa.string()), "part": pa.array(parts, pa.string())})


def number(rows: pa.Table, numeric: bool = False, pieces: int = 1) -> list[dict[str, Any]]:
    """Rows of the catalogue, from counts of pieces."""
    cuts = [rows.slice(len(rows) * n // pieces, len(rows) // pieces + 1) for n in range(pieces)]
    sizes = [len(rows) * (n + 1) // pieces - len(rows) * n // pieces for n in range(pieces)]
    counts = add_counts(count_items(cut.slice(0, size)) for cut, size in zip(cuts, sizes, strict=True))
    assert counts is not None
    return number_items(counts, numeric)[0].to_pylist()


def name_classes(rows: list[dict[str, Any]]) -> dict[str, str]:
    return {row["item_id"]: row["popularity"] for row in rows}


def draw_rows(seed: int) -> tuple[pa.Table, bool]:
    draw = random.Random(seed)
    numeric = seed % 2 == 0
    ids = [str(n) if numeric else f"ä{n}" for n in draw.sample(range(-50, 500), 60)]
    trained = {one: draw.randrange(8) for one in ids}
    rows = make_rows(trained, {one: draw.choice(["test", "train", "given"]) for one in ids})
    return rows.take(draw.sample(range(len(rows)), len(rows))), numeric


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("pieces", [3, 17])
def test_pieces_and_their_order_change_nothing(seed: int, pieces: int) -> None:
    rows, numeric = draw_rows(seed)
    assert number(rows, numeric, pieces) == number(rows, numeric)


def check_tasks(engine: Any, folder: Path, seed: int, tasks: int) -> None:
    """Tasks number the items of three files as the driver does."""
    rows, numeric = draw_rows(seed)
    files = [str(folder / f"{seed}-{n}.parquet") for n in range(3)]
    for n, file in enumerate(files):
        pq.write_table(rows.slice(n * 100, 100 if n < 2 else None), file)
    log = PieceRows(engine, files, read_labelled)
    counted = count_catalogue(log, numeric)
    assert counted is not None
    with number_by_tasks(log, numeric, tasks) as large:
        made = pa.concat_tables(large.rows.each(return_rows)).sort_by("item_index")
    assert made.to_pylist() == counted.rows.to_pylist() and len(made) == 60
    assert (counted.n, counted.bounds) == (large.n, large.bounds)


@pytest.mark.parametrize("tasks", [1, 3, 17, 100])
def test_tasks_number_larger_catalogues_alike(tmp_path: Path, tasks: int, monkeypatch: Any) -> None:
    monkeypatch.setattr(item_counts, "SAMPLED", 4)  # ranges of several lengths
    for seed in range(4):
        check_tasks(LocalEngine(str(tmp_path)), tmp_path, seed, tasks)
    monkeypatch.setattr(item_counts, "MOST_ITEMS", 5)
    assert add_counts([count_items(draw_rows(1)[0])]) is None


def test_tasks_of_spark_number_them_too(spread, tmp_path: Path) -> None:
    check_tasks(SparkEngine(spread), tmp_path, 1, 5)


def test_a_log_without_items_has_an_empty_catalogue(tmp_path: Path) -> None:
    log = PieceRows(LocalEngine(str(tmp_path)), [], read_labelled)
    with number_by_tasks(log, True, 3) as large:
        assert (large.n, large.rows.each(len)) == (0, [])


def test_items_whose_rows_were_dropped_are_not_counted() -> None:
    rows = make_rows({"a": 2, "b": 1})
    encoded = rows.set_column(0, "item_id", rows.column(0).dictionary_encode())
    kept = encoded.filter(pa.array([True, True, False]))
    assert [row["item_id"] for row in number(kept)] == ["a"]


def test_popularity_by_hand() -> None:
    """12 rows, rarest item first: middles of their rows at .5, 2, 4.5 and 9; cuts at 4 and 8."""
    rows = number(make_rows({"a": 1, "b": 2, "c": 3, "d": 6}, {"x": "test", "a": "open_loop"}))
    assert name_classes(rows) == {"a": "tail", "b": "tail", "c": "torso", "d": "head", "x": "cold"}
    assert {row["item_id"]: row["n_train"] for row in rows} == {"a": 1, "b": 2, "c": 3, "d": 6, "x": 0}


def test_classes_hold_about_a_third_of_the_training_rows_each() -> None:
    trained = {f"i{n}": 1 + 300 // (n + 3) for n in range(80)}
    items = number(make_rows(trained))
    total = sum(trained.values())
    counts = {name: [row["n_train"] for row in items if row["popularity"] == name] for name in CLASSES}
    for name in ("tail", "torso", "head"):
        assert sum(counts[name]) / total == pytest.approx(1 / 3, abs=0.08), name
    assert max(counts["tail"]) < min(counts["torso"]) and max(counts["torso"]) < min(counts["head"])


def test_items_of_equal_count_share_a_class() -> None:
    assert set(name_classes(number(make_rows({"a": 2, "b": 2, "c": 2}))).values()) == {"torso"}


def test_without_training_rows_every_item_is_cold() -> None:
    assert name_classes(number(make_rows({}, {"a": "test"}))) == {"a": "cold"}
