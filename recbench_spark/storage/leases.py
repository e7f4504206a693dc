"""Leases: one owner at a time for work that is too expensive to do twice; after a restart the work goes on.

Beside the target `NAME` there are `.NAME.lease-0001` and the work folder `.NAME.work-0001`. The number is
the lease's epoch. A new owner makes the next epoch's file by exclusive creation, so that only one of
several succeeds, and renames the work folder of the epoch before: an owner that was only asleep does not
find its folder any more and stops. The owner touches its lease every few seconds. The age of a lease is
measured against a file just written to the same storage, so that no host's clock counts. An owner is dead
after a minute without a touch, or at once if this host can prove that the process has ended.
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from recbench_spark.errors import StoreError
from recbench_spark.storage.ages import age_seconds
from recbench_spark.storage.makers import Maker, this_maker
from recbench_spark.storage.publish import remove_tree, rename_folder

DEAD_SECONDS = 60.0
"""A lease that was not touched for this time belongs to a dead owner."""

TOUCH_SECONDS = 5.0
POLL_SECONDS = 0.5
REPORT_SECONDS = 30.0
"""Seconds between two lines printed while waiting."""

Report = Callable[[str], object]

L = TypeVar("L")


def print_line(text: str) -> None:
    """Print a line to standard error."""
    print(text, file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Lease:
    """The right to make a target.

    Attributes:
        target: the name under which the work is published.
        epoch: number of owners so far, this one included.
    """

    target: Path
    epoch: int

    @property
    def file(self) -> Path:
        """Path of the lease file."""
        return self.target.with_name(f".{self.target.name}.lease-{self.epoch:04d}")

    @property
    def work(self) -> Path:
        """Path of the work folder; it may hold checkpoints of an earlier owner."""
        return self.target.with_name(f".{self.target.name}.work-{self.epoch:04d}")

    def require(self) -> None:
        """Check that this lease is still valid.

        Raises:
            StoreError: a later owner took over, since this one did nothing for a minute.
        """
        # A later owner makes its file before it removes this one, so the folder need not be listed.
        if Lease(self.target, self.epoch + 1).file.exists() or not self.file.exists():
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
        if not rename_folder(self.work, self.target):
            remove_tree(self.work)


@contextmanager
def hold_lease(
    target: Path, is_done: Callable[[], bool], report: Report = print_line, used: Sequence[Path] = ()
) -> Iterator[Lease | None]:
    """Hold the lease of a target, or wait until another owner has made it.

    Args:
        target: the file or folder to make; its folder is on a storage that all makers see.
        is_done: returns whether the target is published and complete, or its result exists elsewhere.
        report: gets a line while this run waits for another one.
        used: files whose times are refreshed as long as the lease is held, so that they count as in use.

    Yields:
        The lease, with its work folder made; None: another run has made the target.
    """
    lease = _acquire(target, is_done, report)
    if lease is None:
        yield None
        return
    try:
        with run_beside(partial(_touch_until, (lease.file, *used))):
            yield lease
    finally:
        _release(lease, is_done)


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
def take_turns(target: Path, report: Report = print_line, *, keep_work: bool = False) -> Iterator[Lease]:
    """Hold the lease of work that leaves no target: a second run waits, and then has its own turn.

    The last run that leaves removes the target's folder.

    Args:
        target: name of the work, in a folder for such names only.
        report: as `hold_lease`.
        keep_work: keep the work folder for the next run if this one ends in an error.
    """
    ended = list[bool]()
    try:
        with hold_lease(target, lambda: bool(ended), report) as lease:
            assert lease is not None  # no other run ends this turn
            try:
                yield lease
            except BaseException:
                ended += [] if keep_work else [True]
                raise
            ended.append(True)
    finally:
        with suppress(OSError):  # others are at work, or the next run needs the folder
            target.parent.rmdir()


def _acquire(target: Path, is_done: Callable[[], bool], report: Report) -> Lease | None:
    target.parent.mkdir(parents=True, exist_ok=True)
    lease = wait_for_lease(
        partial(_try_acquire, target), is_done, partial(describe_wait, target), report, POLL_SECONDS
    )
    if lease is not None and is_done():  # its owner has published in the meantime
        _release(lease, is_done)
        return None
    if lease is not None:
        _open_work(lease)
    return lease


def wait_for_lease(
    try_acquire: Callable[[], L | None],
    is_done: Callable[[], bool],
    describe: Callable[[float], str],
    report: Report,
    poll_seconds: float,
) -> L | None:
    """Return a lease as soon as it is free; None: another owner has done the work.

    Args:
        try_acquire: returns the lease; None: a living owner holds it.
        is_done: returns whether the work is done.
        describe: returns a line for a run that has waited for some seconds.
        report: gets that line at once, and then every REPORT_SECONDS.
        poll_seconds: seconds between two attempts.
    """
    began, reported = time.monotonic(), -REPORT_SECONDS
    while not is_done():
        lease = try_acquire()
        if lease is not None:
            return lease
        if time.monotonic() - reported >= REPORT_SECONDS:
            reported = time.monotonic()
            report(describe(reported - began))
        time.sleep(poll_seconds)
    return None


def describe_wait(target: Path, seconds: float) -> str:
    """Return a line for a run that waits: for whom, how long so far, and how it goes on.

    The owner's lease is touched by a thread, so it counts as alive even where its work hangs. Nobody but
    the user knows whether it does.
    """
    line = f"another run is making {target.name} ({_describe_owner(target)}): waiting for it"
    if seconds < REPORT_SECONDS:
        return line
    return (
        f"{line} since {seconds / 60:.1f} minutes; if it hangs, end that process, and this run goes on "
        f"from what it left (after {DEAD_SECONDS:.0f} s where it is on another host)"
    )


def _try_acquire(target: Path) -> Lease | None:
    """Take the next epoch, unless a living owner holds the last one."""
    last = _last_epoch(target)
    if last and not is_dead(Lease(target, last).file):
        return None
    lease = Lease(target, last + 1)
    if not _create(lease.file):
        return None
    if last:
        _take_over(Lease(target, last), lease)
    return lease


def _open_work(lease: Lease) -> None:
    """Make the work folder; an incomplete target becomes the work folder.

    Older versions of the package made targets in place, and damaged ones are made again.
    """
    with suppress(FileNotFoundError):
        if not lease.work.exists():
            lease.target.rename(lease.work)
    lease.work.mkdir(exist_ok=True)


def _create(path: Path) -> bool:
    """Create a lease's file; return False where another process was faster.

    On a full disk the file can be made and its content not; such a file is removed, or all would wait for
    it.
    """
    try:
        handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    except FileExistsError:
        return False
    except FileNotFoundError:  # the last process in the folder has removed it
        path.parent.mkdir(parents=True, exist_ok=True)
        return False
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(this_maker().to_json(), file)
    except OSError:
        path.unlink(missing_ok=True)
        raise
    return True


def _take_over(before: Lease, lease: Lease) -> None:
    """Rename the work of dead owners and remove their leases; several owners may have died in between."""
    for epoch in range(before.epoch, 0, -1):
        old = Lease(lease.target, epoch)
        with suppress(FileNotFoundError):
            if not rename_folder(old.work, lease.work):
                remove_tree(old.work)
        old.file.unlink(missing_ok=True)


def _release(lease: Lease, is_done: Callable[[], bool]) -> None:
    """End the lease. Unfinished work stays for the next owner, and so does the lease's file.

    Epochs never fall while there is work to do: else a process that has just read one could take over from
    a living owner. The file gets the oldest possible time, which needs no space on a full disk.
    """
    done = False
    # `is_done` may use a session that has ended. The error that ended the session is the important one.
    with suppress(Exception):
        done = is_done()
    if done:
        remove_tree(lease.work)
        lease.file.unlink(missing_ok=True)
    else:
        with suppress(FileNotFoundError):
            os.utime(lease.file, (0, 0))


def _touch_until(files: Sequence[Path], stop: threading.Event) -> None:
    while not stop.wait(TOUCH_SECONDS):
        for file in files:
            with suppress(OSError):  # taken over: `require` says so
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


def is_held(target: Path) -> bool:
    """Return whether an owner that may be alive is making a target; nobody else may remove its work."""
    last = _last_epoch(target)
    return bool(last) and not is_dead(Lease(target, last).file)


def is_held_within(folder: Path) -> bool:
    """Return whether an owner that may be alive is making a folder, or something inside it."""
    inside = (Path(base, name) for base, _, names in os.walk(folder) for name in names)
    leases = (path for path in inside if (match := LEASE_NAME.fullmatch(path.name)) and match[2] == "lease")
    return is_held(folder) or any(not is_dead(path) for path in leases)


LEASE_NAME = re.compile(r"\.(.+)\.(lease|work)-\d+")
"""Name of a lease or a work folder; the groups are its target's name, and which of the two it is."""


