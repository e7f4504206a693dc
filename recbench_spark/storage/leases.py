"""Leases: expensive work has one owner at a time.

After a restart the next owner goes on where the last one stopped.

A lease is a small file (`lease_files`), in a folder or in an object storage. Its number is its epoch. A new
owner writes the next epoch's file with the write that fails where a name is in use, so of several rivals
one succeeds. In a folder it also renames the earlier epoch's work folder: an owner which was only asleep
misses its folder and stops. The owner touches its lease every few seconds. The storage's own clock measures
a lease's age, so no host's clock counts. An owner is dead after a minute without a touch. It is dead at
once if it has said so, or if this host can prove its process has ended.
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
"""An owner without a touch of its lease for so long is dead."""

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
        target: path where the work is published. Or a folder's URI: owners leave their work there to one
            another, and it is removed when all is done.
        epoch: number of owners so far, this one included.
        content: the file's content: the owner, and a text unlike all other owners'.
    """

    target: str
    epoch: int
    content: bytes = b""

    @property
    def files(self) -> LeaseFiles:
        """Files of this target's leases, in its kind of storage."""
        return open_lease_files(self.target)

    @property
    def file(self) -> str:
        """Path or URI of the lease file."""
        return self.files.name(self.target, self.epoch)

    @property
    def work(self) -> Path:
        """Path of the work folder; it may hold earlier checkpoints."""
        return find_work(self.target, self.epoch)

    def require(self) -> None:
        """Check that this lease is still valid.

        Raises:
            StoreError: a later owner took over or did the work, because this one was silent for a minute.
        """
        later = replace(self, epoch=self.epoch + 1)
        # A later owner makes its file before it removes this one, so nobody has to list the folder.
        if read_bytes(later.file) is not None or read_bytes(self.file) != self.content:
            raise StoreError(
                f"another run has taken over {self.target}: this one was silent for {DEAD_SECONDS:.0f} s",
                "run again: it uses what the other run makes",
            )

    def publish(self) -> None:
        """Rename the work folder to its target.

        The work folder must hold a file.

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
    """Hold a target's lease, or wait for another owner.

    Args:
        target: path of the file or folder to make, on a storage shared by all makers; or a folder's URI,
            for this lease and for what its owners leave to one another.
        is_done: returns True if the target is published and complete, or its result exists elsewhere.
        report: gets a line while this run waits for another one.
        used: files to refresh while the lease is held, so that they count as in use.

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
    """Return a name's lease in a folder of this machine.

    Elsewhere there is no lease, and each maker makes its own.
    """
    return nullcontext() if folder is None or is_remote(folder) else hold_lease(Path(folder, name), is_done)


