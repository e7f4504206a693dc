"""Environments of Python that a test makes from the package index."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tools.platforms.environments import ROOT, MissingError, find_python, run_uv

UV = ROOT / ".venv" / "bin" / "uv"


def make_environment(folder: Path, python: str, packages: Sequence[str]) -> Path:
    """Return the Python of a new environment with these packages; skip the test where that cannot be.

    Args:
        folder: a place for it.
        python: the version of Python, such as 3.12.
        packages: requirements, installed at once.
    """
    own = folder / "bin" / "python"
    try:
        run_uv("venv", "--quiet", "--seed", "--python", str(find_python(python)), str(folder))
        run_uv("pip", "install", "--quiet", "--python", str(own), *packages)
    except MissingError as error:
        pytest.skip(str(error))
    return own
