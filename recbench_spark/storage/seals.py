"""Seals of folders: each file's length and SHA-256.

A seal is written when all files are complete. So a missing, cut or changed file is detected before any
number is computed from it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from recbench_spark.errors import StoreError
from recbench_spark.storage.makers import PARTIAL
from recbench_spark.storage.uris import is_remote

SEAL = "seal.json"

Entry = tuple[int, str]
"""A file's bytes and SHA-256."""


def digest_file(path: Path) -> str:
    """Return a file's SHA-256.

    The file is read in chunks, without the interpreter's lock.
    """
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def list_files(folder: Path) -> list[str]:
    """List the names of all files below a folder.

    The seal itself is left out, and so are private files: a task running a second time may still write or
    remove them.
    """
    names = (path for path in folder.rglob("*") if path.name != SEAL and path.suffix != PARTIAL)
    files = filter(Path.is_file, names)
    return sorted(path.relative_to(folder).as_posix() for path in files)


def seal_entry(name: str, folder: Path) -> tuple[str, Entry]:
    """Return a file's name with its length and digest."""
    path = folder / name
    return name, (path.stat().st_size, digest_file(path))


def write_seal(folder: Path) -> None:
    """Write a folder's seal, also for the folders below it.

    Every file is read once.
    """
    write_entries(folder, dict(seal_entry(name, folder) for name in list_files(folder)))


def write_entries(folder: Path, entries: Mapping[str, Entry]) -> None:
    """Write a folder's seal from entries computed before."""
    (folder / SEAL).write_text(json.dumps(dict(entries)), encoding="utf-8")


def read_seal(folder: Path | str) -> dict[str, Entry]:
    """Return a folder's seal; empty: it has none.

    Folders on object storage have none.

    Raises:
        StoreError: the seal itself is damaged.
    """
    if is_remote(folder):
        return {}
    folder = Path(folder)
    try:
        entries = json.loads((folder / SEAL).read_text(encoding="utf-8"))
        return {name: cast(Entry, tuple(entry)) for name, entry in entries.items()}
    except FileNotFoundError:
        return {}
    except (OSError, TypeError, ValueError, AttributeError) as error:
        raise StoreError(
            f"{folder / SEAL} cannot be read: {error}", f"remove {folder}: the next run makes it again"
        ) from None


def find_damage(folder: Path | str, *, digests: bool = False, optional: bool = False) -> str:
    """Describe the first difference between a folder and its seal.

    Args:
        folder: a sealed folder.
        digests: compare all bytes, not only their number.
        optional: the folder may lack a seal, as in older versions and on object storage.

    Returns:
        The difference in words; empty if there is none.
    """
    try:
        entries = read_seal(folder)
    except StoreError as error:
        return error.message
    if not entries:
        return "" if optional else f"{folder}/{SEAL} is missing"
    folder = Path(folder)
    damages = (find_file_damage(folder, *entry, digests=digests) for entry in entries.items())
    return next(filter(None, damages), "")


def find_file_damage(folder: Path, name: str, entry: Entry, *, digests: bool) -> str:
    """Describe how a file differs from its seal; empty: none."""
    path, (size, digest) = folder / name, entry
    if not path.is_file():
        return f"{path} is missing"
    if path.stat().st_size != size:
        return f"{path} has {path.stat().st_size:,} bytes, and {size:,} were written"
    if digests and digest_file(path) != digest:
        return f"{path} holds other bytes than were written"
    return ""
