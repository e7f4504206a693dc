"""Environments of the matrix: made once by uv, and kept in a folder outside the checkout."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from recbench_spark.engine.platforms import DELTA_JARS, name_version

ROOT = Path(__file__).resolve().parents[2]
CONNECT = ("grpcio", "grpcio-status", "googleapis-common-protos", "protobuf", "zstandard")
"""Packages that pyspark needs as a client of Spark Connect."""

ONE_AT_A_TIME = Lock()
"""Cells side by side may want the same environment."""


class MissingError(Exception):
    """Tell why an environment cannot be made here."""


@dataclass(frozen=True)
class Environment:
    """Packages of an environment.

    One with `python` has nothing else but what pyproject.toml asks for. One without stands on this
    interpreter's packages, so that torch is not installed again, and its own come first.
    """

    packages: tuple[str, ...] = ()
    python: str = ""


@dataclass(frozen=True)
class Cell:
    """A row of the matrix: the environment of the job, and that of its Connect server."""

    environment: str
    server: str = ""


def _spark(version: str) -> Environment:
    delta = DELTA_JARS[name_version(version)].rpartition(":")[2]
    return Environment((f"pyspark=={version}", "py4j==0.10.9.9", f"delta-spark=={delta}", *CONNECT))


THIS = "4.2"
"""Environment of this interpreter, with which all others are compared."""

THIS_PYTHON = "{}.{}".format(*sys.version_info)

RETRIEVAL = "faiss-cpu>=1.12"

ENVIRONMENTS: Mapping[str, Environment] = {
    "3.5": _spark("3.5.9"),
    "4.0": _spark("4.0.5"),
    "4.1": _spark("4.1.3"),
    THIS: Environment(),
    "4.1-client": Environment(("pyspark-client==4.1.3", "pandas<3", RETRIEVAL), THIS_PYTHON),
    "4.2-client": Environment(("pyspark-client==4.2.0", "pandas<3", RETRIEVAL), THIS_PYTHON),
    "python-3.12": Environment(("pyspark==4.2.0", "delta-spark==4.4.0", "pandas<3", RETRIEVAL), "3.12"),
    "python-3.13": Environment(("pyspark==4.2.0", "delta-spark==4.4.0", "pandas>=3", RETRIEVAL), "3.13"),
}

CELLS: Mapping[str, Cell] = {
    THIS: Cell(THIS),
    "3.5": Cell("3.5"),
    "4.0": Cell("4.0"),
    "4.1": Cell("4.1"),
    "3.5-connect": Cell("3.5", "3.5"),
    "4.0-connect": Cell("4.0", "4.0"),
    "4.1-connect": Cell("4.1-client", "4.1"),
    "4.2-connect": Cell("4.2-client", THIS),
    "python-3.12": Cell("python-3.12"),
    "python-3.13": Cell("python-3.13"),
}
"""Rows of the matrix."""


def make_environment(folder: Path, name: str) -> Path:
    """Return the Python of an environment; make it if it is missing or other packages are wanted.

    Raises:
        MissingError: this machine lacks its Python, or uv cannot install it.
    """
    environment = ENVIRONMENTS[name]
    if name == THIS:
        return Path(sys.executable)
    place = folder / "envs" / name
    note, wanted = place / "wanted.json", json.dumps(list_packages(environment))
    with ONE_AT_A_TIME:
        if not note.is_file() or note.read_text(encoding="utf-8") != wanted:
            run_uv("venv", "--clear", "--python", str(find_python(environment.python)), str(place))
            _install(place / "bin" / "python", environment)
            note.write_text(wanted, encoding="utf-8")
    if not environment.python:
        _layer(place)
    return place / "bin" / "python"


def list_packages(environment: Environment) -> list[str]:
    """Return what is installed: with the core's own packages, unless it stands on this interpreter's."""
    if not environment.python:
        return list(environment.packages)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = {_name(package) for package in environment.packages}
    return [*environment.packages, *(p for p in project["dependencies"] if _name(p) not in named)]


def _name(package: str) -> str:
    return re.split(r"[<>=!\[ ]", package)[0]


def _install(python: Path, environment: Environment) -> None:
    alone = [] if environment.python else ["--no-deps"]
    run_uv("pip", "install", "--python", str(python), *alone, *list_packages(environment))


def _layer(place: Path) -> None:
    """Show this interpreter's packages to an environment, after its own."""
    packages = place / "lib" / f"python{THIS_PYTHON}" / "site-packages"
    (packages / "zz_layer.pth").write_text(f"{sysconfig.get_path('purelib')}\n", encoding="utf-8")


def find_python(version: str) -> Path:
    """Return the interpreter of a version, of pyenv or on PATH; this one for no version.

    Raises:
        MissingError: there is none.
    """
    if version in ("", THIS_PYTHON):
        return Path(sys.executable).resolve()
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv", "versions")
    for place in sorted(pyenv.glob(f"{version}.*/bin/python{version}")):
        return place
    program = shutil.which(f"python{version}")
    # A shim of pyenv on PATH may start nothing.
    if program and not subprocess.run([program, "--version"], check=False, capture_output=True).returncode:
        return Path(program)
    raise MissingError(f"no Python {version} on this machine")


def run_uv(*words: str) -> None:
    """Run a command of uv; raise MissingError where there is no uv, or it ends badly."""
    beside = Path(sys.executable).with_name("uv")
    program = str(beside) if beside.is_file() else shutil.which("uv")
    if not program:
        raise MissingError("no uv: run `make setup`")
    done = subprocess.run([program, *words], check=False, capture_output=True, text=True)
    if done.returncode:
        raise MissingError(f"uv {words[0]}: {done.stderr.strip().splitlines()[-1]}")
