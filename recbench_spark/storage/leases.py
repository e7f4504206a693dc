"""Leases: one owner at a time for work that is too expensive to do twice; after a restart the work goes on.

A lease is a small file (`lease_files`), in a folder or in an object storage. Its number is its epoch. A new
owner makes the next epoch's file by the write that fails where a name is in use, so that only one of
several succeeds. In a folder it renames the work folder of the epoch before: an owner that was only asleep
does not find its folder any more and stops. The owner touches its lease every few seconds. The age of a
lease is measured by the storage's own clock, so that no host's clock counts. An owner is dead after a
minute without a touch, or at once where it has said so, or where this host can prove that the process has
ended.
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from recbench_spark.errors import StoreError
from recbench_spark.storage.lease_files import NOBODY, LeaseFiles, find_work, open_lease_files
from recbench_spark.storage.makers import Maker, this_maker
from recbench_spark.storage.objects import read_bytes
from recbench_spark.storage.publish import remove_tree, rename_folder
from recbench_spark.storage.uris import is_remote

DEAD_SECONDS = 60.0
"""A lease that was not touched for this time belongs to a dead owner."""

TOUCH_SECONDS = 5.0
REPORT_SECONDS = 30.0
"""Seconds between two lines printed while waiting."""

Report = Callable[[str], object]


def print_line(text: str) -> None:
    """Print a line to standard error."""
    print(text, file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Lease:
    """The right to make a target.

    Attributes:
        target: path under which the work is published; or URI of a folder for what owners leave to one
            another, which is removed when the work is done.
        epoch: number of owners so far, this one included.
        content: content of the file: the owner, and a text that no other owner has.
    """

    target: str
    epoch: int
    content: bytes = b""

    @property
    def files(self) -> LeaseFiles:
        """Return how leases of the target are kept."""
        return open_lease_files(self.target)

    @property
    def file(self) -> str:
        """Path or URI of the lease file."""
        return self.files.name(self.target, self.epoch)

    @property
    def work(self) -> Path:
        """Path of the work folder; it may hold checkpoints of an earlier owner."""
        return find_work(self.target, self.epoch)

    def require(self) -> None:
        """Check that this lease is still valid.

        Raises:
            StoreError: a later owner took over, or did the work: this one did nothing for a minute.
        """
        later = replace(self, epoch=self.epoch + 1)
        # A later owner makes its file before it removes this one, so the folder need not be listed.
        if read_bytes(later.file) is not None or read_bytes(self.file) != self.content:
            raise StoreError(
                f"another run has taken over {self.target}: this one was silent for {DEAD_SECONDS:.0f} s",
                "run again: it uses what the other run makes",
            )

    def publish(self) -> None:
        """Rename the work folder, which must hold a file, to the target.

        Raises:
            StoreError: as `require`.
        """
        self.require()
        if not rename_folder(self.work, Path(self.target)):
            remove_tree(self.work)


@contextmanager
def hold_lease(
    target: str | Path, is_done: Callable[[], bool], report: Report = print_line, used: Sequence[Path] = ()
) -> Iterator[Lease | None]:
    """Hold the lease of a target, or wait until another owner has made it.

    Args:
        target: path of the file or folder to make, on a storage that all makers see; or the URI of a folder
            for this lease and what its owners leave to one another.
        is_done: returns whether the target is published and complete, or its result exists elsewhere.
        report: gets a line while this run waits for another one.
        used: files whose times are refreshed as long as the lease is held, so that they count as in use.

    Yields:
        The lease, in a folder with its work folder made; None: another run has made the target.

    Raises:
        StoreError: an object storage does not answer, or refuses.
    """
    lease = _acquire(str(target), is_done, report)
    if lease is None:
        yield None
        return
    try:
        with run_beside(partial(_touch_until, lease, used)):
            yield lease
    finally:
        _release(lease, is_done)


def hold_folder_lease(
    folder: str | None, name: str, is_done: Callable[[], bool]
) -> AbstractContextManager[Lease | None]:
    """Return the lease of a name in a folder of this machine; elsewhere each maker makes its own."""
    return nullcontext() if folder is None or is_remote(folder) else hold_lease(Path(folder, name), is_done)


@contextmanager
def run_beside(work: Callable[[threading.Event], object]) -> Iterator[None]:
    """Run a function in a thread as long as the block lasts; the event that it gets tells it to end."""
    stop = threading.Event()
    thread = threading.Thread(target=work, args=(stop,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@contextmanager
def take_turns(target: Path, report: Report = print_line) -> Iterator[Lease]:
    """Hold the lease of work that leaves no target: a second run waits, and then has its own turn.

    The last run that leaves removes the target's folder.

    Args:
        target: name of the work, in a folder for such names only.
        report: as `hold_lease`.
    """
    ended = list[bool]()
    try:
        with hold_lease(target, lambda: bool(ended), report) as lease:
            assert lease is not None  # no other run ends this turn
            try:
                yield lease
            finally:
                ended.append(True)
    finally:
        with suppress(OSError):  # others are at work, or the next run needs the folder
            target.parent.rmdir()


def _acquire(target: str, is_done: Callable[[], bool], report: Report) -> Lease | None:
    if not is_remote(target):
        Path(target).parent.mkdir(parents=True, exist_ok=True)
    try:
        lease = _wait_for_lease(target, is_done, report)
    except StoreError:
        if is_done():  # its owner removed what was being read
            return None
        raise
    if lease is not None and is_done():  # its owner has published in the meantime
        _release(lease, is_done)
        return None
    if lease is not None and not is_remote(target):
        _open_work(lease)
    return lease


def _wait_for_lease(target: str, is_done: Callable[[], bool], report: Report) -> Lease | None:
    """Return a lease as soon as it is free; None: another owner has done the work."""
    began, reported = time.monotonic(), -REPORT_SECONDS
    while not is_done():
        lease = _try_acquire(target)
        if lease is not None:
            return lease
        if time.monotonic() - reported >= REPORT_SECONDS:
            reported = time.monotonic()
            report(describe_wait(target, reported - began))
        time.sleep(open_lease_files(target).poll_seconds)
    return None


def describe_wait(target: str, seconds: float) -> str:
    """Return a line for a run that waits: for whom, how long so far, and how it goes on.

    The owner's lease is touched by a thread, so it counts as alive even where its work hangs. Nobody but
    the user knows whether it does.
    """
    files = open_lease_files(target)
    owner = _read_owner(files.name(target, max(1, files.find_last_epoch(target))))
    who = f"process {owner.pid} of host {owner.host}" if owner else "whose owner has just ended"
    line = f"another run is making {target.rpartition('/')[2]} ({who}): waiting for it"
    if seconds < REPORT_SECONDS:
        return line
    return (
        f"{line} since {seconds / 60:.1f} minutes; if it hangs, end that process, and this run goes on "
        f"from what it left (after {DEAD_SECONDS:.0f} s where it is on another host)"
    )


def _try_acquire(target: str) -> Lease | None:
    """Take the next epoch, unless a living owner holds the last one."""
    files = open_lease_files(target)
    last = files.find_last_epoch(target)
    if last and not is_dead(files.name(target, last)):
        return None
    content = json.dumps({**this_maker().to_json(), "nonce": uuid.uuid4().hex}).encode()
    lease = Lease(target, last + 1, content)
    if not files.put(lease.file, content):
        return None
    files.take_over(target, lease.epoch)
    return lease


def _open_work(lease: Lease) -> None:
    """Make the work folder; an incomplete or damaged target becomes the work folder."""
    with suppress(FileNotFoundError):
        if not lease.work.exists():
            Path(lease.target).rename(lease.work)
    lease.work.mkdir(exist_ok=True)


def _release(lease: Lease, is_done: Callable[[], bool]) -> None:
    """End the lease. Unfinished work stays for the next owner, and so does the lease's file."""
    done = False
    # `is_done` may use a session that has ended. The error that ended the session is the important one.
    with suppress(Exception):
        done = is_done()
    with suppress(StoreError):  # a lease that nobody touches ends by itself
        if done:
            lease.files.clear(lease.target, lease.epoch)
        else:
            lease.files.end(lease.file)


