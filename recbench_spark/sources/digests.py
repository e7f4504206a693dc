"""Identify plain files by content, not by path or time.

The identity is a digest over the multiset of all files. Each file counts with its partition folders (`k=v`)
below the root, the part of its name that says how to read it (`.tsv`, compression, MovieLens' names), its
size, and its content's SHA-256. No digest in `hashlib` is faster on processors with SHA-256 in hardware
(1.8 GB a second and core here, BLAKE2b 0.9). A file is cut into pieces of PIECE bytes, so that many threads
or tasks digest one file; its digest is the SHA-256 over its pieces' digests.

Digests are cached by device, inode, size, mtime and ctime, so that an unchanged file is not read again. The
cache is in the user's cache directory (XDG_CACHE_HOME, else ~/.cache), one file per host, since device and
inode mean something on one host only. A warehouse is no place for it, because a log has many warehouses,
nor is a scratch folder, which is emptied every day. A writer replaces the whole file. A damaged cache is
ignored, and so is one to which others may write.

Files in object storage have the identity of equal files on a disk. Each object is read in pieces by
ranges. Its digest is cached by address, URI, ETag (and version, if a listing has it) and size, so that an
object that nobody replaced is read once. The storage gives every content another ETag, whatever a clock
says. On HDFS, the time of writing in milliseconds takes its place.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from recbench_spark.core.inputs import change_error
from recbench_spark.errors import DataError
from recbench_spark.sources.text_layouts import LAYOUTS
from recbench_spark.storage.object_access import read_access
from recbench_spark.storage.objects import open_input, stat_visible
from recbench_spark.storage.publish import read_clock_ns, replace_text
from recbench_spark.storage.shared_arrays import is_private
from recbench_spark.storage.uris import arrow_uri, is_hidden, is_remote

PIECE = 1 << 26
"""Bytes which one thread or task digests at once."""

BUFFER = 1 << 20

MAX_ENTRIES = 100_000
"""Largest number of digests in the cache, some 15 MB; the oldest go first."""

SETTLED_NS = 2 * 10**9
"""Age which a file needs before its digest is cached: some storage keeps times to two seconds."""

UNKNOWN_CLOCK_NS = 60 * 10**9
"""Largest assumed difference between this host's clock and that of read-only storage."""

Piece = tuple[str, int]
"""A file, and the byte at which a piece begins."""

DigestPieces = Callable[[Sequence[Piece]], list[bytes]]


class Content(NamedTuple):
    """A file's contribution to an identity.

    Attributes:
        folders: partition folders below the root, joined by `/`.
        name: the part of the file name that counts.
        size: bytes.
        digest: the content's digest, in hexadecimal digits.
    """

    folders: str
    name: str
    size: int
    digest: str


class Stamp(NamedTuple):
    """A file's state, which changes whenever its content does."""

    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int

    @property
    def key(self) -> str:
        """The key of the file's digest in the cache."""
        return "-".join(map(str, self))

    def is_settled(self, clock_ns: int) -> bool:
        """Return whether a later change will show.

        A change will show if the last one is older than the clock's resolution. A modification time in the
        future was set by hand; then the ctime says when that was done.
        """
        last = self.ctime_ns if self.mtime_ns > clock_ns else max(self.mtime_ns, self.ctime_ns)
        return last < clock_ns - SETTLED_NS


class ObjectStamp(NamedTuple):
    """An object's state, which changes whenever its content does.

    Attributes:
        place: URI.
        tag: the storage's ETag and version; its time if the storage has no ETag.
        size: bytes.
    """

    place: str
    tag: str
    size: int

    @property
    def key(self) -> str:
        """The key of the object's digest in the cache."""
        text = json.dumps([read_access(self.place).address, self.place, self.tag, self.size])
        return f"object-{hashlib.sha256(text.encode()).hexdigest()}"


# ------------------------------------------------------------------------------------- identity


