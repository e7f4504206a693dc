"""Progress of a job: lines for the person who watches, and JSON lines for the machine that reads logs."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from recbench_spark.errors import StoreError
from recbench_spark.storage.objects import write_text


class Journal:
    """Prints one line per stage to standard error, and writes one JSON line per stage to a file."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.path: Path | None = None
        self.stream = stream or sys.stderr
        self.started = time.monotonic()

    def write_to(self, path: str | Path) -> None:
        """Append JSON lines to this file from now on.

        Raises:
            StoreError: no file can be written there.
        """
        path = Path(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a", encoding="utf-8"):
                self.path = path
        except (OSError, ValueError) as error:
            hint = "give another file, or check permissions and space"
            raise StoreError(f"cannot write the log {path}: {_reason(error)}", hint) from None

    def say(self, text: str) -> None:
        """Print a line for the person who watches, with the seconds since the start."""
        print(f"[{time.monotonic() - self.started:6.1f} s] {text}", file=self.stream, flush=True)

    def record(self, stage: str, **facts: Any) -> None:
        """Write a line for the machine."""
        if self.path:
            line = {
                "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
                "stage": stage,
                **facts,
            }
            try:
                with self.path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line, default=str) + "\n")
            except OSError as error:
                # A full disk for logs must not stop a night: the tables hold its results.
                self.say(f"warning: no more lines in the log {self.path}: {_reason(error)}")
                self.path = None

    @contextmanager
    def stage(self, stage: str, text: str, **facts: Any) -> Iterator[dict[str, Any]]:
        """Print the start of a stage; record its seconds and the counts put into the yielded dict."""
        self.say(text)
        counts: dict[str, Any] = {}
        started = time.monotonic()
        try:
            yield counts
        except BaseException as error:
            failed = {"seconds": round(time.monotonic() - started, 3), "error": type(error).__name__}
            self.record(stage, **facts, **counts, **failed)
            raise
        seconds = round(time.monotonic() - started, 3)
        self.record(stage, **facts, **counts, seconds=seconds)


def write_json(place: str | Path, content: dict[str, Any]) -> None:
    """Write a JSON file atomically, on any storage."""
    write_text(place, json.dumps(content, indent=2, default=str) + "\n")


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
