"""Bytes and tables on a real HDFS: one writer of a name, files that appear whole, two drivers at once."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from deltalake import write_deltalake

from recbench_spark.errors import StoreError
from recbench_spark.maintenance.retention import MAX_NIGHT_SECONDS, remove_private_files
from recbench_spark.schemas import REJECTS, TRIALS, arrow_rows
from recbench_spark.sources.digests import read_object_stamps
from recbench_spark.storage import delta_files, hdfs, objects, table_upkeep, uris
from recbench_spark.storage.arrow_store import ArrowStore
from recbench_spark.storage.delta_tables import hold_table, read_dataset
from recbench_spark.storage.object_access import delta_options
from recbench_spark.storage.objects import put_if_absent, read_bytes, write_bytes
from tests.hadoop_cluster import Hadoop
from tests.storage.test_missing_rows import trial
from tests.storage.test_objects import (
    append_from_two_drivers,
    check_one_winner,
    commit_files_once,
    make_trials,
)


def test_of_32_writers_of_one_name_on_hdfs_one_wins(hdfs_place: str) -> None:
    check_one_winner(hdfs_place)


def test_bytes_are_written_read_replaced_listed_copied_and_removed(hdfs_place: str) -> None:
    objects.require_storage(hdfs_place)
    objects.require_conditional_writes(hdfs_place)
    assert read_bytes(f"{hdfs_place}/none") is None and not objects.holds_files(f"{hdfs_place}/none")
    for name in ("é.json", "#1?.json"):
        for content in (b"first", b"second", b""):
            write_bytes(f"{hdfs_place}/a b/{name}", content)
            assert read_bytes(f"{hdfs_place}/a b/{name}") == content
    for name in ("c/d.json", "c-d.json"):
        write_bytes(f"{hdfs_place}/a b/{name}", b"123")
    assert list(objects.list_objects(f"{hdfs_place}/a b")) == [
        *("#1?.json", "c-d.json", "c/d.json", "é.json"),
    ]
    assert objects.list_folders(hdfs_place) == ["a b"]
    names = [f"{hdfs_place}/a b/c/d.json", f"{hdfs_place}/a b/none"]
    assert objects.measure_files(names) == [3, None]
    objects.copy_object(names[0], names[1])
    assert read_bytes(names[1]) == b"123"
    objects.remove_object(names[0])
    assert objects.measure_files(names) == [None, 3]
    objects.remove_objects(f"{hdfs_place}/a b")
    assert objects.list_folders(hdfs_place) == []
    assert abs(objects.read_object_clock(hdfs_place) - time.time()) < 60


def test_no_file_is_below_a_file(hdfs_place: str) -> None:
    """A job looks for the log of a Delta table below what may be a file; HDFS calls the name a refusal."""
    write_bytes(f"{hdfs_place}/rows.parquet", b"1")
    below = f"{hdfs_place}/rows.parquet/_delta_log"
    assert not objects.holds_files(below) and objects.list_folders(below) == []
    assert read_bytes(below) is None and objects.measure_files([below]) == [None]
    objects.remove_object(below)
    objects.remove_objects(below)
    assert list(objects.list_objects(hdfs_place)) == ["rows.parquet"]


def test_a_file_that_is_replaced_has_another_identity(hdfs_place: str) -> None:
    stamps = []
    for content in (b"one", b"two"):
        write_bytes(f"{hdfs_place}/log/part.csv", content)
        stamps.append(read_object_stamps(f"{hdfs_place}/log"))
        time.sleep(0.002)
    assert [list(listed) for listed in stamps] == [[f"{hdfs_place}/log/part.csv"]] * 2
    assert stamps[0] != stamps[1]


def test_after_an_error_nothing_appears_and_large_files_are_whole(hdfs_place: str) -> None:
    with pytest.raises(KeyError), objects.open_output(f"{hdfs_place}/rows") as stream:
        stream.write(bytes(10))
        raise KeyError
    assert list(objects.list_objects(hdfs_place)) == []
    content = np.random.default_rng(0).integers(0, 256, 5 << 20, dtype=np.uint8)
    with objects.open_output(f"{hdfs_place}/large") as stream:
        stream.write(content[:7])
        assert list(objects.list_objects(hdfs_place)) == [], "a draft is listed"
        stream.write(content[7:])
        assert stream.tell() == len(content)
    assert read_bytes(f"{hdfs_place}/large") == content.tobytes()


def test_a_table_is_created_once_and_has_rows_of_tasks_and_of_the_driver(hdfs_place: str) -> None:
    place = make_trials(hdfs_place)
    delta_files.replace_rows(place, arrow_rows([trial(1, "failed")], TRIALS), "trial_id", "t1")
    delta_files.delete_rows(place, "trial_id", ["t2"])
    table_upkeep.compact_files(place)
    table_upkeep.vacuum_files(place, 0)
    assert read_dataset(place).to_table(columns=["trial_id", "status"]).to_pylist() == [
        {"trial_id": "t1", "status": "failed"}
    ]
    assert sum(name.endswith(".parquet") for name in objects.list_objects(place)) == 1


def test_files_of_tasks_are_committed_once_under_their_name(hdfs_place: str) -> None:
    place, _ = commit_files_once(hdfs_place)
    assert read_dataset(place).to_table(columns=["file"])["file"].to_pylist() == ["a", "b"]


def test_a_look_at_a_table_asks_for_its_next_versions_by_name(
    hdfs_place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log is listed by `deltalake` alone, when the table is opened."""
    place = make_trials(hdfs_place)
    for number in range(3, 6):
        delta_files.append_rows(place, arrow_rows([trial(number)], TRIALS), f"trials/{number}")
    monkeypatch.setattr(hdfs.NameNode, "list", None)
    names = [f"{number:020}.json" for number in (2, 3, 4, 5, 0)]
    present = objects.stat_in_turn(f"{place}/_delta_log", names)
    assert [entry.name for entry in present] == names[:3]
    with hold_table(place) as table:
        assert table.version() == 4
    added = arrow_rows([trial(9)], TRIALS)
    write_deltalake(place, added, mode="append", storage_options=delta_options(place))
    with hold_table(place) as again:
        assert again is table and again.version() == 5, "the open table has read the new commit"


