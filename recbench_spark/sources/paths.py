"""Check local paths, and tell table names from file names.

No Spark is needed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from recbench_spark.core.inputs import normalise_path
from recbench_spark.errors import DataError, MissingError, nearest
from recbench_spark.storage.local_files import bare_name, is_text, refuse_name
from recbench_spark.storage.uris import is_hidden


def exists(path: str) -> bool:
    """Return whether a local path exists; remote ones pass.

    Spark checks those later.
    """
    local = strip_scheme(path)
    return bool(re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/", local)) or Path(local).exists()


def strip_scheme(path: str) -> str:
    """Return a local path without `file:`; others stay."""
    return normalise_path(path) if path.startswith("file:") else path


def check_path(path: str) -> None:
    """Refuse a local path which is missing or not readable.

    The hint has the nearest name.

    Raises:
        MissingError: the path does not exist.
        DataError: Spark does not read files with this name, or the file has 0 bytes.
    """
    if exists(path):
        refuse_name(path)
        refuse_empty(path)
        return
    missing = Path(path)
    if missing.parent.is_dir():
        hint = nearest(missing.name, [entry.name for entry in missing.parent.iterdir()][:50])
    else:
        hint = f"there is no folder {missing.parent} either"
    raise MissingError(f"no such file or folder: {path}", hint)


def refuse_empty(path: str) -> None:
    """Refuse an empty local file, or a folder of them.

    Spark does not list such files. A folder is searched until a file has a byte.

    Raises:
        DataError: the file or the folder is empty.
    """
    place, hint = Path(path.removeprefix("file://")), "write it again: its writer may have been cut off"
    if place.is_file() and not place.stat().st_size:
        raise DataError(f"{path} is empty: a file of 0 bytes", hint)
    sizes = _list_sizes(place)
    if next(sizes, None) == 0 and not any(sizes):
        raise DataError(f"{path} is empty: a folder of nothing but files of 0 bytes", hint)


def _list_sizes(folder: Path) -> Iterator[int]:
    """Yield each visible file's size below a folder."""
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not is_hidden(name)]
        yield from (Path(place, name).stat().st_size for name in names if not is_hidden(name))


FILE_NAMES = r"(?i).*\.(parquet|arrow|feather|json|jsonl|npy|npz|pkl|xlsx?|zip|zst|lz4)"
"""Names of files that are no text."""


def may_be_table(name: str) -> bool:
    """Return whether a name may be a table's.

    A table's name is `schema.table` or `catalog.schema.table`.

    >>> may_be_table("shop.orders"), may_be_table("orders.csv")
    (True, False)
    """
    is_file = is_text(name) or bare_name(name) != name or re.fullmatch(FILE_NAMES, name)
    return bool(re.fullmatch(r"\w+(\.\w+){1,2}", name)) and not is_file
