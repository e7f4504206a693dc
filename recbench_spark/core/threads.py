"""Limits for the threads of matrix products.

numpy's are limited where tasks share a machine's cores, and torch's.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from threadpoolctl import ThreadpoolController

_controllers: dict[int, ThreadpoolController] = {}
"""The controller, by the number of loaded modules: a new one may bring its own library."""

_limited = threading.Lock()
"""Held by the context in charge of the number of threads."""


def _find_libraries() -> ThreadpoolController:
    """Return the controller of this process's libraries.

    A search takes some milliseconds.
    """
    loaded = len(sys.modules)
    controller = _controllers.get(loaded)
    if controller is None:
        controller = ThreadpoolController()
        _controllers.clear()
        _controllers[loaded] = controller
    return controller


@contextmanager
def one_thread_products() -> Iterator[None]:
    """Return a context where a matrix product takes one thread.

    A product of some hundred rows ends before further threads have begun. They spin while they wait: with
    as many tasks as cores such a product takes four times the CPU time.

    The number of threads belongs to the process, so of several contexts at once the first alone sets it,
    and sets it back. A second one would read 1, and at its end leave the process with that.
    """
    if not _limited.acquire(blocking=False):
        yield
        return
    try:
        with _find_libraries().limit(limits=1, user_api="blas"):
            yield
    finally:
        _limited.release()


@contextmanager
def use_one_thread() -> Iterator[None]:
    """Let torch use one thread, for one order of sums.

    The order is then the same on every host.
    """
    import torch  # noqa: PLC0415

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
