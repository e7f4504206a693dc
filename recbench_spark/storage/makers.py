"""Identity of running processes, and proof of their end.

A process number alone identifies nothing: two containers or hosts on one disk have the same numbers, and a
system uses a number again after a process has ended. So a maker is the machine's start (its boot id), the
namespace of its process numbers, the number, and the moment when the process began.

Connections and threads do not survive a fork, so a child computes kept results again. It leaves its
parent's results as they are: closing them would end the parent's own connections.
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
    """Keep a function's results, in each process apart.

    Otherwise it is `functools.lru_cache`.

    Args:
        size: most results to keep; None: all.
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
        began: clock ticks from the host's start to the process's start.
    """

    host: str
    boot: str
    namespace: str
    pid: int
    began: str

    def has_ended(self) -> bool:
        """Return True if this host can prove the process's end."""
        here = this_maker()
        # On another host, in another container or after a restart nothing can be proved.
        same = self.boot == here.boot and self.namespace == here.namespace
        return bool(self.boot and same) and _start_ticks(self.pid) != self.began

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON takes them."""
        return asdict(self)


@cache_in_process()
def this_maker() -> Maker:
    """Return the present process; after a fork the child differs."""
    pid = os.getpid()
    boot = _read_text("/proc/sys/kernel/random/boot_id")
    try:
        namespace = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        namespace = ""
    return Maker(socket.gethostname(), boot, namespace, pid, _start_ticks(pid))


def _start_ticks(pid: int) -> str:
    """Return a process's start; empty if no such process runs.

    The start is field 22 of proc(5) stat.
    """
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
"""A name made by `private_name`: its file is being written, or its writer was killed."""


def private_name(name: str) -> str:
    """Return a hidden name unused by other processes and hosts.

    The hidden name is beside the given one. Spark and Arrow skip names with a dot in front.
    """
    return f".{name}.{uuid.uuid4().hex}{PARTIAL}"
