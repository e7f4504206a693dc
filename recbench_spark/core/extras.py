"""Optional packages, their extras, and the error without them."""

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
"""The core's packages, in every installation, and the oldest working version."""

EXTRAS: dict[str, tuple[str, ...]] = {
    "spark": ("pyspark>=3.5,<4.3", "delta-spark>=3.3,<4.4.1"),
    "torch": ("torch>=2.6", "safetensors>=0.5"),
    "plots": ("matplotlib>=3.9",),
    "zoo": ("cornac>=3.0.1",),
    "retrieval": ("faiss-cpu>=1.12",),
    "hdfs": ("hdfs-native>=0.13",),
}
"""Each extra's requirements, as in pyproject.toml; `models` and `all` join some."""

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
"""Names in imports: the extra, and the package with the module."""


class OldPackageError(RecbenchError, ImportError):
    """A core package is missing, or too old."""

    exit_code = USAGE


class MissingPackageError(RecbenchError, ModuleNotFoundError):
    """An extra's package is not installed."""

    exit_code = USAGE


def install_command(extra: str) -> str:
    """Return the command to install an extra.

    The command names packages, since recbench-spark itself is in no registry (docs/how_to/install.md).

    >>> install_command("torch")
    "pip install 'torch>=2.6' 'safetensors>=0.5'"
    """
    return " ".join(["pip install", *(f"'{package}'" for package in EXTRAS[extra])])


def list_packages(extra: str) -> list[str]:
    """Return an extra's packages, without versions.

    >>> list_packages("spark")
    ['pyspark', 'delta-spark']
    """
    return [re.split("[=>]", package)[0] for package in EXTRAS[extra]]


def check_core() -> None:
    """Compare the core's installed packages with the oldest that work.

    pip does so where it installs the wheel. Nobody does where the wheel came without its requirements, or
    as a zip, to a rented cluster's packages.

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
    """Exit with one sentence where `check_core` fails.

    Commands call it before they load the packages.
    """
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
    """Describe a fault in a core package, or nothing.

    >>> name_fault("scipy", None), name_fault("pyarrow", "15.0.2"), name_fault("numpy", "2.0.1")
    ('no scipy', 'pyarrow 15.0.2', '')
    """
    if version is None:
        return f"no {name}"
    return f"{name} {version}" if version and read_version(version) < read_version(CORE[name]) else ""


def read_version(text: str) -> list[int]:
    """Return the numbers at a version's start.

    >>> read_version("2.2.3"), read_version("19.0.1.dev4") < read_version("19.1")
    ([2, 2, 3], True)
    """
    return [int(part) for part in re.match(r"[\d.]*", text)[0].split(".") if part]  # type: ignore[index]


def explain(error: BaseException) -> BaseException:
    """Return an error with the command to run.

    The error names the command where an extra's package is missing; other errors are returned unchanged.
    """
    if not isinstance(error, ModuleNotFoundError) or isinstance(error, RecbenchError):
        return error
    module = (error.name or "").partition(".")[0]
    if module not in MODULES or (error.name != module and has_module(module)):
        return error
    extra, package = MODULES[module]
    return MissingPackageError(f"this needs {package}, which is not installed", install_command(extra))


@contextmanager
def explain_missing() -> Iterator[None]:
    """Name the command to install an extra's missing package.

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
    """Check whether a module can be imported, without importing it."""
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False
