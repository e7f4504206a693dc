"""Rows of a Spark frame as Parquet files in object storage, written by tasks without Hadoop.

Spark's own writer commits a Delta table there by a plain write, so of two drivers at once one could
overwrite the other's commit. The files that `write_frame` writes are committed by `delta_files.commit`, by
a conditional write. For files without a table, Spark's writer copies and deletes each file, since object
storage renames nothing; `write_parts` writes each once.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from functools import partial, reduce
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from recbench_spark.engine.versions import arrow_schema
from recbench_spark.kernels.streams import chunks
from recbench_spark.schemas import Table, arrow_rows
from recbench_spark.storage.delta_files import File, refuse_nulls, write_file
from recbench_spark.storage.objects import open_output
from recbench_spark.storage.spark_types import spark_schema
from recbench_spark.storage.uris import join_uri

BUFFER_BYTES = 1 << 26
"""Bytes of Arrow that a task collects before it writes a file for each partition value among them."""

FILE_COLUMNS = "path STRING, size LONG, rows LONG, parts ARRAY<STRING>"


def write_frame(frame: DataFrame, place: str, table: Table) -> list[File]:
    """Write the rows of a frame as files of a table, without a commit.

    Nothing is shuffled. A task holds BUFFER_BYTES; the driver holds four values per file. A task that is
    repeated writes files of other names, which belong to no version of the table, and VACUUM removes them.

    Args:
        frame: rows with the table's columns and types (`spark_types.conform`).
        place: URI of the table.
        table: its constraints are checked here, since no writer of Delta sees the rows.

    Raises:
        StoreError: a column that may not holds NULL; it reaches the caller as an error of Spark.
    """
    write = partial(_write_batches, place=place, table=table)
    rows = _raise_breaches(frame, table).mapInArrow(write, FILE_COLUMNS).collect()
    return [
        File(
            row["path"], row["size"], row["rows"], dict(zip(table.partition_by, row["parts"], strict=True))
        )
        for row in rows
    ]


def _raise_breaches(frame: DataFrame, table: Table) -> DataFrame:
    """Return the frame; a row that breaks a constraint of the table is an error when it is computed."""
    first = table.names[0]
    for name, condition in table.constraints.items():
        message = F.lit(f"cannot write {table.name}: a row breaks the constraint {name}: {condition}")
        holds = F.coalesce(F.expr(condition), F.lit(False))
        kind = spark_schema(table)[first].dataType
        frame = frame.withColumn(
            first, F.when(holds, F.col(first)).otherwise(F.raise_error(message).cast(kind))
        )
    return frame


def _write_batches(batches: Iterator[pa.RecordBatch], place: str, table: Table) -> Iterator[pa.RecordBatch]:
    """Write the rows of a task, and yield a row for each file."""
    waiting, held = list[pa.RecordBatch](), 0
    for batch in batches:
        waiting.append(batch)
        held += batch.nbytes
        if held >= BUFFER_BYTES:
            yield from _write_files(waiting, place, table)
            waiting, held = [], 0
    yield from _write_files(waiting, place, table)


def _write_files(batches: Sequence[pa.RecordBatch], place: str, table: Table) -> Iterator[pa.RecordBatch]:
    """Write a file for each partition value among some batches, and yield a row for each file."""
    if not any(batch.num_rows for batch in batches):
        return
    rows = arrow_rows(pa.Table.from_batches(batches), table)
    refuse_nulls(place, rows)
    names = [name for name in table.names if name not in table.partition_by]
    for values, part in _split_rows(rows, table.partition_by):
        file = write_file(part, place, dict(zip(table.partition_by, values, strict=True)), names)
        row = {"path": file.path, "size": file.size, "rows": file.rows, "parts": list(values)}
        yield pa.RecordBatch.from_pylist([row])


def _split_rows(rows: pa.Table, columns: Sequence[str]) -> Iterator[tuple[tuple[str, ...], pa.Table]]:
    """Yield the rows of each value of the partition columns, with the value as text."""
    if not columns:
        yield (), rows
        return
    for key in rows.select(columns).group_by(list(columns)).aggregate([]).to_pylist():
        masks = [pc.equal(rows[name], key[name]) for name in columns]
        yield tuple(str(key[name]) for name in columns), rows.filter(reduce(pc.and_, masks))


# ------------------------------------------------------------------------- files without a table

ROWS_PER_GROUP = 1 << 17
"""Rows of a row group, which a task holds."""

SPARK_SCHEMA = b"org.apache.spark.sql.parquet.row.metadata"
"""Key of a Parquet file under which Spark keeps a frame's schema with the metadata of its columns."""


def write_parts(frame: DataFrame, folder: str) -> tuple[str, ...]:
    """Write the rows of a frame as Parquet files of a new folder; return the files in order.

    Nothing is shuffled. A task writes one file, and holds ROWS_PER_GROUP rows. At least one file is
    written, for the columns. Each attempt at a task writes a file of its own name: one that Spark has given
    up may see the end of its rows too early and write fewer. So a reader takes the files that are returned
    here, and not all files of the folder.

    Args:
        frame: the rows.
        folder: URI of a place without objects.
    """
    write = partial(
        _write_part,
        folder=folder,
        schema=arrow_schema(frame),
        spark_schema=frame.schema.json().encode(),
    )
    return tuple(sorted(row["file"] for row in frame.mapInArrow(write, "file STRING").collect()))


def _write_part(
    batches: Iterator[pa.RecordBatch], folder: str, schema: pa.Schema, spark_schema: bytes
) -> Iterator[pa.RecordBatch]:
    """Write the rows of a task to one file, and yield its URI; nothing for a task without rows."""
    from pyspark import TaskContext  # noqa: PLC0415

    context = TaskContext.get()
    number = context.partitionId() if context is not None else 0
    filled = (batch for batch in batches if batch.num_rows)
    first = next(filled, None)
    if first is None and number:
        return
    file = join_uri(folder, f"part-{number:05}-{uuid.uuid4().hex}.parquet")
    with open_output(file) as stream, pq.ParquetWriter(stream, schema, store_schema=False) as writer:
        writer.add_key_value_metadata({SPARK_SCHEMA: spark_schema})
        for table in chunks(filled if first is None else chain([first], filled), ROWS_PER_GROUP):
            writer.write_table(table.cast(schema))
    yield pa.RecordBatch.from_pydict({"file": [file]})
