"""Identity of a running process, its files and caches, and the proof that it is alive or has ended.

A process number alone identifies nothing: two containers or hosts on one disk have the same numbers, and a
number is used again after a process has ended. So a maker is the machine's start (its boot id), the
namespace of its process numbers, the number, and the moment at which the process began.

Connections and threads do not survive a fork, so a child computes kept results again. What it has got from
its parent stays where it is: to close it would end connections that the parent still uses.
"""

from __future__ import annotations

import os
import re
import socket
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import lru_cache, wraps
from pathlib import Path
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


@dataclass(frozen=True)
class Maker:
    """A process, as a lease names it.

    Attributes:
        host: name of its host, for messages.
        boot: id of the host's present start; empty if the system has none.
        namespace: namespace of the process numbers; each container has its own.
        pid: number of the process.
        began: clock ticks from the host's start to the start of the process.
    """

    host: str
    boot: str
    namespace: str
    pid: int
    began: str

    def has_ended(self) -> bool:
        """Return True if this host can prove that the process has ended, else False."""
        here = this_maker()
        # Nothing can be proved on another host, in another container, or after a new start of the host.
        same = self.boot == here.boot and self.namespace == here.namespace
        return bool(self.boot and same) and _start_ticks(self.pid) != self.began

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON takes them."""
        return asdict(self)


@cache_in_process()
def this_maker() -> Maker:
    """Return the present process; after a fork the child is another maker."""
    pid = os.getpid()
    boot = _read_text("/proc/sys/kernel/random/boot_id")
    try:
        namespace = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        namespace = ""
    return Maker(socket.gethostname(), boot, namespace, pid, _start_ticks(pid))


def _start_ticks(pid: int) -> str:
    """Return the start of a process (field 22 of proc(5) stat); empty if there is no such process."""
    text = _read_text(f"/proc/{pid}/stat")
    fields = text.rpartition(")")[2].split()
    is_running = len(fields) > 19 and fields[0] not in ("Z", "X")
    return fields[19] if is_running else ""


def _read_text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


PARTIAL = ".partial"

PRIVATE_NAME = re.compile(r"\..+\.[0-9a-f]+" + re.escape(PARTIAL))
"""A name as `private_name` makes it: its file is being written, or its writer was killed."""


def private_name(name: str) -> str:
    """Return a hidden name beside `name` that no other process, host or container uses.

    Spark and Arrow skip names that begin with a dot.
    """
    return f".{name}.{uuid.uuid4().hex}{PARTIAL}"
