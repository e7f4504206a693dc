"""Storage that is slow, refuses, cuts and loses answers: nothing is lost, doubled or read in part."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from recbench_spark.schemas import TRIALS, arrow_rows
from recbench_spark.storage import delta_files, host_files, objects
from recbench_spark.storage.block_arrays import map_whole
from recbench_spark.storage.delta_tables import open_table, read_dataset
from recbench_spark.storage.objects import (
    list_folders,
    list_objects,
    put_if_absent,
    read_bytes,
    remove_objects,
    require_conditional_writes,
    write_bytes,
)
from recbench_spark.storage.retries import is_delta_conflict, retry_while
from recbench_spark.storage.shared_arrays import host_folder
from recbench_spark.storage.table_folders import create_object_table
from recbench_spark.storage.table_upkeep import compact_files, vacuum_files
from tests.faulty_storage import Faults, Proxy, disturb
from tests.object_storage import S3Server
from tests.storage.test_block_arrays import write_array
from tests.storage.test_missing_rows import trial

BAD_DAY = Faults(delay=0.003, refuse=23, cut=7, lose=5)
"""Much worse than a storage is: one answer of five writes is lost."""


@pytest.fixture
def proxy(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    with disturb(s3_server, BAD_DAY) as running:
        for name, value in running.server.environment.items():
            monkeypatch.setenv(name, value)
        yield running


def append_once(place: str, number: int) -> None:
    """Append one row under its name, as a store does."""
    rows = arrow_rows([trial(number)], TRIALS)
    commit = partial(delta_files.append_rows, place, rows, f"trials/{number}")
    retry_while(is_delta_conflict, "write trials", commit, wait=0.05)


def test_named_appends_of_two_writers_at_once_are_there_once(proxy: Proxy) -> None:
    place = f"s3://{proxy.server.make_bucket()}/trials"
    create_object_table(place, TRIALS)
    with ThreadPoolExecutor(2) as pool:
        for _ in range(2):  # the second time each row is already there
            list(pool.map(partial(append_once, place), range(12)))
    ids = read_dataset(place).to_table(columns=["trial_id"]).column("trial_id").to_pylist()
    assert Counter(ids) == dict.fromkeys((f"t{n}" for n in range(12)), 1)
    assert open_table(place).version() == 12
    assert min(proxy.done[fault] for fault in ("refuse", "cut", "lose")) > 0


def test_rows_are_replaced_deleted_and_compacted_where_answers_are_cut(
    s3_server: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = f"{bucket}/trials"
    create_object_table(place, TRIALS)
    for number in range(3):
        append_once(place, number)
    actions = (
        partial(delta_files.replace_rows, place, arrow_rows([trial(0)], TRIALS), "trial_id", "t0"),
        partial(delta_files.delete_rows, place, "trial_id", ["t1"]),
        partial(compact_files, place),
        partial(vacuum_files, place, 24),
    )
    with disturb(s3_server, Faults(cut=11)) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.server.endpoint)
        for action in actions * 3:
            retry_while(is_delta_conflict, "change trials", action, wait=0.01)
        assert proxy.done["cut"]
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server.endpoint)
    rows = read_dataset(place).to_table(columns=["trial_id"]).column("trial_id").to_pylist()
    assert sorted(rows) == ["t0", "t2"]


def test_a_look_for_conditional_writes_takes_a_lost_answer_for_none(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = f"s3://{s3_server.make_bucket()}"
    with disturb(s3_server, Faults(lose=3)) as proxy:
        for name, value in proxy.server.environment.items():
            monkeypatch.setenv(name, value)
        for n in range(4):
            require_conditional_writes(f"{place}/{n}")
        assert proxy.done["lose"] > 1
    assert not list(list_objects(place))


def drop_copies() -> None:
    """Remove this host's copies, so that objects are fetched."""
    for path in (host_folder() / host_files.COPIES).iterdir():
        path.unlink()


def test_conditional_puts_at_once_have_at_most_one_winner_whose_content_stays(proxy: Proxy) -> None:
    """A lost answer may hide one's own success; a second success never appears."""
    place = f"s3://{proxy.server.make_bucket()}"
    for n in range(10):
        name = f"{place}/log/{n}"
        with ThreadPoolExecutor(4) as pool:
            wins = list(pool.map(lambda k, name=name: put_if_absent(name, str(k).encode()), range(4)))
        winner = read_bytes(name)
        assert sum(wins) <= 1
        assert winner is not None and (True not in wins or str(wins.index(True)).encode() == winner)
    assert proxy.done["lose"]


def test_a_listing_that_is_cut_has_each_object_once(s3_server: S3Server, bucket: str, monkeypatch) -> None:
    names = [f"x/{n}" for n in range(8)] + ["x-1", "y"]
    for name in names:
        write_bytes(f"{bucket}/{name}", b"1")
    write_bytes(f"{bucket}/x/empty", b"")
    monkeypatch.setattr(objects, "LISTED_AT_ONCE", 3)
    with disturb(s3_server, Faults(cut=2)) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.server.endpoint)
        for _ in range(6):
            assert sorted(list_objects(bucket)) == sorted([*names, "x/empty"])
        assert proxy.done["cut"] >= 5
        assert list_folders(bucket) == ["x"]
        remove_objects(f"{bucket}/x")
        assert sorted(list_objects(bucket)) == ["x-1", "y"]


def test_bytes_and_blocks_are_read_whole(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))  # no copy of an earlier test
    place = f"s3://{proxy.server.make_bucket()}"
    for n in range(20):
        content = np.random.default_rng(n).bytes(10_000 * n)
        write_bytes(f"{place}/bytes/{n:02}", content)
        assert read_bytes(f"{place}/bytes/{n:02}") == content
    assert len(list(list_objects(f"{place}/bytes"))) == 20
    array = np.arange(200_000).reshape(-1, 4)
    write_array(f"{place}/blocks", array, [12_500, 25_000, 37_500])
    drop_copies()
    assert map_whole(f"{place}/blocks").tobytes() == array.tobytes()
    assert proxy.done["cut"] and proxy.done["refuse"]
