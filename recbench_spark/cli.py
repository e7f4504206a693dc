"""What all jobs share: flags, exit codes, and errors that end in one sentence and a hint."""

from __future__ import annotations

import argparse
import logging
import os
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import NoReturn

from recbench_spark import __version__
from recbench_spark.errors import FAILED, USAGE, ConfigError, RecbenchError


class Parser(argparse.ArgumentParser):
    """An argument parser with `--version` and `--debug`, and 2 as the exit code of wrong usage."""

    def __init__(self, description: str, epilog: str = "") -> None:
        super().__init__(
            description=description, epilog=epilog, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        self.add_argument("--version", action="version", version=f"recbench-spark {__version__}")
        self.add_argument("--debug", action="store_true", help="show the whole trace of an error")

    def error(self, message: str) -> NoReturn:
        """Usage, the mistake, exit code 2."""
        self.print_usage(sys.stderr)
        print(f"error: {message}\n  hint: --help lists every flag", file=sys.stderr)
        sys.exit(USAGE)


def run(
    main: Callable[[argparse.Namespace], int], parser: Parser, argv: Sequence[str] | None = None
) -> NoReturn:
    """Run a job and exit with its code; an error's last word is one sentence, never a stack trace."""
    args = parser.parse_args(argv)
    # Spark's Python side logs each error as JSON before it raises it; we tell it once, in words.
    logging.getLogger("SQLQueryContextLogger").disabled = True
    code = FAILED
    try:
        code = main(args)
    except BrokenPipeError:
        code = FAILED
    except RecbenchError as error:
        _tell(error, str(error), args.debug)
        code = error.exit_code
    except _spark_errors() as error:
        from recbench_spark.store import explain  # noqa: PLC0415

        _tell(error, explain(error), args.debug)
    except ConnectionError as error:
        _tell(error, "the connection to Spark broke: its Java process has ended", args.debug)
    except KeyboardInterrupt:
        print("interrupted: nothing of the unfinished run is visible", file=sys.stderr)
    _exit(code)


def _spark_errors() -> tuple[type[Exception], ...]:
    """None where Spark was not loaded: a job that measures kernels runs without it."""
    if "pyspark" not in sys.modules:
        return ()
    from py4j.protocol import Py4JError  # noqa: PLC0415
    from pyspark.errors import PySparkException  # noqa: PLC0415

    return PySparkException, Py4JError


def _tell(error: BaseException, text: str, debug: bool) -> None:
    if debug:
        traceback.print_exception(error)
    print(f"error: {text}", file=sys.stderr)


def _exit(code: int) -> NoReturn:
    """Flush and leave; the JVM of a bare python job ends with its pipe."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


def library_python(name: str, environments: Path) -> str:
    """The Python of another library's environment, for the jobs that measure beside it."""
    found = environments / name / "bin" / "python"
    if not found.exists():
        raise ConfigError(f"no environment {found}", f"tools/library_envs.sh {name}")
    return str(found)


def day(text: str) -> date:
    """A date on the command line: YYYY-MM-DD, or YYYY-MM-DD-1d, a day earlier.

    The second is for schedulers that know the day they start on and cannot count.
    """
    written, earlier = re.fullmatch(r"(.*?)(?:-(\d+)d)?", text, re.DOTALL).groups()  # type: ignore[union-attr]
    try:
        return date.fromisoformat(written) - timedelta(days=int(earlier or 0))
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is not a date like 2026-01-31") from None


def cutoffs(text: str) -> tuple[int, ...]:
    """Cut-offs on the command line: 1,3,10."""
    try:
        found = tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is not a list like 1,3,10") from None
    if found[0] < 1:
        raise argparse.ArgumentTypeError(f"cut-offs start at 1, and {found[0]} was given")
    return found


def numbers(text: str) -> tuple[float, ...]:
    """Numbers on the command line: 0.1,0.5."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is not a list like 0.1,0.5") from None


def axes(pairs: Sequence[str]) -> dict[str, str | float | None]:
    """`definition.AXIS=VALUE` pairs as axes of a definition."""
    found: dict[str, str | float | None] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        section, dot, axis = key.partition(".")
        if not equals or not dot or section != "definition":
            raise ConfigError(
                f"--set {pair}: expected definition.AXIS=VALUE", "e.g. definition.gain=linear"
            )
        found[axis] = _number(value)
    return found


def _number(text: str) -> str | float | None:
    if text.lower() in ("none", "null", ""):
        return None
    try:
        return float(text)
    except ValueError:
        return text
