"""Packages that the core does without, the extras that bring them, and the error where one is missing."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager

from recbench_spark.errors import USAGE, RecbenchError

CORE = (
    *("numpy", "pandas", "pyarrow", "numba", "scipy", "pydantic", "pyyaml", "deltalake", "duckdb"),
    *("obstore", "xxhash", "jinja2", "rich", "threadpoolctl"),
)
"""The packages of the core: every installation has them."""

EXTRAS: dict[str, tuple[str, ...]] = {
    "spark": ("pyspark", "delta-spark"),
    "torch": ("torch", "safetensors"),
    "plots": ("matplotlib",),
    "zoo": ("cornac",),
    "retrieval": ("faiss-cpu",),
    "hdfs": ("hdfs-native",),
}
"""The packages that each extra of pyproject.toml brings; `models` and `all` are made of these."""

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
    """Return the command that installs an extra.

    >>> install_command("torch")
    "pip install 'recbench-spark[torch]'"
    """
    return f"pip install 'recbench-spark[{extra}]'"


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
