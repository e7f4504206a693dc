"""Bytes on any storage: read, written, listed, removed.

Some writes must fail where a name is in use. Arrow reads and writes, but has no such write. So on object
storage it goes through obstore (the library with which `deltalake` commits), in folders it is a hard link,
and on HDFS a rename.
"""

from __future__ import annotations

import io
import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from recbench_spark.errors import StoreError
from recbench_spark.storage import object_access, uris
from recbench_spark.storage.drivers import CUT_ATTEMPTS, FolderTree, is_cut_answer, repeat_if_cut
from recbench_spark.storage.makers import private_name
from recbench_spark.storage.publish import local_path, publish_file, replace_bytes

if TYPE_CHECKING:
    from obstore import ObjectMeta

LISTED_AT_ONCE = 1000
"""Objects in one listing, as many as S3 lists by a request."""

PROBE_SECONDS = 10
"""Longest time for all attempts at a mere test request: does the storage answer?"""


def write_bytes(place: str, content: bytes) -> None:
    """Write a file atomically, on any storage Arrow knows.

    A second attempt replaces the file. On remote storage one write is one object, which is atomic by
    itself.

    Raises:
        StoreError: an object storage does not answer, or refuses.
    """
    path = uris.arrow_uri(place)
    if not uris.is_remote(path):
        replace_bytes(Path(path), content)
        return
    with open_output(place) as stream:
        stream.write(content)


def write_table(place: str, rows: pa.Table) -> None:
    """Write a Parquet file as `write_bytes`."""
    buffer = pa.BufferOutputStream()
    pq.write_table(rows, buffer)
    write_bytes(place, buffer.getvalue().to_pybytes())


def write_text(place: str | Path, text: str) -> None:
    """Write a UTF-8 text file atomically, replacing an existing one."""
    write_bytes(str(place), text.encode())


def read_bytes(place: str) -> bytes | None:
    """Return a file's bytes; None: no file.

    Raises:
        StoreError: an object storage does not answer, or refuses.
    """
    try:
        with object_access.explain_arrow(place):
            system, path = object_access.open_filesystem(place)
            with system.open_input_stream(path) as stream:
                return bytes(stream.read())
    except FileNotFoundError:
        return None


def put_if_absent(place: str, content: bytes) -> bool:
    """Write a whole file under an unused name.

    Returns:
        False where the name was in use (one writer of several succeeds): the file there stays. After a lost
        answer the name may be in use by this very write, so the content must tell its owner.

    Raises:
        StoreError: the storage does not answer, refuses, or has no such write.
    """
    if not uris.is_remote(place):
        return publish_file(local_path(place), lambda path: path.write_bytes(content))
    if not uris.is_object_storage(place):
        raise StoreError(
            f"{place}: no write that fails where a name is in use is known for {uris.read_scheme(place)}://",
            "use a shared folder, or s3://, gs://, abfss://, hdfs://",
        )
    from obstore.exceptions import AlreadyExistsError, PreconditionError  # noqa: PLC0415

    with object_access.open_store(place) as (store, key):
        try:
            store.put(key, content, mode="create", use_multipart=False)
        except (AlreadyExistsError, PreconditionError):
            return False
    return True


def list_objects(place: str) -> Iterator[str]:
    """Yield all files' names below a place, in order.

    Names are relative to the place. A thousand are held at a time. An object without bytes costs a request.

    Raises:
        StoreError: the storage does not answer, or refuses.
    """
    with object_access.open_store(place) as (store, key):
        for entry in _list_entries(store, key):
            yield entry["path"].removeprefix(f"{key}/")


def _list_entries(store: Any, key: str) -> Iterator[ObjectMeta]:
    """Yield the objects below a key, without folder marks.

    After a cut answer the listing goes on behind the last object.
    """
    last: str | None = None
    cuts = 0
    while True:
        try:
            for entry in _list_after(store, key, last):
                last, cuts = entry["path"], 0
                yield entry
        except Exception as error:
            cuts += 1
            if cuts == CUT_ATTEMPTS or not is_cut_answer(error):
                raise
            time.sleep(0.1 * 2**cuts)
        else:
            return


