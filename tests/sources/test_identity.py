"""Identities of inputs: content decides, both engines give one text, and reads are pinned."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from recbench_spark.config import parse
from recbench_spark.core import inputs
from recbench_spark.core.inputs import pin_inputs, require_unchanged
from recbench_spark.errors import DataError, FallbackToSpark
from recbench_spark.graphs.edges import open_rows
from recbench_spark.sources import arrow_files, columnar, digests
from recbench_spark.sources.digests import DigestCache
from recbench_spark.sources.settings import Dataset

LOG = "user_id,item_id\n1,2\n1,3\n2,2\n"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "recbench-spark"


@pytest.fixture(params=["local", pytest.param("spark", marks=pytest.mark.spark)])
def identify(request: pytest.FixtureRequest) -> Callable[..., str]:
    """The identity of one engine, compared with the other's where that is Spark's."""
    if request.param == "local":
        return lambda path, **more: arrow_files.identity(str(path), **more)
    from recbench_spark.sources.identity import identity

    spark = request.getfixturevalue("spark")

    def both(path: object, **more: Any) -> str:
        text = identity(spark, str(path), **more)
        assert text == arrow_files.identity(str(path), **more)
        return text

    return both


def write(file: Path, text: str = LOG) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def table(*users: str) -> pa.Table:
    return pa.table({"user_id": list(users), "item_id": ["1"] * len(users)})


def delta(path: Path, *users: str, **more: Any) -> Path:
    write_deltalake(path, table(*users), **more)
    return path


# ------------------------------------------------------------------------------------- plain files


def test_one_log_has_one_identity_whatever_its_name_time_and_place(
    identify: Callable[..., str], tmp_path: Path
) -> None:
    one = write(tmp_path / "a b ü" / "log.csv")
    original = identify(one)
    os.utime(one, (1, 1))
    assert identify(one) == original
    shutil.copy(one, tmp_path / "ratings-2026.csv")
    assert identify(tmp_path / "ratings-2026.csv") == original
    write(tmp_path / "a b ü" / "_SUCCESS", "x")
    write(tmp_path / "a b ü" / ".hidden.csv", "x")
    assert identify(tmp_path / "a b ü") == original


def test_other_content_of_equal_size_and_time_is_another(
    identify: Callable[..., str], tmp_path: Path
) -> None:
    edges = write(tmp_path / "edges.csv", "src,dst\n1,2\n")
    before, stat = identify(edges), edges.stat()
    edges.write_text("src,dst\n1,3\n")
    os.utime(edges, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert edges.stat().st_size == stat.st_size and edges.stat().st_mtime_ns == stat.st_mtime_ns
    assert identify(edges) != before


def test_content_of_parquet_counts_and_not_its_footer(identify: Callable[..., str], tmp_path: Path) -> None:
    pq.write_table(table("1", "2"), tmp_path / "a.parquet", compression="none", write_statistics=False)
    changed = bytearray((tmp_path / "a.parquet").read_bytes())
    changed[changed.index(b"\x01\x00\x00\x001") + 4] = ord("7")
    (tmp_path / "b.parquet").write_bytes(changed)
    assert pq.read_table(tmp_path / "b.parquet").column("user_id").to_pylist() == ["7", "2"]
    assert identify(tmp_path / "a.parquet") != identify(tmp_path / "b.parquet")


def test_partition_folders_belong_to_the_identity_and_other_names_only_where_they_count(
    identify: Callable[..., str], tmp_path: Path
) -> None:
    one, two = write(tmp_path / "1" / "day=1" / "a.csv"), write(tmp_path / "2" / "day=2" / "a.csv")
    assert identify(one.parent.parent) != identify(two.parent.parent)
    assert identify(one.parent) == identify(two.parent), "the folder itself is no part of what it holds"
    three = tmp_path / "3"
    for name, text in (("a.csv", LOG), ("b.csv", LOG + "3,3\n")):
        write(three / "x" / name, text)
        write(three / "y" / ("b.csv" if name == "a.csv" else "a.csv"), text)
    assert identify(three / "x") == identify(three / "y")
    assert identify(three / "x", named=True) != identify(three / "y", named=True)


def test_names_that_say_how_a_file_is_read_count(identify: Callable[..., str], tmp_path: Path) -> None:
    names = ("a.csv", "a.tsv", "a.csv.gz", "u.user", "u.item", "users.dat")
    assert len({identify(write(tmp_path / name)) for name in names}) == len(names)


def test_a_file_of_many_pieces(
    identify: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digests, "PIECE", 7)
    one, two = write(tmp_path / "a", "x" * 20), write(tmp_path / "b", "x" * 19 + "y")
    assert identify(one) != identify(two)
    assert identify(tmp_path).startswith("content:2:40:")


def test_no_files(identify: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no files at"):
        identify(tmp_path / "empty")


# ------------------------------------------------------------------------------------- the cache


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that are digested."""
    paths: list[str] = []
    digest = digests.digest_piece

    def digest_and_note(piece: digests.Piece) -> bytes:
        paths.append(piece[0])
        return digest(piece)

    monkeypatch.setattr(digests, "digest_piece", digest_and_note)
    return paths


