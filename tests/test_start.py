"""The paths of docs/start and the first blocks of how-tos, run as printed, beside their output."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PATHS = sorted((ROOT / "docs" / "start").glob("*.md"))
BLOCK = re.compile(r"^```(python|bash|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
HOW_TOS = sorted((ROOT / "docs" / "how_to").glob("*.md"))
WITH_LOG = [ROOT / "docs" / "how_to" / f"{name}.md" for name in ("sessions", "shop_log")]
"""How-tos that write a log of their own, and run whole."""

ONLY_ONCE = ("make setup", ". .venv/bin/activate")
"""Lines that install what these tests run in."""


def read_steps(page: str) -> list[tuple[str, str, list[str]]]:
    """Return kind and text of each block that runs, with the lines of output below it; Python first."""
    steps: list[tuple[str, str, list[str]]] = []
    for kind, body in BLOCK.findall(page):
        if kind == "text":
            steps[-1][2].extend(body.splitlines())
        else:
            steps.append((kind, body, []))
    return sorted(steps, key=lambda step: step[0] != "python")


def run_step(kind: str, body: str, folder: Path) -> str:
    """Return what a block prints, on both streams, in a folder of its own."""
    lines = [line for line in body.splitlines() if line not in ONLY_ONCE]
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": programs, "COLUMNS": "200"}
    command = [sys.executable, "-"] if kind == "python" else ["bash", "-s"]
    ended = subprocess.run(
        command,
        input="\n".join(lines) + "\n",
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout
    return ended.stdout


def find_missing(lines: list[str], output: str) -> list[str]:
    """Return the lines of a page that the output has not, in its order; `...` stands for any text."""
    printed = iter([" ".join(line.split()) for line in output.splitlines()])
    patterns = [re.escape(" ".join(line.split())).replace(r"\.\.\.", ".*") for line in lines]
    return [line for line, pattern in zip(lines, patterns, strict=True) if not is_next(pattern, printed)]


def is_next(pattern: str, printed: Iterator[str]) -> bool:
    """True if a later line matches as a whole; takes all lines up to it."""
    return any(re.fullmatch(pattern, line) for line in printed)


def test_a_line_that_is_not_printed_is_seen() -> None:
    page = "```bash\nb\n```\n```text\nsecond\n```\n```python\na\n```\n```text\nfirst\n```\n"
    assert read_steps(page) == [("python", "a\n", ["first"]), ("bash", "b\n", ["second"])]
    assert find_missing(["b  1"], "a\nb 1\n") == []
    assert find_missing(["b 1", "a"], "a\nb 1\n") == ["a"], "another order"
    assert find_missing(["b"], "b 1\n") == ["b"], "a part of a line"
    assert find_missing(["... passed in ..."], "97 passed in 3 s\n") == []


def test_each_reader_has_a_path_that_begins_with_commands_and_output() -> None:
    assert [path.stem for path in PATHS] == ["contributor", "graph_platform", "nightly_team", "researcher"]
    for path in PATHS:
        before, kind, body = re.split(r"^```(\w+)\n", path.read_text(), maxsplit=1, flags=re.MULTILINE)
        assert len(before.split()) <= 60 and kind in ("bash", "python"), path.name
        assert re.match(r".*?^```\n\n```text\n", body, re.MULTILINE | re.DOTALL), path.name
        assert body.index("```text") < body.index("\n## "), path.name


@pytest.mark.full
@pytest.mark.parametrize("path", [*PATHS, *WITH_LOG], ids=lambda path: path.stem)
def test_a_path_prints_what_stands_there(path: Path, tmp_path: Path) -> None:
    if path.stem == "contributor":
        for name in ("tests", "recbench_spark"):
            (tmp_path / name).symlink_to(ROOT / name)
    for kind, body, lines in read_steps(path.read_text()):
        output = run_step(kind, body, tmp_path)
        assert (lines or kind == "python") and find_missing(lines, output) == [], output


# ------------------------------------------------------------------------------- how-tos


def has_first_block_that_runs(path: Path) -> bool:
    """True if the first block of a page is of bash; others need a cluster, data, or minutes."""
    return path not in WITH_LOG and re.findall(r"^```(\w*)$", path.read_text(), re.MULTILINE)[0] == "bash"


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The log of the nightly team, its benchmark file, and the warehouse with its first night."""
    folder = tmp_path_factory.mktemp("shop")
    path = ROOT / "docs" / "start" / "nightly_team.md"
    for kind, body, _ in read_steps(path.read_text())[:2]:
        run_step(kind, body, folder)
    return folder


def test_each_how_to_begins_with_commands_and_output() -> None:
    assert len(HOW_TOS) >= 20
    for path in HOW_TOS:
        before, kind, body = re.split(r"^```(\w*)\n", path.read_text(), maxsplit=1, flags=re.MULTILINE)
        assert len(before.split()) <= 60 and "\n## " not in before and kind in ("", "bash"), path.name
        assert re.match(r"[^`]*^```\n\n```text\n", body, re.MULTILINE), path.name


@pytest.mark.full
@pytest.mark.parametrize(
    "path", [path for path in HOW_TOS if has_first_block_that_runs(path)], ids=lambda path: path.stem
)
def test_a_how_to_begins_with_what_is_printed(path: Path, shop: Path, tmp_path: Path) -> None:
    text = path.read_text()
    shutil.copytree(shop, tmp_path, dirs_exist_ok=True)
    for body in re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        if "\nclass " in body and "my_models" in text:
            (tmp_path / "my_models.py").write_text(body)
    (_, body, lines) = next(step for step in read_steps(text) if step[0] == "bash")
    output = run_step("bash", body, tmp_path)
    assert lines and find_missing(lines, output) == [], output
