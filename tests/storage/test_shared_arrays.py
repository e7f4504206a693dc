"""Rows that workers map: built once per host, flat lists right whatever their slices and gaps."""

from __future__ import annotations

import itertools
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recbench_spark.errors import DataError, StoreError
from recbench_spark.storage import frame_blocks, scratch, seals, shared_arrays
from recbench_spark.storage.hdfs import prepare_client
from recbench_spark.storage.shared_arrays import SharedRows, flatten_lists
from recbench_spark.storage.uris import arrow_uri, find_hadoop_settings


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host's disk of its own, with nothing mapped yet."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path / 'disk'},/somewhere/else")
    monkeypatch.setattr(shared_arrays, "_open_folders", type(shared_arrays._open_folders)())
    return shared_arrays.host_folder()


def make_rows(tmp_path: Path, key: str, values: list[int]) -> SharedRows:
    files = []
    for n, part in enumerate((values[:2], values[2:])):
        files.append(f"{tmp_path}/{key}-{n}.parquet")
        pq.write_table(pa.table({"x": pa.array(part, pa.int64())}), files[-1])
    return SharedRows(key, tuple(files))


def build(rows, folder: Path) -> None:
    shared_arrays.save_array(folder, "x", rows.to_table().column("x").to_numpy())


def test_rows_become_arrays_built_once(host: Path, tmp_path: Path) -> None:
    built = []

    def count(rows, folder: Path) -> None:
        built.append(folder)
        build(rows, folder)

    shared = make_rows(tmp_path, "k", [3, 1, 2])
    assert shared.arrays(count)["x"].tolist() == [3, 1, 2]
    shared_arrays._open_folders.clear()  # another worker of the same host
    assert shared.arrays(count)["x"].tolist() == [3, 1, 2]
    assert len(built) == 1
    assert (host / "k" / "x.npy").is_file()


def test_workers_at_the_same_time_build_once(host: Path, tmp_path: Path) -> None:
    built = []

    def slow(rows, folder: Path) -> None:
        built.append(folder)
        time.sleep(0.2)
        build(rows, folder)

    shared = make_rows(tmp_path, "k", [1, 2, 3])
    with ThreadPoolExecutor(4) as pool:
        folders = list(pool.map(lambda _: shared.folder(slow), range(4)))
    assert len(built) == 1 and set(folders) == {host / "k"}


def test_a_build_that_fails_leaves_nothing_half_made(host: Path, tmp_path: Path) -> None:
    shared = make_rows(tmp_path, "k", [1, 2, 3])

    def fail(rows, folder: Path) -> None:
        build(rows, folder)
        raise ValueError("disk full")

    with pytest.raises(ValueError, match="disk full"):
        shared.arrays(fail)
    assert not (host / "k").exists()
    assert shared.arrays(build)["x"].tolist() == [1, 2, 3]


def test_a_worker_keeps_few_folders_mapped_the_last_used(host: Path, tmp_path: Path) -> None:
    for n in range(shared_arrays.MAX_MAPPED + 2):
        make_rows(tmp_path, f"k{n}", [n, n]).arrays(build)
    assert list(shared_arrays._open_folders) == [f"k{n}" for n in range(2, shared_arrays.MAX_MAPPED + 2)]


def test_old_folders_go_when_another_is_built_an_hour_later(host: Path, tmp_path: Path) -> None:
    make_rows(tmp_path, "old", [1, 2]).arrays(build)
    past = time.time() - shared_arrays.KEEP_SECONDS - 10
    os.utime(host / "old", (past, past))
    make_rows(tmp_path, "soon", [1, 2]).arrays(build)
    assert (host / "old").exists()
    an_hour_ago = time.time() - shared_arrays.SWEEP_SECONDS - 10
    os.utime(host / shared_arrays.SWEPT, (an_hour_ago, an_hour_ago))
    make_rows(tmp_path, "new", [1, 2]).arrays(build)
    assert {path.name for path in host.iterdir() if path.is_dir()} == {"soon", "new"}


