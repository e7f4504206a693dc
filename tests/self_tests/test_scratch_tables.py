"""Tables in memory: they read as a warehouse's do, and copies do not touch each other."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pytest

from recbench_spark.config import make_benchmark
from recbench_spark.errors import StoreError
from recbench_spark.schemas import ITEMS, SELF_TESTS, TABLES
from recbench_spark.self_tests.scratch_tables import ScratchTables, open_warehouse
from recbench_spark.storage.arrow_store import ArrowStore
from recbench_spark.storage.file_tables import FileTables, TaskFiles

CHECKS = TABLES["checks"]
FILE = {"name": "f", "dataset": {"name": "d", "reader": "csv", "path": "log.csv"}}
Store = TypeVar("Store", bound=FileTables)


def make_items(split: str, n: int) -> list[dict[str, object]]:
    ids = [f"i{k}" for k in range(n)]
    facts = [{"item_index": k, "n_train": k, "popularity": "head"} for k in range(n)]
    return [{"split_id": split, "item_id": one, **more} for one, more in zip(ids, facts, strict=True)]


def fill(store: Store) -> Store:
    for split, n in (("a", 3), ("b", 2)):
        for _ in range(2):  # an append of a name counts once
            store.append(make_items(split, n), ITEMS, once=split)
    facts = {"severity": "info", "observed": 1.0, "passed": True}
    store.append([{"run_id": "r", "check": "c", **facts}], CHECKS)
    return store


def read_all(store: FileTables) -> list[object]:
    (both,) = store.open_rows(ITEMS, "split_id", ["a"]).each(["item_id", "split_id"], pa.concat_tables)
    return [
        sorted(row["item_id"] for row in store.rows(ITEMS, [("split_id", "=", "b")])),
        sorted(store.rows(ITEMS, [("n_train", ">", 1)], ["split_id", "n_train"]), key=str),
        store.rows(CHECKS, [], ["run_id", "passed"]),
        store.count_rows(ITEMS, "split_id", "a"),
        store.count_rows(ITEMS, "split_id", "c"),
        store.list_values(ITEMS, "split_id"),
        store.has(CHECKS, "run_id", "r"),
        store.exists("items"),
        store.exists("runs"),
        sorted(both.to_pylist(), key=str),
        store.dataset(ITEMS).count_rows(),
        store.dataset(ITEMS).schema.names,
    ]


def test_rows_read_as_those_of_a_warehouse(tmp_path: Path) -> None:
    expected = read_all(fill(ArrowStore(str(tmp_path / "plain"))))
    scratch = fill(ScratchTables(str(tmp_path / "scratch")))
    assert read_all(scratch) == expected
    assert read_all(scratch) == expected  # tasks have opened some: these rows are files now
    assert not [*(tmp_path / "scratch").rglob("_delta_log")]


def test_a_copy_takes_rows_alone(tmp_path: Path) -> None:
    first = fill(ScratchTables(str(tmp_path / "first")))
    other = first.copy(tmp_path / "other")
    other.append(make_items("c", 1), ITEMS, once="c")
    other.delete("items", "split_id", ["a"])
    assert other.list_values(ITEMS, "split_id") == {"b", "c"}
    assert first.list_values(ITEMS, "split_id") == {"a", "b"}
    assert first.count_rows(ITEMS, "split_id", "a") == 3


def test_rows_of_files_and_of_the_driver_are_one_table(tmp_path: Path) -> None:
    store = ScratchTables(str(tmp_path))
    store.append(make_items("a", 2), ITEMS, once="a")
    files = store._write_parts(store.dataset(ITEMS).to_table(), ITEMS)
    store._parts["items"] = {"a": files}
    store.append(make_items("b", 1), ITEMS, once="b")
    store.append(TaskFiles([], store.choose_folder(ITEMS)), ITEMS, once="none")
    assert {row["split_id"]: row["n_train"] for row in store.rows(ITEMS)} == {"a": 1, "b": 0}
    store.delete("items", "split_id", ["a"])
    assert store.list_values(ITEMS, "split_id") == {"b"}


def test_only_models_that_read_logs_have_any(tmp_path: Path) -> None:
    models = [{"name": "p", "kind": "popular"}]
    graph = {"name": "g", "kind": "lightgcn"}
    plain, logged = (
        make_benchmark({**FILE, "models": some}, (), "") for some in (models, [*models, graph])
    )
    assert isinstance(open_warehouse(plain, tmp_path / "plain", 1), ScratchTables)
    store = open_warehouse(logged, tmp_path / "logged", 1)
    assert not isinstance(store, ScratchTables)
    assert read_all(fill(store).copy(tmp_path / "copy")) == read_all(store)


def test_missing_rows_are_appended_and_null_is_refused(tmp_path: Path) -> None:
    store = ScratchTables(str(tmp_path))
    fits = TABLES["fits"]
    row = {field.name: None for field in fits.arrow_schema} | {"fit_id": "f"}
    for _ in range(2):
        store.append_missing([row, {**row, "fit_id": "g"}], fits, ("fit_id",))
    assert sorted(one["fit_id"] for one in store.rows(fits)) == ["f", "g"]
    with pytest.raises(StoreError, match="holds NULL"):
        store.append([{"fault": "f"}], SELF_TESTS)
