"""A bar at a terminal's foot while a stage lasts.

rich draws it again and again; logs never get it.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Column

DRAWS_PER_SECOND = 2.0
WIDTH = 24
"""Width of the bar, in columns."""

GONE = (OSError, ValueError)
"""Errors of a terminal that is gone: the work goes on without a bar."""


class TerminalBar:
    """One line about the running stage, redrawn in place.

    The line shows the night among several, the stage's share if known, its text and its time.

    Attributes:
        whole: a word, the place and the total of a longer work, such as ("night", 2, 30).
    """

    def __init__(self, stream: TextIO) -> None:
        self.whole: tuple[str, int, int] | None = None
        self._console = Console(file=stream, force_terminal=True, highlight=False, markup=False)
        self._progress: Progress | None = None

    def begin(self, text: str) -> None:
        """Draw a stage from now on."""
        self.end()
        whole = "{} {} of {} ·".format(*self.whole) if self.whole else ""
        self._progress = self._make_progress()
        self._progress.add_task(text, total=None, whole=whole)
        with suppress(*GONE):
            self._progress.start()

    def move(self, done: int, total: int) -> None:
        """Set the finished share of the stage."""
        if self._progress is not None:
            for task in self._progress.task_ids:
                self._progress.update(task, completed=min(done, total), total=total or None)

    def end(self) -> None:
        """Empty the line, and draw no more."""
        if self._progress is not None:
            with suppress(*GONE):
                self._progress.stop()
            self._progress = None

    def say(self, text: str) -> None:
        """Print a line above the bar."""
        with suppress(*GONE):
            self._console.print(text, soft_wrap=True)

    def _make_progress(self) -> Progress:
        text = Column(no_wrap=True, overflow="ellipsis", ratio=1)
        return Progress(
            TextColumn("{task.fields[whole]}", markup=False),
            BarColumn(WIDTH),
            TaskProgressColumn(),
            TextColumn("{task.description}", markup=False, table_column=text),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
            refresh_per_second=DRAWS_PER_SECOND,
            expand=True,
        )