def test_the_folder_is_this_user_s_own(host: Path) -> None:
    assert host.stat().st_mode & 0o077 == 0


def test_large_arrays_are_mapped_read_only(host: Path, tmp_path: Path) -> None:
    def large(rows, folder: Path) -> None:
        array = shared_arrays.create_array(folder, "big", (1 << 14, 2), np.float32)
        array[3, 1] = 7

    big = make_rows(tmp_path, "k", [1, 2]).arrays(large)["big"]
    assert isinstance(big, np.memmap) and not big.flags.writeable
    assert big[3, 1] == 7 and big.sum() == 7


# ------------------------------------------------------------------------------------ flat lists


def check_flat(lists: list[list[int] | None], column: pa.Array) -> None:
    offsets, values = flatten_lists(column)
    assert offsets.dtype == np.int64 and offsets[0] == 0 and len(offsets) == len(lists) + 1
    rows = [values[a:b].tolist() for a, b in itertools.pairwise(offsets)]
    assert rows == [row or [] for row in lists]


LISTS = st.lists(st.none() | st.lists(st.integers(-5, 5), max_size=4), max_size=8)


@given(LISTS, st.integers(0, 4), st.integers(0, 4))
def test_flat_of_slices_with_gaps(lists: list[list[int] | None], start: int, end: int) -> None:
    column = pa.array(lists, pa.list_(pa.int64()))
    stop = max(len(lists) - end, min(start, len(lists)))
    check_flat(lists[start:stop], column[start:stop])


@given(LISTS, LISTS)
def test_flat_of_chunks(one: list[list[int] | None], other: list[list[int] | None]) -> None:
    chunks = [pa.array(lists, pa.list_(pa.int64())) for lists in (one, other)]
    check_flat(one + other, pa.chunked_array(chunks))


def test_values_hidden_under_a_null_do_not_count() -> None:
    """Arrow allows a NULL row to span values; they belong to nobody."""
    column = pa.ListArray.from_arrays(
        pa.array([0, 2, 4, 5], pa.int32()), pa.array([1, 2, 3, 4, 5]), mask=pa.array([False, True, False])
    )
    check_flat([[1, 2], None, [5]], column)


# --------------------------------------------------------------------------------------- names of files


@pytest.mark.parametrize(
    ("hadoop", "arrow"),
    [
        ("s3a://bucket/x.parquet", "s3://bucket/x.parquet"),
        ("s3n://bucket/s3a://x", "s3://bucket/s3a://x"),
        ("dbfs:/Volumes/main/x.parquet", "/Volumes/main/x.parquet"),
        ("dbfs:/tmp/x.parquet", "/dbfs/tmp/x.parquet"),
        ("hdfs://name/x", "hdfs://name/x"),
        ("file:///tmp/x", "/tmp/x"),
        ("file:///tmp/é b/%20", "/tmp/é b/%20"),
    ],
)
def test_files_as_arrow_names_them(hadoop: str, arrow: str) -> None:
    assert arrow_uri(hadoop) == arrow


def test_scratch_may_end_in_a_slash() -> None:
    session: Any = SimpleNamespace(conf={frame_blocks.SETTING: "s3a://bucket/scratch/"})
    assert frame_blocks.base_folder(session) == "s3a://bucket/scratch"
    assert "//" not in scratch.scratch_folder("s3a://bucket/scratch/").removeprefix("s3a://")


@pytest.fixture
def sent_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Folder of Hadoop's settings below a folder that a container of YARN has as its working directory."""
    sent = tmp_path / "__spark_conf__" / "__hadoop_conf__"
    sent.mkdir(parents=True)
    values = "<property><name>fs.defaultFS</name><value>hdfs://name:8020</value></property>"
    (sent / "core-site.xml").write_text(f"<configuration>{values}</configuration>")
    monkeypatch.setenv("HADOOP_CONF_DIR", "")  # so that what the code sets is removed at the end
    monkeypatch.delenv("HADOOP_CONF_DIR")
    return sent


