"""Files of HDFS in the words of obstore, so that `objects` treats a name node like a bucket.

HDFS has folders and a rename that fails where a name is in use. A file is written under a private name
beside its own and then renamed: it appears whole or not at all, and of several writers of a new name one
succeeds. Folders are made where a file needs them, and a folder without files may stay.

The methods have the names and the arguments of obstore's. `hdfs-native`, a client without Java, moves the
bytes. It reads the configuration below HADOOP_CONF_DIR, where names of name services stand.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

from pyarrow import fs

from recbench_spark.extras import explain_missing
from recbench_spark.storage.makers import cache_in_process, private_name
from recbench_spark.storage.uris import find_hadoop_settings

if TYPE_CHECKING:
    from hdfs_native import Client, FileStatus, FileWriter

Entry = dict[str, Any]
"""A file as obstore describes an object: path without a slash in front, size, times; HDFS has no ETag."""

COPY_BYTES = 1 << 22


@dataclass(frozen=True)
class NameNode:
    """NameNode is the root of an HDFS, as a bucket is that of names in an object storage.

    Attributes:
        root: its URI, such as `hdfs://host:8020`.
        client: reads and writes its files.
    """

    root: str
    client: Client

    def put(
        self, key: str, content: bytes, *, mode: str = "overwrite", use_multipart: bool = False
    ) -> None:
        """Write a file whole; mode `create` fails where the name is in use.

        Raises:
            AlreadyExistsError: obstore's error for a name in use.
        """
        from obstore.exceptions import AlreadyExistsError  # noqa: PLC0415

        del use_multipart  # HDFS cuts files into blocks itself
        writer = self.open_writer(key, overwrite=mode != "create")
        try:
            with writer:
                writer.write(content)
        except FileExistsError:
            raise AlreadyExistsError(f"{self.root}/{key} is in use") from None

    def open_writer(self, key: str, *, overwrite: bool = True) -> _HdfsWriter:
        """Open a new file, which gets its name when it is closed."""
        return _HdfsWriter(self.client, key, overwrite)

    def head(self, key: str) -> Entry:
        """Describe a file. Raises FileNotFoundError where there is none, or a folder."""
        with explain_hdfs():
            status = self.client.get_file_info(f"/{key}")
        if status.isdir:
            raise FileNotFoundError(key)
        return _describe(key, status)

    def copy(self, key: str, target: str) -> None:
        """Copy a file through this process; a file of the target's name is replaced."""
        with explain_hdfs(), self.open_writer(target) as writer:
            source = self.client.read(f"/{key}")
            while chunk := source.read(COPY_BYTES):
                writer.write(chunk)

    def delete(self, keys: str | Sequence[str]) -> None:
        """Delete files, which need not exist. Their folder stays."""
        for key in [keys] if isinstance(keys, str) else keys:
            with suppress(FileNotFoundError), explain_hdfs():
                self.client.delete(f"/{key}", False)

    def delete_folder(self, key: str) -> None:
        """Delete a file, or a folder with all that it holds; it need not exist."""
        with suppress(FileNotFoundError), explain_hdfs():
            self.client.delete(f"/{key}", True)

    def list_with_delimiter(self, prefix: str | None = None) -> dict[str, Any]:
        """List what is directly in a folder: names of folders as `common_prefixes`, files as `objects`."""
        entries = self._list_folder(prefix or "")
        return {
            "common_prefixes": [name for name, status in entries if status.isdir],
            "objects": [_describe(name, status) for name, status in entries if not status.isdir],
        }

    def list(
        self, prefix: str | None = None, *, offset: str | None = None, chunk_size: int = 1000
    ) -> Iterator[Sequence[Entry]]:
        """Yield the files below a folder in the order of their names, in lists; hidden drafts are left out.

        Args:
            prefix: the folder; None: all.
            offset: only names behind this one.
            chunk_size: longest list.
        """
        entries = (entry for entry in self._walk(prefix or "") if offset is None or entry["path"] > offset)
        while chunk := tuple(islice(entries, chunk_size)):
            yield chunk

    def list_drafts(self, folder: str) -> Iterator[Entry]:
        """Yield the hidden drafts below a folder, of living writers and of killed ones."""
        return self._walk(folder, drafts=True)

    def _walk(self, folder: str, *, drafts: bool = False) -> Iterator[Entry]:
        """Yield the files below a folder as an object storage orders them. One folder a level is held."""
        for name, status in self._list_folder(folder, drafts=drafts):
            if status.isdir:
                yield from self._walk(name, drafts=drafts)
            else:
                yield _describe(name, status)

    def _list_folder(self, folder: str, *, drafts: bool = False) -> Sequence[tuple[str, FileStatus]]:
        """Return the names and the states of what is directly in a folder; of none or of a file, nothing.

        A slash counts as a part of a folder's name, as in an object storage. `drafts`: of files only the
        hidden drafts, else all others.
        """
        try:
            with explain_hdfs():
                entries = [*self.client.list_status(f"/{folder}", False)]
        except FileNotFoundError:
            return ()
        keys = [(_key(status.path), status) for status in entries]
        below = [
            (key, status)
            for key, status in keys
            if key != folder and (status.isdir or _is_draft(key) == drafts)
        ]
        return sorted(below, key=lambda pair: pair[0] + "/" * pair[1].isdir)


