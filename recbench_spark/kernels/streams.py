"""Streams of Arrow batches; separate from `arrays`, since kernels on a GPU do not need Arrow."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

Batches = Iterator[pa.RecordBatch]
"""Input and output of a task of `mapInArrow`."""

NOTES = b"recbench.notes"
"""Metadata of a table with what a task tells the driver beside its rows."""
