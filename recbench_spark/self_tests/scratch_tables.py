"""Warehouses for nights that are thrown away, with logs of commits or without.

Without them, the driver's rows lie in memory and those of tasks in files.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow import fs

from recbench_spark.config import Benchmark
from recbench_spark.engine.measures import PIECE_ROWS
from recbench_spark.models.adapters.model_adapter import make_adapter
from recbench_spark.models.tables import EMBEDDINGS, SIMILARITIES
from recbench_spark.schemas import Table
from recbench_spark.storage.arrow_store import ArrowStore
from recbench_spark.storage.blocks import PieceRows
from recbench_spark.storage.delta_files import (
    File,
    Since,
    drop_repeated_keys,
    refuse_nulls,
    write_file,
    write_files,
)
from recbench_spark.storage.file_tables import TaskFiles, TaskParts
from recbench_spark.storage.leases import Report
from recbench_spark.storage.packed_blocks import read_partition_files
from recbench_spark.storage.table_upkeep import LostFile
from recbench_spark.storage.uris import join_uri

Part: TypeAlias = "pa.Table | list[File]"
"""Rows of one append: the driver's, or files by tasks with their whole paths."""


class ScratchWarehouse(ArrowStore):
    """A warehouse that ends with a self-test."""

    def copy(self, place: Path) -> ScratchWarehouse:
        """Return a warehouse with the same rows, which takes others."""
        shutil.copytree(self.root, place, ignore=shutil.ignore_patterns("_scratch"))
        return ScratchWarehouse(str(place), workers=self.workers)

    def carry_fit(self, old: str, new: str) -> None:
        """Give a model's saved rows a second key; here it is fitted again."""

    def read_items(self, model_id: str) -> pa.Table:
        """Read the item vectors that a model has learnt; no rows: it has learnt none."""
        return self._read_side(model_id, "item")

    def rename_items(self, model_id: str, names: pa.Array) -> None:
        """Replace the names of a model's item vectors, in the order in which they are read."""
        users, items = (self._read_side(model_id, side) for side in ("user", "item"))
        place = items.column_names.index("id")
        items = items.set_column(place, items.schema.field(place), names)
        self.delete(EMBEDDINGS.name, "model_id", [model_id])
        self.append(pa.concat_tables([users, items]), EMBEDDINGS)

    def _read_side(self, model_id: str, side: str) -> pa.Table:
        if not self.exists(EMBEDDINGS.name):
            return EMBEDDINGS.arrow_schema.empty_table()
        own = (pc.field("model_id") == model_id) & (pc.field("side") == side)
        return self.dataset(EMBEDDINGS).to_table(EMBEDDINGS.names, filter=own)


def open_warehouse(benchmark: Benchmark, folder: Path, workers: int) -> ScratchWarehouse:
    """Open a scratch warehouse; only where models read tables' logs are there any."""
    adapters = [make_adapter(model) for model in benchmark.models]
    with_logs = any(one.needs_folder or one.needs_files for one in adapters)
    return (ScratchWarehouse if with_logs else ScratchTables)(str(folder), workers=workers)


