"""Streams of Arrow batches; apart from `arrays`, since kernels on a GPU do without Arrow."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

Batches = Iterator[pa.RecordBatch]
"""What `mapInArrow` hands to a task, and wants back."""
