"""Messages for errors that end jobs or models.

A trace goes to a file, never to a user.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import traceback
from contextlib import suppress

from recbench_spark.core.extras import explain
from recbench_spark.errors import RecbenchError, cut_middle, first_line

JAVA_ENDED = (
    "the connection to Spark broke: its Java process has ended\n"
    "  hint: the system may have killed it for lack of memory (see dmesg); raise its limit, or run again"
)

SERVER_ENDED = (
    "the server of Spark Connect answers no more: it has ended, or the way to it is broken\n"
    "  hint: start it, then this command again: it goes on with what is done"
)

JAVA_NOT_STARTED = (
    "Spark's Java process ended before it was ready\n"
    "  hint: its own lines are above; is Java 17 or 21 installed (JAVA_HOME), and is there memory for it?"
)

POOL_BROKEN = (
    "a process that worked beside others was ended from outside, without a message\n"
    "  hint: the system may have killed it for lack of memory (see dmesg): run again with fewer --processes"
)


def describe_error(error: BaseException) -> str:
    """Describe an error in one sentence, mostly with a hint.

    The hint is on a second line.
    """
    error = explain(error)
    if isinstance(error, RecbenchError):
        return str(error)
    if "JAVA_GATEWAY_EXITED" in str(error):
        return JAVA_NOT_STARTED
    if is_java_gone(error):
        return JAVA_ENDED if has_java() else SERVER_ENDED
    if isinstance(error, spark_errors()):
        return explain_spark_error(error)
    return _describe_system_error(error) or _describe_internal(error)


def _describe_system_error(error: BaseException) -> str:
    """Describe errors of memory, files or `sys.exit`; empty: others."""
    if isinstance(error, MemoryError):
        return "out of memory\n  hint: use smaller batches or tables, or a larger machine"
    pools = sys.modules.get("concurrent.futures.process")  # it is loaded where a pool is used
    if pools is not None and isinstance(error, pools.BrokenProcessPool):
        return POOL_BROKEN
    if isinstance(error, SystemExit):
        message = f"code that was called ended Python: sys.exit({cut_middle(str(error.code), 300)})"
        return f"{message}\n  hint: code of a model must raise an error instead"
    if isinstance(error, OSError) and (refusal := _system_message(error)):
        place = f"{error.filename}: " if error.filename else ""
        return f"{place}{refusal}\n  hint: check the path, its permissions, and the space on its disk"
    return ""


def _system_message(error: OSError) -> str:
    """Return the system's message for an error.

    Libraries written in Rust give only its number, in their text.
    """
    number = re.search(r"\(os error (\d+)\)", str(error))
    return error.strerror or (os.strerror(int(number[1])) if number else "")


def describe_with_trace(error: BaseException) -> str:
    """Describe an error; an unexpected one also names its trace.

    A model's error does not end a job, so nobody can read its trace with --debug.
    """
    words = describe_error(error)
    if isinstance(error, (RecbenchError, *spark_errors())) or words.startswith(INTERNAL_PREFIX):
        return words
    place = write_trace(error)
    return words if place is None else f"{words}; its trace: {place}"


def is_java_gone(error: BaseException) -> bool:
    """Check whether Spark's Java process has ended.

    Errors after that have misleading messages. Where spark-submit started the process, a broken connection
    is the only sign.
    """
    if "pyspark" not in sys.modules:
        return False
    from recbench_spark.engine.sessions import (  # noqa: PLC0415
        Py4JError,
        Py4JJavaError,
        find_gateway,
        is_server_gone,
    )

    if is_server_gone(error):
        return True
    broken, gateway = isinstance(error, ConnectionError), find_gateway()
    java = getattr(gateway, "proc", None)
    if java is None:
        return broken and gateway is not None
    if broken or (isinstance(error, Py4JError) and not isinstance(error, Py4JJavaError)):
        with suppress(subprocess.TimeoutExpired):
            java.wait(1)  # the connection goes a moment before Java does
    return java.poll() is not None


def has_java() -> bool:
    """Check whether this process has, or had, its own Java."""
    from recbench_spark.engine.sessions import find_gateway  # noqa: PLC0415

    return find_gateway() is not None


def spark_errors() -> tuple[type[Exception], ...]:
    """Return Spark's error classes; empty: Spark is not loaded.

    A benchmark of kernels does not load it.
    """
    if "pyspark" not in sys.modules:
        return ()
    from pyspark.errors import PySparkException  # noqa: PLC0415

    from recbench_spark.engine.sessions import Py4JError  # noqa: PLC0415

    return PySparkException, Py4JError


INTERNAL_PREFIX = "internal error: "
"""Start of an unforeseen error's message."""


def _describe_internal(error: BaseException) -> str:
    """Describe an unforeseen error, and write its trace.

    The file is for whoever fixes the error.
    """
    message = f"{INTERNAL_PREFIX}{' '.join(f'{type(error).__name__}: {error}'.split())[:300]}"
    place = write_trace(error)
    with_trace = "the trace above" if place is None else f"its trace, {place}"
    return f"{message}\n  hint: this is a mistake of recbench-spark: report it with {with_trace}"


def write_trace(error: BaseException) -> str | None:
    """Write an error's trace to a file; return its name.

    On a full disk the trace goes to standard error, and None is returned.
    """
    trace = "".join(traceback.format_exception(error))
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="recbench-error-", suffix=".txt", delete=False, errors="backslashreplace"
        ) as file:
            file.write(trace)
    except OSError:
        print(trace, file=sys.stderr)
        return None
    return file.name


OWN_ERROR = r"^recbench_spark\.(?:errors|extras)\.\w+: (.+(?:\n  hint: .+)?)$"
"""This package's errors, as they stand in a worker's trace."""


def explain_spark_error(error: Exception) -> str:
    """Return a Spark error's last cause in one line.

    The line comes without the Java stack trace. This package's own errors, raised by a worker, keep their
    hint on a second line.
    """
    from pyspark.errors import AnalysisException  # noqa: PLC0415

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
