"""Streams of Arrow batches, separate from `arrays`.

Kernels on a GPU do not need Arrow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

Batches = Iterator[pa.RecordBatch]
"""Input and output of a task in `mapInArrow`."""

NOTES = b"recbench.notes"
"""Metadata of a table: what a task tells the driver beside its rows."""


BUFFER_BYTES = 1 << 26
"""Bytes of rows in a task while it deals them."""


def serialize_table(rows: pa.Table) -> bytes:
    """Write a table as an Arrow stream, in bytes."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def chunks(batches: Batches, rows: int) -> Iterator[pa.Table]:
    """Yield batches merged into tables of `rows` rows or more.

    Each table has one chunk; the last may be smaller.
    """
    for group in group_batches(batches, rows):
        yield pa.Table.from_batches(group).combine_chunks()


def group_batches(batches: Batches, rows: int) -> Iterator[list[pa.RecordBatch]]:
    """Yield groups of batches with `rows` rows or more together.

    The last may have fewer.
    """
    buffer: list[pa.RecordBatch] = []
    n = 0
    for batch in batches:
        if batch.num_rows:
            buffer.append(batch)
            n += batch.num_rows
        if n >= rows:
            yield buffer
            buffer, n = [], 0
    if buffer:
        yield buffer


def gather_tables(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yield the rows in tables of about BUFFER_BYTES."""
    held: list[pa.Table] = []
    size = 0
    for table in tables:
        held += [table] if len(table) else []
        size += table.nbytes
        if held and size >= BUFFER_BYTES:
            yield pa.concat_tables(held)
            held, size = [], 0
    if held:
        yield pa.concat_tables(held)
