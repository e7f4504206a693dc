"""Errors for users: each with problem, place and hint.

A job prints `str(error)` last and exits with `error.exit_code`; no stack trace of Java or Python ends its
output.
"""

from __future__ import annotations

import difflib
import signal
from collections.abc import Iterable

OK, FAILED, USAGE, GATE, REGRESSION = 0, 1, 2, 3, 4
"""Exit codes of every job: fine, failed, wrong usage or config, quality gate, regression."""

VERDICT_CODES = {"too good": 5, "cannot tell": 6}
"""Exit codes for verdicts, where a file asks for them."""

MAX_LETTERS = 3000
"""Most letters in a message or a hint."""

MAX_LISTED = 50
"""Most names in a hint."""


class RecbenchError(Exception):
    """Base of all errors: one sentence, and a hint."""

    exit_code = FAILED

    def __init__(self, message: str, hint: str = "") -> None:
        self.message = cut_middle(message)
        self.hint = cut_middle(hint)
        super().__init__(self.message)

    def __str__(self) -> str:
        """Return the message, with the hint on its own line."""
        return f"{self.message}\n  hint: {self.hint}" if self.hint else self.message


class ConfigError(RecbenchError):
    """A user's file, key, flag or value is wrong."""

    exit_code = USAGE


class SchemaError(RecbenchError):
    """A table's column is missing, or has another type."""


class MissingError(RecbenchError):
    """A file or folder does not exist, perhaps not yet.

    The same settings may work later.
    """


class DataError(RecbenchError):
    """Rows are unfit: NaN scores, `duplicates=error`, no test rows."""


class DivergedError(DataError):
    """A fit's numbers overflowed, because of its settings, not data."""


class FallbackToSpark(DataError):  # noqa: N818 (a signal, caught where it is awaited)
    """A value no task can read itself.

    Spark's readers read it, or explain its fault.
    """


class ProtocolError(RecbenchError):
    """A split or candidate protocol is impossible on this log."""


class EmptyPartError(ProtocolError):
    """A split trains or tests no rows.

    `ends`: a log's first and last time, if it is cut by time.
    """

    def __init__(self, message: str, hint: str = "", ends: tuple[int, int] | None = None) -> None:
        super().__init__(message, hint)
        self.ends = ends


class StoreError(RecbenchError):
    """The warehouse cannot be read or written."""


class GateError(RecbenchError):
    """A quality gate failed the night."""

    exit_code = GATE


class Interrupted(BaseException):
    """Ctrl-C, SIGTERM, or a cancelled Spark job.

    An interruption is no model's error, and no handler of errors catches it. `exit_code` is 128 plus the
    signal's number, as in a shell.
    """

    def __init__(self, number: int = signal.SIGINT) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


def cut_middle(text: str, longest: int = MAX_LETTERS) -> str:
    """Cut the middle out of a text over `longest` letters.

    >>> cut_middle("recall", 4)
    're ... ll'
    """
    return text if len(text) <= longest else f"{text[: longest // 2]} ... {text[-(longest // 2) :]}"


def show_value(value: object, longest: int = 100) -> str:
    """Return any value in one short line, for a message.

    >>> show_value([1, "two"])
    "[1, 'two']"
    """
    return cut_middle(" ".join(repr(value).split()), longest)


def first_line(error: Exception) -> str:
    """Return an error's first line, else its class."""
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def is_cancelled(error: BaseException) -> bool:
    """Check whether Spark's jobs were cancelled.

    A cancelled job tells nothing about a model or the data.
    """
    return "SPARK_JOB_CANCELLED" in str(error)


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a hint with the nearest known name.

    An example is `did you mean 'ndcg'? known: hit, map, ndcg`.
    """
    options = sorted(str(option) for option in known)
    if not options:
        return "there is none"
    close = difflib.get_close_matches(str(name), options, n=1, cutoff=0.5)
    more = f" and {len(options) - MAX_LISTED} more" if len(options) > MAX_LISTED else ""
    listed = f"known: {', '.join(options[:MAX_LISTED])}{more}"
    return f"did you mean '{close[0]}'? {listed}" if close else listed
