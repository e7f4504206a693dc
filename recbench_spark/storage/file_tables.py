"""Tables whose files tasks and the driver write without Java: in a folder, or in an object storage."""

from __future__ import annotations

import math
import uuid
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from recbench_spark.errors import FallbackToSpark
from recbench_spark.schemas import Table
from recbench_spark.storage import delta_files
from recbench_spark.storage.blocks import Engine, PieceRows, Rows, TaskRows
from recbench_spark.storage.delta_tables import list_file_sizes
from recbench_spark.storage.packed_blocks import read_partition_files
from recbench_spark.storage.retries import is_delta_conflict, retry_while

Part = tuple[TaskRows, Mapping[str, str]]
"""Results of tasks, and their partition of a table."""

MAX_DRIVER_BYTES = 1 << 28
"""Bytes of files that the driver reads itself; tasks read larger ones."""


class FileTables:
    """Reading and writing of files, for warehouses that say where tables are.

    Attributes:
        root: folder, URI or name of the warehouse.
        wait: seconds before the second attempt at a write.
    """

    root: str
    wait = 0.4

    @property
    def files_root(self) -> str:
        """Root of files that later jobs need: the warehouse's folder, where retention looks for them."""
        return self.root

    def format_path(self, relative: str) -> str:
        """Return a path below `files_root` as tables store it."""
        return relative

    @property
    def engine(self) -> Engine:
        """Runner of tasks."""
        raise NotImplementedError

    def location(self, name: str) -> str:
        """Return the folder or URI of a table."""
        raise NotImplementedError

    def exists(self, name: str) -> bool:
        """Return whether the table has been created."""
        raise NotImplementedError

    def list_partition_files(
        self, table: Table, partition: Mapping[str, str], *, max_bytes: float = MAX_DRIVER_BYTES
    ) -> list[str]:
        """Return the Parquet files of a partition; empty if Spark must read them, or they are too large.

        `max_bytes`: their largest size together, by default what the driver reads itself.
        """
        if not self.exists(table.name) or not self._uses_deltalake(table):
            return []
        size_by_file = list_file_sizes(self.location(table.name), partition)
        return list(size_by_file) if sum(size_by_file.values()) <= max_bytes else []

    def open_rows(self, table: Table, column: str, values: Sequence[str], **others: str) -> Rows:
        """Return the rows of partitions, which tasks open by themselves.

        Args:
            table: a table whose first partition column is `column`.
            column: a partition column; it can be read like the others.
            values: the partitions.
            others: values of further partition columns.

        Raises:
            FallbackToSpark: Spark must read the table, and this warehouse has none.
        """
        if self.exists(table.name) and not self._uses_deltalake(table):
            return self._open_frame(table, column, values, others)
        pieces = [
            (file, partition)
            for partition in ({column: value, **others} for value in values)
            for file in self.list_partition_files(table, partition, max_bytes=math.inf)
        ]
        return PieceRows(self.engine, pieces, read_partition_files)

    def _open_frame(
        self, table: Table, column: str, values: Sequence[str], others: Mapping[str, str]
    ) -> Rows:
        raise FallbackToSpark(f"table {table.name} of the warehouse")

    def commit_files(self, files: Sequence[delta_files.File], table: Table, once: str) -> None:
        """Append files that tasks wrote to a table's folder, once per name, in one version."""
        if not files:
            return
        delta_files.require_visible(self.location(table.name), files)
        self._commit(
            table, partial(delta_files.commit, files=files, partition={}, once=f"{table.name}/{once}")
        )

    def append_blocks(self, blocks: TaskRows, table: Table, once: str) -> list[delta_files.File]:
        """Append the results of tasks to a table's partition `once`, as `append_parts`."""
        (column,) = table.partition_by
        return self.append_parts([(blocks, {column: once})], table, once)

    def append_parts(self, parts: Sequence[Part], table: Table, once: str) -> list[delta_files.File]:
        """Append the results of tasks to partitions of a table, in one version; a second call does nothing.

        It returns the files that tasks wrote now, with what their tasks noted.
        """
        self.create(table)
        location, name = self.location(table.name), f"{table.name}/{once}"
        if delta_files.is_committed(location, name):
            return []
        files = [
            file
            for blocks, partition in parts
            for file in delta_files.write_files(blocks, location, partition)
        ]
        names = dict.fromkeys(table.partition_by, "")
        self._commit(table, partial(delta_files.commit, files=files, partition=names, once=name))
        return files

    def create(self, *tables: Table) -> None:
        """Create those tables that do not exist yet."""
        raise NotImplementedError

    def _write_rows(self, rows: pa.Table, table: Table, once: str = "") -> None:
        """Append rows that the driver holds. A repeated attempt has the same name, and appends once."""
        name = f"{table.name}/{once or uuid.uuid4().hex}"
        self._commit(table, partial(delta_files.append_rows, rows=rows, once=name))

    def _commit(self, table: Table, write: Any) -> None:
        action = partial(write, self.location(table.name))
        retry_while(is_delta_conflict, f"write {table.name}", action, self.wait)

    def list_values(self, table: Table, column: str) -> set[str]:
        """Return the distinct values of a text column; of a partition column from the log alone."""
        if column in table.partition_by:
            return set(delta_files.partition_values(self.location(table.name), column))
        return delta_files.read_column_values(self.location(table.name), column)

    def _uses_deltalake(self, table: Table) -> bool:
        """Return whether `deltalake` can read and write an existing table, without a Spark job."""
        return delta_files.can_append(self.location(table.name))
