"""HDFS in obstore's words: `objects` treats it like a bucket.

HDFS has folders, and a rename which fails where a name is in use. A file is written under a private name
beside its own and then renamed: it appears whole or not at all, and of several writers of a new name one
succeeds. Folders are made where a file needs them, and a folder without files may stay.

The methods have the names and arguments of obstore's. `hdfs-native`, a client without Java, moves the
bytes. It reads the configuration below HADOOP_CONF_DIR, which has the names of name services.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyarrow import fs

from recbench_spark.core.extras import explain_missing
from recbench_spark.storage.drivers import Entry, FolderTree, describe_file
from recbench_spark.storage.makers import cache_in_process, private_name
from recbench_spark.storage.uris import find_hadoop_settings

if TYPE_CHECKING:
    from hdfs_native import Client, FileStatus, FileWriter

COPY_BYTES = 1 << 22


@dataclass(frozen=True)
class NameNode(FolderTree):
    """One HDFS, used like a bucket in an object storage.

    Attributes:
        root: its URI, such as `hdfs://host:8020`.
        client: reads and writes its files.
    """

    root: str
    client: Client

    def put(
        self, key: str, content: bytes, *, mode: str = "overwrite", use_multipart: bool = False
    ) -> None:
        """Write a file whole; `create` refuses a used name.

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
        """Open a new file; closing gives it its name."""
        return _HdfsWriter(self.client, key, overwrite)

    def head(self, key: str) -> Entry:
        """Describe a file; FileNotFoundError for folders and missing files."""
        with explain_hdfs():
            status = self.client.get_file_info(f"/{key}")
        if status.isdir:
            raise FileNotFoundError(key)
        return _describe(key, status)

    def copy(self, key: str, target: str) -> None:
        """Copy a file through this process, replacing the target."""
        with explain_hdfs(), self.open_writer(target) as writer:
            source = self.client.read(f"/{key}")
            while chunk := source.read(COPY_BYTES):
                writer.write(chunk)

    def delete(self, keys: str | Sequence[str]) -> None:
        """Delete files, which need not exist; their folder stays."""
        for key in [keys] if isinstance(keys, str) else keys:
            with suppress(FileNotFoundError), explain_hdfs():
                self.client.delete(f"/{key}", False)

    def delete_folder(self, key: str) -> None:
        """Delete a file, or a folder with its content.

        A missing file or folder is no error.
        """
        with suppress(FileNotFoundError), explain_hdfs():
            self.client.delete(f"/{key}", True)

    def list_folder(self, folder: str) -> Iterable[tuple[str, Entry | None]]:
        """Return a folder's direct entries, as `FolderTree.list_folder`.

        A file has none.
        """
        try:
            with explain_hdfs():
                entries = [*self.client.list_status(f"/{folder}", False)]
        except FileNotFoundError:
            return ()
        keys = [(_key(status.path), status) for status in entries]
        return [(key, None if one.isdir else _describe(key, one)) for key, one in keys if key != folder]


def open_name_node(root: str, retry_seconds: float) -> NameNode:
    """Open the HDFS of a URI.

    Args:
        root: the URI.
        retry_seconds: longest time for all attempts at a request.

    Raises:
        MissingPackageError: `hdfs-native` is not installed.
    """
    return NameNode(root, _open_client(root, retry_seconds))


def prepare_client(retry_seconds: float) -> dict[str, str]:
    """Show a client Hadoop's settings and the user.

    The client waits half a second after the first attempt, then twice as long each time: by default for
    minutes. In containers and on workers the process may belong to another user. There Java takes
    SPARK_USER, who submitted the job, and so does the client.

    Returns:
        Settings to limit the client's attempts.
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
    """Open a client for this process alone.

    The client's threads do not survive a fork.
    """
    with explain_missing():
        from hdfs_native import Client  # noqa: PLC0415

    with explain_hdfs():
        return Client(root, prepare_client(retry_seconds))


@cache_in_process(16)
def open_arrow(root: str, retry_seconds: float) -> fs.FileSystem:
    """Open a URI's HDFS as a file system of Arrow.

    Arguments and errors are those of `open_name_node`.
    """
    with explain_missing():
        from hdfs_native.fsspec import HdfsFileSystem  # noqa: PLC0415

    # Paths are taken literally: as URLs, those with `#` or `?` would be cut.
    members = {"_strip_protocol": staticmethod(lambda path: path)}
    base: Any = HdfsFileSystem
    path_system = type(base)("PathSystem", (base,), members)
    host, _, port = root.removeprefix("hdfs://").partition(":")
    system = path_system(host, int(port) if port else None, **prepare_client(retry_seconds))
    return fs.PyFileSystem(fs.FSSpecHandler(system))


@contextmanager
def explain_hdfs() -> Iterator[None]:
    """Raise the client's errors as OSError, like Arrow's.

    Other libraries' errors stay. For a name below a file the error is that no file is there: the name node
    calls it a refusal.
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
"""Begin of the client's messages, such as `RPCError("org.apache...", "Permission denied: ...")`."""

BELOW_A_FILE = "(is not a directory)"
"""End of the name node's message where a name's inner part is a file."""


def _shorten(text: str) -> str:
    """Return the name node's message, without Java's stack."""
    answer = re.match(r'\w*RPCError\("[\w.$]*?([\w$]+)", "(.*?)(\\n|"\))', text)
    return f"{answer[1]}: {answer[2]}" if answer else text


class _HdfsWriter:
    """Stream to a private file, renamed at the end."""

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
        """Rename the file, even after a lost answer.

        The client asks again then, and the private file is gone.
        """
        try:
            self.client.rename(self.path, self.target, overwrite=self.overwrite)
        except FileNotFoundError:
            self.client.get_file_info(self.target)  # raises where nothing was renamed
            if not self.overwrite:  # it may be another writer's: callers compare the content
                raise FileExistsError(self.target) from None

    def _drop(self) -> None:
        with suppress(Exception):  # the rest is hidden, and costs only space
            self.stream.close()
        with suppress(Exception):
            self.client.delete(self.path, False)


def _describe(key: str, status: FileStatus) -> Entry:
    return describe_file(key, status.length, status.modification_time / 1000)


def _key(path: str) -> str:
    """Return a listed path without a first slash."""
    return path.partition("://")[2].partition("/")[2] if "://" in path else path.lstrip("/")
