"""Errors of Spark and Delta: retries, and short causes."""

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
"""Delta's names for another writer's commit: its Python classes, which a client of Connect lacks, Java's
classes, and a server's error classes."""

CREATE_CONFLICT = "DELTA_CREATE_TABLE_WITH_NON_EMPTY_LOCATION"
"""Error class for a half-seen first commit of another writer: the folder exists, its log does not yet."""
T = TypeVar("T")


def retry_conflicts(what: str, action: Callable[[], T], wait: float = 0.4) -> T:
    """Repeat actions of Spark or `delta_files`, as `retry_while`."""
    return retry_while(_is_conflict, what, action, wait)


def _is_conflict(error: Exception) -> bool:
    """Check whether another writer was first: a retry may succeed."""
    if isinstance(error, ConflictError):
        return True
    said = f"{type(error).__name__} {error}"
    return CREATE_CONFLICT in said or CONFLICTS.search(said) is not None


OWN_ERROR = r"^recbench_spark\.(?:errors|extras)\.\w+: (.+(?:\n  hint: .+)?)$"
"""This package's errors, as they stand in a worker's trace."""


def explain_spark_error(error: PySparkException | Exception) -> str:
    """Return a Spark error's last cause in one line.

    The line comes without the Java stack trace. This package's own errors, raised by a worker, keep their
    hint on a second line.
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
        causes = python  # the worker's own error ends its trace
    cause = (causes or python or [first_line(error)])[-1]
    return str(cause).strip()[:500]
