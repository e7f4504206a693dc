"""Retention of files of fits on a real S3 server, without a JVM."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime, timedelta

from recbench_spark.maintenance.retention import RetentionRule, find_old_objects, remove_unused_objects
from recbench_spark.storage.objects import list_objects, write_bytes
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


def test_files_of_fits_go_with_their_split_or_when_nothing_writes_to_them(
    s3_server: S3Server, bucket: str
) -> None:
    root, now = f"{bucket}/w/fit_files", time.time()
    for name, days in DAYS_AGO.items():
        write_bytes(f"{root}/{name}", b"1")
        file = s3_server.folder / bucket.removeprefix("s3://") / "w/fit_files" / name
        os.utime(file, (now - days * 86400,) * 2)
    before = (datetime.now(UTC) - timedelta(days=10)).date()
    rule = RetentionRule(frozenset({"s1"}), before, (), now - 86400)
    old = find_old_objects(root, rule)
    assert [place.removeprefix(f"{root}/") for place in old] == [
        "abc",
        "bundles/b1",
        "logs/log1",
        "s2-means",
    ]
    write_bytes(f"{root}/abc/again.npz", b"1")  # a run begins to use it
    remove_unused_objects(old, rule.in_use)
    kept = {"def/fit.json", "def/model.npz", "s1-means/fit.json", "logs/log2/part-0.parquet"}
    used = {f"abc/{name}" for name in ("again.npz", "fit.json", "model.npz")}
    assert set(list_objects(root)) == {*kept, *used, "logs/stray.parquet"}
    assert find_old_objects(root, rule) == []
