"""Names of appends in object storage, read once a process.

They are Delta's transaction identifiers. `deltalake` reads the whole log again for each name. A commit
never changes, so this module reads each one once, and the last checkpoint for those before it.
"""

from __future__ import annotations

import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from recbench_spark.storage.objects import open_parquet, read_bytes
from recbench_spark.storage.uris import LOG, arrow_uri, is_object_storage, join_uri

if TYPE_CHECKING:
    from deltalake import DeltaTable


def find_append(table: DeltaTable, place: str, name: str) -> int | None:
    """Return the log's number for an append's name; None: none.

    Args:
        table: the open table.
        place: its folder or URI.
        name: name of the append.

    Raises:
        StoreError: an object storage does not answer, or refuses.
    """
    if not is_object_storage(place):
        return table.transaction_version(name)
    # A table removed and made again has another id.
    key = (os.getpid(), arrow_uri(place), str(table.metadata().id))
    with _lock:
        known = _known.setdefault(key, _KnownNames(place))
    numbers = known.read(table.version())
    return table.transaction_version(name) if numbers is None else numbers.get(name)


class _KnownNames:
    """The names in a table's log up to a version."""

    def __init__(self, place: str) -> None:
        self.log = join_uri(place, LOG)
        self.lock = threading.Lock()
        self.version = -1
        self.numbers: dict[str, int] = {}

    def read(self, version: int) -> dict[str, int] | None:
        """Return each name's number in a version, as a copy.

        None: `deltalake` must look.
        """
        with self.lock:
            if version < self.version or not (self.version >= 0 or self._read_checkpoint(version)):
                return None
            names = [f"{self.log}/{number:020}.json" for number in range(self.version + 1, version + 1)]
            with ThreadPoolExecutor(max_workers=16) as pool:
                commits = list(pool.map(read_bytes, names))
            for commit in commits:
                if commit is None:  # old logs were removed
                    return None
                self._add_commit(commit)
                self.version += 1
            return dict(self.numbers)

    def _add_commit(self, commit: bytes) -> None:
        for line in commit.splitlines():
            if b'"txn"' in line and "txn" in (action := json.loads(line)):
                self.numbers[action["txn"]["appId"]] = action["txn"]["version"]

    def _read_checkpoint(self, version: int) -> bool:
        """Read the last checkpoint's names; False: an unknown form.

        A log without a checkpoint has nothing to read, and is fine.
        """
        pointer = json.loads(read_bytes(f"{self.log}/_last_checkpoint") or b"{}")
        last = pointer.get("version")
        if last is None:
            return True
        if last > version or pointer.get("parts") or pointer.get("v2Checkpoint"):
            return False
        with open_parquet(f"{self.log}/{last:020}.checkpoint.parquet") as file:
            if "txn" in file.schema_arrow.names:
                # Most rows in a checkpoint are files, without a name.
                for action in file.read(["txn"]).column("txn").drop_null().to_pylist():
                    self.numbers[action["appId"]] = action["version"]
        self.version = last
        return True


_known: dict[tuple[int, str, str], _KnownNames] = {}
_lock = threading.Lock()
