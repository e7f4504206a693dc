"""Errors of Spark and Delta: repeated attempts after conflicts with other writers, causes in one line."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from typing import TypeVar

from delta.exceptions import (
    ConcurrentAppendException,
    ConcurrentTransactionException,
    ConcurrentWriteException,
    MetadataChangedException,
    ProtocolChangedException,
)
from pyspark.errors import AnalysisException, PySparkException

from recbench_spark.errors import StoreError
from recbench_spark.storage.delta_files import ConflictError

CONFLICTS = (
    ConcurrentAppendException,
    ConcurrentTransactionException,
    ConcurrentWriteException,
    MetadataChangedException,
    ProtocolChangedException,
    ConflictError,
)
"""Delta's Python classes are siblings, not subclasses of one another."""

ATTEMPTS = 6
CREATE_CONFLICT = "DELTA_CREATE_TABLE_WITH_NON_EMPTY_LOCATION"
"""Error class for a half-seen first commit of another writer: the folder exists, its log does not yet."""
T = TypeVar("T")


def retry_conflicts(what: str, action: Callable[[], T], wait: float = 0.4) -> T:
    """Run an action, and run it again while another writer is first; return its result.

    Args:
        what: name of the action, for the error.
        action: succeeds as a whole or not at all.
        wait: seconds before the second attempt; the time doubles before each further one.

    Raises:
        StoreError: another writer was first each time.
    """
    for attempt in range(ATTEMPTS):
        try:
            return action()
        except (PySparkException, ConflictError) as error:
            if not _is_conflict(error):
                raise
            if attempt == ATTEMPTS - 1:
                raise StoreError(f"cannot {what}: {first_line(error)}", "run again") from None
            # Jitter without a random number: two processes differ in their ids.
            time.sleep(wait * 2**attempt * (1 + os.getpid() % 97 / 97))
    raise AssertionError("unreachable")


def _is_conflict(error: Exception) -> bool:
    """Return whether another writer was first, so that the same action may succeed now."""
    return isinstance(error, CONFLICTS) or CREATE_CONFLICT in str(error)


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, or its class if it has none."""
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


OWN_ERROR = r"^recbench_spark\.errors\.\w+: (.+(?:\n  hint: .+)?)$"
"""Form of an error of this package in the trace that a worker sent."""


def explain_spark_error(error: PySparkException | Exception) -> str:
    """Return the last cause of an error from Spark in one line, without the Java stack trace.

    An error of this package that a worker raised keeps its hint, on a second line.
    """
    if isinstance(error, AnalysisException):
        return first_line(error)
    text = str(error)
    own = re.findall(OWN_ERROR, text, flags=re.MULTILINE)
    if own:
        return str(own[-1].strip())
    python = re.findall(r"^(?:\w+\.)*(\w+(?:Error|Exception): .+)$", text, flags=re.MULTILINE)
    causes = re.findall(r"^(?:Caused by)?: (?:\w+\.)*(\w+: .+)$", text, flags=re.MULTILINE)
    if causes and "PythonException" in causes[-1]:
        causes = python  # the worker's own error is at the end of the trace that it sent
    cause = (causes or python or [first_line(error)])[-1]
    return str(cause).strip()[:500]
