"""Identify plain files in object storage, as on a disk.

Equal files have equal identities in both. Each object is read in pieces by ranges (`digests.digest_piece`).
Its digest is cached on this host by address, URI, ETag (and version, if a listing has it) and size, so that
an object that nobody replaced is read once. The storage gives every content another ETag, whatever a clock
says. On HDFS, the time of writing in milliseconds takes its place.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from recbench_spark.core.inputs import change_error
from recbench_spark.errors import DataError
from recbench_spark.sources.digests import (
    DigestCache,
    DigestPieces,
    digest_whole_files,
    files_identity,
    make_content,
)
from recbench_spark.storage.object_access import read_access
from recbench_spark.storage.objects import stat_visible
from recbench_spark.storage.uris import arrow_uri


@dataclass(frozen=True)
class ObjectStamp:
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


def object_identity(place: str, named: bool, digest_pieces: DigestPieces) -> str:
    """Return the identity of an object or a place.

    A place counts with all objects below it. Some 100 bytes are held per object.

    Args:
        place: URI in an object storage.
        named: true if file names count.
        digest_pieces: as for `digests.content_identity`.

    Raises:
        DataError: there are no files, or one changed while it was read.
        StoreError: the storage does not answer, or refuses.
    """
    root = arrow_uri(place).rstrip("/")
    stamps = read_object_stamps(root)
    if not stamps:
        raise DataError(f"no files at {place}", "check the address")
    digests = _digest_objects(root, stamps, digest_pieces)
    contents = [
        make_content(root, file, stamp.size, digests[file], named) for file, stamp in stamps.items()
    ]
    return files_identity(contents)


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
        fresh = digest_whole_files(missing, digest_pieces)
        if read_object_stamps(root) != stamps:
            raise change_error(root)
        cache.add({stamps[file].key: digest for file, digest in fresh.items()})
        digests |= fresh
    return digests
