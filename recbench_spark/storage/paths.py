"""Paths in tables and notes: relative to their root, so that a warehouse can be moved."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote

from recbench_spark.storage.publish import local_path
from recbench_spark.storage.uris import arrow_uri, is_remote

IN_SCRATCH = "scratch:"
"""Prefix of a stored path that is relative to scratch; without it a path is relative to the warehouse."""


def decode_uri(uri: str) -> str:
    """Return the path of a local file that Spark or Delta names by an encoded URI, `file:/a%20b`.

    Paths, and URIs of remote storage, are returned unchanged. A URI that a user writes is not encoded:
    Spark takes a user's `file:///a%20b` for a folder with a percent sign in its name, and so does
    `publish.local_path`.
    """
    return unquote(re.sub("^file:/+", "/", uri)) if uri.startswith("file:/") else uri


def relative_path(path: str | Path, root: Path) -> str:
    """Return a path below a root as it is stored: relative, with slashes.

    Raises:
        ValueError: it is not below the root.
    """
    return local_path(path).relative_to(root).as_posix()


def shorten_path(path: str, root: str | Path | None, subfolder: str) -> str:
    """Return a path as a row shows it: relative to the root if it is in the subfolder, else unchanged.

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
    local, folder = local_path(path), Path(root)
    return relative_path(local, folder) if local.is_relative_to(folder / subfolder) else path


def resolve_path(stored: str, root: Path, subfolder: str) -> Path:
    """Return the path that a stored one means under the present root.

    Args:
        stored: relative to the root; or absolute, as older versions stored it, also as a URI `file:/...`.
        root: the folder that holds it today, such as the warehouse.
        subfolder: name of the folder directly below the root for such files, such as `fit_files`. Of an
            absolute path only the part from there on counts, wherever the warehouse was then.
    """
    if not stored.startswith(("/", "file:")):
        return root / stored
    path = local_path(stored)
    if path.is_relative_to(root):
        return path
    end = _cut_before(path.as_posix(), subfolder)
    return root / end if end else path


def read_tail(stored: str, subfolder: str) -> str:
    """Return a stored path relative to its root; of an absolute one of older versions, its end.

    Args:
        stored: a relative path, with or without `scratch:` before it; a path or URI of any machine.
        subfolder: name of the folder directly below the root for such files, such as `fit_files`.

    Raises:
        ValueError: an absolute path that has no such folder.
    """
    end = _cut_before(stored.removeprefix(IN_SCRATCH), subfolder)
    if not end:
        raise ValueError(f"{stored} is not below a folder {subfolder}")
    return end


def _cut_before(path: str, folder: str) -> str:
    """Return a path from the last folder of this name on; empty if it has none."""
    parts = path.split("/")
    places = [n for n, part in enumerate(parts) if part == folder]
    return "/".join(parts[places[-1] :]) if places else ""
