"""Compilation of kernels. This module is separate so that a task of Spark need not import torch for it."""

from __future__ import annotations

import hashlib
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

    Numba looks at the file of the kernel alone. The code also holds kernels of other files that it calls,
    and its index names their classes: after an upgrade in place the old code would run, or fail to load.
    """
    index = getattr(getattr(kernel, "_cache", None), "_cache_file", None)
    if index is not None:
        index._version = f"{numba.__version__} {digest_sources()}"
    return kernel


@cache
def digest_sources() -> str:
    """Return the digest of all sources that kernels are made from; they are read once per process."""
    digest = hashlib.sha256()
    for folder in ("kernels", "models"):
        for file in sorted((Path(__file__).resolve().parents[1] / folder).rglob("*.py")):
            digest.update(f"{file.name} {file.stat().st_size}\n".encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


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
