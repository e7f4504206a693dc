"""Retention of files of fits on a real S3 server, without a JVM."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime, timedelta

from recbench_spark.maintenance.retention import (
    RetentionRule,
    find_old_folders,
    find_old_graphs,
    find_unused,
    remove_private_files,
)
from recbench_spark.storage.objects import list_objects, refresh_time, remove_objects, write_bytes
from tests.object_storage import S3Server

DAYS_AGO = {
    "abc/fit.json": 40, "abc/model.npz": 40,  # of jobs/benchmark.py
    "def/fit.json": 40, "def/model.npz": 2,  # written to again
    "s1-means/fit.json": 40,  # of a night whose split exists
    "s2-means/fit.json": 40,  # of a split that will be removed
    "logs/log1/part-0.parquet": 40,
    "logs/log2/part-0.parquet": 5,
    "bundles/b1/rows.parquet": 40,
    "logs/stray.parquet": 40,
}  # fmt: skip


def write_at(server: S3Server, bucket: str, folder: str, days_ago: dict[str, int], content: bytes) -> str:
    """Write objects whose times are some days ago; return the URI of their folder."""
    for name, days in days_ago.items():
        write_bytes(f"{bucket}/{folder}/{name}", content)
        file = server.folder / bucket.removeprefix("s3://") / folder / name
        os.utime(file, (time.time() - days * 86400,) * 2)
    return f"{bucket}/{folder}"


def test_files_of_fits_go_with_their_split_or_when_nothing_writes_to_them(
    s3_server: S3Server, bucket: str
) -> None:
    root, now = write_at(s3_server, bucket, "w/fit_files", DAYS_AGO, b"1"), time.time()
    before = (datetime.now(UTC) - timedelta(days=10)).date()
    rule = RetentionRule(frozenset({"s1"}), before, (), now - 86400)
    old = find_old_folders(f"{bucket}/w", "fit_files", 1, rule)
    assert {place.removeprefix(f"{root}/"): size for place, size in old.items()} == {
        "abc": 2, "bundles/b1": 1, "logs/log1": 1, "s2-means": 1,
    }  # fmt: skip
    write_bytes(f"{root}/abc/again.npz", b"1")  # a run begins to use it
    unused = find_unused(old, rule.in_use)
    assert unused == [place for place in old if not place.endswith("/abc")]
    for place in unused:
        remove_objects(place)
    kept = {"def/fit.json", "def/model.npz", "s1-means/fit.json", "logs/log2/part-0.parquet"}
    used = {f"abc/{name}" for name in ("again.npz", "fit.json", "model.npz")}
    assert set(list_objects(root)) == {*kept, *used, "logs/stray.parquet"}
    assert find_old_folders(f"{bucket}/w", "fit_files", 1, rule) == {}


GRAPHS_DAYS_AGO = {
    "s1-aaa-4/12345678901234567890123456789012/graph.json": 40,  # of a split that stays
    "s2-bbb-4/12345678901234567890123456789012/graph.json": 40,  # of a split that is gone
    "ccc-4/12345678901234567890123456789012/graph.json": 40,  # of an edge list that nobody uses
    "ddd-4/current.txt": 40,
    "ddd-4/12345678901234567890123456789012/graph.json": 40,
    "ddd-4/12345678901234567890123456789012/used.txt": 2,  # it was used since
    "eee-4/current.txt": 5,
    "eee-4/12345678901234567890123456789012/graph.json": 5,
    "eee-4/fedcba9876543210fedcba9876543210/src/0.npy": 5,  # of a killed run
    "eee-4/aaaaaaaaaaaaaaaabbbbbbbbbbbbbbbb/src/0.npy": 0,  # of a run at work
    "models/.nnn.a1.partial/vectors/0.npy": 5,  # a search that reads for long may hold it
    "models/.ooo.b2.partial/vectors/0.npy": 40,
    "models/nnn/current.txt": 40,
    "models/nnn/12345678901234567890123456789012/night.json": 40,
    "models/s1-m/12345678901234567890123456789012/night.json": 40,
}  # fmt: skip


def test_files_of_graphs_go_with_their_split_or_when_nobody_uses_them(
    s3_server: S3Server, bucket: str
) -> None:
    private = "12345678901234567890123456789012"
    root = write_at(s3_server, bucket, "w/graph_files", GRAPHS_DAYS_AGO, private.encode())
    before = (datetime.now(UTC) - timedelta(days=10)).date()
    rule = RetentionRule(frozenset({"s1"}), before, (), time.time() - 86400)
    old = find_old_graphs(f"{bucket}/w", rule)
    assert old.folders == ("ccc-4", "models/.ooo.b2.partial", "models/nnn", "s2-bbb-4")
    assert old.size == 5 * len(private)
    assert old.models == ("nnn",)
    assert remove_private_files(f"{bucket}/w", rule.in_use) == 1 + 4, (
        "one beside, four that no current.txt names"
    )
    kept = {name for name in GRAPHS_DAYS_AGO if name.startswith(("eee", "ddd", "models/nnn", "models/."))}
    assert set(list_objects(root)) == kept - {"eee-4/fedcba9876543210fedcba9876543210/src/0.npy"}


def test_a_graph_in_use_is_marked(bucket: str) -> None:
    refresh_time(f"{bucket}/graph_files/g-4/12345678901234567890123456789012/graph.json")
    assert list(list_objects(f"{bucket}/graph_files")) == ["g-4/12345678901234567890123456789012/used.txt"]