def _list_after(store: Any, key: str, last: str | None) -> Iterator[ObjectMeta]:
    """Yield the objects behind a name, without folder marks.

    S3's console and Hadoop mark a folder by an object without bytes whose name ends in a slash. obstore
    lists it without the slash, and sees no object under that name.
    """
    for chunk in store.list(key or None, offset=last, chunk_size=LISTED_AT_ONCE):
        for entry in chunk:
            if not entry["size"]:
                try:
                    store.head(entry["path"])
                except FileNotFoundError:
                    continue
            yield entry


def holds_files(place: str) -> bool:
    """Check whether a path exists, or a URI has objects."""
    if uris.is_object_storage(place):
        return next(list_objects(place), None) is not None
    return local_path(place).exists()


class StoredObject(NamedTuple):
    """An object as a listing shows it.

    Attributes:
        name: name below the listed place; empty: the place is this object.
        size: bytes.
        tag: the content's ETag and version; the time of the write where the storage has no ETag.
        written: time of the write in seconds since 1970, by the storage's clock.
    """

    name: str
    size: int
    tag: str
    written: float


def stat_objects(place: str) -> Iterator[StoredObject]:
    """Yield the file itself, or all files below a place.

    Objects come in order, from any storage. A thousand are held at a time. An object without bytes costs a
    request.

    Raises:
        StoreError: the storage does not answer, or refuses.
    """
    with object_access.open_store(place) as (store, key):
        if key:
            with suppress(FileNotFoundError):
                yield _describe_object("", store.head(key))
                return
        for entry in _list_entries(store, key):
            yield _describe_object(entry["path"].removeprefix(f"{key}/"), entry)


def stat_visible(place: str) -> dict[str, StoredObject]:
    """Return the objects visible to Spark, by URI.

    The objects are the one named, or all below the place in order. Some 100 bytes an object are held.
    Raises StoreError as `stat_objects`.
    """
    root = uris.arrow_uri(place).rstrip("/")
    visible = (one for one in stat_objects(root) if not any(map(uris.is_hidden, one.name.split("/"))))
    return {uris.join_uri(root, one.name) if one.name else root: one for one in visible}


def list_behind(place: str, name: str) -> list[StoredObject]:
    """Return the objects behind a name, in order; at most 1000.

    Raises:
        StoreError: the storage does not answer, or refuses.
    """
    with object_access.open_store(place) as (store, key):
        first = uris.join_uri(key, name)
        page: Sequence[ObjectMeta] = repeat_if_cut(
            lambda: next(iter(store.list(key, offset=first, chunk_size=LISTED_AT_ONCE)), [])
        )
    return [_describe_object(entry["path"].removeprefix(f"{key}/"), entry) for entry in page]


def stat_in_turn(place: str, names: Iterable[str]) -> list[StoredObject]:
    """Return the objects of these names, up to a missing one.

    Names are below the place. Each object costs a request, so the length of a listing does not matter.

    Raises:
        StoreError: the storage does not answer, or refuses.
    """
    present: list[StoredObject] = []
    with object_access.open_store(place) as (store, key):
        for name in names:
            ask = partial(store.head, uris.join_uri(key, name))
            try:
                present.append(_describe_object(name, repeat_if_cut(ask)))
            except FileNotFoundError:
                break
    return present


def list_drafts(place: str) -> Iterator[StoredObject]:
    """Yield the private files below a place.

    The writers of such files are at work or were killed; a bucket has none. Raises StoreError as
    `list_objects`.
    """
    with object_access.open_store(place) as (store, key):
        for entry in store.list_drafts(key) if isinstance(store, FolderTree) else ():
            yield _describe_object(entry["path"].removeprefix(f"{key}/"), entry)


