"""Names of files and folders on any storage.

They are paths of this machine, and URIs such as `s3://bucket/folder`. Hadoop, Arrow, `deltalake` and
obstore have different names for one place. Only the functions here ask which kind of storage a name means.
"""

from __future__ import annotations

import os
import re
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote
from xml.etree import ElementTree

from recbench_spark.errors import StoreError
from recbench_spark.storage.publish import local_path

SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")

HADOOP_NAMES = {"s3a": "s3", "s3n": "s3", "gcs": "gs"}
"""Hadoop's schemes, and those of Arrow, `deltalake` and obstore for the same storage."""

LOG = "_delta_log"
"""Folder for a Delta table's log."""

HDFS = "hdfs"

OBJECT_SCHEMES = {"s3", "gs", "abfs", "abfss", HDFS}
"""Storage with a write which fails where a name is in use: S3, Google Cloud Storage, Azure; and HDFS, whose
files are treated like objects (`hdfs`)."""


SETTINGS_VARIABLE = "HADOOP_CONF_DIR"
"""Environment variable with the folder of Hadoop's settings."""

SENT_SETTINGS = Path("__spark_conf__", "__hadoop_conf__")
"""Folder with the submitter's settings, in the working directory of each YARN container."""


class Bucket(NamedTuple):
    """A bucket in object storage, and a name in it.

    Attributes:
        root: URI of the bucket, such as `s3://bucket`.
        key: name of a folder or an object in the bucket, without a slash at either end; may be empty.
    """

    root: str
    key: str


def is_remote(place: str | Path) -> bool:
    """Check whether a name is a remote URI."""
    return "://" in str(place) and not str(place).startswith("file:")


def read_scheme(place: str | Path) -> str:
    """Return a URI's scheme as Arrow names it.

    The scheme has small letters, and is empty for a path and for `file:`.

    >>> read_scheme("s3a://bucket/log"), read_scheme("/data/log")
    ('s3', '')
    """
    match = SCHEME.match(str(place))
    if match is None or not is_remote(place):
        return ""
    return HADOOP_NAMES.get(match[1].lower(), match[1].lower())


def is_object_storage(place: str | Path) -> bool:
    """Check whether a URI is in object storage or HDFS.

    Neither needs Java here.
    """
    return read_scheme(place) in OBJECT_SCHEMES


def has_driver(place: str | Path) -> bool:
    """Check whether a URI is read and written without Java here."""
    return is_object_storage(place) and not (is_hdfs(place) and find_spec("hdfs_native") is None)


def is_hdfs(place: str | Path) -> bool:
    """Check whether a name is a URI of HDFS."""
    return read_scheme(place) == HDFS


def arrow_uri(file: str) -> str:
    """Return a file as Arrow names it.

    Hadoop's `s3a` is Arrow's `s3`, Databricks' `dbfs:` a mounted folder.
    """
    if file.startswith("file:"):  # Arrow accepts no URI with letters outside ASCII
        return str(local_path(file))
    if file.startswith("dbfs:/"):
        path = "/" + file.removeprefix("dbfs:").lstrip("/")
        return path if path.startswith("/Volumes/") else f"/dbfs{path}"
    match = SCHEME.match(file)
    if match is None:
        return file
    scheme, rest = read_scheme(file), file[match.end() :]
    if scheme == HDFS and rest.startswith("/"):
        return read_name_node(file) + rest
    return f"{scheme}://{rest}"


def read_name_node(place: str) -> str:
    """Return the HDFS for a URI without a host.

    Such a URI is `hdfs:///folder`; Hadoop's configuration names the HDFS.

    Raises:
        StoreError: no configuration is there, or it names another file system.
    """
    folder = find_hadoop_settings()
    root = _read_default_root(Path(folder, "core-site.xml")) if folder else ""
    if not root.startswith(f"{HDFS}://"):
        raise StoreError(
            f"{place} names no host, and fs.defaultFS of {SETTINGS_VARIABLE}={folder} is no HDFS",
            f"write hdfs://HOST:PORT/FOLDER, or set {SETTINGS_VARIABLE} to the folder of core-site.xml",
        )
    return root.rstrip("/")


