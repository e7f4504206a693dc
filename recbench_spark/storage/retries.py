"""Repeated writes after conflicts with other writers."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from recbench_spark.errors import StoreError
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


def first_line(error: Exception) -> str:
    """Return an error's first line, else its class."""
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
