"""Parts shared by all jobs: flags, exit codes, short errors.

An error is one sentence and a hint.
"""

from __future__ import annotations

import argparse
import atexit
import logging
import math
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import date, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from recbench_spark import __version__
from recbench_spark.core.extras import explain, stop_without_core

stop_without_core()  # before the imports below, where old packages fail in their own words

from recbench_spark.config import INT, MAX_CURVE, NAME, refuse_secrets  # noqa: E402
from recbench_spark.errors import (  # noqa: E402
    FAILED,
    USAGE,
    ConfigError,
    Interrupted,
    RecbenchError,
    cut_middle,
    is_cancelled,
    nearest,
)
from recbench_spark.runtime.failures import describe_error, spark_errors  # noqa: E402

Number = TypeVar("Number", int, float)

HINTS = {USAGE: "--help lists every flag; --config demo is a benchmark file of this package"}
MAX_DAYS = 3660
"""Nights in one range: ten years. A longer range is a mistyped year."""

DEFAULT_HINT = "--debug shows the whole trace"
INTERRUPTED = (
    "interrupted, nothing published, run again\n"
    "  hint: models that were done before stay as they are; unfinished work starts again"
)


class Parser(argparse.ArgumentParser):
    """Reader of a job's flags.

    Every job has `--version` and `--debug`; wrong usage exits with code 2.
    """

    def __init__(self, description: str, epilog: str = "") -> None:
        super().__init__(
            description=description, epilog=epilog, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        self.add_argument("--version", action="version", version=f"recbench-spark {__version__}")
        self.add_argument("--debug", action="store_true", help="show the whole trace of an error")

    def error(self, message: str) -> NoReturn:
        """Print usage and mistake, and exit with code 2."""
        self.print_usage(sys.stderr)
        print(f"error: {cut_middle(message)}\n  hint: --help lists every flag", file=sys.stderr)
        sys.exit(USAGE)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Parse the flags, and check their values.

        A value must be fit to be printed, stored and passed to Spark.
        """
        parsed, rest = super().parse_known_args(args, namespace)
        for name, value in vars(parsed).items():
            if value != self.get_default(name):
                for part in value if isinstance(value, list | tuple) else [value]:
                    check_value(f"--{name.replace('_', '-')}", part)
        return parsed, rest


def check_value(flag: str, value: object) -> None:
    """Check one value of a flag.

    Raises:
        ConfigError: an empty text, a text with a secret, a number that is not finite or too large.
    """
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{flag} {value}: give a finite number")
    if isinstance(value, int) and abs(value) > INT:
        raise ConfigError(f"{flag}: a number between {-INT} and {INT} is expected", "give a smaller one")
    if isinstance(value, str | Path):
        check_text(flag, str(value))


def check_text(flag: str, text: str) -> None:
    """Check a text meant as name, path or setting.

    Raises:
        ConfigError: it is empty, not UTF-8, or holds a secret.
    """
    if not text.strip():
        raise ConfigError(f"{flag} is empty", "leave the flag out, or give it a value")
    if (
        "\0" in text or text.encode(errors="ignore").decode() != text
    ):  # Python keeps other bytes as surrogates
        raise ConfigError(f"{flag}: text that is not UTF-8", "check the terminal's encoding")
    refuse_secrets(text, flag)


def check_name(name: str) -> None:
    """Check a model's, suite's or benchmark's name.

    Raises:
        ConfigError: the name is not allowed.
    """
    if not NAME.fullmatch(name):
        raise ConfigError(f"'{name}' is not a usable name", "use letters, digits, dot, dash and underscore")


def run(
    main: Callable[[argparse.Namespace], int], parser: Parser, argv: Sequence[str] | None = None
) -> NoReturn:
    """Run a job, and exit with its code.

    An error ends in one sentence, never in a stack trace.
    """
    # Spark's Python side logs each error as JSON before raising it; the job prints it once, in words.
    logging.getLogger("SQLQueryContextLogger").disabled = True
    debug = "--debug" in (sys.argv if argv is None else argv)
    if not debug:  # py4j logs a broken connection, and raises an error too
        logging.getLogger().addFilter(hide_lost_command)
    before = _install_handlers()
    try:
        code = main(parser.parse_args(argv))
        sys.stdout.flush()
    except (Exception, KeyboardInterrupt, Interrupted) as error:
        code = _report_error(error, debug)
    finally:
        _job_ended.set()
        for number, handler in before.items():
            signal.signal(number, handler)
    _exit(code, own=argv is None)


def hide_lost_command(record: logging.LogRecord) -> bool:
    """Return False for py4j's record on a lost command.

    When Java does not answer, py4j logs this record with a trace.
    """
    return record.msg != "Exception while sending command."


# ------------------------------------------------------------------------------------- interruption

_signals: list[Interrupted] = []
"""The first signal. Later errors are its consequences."""

_job_ended = threading.Event()


def _install_handlers() -> dict[int, Any]:
    """Make Ctrl-C and SIGTERM end the job in order.

    Returns:
        The earlier handlers, by signal number.
    """
    _signals.clear()
    _job_ended.clear()
    if threading.current_thread() is not threading.main_thread():
        return {}
    return {number: signal.signal(number, _on_signal) for number in (signal.SIGINT, signal.SIGTERM)}


def _on_signal(number: int, frame: object) -> NoReturn:
    """Unwind the job at a first signal.

    Spark's jobs are cancelled meanwhile. A second signal exits at once.
    """
    if _signals:
        os._exit(128 + number)
    _signals.append(Interrupted(number))
    # In its own thread: this one waits for Java's answer, on a connection in use.
    threading.Thread(target=_cancel_jobs, daemon=True).start()
    raise _signals[0]


def _cancel_jobs() -> None:
    """Cancel Spark's jobs until the job has ended.

    A thread may still plan and start another Spark job.
    """
    while "pyspark" in sys.modules and not _job_ended.is_set():
        with suppress(Exception):  # Java may be gone already, with its jobs
            from recbench_spark.engine.sessions import cancel_jobs  # noqa: PLC0415

            cancel_jobs()
        _job_ended.wait(0.5)


# ------------------------------------------------------------------------------------------- errors


def read_error(error: BaseException) -> tuple[int, str]:
    """Return the exit code and the words for an error."""
    if isinstance(error, KeyboardInterrupt) or (isinstance(error, spark_errors()) and is_cancelled(error)):
        error = Interrupted()
    if _signals or isinstance(error, Interrupted):
        first = _signals[0] if _signals else error
        return int(getattr(first, "exit_code", FAILED)), INTERRUPTED
    error = explain(error)
    return error.exit_code if isinstance(error, RecbenchError) else FAILED, describe_error(error)


def _report_error(error: BaseException, debug: bool) -> int:
    """Print why a job ended, and return its exit code."""
    if isinstance(error, BrokenPipeError) and not _signals:
        return FAILED
    code, text = read_error(error)
    if text == INTERRUPTED:
        print(INTERRUPTED, file=sys.stderr, flush=True)
        return code
    if debug:
        traceback.print_exception(error)
    default_hint = "the trace is above" if debug else HINTS.get(code, DEFAULT_HINT)
    text, _, hint = text.partition("\n  hint: ")
    print(f"error: {cut_middle(text)}\n  hint: {cut_middle(hint) or default_hint}", file=sys.stderr)
    return code


def _exit(code: int, own: bool) -> NoReturn:
    """Flush the output and exit.

    Args:
        code: exit code of the job.
        own: the job owns the process, which ends without waiting for other threads.
    """
    try:
        sys.stdout.flush()
    except (OSError, ValueError) as error:
        if not code and not isinstance(error, BrokenPipeError):
            print(
                f"error: cannot print: {error}\n  hint: the work is done; is the disk full?",
                file=sys.stderr,
            )
        code = code or FAILED
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if _signals:
        os._exit(code)  # at once, without errors from cut threads; Java ends with its pipe
    if own:
        _exit_codes.append(code)
    sys.exit(code)


_exit_codes: list[int] = []
"""Exit code of a job with its own process."""


def _end_process() -> None:
    """End the process before Python shuts down its interpreter.

    Arrow's readers close Python files in their own threads, sometimes after the work is done. A thread
    which takes the interpreter lock during the shutdown is stopped, and C++ then aborts the process: a job
    whose rows were published ended with code 134 (apache/arrow issues 34314 and 36980).
    """
    if _exit_codes:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(_exit_codes[-1])


# Registered before a job loads its libraries, to run after their own exit handlers.
atexit.register(_end_process)


def find_library_python(name: str, environments: Path) -> str:
    """Return the Python in another library's environment.

    Jobs use it to measure this library.

    Raises:
        ConfigError: the environment does not exist.
    """
    python = environments / name / "bin" / "python"
    if not python.exists():
        raise ConfigError(f"no environment {python}", f"tools/library_envs.sh {name}")
    return str(python)


def parse_days(text: str) -> tuple[date, ...]:
    """Parse days in a flag into dates, earliest first.

    The text is `FIRST..LAST` with both ends included, or dates with commas between them.
    """
    begin_text, dots, end_text = text.partition("..")
    if not dots:
        dates = sorted(map(parse_day, text.split(",")))
        twice = [str(date_) for date_, next_date in pairwise(dates) if date_ == next_date]
        if twice:
            raise argparse.ArgumentTypeError(f"{twice[0]} occurs twice in '{text}': name each day once")
        return tuple(dates)
    first, last = parse_day(begin_text), parse_day(end_text)
    if last < first:
        raise argparse.ArgumentTypeError(f"'{text}' ends before it begins: write the earlier day first")
    if (last - first).days >= MAX_DAYS:
        raise argparse.ArgumentTypeError(f"'{text}' is more than {MAX_DAYS} days: is the year right?")
    return tuple(first + timedelta(days=n) for n in range((last - first).days + 1))


def parse_day(text: str) -> date:
    """Parse a flag's date.

    The form is `YYYY-MM-DD`, or `YYYY-MM-DD-1d` for the day before. The second form is for schedulers which
    know only the day they start on.
    """
    date_text, earlier = re.fullmatch(r"(.*?)(?:-(\d+)d)?", text, re.DOTALL).groups()  # type: ignore[union-attr]
    try:
        return date.fromisoformat(date_text) - timedelta(days=int(earlier or 0))
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(f"'{text}' is not a date like 2026-01-31") from None


MANY: dict[str, Any] = {"action": "append", "default": []}
"""Arguments of `add_argument` for a repeatable flag."""

JOURNAL = "JSON-lines log (default: WAREHOUSE/logs/...jsonl where that is local)"

SHARED: dict[str, dict[str, Any]] = {
    "config": {"required": True, "help": "benchmark file, or its name under conf/benchmarks"},
    "warehouse": {"required": True, "help": "directory or catalog.schema of the tables"},
    "set": {**MANY, "metavar": "A.B=C", "help": "replace one setting"},
    "logical-date": {"type": parse_day, "help": "fills {logical_date} in, YYYY-MM-DD"},
    "dry-run": {"action": "store_true", "help": "check flags and inputs, say what would be done"},
    "engine": {
        "choices": ("auto", "local", "spark"),
        "default": "auto",
        "help": "runner: this machine, Spark, or by the work (default)",
    },
    "log": {"metavar": "PATH", "help": "interactions: CSV, Parquet or Delta, file or folder"},
    "columns": {"default": "", "help": "with --log: NAME=COLUMN,... e.g. user_id=userId"},
    "journal": {"help": JOURNAL},
    "force": {"action": "store_true", "help": "run again what has succeeded, as a new attempt"},
    "suite": {"default": "standalone", "help": "name under which runs are compared"},
    "floor": {"type": float, "help": "raise smaller propensities to it, lower others to 1"},
    "edges": {"metavar": "PATH", "help": "edge list: CSV, Parquet or Delta, file or folder"},
    "split": {"metavar": "ID", "help": "training part of a split of this warehouse"},
}
"""Arguments of `add_argument` for each flag that several commands share."""


def add_flags(flags: argparse._ActionsContainer, *names: str, **changes: Any) -> None:
    """Add shared flags with their usual settings.

    Several commands have these flags; `changes` hold for all names given.
    """
    for name in names:
        flags.add_argument(f"--{name}", **{**SHARED[name], **changes})


def _split_numbers(text: str, kind: type[Number], example: str) -> tuple[Number, ...]:
    try:
        return tuple(map(kind, text.split(",")))
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is not a list like {example}") from None


def parse_cutoffs(text: str) -> tuple[int, ...]:
    """Parse cut-offs in a flag: `1,3,10`."""
    cuts = tuple(sorted(set(_split_numbers(text, int, "1,3,10"))))
    if cuts[0] < 1:
        raise argparse.ArgumentTypeError(f"cut-offs start at 1, and {cuts[0]} was given")
    if cuts[-1] > INT:
        raise argparse.ArgumentTypeError(f"cut-offs end at {INT}")
    return cuts


def parse_count(text: str) -> int:
    """Parse a whole number from 1 on."""
    if not re.fullmatch("[0-9]{1,10}", text) or not 1 <= int(text) <= INT:
        raise argparse.ArgumentTypeError(f"'{text[:50]}' is not a whole number from 1 to {INT}")
    return int(text)


MAX_THREADS = 1024
"""Threads for one fit: more than any machine has cores."""


def parse_threads(text: str) -> int:
    """Parse a number of threads."""
    if parse_count(text) > MAX_THREADS:
        raise argparse.ArgumentTypeError(f"'{text}': at most {MAX_THREADS} threads")
    return int(text)


def parse_counts(text: str) -> tuple[int, ...]:
    """Parse whole numbers from 1 on, in given order: `50,100,200`."""
    return tuple(parse_count(part) for part in text.split(","))


def parse_seeds(text: str) -> tuple[int, ...]:
    """Parse different whole numbers from 0 such as 0,1,2."""
    numbers = _split_numbers(text, int, "0,1,2")
    if len(set(numbers)) < len(numbers) or min(numbers) < 0:
        raise argparse.ArgumentTypeError(f"'{text}': whole numbers from 0, each once")
    return numbers


def expand_curve(cuts: Sequence[int]) -> tuple[int, ...]:
    """Return every cut-off from 1 to the largest."""
    if max(cuts) > MAX_CURVE:
        raise ConfigError(f"--curve up to {max(cuts)}: every cut-off is kept, at most {MAX_CURVE}")
    return tuple(range(1, max(cuts) + 1))


def parse_names(text: str, flag: str, known: Iterable[str] = ()) -> tuple[str, ...]:
    """Parse names in a flag, each once: `recall,ndcg`."""
    parts = tuple(name.strip() for name in text.split(","))
    listed = tuple(known)
    for name in parts:
        if not name or parts.count(name) > 1:
            raise ConfigError(f"{flag} {text}: '{name}' is given twice or is empty", "name each one once")
        if listed and name not in listed:
            raise ConfigError(f"{flag}: unknown '{name}'", nearest(name, listed))
    return parts


def parse_columns(text: str, example: str, flag: str = "--columns") -> dict[str, str]:
    """Parse a list of columns, `standard=source,...`.

    The result maps a standard name to the file's column.

    Args:
        text: the list.
        example: a correct list, for the hint.
        flag: the list's flag, for the message.

    Raises:
        ConfigError: the text is not such a list, or a standard name stands in it twice.
    """
    columns: dict[str, str] = {}
    word = "NAME=COLUMN" if flag == "--columns" else "SETTING=VALUE"
    for standard, equals, source in (pair.partition("=") for pair in text.split(",") if pair):
        if not (standard and equals and source):
            raise ConfigError(f"{flag} {text}: expected {word},...", f"e.g. {example}")
        if standard in columns:
            message = f"{flag} {text}: {standard} is given twice, as {columns[standard]} and as {source}"
            raise ConfigError(message, "give each standard name one column")
        columns[standard] = source
    return columns


def parse_numbers(text: str) -> tuple[float, ...]:
    """Parse finite numbers in a flag, each once: `0.1,0.5`."""
    values = _split_numbers(text, float, "0.1,0.5")
    if not all(map(math.isfinite, values)) or len(set(values)) < len(values):
        raise argparse.ArgumentTypeError(f"'{text}': finite numbers, each once")
    return values


def parse_axes(pairs: Sequence[str]) -> dict[str, str | float | None]:
    """Parse `definition.AXIS=VALUE` pairs into axis -> value."""
    values: dict[str, str | float | None] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        section, dot, axis = key.partition(".")
        if not equals or not dot or section != "definition":
            raise ConfigError(
                f"--set {pair}: expected definition.AXIS=VALUE", "e.g. definition.gain=linear"
            )
        values[axis] = _parse_number(value)
    return values


def _parse_number(text: str) -> str | float | None:
    if text.lower() in ("none", "null", ""):
        return None
    try:
        return float(text)
    except ValueError:
        return text
