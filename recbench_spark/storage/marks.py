"""Marks of work: files naming the runs at work.

Each process has one file for each warehouse, with its runs and their start. Nobody removes rows of a run
with a living mark, whatever the hosts' clocks say. A mark is a lease without rivals: its process touches it
every few seconds, and removes it at the end.
"""

from __future__ import annotations

import atexit
import json
import math
import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from recbench_spark.storage.leases import TOUCH_SECONDS, is_dead, list_held
from recbench_spark.storage.makers import private_name, this_maker
from recbench_spark.storage.publish import read_clock

MARKS_FOLDER = "_at_work"
"""A warehouse's folder for marks. Spark and Arrow skip names with such a beginning."""


class WorkMark:
    """This process's mark in one warehouse.

    Attributes:
        path: path of the file. Its first line is the process; each further line is a run's id.
    """

    def __init__(self, root: Path) -> None:
        self.path = root / MARKS_FOLDER / private_name("mark")[1:]
        while not self.path.exists():  # another process may remove the folder meanwhile
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileNotFoundError):
                self.path.touch()
        began = self.path.stat().st_mtime  # by the storage's clock
        self.add(json.dumps({**this_maker().to_json(), "since": began}))

    def add(self, line: str) -> None:
        """Append a line."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def remove(self) -> None:
        """Remove the mark: the process needs the warehouse no more."""
        with suppress(OSError):
            self.path.unlink()
            self.path.parent.rmdir()


_marks: dict[tuple[int, str], WorkMark] = {}
_touched_paths: set[Path] = set()
_lock = threading.Lock()


def note_run(root: Path, run_id: str) -> None:
    """Mark a run as at work, before its first row.

    A warehouse without write access has no rows to protect, and gets no mark.
    """
    key = (os.getpid(), str(root))
    with _lock, suppress(OSError):
        if key not in _marks:
            _marks[key] = WorkMark(root)
            atexit.register(_marks[key].remove)
            _start_touching()
        _marks[key].add(run_id)


def end_runs(root: Path) -> None:
    """Remove this process's mark: its runs have ended.

    The runs were published, have failed or were given up.
    """
    with _lock:
        mark = _marks.pop((os.getpid(), str(root)), None)
    if mark is not None:
        mark.remove()


def keep_fresh(path: Path) -> None:
    """Touch a path every few seconds while this process lives.

    Cleaning goes by age.
    """
    with _lock:
        _touched_paths.add(path)
        _start_touching()


def mark_used(path: Path) -> None:
    """Touch a file now and while this process lives.

    Retention keeps what was used lately.
    """
    with suppress(OSError):  # only others may write to the folder
        os.utime(path)
    keep_fresh(path)


_thread: list[tuple[int, threading.Thread]] = []


def _start_touching() -> None:
    """Start this process's one thread; a fork inherits none."""
    if not _thread or _thread[-1][0] != os.getpid():
        thread = threading.Thread(target=_touch_forever, daemon=True)
        _thread.append((os.getpid(), thread))
        thread.start()


def _touch_forever() -> None:
    pause = threading.Event()
    while True:
        pause.wait(TOUCH_SECONDS)
        own = [mark.path for (pid, _), mark in list(_marks.items()) if pid == os.getpid()]
        for path in [*own, *list(_touched_paths)]:
            with suppress(OSError):
                os.utime(path)


# --------------------------------------------------------------------------------- who is at work


def runs_at_work(root: Path) -> set[str]:
    """Return the ids of runs whose process may be alive."""
    return {line for lines in _living_marks(root) for line in lines[1:]}


def oldest_work(root: Path) -> float | None:
    """Return the start of the longest work; None: no process.

    The time is that of the storage's clock. Only living processes count.
    """
    times = [json.loads(lines[0])["since"] for lines in _living_marks(root) if lines]
    return min(times, default=None)


def list_others_at_work(root: Path) -> list[str]:
    """List others at work: processes, and held nights."""
    here = this_maker().to_json()
    others = [one for lines in _living_marks(root) if lines and (one := _owner_fields(lines[0])) != here]
    nights = sorted(target.name for target in list_held(root / MARKS_FOLDER))
    return [f"process {one['pid']} of host {one['host']}" for one in others] + nights


def _living_marks(root: Path) -> Iterator[list[str]]:
    """Yield living marks' lines; remove killed processes' marks."""
    folder = root / MARKS_FOLDER
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.name.startswith("."):  # a file made to read the clock
            continue
        with suppress(OSError):
            lines = path.read_text(encoding="utf-8").splitlines()
            if is_dead(str(path), json.dumps(_owner_fields(lines[0])) if lines else ""):
                path.unlink()
                continue
            yield lines


def _owner_fields(line: str) -> dict[str, Any]:
    """Return the maker's fields from a mark's first line."""
    fields: dict[str, Any] = json.loads(line)
    fields.pop("since", None)
    return fields


def count_hours_to_keep(folder: Path, hours: int) -> int:
    """Return the hours for which a vacuum keeps files.

    The hours are more than wanted where a run is at work, or clocks differ.
    """
    now = read_clock(folder)
    since = oldest_work(folder)
    at_work = 0.0 if since is None else now - since
    ahead = max(0.0, time.time() - now)
    return math.ceil(max(hours, at_work / 3600 + 1) + ahead / 3600) if at_work or ahead > 1 else hours