def _describe_object(name: str, entry: Any) -> StoredObject:
    tags = [entry["e_tag"], entry["version"]]
    tag = json.dumps(tags) if tags[0] else entry["last_modified"].isoformat()
    return StoredObject(name, entry["size"], tag, entry["last_modified"].timestamp())


def list_folders(place: str) -> list[str]:
    """Return the folders directly below a place, in order.

    Folders are given as names; a missing place has none. On object storage they are the first parts of
    longer names. Raises StoreError as `list_objects`.
    """
    if not uris.is_remote(place):
        folder = local_path(place)
        return sorted(entry.name for entry in folder.iterdir() if entry.is_dir()) if folder.is_dir() else []
    with object_access.open_store(place) as (store, key):
        listed = repeat_if_cut(lambda: store.list_with_delimiter(key or None))
    return sorted(prefix.rstrip("/").rsplit("/", 1)[-1] for prefix in listed["common_prefixes"])


USE_MARK = "used.txt"
"""Object written where a run uses the files beside it."""


def refresh_time(place: str) -> None:
    """Refresh a file's time: retention keeps what was used lately.

    An object cannot be touched: on object storage an object beside it is written anew.
    """
    if uris.is_remote(place):
        with suppress(StoreError):  # others may only read the warehouse
            write_bytes(uris.join_uri(place.rpartition("/")[0], USE_MARK), b"\n")
    elif Path(place).is_file():
        os.utime(place)


def copy_object(place: str, target: str) -> None:
    """Copy an object within its bucket, replacing the target.

    The storage itself does it.

    Raises:
        StoreError: the storage does not answer, or refuses.
    """
    with object_access.open_store(place) as (store, key):
        store.copy(key, uris.split_bucket(target).key)


def remove_object(place: str) -> None:
    """Remove a file, if it exists; StoreError as `list_objects`."""
    with object_access.open_store(place) as (store, key):
        store.delete(key)


def remove_objects(place: str) -> None:
    """Remove a file, or all below a place.

    A missing file is no error. A folder vanishes as a whole, and objects a thousand by a request. Raises
    StoreError as `list_objects`.
    """
    with object_access.open_store(place) as (store, key):
        repeat_if_cut(partial(_remove_listed, store, key))


def _remove_listed(store: Any, key: str) -> None:
    if isinstance(store, FolderTree):
        store.delete_folder(key)
        return
    for chunk in store.list(key or None, chunk_size=LISTED_AT_ONCE):
        store.delete([entry["path"] for entry in chunk])


@contextmanager
def open_output(place: str) -> Iterator[pa.NativeFile]:
    """Open a new file for writing; its folder is made.

    On object storage it appears whole at the end of the block, and not at all where the block ends in an
    error. On other storage an error leaves an incomplete file. So the caller gives it its own name, and
    names it in a log afterwards.

    Raises:
        StoreError: an object storage does not answer, or refuses.
    """
    if not uris.is_remote(place):
        path = local_path(place)
        path.parent.mkdir(parents=True, exist_ok=True)
        with pa.OSFile(str(path), "wb") as stream:
            yield stream
        return
    if uris.is_object_storage(place):
        output = object_access.ObjectOutput(place)
        try:
            yield pa.PythonFile(output, mode="w")
        except BaseException as error:
            output.writer.__exit__(type(error), error, error.__traceback__)
            raise
        with object_access.explain_storage(place):
            output.writer.close()
        return
    system, name = object_access.open_filesystem(place)
    system.create_dir(str(Path(name).parent), recursive=True)
    with system.open_output_stream(name) as stream:
        yield stream


@contextmanager
def open_input(place: str) -> Iterator[io.RawIOBase | pa.NativeFile]:
    """Open a file to read at any position, unbuffered.

    Raises:
        StoreError: an object storage does not answer, or refuses, here or while the block reads.
    """
    if not uris.is_remote(place):
        with local_path(place).open("rb", buffering=0) as file:
            yield file
        return
    with object_access.explain_arrow(place):
        system, name = object_access.open_filesystem(place)
        with system.open_input_file(name) as stream:
            yield stream


