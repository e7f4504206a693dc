"""The contract of drivers: a folder, S3, HDFS, and a storage in memory whose driver stands here."""

from __future__ import annotations

import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from obstore.fsspec import FsspecStore
from obstore.store import MemoryStore
from pyarrow import fs

from recbench_spark.errors import StoreError
from recbench_spark.maintenance.retention import (
    RetentionRule,
    find_old_fits,
    remove_folders,
    remove_private_files,
)
from recbench_spark.storage import object_access, objects, uris
from recbench_spark.storage.block_arrays import map_whole, publish_parts, write_part
from recbench_spark.storage.drivers import Driver
from recbench_spark.storage.leases import hold_lease, is_held
from recbench_spark.storage.made_folders import write_once


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> str:
    """A folder of a storage of this process, whose driver is all that the package knows of it."""
    buckets = defaultdict[str, MemoryStore](MemoryStore)

    class MemoryFiles(FsspecStore):
        def _construct_store(self, bucket: str) -> MemoryStore:
            return buckets[bucket]

    driver = Driver(
        lambda root, _: buckets[root.removeprefix("memory://")],
        lambda uri: (
            fs.PyFileSystem(fs.FSSpecHandler(MemoryFiles("s3", skip_instance_cache=True))),
            uri.removeprefix("memory://"),
        ),
        lambda _: {},
        lambda place, text: StoreError(f"{place}: {text}", "is it in memory?"),
    )
    monkeypatch.setitem(object_access.DRIVERS, "memory", driver)
    monkeypatch.setattr(uris, "OBJECT_SCHEMES", {*uris.OBJECT_SCHEMES, "memory"})
    return "memory://bucket/team"


def check_driver(root: str) -> None:
    """Check each verb of a storage."""
    objects.require_storage(root)
    check_bytes(f"{root}/bytes")
    check_rows(f"{root}/rows")
    check_owners(f"{root}/w/fit_files/s9-m")
    check_retention(f"{root}/w")


def check_bytes(place: str) -> None:
    assert objects.read_bytes(f"{place}/a") is None and list(objects.list_objects(place)) == []
    objects.remove_object(f"{place}/a")
    barrier = threading.Barrier(8)

    def put(number: int) -> bool:
        barrier.wait()
        return objects.put_if_absent(f"{place}/log/0.json", b"%d" % number)

    with ThreadPoolExecutor(8) as pool:
        wins = list(pool.map(put, range(8)))
    assert wins.count(True) == 1 and objects.read_bytes(f"{place}/log/0.json") == b"%d" % wins.index(True)
    for name, content in (("b/2", b"22"), ("a", b""), ("b.x/1", b"1"), ("b/10", b"old"), ("b/10", b"333")):
        objects.write_bytes(f"{place}/{name}", content)
    names = ["a", "b.x/1", "b/10", "b/2", "log/0.json"]
    assert list(objects.list_objects(place)) == names, "names have the order of their bytes"
    sizes = {entry.name: entry.size for entry in objects.stat_objects(place)}
    assert sizes == {"a": 0, "b.x/1": 1, "b/10": 3, "b/2": 2, "log/0.json": 1}
    assert [entry.name for entry in objects.stat_objects(f"{place}/b/2")] == [""]
    assert objects.list_folders(place) == ["b", "b.x", "log"]
    assert objects.measure_files([f"{place}/b/10", f"{place}/none"]) == [3, None]
    objects.remove_objects(f"{place}/b")
    objects.remove_object(f"{place}/a")
    objects.remove_objects(f"{place}/none")
    assert list(objects.list_objects(place)) == ["b.x/1", "log/0.json"] and objects.holds_files(place)
    objects.remove_objects(place)
    assert not objects.holds_files(place) and objects.list_folders(place) == []


def check_rows(place: str) -> None:
    rows = pa.table({"user_id": range(1000)})
    objects.write_table(f"{place}/part.parquet", rows)
    with objects.open_parquet(f"{place}/part.parquet") as file:
        assert file.read() == rows
    with objects.open_output(f"{place}/stream") as stream:
        stream.write(b"0123456789")
    with objects.open_input(f"{place}/stream") as opened:
        opened.seek(4)
        assert opened.read(3) == b"456"
    with pytest.raises(FileNotFoundError), objects.open_input(f"{place}/none") as opened:
        opened.read()
    numbers = np.arange(7, dtype="<f4").reshape(7, 1)
    parts = [write_part(f"{place}/array", n, numbers[4 * n : 4 * n + 4], 4 * n) for n in range(2)]
    publish_parts(f"{place}/array", parts, numbers.shape, numbers.dtype)
    assert (map_whole(f"{place}/array") == numbers).all()


def check_owners(target: str) -> None:
    made = list[str]()
    with hold_lease(f"{target}/work", lambda: bool(made)) as lease:
        assert lease is not None and is_held(f"{target}/work")
        lease.require()
        made.append("done")
    assert not is_held(f"{target}/work")

    def write(folder: str) -> None:
        made.append(folder)
        objects.write_bytes(f"{folder}/_SUCCESS", b"")

    first = write_once(f"{target}/once", write)
    assert write_once(f"{target}/once", write) == first and len(made) == 2
    assert objects.read_bytes(f"{first}/_SUCCESS") == b""


def check_retention(root: str) -> None:
    objects.write_bytes(f"{root}/fit_files/s1-m/fit.json", b"{}")
    day = datetime.now(UTC).date()
    kept = RetentionRule(frozenset({"s1", "s9"}), day, (), 1e18)
    gone = RetentionRule(frozenset({"s1"}), date(2100, 1, 1), (), 1e18)
    assert find_old_fits(root, kept) == ()
    old = find_old_fits(root, gone)
    assert old == (f"{root}/fit_files/s9-m",)
    remove_folders(old, 0.0)
    assert find_old_fits(root, gone) == old, "somebody has used them"
    remove_folders(old, 1e18)
    assert find_old_fits(root, gone) == () and remove_private_files(root, 0.0) == 0
    assert list(objects.list_objects(f"{root}/fit_files")) == ["s1-m/fit.json"]


def test_a_folder_keeps_the_contract(tmp_path: Path) -> None:
    check_driver(str(tmp_path))


def test_a_new_driver_is_one_object_and_keeps_the_contract(memory: str) -> None:
    objects.require_conditional_writes(f"{memory}/w")
    check_driver(memory)


def test_s3_keeps_the_contract(bucket: str) -> None:
    check_driver(f"{bucket}/team")


def test_hdfs_keeps_the_contract(hdfs_place: str) -> None:
    check_driver(hdfs_place)
