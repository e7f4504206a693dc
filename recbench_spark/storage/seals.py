"""Seal of a folder: the length and SHA-256 of each file, written when all of them are there.

A file that is missing, cut short or has another byte is recognised before a number is made of it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

from recbench_spark.errors import StoreError

SEAL = "seal.json"


def digest_file(path: Path) -> str:
    """Return the SHA-256 of a file's bytes; read in chunks, without the interpreter's lock."""
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def write_seal(folder: Path) -> None:
    """Write down what is in a folder and the folders below it. Each file is read once."""
    listed = {name: [path.stat().st_size, digest_file(path)] for name, path in _list_files(folder)}
    (folder / SEAL).write_text(json.dumps(listed), encoding="utf-8")


def find_damage(folder: Path, *, digests: bool = False) -> str:
    """Return what differs between a folder and its seal, in words; empty where nothing does.

    Args:
        folder: sealed.
        digests: compare all bytes too, not only their number.
    """
    try:
        listed = dict(json.loads((folder / SEAL).read_text(encoding="utf-8")))
        for name, (size, digest) in listed.items():
            path = folder / name
            if not path.is_file():
                return f"{path} is missing"
            if path.stat().st_size != size:
                return f"{path} has {path.stat().st_size:,} bytes, and {size:,} were written"
            if digests and digest_file(path) != digest:
                return f"{path} holds other bytes than were written"
    except FileNotFoundError:
        return f"{folder / SEAL} is missing"
    except (OSError, TypeError, ValueError) as error:
        return f"{folder / SEAL} cannot be read: {error}"
    return ""


def require_whole(folder: Path, *, digests: bool = False) -> None:
    """Check a folder against its seal.

    Raises:
        StoreError: a file is missing, cut short, or (with digests) has other bytes.
    """
    if damage := find_damage(folder, digests=digests):
        raise StoreError(damage, f"remove {folder}: the next run makes it again")


def _list_files(folder: Path) -> Iterator[tuple[str, Path]]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != SEAL:
            yield path.relative_to(folder).as_posix(), path
