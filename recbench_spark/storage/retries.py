"""Repeated writes after conflicts with other writers, also of Spark."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from recbench_spark.errors import StoreError, first_line
from recbench_spark.storage.delta_files import ConflictError, File, Select, commit

ATTEMPTS = 6
T = TypeVar("T")


def is_delta_conflict(error: Exception) -> bool:
    """Check whether another writer without Spark was first."""
    return isinstance(error, ConflictError)


def retry_while(
    is_conflict: Callable[[Exception], bool], what: str, action: Callable[[], T], wait: float = 0.4
) -> T:
    """Run an action again while another writer is first.

    Args:
        is_conflict: tells from an error if another writer was first; other errors are raised.
        what: name of the action, for the error.
        action: succeeds as a whole or not at all.
        wait: seconds before the second attempt; the time doubles before each further one.

    Returns:
        The action's result.

    Raises:
        StoreError: another writer was first each time.
    """
    for attempt in range(ATTEMPTS):
        try:
            return action()
        except Exception as error:
            if not is_conflict(error):
                raise
            if attempt == ATTEMPTS - 1:
                raise StoreError(f"cannot {what}: {first_line(error)}", "run again") from None
            # Jitter without a random number: two processes differ in their ids.
            time.sleep(wait * 2**attempt * (1 + os.getpid() % 97 / 97))
    raise AssertionError("unreachable")


CONFLICTS = re.compile(
    r"(Concurrent(Append|Transaction|Write)|MetadataChanged|ProtocolChanged)Exception"
    r"|DELTA_(CONCURRENT_(APPEND|TRANSACTION|WRITE)|METADATA_CHANGED|PROTOCOL_CHANGED)"
)
"""Delta's names for another writer's commit: its Python classes, which a client of Connect lacks, Java's
classes, and a server's error classes."""

CREATE_CONFLICT = "DELTA_CREATE_TABLE_WITH_NON_EMPTY_LOCATION"
"""Error class for a half-seen first commit of another writer: the folder exists, its log does not yet."""


def retry_conflicts(what: str, action: Callable[[], T]) -> T:
    """Repeat actions of Spark or `delta_files`, as `retry_while`."""
    return retry_while(_is_conflict, what, action)


def _is_conflict(error: Exception) -> bool:
    """Check whether another writer was first: a retry may succeed."""
    said = f"{type(error).__name__} {error}"
    return is_delta_conflict(error) or CREATE_CONFLICT in said or CONFLICTS.search(said) is not None


def commit_files(
    folder: str,
    files: Sequence[File],
    partition: Mapping[str, str],
    once: str,
    select: Select | None = None,
) -> bool:
    """Append files to a table once, in one version.

    Arguments and result are those of `delta_files.commit`. After a conflict files are chosen again.

    Raises:
        StoreError: as `delta_files.commit` and `retry_while`.
    """
    action = partial(commit, folder, files, partition, once, select)
    return retry_while(is_delta_conflict, f"write {folder}", action)
