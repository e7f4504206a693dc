"""A night whose tables lost files, or are gone, is not finished: what it lacks is named and made again."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from recbench_spark.commands import query
from recbench_spark.errors import StoreError
from recbench_spark.night.lost_rows import LostRows, find_lost_rows, list_filled_tables
from recbench_spark.query.local_engine import require_whole, run_query
from recbench_spark.schemas import (
    CHECKS,
    ITEMS,
    MANIFESTS,
    METRICS,
    RUNS,
    SPLITS,
    TABLES,
    USER_BLOCKS,
    USER_METRICS,
    Table,
)
from recbench_spark.storage.arrow_store import ArrowStore
from recbench_spark.storage.delta_tables import list_files
from recbench_spark.storage.file_tables import FileTables
from recbench_spark.storage.objects import remove_object
from recbench_spark.storage.table_upkeep import forget_files, list_lost_files

DAY = date(2026, 1, 1)
SPLIT = "abc"
RUN_A, RUN_B = "20260101T000000-20260101-a-1", "20260101T000000-20260101-b-2"
FILLED = [name.name for name in (CHECKS, ITEMS, MANIFESTS, METRICS, SPLITS, USER_BLOCKS, USER_METRICS)]


def fill_value(kind: pa.DataType) -> Any:
    if pa.types.is_list(kind) or pa.types.is_map(kind):
        return []
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return DAY
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return "x"
    return True if pa.types.is_boolean(kind) else 1


def make_row(table: Table, values: Mapping[str, Any]) -> dict[str, Any]:
    """A row with the given values, and some value in each other column that may not be NULL."""
    schema = table.arrow_schema
    return {field.name: fill_value(field.type) for field in schema if not field.nullable} | dict(values)


def write_night(root: str) -> ArrowStore:
    """Two runs on one split; each table has a file for each run or each append."""
    store = ArrowStore(root)
    for run_id, model in ((RUN_A, "a"), (RUN_B, "b")):
        facts = {"run_id": run_id, "model": model, "suite": "s", "logical_date": DAY, "run_key": model}
        facts |= {"status": "succeeded", "split_id": SPLIT, "severity": "info", "source": "own"}
        for table in (METRICS, CHECKS, USER_METRICS, RUNS):
            known = {name: value for name, value in facts.items() if name in table.names}
            store.append([make_row(table, known)], table)
    for table in (SPLITS, ITEMS, USER_BLOCKS, MANIFESTS):
        store.append([make_row(table, {"split_id": SPLIT})], table)
    return store


@pytest.fixture
def store(tmp_path: Path) -> ArrowStore:
    return write_night(str(tmp_path / "w"))


def remove_file(store: ArrowStore, name: str) -> str:
    place = list_files(store.location(name))[0]
    Path(place).unlink()
    return place


def cut_file(store: ArrowStore, name: str) -> str:
    place = list_files(store.location(name))[0]
    Path(place).write_bytes(Path(place).read_bytes()[:-1])
    return place


def remove_table(store: ArrowStore, name: str) -> str:
    shutil.rmtree(store.location(name))
    return ""


def look(store: ArrowStore) -> LostRows:
    return find_lost_rows(store, "s", DAY, SPLIT, FILLED)


def test_a_whole_night_lacks_nothing(store: ArrowStore) -> None:
    assert list_filled_tables(store, {RUN_A, RUN_B}, SPLIT) == FILLED
    assert not look(store)
    assert not find_lost_rows(store, "s", DAY, "other", FILLED)


BOTH, LAST = {RUN_A, RUN_B}, {RUN_B}


@pytest.mark.parametrize(
    ("name", "lose", "run_ids", "splits"),
    [
        ("metrics", remove_file, BOTH, set()),
        ("metrics", cut_file, BOTH, set()),
        ("metrics", remove_table, BOTH, set()),
        ("checks", remove_file, BOTH, set()),
        ("checks", remove_table, BOTH, set()),
        ("user_metrics", remove_file, LAST, set()),
        ("user_metrics", cut_file, LAST, set()),
        ("user_metrics", remove_table, BOTH, set()),
        *((name, remove_file, BOTH, {SPLIT}) for name in ("splits", "items", "user_blocks", "manifests")),
        *((name, remove_table, BOTH, {SPLIT}) for name in ("splits", "items", "user_blocks", "manifests")),
    ],
)
def test_what_is_lost_is_named_with_its_runs_and_its_split(
    store: ArrowStore,
    name: str,
    lose: Callable[[ArrowStore, str], str],
    run_ids: set[str],
    splits: set[str],
) -> None:
    place = lose(store, name)
    lost = look(ArrowStore(store.root, read_only=True))
    assert (set(lost.run_ids), set(lost.splits)) == (run_ids, splits)
    assert name in lost.describe() and place in lost.describe()


def test_a_lost_file_of_runs_is_found_before_its_rows_are_read(store: ArrowStore) -> None:
    place = remove_file(store, "runs")
    lost = look(store)
    assert list(lost.files) == ["runs"] and place in lost.describe()


def test_a_run_whose_rows_went_with_the_file_of_another_night_is_found(store: ArrowStore) -> None:
    """The file is no longer in the log: the night of another suite removed it."""
    place = remove_file(store, "metrics")
    forget_files(store.location("metrics"), [place])
    lost = look(store)
    assert lost.absent == ("metrics",) and len(lost.run_ids) == 1


@pytest.mark.parametrize("name", ["metrics", "user_metrics"])
def test_lost_files_leave_the_log_and_the_other_rows_stay(store: ArrowStore, name: str) -> None:
    place = remove_file(store, name)
    forget_files(store.location(name), [place])
    assert not list_lost_files(store.location(name))
    assert store.read_rows(TABLES[name]).num_rows == 1
    forget_files(store.location(name), [place])


def test_a_folder_with_an_odd_name_is_looked_at_and_mended(tmp_path: Path) -> None:
    store = write_night(str(tmp_path / "a%20b [c]"))
    assert not look(store)
    place = remove_file(store, "user_metrics")
    assert [one.path for one in list_lost_files(store.location("user_metrics"))] == [place]
    forget_files(store.location("user_metrics"), [place])
    assert not look(store) and store.read_rows(USER_METRICS).num_rows == 1


@pytest.mark.parametrize("lose", [remove_file, cut_file])
def test_a_query_names_table_and_file_and_what_to_do(
    store: ArrowStore, lose: Callable[[ArrowStore, str], str]
) -> None:
    place = lose(store, "metrics")
    for sql in ("SELECT * FROM metrics", "SELECT COUNT(*) FROM leaderboard"):
        with pytest.raises(StoreError, match="table metrics lacks files that its log names") as error:
            run_query(ArrowStore(store.root, read_only=True), sql)
        assert place in error.value.message and "run its night again" in error.value.hint
    run_query(store, "SELECT * FROM runs")


def test_a_query_over_a_table_that_is_gone_is_refused(store: ArrowStore) -> None:
    remove_table(store, "metrics")
    with pytest.raises(StoreError, match="table metrics is not there"):
        run_query(ArrowStore(store.root, read_only=True), "SELECT * FROM metrics")


def test_spark_answers_no_query_over_a_table_with_a_lost_file(store: ArrowStore) -> None:
    """The error comes before a session begins."""
    place = remove_file(store, "metrics")
    flags = ["--warehouse", store.root, "--engine", "spark", "SELECT * FROM metrics"]
    with pytest.raises(StoreError, match="table metrics lacks files") as error:
        query.main(query.parser().parse_args(flags))
    assert place in error.value.message


@pytest.mark.parametrize("lose", [remove_file, remove_table])
def test_nothing_is_exported_where_rows_are_lost(
    store: ArrowStore, tmp_path: Path, lose: Callable[[ArrowStore, str], str]
) -> None:
    lose(store, "metrics")
    flags = ["--warehouse", store.root, "--export", str(tmp_path / "x.duckdb")]
    with pytest.raises(StoreError, match="table metrics"):
        query.main(query.parser().parse_args(flags))
    assert not (tmp_path / "x.duckdb").exists()


def test_a_reader_of_rows_names_the_lost_file(store: ArrowStore) -> None:
    place = remove_file(store, "runs")
    with pytest.raises(StoreError, match="table runs lacks files") as error:
        store.rows(RUNS)
    assert place in error.value.message


class Catalog(FileTables):
    """A catalog where Spark writes: tables and rows, and no place of files."""

    root, in_catalog = "main.recbench", True

    def __init__(self, store: ArrowStore) -> None:
        members: Any = {"exists": store.exists, "rows": store.rows}
        self.__dict__.update(members)

    def location(self, name: str) -> str:
        raise AssertionError(f"the files of {name} are looked for")


@pytest.mark.parametrize("name", ["metrics", "splits", "items", "user_blocks", "manifests"])
def test_a_table_that_a_catalog_lost_is_found(store: ArrowStore, name: str) -> None:
    assert not find_lost_rows(Catalog(store), "s", DAY, SPLIT)
    remove_table(store, name)
    lost = find_lost_rows(Catalog(ArrowStore(store.root, read_only=True)), "s", DAY, SPLIT)
    assert lost.absent == (name,) and lost.run_ids == BOTH and name in lost.describe()
    assert lost.splits == (set() if name == "metrics" else {SPLIT})


def test_a_query_of_a_catalog_names_the_table_that_is_gone(store: ArrowStore) -> None:
    require_whole(Catalog(store), ["metrics"])
    remove_table(store, "metrics")
    with pytest.raises(StoreError, match="table metrics is not there"):
        require_whole(Catalog(ArrowStore(store.root, read_only=True)), ["metrics"])


def test_objects_are_looked_at_and_mended(bucket: str) -> None:
    store = write_night(f"{bucket}/w")
    assert not look(store)
    place = list_files(store.location("user_metrics"))[0]
    remove_object(place)
    seen = look(store)
    assert set(seen.run_ids) == {RUN_B} and place in seen.describe()
    forget_files(store.location("user_metrics"), [place])
    assert not look(store) and store.read_rows(USER_METRICS).num_rows == 1
