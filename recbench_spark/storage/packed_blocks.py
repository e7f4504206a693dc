"""Blocks: some thousand rows of Arrow as one value.

Numbers take half their width. Blocks carry rows where Python processes them before and after a shuffle; no
Spark is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from recbench_spark.core.streams import Batches, serialize_table
from recbench_spark.engine.measures import PIECE_ROWS
from recbench_spark.storage.objects import open_parquet

MIN_BUFFER_ROWS, ROWS_PER_BLOCK, MAX_BUFFER_ROWS = 1 << 19, 1 << 10, 1 << 22
"""Rows in a task while it partitions them: more for many tasks, so that blocks stay large."""

BLOCK_SCHEMA = "task INT, rows BINARY"
"""A block's target task, and its rows."""

Block = tuple[int, bytes]
"""The same columns in an RDD."""

SCALE_KEY = b"recbench.was"
"""Metadata of a field packed in 32 of its 64 bits: its values' divisor."""

Change = Callable[[pa.Table], pa.Table]
Read = Callable[[Iterable[Any]], Iterable[pa.Table]]
"""Reads a task's tables from its items, which are blocks or files."""

Result = TypeVar("Result")

SIDES = ("key_value.key", "key_value.value")
"""Columns within a map, as Parquet names them."""

DICTIONARIES = ("user_id", "item_id", "part")
"""Columns of labelled rows to be read as dictionaries: each text is handled once."""


def open_labelled(file: str, columns: Sequence[str]) -> pq.ParquetFile:
    """Open a file to read columns of labelled rows, texts as dictionaries."""
    texts = [name for name in DICTIONARIES if name in columns]
    inside = [f"attributes.{side}" for side in SIDES if "attributes" in columns]
    try:
        return open_parquet(file, read_dictionary=[*texts, *inside])
    except KeyError:  # another writer has other names within its maps
        leaves = open_parquet(file).schema
        names = (leaves.column(n).path for n in range(len(leaves.names)))
        inside = [name for name in names if name.startswith("attributes.")]
        return open_parquet(file, read_dictionary=[*texts, *inside])


def buffer_rows(tasks: int) -> int:
    """Return a task's rows in memory while it partitions them."""
    return min(max(MIN_BUFFER_ROWS, ROWS_PER_BLOCK * tasks), MAX_BUFFER_ROWS)


def unpack_blocks(blocks: Iterable[bytes | pa.Buffer]) -> pa.Table | None:
    """Return all rows of some blocks; None: no block."""
    tables = [_decode_block(block) for block in blocks]
    return pa.concat_tables(tables).combine_chunks() if tables else None


def partition_rows(rows: pa.Table, task_r: npt.NDArray[np.integer]) -> Iterator[Block]:
    """Yield one block for each task with rows.

    Args:
        rows: a table in one chunk.
        task_r: the task of each row.
    """
    # The smallest type makes the sort fast: it takes two passes over numbers of 16 bits.
    order_r = np.argsort(task_r.astype(np.min_scalar_type(task_r.max())), kind="stable")
    rows, sorted_r = rows.take(pa.array(order_r)), task_r[order_r]
    ends = np.append(np.flatnonzero(np.diff(sorted_r)), len(sorted_r) - 1) + 1
    starts = np.insert(ends[:-1], 0, 0)
    for start, end in zip(starts, ends, strict=True):
        yield int(sorted_r[start]), _encode_block(rows.slice(start, end - start))


# ------------------------------------------------------------------------- a block as one value


def _encode_block(rows: pa.Table) -> bytes:
    """Return rows as bytes; numbers shrink without loss."""
    for place, field in enumerate(rows.schema):
        narrow = _narrow_column(rows.column(place))
        if narrow is not None:
            column, scale = narrow
            packed = pa.field(field.name, column.type, metadata={SCALE_KEY: scale})
            rows = rows.set_column(place, packed, column)
    return serialize_table(rows)


def _narrow_column(column: pa.ChunkedArray) -> tuple[pa.ChunkedArray, str] | None:
    """Return a column in 32 bits, and its factor.

    Multiplication by the factor restores the values. None: the column does not fit.
    """
    if column.type == pa.float64() and _fits_float32(column):
        return column.cast(pa.float32(), safe=False), "1"
    if column.type != pa.int64():
        return None
    # Times in whole seconds, stored as microseconds, fit after a division.
    for factor in (1, 1_000_000):
        smaller = column if factor == 1 else pc.divide(column, factor)
        if _fits_int32(smaller) and (factor == 1 or pc.multiply(smaller, factor).equals(column)):
            return smaller.cast(pa.int32()), str(factor)
    return None


