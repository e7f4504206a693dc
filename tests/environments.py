"""Environments of Python that a test makes from the package index."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
UV = ROOT / ".venv" / "bin" / "uv"


def make_environment(folder: Path, python: str, packages: Sequence[str]) -> Path:
    """Return the Python of a new environment with these packages; skip the test where that cannot be.

    Args:
        folder: a place for it.
        python: the version of Python, such as 3.12.
        packages: requirements, installed at once.
    """
    if not UV.exists():
        pytest.skip("no uv: `make setup` installs it")
    own = folder / "bin" / "python"
    run_or_skip(UV, "venv", "--quiet", "--seed", "--python", find_interpreter(python), folder)
    run_or_skip(UV, "pip", "install", "--quiet", "--python", own, *packages)
    return own


def find_interpreter(version: str) -> str:
    """Return the path of pyenv's interpreter of a version, which uv does not find by its name."""
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    return next(map(str, sorted(versions.glob(f"{version}.*/bin/python"))), version)


def run_or_skip(*words: str | Path) -> None:
    """Run a command of uv; skip the test where there is no interpreter or no package index."""
    done = subprocess.run([*map(str, words)], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"{words[1]}: {done.stderr.strip().splitlines()[-1]}")