def find_hadoop_settings() -> str:
    """Return the folder of Hadoop's settings; empty: none.

    A node of YARN need not have the variable, and Spark sends the settings into each container. Then the
    variable is set to their folder, because libraries and workers' processes read it too.
    """
    if SETTINGS_VARIABLE not in os.environ and SENT_SETTINGS.is_dir():
        os.environ[SETTINGS_VARIABLE] = str(SENT_SETTINGS.absolute())
    return os.environ.get(SETTINGS_VARIABLE, "")


@lru_cache(maxsize=4)
def _read_default_root(file: Path) -> str:
    """Return `fs.defaultFS` from Hadoop's settings; empty: it is missing."""
    if not file.is_file():
        return ""
    for one in ElementTree.parse(file).iter("property"):
        if (one.findtext("name") or "").strip() in {"fs.defaultFS", "fs.default.name"}:
            return (one.findtext("value") or "").strip()
    return ""


def absolute_place(place: str | Path) -> str:
    """Return an absolute path; a URI stays as it is.

    Workers may have another directory.

    >>> absolute_place("file:///data/log"), absolute_place("s3://bucket/log")
    ('/data/log', 's3://bucket/log')
    """
    return str(place) if is_remote(place) else str(local_path(place).absolute())


def link_place(place: str | Path) -> str:
    """Return a place's URI for a browser or tool.

    A path of this machine becomes `file:///...`.
    """
    return str(place) if is_remote(place) else local_path(place).absolute().as_uri()


def split_bucket(place: str) -> Bucket:
    """Return a URI's bucket and the name in it.

    >>> split_bucket("s3a://bucket/team/warehouse/")
    Bucket(root='s3://bucket', key='team/warehouse')

    Raises:
        StoreError: it is no URI of an object storage, names no bucket, or has an empty part, `.` or `..`:
            libraries take these for different names.
    """
    uri = arrow_uri(place)
    scheme, _, rest = uri.partition("://")
    bucket, _, key = rest.partition("/")
    hint = "write hdfs://HOST:PORT/FOLDER" if scheme == HDFS else "write s3://BUCKET/FOLDER"
    if not is_object_storage(place) or not bucket:
        raise StoreError(f"{place} names no bucket of an object storage", hint)
    key = key.rstrip("/")
    if key and not NO_NAMES.isdisjoint(key.split("/")):
        raise StoreError(f"{place} has a part that is empty, . or ..", hint)
    return Bucket(f"{scheme}://{bucket}", key)


def trim_uri(place: str) -> str:
    """Return a URI without slashes at its end.

    The URI is one of object storage; errors as `split_bucket`.
    """
    split_bucket(place)  # without a bucket `s3:` would be left, a folder of this machine
    return place.rstrip("/")


NO_NAMES = {"", ".", ".."}
"""Parts of a URI without a meaning as names."""


def require_table_name(place: str) -> None:
    """Check that `deltalake` takes a place by its usual name.

    `deltalake` takes an object storage's place for a URL: it decodes `%20`, cuts `#`, and on HDFS it
    commits to `a b` in `a%20b`.

    Raises:
        StoreError: `deltalake` would write to another folder, or not take the name; and as `split_bucket`.
    """
    odd = (ODD_ON_HDFS if is_hdfs(place) else ODD_IN_URLS).search(split_bucket(place).key)
    if odd:
        raise StoreError(
            f"{place} has {odd[0]!r} in its name, which tables of Delta cannot have there",
            "choose a name of letters, digits, dots, dashes and underscores",
        )


ODD_IN_URLS = re.compile(r"%[0-9A-Fa-f]{2}|[#?\[\]\\^|\x00-\x1f\x7f]")
"""Characters in a table's name that a URL decodes, cuts off or refuses."""

ODD_ON_HDFS = re.compile(rf"{ODD_IN_URLS.pattern}|[\"<>`{{}}]|[^!-~]")
"""Characters of `ODD_IN_URLS`, and those percent-encoded in URLs."""


def join_uri(place: str, *names: str) -> str:
    """Return the name of a place below another one.

    >>> join_uri("s3://bucket/warehouse/", "runs", "_delta_log")
    's3://bucket/warehouse/runs/_delta_log'
    """
    return "/".join((place.rstrip("/"), *names))