@contextmanager
def run_beside(work: Callable[[threading.Event], object]) -> Iterator[None]:
    """Run a function in a thread while the block lasts.

    The function gets an event, which tells it to end.
    """
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
    """Hold a lease for work without a target.

    A second run waits, and then has its own turn. The last run to leave removes the target's folder.

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
        if is_done():  # its owner removed the files
            return None
        raise
    if lease is not None and is_done():  # its owner has published in the meantime
        _release(lease, is_done)
        return None
    if lease is not None and not is_remote(target):
        _open_work(lease)
    return lease


def _wait_for_lease(target: str, is_done: Callable[[], bool], report: Report) -> Lease | None:
    """Wait for a free lease; None: the work is done."""
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
    """Describe a wait: for whom, how long so far, and outlook.

    A thread touches the owner's lease, so the owner counts as alive even if its work hangs. Only the user
    can tell.
    """
    files = open_lease_files(target)
    owner = _parse_owner(read_bytes(files.name(target, max(1, files.find_last_epoch(target)))) or NOBODY)
    who = f"process {owner.pid} of host {owner.host}" if owner else "whose owner has just ended"
    line = f"another run is making {target.rpartition('/')[2]} ({who}): waiting for it"
    if seconds < REPORT_SECONDS:
        return line
    return (
        f"{line} since {seconds / 60:.1f} minutes; if it hangs, end that process, and this run goes on "
        f"from what it left (after {DEAD_SECONDS:.0f} s where it is on another host)"
    )


def _try_acquire(target: str) -> Lease | None:
    """Take the next epoch, unless an owner is alive."""
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
    """Make the work folder, perhaps from a damaged target.

    An incomplete or damaged target becomes the work folder.
    """
    with suppress(FileNotFoundError):
        if not lease.work.exists():
            Path(lease.target).rename(lease.work)
    lease.work.mkdir(exist_ok=True)


def _release(lease: Lease, is_done: Callable[[], bool]) -> None:
    """End the lease; unfinished work waits for the next owner.

    The lease's file stays with the work.
    """
    done = False
    # `is_done` may use a session which has ended; the error that ended it is the one to show.
    with suppress(Exception):
        done = is_done()
    with suppress(StoreError):  # without touches a lease ends by itself
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
"""Its presence marks a folder as complete."""


def make_folder_once(target: Path, fill: Callable[[Path], object], report: Report = print_line) -> None:
    """Let one run fill a folder; others wait for it.

    Args:
        target: the folder; it is complete if it holds the file `whole`.
        fill: puts files into the empty folder it gets.
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
    """Check whether a target's owner may be alive.

    Then nobody else may remove its work.
    """
    files = open_lease_files(str(target))
    last = files.find_last_epoch(str(target))
    return bool(last) and not is_dead(files.name(str(target), last))


def is_held_within(place: str) -> bool:
    """Check whether a folder, or something inside, has an owner.

    On object storage the lease lies inside, and its time tells.
    """
    if is_remote(place):
        return False
    folder = Path(place)
    inside = (Path(base, name) for base, _, names in os.walk(folder) for name in names)
    leases = (path for path in inside if (match := LEASE_NAME.fullmatch(path.name)) and match[2] == "lease")
    return is_held(folder) or any(not is_dead(str(path)) for path in leases)


LEASE_NAME = re.compile(r"\.(.+)\.(lease|work)-\d+")
"""Name of a lease or work folder; groups: the target's name, and `lease` or `work`."""


def find_target(path: Path) -> Path | None:
    """Return a lease's or work folder's target, else None."""
    match = LEASE_NAME.fullmatch(path.name)
    return path.with_name(match[1]) if match else None


def list_abandoned(place: str) -> dict[Path, list[Path]]:
    """List ended owners' leases and work folders, by target.

    On object storage they lie inside their target.
    """
    if is_remote(place):
        return {}
    targets = _list_targets(Path(place)).items()
    return {target: paths for target, paths in targets if not is_held(target)}


def list_held(folder: Path) -> list[Path]:
    """List a folder's targets with an owner perhaps alive."""
    return [target for target in _list_targets(folder) if is_held(target)]


def _list_targets(folder: Path) -> dict[Path, list[Path]]:
    """List a folder's leases and work folders, by target."""
    paths_by_target: dict[Path, list[Path]] = {}
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if target := find_target(path):
            paths_by_target.setdefault(target, []).append(path)
    return paths_by_target


def remove_work(target: Path) -> bool:
    """Remove ended owners' work; False: one may be alive.

    This process holds the next lease meanwhile, so nobody can take the work over.
    """
    lease = _try_acquire(str(target))
    if lease is None:
        return False
    lease.files.clear(lease.target, lease.epoch)
    return True


def is_dead(file: str, text: bytes | str | None = None) -> bool:
    """Check whether a lease's owner has ended.

    A minute without a touch counts as an end.

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


def _parse_owner(text: bytes | str) -> Maker | None:
    """Return a lease's owner; None: nobody, or an unknown content."""
    try:
        fields: dict[str, Any] = json.loads(text)
        fields.pop("nonce", None)
        return Maker(**fields)
    except (TypeError, ValueError):
        return None