def settle(monkeypatch: pytest.MonkeyPatch, seconds: float = 10) -> None:
    """Move the storage's clock on."""
    clock = digests.read_storage_clock
    monkeypatch.setattr(digests, "read_storage_clock", lambda folder: clock(folder) + int(seconds * 1e9))


def test_a_settled_file_is_read_once(
    tmp_path: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = write(tmp_path / "log.csv")
    first = arrow_files.identity(str(log))
    assert arrow_files.identity(str(log)) == first
    assert len(reads) == 2, "changed a moment ago: a later change might not show"
    settle(monkeypatch)
    for _ in range(3):
        assert arrow_files.identity(str(log)) == first
    assert len(reads) == 3
    os.utime(log)
    assert arrow_files.identity(str(log)) == first
    assert len(reads) == 4


def test_the_clock_is_that_of_the_storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    before = write(tmp_path / "log.csv").stat().st_mtime_ns
    now = digests.read_storage_clock(tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["log.csv"]
    assert before <= now <= write(tmp_path / "later.csv").stat().st_mtime_ns
    assert digests.read_storage_clock(tmp_path / "missing") == -digests.UNKNOWN_CLOCK_NS


def test_a_time_in_the_future_is_no_reason_to_read_again(
    tmp_path: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = write(tmp_path / "log.csv")
    os.utime(log, (4e9, 4e9))
    settle(monkeypatch)
    assert arrow_files.identity(str(log)) == arrow_files.identity(str(log))
    assert len(reads) == 1


@pytest.mark.parametrize("damage", ["", "[1", "[]", "3", '{"a": 1}', "\x00\xff"])
def test_a_damaged_cache_is_ignored(
    damage: str, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = write(tmp_path / "log.csv")
    settle(monkeypatch)
    first = arrow_files.identity(str(log))
    (file,) = cache.iterdir()
    file.write_text(damage)
    assert arrow_files.identity(str(log)) == first
    assert len(json.loads(file.read_text())) == 1
    file.write_text(json.dumps(dict.fromkeys(json.loads(file.read_text()), "not a digest")))
    assert arrow_files.identity(str(log)) == first


def test_a_cache_that_others_may_write_to_is_ignored(cache: Path) -> None:
    known = {"1-2-3-4-5": "0" * 64}
    DigestCache().add(known)
    assert DigestCache().read() == known
    cache.chmod(0o777)
    assert DigestCache().read() == {}


def test_without_a_place_for_the_cache_files_are_read_again(
    tmp_path: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(write(tmp_path / "a file")))
    log = write(tmp_path / "log.csv")
    settle(monkeypatch)
    assert arrow_files.identity(str(log)) == arrow_files.identity(str(log))
    assert len(reads) == 2


def test_the_oldest_digests_leave_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digests, "MAX_ENTRIES", 2)
    for n in range(3):
        DigestCache().add({str(n): str(n) * 64})
    assert list(DigestCache().read()) == ["1", "2"]


# ------------------------------------------------------------------------------------- Delta


def test_two_tables_at_version_0_are_two(identify: Callable[..., str], tmp_path: Path) -> None:
    assert identify(delta(tmp_path / "2026-01-01", "1")) != identify(delta(tmp_path / "2026-01-02", "2"))


def test_a_table_dropped_and_written_anew_is_another(identify: Callable[..., str], tmp_path: Path) -> None:
    before = identify(delta(tmp_path / "log", "1"))
    shutil.rmtree(tmp_path / "log")
    assert identify(delta(tmp_path / "log", "1")) != before
    after = identify(tmp_path / "log")
    assert identify(delta(tmp_path / "log", "2", mode="overwrite")) != after


def test_a_copy_is_the_same_table_until_one_of_them_goes_on(
    identify: Callable[..., str], tmp_path: Path
) -> None:
    one, two = delta(tmp_path / "one", "1"), tmp_path / "two"
    shutil.copytree(one, two)
    assert identify(one) == identify(two)
    delta(one, "2", mode="append")
    delta(two, "3", mode="append")
    assert DeltaTable(one).version() == DeltaTable(two).version()
    assert identify(one) != identify(two)


def test_comments_do_not_make_another_table(identify: Callable[..., str], tmp_path: Path) -> None:
    before = identify(delta(tmp_path / "log", "1"))
    DeltaTable(tmp_path / "log").alter.set_column_metadata("user_id", {"comment": "who"})
    assert DeltaTable(tmp_path / "log").version() == 1
    assert identify(tmp_path / "log") == before


def test_folders_with_odd_names_are_the_same_to_both_engines(
    identify: Callable[..., str], tmp_path: Path
) -> None:
    rows = pa.table({"user_id": ["1", "2"], "item_id": ["1", "2"], "day": ["x y/z=ü", "a%"]})
    write_deltalake(tmp_path / "a b ü", rows, partition_by=["day"])
    assert identify(tmp_path / "a b ü").startswith("delta:")


def test_a_name_with_file_is_the_same_input(tmp_path: Path) -> None:
    pq.write_table(pa.table({"user_id": ["1"], "item_id": ["2"]}), tmp_path / "log.parquet")
    for path in (delta(tmp_path / "log", "1"), tmp_path / "log.parquet"):
        assert arrow_files.identity(f"file://{path}") == arrow_files.identity(str(path))


def test_an_option_names_its_version(identify: Callable[..., str], tmp_path: Path) -> None:
    first = identify(delta(tmp_path / "log", "1"))
    last = identify(delta(tmp_path / "log", "2", mode="append"))
    assert identify(tmp_path / "log", options={"versionAsOf": "0"}) == first
    assert identify(tmp_path / "log", options={"VERSIONASOF": "1"}) == last != first
    with pytest.raises(FallbackToSpark):
        arrow_files.identity(str(tmp_path / "log"), options={"timestampAsOf": "2026-01-01"})


def test_spark_sees_deleted_rows_times_names_and_remote_files(spark: Any, tmp_path: Path) -> None:
    from recbench_spark.sources import identity as of_spark
    from recbench_spark.sources.delta_snapshots import read_frame_snapshot

    path = str(delta(tmp_path / "log", "1", "2", "3"))
    first = of_spark.identity(spark, path)
    assert read_frame_snapshot(spark.read.format("delta").load(path)).identity == first
    stamp = spark.sql(f"DESCRIBE HISTORY delta.`{path}`").first().timestamp
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.enableDeletionVectors' = true)")
    spark.sql(f"DELETE FROM delta.`{path}` WHERE user_id = '1'")
    deleted = of_spark.identity(spark, path)
    assert deleted != first
    with pytest.raises(FallbackToSpark):
        arrow_files.identity(path)
    spark.sql(f"DELETE FROM delta.`{path}` WHERE user_id = '2'")
    assert of_spark.identity(spark, path) not in (first, deleted)
    assert of_spark.identity(spark, path, options={"timestampAsOf": str(stamp)}) == first

    spark.sql("CREATE SCHEMA IF NOT EXISTS identities")
    spark.sql(f"CREATE TABLE identities.log USING delta LOCATION '{path}'")
    assert of_spark.identity(spark, "identities.log") == of_spark.identity(spark, path)

    folder = tmp_path / "files" / "day=a b"
    write(folder / "a.csv")
    (folder / "b.csv.gz").write_bytes(gzip.compress(LOG.encode()))
    here = of_spark.identity(spark, str(tmp_path / "files"))
    assert of_spark._remote_identity(spark, f"file://{tmp_path}/files", False) == here
    before = of_spark._sign_listing(spark, str(folder))
    write(folder / "a.csv", LOG + "7,7\n")
    assert of_spark._sign_listing(spark, str(folder)) != before


# ------------------------------------------------------------------------------------- pins


def test_what_was_identified_is_what_is_read(tmp_path: Path) -> None:
    path = delta(tmp_path / "log", "1", "2")
    dataset = parse(Dataset, {"name": "d", "reader": "delta", "path": str(path)}, "test")
    with pin_inputs():
        first = arrow_files.identity(str(path))
        delta(path, "3", mode="append")
        assert arrow_files.identity(str(path)) == first
        assert arrow_files.read_table(str(path), ["user_id"], "log").num_rows == 2
        files = columnar.open_columnar_log(dataset)
        assert files is not None and files.n == 2
        assert open_rows(str(path), ["user_id"], "edges").n == 2
        require_unchanged()
    assert arrow_files.identity(str(path)) != first
    assert arrow_files.read_table(str(path), ["user_id"], "log").num_rows == 3


def test_spark_reads_the_version_that_was_identified(spark: Any, tmp_path: Path) -> None:
    from recbench_spark.sources.identity import identity
    from tests.labelled import read_log, read_table

    path = str(delta(tmp_path / "log", "1", "2"))
    spark.sql("CREATE SCHEMA IF NOT EXISTS identities")
    spark.sql(f"CREATE TABLE identities.pinned USING delta LOCATION '{path}'")
    logs = [
        parse(Dataset, {"name": "d", "reader": "delta", "path": place, "options": options}, "test")
        for place, options in ((path, {}), ("identities.pinned", {}), (path, {"versionAsOf": "0"}))
    ]
    delta(Path(path), "3", mode="append")
    with pin_inputs():
        for log in logs:
            identity(spark, str(log.path), options=log.options)
        delta(Path(path), "4", mode="append")
        assert [read_log(spark, log).count() for log in logs] == [3, 3, 2]
        assert read_table(spark, path, ["user_id"], "log").count() == 3
        assert read_table(spark, "identities.pinned", ["user_id"], "log").count() == 3
        require_unchanged()
    assert [read_log(spark, log).count() for log in logs] == [4, 4, 2]


def test_plain_files_that_change_meanwhile_are_refused(tmp_path: Path) -> None:
    log = write(tmp_path / "log.csv")
    with pin_inputs():
        arrow_files.identity(str(log))
        require_unchanged()
        write(log, LOG.replace("3", "4"))
        with pytest.raises(DataError, match=r"log\.csv changed while it was read"):
            require_unchanged()
    require_unchanged()


def test_a_table_that_is_another_meanwhile_is_refused(tmp_path: Path) -> None:
    path = delta(tmp_path / "log", "1")
    with pin_inputs():
        arrow_files.identity(str(path))
        shutil.rmtree(path)
        delta(path, "2")
        with pytest.raises(DataError, match="changed while it was read"):
            require_unchanged()


def test_a_file_that_changes_while_it_is_digested_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, digest = write(tmp_path / "log.csv"), digests.digest_piece

    def digest_slowly(piece: digests.Piece) -> bytes:
        digests_of_piece = digest(piece)
        write(log, LOG + "9,9\n")
        return digests_of_piece

    monkeypatch.setattr(digests, "digest_piece", digest_slowly)
    with pytest.raises(DataError, match="changed while it was read"):
        arrow_files.identity(str(log))


def test_a_job_inside_another_joins_its_pins(tmp_path: Path) -> None:
    path = delta(tmp_path / "log", "1")
    with pin_inputs():
        arrow_files.identity(str(path))
        with pin_inputs():
            assert inputs.find_version(str(path)) == 0
        assert inputs.find_version(f"file://{path}") == 0
    assert inputs.find_version(str(path)) is None
