"""Drivers for kinds of storage; folders in obstore's words.

So `objects` treats a bucket, HDFS and this machine's folders alike. A further kind is a `Driver` under its
scheme in `object_access.DRIVERS` and `uris.OBJECT_SCHEMES`.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pyarrow import fs

from recbench_spark.errors import StoreError
from recbench_spark.storage.makers import PRIVATE_NAME
from recbench_spark.storage.publish import remove_published

T = TypeVar("T")

Entry = dict[str, Any]
"""A file as obstore describes an object: path without a slash in front, size, times; it has no ETag."""


class FolderTree:
    """A storage with folders, listed in an object storage's order."""

    open_writer: Callable[..., Any]

    def list_folder(self, folder: str) -> Iterable[tuple[str, Entry | None]]:
        """Return a folder's keys with facts; None for subfolders."""
        raise NotImplementedError

    def delete_folder(self, key: str) -> None:
        """Delete a file, or a folder with its content.

        A missing file or folder is no error.
        """
        raise NotImplementedError

    def list_with_delimiter(self, prefix: str | None = None) -> dict[str, Any]:
        """List a folder's direct entries.

        Names of folders are `common_prefixes`, files are `objects`.
        """
        entries = self._list_sorted(prefix or "")
        return {
            "common_prefixes": [key for key, entry in entries if entry is None],
            "objects": [entry for _, entry in entries if entry is not None],
        }

    def list(
        self, prefix: str | None = None, *, offset: str | None = None, chunk_size: int = 1000
    ) -> Iterator[Sequence[Entry]]:
        """Yield the files below a folder in order of name, in lists.

        Hidden drafts are left out.

        Args:
            prefix: the folder; None: all.
            offset: only names behind this one.
            chunk_size: longest list.
        """
        entries = (entry for entry in self._walk(prefix or "") if offset is None or entry["path"] > offset)
        while chunk := tuple(islice(entries, chunk_size)):
            yield chunk

    def list_drafts(self, folder: str) -> Iterator[Entry]:
        """Yield the hidden drafts below a folder.

        Living or killed writers made them.
        """
        return self._walk(folder, drafts=True)

    def _walk(self, folder: str, *, drafts: bool = False) -> Iterator[Entry]:
        """Yield the files below a folder, as object storage would.

        One folder a level is held.
        """
        for key, entry in self._list_sorted(folder, drafts=drafts):
            if entry is None:
                yield from self._walk(key, drafts=drafts)
            else:
                yield entry

    def _list_sorted(self, folder: str, *, drafts: bool = False) -> Sequence[tuple[str, Entry | None]]:
        """Return a folder's sorted entries, folders with a slash.

        `drafts`: of files only the hidden drafts, else all others.
        """
        below = [
            (key, entry)
            for key, entry in self.list_folder(folder)
            if entry is None or bool(PRIVATE_NAME.fullmatch(key.rpartition("/")[2])) == drafts
        ]
        return sorted(below, key=lambda pair: pair[0] + "/" * (pair[1] is None))


def describe_file(key: str, size: int, seconds: float) -> Entry:
    """Describe a file by its last write, as obstore does."""
    written = datetime.fromtimestamp(seconds, UTC)
    return {"path": key, "size": size, "last_modified": written, "e_tag": None, "version": None}


class LocalFolders(FolderTree):
    """This machine's disks, by paths; inner links are not followed."""

    def list_folder(self, folder: str) -> Iterable[tuple[str, Entry | None]]:
        """Return the paths in a folder, as `FolderTree.list_folder`."""
        try:
            names = os.listdir(folder)  # noqa: PTH208 (names)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            return
        for key in (f"{folder}/{name}" for name in names):
            with suppress(FileNotFoundError):
                yield key, _describe_path(key, follow=False)

    def head(self, key: str) -> Entry:
        """Describe a file; FileNotFoundError for folders and missing files."""
        entry = _describe_path(key) if Path(key).exists() else None
        if entry is None:
            raise FileNotFoundError(key)
        return entry

    def delete(self, keys: str | Sequence[str]) -> None:
        """Delete files, which need not exist; their folder stays."""
        for key in [keys] if isinstance(keys, str) else keys:
            Path(key).unlink(missing_ok=True)

    def delete_folder(self, key: str) -> None:
        """Delete a file, or a folder with its content.

        Nobody opens a half of it.
        """
        remove_published(Path(key))


def _describe_path(key: str, *, follow: bool = True) -> Entry | None:
    status = os.stat(key, follow_symlinks=follow)  # noqa: PTH116 (a text)
    return None if stat.S_ISDIR(status.st_mode) else describe_file(key, status.st_size, status.st_mtime)


class Driver(NamedTuple):
    """Functions to hold a warehouse in one kind of storage.

    Schemes of URIs name the driver.

    Attributes:
        open_bucket: from a bucket's URI and a request's longest seconds to obstore's methods.
        open_arrow: from a URI to Arrow's file system and the name within it.
        delta_options: from a URI to the settings of `deltalake`.
        explain: from a URI and an error's text to an error in words.
    """

    open_bucket: Callable[[str, float], Any]
    open_arrow: Callable[[str], tuple[fs.FileSystem, str]]
    delta_options: Callable[[str], dict[str, str]]
    explain: Callable[[str, str], StoreError]


# ---------------------------------------- answers that were cut


def squeeze(text: str) -> str:
    """Return a text without case, blanks and underscores.

    Each library spells errors in its own way.
    """
    return re.sub("[ _]", "", text.lower())


def has_word(said: str, words: Sequence[str]) -> bool:
    """Check whether a squeezed text has one of some words."""
    return any(squeeze(word) in said for word in words)


CUT = (
    "response body error",
    "error reading a body",
    "getting list response body",
    "message length reached",
)
"""Words in an error after an answer whose end is missing."""

CUT_ATTEMPTS = 5
"""Attempts at a request whose answers are cut."""


def is_cut_answer(error: Exception) -> bool:
    """Check whether the connection ended within the storage's answer.

    The libraries repeat a request without an answer, and go on with a half-read object; they do not ask for
    the rest of a listing.
    """
    return has_word(squeeze(str(error)), CUT)


def repeat_if_cut(action: Callable[[], T]) -> T:
    """Repeat an action while the storage's answer is cut.

    The action must change nothing. Its result is returned.
    """
    for attempt in range(1, CUT_ATTEMPTS):
        try:
            return action()
        except Exception as error:
            if not is_cut_answer(error):
                raise
        time.sleep(0.1 * 2**attempt)
    return action()
