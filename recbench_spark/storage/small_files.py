"""Small data files of tables in object storage: each is fetched whole, once a process, and kept in memory.

A data file of a Delta table never changes, since other content has another name. Arrow alone would fetch
the end of a file and then its columns, and both again for the next question.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import fs

from recbench_spark.storage.object_access import delta_options

if TYPE_CHECKING:
    from deltalake import DeltaTable

FILE_BYTES = 1 << 21
"""Size of a file up to which it is kept; larger ones are read in parts, by column."""

KEPT_BYTES = 1 << 26
"""Bytes of all files that are kept; those that were used longest ago go first."""

_kept: OrderedDict[tuple[str, str], bytes] = OrderedDict()
_lock = threading.Lock()


def open_small_files(table: DeltaTable, place: str) -> fs.FileSystem:
    """Return the file system of an open table of object storage, for `to_pyarrow_dataset`."""
    from deltalake.fs import DeltaStorageHandler  # noqa: PLC0415

    sizes = table._table.get_add_file_sizes()
    handler: Any = DeltaStorageHandler.from_table(table._table, delta_options(place), sizes)
    # Arrow asks the handler for this function by its name.
    handler.open_input_file = partial(_open_file, handler.open_input_file, sizes, place)
    return fs.PyFileSystem(handler)


def _open_file(fetch: Callable[[str], Any], sizes: Mapping[str, int], place: str, path: str) -> Any:
    """Open a file; a small one is fetched whole, unless it is there already."""
    if sizes.get(path, FILE_BYTES + 1) > FILE_BYTES:
        return fetch(path)
    key = (place, path)
    with _lock:
        content = _kept.get(key)
        if content is not None:
            _kept.move_to_end(key)
    if content is None:
        content = fetch(path).read()
        _keep_content(key, content)
    return pa.BufferReader(content)


def _keep_content(key: tuple[str, str], content: bytes) -> None:
    with _lock:
        _kept[key] = content
        held = sum(map(len, _kept.values()))
        while held > KEPT_BYTES:
            held -= len(_kept.popitem(last=False)[1])