def open_parquet(place: str, **options: Any) -> pq.ParquetFile:
    """Open a Parquet file; a local one is mapped.

    Args:
        place: path or URI.
        options: options of `pyarrow.parquet.ParquetFile`.

    Raises:
        StoreError: an object storage does not answer, or refuses.
    """
    if not uris.is_remote(place):
        return pq.ParquetFile(local_path(place), memory_map=True, **options)
    with object_access.explain_arrow(place):
        system, name = object_access.open_filesystem(place)
        return pq.ParquetFile(system.open_input_file(name), **options)


def measure_files(places: Sequence[str]) -> list[int | None]:
    """Return the bytes of one storage's files; None: missing.

    Raises:
        StoreError: an object storage does not answer, or refuses.
    """
    if not places or not uris.is_remote(places[0]):
        paths = list(map(local_path, places))
        return [path.stat().st_size if path.is_file() else None for path in paths]
    with object_access.explain_arrow(places[0]), ThreadPoolExecutor(max_workers=16) as pool:
        system, _ = object_access.open_filesystem(places[0])  # Arrow itself asks for one file after another
        entries = list(pool.map(system.get_file_info, map(object_access.open_path, places)))
    return [entry.size if entry.is_file else None for entry in entries]


def read_object_clock(place: str) -> float:
    """Return the present time by an object storage's clock.

    The time is in seconds since 1970: that of a private object, removed again.

    Raises:
        StoreError: the storage does not answer, or refuses.
    """
    probe = uris.join_uri(uris.arrow_uri(place), private_name("clock"))
    put_if_absent(probe, b"")
    with object_access.open_store(probe) as (store, key):
        last_modified: datetime = store.head(key)["last_modified"]
    remove_object(probe)
    return last_modified.timestamp()


# ------------------------------------------------------------------------------------- before work


def require_storage(place: str) -> None:
    """Check that object storage lists a place; other places pass.

    Raises:
        StoreError: it does not answer or refuses; the message names the address, the bucket, and the
            credentials' source.
    """
    if not uris.is_object_storage(place):
        return
    uris.split_bucket(place)
    if not object_access.may_have_credentials(place):
        raise object_access.storage_error(place, "no credentials")
    with object_access.open_store(place, PROBE_SECONDS) as (store, key):
        next(iter(store.list(key or None, chunk_size=1)), None)


def try_writes(place: str) -> list[str]:
    """Return a line on writes tried in object storage; elsewhere none.

    Raises:
        StoreError: as `require_conditional_writes`.
    """
    if not uris.is_object_storage(place):
        return []
    require_conditional_writes(place)
    return [f"storage     {place}: an object was written, read, refused a second time, and removed"]


@lru_cache(maxsize=64)
def require_conditional_writes(place: str) -> None:
    """Check that a storage refuses a name's second write.

    A private object is written, read, written again (which must fail) and removed, once a process. Where
    the answer to the first write was lost, the library has asked again, and the name is in use.

    Raises:
        StoreError: tables cannot have the name; the storage does not answer, refuses, or writes twice: two
            commits would overwrite each other.
    """
    uris.require_table_name(place)
    probe = uris.join_uri(uris.arrow_uri(place), private_name("probe"))
    put_if_absent(probe, b"probe")
    try:
        if read_bytes(probe) != b"probe":
            raise StoreError(
                f"{place}: an object that was just written is missing, or read as something else",
                "is it an object storage?",
            )
        if put_if_absent(probe, b"second"):
            raise StoreError(
                f"{place}: the storage has no conditional write: it replaced an object that had the name",
                "two commits could overwrite each other; use a storage with If-None-Match, or a folder",
            )
    finally:
        remove_object(probe)
