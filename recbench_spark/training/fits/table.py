"""Rows of tasks as rows of the table `fits`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

from recbench_spark import __version__
from recbench_spark.schemas import FITS
from recbench_spark.storage.delta_files import Presence
from recbench_spark.storage.store import Store
from recbench_spark.training.fits.tasks import Row

ROW_KEY = ("fit_id", "suite", "purpose", "model", "status", Presence("files"))
"""Columns that say which fit a row is of, what for, and what is left of it.

`files` counts by whether it is there: the folder has the name of the fit, and older versions stored its
absolute path.
"""


def append_fits(store: Store, rows: Sequence[Row], facts: Row) -> None:
    """Append rows that are not there; `facts`: log_id, suite, dataset, split and purpose of all of them.

    Two jobs that end the same fits at once leave one row a fit. Each attempt that failed is a row.
    """
    known = {**facts, "code_version": __version__}
    full = [
        {name: _to_arrow_value(name, {**known, **row}.get(name)) for name in FITS.names} for row in rows
    ]
    failed = [row for row in full if row["status"] == "failed"]
    store.append_missing([row for row in full if row["status"] != "failed"], FITS, ROW_KEY)
    store.append_missing(failed, FITS, (*ROW_KEY, "started_at"))


class BackgroundCommits:
    """Rows are written some at a time and beside what makes them; left, the rest is.

    A commit is a few small jobs of Spark, and each waits for a slot while fits hold them all: whoever
    waited for it would tell of no fit for as long as some fits take.

    Args:
        write: takes the rows of one commit; called from one thread at a time.
        every: seconds between commits.

    Raises:
        Exception: what `write` raises, with a later row or at the end.
    """

    def __init__(self, write: Callable[[list[Row]], None], every: float) -> None:
        self.write, self.every = write, every
        self.pool, self.running = ThreadPoolExecutor(1), Future[None]()
        self.running.set_result(None)
        self.pending, self.since = list[Row](), time.monotonic()

    def __enter__(self) -> BackgroundCommits:
        """Itself."""
        return self

    def add(self, row: Row) -> None:
        """One more row; begins a commit where the last one has ended and is long ago."""
        self.pending.append(row)
        if self.running.done() and time.monotonic() - self.since > self.every:
            self._begin()

    def _begin(self) -> None:
        self.running.result()
        self.running = self.pool.submit(self.write, self.pending)
        self.pending, self.since = [], time.monotonic()

    def __exit__(self, kind: object, *_error: object) -> None:
        """Write the rest, unless an error ends it all."""
        try:
            if kind is None:
                self._begin()
                self.running.result()
        finally:
            self.pool.shutdown()


def _to_arrow_value(name: str, value: Any) -> Any:
    """Return a value as Arrow takes it; a moment without a zone is one that Spark gave, of this host's."""
    if not name.endswith("_at") or value is None:
        return value
    moment = datetime.fromisoformat(value) if isinstance(value, str) else value
    return moment.astimezone(UTC)
