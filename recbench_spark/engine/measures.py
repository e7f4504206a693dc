"""Measures: pieces of rows are summed and finished by cell, in this process and on Spark."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.engine.versions import change_groups, collect_arrow
from recbench_spark.kernels.streams import Batches, chunks, serialize_table
from recbench_spark.schemas import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Pieces = Sequence[Sequence[pa.RecordBatch]]

CELLS = pa.schema({"member": pa.int32(), "kind": pa.string(), "cell": pa.string(), "rows": pa.binary()})
"""One row per model, measure and cell: serialized rows. Rows that agree in the first three columns are
finished together."""

CELL_COLUMNS = "member INT, kind STRING, cell STRING, rows BINARY"

PIECE_ROWS = 1 << 17
"""Rows that a task of `reduce_frame` holds at once: each measure reads them."""


@dataclass(frozen=True)
class Measure:
    """One analysis of rows, as functions of Arrow rows that are sent to tasks.

    No bit of the results depends on how rows are cut into pieces, nor on any order: sums are whole numbers.
    `tests/engine/test_law.py` tries it with each measure.

    Attributes:
        sums: function that sums some rows.
        key: columns of these sums; rows that agree in them are a cell.
        finish: function that makes results from all sums in one cell.
        needs: columns that `sums` reads.
        table: table that takes the results, without the run; None: no table does.
        join: function that makes rows from all results, where cells need one another.
        grouped: two functions that replace `sums` for several models at less cost. The first maps one
            model's rows to its values; the second maps the values of all models to the sums of each.
    """

    sums: Callable[[Batches], Batches]
    key: tuple[str, ...]
    finish: Callable[[pa.Table], pa.Table]
    needs: tuple[str, ...]
    table: Table | None = None
    join: Callable[[pa.Table], pa.Table] | None = None
    grouped: (
        tuple[Callable[[Batches], Any], Callable[[Sequence[Any]], list[list[pa.RecordBatch]]]] | None
    ) = None

    def join_cells(self, results: Sequence[pa.Table]) -> pa.Table:
        """Join the results of all cells."""
        rows = pa.concat_tables(results)
        return rows if self.join is None else self.join(rows)


Measures = Mapping[str, Measure]
"""Measures by name."""


def list_results(measures: Measures, results: Mapping[str, pa.Table], table: Table) -> list[pa.Table]:
    """List the results that a table takes."""
    return [results[name] for name, one in measures.items() if one.table is table and name in results]


# ------------------------------------------------------------------------------- in this process


def reduce_pieces(measures: Measures, pieces: Pieces) -> dict[str, pa.Table]:
    """Reduce pieces of rows by each measure; a measure without sums has no result."""
    results = {}
    for name, measure in measures.items():
        cells: dict[str, list[pa.RecordBatch]] = {}
        for rows in (rows for piece in pieces for rows in measure.sums(iter(piece))):
            for cell, cell_rows in split_cells(measure.key, rows):
                cells.setdefault(cell, []).append(cell_rows)
        if cells:
            finished = [
                measure.finish(pa.Table.from_batches(rows).combine_chunks()) for rows in cells.values()
            ]
            results[name] = measure.join_cells(finished)
    return results


def split_cells(key: Sequence[str], rows: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield each cell's sums with its name."""
    code_n = np.zeros(rows.num_rows, np.int64)
    for column in key:
        codes = rows.column(column).dictionary_encode(null_encoding="encode")
        code_n = code_n * len(codes.dictionary) + codes.indices.to_numpy()
    for code in np.unique(code_n):
        cell_rows = rows.filter(pa.array(code_n == code))
        yield json.dumps([cell_rows.column(column)[0].as_py() for column in key]), cell_rows


# ------------------------------------------------------------------------------- on Spark


def reduce_frame(measures: Measures, rows: DataFrame) -> dict[str, pa.Table]:
    """Reduce a frame like `reduce_pieces`, by all measures in one pass.

    A row per task, measure and cell is shuffled; the driver receives the results, which are small.
    """
    columns = dict.fromkeys(name for measure in measures.values() for name in measure.needs)
    cells = rows.select(*columns).mapInArrow(partial(_sum_task, measures), CELL_COLUMNS)
    return read_results(measures, finish_cells(measures, cells))


def _sum_task(measures: Measures, batches: Batches) -> Batches:
    for piece in chunks(batches, PIECE_ROWS):
        for name, measure in measures.items():
            for rows in measure.sums(iter(piece.to_batches())):
                yield from pack_cells(name, measure.key, rows)


def pack_cells(kind: str, key: Sequence[str], rows: pa.RecordBatch, member: int = 0) -> Batches:
    """Yield one row of `CELLS` per cell."""
    for cell, cell_rows in split_cells(key, rows):
        yield pack_rows(kind, cell, pa.Table.from_batches([cell_rows]), member)


def pack_rows(kind: str, cell: str, rows: pa.Table, member: int = 0) -> pa.RecordBatch:
    """Return one row of `CELLS`."""
    values = [member, kind, cell, serialize_table(rows)]
    columns = [pa.array([value], field.type) for value, field in zip(values, CELLS, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=CELLS)


def finish_cells(measures: Measures, cells: DataFrame) -> pa.Table:
    """Finish all tasks' cells for `read_results`; kinds without a measure stay as they are."""

    # Spark reads the kind of the function from these annotations; a partial does not show them.
    def finish(table: pa.Table) -> pa.Table:
        return finish_cell(measures, table)

    return collect_arrow(change_groups(cells, ("member", "kind", "cell"), finish, CELL_COLUMNS))


def finish_cell(measures: Measures, cells: pa.Table) -> pa.Table:
    """Finish one cell from all tasks: one row of `CELLS`."""
    kind, rows = cells.column("kind")[0].as_py(), _deserialize_tables(cells.column("rows"))
    finished = measures[kind].finish(rows.combine_chunks()) if kind in measures else rows
    return cells.slice(0, 1).set_column(
        3, CELLS.field(3), pa.array([serialize_table(finished)], pa.binary())
    )


def _deserialize_tables(rows: pa.ChunkedArray) -> pa.Table:
    return pa.concat_tables([pa.ipc.open_stream(value.as_buffer()).read_all() for value in rows])


def read_results(measures: Measures, cells: pa.Table, member: int = 0) -> dict[str, pa.Table]:
    """Return a model's results by kind, from finished cells."""
    own = cells.filter(pc.equal(cells.column("member"), member))
    results = {}
    for kind in own.column("kind").unique().to_pylist():
        rows = _deserialize_tables(own.filter(pc.equal(own.column("kind"), kind)).column("rows"))
        results[kind] = measures[kind].join_cells([rows]) if kind in measures else rows
    return results
