"""Compaction, removal of unused files and changes of columns on a real S3 server, without a JVM."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from recbench_spark.errors import StoreError
from recbench_spark.schemas import REJECTS, TRIALS, Table, arrow_rows
from recbench_spark.storage import delta_files, objects, table_upkeep
from recbench_spark.storage.arrow_store import ArrowStore
from recbench_spark.storage.delta_files import CHECKED_VERSION, WRITER_VERSION, ConflictError
from recbench_spark.storage.delta_tables import list_files, list_stored_files, open_table, read_dataset
from recbench_spark.storage.table_folders import create_object_table
from recbench_spark.storage.table_sql import table_properties
from recbench_spark.storage.table_upkeep import change_table, compact_files, vacuum_files
from tests.object_storage import S3Server
from tests.storage.test_missing_rows import trial

ROWS = pa.table({"file": ["a", "b"], "line": [None, "2"], "reason": ["short", "long"]})
SPLITS = ("s1", "a b%c", "é:x")


def add_rejects(place: str, split: str, once: str) -> str:
    file = delta_files.write_file(ROWS, place, {"split_id": split}, ROWS.column_names)
    delta_files.commit(place, [file], {}, once)
    return f"{place}/{file.path}"


def read_sorted(place: str) -> list[str]:
    return sorted(map(str, read_dataset(place).to_table().to_pylist()))


def make_old(server: S3Server) -> None:
    """Set the times of all data files a week back."""
    week_ago = time.time() - 7 * 24 * 3600
    for file in server.folder.rglob("*.parquet"):
        os.utime(file, (week_ago, week_ago))


def test_a_table_may_have_other_partitions_than_this_code_gives_it(tmp_path: Path) -> None:
    rows = ROWS.append_column("split_id", pa.array(["s1", "s2"]))
    write_deltalake(tmp_path / "rejects", rows)
    store = ArrowStore(str(tmp_path), any_version=True)
    assert store.list_lost_files(REJECTS) == []
    (file,) = list_files(str(tmp_path / "rejects"))
    Path(file).unlink()
    assert [one.path for one in store.list_lost_files(REJECTS)] == [file]


def test_compaction_and_vacuum_keep_all_rows_and_remove_what_no_version_has(
    s3_server: S3Server, bucket: str
) -> None:
    place = f"{bucket}/w/rejects"
    create_object_table(place, REJECTS)
    for split in SPLITS:
        for n in range(3):
            add_rejects(place, split, f"{split}-{n}")
    before, kept = read_sorted(place), list_files(place, {"split_id": "s1"})
    lost = f"{place}/split_id=s1/part-lost.parquet"
    objects.write_bytes(lost, b"of a killed writer")
    objects.write_bytes(young := f"{place}/split_id=s1/part-young.parquet", b"")
    compact_files(place, "split_id", ["s1"])
    assert [len(list_files(place, {"split_id": split})) for split in SPLITS] == [3, 1, 1]
    assert list_files(place, {"split_id": "s1"}) == kept and read_sorted(place) == before
    make_old(s3_server)
    objects.write_bytes(young, b"of a task at work")
    vacuum_files(place, 24)
    assert objects.read_bytes(lost) is None and objects.read_bytes(young) is not None
    assert read_sorted(place) == before
    assert add_rejects(place, "s1", "after") in list_files(place)


def test_two_writers_beside_a_compaction_lose_nothing(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place = f"{bucket}/w/rejects"
    create_object_table(place, REJECTS)
    for n in range(3):
        add_rejects(place, "s1", f"before-{n}")
    opened = [open_table(place)]
    monkeypatch.setattr(
        table_upkeep, "open_table", lambda place: opened.pop() if opened else open_table(place)
    )
    late = add_rejects(place, "s1", "meanwhile")
    compact_files(place)
    assert len(list_files(place)) == 2 and late in list_files(place)
    assert len(read_sorted(place)) == 4 * ROWS.num_rows
    opened.append(open_table(place))
    delta_files.delete_rows(place, "split_id", ["s1"])
    with pytest.raises(ConflictError):  # its rows would come back
        compact_files(place)


def older_table(table: Table, without: str) -> Table:
    columns = tuple(column for column in table.columns if column.name != without)
    return replace(table, columns=columns, constraints={})


def test_new_columns_and_constraints_come_by_one_commit_that_must_be_first(bucket: str) -> None:
    place, older = f"{bucket}/w/trials", older_table(TRIALS, "credited_log_id")
    create_object_table(place, older)
    delta_files.append_rows(place, arrow_rows([trial(1)], older), "one")
    assert open_table(place).protocol().min_writer_version == WRITER_VERSION
    with pytest.raises(ConflictError, match="another commit became version 1"):
        change_table(place, TRIALS, 0)
    change_table(place, TRIALS, 1)
    opened = open_table(place)
    comments = {field.name: field.metadata for field in opened.schema().fields}
    expected = {column.name: {"comment": column.comment} for column in TRIALS.columns}
    assert comments == expected
    assert opened.metadata().configuration == table_properties(TRIALS)
    assert opened.metadata().description == TRIALS.comment
    assert opened.protocol().min_writer_version == CHECKED_VERSION
    delta_files.append_rows(place, arrow_rows([trial(2)], TRIALS), "two")
    assert read_dataset(place).to_table(columns=["credited_log_id"])["credited_log_id"].null_count == 2
    with pytest.raises(StoreError, match="1 rows failed validation check"):
        delta_files.append_rows(place, arrow_rows([trial(3, "unknown")], TRIALS), "bad")


def test_the_log_knows_the_sizes_of_files(bucket: str, tmp_path: Path) -> None:
    place = f"{bucket}/w/rejects"
    create_object_table(place, REJECTS)
    file = add_rejects(place, "a b%c", "one")
    assert list_files(place, {"split_id": "a b%c"}) == [file]
    sizes = {
        path: known["size_bytes"] for path, known in list_stored_files(open_table(place), place).items()
    }
    assert sizes == {file: objects.measure_files([file])[0]}
    with objects.open_parquet(file) as opened:
        assert opened.read().equals(ROWS)


def test_the_clock_is_that_of_the_storage(bucket: str) -> None:
    before = time.time()
    assert before - 2 <= objects.read_object_clock(f"{bucket}/w") <= time.time() + 2
    assert not list(objects.list_objects(bucket))