def find_target(path: Path) -> Path:
    """Return the target of a lease or a work folder."""
    match = LEASE_NAME.fullmatch(path.name)
    assert match is not None
    return path.with_name(match[1])


def list_abandoned(folder: Path) -> dict[Path, list[Path]]:
    """Return leases and work folders in a folder whose owners have ended, by target."""
    return {target: paths for target, paths in _list_targets(folder).items() if not is_held(target)}


def list_held(folder: Path) -> list[Path]:
    """Return the targets in a folder that an owner who may be alive is making."""
    return [target for target in _list_targets(folder) if is_held(target)]


def _list_targets(folder: Path) -> dict[Path, list[Path]]:
    """Return leases and work folders in a folder, by target."""
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    paths_by_target: dict[Path, list[Path]] = {}
    for path in (folder / name for name in names if LEASE_NAME.fullmatch(name)):
        paths_by_target.setdefault(find_target(path), []).append(path)
    return paths_by_target


def remove_work(target: Path) -> bool:
    """Remove what ended owners left of a target; return False where an owner may be alive.

    The next lease is held meanwhile, so that nobody can take the work over.
    """
    lease = _try_acquire(target)
    if lease is None:
        return False
    remove_tree(lease.work)
    lease.file.unlink(missing_ok=True)
    return True


