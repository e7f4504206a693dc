"""Leases in an object storage: one owner at a time among hosts that share no folder.

A lease is a folder of objects `lease-000001.json`. The number is its epoch, as in `leases`: a new owner
makes the next epoch's object by the write that fails where a name is in use, so that only one of several
succeeds. The owner writes its object again every few seconds, and its age is measured by the storage's own
clock. An owner is dead after a minute without a write, or at once where it has said so, or where this host
can prove that the process has ended.
"""

from __future__ import annotations

import json
import re
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from recbench_spark.errors import StoreError
from recbench_spark.storage.leases import (
    DEAD_SECONDS,
    REPORT_SECONDS,
    TOUCH_SECONDS,
    Report,
    print_line,
    run_beside,
    wait_for_lease,
)
from recbench_spark.storage.makers import Maker, this_maker
from recbench_spark.storage.objects import (
    list_objects,
    put_if_absent,
    read_bytes,
    read_object_clock,
    remove_objects,
    stat_objects,
    write_bytes,
)
from recbench_spark.storage.uris import join_uri

POLL_SECONDS = 2.0
"""Seconds between two looks at the lease of another owner."""

NAME = re.compile(r"lease-(\d{6})\.json")


@dataclass(frozen=True)
class ObjectLease:
    """The right to do some work.

    Attributes:
        place: URI of the folder of the lease's objects.
        epoch: number of owners so far, this one included.
        content: content of the object: the owner, and a text that no other owner has.
    """

    place: str
    epoch: int
    content: bytes = b""

    @property
    def name(self) -> str:
        """URI of the object."""
        return join_uri(self.place, f"lease-{self.epoch:06d}.json")

    def require(self) -> None:
        """Check that this lease is still valid.

        Raises:
            StoreError: a later owner took over, or did the work: this one was silent for a minute.
        """
        if find_last_epoch(self.place) != self.epoch or read_bytes(self.name) != self.content:
            raise StoreError(
                f"another run has taken over {self.place} or done its work: this one was silent too long",
                "run again: it uses what the other run makes",
            )


@contextmanager
def hold_object_lease(
    place: str, is_done: Callable[[], bool], report: Report = print_line
) -> Iterator[ObjectLease | None]:
    """Hold the lease of some work, or wait until another owner has done it.

    Args:
        place: URI of a folder for this lease and what its owners leave to one another. It is removed when
            the work is done.
        is_done: returns whether the work is done.
        report: gets a line while this run waits for another one.

    Yields:
        The lease; None: another run has done the work.

    Raises:
        StoreError: the storage does not answer, or refuses.
    """
    lease = _acquire(place, is_done, report)
    if lease is None:
        yield None
        return
    try:
        with run_beside(partial(_write_until, lease)):
            yield lease
    finally:
        _release(lease, is_done)


def find_last_epoch(place: str) -> int:
    """Return the highest epoch of a lease; 0 if there is none."""
    matches = map(NAME.fullmatch, list_objects(place))
    return max((int(match[1]) for match in matches if match), default=0)


def _acquire(place: str, is_done: Callable[[], bool], report: Report) -> ObjectLease | None:
    try:
        lease = wait_for_lease(
            partial(_try_acquire, place), is_done, partial(_describe_wait, place), report, POLL_SECONDS
        )
    except StoreError:
        if is_done():  # its owner removed what was being read
            return None
        raise
    if lease is not None and is_done():  # its owner has ended in the meantime
        _release(lease, is_done)
        return None
    return lease


def _describe_wait(place: str, seconds: float) -> str:
    owner = _read_owner(ObjectLease(place, find_last_epoch(place)))
    who = f"process {owner.pid} of host {owner.host}" if owner else "whose owner has just ended"
    since = f" since {seconds / 60:.1f} minutes" if seconds >= REPORT_SECONDS else ""
    return f"another run is at work on {place} ({who}): waiting for it{since}"


def _try_acquire(place: str) -> ObjectLease | None:
    """Take the next epoch, unless a living owner holds the last one."""
    last = find_last_epoch(place)
    if last and not is_dead(ObjectLease(place, last)):
        return None
    fields = {"owner": this_maker().to_json(), "nonce": uuid.uuid4().hex}
    lease = ObjectLease(place, last + 1, json.dumps(fields).encode())
    if put_if_absent(lease.name, lease.content):
        return lease
    # The answer to this very write may have been lost.
    return lease if read_bytes(lease.name) == lease.content else None


def is_dead(lease: ObjectLease) -> bool:
    """Return whether the owner of a lease has ended, or has not written to it for a minute.

    The clock is read first: a slow answer to the other requests makes the lease look younger, not older.
    """
    parent = lease.place.rpartition("/")[0]  # the folder of the lease may be removed meanwhile
    now = read_object_clock(parent)
    entry = next(stat_objects(lease.name), None)
    if entry is None:
        return True
    owner = _read_owner(lease)
    if owner is None or owner.has_ended():
        return True
    return now - entry.written > DEAD_SECONDS


def _read_owner(lease: ObjectLease) -> Maker | None:
    """Return the owner of a lease; None: nobody holds it any more."""
    fields: dict[str, Any] = json.loads(read_bytes(lease.name) or b"{}")
    return Maker(**fields["owner"]) if fields else None


def _write_until(lease: ObjectLease, stop: threading.Event) -> None:
    while not stop.wait(TOUCH_SECONDS):
        with suppress(StoreError):  # after a minute without an answer another owner may take over
            if read_bytes(lease.name) != lease.content:
                return  # a later owner has done the work and removed the folder
            write_bytes(lease.name, lease.content)


def _release(lease: ObjectLease, is_done: Callable[[], bool]) -> None:
    """End the lease. What was left for the next owner stays until the work is done."""
    done = False
    with suppress(Exception):  # the session may have ended; its error is the important one
        done = is_done()
    with suppress(StoreError):  # a lease that nobody writes to ends by itself
        if done:
            remove_objects(lease.place)
        else:
            write_bytes(lease.name, b"{}")