def _touch_until(lease: Lease, used: Sequence[Path], stop: threading.Event) -> None:
    while not stop.wait(TOUCH_SECONDS):
        with suppress(StoreError):  # after a minute without an answer another owner may take over
            lease.files.touch(lease.file, lease.content)
        for file in used:
            with suppress(OSError):
                os.utime(file)


WHOLE_FILE = "whole"
"""Name of a file in a folder that marks the folder as complete."""


def make_folder_once(target: Path, fill: Callable[[Path], object], report: Report = print_line) -> None:
    """Make a folder once among all runs: one run fills it, the others wait and use it.

    Args:
        target: the folder; it is complete if it holds the file `whole`.
        fill: puts files into the empty folder that it gets.
        report: as `hold_lease`.
    """
    with hold_lease(target, (target / WHOLE_FILE).exists, report) as lease:
        if lease is not None:
            remove_tree(lease.work)
            lease.work.mkdir()
            fill(lease.work)
            (lease.work / WHOLE_FILE).touch()
            lease.publish()


# --------------------------------------------------------------------------------- who holds it


def is_held(target: str | Path) -> bool:
    """Return whether an owner that may be alive is making a target; nobody else may remove its work."""
    files = open_lease_files(str(target))
    last = files.find_last_epoch(str(target))
    return bool(last) and not is_dead(files.name(str(target), last))


