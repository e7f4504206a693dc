"""Flags, exit codes, and errors that end in one sentence: what all jobs share. No JVM."""

from __future__ import annotations

import argparse
import subprocess
import sys
from datetime import date
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException

from recbench_spark import __version__, cli
from recbench_spark.errors import ConfigError, DataError, GateError

ROOT = Path(__file__).resolve().parent.parent


def _ended(main, capsys, *argv: str) -> tuple[int | str | None, str, str]:
    with pytest.raises(SystemExit) as ended:
        cli.run(main, cli.Parser("A job."), list(argv))
    return ended.value.code, *capsys.readouterr()


def _raising(error: BaseException):
    def main(args: argparse.Namespace) -> int:
        raise error

    return main


@pytest.mark.parametrize(
    ("error", "code"),
    [(ConfigError("wrong", "try this"), 2), (DataError("wrong", "try this"), 1), (GateError("wrong"), 3)],
)
def test_errors_end_in_a_sentence(capsys, error, code):
    ended, out, err = _ended(_raising(error), capsys)
    assert (ended, out) == (code, "")
    assert err == f"error: {error}\n"


def test_spark_errors_lose_their_stack(capsys):
    message = "[TABLE_OR_VIEW_NOT_FOUND] no table t\n\tat org.apache.spark.Thing"
    code, _, err = _ended(_raising(AnalysisException(message)), capsys)
    assert code == 1 and err == "error: [TABLE_OR_VIEW_NOT_FOUND] no table t\n"


def test_debug_shows_the_trace(capsys):
    _, _, err = _ended(_raising(DataError("wrong")), capsys, "--debug")
    assert "Traceback" in err and err.endswith("error: wrong\n")


def test_interrupted(capsys):
    code, _, err = _ended(_raising(KeyboardInterrupt()), capsys)
    assert code == 1 and "nothing of the unfinished run is visible" in err


def test_own_code_and_closed_pipe(capsys):
    assert _ended(lambda args: 4, capsys)[0] == 4
    assert _ended(_raising(BrokenPipeError()), capsys)[0] == 1


def test_unknown_flag(capsys):
    code, _, err = _ended(lambda args: 0, capsys, "--nope")
    assert code == 2 and "--nope" in err and "--help" in err


def test_version(capsys):
    code, out, _ = _ended(lambda args: 1, capsys, "--version")
    assert code == 0 and out == f"recbench-spark {__version__}\n"


def test_cutoffs():
    assert cli.cutoffs("10,1,3,3") == (1, 3, 10)
    for wrong in ("0", "-1,2", "ten", "1.5", "", "1,,2"):
        with pytest.raises(argparse.ArgumentTypeError):
            cli.cutoffs(wrong)


def test_day():
    assert cli.day("2026-01-31") == date(2026, 1, 31)
    for wrong in ("31.1.2026", "2026-02-30", ""):
        with pytest.raises(argparse.ArgumentTypeError, match="not a date"):
            cli.day(wrong)


def test_axes():
    pairs = ["definition.gain=linear", "definition.threshold=4", "definition.threshold=none"]
    assert cli.axes(pairs[:2]) == {"gain": "linear", "threshold": 4.0}
    assert cli.axes(pairs) == {"gain": "linear", "threshold": None}
    for wrong in ("gain=linear", "definition.gain", "evaluation.k=3"):
        with pytest.raises(ConfigError, match=wrong):
            cli.axes([wrong])


@pytest.mark.parametrize("flag", ["--help", "--version"])
def test_evaluate_answers_without_a_jvm(tmp_path, flag):
    """With no Java to be found the two flags still answer: no session is made for them."""
    command = [sys.executable, str(ROOT / "jobs" / "evaluate.py"), flag]
    bare = {"PATH": "", "JAVA_HOME": str(tmp_path / "no-java")}
    done = subprocess.run(
        command, cwd=tmp_path, env=bare, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "--warehouse" in done.stdout if flag == "--help" else __version__ in done.stdout


@pytest.mark.parametrize(
    ("text", "day"),
    [("2026-03-01", "2026-03-01"), ("2026-03-01-1d", "2026-02-28"), ("2026-01-31-0d", "2026-01-31")],
)
def test_a_day_may_be_counted_back(text: str, day: str) -> None:
    assert str(cli.day(text)) == day


@pytest.mark.parametrize("text", ["2026-03-01-d", "-1d", "today-1d", "2026-03-01-1"])
def test_other_days_are_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is not a date"):
        cli.day(text)
