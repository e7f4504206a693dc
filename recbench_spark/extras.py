"""Packages that the core does without, the extras that bring them, and the error where one is missing."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from contextlib import contextmanager

from recbench_spark.errors import USAGE, RecbenchError

CORE = (
    *("numpy", "pandas", "pyarrow", "numba", "scipy", "pydantic", "pyyaml", "deltalake", "duckdb"),
    *("obstore", "xxhash", "jinja2", "rich", "threadpoolctl"),
)
"""The packages of the core: every installation has them."""

EXTRAS: dict[str, tuple[str, ...]] = {
    "spark": ("pyspark==4.2.0", "delta-spark==4.4.0"),
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


class MissingPackageError(RecbenchError, ModuleNotFoundError):
    """A package of an extra is not installed."""

    exit_code = USAGE


def install_command(extra: str) -> str:
    """Return the command that installs what an extra brings.

    It names packages, since recbench-spark itself is in no registry (docs/start/install.md).

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
