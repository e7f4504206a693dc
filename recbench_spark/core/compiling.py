"""Compilation of kernels, separate so that tasks need no torch.

A task of Spark imports this module alone.
"""

from __future__ import annotations

import hashlib
import re
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

try:
    import numba as numba  # noqa: PLC0414
except ImportError:  # with torch and numpy alone: correct results, but slow
    numba = None

Function = TypeVar("Function", bound=Callable[..., Any])

IMPORTS = re.compile(
    rb"^[ \t]*from[ \t]+(recbench_spark[\w.]*)[ \t]+import[ \t]+(\([^)]*\)|[^\n]*)", re.MULTILINE
)


def compile_kernel(function: Function, **more: Any) -> Function:
    """Compile a function to cached machine code without the GIL.

    The cache is on disk.
    """
    if numba is None:
        return function
    options = {"nogil": True, "error_model": "numpy"} | more
    try:
        return cast(Function, _name_cache(numba.njit(**{"cache": True, **options})(function), function))
    except RuntimeError:  # no writable folder beside the sources or at home
        return cast(Function, numba.njit(**{**options, "cache": False})(function))


def compile_job(function: Callable[[int, int, int], None]) -> Callable[[], int]:
    """Return a function that compiles another one when it is called.

    The code is cached on disk, and takes three whole numbers. It runs without the GIL.

    Args:
        function: the function to compile.

    Returns:
        A function without arguments, which returns the code's address.
    """

    @cache
    def compile_once() -> Any:
        from numba.core.ccallback import CFunc  # noqa: PLC0415

        number = numba.types.intp
        make = partial(CFunc, function, ((number,) * 3, numba.types.void), {}, {})
        code = make()
        try:
            code.enable_caching()
            _name_cache(code, function)
        except RuntimeError:  # no writable folder
            code = make()
        code.compile()
        _jobs.append(code)
        return code.address

    return compile_once


_jobs: list[Any] = []
"""Compiled jobs, whose machine code lives as long as these."""


def _name_cache(kernel: Any, function: Callable[..., Any]) -> Any:
    """Tie a kernel's cached code to all its sources.

    Numba looks at the kernel's own file alone. The code also holds kernels and constants from other files,
    and its index names their classes: after an upgrade in place the old code would run, or fail to load.
    """
    index = getattr(getattr(kernel, "_cache", None), "_cache_file", None)
    if index is not None:
        index._version = f"{numba.__version__} {digest_sources(function.__code__.co_filename)}"
    return kernel


@cache
def digest_sources(file: str) -> str:
    """Return the digest of a file with all its imports.

    Imports are the package's files, imported directly or not.
    """
    digest = hashlib.sha256()
    for source in sorted(list_sources(file)):
        digest.update(f"{Path(source).name} {len(read_source(source))}\n".encode())
        digest.update(read_source(source))
    return digest.hexdigest()[:16]


def list_sources(file: str) -> set[str]:
    """Return a file with all its imports in the package.

    Imports may be indirect.
    """
    sources, waiting = {file}, [file]
    while waiting:
        imported = list_imports(waiting.pop()) - sources
        sources |= imported
        waiting += imported
    return sources


@cache
def list_imports(file: str) -> frozenset[str]:
    """Return the package's files imported by a source.

    A name after `import` may be a module.
    """
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
    """Return a source; empty if it cannot be read.

    An example is a file inside a zip, whose own time numba looks at.
    """
    try:
        return Path(file).read_bytes()
    except OSError:
        return b""


def compile_with_python_errors(function: Function) -> Function:
    """Compile as `compile_kernel`, but let division by zero fail.

    Python itself has this rule.
    """
    return compile_kernel(function, nogil=False, error_model="python")


def announce_compiling(kernel: Any) -> None:
    """Announce a compilation on standard error, once for all processes.

    Another process's line from just now is enough.

    Args:
        kernel: the kernel to be compiled now.
    """
    place, mark = kernel.stats.cache_path, Path(tempfile.gettempdir(), "recbench-compiling")
    with suppress(OSError):
        if time.time() - mark.stat().st_mtime < QUIET_SECONDS:
            return
    with suppress(OSError):
        mark.touch()
    what = f"once, into {place}" if place else "each time: no folder can be written, set NUMBA_CACHE_DIR"
    print(f"compiling kernels, {what}: up to a minute", file=sys.stderr, flush=True)


QUIET_SECONDS = 60
"""Spark's tasks compile side by side; within this time one speaks for all."""


def _watch_compiler() -> None:
    """Let numba report when it really compiles a kernel.

    Nothing else knows it before.
    """
    from numba.core import event  # noqa: PLC0415

    class Watcher(event.Listener):  # type: ignore[misc]
        def on_start(self, started: Any) -> None:
            kernel = started.data["dispatcher"]
            if kernel.py_func.__module__.startswith("recbench_spark."):
                announce_compiling(kernel)

        def on_end(self, ended: Any) -> None:
            pass

    event.register("numba:compile", Watcher())


if numba is not None:
    _watch_compiler()


def readonly(array: npt.NDArray[Any]) -> Any:
    """Return a read-only view, to get one numba type.

    Mapped files, Arrow buffers and fresh arrays then have the same.
    """
    view = array.view(np.ndarray)
    view.flags.writeable = False
    return view