def is_dead(path: Path, text: str | None = None) -> bool:
    """Return whether the owner of a lease has ended, or has not touched it for a minute.

    Args:
        path: path of the lease.
        text: the owner's entry in it; None: read the file.
    """
    owner = _read_owner(path) if text is None else _parse_owner(text)
    if owner is None:
        return True
    return (isinstance(owner, Maker) and owner.has_ended()) or age_seconds(path) > DEAD_SECONDS


def _read_owner(path: Path) -> Maker | str | None:
    """Return the owner of a lease; a text: it is being written; None: nobody holds it any more."""
    try:
        return _parse_owner(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None


def _parse_owner(text: str) -> Maker | str | None:
    try:
        fields: dict[str, Any] = json.loads(text)
        return Maker(**fields) if fields else None
    except (TypeError, ValueError):
        return text


def _describe_owner(target: Path) -> str:
    owner = _read_owner(Lease(target, max(1, _last_epoch(target))).file)
    return f"process {owner.pid} of host {owner.host}" if isinstance(owner, Maker) else "owner unknown"


def _last_epoch(target: Path) -> int:
    """Return the highest epoch of a target's leases; 0 if there is none."""
    name = re.compile(re.escape(f".{target.name}.lease-") + r"(\d+)")
    try:
        matches = [name.fullmatch(entry) for entry in os.listdir(target.parent)]  # noqa: PTH208 (names alone)
    except FileNotFoundError:
        return 0
    return max((int(match[1]) for match in matches if match), default=0)