class ScratchTables(ScratchWarehouse):
    """Tables that end with this process, for nights that are thrown away.

    To write and open a table costs a copy of nothing but its name. Rules on values are not checked.
    """

    def __init__(self, root: str, *, workers: int = 1) -> None:
        """Open an empty warehouse, whose files lie in a folder."""
        self._parts: dict[str, dict[str, Part]] = {}
        super().__init__(root, workers=workers)

    def copy(self, place: Path) -> ScratchTables:
        """Return a warehouse with the same rows, which takes others."""
        other = ScratchTables(str(place), workers=self.workers)
        other._parts = {name: dict(parts) for name, parts in self._parts.items()}
        return other

    def carry_fit(self, old: str, new: str) -> None:
        """Give a model's saved rows a second key."""
        for table in (EMBEDDINGS, SIMILARITIES):
            files = [one for one in self._list_files(table) if (one.partition or {})["model_id"] == old]
            if files:
                placed = [
                    one._replace(partition={**(one.partition or {}), "model_id": new}) for one in files
                ]
                self._parts[table.name][new] = placed

    # ------------------------------------------------------------------------------- reading

    def exists(self, name: str) -> bool:
        """Check whether the table exists."""
        return name in self._parts

    def dataset(self, table: Table) -> ds.Dataset:
        """Open an existing table."""
        parts, schema = self._parts[table.name].values(), table.arrow_schema
        held = [part for part in parts if isinstance(part, pa.Table)]
        files = [file for part in parts if not isinstance(part, pa.Table) for file in part]
        rows = ds.dataset(pa.concat_tables([schema.empty_table(), *held]).combine_chunks())
        if not files:
            return rows
        form, system = ds.ParquetFileFormat(), fs.LocalFileSystem()
        pieces = [form.make_fragment(file.path, system, _describe_partition(file)) for file in files]
        stored = ds.FileSystemDataset(pieces, schema, form, system)
        return ds.dataset([rows, stored]) if held else stored

    def count_rows(self, table: Table, column: str, value: str) -> int:
        """Count a partition's rows."""
        n = 0
        for part in self._parts.get(table.name, {}).values():
            if isinstance(part, pa.Table):
                n += pc.sum(pc.equal(part.column(column), value)).as_py() or 0
            else:
                n += sum(file.rows for file in part if (file.partition or {})[column] == value)
        return n

    def list_values(self, table: Table, column: str) -> set[str]:
        """Return a text column's distinct values."""
        values: set[str] = set()
        for part in self._parts.get(table.name, {}).values():
            if isinstance(part, pa.Table):
                values.update(part.column(column).unique().to_pylist())
            else:
                values.update((file.partition or {})[column] for file in part)
        return values

    def open_rows(
        self, table: Table, column: str, values: Sequence[str], most: int = PIECE_ROWS, **others: str
    ) -> PieceRows:
        """Return partitions' rows, which tasks open by themselves."""
        pieces = [
            (file.path, {column: value, **others})
            for value in values
            for file in self._list_files(table)
            if {column: value, **others}.items() <= (file.partition or {}).items()
        ]
        return PieceRows(
            self.engine, pieces, partial(read_partition_files, most=most, schema=table.arrow_schema)
        )

    def _list_files(self, table: Table) -> list[File]:
        """Return a table's files; rows in memory are written to files first."""
        parts = self._parts.get(table.name, {})
        for name, part in parts.items():
            if isinstance(part, pa.Table):
                parts[name] = self._write_parts(part, table)
        return [file for part in parts.values() for file in part]

    def _write_parts(self, rows: pa.Table, table: Table) -> list[File]:
        folder, files, names = self.location(table.name), [], list(table.partition_by)
        for partition in rows.select(names).group_by(names).aggregate([]).to_pylist():
            own = rows.filter(_match(partition))
            written = write_file(own, folder, partition, [n for n in table.names if n not in names])
            files.append(_place(written, folder))
        return files

    def list_lost_files(self, table: Table, is_owner: Any = None) -> list[LostFile]:
        """Return nothing: no log names a file."""
        return []

    # ------------------------------------------------------------------------------- writing

    def create(self, *tables: Table) -> None:
        """Create missing tables."""
        for table in tables:
            self._parts.setdefault(table.name, {})

    def choose_folder(self, table: Table) -> str:
        """Create a table; return the folder for tasks' files."""
        self.create(table)
        return self.location(table.name)

    def delete(self, name: str, column: str, values: Sequence[str]) -> None:
        """Delete rows with one of these values in a column."""
        parts, gone = self._parts[name], pa.array(values, pa.string())
        for once, part in parts.items():
            if isinstance(part, pa.Table):
                parts[once] = part.filter(pc.invert(pc.is_in(part.column(column), gone)))
            else:
                parts[once] = [file for file in part if (file.partition or {})[column] not in values]

    def _append_arrow(self, rows: pa.Table, table: Table, once: str) -> None:
        refuse_nulls(self.location(table.name), rows)
        self._parts[table.name].setdefault(once, rows)

    def _append_missing(self, rows: pa.Table, table: Table, key: Sequence[str], since: Since) -> None:
        held = self.dataset(table).to_table().select(rows.column_names)
        whole = drop_repeated_keys(pa.concat_tables([held, rows]), key)
        self._parts[table.name] = {"": whole}

    def _append_parts(self, rows: TaskParts, table: Table, once: str) -> list[File]:
        folder = self.choose_folder(table)
        if once in self._parts[table.name]:
            return []
        files = [file for blocks, values in rows.parts for file in write_files(blocks, folder, values)]
        self._commit_files(TaskFiles(files, folder), table, once)
        return files

    def _commit_files(self, written: TaskFiles, table: Table, once: str) -> None:
        placed = [_place(file, written.folder) for file in written.files]
        self._parts[table.name].setdefault(once, placed)

    # ---------------------------------------------------------------- what other jobs would look at

    def take_turns(self, name: str, report: Report) -> AbstractContextManager[object]:
        """Wait for nobody."""
        return nullcontext()

    def note_run(self, run_id: str) -> None:
        """Mark nothing."""

    def end_runs(self) -> None:
        """Remove no marks."""


def _place(file: File, folder: str) -> File:
    return file._replace(path=join_uri(folder, file.path))


def _match(partition: Mapping[str, str]) -> pc.Expression:
    """Return the condition that rows are of a partition."""
    condition = pc.scalar(True)
    for name, value in partition.items():
        condition = condition & (pc.field(name) == value)
    return condition


def _describe_partition(file: File) -> pc.Expression:
    return _match(file.partition or {})
