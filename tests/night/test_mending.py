"""A night makes what was lost again, with the rows that it had, on both runners."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from recbench_spark.config import Benchmark
from recbench_spark.night.night_status import find_finished_night
from recbench_spark.schemas import METRICS, RANKINGS, RUNS, SPLITS, USER_METRICS, Table
from recbench_spark.storage.arrow_store import ArrowStore
from recbench_spark.storage.delta_tables import list_files
from recbench_spark.storage.store import Store
from tests.night.test_local_splits import write_log
from tests.nights import DATE, TINY, Ran, copy_warehouse, run, small


def read_visible(root: str, table: Table) -> list[str]:
    """Rows of succeeded runs, or of the split that is now, without their names."""
    store = ArrowStore(root, read_only=True)
    done = store.rows(RUNS, [("status", "=", "succeeded")], ["run_id", "split_id", "model"])
    models = {row["run_id"]: row["model"] for row in done}
    splits = {row["split_id"] for row in done}
    rows = store.rows(table)
    kept = [row for row in rows if row.get("run_id") in models or row.get("split_id") in splits]
    return sorted(
        str({**row, "run_id": models.get(row.get("run_id", "")), "split_id": None}) for row in kept
    )


def lose(root: str, name: str, row: int = 0) -> None:
    Path(list_files(f"{root}/{name}")[row]).unlink()


LOST = ["metrics gone", "split", "user_metrics", "runs", "metrics"]


@pytest.mark.parametrize("lost", ["split", "runs"])
def test_a_night_on_spark_makes_what_was_lost_again(spark: Any, tmp_path: Path, lost: str) -> None:
    open_store = partial(Store, spark, str(tmp_path / "w"))
    assert run(open_store(), small(**TINY)).outcome.exit_code == 0
    check_mending(open_store, small(**TINY), lost)


@pytest.fixture(scope="module")
def first_night(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """A night of a log in a file, which each test loses in a copy."""
    folder = tmp_path_factory.mktemp("mending")
    log = {"name": "log", "reader": "parquet", "path": write_log(folder / "log", 1)}
    log |= {"duplicates": "keep_last"}
    return run(ArrowStore(str(folder / "w")), small(**{**TINY, "dataset": log}))


@pytest.mark.parametrize("lost", LOST)
def test_a_night_without_spark_makes_what_was_lost_again(
    first_night: Ran, tmp_path: Path, lost: str
) -> None:
    assert first_night.outcome.exit_code == 0
    copy_warehouse(first_night.store, tmp_path / "w")
    check_mending(partial(ArrowStore, str(tmp_path / "w")), first_night.benchmark, lost)


def check_mending(open_store: Callable[[], Any], benchmark: Benchmark, lost: str) -> None:
    """Loss of some rows of a night, and the night again."""
    root = open_store().root
    assert find_finished_night(root, benchmark, DATE) is not None
    tables = (METRICS, USER_METRICS, RANKINGS, SPLITS)
    before = {table.name: read_visible(root, table) for table in tables}
    assert all(before.values())
    if lost == "metrics gone":
        shutil.rmtree(f"{root}/metrics")
    elif lost == "split":
        lose(root, "splits")
        lose(root, "user_metrics")
        shutil.rmtree(f"{root}/items")
    else:
        lose(root, lost)
    assert find_finished_night(root, benchmark, DATE) is None
    again = run(open_store(), benchmark)
    assert again.outcome.exit_code == 0
    ran = {"popular", "item_knn"}
    assert again.outcome.run_ids.keys() <= ran and again.outcome.run_ids
    assert len(again.outcome.run_ids) == (1 if lost == "user_metrics" else 2)
    assert {table.name: read_visible(root, table) for table in tables} == before
    assert find_finished_night(root, benchmark, DATE) is not None
    assert f"table {lost.partition(' ')[0].replace('split', 'splits')}" in again.remarks