def open_name_node(root: str, retry_seconds: float) -> NameNode:
    """Open the HDFS of a URI.

    Args:
        root: the URI.
        retry_seconds: longest time of all attempts at a request.

    Raises:
        MissingPackageError: `hdfs-native` is not installed.
    """
    return NameNode(root, _open_client(root, retry_seconds))


def prepare_client(retry_seconds: float) -> dict[str, str]:
    """Show a client the folder of settings and the user; return settings that limit its attempts.

    It waits half a second after the first attempt, then twice as long each time: by default for minutes.
    In containers and on workers the process may be another user's. Java takes the one of SPARK_USER there,
    who submitted the job, and so does the client.
    """
    find_hadoop_settings()
    if "SPARK_USER" in os.environ:
        os.environ.setdefault("HADOOP_USER_NAME", os.environ["SPARK_USER"])
    return {
        "dfs.client.failover.max.attempts": str(int(math.log2(retry_seconds)) + 2),
        "dfs.client.failover.sleep.max.millis": "8000",
    }


@cache_in_process(16)
def _open_client(root: str, retry_seconds: float) -> Client:
    """Open a client of this process: its threads do not survive a fork."""
    with explain_missing():
        from hdfs_native import Client  # noqa: PLC0415

    with explain_hdfs():
        return Client(root, prepare_client(retry_seconds))


@cache_in_process(16)
def open_arrow(root: str, retry_seconds: float) -> fs.FileSystem:
    """Open the HDFS of a URI as a file system of Arrow; arguments and errors as `open_name_node`."""
    with explain_missing():
        from hdfs_native.fsspec import HdfsFileSystem  # noqa: PLC0415

    # Paths are taken as they are: as URLs, those with `#` or `?` would be cut.
    members = {"_strip_protocol": staticmethod(lambda path: path)}
    base: Any = HdfsFileSystem
    path_system = type(base)("PathSystem", (base,), members)
    host, _, port = root.removeprefix("hdfs://").partition(":")
    system = path_system(host, int(port) if port else None, **prepare_client(retry_seconds))
    return fs.PyFileSystem(fs.FSSpecHandler(system))


@contextmanager
def explain_hdfs() -> Iterator[None]:
    """Raise the client's errors as OSError, as Arrow has them; those of other libraries stay.

    A name below a file is one of no file: the name node calls it a refusal.
    """
    try:
        yield
    except RuntimeError as error:
        if not CLIENT_ERROR.match(str(error)):
            raise
        text = _shorten(str(error))
        kind = FileNotFoundError if text.endswith(BELOW_A_FILE) else OSError
        raise kind(text) from None


CLIENT_ERROR = re.compile(r"[A-Z]\w+\(|[a-z ]*error: ")
"""Begin of what the client says, such as `RPCError("org.apache...", "Permission denied: ...")`."""

BELOW_A_FILE = "(is not a directory)"
"""End of what the name node says where a part of a name, but the last, is that of a file."""


def _shorten(text: str) -> str:
    """Return what the name node says, without Java's stack; else the text."""
    answer = re.match(r'\w*RPCError\("[\w.$]*?([\w$]+)", "(.*?)(\\n|"\))', text)
    return f"{answer[1]}: {answer[2]}" if answer else text


class _HdfsWriter:
    """_HdfsWriter writes a file under a private name, and renames it at the end."""

    def __init__(self, client: Client, key: str, overwrite: bool) -> None:
        self.client, self.target, self.overwrite = client, f"/{key}", overwrite
        parent, _, name = self.target.rpartition("/")
        self.path = f"{parent}/{private_name(name)}"
        with explain_hdfs():
            self.stream: FileWriter = self.client.create(self.path)

    def __enter__(self) -> _HdfsWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is None:
            self.close()
        else:
            self._drop()

    def write(self, content: Any) -> int:
        """Write bytes, and return their number."""
        with explain_hdfs():
            count: int = self.stream.write(content)
        return count

    def close(self) -> None:
        """Complete the file and give it its name.

        Raises:
            FileExistsError: the name is in use, and the file was not to replace another one.
        """
        try:
            with explain_hdfs():
                self.stream.close()
                self._publish()
        except BaseException:
            self._drop()
            raise

    def _publish(self) -> None:
        """Rename the file. Where the answer was lost and the client asks again, the file is gone."""
        try:
            self.client.rename(self.path, self.target, overwrite=self.overwrite)
        except FileNotFoundError:
            self.client.get_file_info(self.target)  # raises where nothing was renamed
            if not self.overwrite:  # it may be another writer's: callers compare the content
                raise FileExistsError(self.target) from None

    def _drop(self) -> None:
        with suppress(Exception):  # what is left is hidden, and costs only space
            self.stream.close()
        with suppress(Exception):
            self.client.delete(self.path, False)


def _describe(key: str, status: FileStatus) -> Entry:
    written = datetime.fromtimestamp(status.modification_time / 1000, UTC)
    return {"path": key, "size": status.length, "last_modified": written, "e_tag": None, "version": None}


def _key(path: str) -> str:
    """Return a path of a listing as a name without a slash in front."""
    return path.partition("://")[2].partition("/")[2] if "://" in path else path.lstrip("/")


def _is_draft(key: str) -> bool:
    """Return whether a file is being written by `_HdfsWriter`, or was left by one that was killed."""
    name = key.rsplit("/", 1)[-1]
    return name.startswith(".") and name.endswith(".partial")
