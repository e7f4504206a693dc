"""A line at the foot of a terminal that is drawn anew while a stage lasts; logs never get it.

It is plain text and two control sequences, so the core needs no library for it.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

DRAW_SECONDS = 0.5
WIDTH = 24
CLEAR = "\r\x1b[K"
"""Go to the start of the line and empty it."""


def is_terminal(stream: TextIO) -> bool:
    """Return whether a stream is a terminal that can empty a line."""
    return stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"


class TerminalBar:
    """Draws one line: the night of several, the stage, its share if it is known, and its seconds.

    Attributes:
        whole: a word, the place and the total of a longer work, such as ("night", 2, 30).
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.whole: tuple[str, int, int] | None = None
        self._text, self._began = "", 0.0
        self._share: float | None = None
        self._lock = threading.RLock()
        self._ended = threading.Event()

    def begin(self, text: str) -> None:
        """Draw a stage from now on, twice a second."""
        with self._lock:
            self.end()
            self._text, self._began, self._share = text, time.monotonic(), None
            self._ended = threading.Event()
        threading.Thread(target=self._draw_until, args=(self._ended,), daemon=True).start()

    def move(self, done: int, total: int) -> None:
        """Set the share of the stage that is done."""
        self._share = min(done / total, 1.0) if total else None

    def end(self) -> None:
        """Empty the line, and draw no more."""
        with self._lock:
            if self._text:
                self._ended.set()
                self._text = ""
                self._write(CLEAR)

    @contextmanager
    def hide(self) -> Iterator[None]:
        """Empty the line while the body prints; it is drawn again at the next tick."""
        with self._lock:
            if self._text:
                self._write(CLEAR)
            yield

    def describe(self, columns: int) -> str:
        """Return the line, no longer than the terminal is wide."""
        whole = ""
        if self.whole:
            word, n, total = self.whole
            whole = f"{word} {n} of {total} {_draw_share((n - 1) / total, WIDTH // 2)}  "
        share = "" if self._share is None else f"{_draw_share(self._share, WIDTH)} {self._share:4.0%}  "
        seconds = f"{time.monotonic() - self._began:.0f} s"
        room = max(columns - 1 - len(whole) - len(share) - len(seconds) - 2, 0)
        text = self._text if len(self._text) <= room else f"{self._text[: max(room - 1, 0)]}…"
        return f"{whole}{share}{text}  {seconds}"[: max(columns - 1, 0)]

    def _draw_until(self, ended: threading.Event) -> None:
        while not ended.wait(DRAW_SECONDS):
            with self._lock:
                if not ended.is_set():
                    # The cursor goes back, so that a line which others print covers this one.
                    self._write(f"{CLEAR}{self.describe(shutil.get_terminal_size().columns)}\r")

    def _write(self, text: str) -> None:
        try:
            self.stream.write(text)
            self.stream.flush()
        except (OSError, ValueError):  # the terminal is gone: the work goes on without a bar
            self._ended.set()


def _draw_share(share: float, width: int) -> str:
    filled = round(share * width)
    return "█" * filled + "░" * (width - filled)