def _fits_int32(column: pa.ChunkedArray) -> bool:
    bounds = pc.min_max(column).as_py()
    return bounds["min"] is None or bool(bounds["min"] >= -(2**31) and bounds["max"] < 2**31)


def _fits_float32(column: pa.ChunkedArray) -> bool:
    values = column.drop_null().to_numpy()
    with np.errstate(over="ignore"):
        return bool((values.astype(np.float32) == values).all())


def _decode_block(block: bytes | pa.Buffer) -> pa.Table:
    rows = pa.ipc.open_stream(block).read_all()
    for place, field in enumerate(rows.schema):
        if field.metadata and SCALE_KEY in field.metadata:
            column, factor = rows.column(place), int(field.metadata[SCALE_KEY])
            wide = column.cast(pa.int64() if pa.types.is_integer(column.type) else pa.float64())
            rows = rows.set_column(place, field.name, wide if factor == 1 else pc.multiply(wide, factor))
    return rows


# ------------------------------------------------------------------------- names of files


def are_whole(files: Sequence[str], key: str) -> bool:
    """Check by the names whether each file has whole ids.

    An id is whole if no other file has rows of it. Compaction gives another name.
    """
    return bool(files) and all(name_whole(key) in file.rpartition("/")[2] for file in files)


def name_whole(key: str) -> str:
    """Return the mark of whole ids in files' names.

    The mark is empty without a column of ids.
    """
    return f"by-{key}-" if key else ""


# ------------------------------------------------------------------------- what tasks do


def read_blocks(blocks: Iterable[bytes | pa.Buffer]) -> Iterator[pa.Table]:
    """Yield one table with all of a task's blocks.

    Without a block there is no table.
    """
    table = unpack_blocks(blocks)
    if table is not None:
        yield table


def read_files(files: Iterable[str], columns: Sequence[str]) -> Iterator[pa.Table]:
    """Yield the rows of each file in a task."""
    for file in files:
        rows = open_labelled(file, columns).read(columns=list(columns))
        # Files from several writers differ in nullable columns; their rows have one schema.
        yield pa.table(dict(zip(rows.column_names, rows.columns, strict=True)))


def read_partition_files(
    pieces: Iterable[tuple[str, Mapping[str, str]]],
    columns: Sequence[str],
    most: int = PIECE_ROWS,
    schema: pa.Schema | None = None,
) -> Iterator[pa.Table]:
    """Yield files' rows in slices, with their partition's values.

    Args:
        pieces: files, each with its partition's values.
        columns: the wanted columns.
        most: rows read at once.
        schema: the table's; an older file may lack a column, which becomes NULL. None: no file is older.
    """
    for file, partition in pieces:
        names = [name for name in columns if name not in partition]
        for batch in open_parquet(file).iter_batches(most, columns=names):
            yield pa.table({name: _read_column(batch, name, partition, schema) for name in columns})


def _read_column(
    batch: pa.RecordBatch, name: str, partition: Mapping[str, str], schema: pa.Schema | None
) -> pa.Array:
    if name in partition:
        return pa.repeat(partition[name], batch.num_rows)
    if schema is not None and name not in batch.schema.names:
        return pa.nulls(batch.num_rows, schema.field(name).type)
    return batch.column(name)


def finish_tables(
    items: Iterable[Any], read: Read, change: Change, finish: Callable[[pa.Table], Result]
) -> Iterator[Result]:
    """Change a task's tables, and yield `finish` of each."""
    for table in read(items):
        yield finish(change(table))


def deal_tables(
    items: Iterable[Any], read: Read, change: Change, deal: Callable[[Iterable[pa.Table]], Iterator[Block]]
) -> Iterator[Block]:
    """Change a task's tables, and yield blocks from all."""
    return deal(map(change, read(items)))


def select_batches(rows: pa.Table, names: Sequence[str]) -> Batches:
    """Yield some columns in batches; a dictionary becomes its values."""
    for batch in rows.select(names).to_batches(max_chunksize=1 << 16):
        columns = [
            column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
            for column in batch.columns
        ]
        yield pa.RecordBatch.from_arrays(columns, list(names))


def select_columns(rows: pa.Table, change: Change, names: Sequence[str]) -> pa.Table:
    """Return some columns of a result."""
    return change(rows).select(names)


def decode_dictionaries(rows: pa.Table) -> pa.Table:
    """Return the rows with texts in place of dictionaries.

    A block would hold all of a dictionary.
    """
    for place, field in enumerate(rows.schema):
        if pa.types.is_dictionary(field.type):
            rows = rows.set_column(place, field.name, rows.column(place).cast(field.type.value_type))
    return rows


def read_block_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield one table with all blocks of a Spark task.

    Without a block there is no table.
    """
    return read_blocks(block.as_buffer() for batch in batches for block in batch.column("rows"))
