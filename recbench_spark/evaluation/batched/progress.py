"""How far a pass over all models has come, told to whoever watches, in pairs of a user and a model.

A task notes after each model how many pairs it has done, in a file of its own that a second attempt at it
writes again; the driver adds them up while it waits.
"""

from __future__ import annotations

import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

LOOK_SECONDS, TELL_SECONDS = 1.0, 10.0


def record_progress(folder: str, task: int, pairs: int) -> None:
    """How many pairs a task has done so far. A disk that is full costs the watcher a line, no number."""
    if not folder:
        return
    with suppress(OSError):
        place = Path(folder, f"{task}.{uuid.uuid4().hex}")
        place.write_text(str(pairs), encoding="ascii")
        place.replace(Path(folder, str(task)))


def sum_progress(folder: Path) -> int:
    """The pairs of all tasks."""
    found = 0
    for file in folder.glob("*"):
        with suppress(OSError, ValueError):
            found += int(file.read_text(encoding="ascii")) if file.name.isdecimal() else 0
    return found


@contextmanager
def watch_progress(folder: Path, total: int, say: Callable[[str], None]) -> Iterator[None]:
    """While what is inside runs, a line every ten seconds: pairs done, of how many, and the time left."""
    over = threading.Event()
    folder.mkdir(parents=True, exist_ok=True)
    watcher = threading.Thread(target=_report_until, args=(folder, total, say, over), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
        shutil.rmtree(folder, ignore_errors=True)


def _report_until(folder: Path, total: int, say: Callable[[str], None], over: threading.Event) -> None:
    began = told = time.monotonic()
    while not over.wait(LOOK_SECONDS):
        pairs, now = sum_progress(folder), time.monotonic()
        if now - told >= TELL_SECONDS and pairs:
            told = now
            say(format_progress(pairs, total, now - began))


def format_progress(pairs: int, total: int, seconds: float) -> str:
    """How much is done, and when all of it will be if it goes on like this."""
    left = seconds * max(total - pairs, 0) / pairs
    unit, size = ("min", 60) if left >= 90 else ("s", 1)
    return (
        f"ranked {min(pairs, total):,} of {total:,} (users x models), about {left / size:.0f} {unit} left"
    )