def test_tables_have_the_names_that_all_libraries_take_alike(hdfs_place: str) -> None:
    rows = arrow_rows([{"split_id": "s", "file": "a", "line": "1", "reason": "x"}], REJECTS)
    ArrowStore(f"{hdfs_place}/+=~@&'%").append(rows, REJECTS)
    assert ArrowStore(f"{hdfs_place}/+=~@&'%").read_rows(REJECTS) == rows
    for name in ("a b", "a%20b", "é", "{x}", '"', "#h"):
        with pytest.raises(StoreError, match="which tables of Delta cannot have there"):
            ArrowStore(f"{hdfs_place}/{name}")


def test_drafts_of_killed_writers_are_removed_after_a_day(hdfs_place: str) -> None:
    client = hdfs.open_name_node(uris.split_bucket(hdfs_place).root, 10).client
    root = f"{hdfs_place}/w"
    for name in ("metrics/.part.parquet.a1.partial", "fit_files/x/.y.b2.partial", "metrics/part.parquet"):
        with client.create("/" + uris.split_bucket(f"{root}/{name}").key) as writer:
            writer.write(b"123")
    assert list(objects.list_objects(root)) == ["metrics/part.parquet"]
    drafts = [entry.name for entry in objects.list_drafts(root)]
    assert drafts == ["fit_files/x/.y.b2.partial", "metrics/.part.parquet.a1.partial"]
    old = "/" + uris.split_bucket(f"{root}/{drafts[0]}").key
    two_days_ago = int((time.time() - 2 * MAX_NIGHT_SECONDS) * 1000)
    client.set_times(old, two_days_ago, two_days_ago)
    whole = "/" + uris.split_bucket(f"{root}/metrics/part.parquet").key
    client.set_times(whole, two_days_ago, two_days_ago)
    assert remove_private_files(root, time.time() - MAX_NIGHT_SECONDS) == 1
    assert [entry.name for entry in objects.list_drafts(root)] == drafts[1:], "it may be at work"
    assert list(objects.list_objects(root)) == ["metrics/part.parquet"]


def test_two_drivers_append_at_once_and_nothing_is_lost_or_doubled(hdfs_place: str) -> None:
    append_from_two_drivers(hdfs_place)


def test_a_uri_without_a_host_is_that_of_hadoops_settings(
    hdfs_place: str, hdfs_server: Hadoop, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write_bytes(f"{hdfs_place}/x", b"1")
    short = "hdfs://" + hdfs_place.removeprefix(hdfs_server.root)
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    with pytest.raises(StoreError, match=r"names no host, and fs.defaultFS of HADOOP_CONF_DIR="):
        read_bytes(f"{short}/x")
    monkeypatch.setenv("HADOOP_CONF_DIR", str(hdfs_server.settings))
    assert read_bytes(f"{short}/x") == b"1"
    assert not put_if_absent(f"{short}/x", b"2")


def test_in_a_container_of_yarn_the_settings_are_those_that_spark_sent(
    hdfs_place: str, hdfs_server: Hadoop, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write_bytes(f"{hdfs_place}/x", b"1")
    short = "hdfs://" + hdfs_place.removeprefix(hdfs_server.root)
    monkeypatch.setenv("HADOOP_CONF_DIR", "")  # restored at the end
    monkeypatch.delenv("HADOOP_CONF_DIR")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "__spark_conf__").mkdir()
    (tmp_path / "__spark_conf__" / "__hadoop_conf__").symlink_to(hdfs_server.settings)
    assert read_bytes(f"{short}/x") == b"1"
    assert os.environ["HADOOP_CONF_DIR"] == f"{tmp_path}/__spark_conf__/__hadoop_conf__"


def test_a_name_node_that_does_not_answer_is_said(
    hdfs_server: Hadoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "PROBE_SECONDS", 1)
    with pytest.raises(StoreError, match=r"hdfs://127.0.0.1:9 does not answer: Connection refused"):
        objects.require_storage("hdfs://127.0.0.1:9/w")


@pytest.mark.parametrize("variable", ["HADOOP_USER_NAME", "SPARK_USER"])
def test_a_user_without_rights_is_said(hdfs_place: str, variable: str) -> None:
    """The client reads its user when it is opened, so another process asks. Workers have SPARK_USER."""
    write = (
        "from recbench_spark.storage.objects import write_bytes; import sys; write_bytes(sys.argv[1], b'')"
    )
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_USER_NAME")}
    environment[variable] = "nobody_known"
    command = [sys.executable, "-c", write, f"{hdfs_place}/x"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert re.search(
        r"StoreError: hdfs://127.0.0.1:\d+ refuses this user: AccessControlException: Perm", done.stderr
    ), done.stderr