def content_identity(path: str, named: bool = False, digest_pieces: DigestPieces | None = None) -> str:
    """Return the identity of a file, folder, object or place.

    Some 100 bytes are held per file.

    Args:
        path: a file or a folder on this machine, or a URI in an object storage, with all objects below it.
        named: true if file names count, because they describe the content or the file order matters.
        digest_pieces: a function that returns each piece's SHA-256; None for threads in this process.

    Raises:
        DataError: there are no files, or one changed while it was read. StoreError: the storage does not
            answer, or refuses.
    """
    digest_pieces = digest_pieces or digest_in_threads
    if is_remote(path):
        root, hint = arrow_uri(path).rstrip("/"), "check the address"
        objects = read_object_stamps(root)
        sizes = {place: stamp.size for place, stamp in objects.items()}
        digests = _digest_objects(root, objects, digest_pieces)
    else:
        root, hint = str(Path(path)), "check the path"
        stamps = {str(file): read_stamp(file) for file in list_files(Path(path))}
        sizes = {file: stamp.size for file, stamp in stamps.items()}
        digests = digest_files(stamps, digest_pieces)
    if not sizes:
        raise DataError(f"no files at {path}", hint)
    return files_identity(make_content(root, file, n, digests[file], named) for file, n in sizes.items())


def make_content(root: str, file: str, size: int, digest: str, named: bool) -> Content:
    """Return a file's contribution to an identity.

    Root and file must be written in the same form.
    """
    below = file.removeprefix(root).strip("/")
    *parents, name = below.split("/") if below else [Path(file).name]
    folders = "/".join(part for part in parents if "=" in part)
    if named:
        return Content(folders, "/".join([*parents, name]) if below else name, size, digest)
    return Content(folders, format_name(name), size, digest)


def format_name(name: str) -> str:
    """Return what a file name says about reading the file.

    The name tells separator, layout and compression.

    >>> [format_name(name) for name in ("log.csv", "log.tsv", "part-0.csv.gz", "users.dat")]
    ['', '.tsv', '.gz', 'users.dat']
    """
    packed = re.search(r"\.(gz|bz2|zst|lz4|snappy|deflate|xz)$", name)
    bare = name[: packed.start()] if packed else name
    kind = bare if bare in LAYOUTS and bare != "ratings.csv" else ".tsv" if bare.endswith(".tsv") else ""
    return kind + (packed[0] if packed else "")


def files_identity(files: Iterable[Content]) -> str:
    """Return the identity: number of files, bytes, and a digest.

    The order of files does not matter.
    """
    contents = sorted(files)
    lines = "".join(json.dumps(one) + "\n" for one in contents)
    total = sum(one.size for one in contents)
    return f"content:{len(contents)}:{total}:{hashlib.sha256(lines.encode()).hexdigest()[:32]}"


def list_files(root: Path) -> list[Path]:
    """Return the file, or the visible files below a folder.

    Files are hidden as in Spark.
    """
    files = [root] if root.is_file() else []
    for folder, folders, names in os.walk(root, followlinks=True):
        folders[:] = [name for name in folders if not is_hidden(name)]
        files += [Path(folder, name) for name in names if not is_hidden(name)]
    return files


# ------------------------------------------------------------------------------------- digests


