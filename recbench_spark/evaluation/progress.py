"""Progress over all models, in pairs of user and model.

After each model a task writes its number of finished pairs into its own file, which a second attempt
overwrites. The driver adds up the files while it waits, and reports the progress.
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


STEADY_SHARE = 0.2
"""Share of pairs to finish before the time left is predicted."""


def record_progress(folder: str, task: int, pairs: int) -> None:
    """Record a task's finished pairs; disk errors are ignored."""
    if not folder:
        return
    with suppress(OSError):
        file = Path(folder, f"{task}.{uuid.uuid4().hex}")
        file.write_text(str(pairs), encoding="ascii")
        file.replace(Path(folder, str(task)))


def sum_progress(folder: Path) -> int:
    """Add up all tasks' pairs."""
    pairs = 0
    for file in folder.glob("*"):
        with suppress(OSError, ValueError):
            pairs += int(file.read_text(encoding="ascii")) if file.name.isdecimal() else 0
    return pairs


@contextmanager
def watch_progress(
    folder: Path | None,
    total: int,
    report: Callable[[str], None],
    draw: Callable[[int, int], None] | None = None,
) -> Iterator[None]:
    """Report progress every ten seconds, while the body runs.

    A report has finished pairs, total and time left. With `draw` the finished pairs and the total go to a
    bar instead, at each look. Without a folder, tasks record nothing and there is nothing to report.
    """
    if folder is None:
        yield
        return
    finished = threading.Event()
    folder.mkdir(parents=True, exist_ok=True)
    watcher = threading.Thread(
        target=_report_until, args=(folder, total, report, draw, finished), daemon=True
    )
    watcher.start()
    try:
        yield
    finally:
        finished.set()
        watcher.join()
        shutil.rmtree(folder, ignore_errors=True)


def _report_until(
    folder: Path,
    total: int,
    report: Callable[[str], None],
    draw: Callable[[int, int], None] | None,
    finished: threading.Event,
) -> None:
    reported = time.monotonic()
    before, began = 0, reported
    while not finished.wait(LOOK_SECONDS):
        pairs, now = sum_progress(folder), time.monotonic()
        if not before:
            before, began = pairs, now
        if draw is not None:
            draw(pairs, total)
        elif now - reported >= TELL_SECONDS and pairs:
            reported = now
            report(format_progress(pairs, total, now - began, before))


def format_progress(pairs: int, total: int, seconds: float, before: int = 0) -> str:
    """Describe the finished share, and the time left once steady.

    The time left assumes the mean speed. The first tasks also start workers and compile kernels, so no
    prediction uses the time before their pairs are there.

    Args:
        pairs: finished pairs.
        total: pairs to rank.
        seconds: time since the first pairs were there.
        before: number of these first pairs.
    """
    finished = f"ranked {min(pairs, total):,} of {total:,} (users x models)"
    if pairs - before < STEADY_SHARE * total:
        return finished
    left = seconds * max(total - pairs, 0) / (pairs - before)
    unit, size = ("min", 60) if left >= 90 else ("s", 1)
    return f"{finished}, about {left / size:.0f} {unit} left"
