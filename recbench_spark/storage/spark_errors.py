"""Errors of Spark and Delta: repeated attempts after conflicts with other writers, causes in one line."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

from pyspark.errors import AnalysisException, PySparkException

from recbench_spark.storage.delta_files import ConflictError
from recbench_spark.storage.retries import first_line, retry_while

CONFLICTS = re.compile(
    r"(Concurrent(Append|Transaction|Write)|MetadataChanged|ProtocolChanged)Exception"
    r"|DELTA_(CONCURRENT_(APPEND|TRANSACTION|WRITE)|METADATA_CHANGED|PROTOCOL_CHANGED)"
)
"""Names of Delta's errors of another writer: its Python classes, which a client of Connect lacks, Java's
classes, and the error classes that a server sends."""

CREATE_CONFLICT = "DELTA_CREATE_TABLE_WITH_NON_EMPTY_LOCATION"
"""Error class for a half-seen first commit of another writer: the folder exists, its log does not yet."""
T = TypeVar("T")


def retry_conflicts(what: str, action: Callable[[], T], wait: float = 0.4) -> T:
    """Run an action of Spark or of `delta_files` as `retry_while` does."""
    return retry_while(_is_conflict, what, action, wait)


def _is_conflict(error: Exception) -> bool:
    """Return whether another writer was first, so that the same action may succeed now."""
    if isinstance(error, ConflictError):
        return True
    said = f"{type(error).__name__} {error}"
    return CREATE_CONFLICT in said or CONFLICTS.search(said) is not None


OWN_ERROR = r"^recbench_spark\.(?:errors|extras)\.\w+: (.+(?:\n  hint: .+)?)$"
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
