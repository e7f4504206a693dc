"""Check paths and table names, and explain Spark's errors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from recbench_spark.core.inputs import normalise_path
from recbench_spark.engine.sessions import Py4JJavaError, open_hadoop, open_java
from recbench_spark.errors import DataError, first_line
from recbench_spark.sources.formats import Folders
from recbench_spark.sources.paths import check_path, may_be_table
from recbench_spark.sources.table_pieces import read_folders
from recbench_spark.storage.local_files import COMPRESSED, DAMAGED, HEAD_BYTES
from recbench_spark.storage.shared_arrays import escape_path
from recbench_spark.storage.spark_places import require_jars, share_access


def is_folder(spark: SparkSession, path: str) -> bool:
    """Return whether a path, local or remote, is a folder."""
    check_path(path)
    with explain_errors(path):
        files, place = file_system(spark, path)
        return bool(files.getFileStatus(place).isDirectory())


def list_names(spark: SparkSession, folder: str) -> list[str]:
    """List the names in a folder, in order.

    The folder may be local or remote. The driver holds all names.
    """
    with explain_errors(folder):
        files, place = file_system(spark, folder)
        return sorted(status.getPath().getName() for status in files.listStatus(place))


def list_files(spark: SparkSession, path: str, pattern: str | None = None) -> dict[str, Folders]:
    """Return a path's files with their folders' values.

    `pattern`: for the file names.
    """
    with explain_errors(path):
        reader = spark.read.option("pathGlobFilter", pattern) if pattern else spark.read
        files = sorted(map(unquote, reader.text(escape_path(path)).inputFiles()))
    root = strip_host(normalise_path(path)).rstrip("/")
    folders = read_folders(root, map(strip_host, files))
    return {file: folders[strip_host(file)] for file in files if strip_host(file) in folders}


def strip_host(uri: str) -> str:
    """Return a URI's path."""
    return re.sub("^[A-Za-z][A-Za-z0-9+.-]*:(//[^/]*)?/*", "/", uri)


def read_file_head(spark: SparkSession, file: str) -> bytes:
    """Read a text file's first bytes, unpacked."""
    with explain_errors(file):
        files, place = file_system(spark, file)
        jvm = open_java(spark)
        stream = files.open(place)
        most = PACKED_HEAD if file.endswith(COMPRESSED) else HEAD_BYTES
        try:
            bounded = jvm.org.apache.commons.io.input.BoundedInputStream(stream, most)
            head = bytes(jvm.org.apache.commons.io.IOUtils.toByteArray(bounded))
        finally:
            stream.close()
    return unpack(head, file, HEAD_BYTES)


def unpack(content: bytes, path: str, size: int | None = None) -> bytes:
    """Unpack a file's bytes to text, `size` bytes at most."""
    packing = pa.Codec.detect(path).name if path.endswith(COMPRESSED) else None
    with pa.input_stream(pa.BufferReader(content), compression=packing) as stream:
        return bytes(stream.read(size))


PACKED_HEAD = 1 << 20
"""Bytes in a compressed file that unpack to HEAD_BYTES: bzip2 has blocks of 900,000 bytes."""


def reach_storage(spark: SparkSession, path: str) -> None:
    """Let Spark's readers reach an input's object storage.

    The warehouse may be elsewhere.

    Raises:
        StoreError: this session's Hadoop lacks the classes for it.
    """
    share_access(spark, path)
    require_jars(spark, path)


def file_system(spark: SparkSession, path: str) -> tuple[Any, Any]:
    """Return a path's Hadoop file system, and its Java path."""
    reach_storage(spark, path)
    return open_hadoop(spark, path)


def qualify_path(spark: SparkSession, path: str) -> str:
    """Return a path with the scheme and host for Spark."""
    files, place = file_system(spark, path)
    return str(files.makeQualified(place).toString())


def is_table(spark: SparkSession, name: str) -> bool:
    """Return whether the catalog has this table.

    Names look like `schema.table` or `catalog.schema.table`.
    """
    if not may_be_table(name):
        return False
    with explain_errors(name):
        return bool(spark.catalog.tableExists(name))


@contextmanager
def explain_errors(where: str) -> Iterator[None]:
    """Turn errors from Spark or a disk into a DataError.

    The error names the file and the innermost cause.
    """
    try:
        yield
    except ConnectionError:  # Java has ended
        raise
    except OSError as error:
        raise DataError(f"{where}: cannot be read: {first_line(error)[:300]}") from None
    except (PySparkException, Py4JJavaError) as error:
        causes = _list_causes(error)
        file = re.search(r"file:/\S*?(?=[.,:]?(\s|$))", " ".join(causes))
        inside = f"{file[0]}: " if file and file[0] not in causes[-1] else ""
        hint = DAMAGED if file else ""
        raise DataError(f"{where}: cannot be read: {inside}{causes[-1][:300]}", hint) from None


def _list_causes(error: Exception) -> list[str]:
    """Return the first line of an error and its causes.

    The innermost cause is last.
    """
    causes = [str(error).strip().splitlines()[0]]
    cause = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    while cause is not None:
        message = cause.getMessage()
        causes += [message.strip().splitlines()[0]] if message and message.strip() else []
        cause = cause.getCause()
    return causes
