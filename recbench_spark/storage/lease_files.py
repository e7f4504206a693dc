"""Lease files: their names, times and ends in each storage.

Folders of this machine have them beside the target, object storage within it.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, TypeAlias

from recbench_spark.storage import objects
from recbench_spark.storage.publish import age_seconds, remove_tree, rename_folder
from recbench_spark.storage.uris import is_object_storage, join_uri

NOBODY = b"{}"
"""Content of a lease whose owner ended its work before it was done."""


def find_work(target: str | Path, epoch: int) -> Path:
    """Return an epoch's work folder, beside its local target."""
    return _beside(target, "work", epoch)


def _beside(target: str | Path, kind: str, epoch: int) -> Path:
    path = Path(target)
    return path.with_name(f".{path.name}.{kind}-{epoch:04d}")


class FolderLeaseFiles:
    """Files beside their target: `.NAME.lease-0001`, `.NAME.work-0001` (a folder).

    Attributes:
        poll_seconds: time between two looks at another owner's lease.
    """

    poll_seconds: ClassVar[float] = 0.5

    def name(self, target: str, epoch: int) -> str:
        """Return the path of a lease."""
        return str(_beside(target, "lease", epoch))

    def find_last_epoch(self, target: str) -> int:
        """Return the highest epoch of a target's leases; 0: none."""
        path = Path(target)
        name = re.compile(re.escape(f".{path.name}.lease-") + r"(\d+)")
        try:
            matches = [name.fullmatch(entry) for entry in os.listdir(path.parent)]  # noqa: PTH208 (names)
        except FileNotFoundError:
            return 0
        return max((int(match[1]) for match in matches if match), default=0)

    def put(self, file: str, content: bytes) -> bool:
        """Make a lease; False: another process was faster."""
        try:
            return objects.put_if_absent(file, content)
        except FileNotFoundError:  # the last process in the folder has removed it
            return False

    def touch(self, file: str, content: bytes) -> None:
        """Make a lease young."""
        del content
        with suppress(OSError):  # taken over: `require` says so
            os.utime(file)

    def read_age(self, file: str) -> float:
        """Return the seconds since the last touch; 0: no file."""
        return age_seconds(Path(file))

    def end(self, file: str) -> None:
        """Give a lease the oldest possible time.

        This needs no space on a full disk. Epochs never fall while there is work to do: else a process
        which has just read one could take over from a living owner.
        """
        with suppress(FileNotFoundError):
            os.utime(file, (0, 0))

    def take_over(self, target: str, epoch: int) -> None:
        """Rename dead owners' work, and remove their leases.

        Several owners may have died in between.
        """
        for old in range(epoch - 1, 0, -1):
            with suppress(FileNotFoundError):
                if not rename_folder(find_work(target, old), find_work(target, epoch)):
                    remove_tree(find_work(target, old))
            Path(self.name(target, old)).unlink(missing_ok=True)

    def clear(self, target: str, epoch: int) -> None:
        """Remove a lease and its work folder."""
        remove_tree(find_work(target, epoch))
        Path(self.name(target, epoch)).unlink(missing_ok=True)


class ObjectLeaseFiles:
    """Objects `TARGET/lease-000001.json`, beside the work of all owners.

    A new owner keeps what earlier owners left below the target.
    """

    poll_seconds: ClassVar[float] = 2.0

    def name(self, target: str, epoch: int) -> str:
        """Return the URI of a lease."""
        return join_uri(target, f"lease-{epoch:06d}.json")

    def find_last_epoch(self, target: str) -> int:
        """Return the highest epoch of a target's leases; 0: none."""
        matches = (re.fullmatch(r"lease-(\d{6})\.json", name) for name in objects.list_objects(target))
        return max((int(match[1]) for match in matches if match), default=0)

    def put(self, file: str, content: bytes) -> bool:
        """Make a lease; False: another process was faster."""
        # The answer to this very write may have been lost.
        return objects.put_if_absent(file, content) or objects.read_bytes(file) == content

    def touch(self, file: str, content: bytes) -> None:
        """Write a lease again, unless a later owner removed it."""
        if objects.read_bytes(file) == content:
            objects.write_bytes(file, content)

    def read_age(self, file: str) -> float:
        """Return the seconds since the last write; 0: no object.

        The clock is read first: a slow answer makes the lease look younger, not older.
        """
        folder = file.rpartition("/")[0].rpartition("/")[0]  # its own may be removed meanwhile
        now = objects.read_object_clock(folder)
        entry = next(objects.stat_objects(file), None)
        return 0.0 if entry is None else now - entry.written

    def end(self, file: str) -> None:
        """Leave a lease to the next owner."""
        objects.write_bytes(file, NOBODY)

    def take_over(self, target: str, epoch: int) -> None:
        """Leave all below the target: each owner needs it."""

    def clear(self, target: str, epoch: int) -> None:
        """Remove all below the target."""
        objects.remove_objects(target)


LeaseFiles: TypeAlias = FolderLeaseFiles | ObjectLeaseFiles


def open_lease_files(target: str) -> LeaseFiles:
    """Return the lease files for a target's kind of storage."""
    return ObjectLeaseFiles() if is_object_storage(target) else FolderLeaseFiles()