def digest_files(stamps: Mapping[str, Stamp], digest_pieces: DigestPieces) -> dict[str, str]:
    """Return each file's digest, from the cache if unchanged.

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
    digests |= _digest_whole({file: stamp.size for file, stamp in missing.items()}, digest_pieces)
    for file, stamp in missing.items():
        if read_stamp(Path(file)) != stamp:
            raise change_error(file)
    settled = (file for file, stamp in missing.items() if stamp.is_settled(clocks[stamp.device]))
    cache.add({missing[file].key: digests[file] for file in settled})
    return digests


def read_object_stamps(root: str) -> dict[str, ObjectStamp]:
    """Return the present state of a place's visible objects.

    Spark hides the others.
    """
    entries = stat_visible(root).items()
    return {place: ObjectStamp(place, entry.tag, entry.size) for place, entry in entries}


def _digest_objects(
    root: str, stamps: dict[str, ObjectStamp], digest_pieces: DigestPieces
) -> dict[str, str]:
    """Return each object's digest, cached if unchanged. Raises DataError."""
    cache = DigestCache()
    cached = cache.read()
    digests = {file: cached[stamp.key] for file, stamp in stamps.items() if stamp.key in cached}
    missing = {file: stamp.size for file, stamp in stamps.items() if file not in digests}
    if missing:
        fresh = _digest_whole(missing, digest_pieces)
        if read_object_stamps(root) != stamps:
            raise change_error(root)
        cache.add({stamps[file].key: digest for file, digest in fresh.items()})
        digests |= fresh
    return digests


def _digest_whole(sizes: Mapping[str, int], digest_pieces: DigestPieces) -> dict[str, str]:
    """Return each file's digest from its pieces.

    Args:
        sizes: a file's path or URI -> bytes.
        digest_pieces: a function that returns each piece's SHA-256.

    Raises:
        DataError: a file cannot be read.
    """
    pieces = [(file, at) for file, size in sizes.items() for at in range(0, max(size, 1), PIECE)]
    try:
        digests = digest_pieces(pieces)
    except OSError as error:
        message = f"{error.filename or pieces[0][0]}: cannot be read: {error.strerror or error}"
        raise DataError(message, "check the file") from None
    joined: dict[str, list[bytes]] = {}
    for (file, _), digest in zip(pieces, digests, strict=True):
        joined.setdefault(file, []).append(digest)
    return {file: hashlib.sha256(b"".join(some)).hexdigest() for file, some in joined.items()}


def digest_in_threads(pieces: Sequence[Piece]) -> list[bytes]:
    """Return each piece's SHA-256; `hashlib` lets threads run in parallel."""
    with ThreadPoolExecutor(min(len(pieces), os.cpu_count() or 1)) as pool:
        return list(pool.map(digest_piece, pieces))


def digest_piece(piece: Piece) -> bytes:
    """Return the SHA-256 of one piece. Holds BUFFER bytes."""
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
    """Return a file's state. Raise DataError if it is gone."""
    try:
        state = file.stat()
    except OSError:
        raise change_error(str(file)) from None
    return Stamp(state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns)


def read_storage_clock(folder: Path) -> int:
    """Return nanoseconds since 1970 by a folder's storage clock.

    For read-only storage, it is this host's clock minus the largest assumed difference.
    """
    try:
        return read_clock_ns(folder)
    except OSError:
        return time.time_ns() - UNKNOWN_CLOCK_NS


# ------------------------------------------------------------------------------------- cache


class DigestCache:
    """This host's stored digests, by the key of their `Stamp`."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or cache_folder()
        self.file = None if self.folder is None else self.folder / f"digests-{socket.gethostname()}.json"

    def read(self) -> dict[str, str]:
        """Return all digests; none from a missing or damaged cache."""
        if self.folder is None or self.file is None or not is_private(self.folder):
            return {}
        try:
            return _read_digests(self.file, read_stamp(self.file))
        except (OSError, ValueError, DataError):
            return {}

    def add(self, digests: Mapping[str, str]) -> None:
        """Add digests to the cache.

        If two writers add entries at the same time, some may be lost.
        """
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
    """Return a cache file's content, read again after changes only."""
    content = json.loads(file.read_text(encoding="utf-8"))
    entries = content.items() if isinstance(content, dict) else ()
    return {key: value for key, value in entries if re.fullmatch(r"[0-9a-f]{64}", str(value))}


def cache_folder() -> Path | None:
    """Return our folder in the user's cache directory, if any.

    None: the user has no home.
    """
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "recbench-spark"
    except RuntimeError:
        return None
