"""Compilation of kernels. This module is separate so that a task of Spark need not import torch for it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

try:
    import numba
except ImportError:  # a machine with torch and numpy alone: correct results, but slow
    numba = None

Function = TypeVar("Function", bound=Callable[..., Any])

IMPORTS = re.compile(
    rb"^[ \t]*from[ \t]+(recbench_spark[\w.]*)[ \t]+import[ \t]+(\([^)]*\)|[^\n]*)", re.MULTILINE
)


def compile_kernel(function: Function, **more: Any) -> Function:
    """Compile `function` to machine code that does not hold the GIL and is cached on disk."""
    if numba is None:
        return function
    options = {"nogil": True, "error_model": "numpy"} | more
    try:
        return _name_cache(cast(Function, numba.njit(**{"cache": True, **options})(function)))
    except RuntimeError:  # no writable folder, neither beside the sources nor at home
        return cast(Function, numba.njit(**{**options, "cache": False})(function))


def _name_cache(kernel: Function) -> Function:
    """Let the kernel's cached code count only for the sources that it was made from.

    Numba looks at the file of the kernel alone. The code also holds kernels and constants of other files,
    and its index names their classes: after an upgrade in place the old code would run, or fail to load.
    """
    index = getattr(getattr(kernel, "_cache", None), "_cache_file", None)
    if index is not None:
        index._version = f"{numba.__version__} {digest_sources(kernel.__code__.co_filename)}"
    return kernel


@cache
def digest_sources(file: str) -> str:
    """Return the digest of a file and of all files of the package that it imports, directly or not."""
    digest = hashlib.sha256()
    for source in sorted(list_sources(file)):
        digest.update(f"{Path(source).name} {len(read_source(source))}\n".encode())
        digest.update(read_source(source))
    return digest.hexdigest()[:16]


def list_sources(file: str) -> set[str]:
    """Return the file and all files of the package that it imports, directly or not."""
    sources, waiting = {file}, [file]
    while waiting:
        imported = list_imports(waiting.pop()) - sources
        sources |= imported
        waiting += imported
    return sources


@cache
def list_imports(file: str) -> frozenset[str]:
    """Return the files of the package that a source imports. A name after `import` may be a module."""
    package_parent = Path(__file__).resolve().parents[2]
    modules = {
        name
        for module, members in IMPORTS.findall(read_source(file))
        for name in (module, *(module + b"." + member for member in re.findall(rb"\w+", members)))
    }
    paths = (package_parent / name.decode().replace(".", "/") for name in modules)
    candidates = (
        candidate for path in paths for candidate in (path.with_suffix(".py"), path / "__init__.py")
    )
    return frozenset(str(candidate) for candidate in candidates if candidate.is_file())


@cache
def read_source(file: str) -> bytes:
    """Return a source; empty where it cannot be read, as inside a zip, whose own time numba looks at."""
    try:
        return Path(file).read_bytes()
    except OSError:
        return b""


def compile_with_python_errors(function: Function) -> Function:
    """Compile as `compile_kernel` does, but a division by zero is an error, as in Python."""
    return compile_kernel(function, nogil=False, error_model="python")


def compile_notice(function: Callable[..., Any]) -> str:
    """Return a line that says why the first use of kernels takes long; empty if they are compiled.

    Args:
        function: a kernel that every run calls.
    """
    if numba is None:
        return "numba is not installed: kernels run as plain Python, slowly"
    place = getattr(getattr(function, "stats", None), "cache_path", None)
    if not place:
        return "kernels are compiled anew each time: no folder can be written for them, set NUMBA_CACHE_DIR"
    name = Path(function.__code__.co_filename).stem
    if any(Path(place).glob(f"{name}.*.nbi")):
        return ""
    return f"compiling kernels, once, into {place}: up to half a minute"


def readonly(array: npt.NDArray[Any]) -> Any:
    """Return a read-only view, so that mapped files, Arrow buffers and fresh arrays have one numba type."""
    view = array.view(np.ndarray)
    view.flags.writeable = False
    return view