def test_uris_without_a_host_in_containers_of_yarn(
    monkeypatch: pytest.MonkeyPatch, sent_settings: Path
) -> None:
    """Nodes need no HADOOP_CONF_DIR: Spark sends the settings into the working directory."""
    with pytest.raises(StoreError, match="names no host"):
        arrow_uri("hdfs:///x")
    monkeypatch.chdir(sent_settings.parents[1])
    assert arrow_uri("hdfs:///x") == "hdfs://name:8020/x"
    assert os.environ["HADOOP_CONF_DIR"] == str(sent_settings), "libraries read it too"
    monkeypatch.setenv("HADOOP_CONF_DIR", "other")
    assert find_hadoop_settings() == "other"


@pytest.mark.parametrize("user", ["who submitted", "who was named"])
def test_a_client_of_hdfs_in_containers_of_yarn(
    monkeypatch: pytest.MonkeyPatch, sent_settings: Path, user: str
) -> None:
    """It reads both variables when it is opened, whatever the URI."""
    monkeypatch.chdir(sent_settings.parents[1])
    monkeypatch.setenv("SPARK_USER", "who submitted")
    monkeypatch.setenv("HADOOP_USER_NAME", user)
    if user == "who submitted":
        monkeypatch.delenv("HADOOP_USER_NAME")
    assert prepare_client(8)["dfs.client.failover.max.attempts"] == "5"
    assert os.environ["HADOOP_USER_NAME"] == user
    assert os.environ["HADOOP_CONF_DIR"] == str(sent_settings)


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({"SPARK_LOCAL_DIRS": "a,b", "LOCAL_DIRS": "c", "CONTAINER_ID": "1"}, "a"),
        ({"LOCAL_DIRS": "c,d", "CONTAINER_ID": "1"}, "c"),
        ({"LOCAL_DIRS": "c,d"}, "temporary"),
    ],
)
def test_files_of_a_host_lie_where_yarn_removes_them(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], folder: str
) -> None:
    for name in ("SPARK_LOCAL_DIRS", "LOCAL_DIRS", "CONTAINER_ID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(shared_arrays.tempfile, "tempdir", "temporary")
    assert str(shared_arrays.find_local_directory()) == folder


# ------------------------------------------------------------------------------- hostile host users

OTHER_USER = 12345
"""A user id that is not ours; only root can give files away."""

as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can make files of another user")


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory anyone can write to, where nothing of ours is yet."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "disk"))
    monkeypatch.setattr(shared_arrays, "_open_folders", type(shared_arrays._open_folders)())
    (tmp_path / "disk").mkdir(mode=0o777)
    return tmp_path / "disk"


def guessable_name(disk: Path) -> Path:
    """The name that another user can guess."""
    return disk / f"recbench-spark-{os.getuid()}"


def check_own(disk: Path, tmp_path: Path) -> None:
    """Arrays are built somewhere else, in a folder of ours that is closed."""
    folder = shared_arrays.host_folder()
    state = folder.lstat()
    assert folder != guessable_name(disk) and folder.parent == disk
    assert state.st_uid == os.getuid() and state.st_mode & 0o777 == 0o700
    assert make_rows(tmp_path, "k", [3, 1, 2]).arrays(build)["x"].tolist() == [3, 1, 2]
    assert shared_arrays.host_folder() == folder


@as_root
def test_a_folder_that_another_user_prepared_is_not_used(disk: Path, tmp_path: Path) -> None:
    (guessable_name(disk) / "k").mkdir(parents=True)
    np.save(guessable_name(disk) / "k" / "x.npy", np.array([6, 6, 6]))
    seals.write_seal(guessable_name(disk) / "k")
    for path in (guessable_name(disk), guessable_name(disk) / "k", *(guessable_name(disk) / "k").iterdir()):
        os.chown(path, OTHER_USER, OTHER_USER)
    check_own(disk, tmp_path)
    assert (guessable_name(disk) / "k" / "x.npy").exists()


def test_a_folder_that_others_can_write_to_is_not_used(disk: Path, tmp_path: Path) -> None:
    guessable_name(disk).mkdir()
    guessable_name(disk).chmod(0o777)
    check_own(disk, tmp_path)


def test_a_link_in_the_folder_s_place_is_not_followed_and_nothing_behind_it_removed(
    disk: Path, tmp_path: Path
) -> None:
    ours = tmp_path / "ours"
    ours.mkdir(mode=0o700)
    (ours / "thesis").write_text("years of work")
    os.utime(ours / "thesis", (0, 0))
    guessable_name(disk).symlink_to(ours)
    check_own(disk, tmp_path)
    assert (ours / "thesis").read_text() == "years of work"


def test_a_lock_that_is_a_link_is_refused_and_no_lock_is_truncated(host: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("years of work")
    (host / "k.lock").symlink_to(victim)
    with pytest.raises(OSError, match="lock"):
        make_rows(tmp_path, "k", [1, 2]).arrays(build)
    assert victim.read_text() == "years of work"
    (host / "j.lock").write_text("kept")
    make_rows(tmp_path, "j", [1, 2]).arrays(build)
    assert (host / "j.lock").read_text() == "kept"


def test_old_links_go_and_what_they_point_to_stays(host: Path, tmp_path: Path) -> None:
    ours = tmp_path / "ours"
    ours.mkdir()
    (ours / "thesis").write_text("years of work")
    (host / "old").symlink_to(ours)
    os.utime(host / "old", (0, 0), follow_symlinks=False)
    make_rows(tmp_path, "k", [1, 2]).arrays(build)
    assert not (host / "old").is_symlink() and (ours / "thesis").exists()


def spoil_shorter(folder: Path) -> None:
    with (folder / "x.npy").open("r+b") as file:
        file.truncate(130)


def spoil_linked(folder: Path) -> None:
    (folder / "x.npy").rename(folder.parent / "moved.npy")
    (folder / "x.npy").symlink_to(folder.parent / "moved.npy")


def spoil_more(folder: Path) -> None:
    np.save(folder / "y.npy", np.zeros(1))


def spoil_open(folder: Path) -> None:
    folder.chmod(0o777)


def spoil_list(folder: Path) -> None:
    (folder / seals.SEAL).write_text("[]")


def spoil_owner(folder: Path) -> None:
    if os.getuid():
        pytest.skip("only root can make files of another user")
    os.chown(folder / "x.npy", OTHER_USER, OTHER_USER)


@pytest.mark.parametrize(
    "spoil", [spoil_shorter, spoil_linked, spoil_more, spoil_open, spoil_list, spoil_owner]
)
def test_what_is_not_as_it_was_written_is_built_again(host: Path, tmp_path: Path, spoil) -> None:
    shared = make_rows(tmp_path, "k", [3, 1, 2])
    shared.arrays(build)
    spoil(host / "k")
    shared_arrays._open_folders.clear()
    assert shared.arrays(build)["x"].tolist() == [3, 1, 2]
    assert shared_arrays.is_whole(host / "k", digests=True)


def test_bytes_that_changed_at_the_same_length_are_found_by_digest(host: Path, tmp_path: Path) -> None:
    make_rows(tmp_path, "k", [3, 1, 2]).arrays(build)
    np.save(host / "k" / "x.npy", np.array([3, 1, 6]))
    assert shared_arrays.is_whole(host / "k") and not shared_arrays.is_whole(host / "k", digests=True)


def test_every_name_taken_is_said(disk: Path) -> None:
    for n in range(shared_arrays.FOLDER_NAMES):
        Path(f"{guessable_name(disk)}{f'-{n}' if n else ''}").write_text("not a folder")
    with pytest.raises(DataError, match="belong to others"):
        shared_arrays.host_folder()


def test_an_array_of_numpys_own_shape_is_read_again(tmp_path: Path) -> None:
    """Counts of Spark 3.5 by Connect are such numbers, and the header of a file may not hold them."""
    shared_arrays.create_array(tmp_path, "x", (np.int64(3), np.int64(2)), np.float32)[:] = 1
    assert np.load(tmp_path / "x.npy").shape == (3, 2)
