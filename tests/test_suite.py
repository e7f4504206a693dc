"""The suite itself: marks follow from fixtures, and each command has a contract test."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from recbench_spark.commands.dispatch import list_commands

ROOT = Path(__file__).resolve().parent.parent


def contracts(file: Path) -> Iterator[str]:
    """Yield the names in the marks `contract` of a file of tests."""
    text = file.read_text()
    for node in ast.walk(ast.parse(text)) if "mark.contract" in text else ():
        for mark in getattr(node, "decorator_list", ()):
            if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.contract":
                yield from (ast.literal_eval(name) for name in mark.args)


def test_each_command_has_a_contract_test() -> None:
    names = [name for file in (ROOT / "tests").rglob("test_*.py") for name in contracts(file)]
    assert sorted(names) == sorted(list_commands().keys() - {"completion"})


def run_pytest(folder: Path, text: str, *flags: str) -> tuple[int, str]:
    """Run a file of tests under the hooks of this suite; return the exit code and the output."""
    (folder / "test_it.py").write_text(f"import pytest\n{text}")
    (folder / "pytest.ini").write_text(
        f"[pytest]\npythonpath = {ROOT}\nmarkers = \n    spark\n    full\n    contract\n"
    )
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "tests.conftest",
        "-p",
        "no:cacheprovider",
        "-q",
        *flags,
    ]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.full
def test_a_mark_of_spark_without_a_fixture_is_refused(tmp_path: Path) -> None:
    code, output = run_pytest(tmp_path, "@pytest.mark.spark\ndef test_it(): pass\n")
    assert code == pytest.ExitCode.USAGE_ERROR
    assert "test_it.py::test_it is marked spark and requests none of" in output


START = """
def test_it():
    from recbench_spark.runtime.session import get_session
    get_session("unmarked")
"""


@pytest.mark.full
def test_a_test_without_the_fixture_starts_no_jvm(tmp_path: Path) -> None:
    code, output = run_pytest(tmp_path, START)
    assert code == pytest.ExitCode.TESTS_FAILED and "/nonexistent/java" in output


MANY = """
def test_plain(): pass
def test_spark(spark): pass
def test_process(own_jvm): pass
def test_night(small_night): pass
def test_other_night(spark, small_night): pass
@pytest.mark.contract("nightly")
def test_contract(spark): pass
@pytest.mark.parametrize("engine", ["local", pytest.param("spark", marks=pytest.mark.spark)])
def test_engine(engine): pass
"""
PARTS = {
    "spark": {"spark", "process", "other_night", "contract", "engine[spark]"},
    "full": {"spark", "process", "engine[spark]"},
    "not full": {"plain", "night", "other_night", "contract", "engine[local]"},
}


@pytest.mark.full
@pytest.mark.parametrize("expression", PARTS)
def test_fixtures_decide_where_a_test_runs(expression: str, tmp_path: Path) -> None:
    code, output = run_pytest(tmp_path, MANY, "--collect-only", "-m", expression)
    names = {line.partition("::test_")[2] for line in output.splitlines() if "::" in line}
    assert code == 0 and names == PARTS[expression]
