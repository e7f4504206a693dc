"""Rows of the table `fits`: append them, find their folders."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

from recbench_spark import __version__
from recbench_spark.models.fits.tasks import FIT_FILES, ROW, Row
from recbench_spark.schemas import FITS
from recbench_spark.storage.delta_files import Presence
from recbench_spark.storage.file_tables import FileTables
from recbench_spark.storage.objects import read_bytes
from recbench_spark.storage.uris import read_tail

ROW_KEY = ("fit_id", "suite", "purpose", "model", "status", Presence("files"))
"""Columns which identify a row: the fit, its purpose, and its state.

Of `files` only NULL or not counts: the folder has the fit's name, and older versions stored its absolute
path.
"""


def append_fits(store: FileTables, rows: Sequence[Row], facts: Row) -> None:
    """Append missing rows.

    `facts`: log_id, suite, dataset, split and purpose for all of them. If two jobs end the same fits at
    once, one row per fit remains. Each failed attempt is a row.
    """
    shared = {**facts, "code_version": __version__}
    full = [
        {name: _to_arrow_value(name, {**shared, **row}.get(name)) for name in FITS.names} for row in rows
    ]
    failed = [row for row in full if row["status"] == "failed"]
    store.append_missing([row for row in full if row["status"] != "failed"], FITS, ROW_KEY)
    store.append_missing(failed, FITS, (*ROW_KEY, "started_at"))


class BackgroundCommits:
    """Writes rows in batches by a background thread.

    Leaving the context writes the remaining rows. A commit is a few small Spark jobs, and each waits for a
    free slot while fits hold all slots. A caller waiting for commits could report no fit for as long as
    some fits take.

    Args:
        write: writes the rows of one commit; called from one thread at a time.
        every: seconds between commits.

    Raises:
        Exception: an error from `write`, at a later row or at the end.
    """

    def __init__(self, write: Callable[[list[Row]], None], every: float) -> None:
        self.write, self.every = write, every
        self.pool, self.running = ThreadPoolExecutor(1), Future[None]()
        self.running.set_result(None)
        self.pending, self.since = list[Row](), time.monotonic()

    def __enter__(self) -> BackgroundCommits:
        """Return this object."""
        return self

    def add(self, row: Row) -> None:
        """Add a row; start a commit if it is time.

        The last commit must have ended, long enough ago.
        """
        self.pending.append(row)
        if self.running.done() and time.monotonic() - self.since > self.every:
            self._begin()

    def _begin(self) -> None:
        self.running.result()
        self.running = self.pool.submit(self.write, self.pending)
        self.pending, self.since = [], time.monotonic()

    def __exit__(self, kind: object, *_error: object) -> None:
        """Write the remaining rows, unless an error ends the context."""
        try:
            if kind is None:
                self._begin()
                self.running.result()
        finally:
            self.pool.shutdown()


def _to_arrow_value(name: str, value: Any) -> Any:
    """Return a value as Arrow takes it.

    A time without a zone is Spark's, in this host's zone.
    """
    if not name.endswith("_at") or value is None:
        return value
    moment = datetime.fromisoformat(value) if isinstance(value, str) else value
    return moment.astimezone(UTC)


def store_place(store: FileTables, stored: str) -> str:
    """Return a stored folder's path in the form of new rows.

    The row may be of any version.
    """
    return store.format_path(read_tail(stored, FIT_FILES))


def find_place(store: FileTables, stored: str) -> str:
    """Return the current path of a fit's folder.

    An absolute path in an older row is never opened, because the warehouse may be a copy. Older versions
    wrote fits to the scratch folder if `spark.recbench.scratch` was set, so that folder comes second.

    Args:
        store: the warehouse.
        stored: value of `fits.files`.
    """
    tail = read_tail(stored, FIT_FILES)
    places = [f"{root}/{tail}" for root in dict.fromkeys((store.files_root, store.scratch))]
    return next((place for place in places if read_bytes(f"{place}/{ROW}") is not None), places[0])
