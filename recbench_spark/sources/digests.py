"""Compute the identity of plain files from their content, not from their path, time or machine.

The identity is a digest over the multiset of all files: partition folders (`k=v`) below the root, the part
of the name that says how the file is read (`.tsv`, compression, MovieLens' names), size, and SHA-256 of the
content. SHA-256 is the fastest digest of `hashlib` on processors that compute it in hardware (1.8 GB a
second and core here, BLAKE2b 0.9). A file is cut into pieces of PIECE bytes, so that many threads or tasks
digest one file; the digest of a file is the SHA-256 of the digests of its pieces.

Digests are cached by device, inode, size, mtime and ctime, so that an unchanged file is not read again.
The cache is in the user's cache directory (XDG_CACHE_HOME, else ~/.cache), one file per host, since device
and inode have a meaning on one host only. It is not in a warehouse, because a log has many warehouses,
and not in a scratch folder, because these are emptied every day. A writer replaces the file as a whole.
A damaged cache, or one that others may write to, is ignored.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from recbench_spark.core.inputs import change_error
from recbench_spark.errors import DataError
from recbench_spark.sources.text_layouts import LAYOUTS
from recbench_spark.storage.objects import open_input
from recbench_spark.storage.publish import read_clock_ns, replace_text
from recbench_spark.storage.shared_arrays import is_private
from recbench_spark.storage.uris import is_hidden

PIECE = 1 << 26
"""Bytes that one thread or task digests at once."""

BUFFER = 1 << 20

MAX_ENTRIES = 100_000
"""Digests that the cache holds at most, some 15 MB; the oldest are removed first."""

SETTLED_NS = 2 * 10**9
"""Age that a file needs before its digest is cached: some storage keeps times to two seconds."""

UNKNOWN_CLOCK_NS = 60 * 10**9
"""Largest assumed difference between this host's clock and that of storage that cannot be written to."""

Piece = tuple[str, int]
"""A file, and the byte at which a piece of it begins."""

DigestPieces = Callable[[Sequence[Piece]], list[bytes]]


class Content(NamedTuple):
    """A file's contribution to an identity.

    Attributes:
        folders: partition folders below the root, joined by `/`.
        name: the part of the file's name that counts.
        size: bytes.
        digest: digest of the content, in hexadecimal digits.
    """

    folders: str
    name: str
    size: int
    digest: str


class Stamp(NamedTuple):
    """State of a file that changes whenever its content does."""

    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int

    @property
    def key(self) -> str:
        """Name of the file's digest in the cache."""
        return "-".join(map(str, self))

    def is_settled(self, clock_ns: int) -> bool:
        """Check whether a later change will show: the last one is older than the clock's resolution.

        A modification time in the future was set by hand; then the ctime says when that was done.
        """
        last = self.ctime_ns if self.mtime_ns > clock_ns else max(self.mtime_ns, self.ctime_ns)
        return last < clock_ns - SETTLED_NS


# ------------------------------------------------------------------------------------- identity


def content_identity(path: str, named: bool = False, digest_pieces: DigestPieces | None = None) -> str:
    """Return the identity of a file, or of all files below a folder. Holds some 100 bytes a file.

    Args:
        path: a file or a folder of this machine.
        named: true if file names count, because they describe the content or the order of files matters.
        digest_pieces: a function that returns the SHA-256 of each piece; None for threads of this process.

    Raises:
        DataError: there are no files, or one changed while it was read.
    """
    root = Path(path)
    files = list_files(root)
    if not files:
        raise DataError(f"no files at {path}", "check the path")
    stamps = {str(file): read_stamp(file) for file in files}
    digests = digest_files(stamps, digest_pieces or digest_in_threads)
    contents = [
        make_content(str(root), str(file), stamps[str(file)].size, digests[str(file)], named)
        for file in files
    ]
    return files_identity(contents)


def make_content(root: str, file: str, size: int, digest: str, named: bool) -> Content:
    """Return a file's contribution to an identity; root and file must be written in the same form."""
    below = file.removeprefix(root).strip("/")
    *parents, name = below.split("/") if below else [Path(file).name]
    folders = "/".join(part for part in parents if "=" in part)
    if named:
        return Content(folders, "/".join([*parents, name]) if below else name, size, digest)
    return Content(folders, format_name(name), size, digest)


def format_name(name: str) -> str:
    """Return the part of a file's name that changes how it is read: separator, layout and compression.

    >>> [format_name(name) for name in ("log.csv", "log.tsv", "part-0.csv.gz", "users.dat")]
    ['', '.tsv', '.gz', 'users.dat']
    """
    packed = re.search(r"\.(gz|bz2|zst|lz4|snappy|deflate|xz)$", name)
    bare = name[: packed.start()] if packed else name
    kind = bare if bare in LAYOUTS and bare != "ratings.csv" else ".tsv" if bare.endswith(".tsv") else ""
    return kind + (packed[0] if packed else "")


def files_identity(files: Iterable[Content]) -> str:
    """Return the identity as text: number of files, bytes, and a digest for any order of files."""
    contents = sorted(files)
    lines = "".join(json.dumps(one) + "\n" for one in contents)
    total = sum(one.size for one in contents)
    return f"content:{len(contents)}:{total}:{hashlib.sha256(lines.encode()).hexdigest()[:32]}"


def list_files(root: Path) -> list[Path]:
    """Return the file, or all files below a folder except hidden ones, as Spark hides them."""
    return list(_walk(root)) if root.is_dir() else [root] if root.is_file() else []


