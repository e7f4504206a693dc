"""Splits of Parquet that Python tasks read and write directly equal those of Spark's own readers."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.exceptions import CommitFailedError
from deltalake.schema import PrimitiveType
from pyspark.sql import functions as F

from recbench_spark.config import Dataset, Split
from recbench_spark.errors import DataError, FallbackToSpark, StoreError
from recbench_spark.night import split as splitting
from recbench_spark.night.split import write_labelled_log
from recbench_spark.schemas import SPLITS
from recbench_spark.sources import columnar
from recbench_spark.sources.columnar import COLUMNS, open_columnar_log
from recbench_spark.storage import delta_files
from recbench_spark.storage.retries import retry_conflicts
from recbench_spark.storage.store import Store
from tests.labelled import label_blocks, open_log

SPLIT_OF = {"TO_LS": Split(protocol="TO_LS", valid=True), "netflix": Split(protocol="netflix")}
"""An order in time, and one at random; `tests/night/test_local_splits.py` has the other rules."""


def plain_log(seed: int = 3) -> dict[str, list[Any]]:
    """Whole numbers as ids, few times, some pairs twice, one of them with another rating."""
    draw = random.Random(seed)
    rows = [
        (draw.randrange(30), draw.randrange(-3, 40), float(draw.randrange(4)), draw.randrange(6))
        for _ in range(400)
    ]
    return dict(zip(COLUMNS, map(list, zip(*rows, strict=True)), strict=True))


def write_log(folder: Path, columns: dict[str, Any], files: int = 3) -> str:
    """Write a log as several files of small row groups."""
    table = pa.table(columns)
    step = -(-table.num_rows // files)
    (folder / "log").mkdir(parents=True)
    for n in range(files):
        part = table.slice(n * step, step)
        pq.write_table(part, folder / "log" / f"{n}.parquet", row_group_size=37)
    (folder / "log" / "_SUCCESS").touch()
    return str(folder / "log")


def dataset(path: str, **settings: Any) -> Dataset:
    return Dataset(**{"name": "log", "reader": "parquet", "path": path, **settings})


@pytest.fixture(scope="module")
def store(spark, tmp_path_factory: pytest.TempPathFactory) -> Store:
    """One warehouse: each test has splits with its own names."""
    return Store(spark, str(tmp_path_factory.mktemp("warehouse")))


def read_split(store: Store, split_id: str) -> pd.DataFrame:
    """The rows of a split, read without Spark."""
    return DeltaTable(store.location("splits")).to_pandas(partitions=[("split_id", "=", split_id)])


@pytest.fixture
def python_alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Spark's readers are not asked."""

    def refuse(*_: Any) -> None:
        raise AssertionError("read by way of Spark's rows")

    monkeypatch.setattr(splitting, "open_any_log", refuse)
    yield


def in_order(rows: pd.DataFrame) -> pd.DataFrame:
    columns = [*COLUMNS, "part"]
    return rows[columns].sort_values(columns).reset_index(drop=True)