def is_held_within(place: str) -> bool:
    """Return whether an owner that may be alive is making a folder, or something inside it.

    Of a folder on object storage the time of the lease inside says it.
    """
    if is_remote(place):
        return False
    folder = Path(place)
    inside = (Path(base, name) for base, _, names in os.walk(folder) for name in names)
    leases = (path for path in inside if (match := LEASE_NAME.fullmatch(path.name)) and match[2] == "lease")
    return is_held(folder) or any(not is_dead(str(path)) for path in leases)


LEASE_NAME = re.compile(r"\.(.+)\.(lease|work)-\d+")
"""Name of a lease or a work folder; the groups are its target's name, and which of the two it is."""


def find_target(path: Path) -> Path | None:
    """Return the target of a lease or a work folder; None: it is neither."""
    match = LEASE_NAME.fullmatch(path.name)
    return path.with_name(match[1]) if match else None


def list_abandoned(place: str) -> dict[Path, list[Path]]:
    """Return leases and work folders in a folder whose owners have ended, by target.

    On object storage they are inside their target.
    """
    if is_remote(place):
        return {}
    targets = _list_targets(Path(place)).items()
    return {target: paths for target, paths in targets if not is_held(target)}


def list_held(folder: Path) -> list[Path]:
    """Return the targets in a folder that an owner who may be alive is making."""
    return [target for target in _list_targets(folder) if is_held(target)]


def _list_targets(folder: Path) -> dict[Path, list[Path]]:
    """Return leases and work folders in a folder, by target."""
    paths_by_target: dict[Path, list[Path]] = {}
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if target := find_target(path):
            paths_by_target.setdefault(target, []).append(path)
    return paths_by_target


def remove_work(target: Path) -> bool:
    """Remove what ended owners left of a target; return False where an owner may be alive.

    The next lease is held meanwhile, so that nobody can take the work over.
    """
    lease = _try_acquire(str(target))
    if lease is None:
        return False
    lease.files.clear(lease.target, lease.epoch)
    return True


def is_dead(file: str, text: bytes | str | None = None) -> bool:
    """Return whether the owner of a lease has ended, or has not touched it for a minute.

    Args:
        file: path or URI of the lease.
        text: the owner's entry in it; None: read the file.
    """
    content = read_bytes(file) if text is None else text
    if content in (None, NOBODY):
        return True
    owner = _parse_owner(content or b"")
    if owner is not None and owner.has_ended():
        return True
    return open_lease_files(file).read_age(file) > DEAD_SECONDS


def _read_owner(file: str) -> Maker | None:
    """Return the owner of a lease; None: nobody holds it any more, or its content is of another form."""
    return _parse_owner(read_bytes(file) or NOBODY)


def _parse_owner(text: bytes | str) -> Maker | None:
    try:
        fields: dict[str, Any] = json.loads(text)
        fields.pop("nonce", None)
        return Maker(**fields)
    except (TypeError, ValueError):
        return None
