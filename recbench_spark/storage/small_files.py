"""Small data files of tables in object storage: each is fetched whole, once a process, and kept in memory.

A data file of a Delta table never changes, since other content has another name. Arrow alone would fetch
the end of a file and then its columns, and both again for the next question. Only `delta_tables` imports
this module, and late, because its classes need `deltalake`.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.fs import DeltaStorageHandler
from pyarrow import fs

from recbench_spark.storage.object_access import delta_options

FILE_BYTES = 1 << 21
"""Size of a file up to which it is kept; larger ones are read in parts, by column."""

KEPT_BYTES = 1 << 26
"""Bytes of all files that are kept; those that were used longest ago go first."""

_kept: OrderedDict[tuple[str, str], bytes] = OrderedDict()
_lock = threading.Lock()


class SmallFiles(DeltaStorageHandler):
    """Files of a table as Arrow reads them; `place` and `sizes`: URI of the table, bytes by path."""

    place = ""
    sizes: dict[str, int] = {}  # noqa: RUF012 (each handler gets its own)

    def open_input_file(self, path: str) -> Any:
        """Open a file; a small one is fetched whole, unless it is there already."""
        if self.sizes.get(path, FILE_BYTES + 1) > FILE_BYTES:
            return super().open_input_file(path)
        key = (self.place, path)
        with _lock:
            content = _kept.get(key)
            if content is not None:
                _kept.move_to_end(key)
        if content is None:
            content = super().open_input_file(path).read()
            _keep_content(key, content)
        return pa.BufferReader(content)


def _keep_content(key: tuple[str, str], content: bytes) -> None:
    with _lock:
        _kept[key] = content
        held = sum(map(len, _kept.values()))
        while held > KEPT_BYTES:
            held -= len(_kept.popitem(last=False)[1])


def open_small_files(table: DeltaTable, place: str) -> fs.FileSystem:
    """Return the file system of an open table of object storage, for `to_pyarrow_dataset`."""
    sizes = table._table.get_add_file_sizes()
    files = SmallFiles.from_table(table._table, delta_options(place), sizes)
    assert isinstance(files, SmallFiles)
    files.place, files.sizes = place, sizes
    return fs.PyFileSystem(files)