def _walk(root: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(root, followlinks=True):
        folders[:] = [name for name in folders if not is_hidden(name)]
        yield from (Path(folder, name) for name in names if not is_hidden(name))


# ------------------------------------------------------------------------------------- digests


def digest_files(stamps: Mapping[str, Stamp], digest_pieces: DigestPieces) -> dict[str, str]:
    """Return the digest of each file, from the cache where the file is unchanged.

    Raises:
        DataError: a file changed while it was read, or is gone.
    """
    cache = DigestCache()
    cached = cache.read()
    digests = {file: cached[stamp.key] for file, stamp in stamps.items() if stamp.key in cached}
    missing = {file: stamp for file, stamp in stamps.items() if file not in digests}
    if not missing:
        return digests
    clocks = {stamp.device: read_storage_clock(Path(file).parent) for file, stamp in missing.items()}
    digests |= _digest_missing(missing, digest_pieces)
    settled = {
        stamp.key: digests[file]
        for file, stamp in missing.items()
        if stamp.is_settled(clocks[stamp.device])
    }
    cache.add(settled)
    return digests


def _digest_missing(stamps: Mapping[str, Stamp], digest_pieces: DigestPieces) -> dict[str, str]:
    digests = digest_whole_files({file: stamp.size for file, stamp in stamps.items()}, digest_pieces)
    for file, stamp in stamps.items():
        if read_stamp(Path(file)) != stamp:
            raise change_error(file)
    return digests


def digest_whole_files(sizes: Mapping[str, int], digest_pieces: DigestPieces) -> dict[str, str]:
    """Return the digest of each file from its pieces.

    Args:
        sizes: path or URI of a file -> bytes.
        digest_pieces: a function that returns the SHA-256 of each piece.

    Raises:
        DataError: a file cannot be read.
    """
    pieces = [(file, at) for file, size in sizes.items() for at in range(0, max(size, 1), PIECE)]
    try:
        digests = digest_pieces(pieces)
    except OSError as error:
        reason = error.strerror or str(error)
        raise DataError(
            f"{error.filename or pieces[0][0]}: cannot be read: {reason}", "check the file"
        ) from None
    joined: dict[str, list[bytes]] = {}
    for (file, _), digest in zip(pieces, digests, strict=True):
        joined.setdefault(file, []).append(digest)
    return {file: join_digests(some) for file, some in joined.items()}


def join_digests(digests: Iterable[bytes]) -> str:
    """Return the digest of a file, from those of its pieces in order."""
    return hashlib.sha256(b"".join(digests)).hexdigest()


def digest_in_threads(pieces: Sequence[Piece]) -> list[bytes]:
    """Return the SHA-256 of each piece; `hashlib` lets threads run in parallel."""
    with ThreadPoolExecutor(min(len(pieces), os.cpu_count() or 1)) as pool:
        return list(pool.map(digest_piece, pieces))


def digest_piece(piece: Piece) -> bytes:
    """Return the SHA-256 of at most PIECE bytes of a file. Holds BUFFER bytes."""
    path, first = piece
    digest, buffer = hashlib.sha256(), memoryview(bytearray(BUFFER))
    with open_input(path) as file:
        file.seek(first)
        remaining = PIECE
        while remaining and (n := file.readinto(buffer[: min(remaining, BUFFER)])):
            digest.update(buffer[:n])
            remaining -= n
    return digest.digest()


def read_stamp(file: Path) -> Stamp:
    """Return the state of a file. Raise DataError where it no longer exists."""
    try:
        state = file.stat()
    except OSError:
        raise change_error(str(file)) from None
    return Stamp(state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns)


def read_storage_clock(folder: Path) -> int:
    """Return nanoseconds since 1970 by the clock that stamps the files of a folder.

    Where nothing can be written, it is this host's clock minus the largest assumed difference.
    """
    try:
        return read_clock_ns(folder)
    except OSError:
        return time.time_ns() - UNKNOWN_CLOCK_NS


# ------------------------------------------------------------------------------------- cache


class DigestCache:
    """Digests that were computed on this host, by the key of their `Stamp`."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or cache_folder()
        self.file = None if self.folder is None else self.folder / f"digests-{socket.gethostname()}.json"

    def read(self) -> dict[str, str]:
        """Return all digests; empty where there is no cache, or a damaged one."""
        if self.folder is None or self.file is None or not is_private(self.folder):
            return {}
        try:
            return _read_digests(self.file, read_stamp(self.file))
        except (OSError, ValueError, DataError):
            return {}

    def add(self, digests: Mapping[str, str]) -> None:
        """Add digests to the cache. Entries that two writers add at the same time may be lost."""
        if not digests or self.folder is None or self.file is None:
            return
        with suppress(OSError):  # without a cache files are read again, and no number changes
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            all_digests = {**self.read(), **digests}
            newest = dict(list(all_digests.items())[-MAX_ENTRIES:])
            if is_private(self.folder):
                replace_text(self.file, json.dumps(newest))


@lru_cache(maxsize=1)
def _read_digests(file: Path, stamp: Stamp) -> dict[str, str]:
    """Return the content of a cache file, read once as long as its stamp is the same."""
    content = json.loads(file.read_text(encoding="utf-8"))
    entries = content.items() if isinstance(content, dict) else ()
    return {key: value for key, value in entries if re.fullmatch(r"[0-9a-f]{64}", str(value))}


def cache_folder() -> Path | None:
    """Return the project's folder in the user's cache directory; None where the user has no home."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "recbench-spark"
    except RuntimeError:
        return None
