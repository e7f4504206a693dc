"""Every error a user can meet: what was found, where, and a hint at what to do.

Jobs print `str(error)` as the last word and exit with `error.exit_code`; a stack trace of Java or
Python is never the last thing a user sees.
"""

from __future__ import annotations

import difflib
import signal
from collections.abc import Iterable

OK, FAILED, USAGE, GATE, REGRESSION = 0, 1, 2, 3, 4
"""Exit codes of every job: fine, failed, wrong usage or config, quality gate, regression."""

MAX_LETTERS = 3000
"""Letters of a message or a hint."""

MAX_LISTED = 50
"""Names that a hint lists at most."""


class RecbenchError(Exception):
    """Base of all errors: one sentence of what is wrong, and a hint."""

    exit_code = FAILED

    def __init__(self, message: str, hint: str = "") -> None:
        self.message = cut_middle(message)
        self.hint = cut_middle(hint)
        super().__init__(self.message)

    def __str__(self) -> str:
        """The message, with the hint on a line of its own."""
        return f"{self.message}\n  hint: {self.hint}" if self.hint else self.message


class ConfigError(RecbenchError):
    """A file, key, flag or value that the user gave is wrong."""

    exit_code = USAGE


class SchemaError(RecbenchError):
    """A table lacks a column, or a column is of another type."""


class MissingError(RecbenchError):
    """A file or folder that is not there, or not yet: what wrote the setting right may be tried again."""


class DataError(RecbenchError):
    """Rows that cannot be evaluated: NaN scores, duplicates under `duplicates=error`, no test rows."""


class DivergedError(DataError):
    """A fit whose numbers left all bounds: a finding about its settings, and no fault of the data."""


class FallbackToSpark(DataError):  # noqa: N818 (a signal, caught where it is awaited)
    """A value that a task does not take as it is; Spark's readers take it, or say what is wrong with it."""


class ProtocolError(RecbenchError):
    """A split or candidate protocol cannot be carried out on this log."""


class StoreError(RecbenchError):
    """The warehouse cannot be read or written."""


class GateError(RecbenchError):
    """A quality gate failed the night."""

    exit_code = GATE


class Interrupted(BaseException):
    """Ctrl-C, SIGTERM, or Spark's jobs cancelled: no error of a model, and nothing catches it on its way.

    `exit_code` is 128 and the signal's number, as a shell has it.
    """

    def __init__(self, number: int = signal.SIGINT) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


def cut_middle(text: str, longest: int = MAX_LETTERS) -> str:
    """Return a text without its middle where it has more than so many letters.

    >>> cut_middle("recall", 4)
    're ... ll'
    """
    return text if len(text) <= longest else f"{text[: longest // 2]} ... {text[-(longest // 2) :]}"


def show_value(value: object, longest: int = 100) -> str:
    """Return any value in one short line, as a message names it.

    >>> show_value([1, "two"])
    "[1, 'two']"
    """
    return cut_middle(" ".join(repr(value).split()), longest)


def is_cancelled(error: BaseException) -> bool:
    """Whether Spark's jobs were cancelled, which says nothing of a model or of the data."""
    return "SPARK_JOB_CANCELLED" in str(error)


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint such as `did you mean 'ndcg'? Known: hit, map, ndcg`."""
    options = sorted(str(option) for option in known)
    if not options:
        return "there is none"
    close = difflib.get_close_matches(str(name), options, n=1, cutoff=0.5)
    more = f" and {len(options) - MAX_LISTED} more" if len(options) > MAX_LISTED else ""
    listed = f"known: {', '.join(options[:MAX_LISTED])}{more}"
    return f"did you mean '{close[0]}'? {listed}" if close else listed
