"""Limit the threads of numpy's matrix products, where several tasks share the cores of a machine."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

from threadpoolctl import ThreadpoolController

_controllers: dict[int, ThreadpoolController] = {}
"""The controller, by the number of modules that were loaded: a new one may bring a library of its own."""


def _find_libraries() -> ThreadpoolController:
    """Return the controller of the libraries of this process; a search takes some milliseconds."""
    loaded = len(sys.modules)
    controller = _controllers.get(loaded)
    if controller is None:
        controller = ThreadpoolController()
        _controllers.clear()
        _controllers[loaded] = controller
    return controller


class _SharedLimit:
    """A limit of all threads of the process: the first one that needs it sets it, the last one lifts it.

    The number of BLAS threads belongs to the process. A thread that set and restored it alone would restore
    the 1 that another thread has set meanwhile.
    """

    def __init__(self) -> None:
        self._lock, self._users, self._limit = threading.Lock(), 0, ExitStack()

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Hold the limit."""
        with self._lock:
            if self._users == 0:
                self._limit.enter_context(_find_libraries().limit(limits=1, user_api="blas"))
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if self._users == 0:
                    self._limit.close()


_limit = _SharedLimit()


def one_thread_products() -> AbstractContextManager[object]:
    """Return a context in which a matrix product takes one thread, in every thread of the process.

    A product of some hundred rows ends before further threads have begun. They spin while they wait: with
    as many tasks as cores such a product takes four times the CPU time.
    """
    return _limit.hold()
