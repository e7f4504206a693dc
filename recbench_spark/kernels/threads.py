"""Limit the threads of numpy's matrix products, where several tasks share the cores of a machine."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager

from threadpoolctl import ThreadpoolController

_controllers: dict[int, ThreadpoolController] = {}
"""The controller, by the number of modules that were loaded: a new one may bring a library of its own."""


def _find_libraries() -> ThreadpoolController:
    """Return the controller of the libraries of this process; a search takes some milliseconds."""
    loaded = len(sys.modules)
    if loaded not in _controllers:
        _controllers.clear()
        _controllers[loaded] = ThreadpoolController()
    return _controllers[loaded]


def one_thread_products() -> AbstractContextManager[object]:
    """Return a context in which a matrix product takes one thread.

    A product of some hundred rows ends before further threads have begun. They spin while they wait: with
    as many tasks as cores such a product takes four times the CPU time.
    """
    context: AbstractContextManager[object] = _find_libraries().limit(limits=1, user_api="blas")
    return context
