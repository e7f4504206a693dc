"""Rows of tasks as rows of the table `fits`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from recbench_spark import __version__
from recbench_spark.schemas import FITS
from recbench_spark.store import Store
from recbench_spark.training.fits.tasks import Row


def append_fits(store: Store, rows: Sequence[Row], facts: Row) -> None:
    """Append rows; `facts`: log_id, suite, dataset, split and purpose of all of them."""
    if not rows:
        return
    known = {**facts, "code_version": __version__}
    values = [tuple(_typed(name, {**known, **row}.get(name)) for name in FITS.names) for row in rows]
    store.append(store.spark.createDataFrame(values, FITS.schema), FITS)


def _typed(name: str, value: Any) -> Any:
    return datetime.fromisoformat(value) if name.endswith("_at") and isinstance(value, str) else value
