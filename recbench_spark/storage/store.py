"""The warehouse with Spark, in a folder or catalog.

A catalog's schema is called `catalog.schema`. Results are appended under a fresh `run_id`. They become
visible when the row of `runs`, written last, says succeeded: a killed run leaves nothing which the views
show. Intermediate tables are named by the hash of their inputs and appended once per name (Delta's
transaction identifiers), so two nights at once cannot append them twice.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa

from recbench_spark.engine.versions import change_setting, is_frame, make_frame
from recbench_spark.schemas import TABLES, Table
from recbench_spark.storage import delta_files
from recbench_spark.storage.blocks import PieceRows
from recbench_spark.storage.delta_files import File
from recbench_spark.storage.file_tables import TaskFiles
from recbench_spark.storage.frame_blocks import BATCHES, FrameRows, open_frame
from recbench_spark.storage.marks import count_hours_to_keep
from recbench_spark.storage.packed_blocks import read_partition_files
from recbench_spark.storage.scratch import scratch_folder
from recbench_spark.storage.spark_errors import retry_conflicts
from recbench_spark.storage.spark_types import conform, raise_breaches, spark_schema
from recbench_spark.storage.table_sql import equality_condition, quote_text, timestamp_literal
from recbench_spark.storage.task_files import write_table_rows
from recbench_spark.storage.uris import is_object_storage, join_uri
from recbench_spark.storage.warehouse import WarehouseTables

T = TypeVar("T")


class Store(WarehouseTables):
    """The one writer of a warehouse with Spark.

    Tables have names below one root.
    """

    def append(self, rows: Any, table: Table, once: str = "", named_by: str = "") -> list[File]:
        """Append rows, as `FileTables.append`; also frames of Spark.

        On object storage tasks write a frame's rows. Elsewhere Spark does, and Delta skips a version which
        is not above the name's last one.
        """
        if not is_frame(rows):
            return super().append(rows, table, once, named_by)
        self.create(table)
        frame, once, name = conform(rows, table), once or uuid.uuid4().hex, self.location(table.name)
        if is_object_storage(self.root):
            if not delta_files.is_committed(name, f"{table.name}/{once}"):
                files = write_table_rows(FrameRows(raise_breaches(frame, table), BATCHES), table, name)
                super().append(TaskFiles(files, name), table, once)
            return []
        writer = frame.write.format("delta").mode("append")
        writer = writer.option("txnAppId", f"{table.name}/{once}").option("txnVersion", "1")
        save = writer.saveAsTable if self.in_catalog else writer.save
        self.retry(f"write {table.name}", lambda: save(name))
        return []

    def run_together(self, actions: Sequence[Callable[[], object]]) -> None:
        """Run actions side by side.

        The driver plans one while executors work on another.
        """
        with ThreadPoolExecutor(max_workers=8) as pool:
            list(pool.map(lambda action: action(), actions))

    def _open_spare_folder(self, table: Table) -> str:
        return scratch_folder(self.scratch)

    def _append_spare(self, written: TaskFiles, table: Table, once: str) -> None:
        """Let Spark append files written beside a table by tasks.

        The table's catalog or rules need Spark.
        """
        pieces = [(join_uri(written.folder, file.path), file.partition or {}) for file in written.files]
        rows = PieceRows(self.engine, pieces, partial(read_partition_files, schema=table.arrow_schema))
        self.append(open_frame(self.spark, rows, spark_schema(table)), table, once)

    def _append_arrow(self, rows: pa.Table, table: Table, once: str) -> None:
        if self._uses_deltalake(table):
            super()._append_arrow(rows, table, once)
        else:
            self.append(make_frame(self.spark, rows), table, once)

    def _append_missing(
        self, rows: pa.Table, table: Table, key: Sequence[str], since: delta_files.Since
    ) -> None:
        """Append rows by MERGE where Spark commits.

        MERGE reads the table, so Delta sees other writers.
        """
        if self._uses_deltalake(table):
            super()._append_missing(rows, table, key, since)
            return
        view = f"missing_{uuid.uuid4().hex}"
        conform(self.spark.createDataFrame(rows), table).createOrReplaceTempView(view)
        same = [equality_condition(table, name) for name in key]
        later = [] if since is None else [f"there.{since[0]} > {timestamp_literal(since[1])}"]
        try:
            self.spark.sql(
                f"MERGE INTO {self.identifier(table.name)} AS there USING {view} AS new"
                f" ON {' AND '.join([*same, *later])} WHEN NOT MATCHED THEN INSERT *"
            )
        finally:
            self.spark.catalog.dropTempView(view)

    def _replace_rows(self, rows: pa.Table, table: Table, column: str, value: str) -> None:
        if self._uses_deltalake(table):
            super()._replace_rows(rows, table, column, value)
            return
        writer = conform(self.spark.createDataFrame(rows), table).write.format("delta").mode("overwrite")
        writer = writer.option("replaceWhere", f"{column} = {quote_text(value)}")
        (writer.saveAsTable if self.in_catalog else writer.save)(self.location(table.name))

    def retry(self, what: str, action: Callable[[], T]) -> T:
        """Run an action again while another writer is first."""
        return retry_conflicts(what, action)

    def delete(self, name: str, column: str, values: Sequence[str]) -> None:
        """Delete rows with one of these values in a column."""
        if self._keeps_files(name):
            super().delete(name, column, values)
            return
        listed = ", ".join(map(quote_text, values))
        statement = f"DELETE FROM {self.identifier(name)} WHERE {column} IN ({listed})"
        retry_conflicts(f"clean {name}", partial(self.spark.sql, statement))

    def optimize(self, name: str, without: tuple[str, Sequence[str]] = ("", ())) -> None:
        """Compact small files, as `FileTables.optimize`."""
        if self._keeps_files(name):
            super().optimize(name, without)
            return
        column, values = without
        listed = ", ".join(map(quote_text, values))
        where = f" WHERE {column} NOT IN ({listed})" if values else ""
        statement = f"OPTIMIZE {self.identifier(name)}{where}"
        retry_conflicts(f"optimize {name}", partial(self.spark.sql, statement))

    def vacuum(self, name: str, hours: int) -> None:
        """Remove files no recent version uses, as `FileTables.vacuum`."""
        if self._keeps_files(name):
            super().vacuum(name, hours)
            return
        kept = hours if self.folder is None else count_hours_to_keep(self.folder, hours)
        # Delta would require a week, but a night ends within a day.
        change_setting(self.spark, "spark.databricks.delta.retentionDurationCheck.enabled", "false")
        self.spark.sql(f"VACUUM {self.identifier(name)} RETAIN {kept} HOURS")

    def _keeps_files(self, name: str) -> bool:
        """Check whether the driver may exchange a table's files.

        In object storage Spark never does it.
        """
        return is_object_storage(self.root) or self.keeps_files(TABLES[name])
