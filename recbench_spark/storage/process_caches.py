"""Results that a process keeps for itself.

Connections and threads do not survive a fork, so a child computes them again. What it has got from its
parent stays where it is: to close it would end connections that the parent still uses.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def cache_in_process(size: int | None = None) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Keep the results of a function as `functools.lru_cache` does, of each process its own.

    Args:
        size: most results that are kept; None: all.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        def compute(process: int, *args: P.args, **settings: P.kwargs) -> R:
            del process  # part of the key
            return function(*args, **settings)

        keep: Any = lru_cache(maxsize=size)(compute)

        @wraps(function)
        def call(*args: P.args, **settings: P.kwargs) -> R:
            result: R = keep(os.getpid(), *args, **settings)
            return result

        return call

    return decorate
