"""Packages that the core does without, the extras that bring them, and the error where one is missing."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata

from recbench_spark.errors import USAGE, RecbenchError

CORE = {
    **{
        "numpy": "2.0",
        "pandas": "2.2",
        "pyarrow": "18",
        "numba": "0.61",
        "scipy": "1.14",
        "pydantic": "2.9",
    },
    **{"pyyaml": "6.0", "deltalake": "1.6", "duckdb": "2.0", "obstore": "0.10", "xxhash": "3.4"},
    **{"jinja2": "3.1", "rich": "13.7", "threadpoolctl": "3.5"},
}
"""The packages of the core, which every installation has, and the oldest version that works."""

EXTRAS: dict[str, tuple[str, ...]] = {
    "spark": ("pyspark>=3.5,<4.3", "delta-spark>=3.3,<4.4.1"),
    "torch": ("torch>=2.6", "safetensors>=0.5"),
    "plots": ("matplotlib>=3.9",),
    "zoo": ("cornac>=3.0.1",),
    "retrieval": ("faiss-cpu>=1.12",),
    "hdfs": ("hdfs-native>=0.13",),
}
"""Requirements of each extra, as pyproject.toml has them; `models` and `all` join some of them."""

MODULES: dict[str, tuple[str, str]] = {
    "pyspark": ("spark", "pyspark"),
    "delta": ("spark", "delta-spark"),
    "py4j": ("spark", "pyspark"),
    "torch": ("torch", "torch"),
    "safetensors": ("torch", "safetensors"),
    "matplotlib": ("plots", "matplotlib"),
    "cornac": ("zoo", "cornac"),
    "faiss": ("retrieval", "faiss-cpu"),
    "hdfs_native": ("hdfs", "hdfs-native"),
}
"""Names that code imports: the extra, and the package that has the module."""


class OldPackageError(RecbenchError, ImportError):
    """A package of the core is missing, or older than what works."""

    exit_code = USAGE


class MissingPackageError(RecbenchError, ModuleNotFoundError):
    """A package of an extra is not installed."""

    exit_code = USAGE


def install_command(extra: str) -> str:
    """Return the command that installs what an extra brings.

    It names packages, since recbench-spark itself is in no registry (docs/how_to/install.md).

    >>> install_command("torch")
    "pip install 'torch>=2.6' 'safetensors>=0.5'"
    """
    return " ".join(["pip install", *(f"'{package}'" for package in EXTRAS[extra])])


def list_packages(extra: str) -> list[str]:
    """Return the names of the packages of an extra, without versions.

    >>> list_packages("spark")
    ['pyspark', 'delta-spark']
    """
    return [re.split("[=>]", package)[0] for package in EXTRAS[extra]]


def check_core() -> None:
    """Compare the installed packages of the core with the oldest that work.

    pip does so where it installs the wheel. Nobody does where the wheel came without its requirements, or
    as a zip, to the packages of a rented cluster.

    Raises:
        OldPackageError: some are missing or too old.
    """
    bad = {name: fault for name in CORE if (fault := _find_fault(name))}
    if bad:
        wanted = " ".join(f"'{name}>={CORE[name]}'" for name in bad)
        raise OldPackageError(
            f"recbench-spark cannot run here: {', '.join(bad.values())}",
            f"pip install {wanted}; or take a newer runtime of docs/how_to/platforms.md",
        )


def stop_without_core() -> None:
    """Say in one sentence that `check_core` fails, and exit, before a command loads the packages."""
    try:
        check_core()
    except OldPackageError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


def _find_fault(name: str) -> str:
    try:
        return name_fault(name, metadata.version(name))
    except metadata.PackageNotFoundError:
        return "" if has_module(name.replace("pyyaml", "yaml")) else name_fault(name, None)


def name_fault(name: str, version: str | None) -> str:
    """Return what is wrong with a package of the core, or nothing.

    >>> name_fault("scipy", None), name_fault("pyarrow", "15.0.2"), name_fault("numpy", "2.0.1")
    ('no scipy', 'pyarrow 15.0.2', '')
    """
    if version is None:
        return f"no {name}"
    return f"{name} {version}" if version and read_version(version) < read_version(CORE[name]) else ""


def read_version(text: str) -> list[int]:
    """Return the numbers that a version begins with.

    >>> read_version("2.2.3"), read_version("19.0.1.dev4") < read_version("19.1")
    ([2, 2, 3], True)
    """
    return [int(part) for part in re.match(r"[\d.]*", text)[0].split(".") if part]  # type: ignore[index]


def explain(error: BaseException) -> BaseException:
    """Return an error that names the command to run where a package of an extra is missing; else itself."""
    if not isinstance(error, ModuleNotFoundError) or isinstance(error, RecbenchError):
        return error
    module = (error.name or "").partition(".")[0]
    if module not in MODULES or (error.name != module and has_module(module)):
        return error
    extra, package = MODULES[module]
    return MissingPackageError(f"this needs {package}, which is not installed", install_command(extra))


@contextmanager
def explain_missing() -> Iterator[None]:
    """Name the command to run where an import lacks a package of an extra.

    Raises:
        MissingPackageError: a package is missing.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        explained = explain(error)
        if explained is error:
            raise
        raise explained from None


def has_module(name: str) -> bool:
    """Return whether a module can be imported, without importing it."""
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False