FORMS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "whole numbers": ({}, {}),
    "texts": ({"user_id": lambda c: [f"ü{x}" for x in c], "item_id": lambda c: [f"i{x}" for x in c]}, {}),
    "large texts": (
        {
            name: lambda c: pa.array([f"{x}ü" for x in c], pa.large_string())
            for name in ("user_id", "item_id")
        },
        {},
    ),
    "narrow types": (
        {
            "user_id": lambda c: pa.array(c, pa.uint8()),
            "item_id": lambda c: pa.array(c, pa.int16()),
            "rating": lambda c: pa.array(c, pa.float32()),
            "event_time": lambda c: pa.array(c, pa.int32()),
        },
        {"time_unit": "ms"},
    ),
    "instants": (
        {"event_time": lambda c: pa.array([10**15 + x for x in c], pa.timestamp("us", "UTC"))},
        {},
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_split_is_that_of_sparks_readers(
    spark, store: Store, tmp_path: Path, form: str, python_alone: None
) -> None:
    changed, settings = FORMS[form]
    columns = {name: changed.get(name, list)(column) for name, column in plain_log().items()}
    log = dataset(write_log(tmp_path, columns), **settings)
    rows, numeric = open_log(spark, log).rows.cache(), "texts" not in form
    for name, split in SPLIT_OF.items():
        split_id = f"{form[:5]}_{name}"
        log_file = write_labelled_log(store, log, split, split_id)
        assert (log_file.rows.n, log_file.numeric) == (400, numeric)
        ours = read_split(store, split_id)
        blocks = label_blocks(rows, split, "keep_last", numeric=numeric)
        theirs = blocks.rows().toPandas()
        assert len(ours) < 400
        pd.testing.assert_frame_equal(in_order(ours), in_order(theirs), check_dtype=False)
    read = store.read(SPLITS).where(F.col("split_id") == split_id)
    assert {r.part for r in read.collect()} == set(ours.part)
    assert read.where("attributes IS NOT NULL").isEmpty()


def test_a_log_without_ratings_and_times_under_other_names(
    store: Store, tmp_path: Path, python_alone: None
) -> None:
    path = write_log(
        tmp_path, {"u": [1, 1, 1, 2], "i": [5, 6, 7, 5], "Note": ["a", None, "b", "c"]}, files=1
    )
    write_labelled_log(
        store, dataset(path, columns={"user_id": "u", "item_id": "i"}), Split(protocol="RO_LS"), "few"
    )
    rows = read_split(store, "few")
    assert rows.rating.tolist() == [1.0] * 4
    assert rows.event_time.isna().all()
    assert sorted(rows.part) == ["test", "train", "train", "train"]


def test_a_delta_log_is_read_as_its_present_version(
    store: Store, tmp_path: Path, python_alone: None
) -> None:
    write_deltalake(tmp_path / "log", pa.table({"user_id": [9, 9], "item_id": [1, 2]}))
    write_deltalake(tmp_path / "log", pa.table({"user_id": [1, 1], "item_id": [1, 2]}), mode="overwrite")
    log = dataset(str(tmp_path / "log"), reader="delta")
    assert write_labelled_log(store, log, Split(protocol="RO_LS"), "delta").rows.n == 2
    assert set(read_split(store, "delta").user_id) == {"1"}


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "missing id": ({"item_id": [1, None]}, "'item_id' is not"),
    "infinite rating": ({"rating": [1.0, float("inf")]}, "'rating' is not a finite number"),
    "missing time": ({"event_time": [None, 3]}, "'event_time' is not"),
    "time out of range": ({"event_time": [2**62, 3]}, "'event_time' is not a time in s"),
    "twice": ({"user_id": [1, 1], "item_id": [5, 5]}, "2 rows of user 1, item 5"),
    "unknown part": ({"part": ["train", "tset"]}, "'part' is not one of"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_needs_a_second_look_is_told_by_sparks_readers(
    store: Store, tmp_path: Path, name: str
) -> None:
    changed, message = BAD[name]
    good = {"user_id": [1, 2], "item_id": [5, 5], "rating": [1.0, 2.0], "event_time": [3, 4]}
    path = write_log(tmp_path, {**good, **changed}, files=1)
    with pytest.raises(DataError, match=message):
        write_labelled_log(store, dataset(path, duplicates="error"), Split(protocol="TO_LS"), f"bad {name}")
    assert read_split(store, f"bad {name}").empty


def test_an_append_is_made_once_and_files_that_the_driver_does_not_see_are_refused(
    store: Store, tmp_path: Path
) -> None:
    log = dataset(write_log(tmp_path, plain_log()))
    for _ in range(2):
        write_labelled_log(store, log, SPLIT_OF["TO_LS"], "once")
    table = DeltaTable(store.location("splits"))
    assert table.transaction_version("splits/once") == 1
    assert not read_split(store, "once").duplicated(["user_id", "item_id"]).any()
    files = [delta_files.File("split_id=t/gone.parquet", 10, 1)]
    with pytest.raises(StoreError, match="the driver does not see it"):
        delta_files.require_visible(store.location("splits"), files)


def test_of_writers_of_one_name_only_the_first_adds_its_files(store: Store) -> None:
    store.create(SPLITS)
    folder, partition = Path(store.location("splits")), {"split_id": "race"}
    before = DeltaTable(folder).version()
    files = lone_files(folder / "split_id=race", 9)
    opened = DeltaTable(folder)
    with ThreadPoolExecutor(max_workers=8) as pool:
        tries = [partial(delta_files.commit, str(folder), [f], partition, "splits/race") for f in files[:8]]
        commits = [pool.submit(retry_conflicts, "write splits", attempt) for attempt in tries]
    assert sorted(commit.result() for commit in commits) == [False] * 7 + [True]
    with pytest.raises(CommitFailedError):
        delta_files.append(opened, files[8:], partition, "splits/race")
    assert DeltaTable(folder).version() == before + 1
    assert len(read_split(store, "race")) == 1


def lone_files(folder: Path, n: int) -> list[delta_files.File]:
    """Files of one row each."""
    folder.mkdir()
    row = {"user_id": "u", "item_id": "i", "rating": 1.0, "event_time": 1, "part": "test"}
    paths = [folder / f"{number}.parquet" for number in range(n)]
    for path in paths:
        pq.write_table(pa.Table.from_pylist([row]), path)
    return [delta_files.File(f"{folder.name}/{path.name}", path.stat().st_size, 1) for path in paths]


def test_many_splits_leave_a_checkpoint_that_spark_reads(spark, tmp_path: Path) -> None:
    store = Store(spark, str(tmp_path / "a warehouse"))
    store.create(SPLITS)
    table, folder = store.identifier("splits"), Path(store.location("splits"))
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('delta.checkpointInterval' = '3')")
    for n, file in enumerate(lone_files(folder / "split_id=ü%", 4)):
        delta_files.commit(str(folder), [file], {"split_id": "ü%"}, f"splits/{n}")
    assert list((folder / "_delta_log").glob("*.checkpoint.parquet"))
    assert DeltaTable(folder).transaction_version("splits/0") == 1
    spark.sql(f"REFRESH TABLE {table}")
    assert [r.split_id for r in store.read(SPLITS).collect()] == ["ü%"] * 4


def test_a_table_that_asks_its_writers_for_more_is_written_by_spark(spark, tmp_path: Path) -> None:
    """Read by tasks or by Spark, written by tasks or by Spark: four ways, the same rows."""
    path = write_log(tmp_path, plain_log())
    spark.sql("CREATE SCHEMA IF NOT EXISTS columnar")
    spark.read.parquet(path).write.saveAsTable("columnar.log", format="delta", mode="overwrite")
    logs = {"by_tasks": dataset(path), "by_spark": dataset("columnar.log", reader="delta")}
    store = Store(spark, str(tmp_path / "warehouse"))
    store.create(SPLITS)
    for name, log in logs.items():
        write_labelled_log(store, log, SPLIT_OF["netflix"], name)
    table = store.identifier("splits")
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('delta.minWriterVersion' = '3')")
    assert not delta_files.can_commit(store.location("splits"))
    for name, log in logs.items():
        write_labelled_log(store, log, SPLIT_OF["netflix"], f"{name}_twice")
    splits = [in_order(read_split(store, name)) for name in (*logs, *(f"{name}_twice" for name in logs))]
    for other in splits[1:]:
        pd.testing.assert_frame_equal(splits[0], other, check_dtype=False)


# ------------------------------------------------------------------------------ without Spark


def test_logs_that_take_two_passes(tmp_path: Path) -> None:
    path = write_log(tmp_path, plain_log())
    assert open_columnar_log(dataset(path)) is not None
    assert open_columnar_log(dataset(f"{path}/0.parquet")) is not None
    for settings in (
        {"reader": "csv"},
        {"reader": "delta"},
        {"path": f"{path}/none"},
        {"attributes": ["rating"]},
        {"until": "2026-01-31"},
        {"bad_rows": "reject"},
        {"columns": {"rating": "stars"}},
        {"columns": {"part": "rating"}},
        {"time_unit": "timestamp"},
    ):
        assert open_columnar_log(dataset(**{"path": path, **settings})) is None, settings


@pytest.mark.parametrize(
    "columns",
    [
        {"user_id": [1.0]},
        {"user_id": pa.array([1], pa.uint64())},
        {"item_id": pa.array(["a"]).dictionary_encode()},
        {"rating": [True]},
        {"rating": pa.array([1]).cast(pa.decimal128(20, 0))},
        {"event_time": pa.array([1], pa.timestamp("us"))},
        {"part": ["train"]},
        {"Item_Id": [1]},
    ],
)
def test_types_that_take_two_passes(tmp_path: Path, columns: dict[str, Any]) -> None:
    good = {"user_id": [1], "item_id": [1], "rating": [1.0], "event_time": [1]}
    assert open_columnar_log(dataset(write_log(tmp_path / "good", good, files=1))) is not None
    assert open_columnar_log(dataset(write_log(tmp_path / "bad", {**good, **columns}, files=1))) is None


def test_folders_of_a_log(tmp_path: Path) -> None:
    path = Path(write_log(tmp_path, plain_log()))
    pq.write_table(pa.table({"user_id": ["a"], "item_id": ["b"]}), path / "other.parquet")
    assert open_columnar_log(dataset(str(path))) is None
    (path / "other.parquet").rename(path / "_hidden.parquet")
    assert open_columnar_log(dataset(str(path))) is not None
    (path / "notes.txt").write_text("no Parquet")
    assert open_columnar_log(dataset(str(path))) is None
    (path / "notes.txt").unlink()
    for name, n in (("_old", 1), ("old", 1), ("_day=1", 2)):
        (path / name).mkdir()
        shutil.copy(path / "0.parquet", path / name)
        log, files = open_columnar_log(dataset(str(path))), [*path.glob("[0-9].parquet")]
        counts = [
            pq.read_metadata(file).num_rows for file in [*files, path / "0.parquet"][: len(files) - 1 + n]
        ]
        assert log is not None and log.n == sum(counts)
        shutil.rmtree(path / name)


def test_delta_tables_by_tasks(tmp_path: Path) -> None:
    """Files that lack a column of the table, a folder by partition, and a damaged table."""
    rows = pa.table({"user_id": [9, 9], "item_id": [1, 2]})
    log = dataset(str(tmp_path / "a log"), reader="delta")
    write_deltalake(tmp_path / "a log", rows)
    assert open_columnar_log(log) is not None
    DeltaTable(tmp_path / "a log").alter.add_columns([Field("rating", PrimitiveType("double"))])
    unrated = open_columnar_log(log)
    assert unrated is not None
    with pytest.raises(FallbackToSpark, match="a value is missing"):
        list(columnar.read_log([0], COLUMNS, unrated, 1))
    write_deltalake(tmp_path / "parts", rows, partition_by=["user_id"])
    parts = open_columnar_log(dataset(str(tmp_path / "parts"), reader="delta"))
    assert parts is not None
    (read,) = columnar.read_log([0], COLUMNS, parts, 1)
    assert read.select(["user_id", "item_id"]).to_pydict() == {"user_id": [9, 9], "item_id": [1, 2]}
    (tmp_path / "parts" / "_delta_log" / "00000000000000000001.json").write_text("{")
    assert open_columnar_log(dataset(str(tmp_path / "parts"), reader="delta")) is None


def test_ids_that_are_no_utf8_have_a_task() -> None:
    ids = pa.chunked_array([pa.array([b"\xff", b"a", b"\xff"]).view(pa.string())])
    tasks = columnar._assign_tasks(ids, 97)
    assert tasks[0] == tasks[2] != tasks[1]