def place_side(warehouse: str, model_id: str, side: str) -> str:
    """Return the place of a model's vectors for one side.

    The warehouse may be its table itself.

    >>> place_side("w/embeddings", "a1", "user")
    'w/embeddings/model_id=a1/side=user'
    """
    table = warehouse.rstrip("/")
    if table.rpartition("/")[2] != "embeddings":
        table = join_uri(table, "embeddings")
    return join_uri(table, f"model_id={model_id}", f"side={side}")


def is_hidden(name: str) -> bool:
    """Check whether Spark skips files or folders of this name."""
    return name.startswith(".") or (name.startswith("_") and "=" not in name) or name.endswith("._COPYING_")


def relative_place(place: str, root: str) -> str:
    """Return a place below a root, relative and with slashes.

    Rows store it so.

    >>> relative_place("s3://bucket/graph_files/g-4", "s3://bucket/graph_files")
    'g-4'

    Raises:
        ValueError: it is not below the root.
    """
    if not place.startswith(f"{root}/"):
        raise ValueError(f"{place} is not below {root}")
    return place.removeprefix(f"{root}/")


# ---------------------------------------- stored paths: relative to a root, which can be moved

IN_SCRATCH = "scratch:"
"""Prefix of a stored path relative to scratch; other stored paths are relative to the warehouse."""


def decode_uri(uri: str) -> str:
    """Decode a local path from a URI, `file:/a%20b`.

    Spark and Delta name files so. Paths, and URIs of remote storage, are returned unchanged. A user's URI
    is not encoded: Spark takes a user's `file:///a%20b` for a folder with a percent sign in its name, and
    so does `publish.local_path`.
    """
    return unquote(re.sub("^file:/+", "/", uri)) if uri.startswith("file:/") else uri


def shorten_path(path: str, root: str | Path | None, subfolder: str) -> str:
    """Return a path as a row shows it.

    A path in the subfolder becomes relative to the root; others stay unchanged.

    Args:
        path: any path or URI.
        root: the folder of the warehouse, or its URI; None for a catalog where Spark writes.
        subfolder: name of a folder directly below the root, such as `fit_files`.
    """
    if root is None or is_remote(path) != is_remote(root):
        return path
    if is_remote(path):  # Hadoop calls the same place s3a://
        below = arrow_uri(path).removeprefix(f"{arrow_uri(str(root))}/")
        return below if f"{below}/".startswith(f"{subfolder}/") else path
    local = local_path(path)
    return local.relative_to(root).as_posix() if local.is_relative_to(Path(root, subfolder)) else path


def resolve_path(stored: str, root: Path, subfolder: str) -> Path:
    """Return a stored path under the present root.

    Args:
        stored: relative to the root; or absolute, as older versions stored it, also as a URI `file:/...`.
        root: its folder today, such as the warehouse.
        subfolder: name of the folder directly below the root for such files, such as `fit_files`. An
            absolute path counts only from there on, wherever the warehouse was then.
    """
    if not stored.startswith(("/", "file:")):
        return root / stored
    path = local_path(stored)
    if path.is_relative_to(root):
        return path
    end = _cut_before(path.as_posix(), subfolder)
    return root / end if end else path


def read_tail(stored: str, subfolder: str) -> str:
    """Return a stored path relative to its root.

    Older versions stored absolute paths: their end is taken.

    Args:
        stored: a relative path, with or without `scratch:` before it; a path or URI of any machine.
        subfolder: name of the folder directly below the root for such files, such as `fit_files`.

    Raises:
        ValueError: an absolute path without such a folder.
    """
    end = _cut_before(stored.removeprefix(IN_SCRATCH), subfolder)
    if not end:
        raise ValueError(f"{stored} is not below a folder {subfolder}")
    return end


def _cut_before(path: str, folder: str) -> str:
    """Return a path's end, from this folder's last place on.

    The end is empty if the path has no such folder.
    """
    parts = path.split("/")
    places = [n for n, part in enumerate(parts) if part == folder]
    return "/".join(parts[places[-1] :]) if places else ""
