"""How kernels become machine code. A module of its own: a task of Spark need not import torch for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

try:
    import numba
except ImportError:  # measuring on a machine with torch and numpy alone: right, and slow
    numba = None

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function, **more: Any) -> Function:
    """`function` as machine code that holds no interpreter lock and is kept on disk."""
    if numba is None:
        return function
    options = {"nogil": True, "cache": True, "error_model": "numpy"} | more
    return cast(Function, numba.njit(**options)(function))


def readonly(array: npt.NDArray[Any]) -> Any:
    """A view that cannot be written: one type for mapped files, Arrow buffers and fresh arrays."""
    view = array.view(np.ndarray)
    view.flags.writeable = False
    return view
