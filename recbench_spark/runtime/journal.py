"""Progress of a job, in lines for people and machines.

A person watches the first; a machine reads the second, JSON lines, from a log.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from recbench_spark.errors import StoreError
from recbench_spark.storage.objects import write_bytes, write_text
from recbench_spark.storage.uris import has_driver, is_remote, join_uri

if TYPE_CHECKING:
    from recbench_spark.runtime.terminal_bar import TerminalBar
    from recbench_spark.storage.file_tables import FileTables


class Journal:
    """Writer of a job's progress, stage by stage.

    A stage is a line on standard error, and a JSON line in a file. Where standard error is a terminal, a
    bar at its foot shows the running stage; logs get lines alone.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self.path: Path | None = None
        self.remote: _RemoteLines | None = None
        self.stream = stream or sys.stderr
        self.bar = _make_bar(self.stream)
        self.started = time.monotonic()

    def write_to(self, path: str | Path) -> None:
        """Append JSON lines to this file from now on.

        In object storage they replace the object.

        Raises:
            StoreError: no file can be written there.
        """
        self.close()
        if has_driver(path):
            self.remote = _RemoteLines(str(path))
            self.remote.write()
            return
        if is_remote(path):
            raise StoreError(
                f"cannot write the log {path}", "name a file of this machine, s3://... or hdfs://..."
            )
        path = Path(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a", encoding="utf-8"):
                self.path = path
        except (OSError, ValueError) as error:
            hint = "give another file, or check permissions and space"
            raise StoreError(f"cannot write the log {path}: {_reason(error)}", hint) from None

    def write_beside(self, root: str, name: str) -> None:
        """Write JSON lines to a warehouse's `logs/NAME.jsonl`.

        An object cannot grow. So in object storage each job has its own object, whose name begins with this
        one.

        Raises:
            StoreError: as `write_to`.
        """
        own = f"-{uuid.uuid4().hex[:12]}" if is_remote(root) else ""
        self.write_to(join_uri(root, "logs", f"{name}{own}.jsonl"))

    def write_log(self, store: FileTables, name: str, path: str | None = None) -> None:
        """Write JSON lines to `path`, else beside a warehouse's tables.

        The second needs a warehouse of files.
        """
        if path:
            self.write_to(path)
        elif store.file_place():
            self.write_beside(store.root, name)

    def close(self) -> None:
        """Write the last lines to object storage; end the log."""
        if self.remote is not None:
            self._write_remote(self.remote)
        self.path = self.remote = None

    def say(self, text: str) -> None:
        """Print a line for people, with the seconds so far."""
        line = f"[{time.monotonic() - self.started:6.1f} s] {text}"
        if self.bar:
            self.bar.say(line)
        else:
            print(line, file=self.stream, flush=True)

    def count(self, word: str, n: int, total: int) -> None:
        """Set the work's place among several, for the bar.

        An example is night 2 of 30.
        """
        if self.bar:
            self.bar.whole = (word, n, total)

    def record(self, stage: str, **facts: Any) -> None:
        """Write a line for machines."""
        time_text = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = json.dumps({"time": time_text, "stage": stage, **facts}, default=str) + "\n"
        if self.remote is not None:
            self.remote.lines.append(line)
            if time.monotonic() - self.remote.written >= REMOTE_SECONDS:
                self._write_remote(self.remote)
        if self.path:
            try:
                with self.path.open("a", encoding="utf-8") as file:
                    file.write(line)
            except OSError as error:
                # A full disk for logs must not stop a night: the tables hold its results.
                self.say(f"warning: no more lines in the log {self.path}: {_reason(error)}")
                self.path = None

    def _write_remote(self, remote: _RemoteLines) -> None:
        try:
            remote.write()
        except StoreError as error:
            self.say(f"warning: no more lines in the log {remote.place}: {error.message}")
            self.remote = None

    @contextmanager
    def stage(self, stage: str, text: str, **facts: Any) -> Iterator[dict[str, Any]]:
        """Print a stage's start; record its seconds and counts.

        The block puts the counts into the yielded dict.
        """
        self.say(text)
        counts: dict[str, Any] = {}
        started = time.monotonic()
        if self.bar:
            self.bar.begin(text)
        try:
            yield counts
        except BaseException as error:
            failed = {"seconds": round(time.monotonic() - started, 3), "error": type(error).__name__}
            self.record(stage, **facts, **counts, **failed)
            raise
        finally:
            if self.bar:
                self.bar.end()
        seconds = round(time.monotonic() - started, 3)
        self.record(stage, **facts, **counts, seconds=seconds)


def _make_bar(stream: TextIO) -> TerminalBar | None:
    """Return a bar if a terminal can redraw a line."""
    if not stream.isatty() or os.environ.get("TERM", "dumb") == "dumb":
        return None
    from recbench_spark.runtime.terminal_bar import TerminalBar  # noqa: PLC0415 (rich; logs need none)

    return TerminalBar(stream)


REMOTE_SECONDS = 10.0
"""Time between two writes of a log in object storage, so that requests do not grow with its lines."""


class _RemoteLines:
    """A log in object storage, written whole each time.

    Attributes:
        place: URI of the object.
        lines: all lines so far; a night has some tens.
        written: time of the last write.
    """

    def __init__(self, place: str) -> None:
        self.place = place
        self.lines: list[str] = []
        self.written, self._count = time.monotonic(), 0
        atexit.register(self._write_last)

    def write(self) -> None:
        """Write all lines; StoreError if the storage fails or refuses."""
        write_bytes(self.place, "".join(self.lines).encode())
        self.written, self._count = time.monotonic(), len(self.lines)

    def _write_last(self) -> None:
        if self._count < len(self.lines):
            with suppress(StoreError):
                self.write()


def write_json(place: str | Path, content: dict[str, Any]) -> None:
    """Write a JSON file atomically, on any storage."""
    write_text(place, json.dumps(content, indent=2, default=str) + "\n")


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
