"""Rows written by tasks as Parquet files, without a shuffle.

The files are for a table or for scratch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial, reduce

import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.core.streams import gather_tables
from recbench_spark.schemas import Table, arrow_rows
from recbench_spark.storage.blocks import Rows
from recbench_spark.storage.delta_files import File, refuse_nulls, write_file


def write_rows(
    rows: Rows, names: Sequence[str], folder: str, partition: Mapping[str, str] | None = None
) -> list[File]:
    """Write rows as files of a folder or partition, without a commit.

    A task holds some 64 MB. A repeated task writes files under other names; the files of attempts given up
    are not returned.
    """
    write = partial(_write_tables, names=tuple(names), folder=folder, partition=partition or {})
    return [file for files in rows.each(names, write) for file in files]


def _write_tables(
    tables: Iterable[pa.Table], names: Sequence[str], folder: str, partition: Mapping[str, str]
) -> list[File]:
    return [write_file(rows, folder, partition, names) for rows in gather_tables(tables)]


def write_table_rows(rows: Rows, table: Table, place: str) -> list[File]:
    """Write rows as a table's files, one for each partition.

    The rest is as in `write_rows`.

    Raises:
        StoreError: a column holds a forbidden NULL; on Spark it reaches the caller as an error of Spark.
    """
    written = rows.each(table.names, partial(_write_partitions, table=table, place=place))
    return [file for files in written for file in files]


def _write_partitions(tables: Iterable[pa.Table], table: Table, place: str) -> list[File]:
    names = [name for name in table.names if name not in table.partition_by]
    files = []
    for gathered in gather_tables(tables):
        rows = arrow_rows(gathered, table)
        refuse_nulls(place, rows)
        files += [write_file(part, place, values, names) for values, part in _split_rows(rows, table)]
    return files


def _split_rows(rows: pa.Table, table: Table) -> Iterator[tuple[dict[str, str], pa.Table]]:
    """Yield each partition's rows, with its values as text."""
    if not table.partition_by:
        yield {}, rows
        return
    for key in rows.select(table.partition_by).group_by(list(table.partition_by)).aggregate([]).to_pylist():
        masks = [pc.equal(rows[name], value) for name, value in key.items()]
        yield {name: str(value) for name, value in key.items()}, rows.filter(reduce(pc.and_, masks))
