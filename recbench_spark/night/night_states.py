"""Record a night's state in `results/` from the start.

So nobody reads an earlier end.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, date, datetime

from recbench_spark.errors import RecbenchError
from recbench_spark.night.night_status import night_file, read_filled_tables
from recbench_spark.night.result_files import NightStateRecord, list_versions
from recbench_spark.runtime.journal import write_json
from recbench_spark.storage.arrow_store import is_made
from recbench_spark.storage.objects import read_bytes

ErrorReader = Callable[[BaseException], tuple[int, str]]
"""Turns an error into its job's exit code and message."""


@contextmanager
def record_state(root: str, suite: str, day: date, read_error: ErrorReader) -> Iterator[None]:
    """Mark a night as running, or failed after an error.

    A night that comes to its end replaces the mark by its outcome. Another attempt's mark, written
    meanwhile, stays. A missing folder is not made. A killed process leaves the mark `running`. Warehouses
    in a catalog have no such file.

    Args:
        root: the warehouse's root.
        suite: the benchmark's name.
        day: the night.
        read_error: called with the error that ends the block.
    """
    place, attempt = night_file(root, suite, day), uuid.uuid4().hex
    begun = NightStateRecord(
        suite=suite,
        logical_date=day,
        state="running",
        attempt=attempt,
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        exit_code=None,
        error=None,
        tables=read_filled_tables(root, suite, day),
        versions=list_versions(),
    )
    marked = _write(root, place, begun)
    try:
        yield
    except BaseException as error:
        if not marked or _read_attempt(place) == attempt:
            code, message = read_error(error)
            ended = {"state": "failed", "exit_code": code, "error": message}
            _write(root, place, begun.model_copy(update=ended))
        raise


def _write(root: str, place: str, record: NightStateRecord) -> bool:
    """Write a record where the warehouse has files.

    The job itself reports errors of its storage.
    """
    if not is_made(root):
        return False
    with suppress(OSError, RecbenchError):
        write_json(place, record.model_dump(mode="json"))
        return True
    return False


def _read_attempt(place: str) -> str | None:
    """Return the attempt that marked a file, else None.

    A night that came to its end has no mark.
    """
    with suppress(OSError, ValueError):
        attempt = json.loads(read_bytes(place) or b"{}").get("attempt")
        return None if attempt is None else str(attempt)
    return None
