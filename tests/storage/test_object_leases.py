"""Leases on a real S3 server: one owner at a time, whatever the others do, and one after a dead owner."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from recbench_spark.errors import StoreError
from recbench_spark.storage import leases
from recbench_spark.storage.lease_files import ObjectLeaseFiles
from recbench_spark.storage.leases import Lease, hold_lease
from recbench_spark.storage.makers import Maker, this_maker
from recbench_spark.storage.objects import list_objects, write_bytes


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look again soon: nobody waits for another host here."""
    monkeypatch.setattr(ObjectLeaseFiles, "poll_seconds", 0.05)
    monkeypatch.setattr(leases, "TOUCH_SECONDS", 0.1)


def leave_lease(place: str, owner: Maker, epoch: int = 1) -> Lease:
    """Write the lease of an owner that is not at work here."""
    content = json.dumps({**owner.to_json(), "nonce": "n"}).encode()
    lease = Lease(place, epoch, content)
    write_bytes(lease.file, content)
    return lease


def test_one_of_many_runs_works_and_the_others_end_without_a_lease(bucket: str) -> None:
    place, done, owners, said = f"{bucket}/fits/a/work", threading.Event(), list[int](), list[str]()

    def work(number: int) -> bool:
        with hold_lease(place, done.is_set, said.append) as lease:
            if lease is None:
                return False
            owners.append(number)
            lease.require()
            threading.Event().wait(0.5)
            assert owners == [number], "nobody else works meanwhile"
            done.set()
            return True

    with ThreadPoolExecutor(8) as pool:
        worked = list(pool.map(work, range(8)))
    assert sum(worked) == 1 and not list(list_objects(bucket))
    # A run that looked in vain may describe the lease a moment after its owner has ended.
    owner = f"process {this_maker().pid} of host"
    assert len(said) <= 7 and all(owner in line or "owner has just ended" in line for line in said)


def test_an_owner_that_has_ended_is_followed_at_once_and_one_of_another_host_after_its_silence(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, here = f"{bucket}/work", this_maker()
    leave_lease(place, replace(here, began="long ago"))
    with hold_lease(place, lambda: False) as lease:
        assert lease is not None and lease.epoch == 2
    elsewhere = leave_lease(place, replace(here, boot="another machine", host="other"), 3)
    said: list[str] = []
    stop = threading.Event()
    monkeypatch.setattr(leases, "DEAD_SECONDS", 1.5)
    writer = threading.Thread(target=leases._touch_until, args=(elsewhere, (), stop))
    writer.start()
    ended = threading.Timer(2.5, stop.set)
    ended.start()
    with hold_lease(place, lambda: False, said.append) as lease:
        assert stop.is_set(), "the owner was alive until then"
        assert lease is not None and lease.epoch == 4 and "of host other" in said[0]
        with pytest.raises(StoreError, match="another run has taken over"):
            elsewhere.require()
    writer.join()


def test_work_that_is_not_done_is_free_at_once_and_keeps_what_was_left(bucket: str) -> None:
    place = f"{bucket}/work"
    with pytest.raises(OSError, match="gone"), hold_lease(place, lambda: False) as lease:
        assert lease is not None
        write_bytes(f"{place}/left.bin", b"half")
        raise OSError("the host is gone")
    done: list[bool] = []
    with hold_lease(place, lambda: bool(done)) as lease:
        assert lease is not None and lease.epoch == lease.files.find_last_epoch(place) == 2
        assert "left.bin" in list(list_objects(place))
        done.append(True)
    assert not list(list_objects(place))
    with hold_lease(place, lambda: bool(done)) as lease:
        assert lease is None
