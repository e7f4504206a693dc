"""Measures: sums over pieces of rows, finished cell by cell.

Tasks of any runner compute them; no Spark is needed.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.core.arrays import Ints
from recbench_spark.core.streams import Batches, serialize_table
from recbench_spark.engine.whole_users import keep_users_whole
from recbench_spark.schemas import Table

Pieces = Sequence[Sequence[pa.RecordBatch]]

CELLS = pa.schema({"member": pa.int32(), "kind": pa.string(), "rows": pa.binary()})
"""One row per model and measure: serialized sums or results for any number of cells."""

PIECE_ROWS = 1 << 17
"""Rows summed by a task at once: each measure reads them."""


@dataclass(frozen=True)
class Measure:
    """One analysis of rows, as functions for tasks to run.

    No bit in the results depends on how rows are cut into pieces, nor on any order: sums are whole numbers.
    `tests/engine/test_law.py` tries it with each measure.

    Attributes:
        sums: function that sums some rows of Arrow.
        key: columns of these sums; rows with equal values there are a cell.
        finish: function from all sums in one cell to results.
        needs: columns for `sums` to read.
        table: table for the results, without the run; None: no table.
        join: function from all results to rows, where cells need one another.
        grouped: two functions in place of `sums` for several models at less cost. The first maps one
            model's rows to its values; the second maps all models' values to each one's sums.
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
    """List the results for a table."""
    return [results[name] for name, one in measures.items() if one.table is table and name in results]


# ------------------------------------------------------------------------------- in this process


def reduce_pieces(measures: Measures, pieces: Pieces) -> dict[str, pa.Table]:
    """Reduce pieces of rows by each measure.

    A measure without sums has no result.
    """
    results = {}
    for name, measure in measures.items():
        sums = [rows for piece in pieces for rows in measure.sums(iter(piece)) if rows.num_rows]
        if sums:
            results[name] = measure.join_cells([finish_table(measure, pa.Table.from_batches(sums))])
    return results


def _number_cells(key: Sequence[str], rows: pa.RecordBatch) -> Ints:
    """Number the rows by cell, (n,); equal numbers: one cell."""
    code_n = np.zeros(rows.num_rows, np.int64)
    for column in key:
        codes = rows.column(column).dictionary_encode(null_encoding="encode")
        code_n = code_n * len(codes.dictionary) + codes.indices.to_numpy()
    return code_n


# ------------------------------------------------------------------------------- in tasks


def sum_rows(
    measures: Measures, tables: Iterable[pa.Table], most: int | None = PIECE_ROWS
) -> Iterator[pa.RecordBatch]:
    """Yield each measure's sums over some tables.

    Results are `CELLS` rows, with all cells together. `most`: rows for a measure at once, and more where
    they would end within the questions of a user; None: all rows of a table.
    """
    if most is None:
        pieces = (table.combine_chunks().to_batches() for table in tables)
    else:
        pieces = ([piece] for piece in keep_users_whole(_cut_tables(tables, most)))
    for piece in pieces:
        for name, measure in measures.items():
            for rows in measure.sums(iter(piece)):
                if rows.num_rows:
                    yield pack_rows(name, pa.Table.from_batches([rows]))


def _cut_tables(tables: Iterable[pa.Table], most: int) -> Batches:
    for table in tables:
        for start in range(0, table.num_rows, most):
            yield from table.slice(start, most).combine_chunks().to_batches()


def deal_sums(
    sums: Iterable[pa.RecordBatch], measures: Measures, tasks: int
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield `CELLS` rows, each with its task.

    A cell's sums all go to one task, which finishes it.
    """
    for packed in sums:
        member, kind = (packed.column(name)[0].as_py() for name in ("member", "kind"))
        measure = measures.get(kind)
        if tasks == 1 or measure is None:
            yield zlib.crc32(f"{member} {kind}".encode()) % tasks, packed
            continue
        rows = _deserialize_tables(packed.column("rows")).combine_chunks().to_batches()
        for batch in rows:
            code_n = _number_cells(measure.key, batch)
            task_n = np.zeros(len(code_n), np.int64)
            for code, place in zip(*np.unique(code_n, return_index=True), strict=True):
                name = json.dumps([batch.column(column)[int(place)].as_py() for column in measure.key])
                task_n[code_n == code] = zlib.crc32(f"{member} {kind} {name}".encode()) % tasks
            for task in np.unique(task_n).tolist():
                part = pa.Table.from_batches([batch.filter(pa.array(task_n == task))])
                yield task, pack_rows(kind, part, member)


def finish_sums(measures: Measures, cells: pa.Table) -> pa.Table:
    """Finish a task's cells, by member and measure.

    The result has `CELLS` rows.
    """
    sums: dict[tuple[int, str], list[pa.Scalar]] = {}
    for member, kind, rows in zip(*cells.columns, strict=True):
        sums.setdefault((member.as_py(), kind.as_py()), []).append(rows)
    finished = []
    for (member, kind), packed in sums.items():
        rows = _deserialize_tables(packed)
        results = finish_table(measures[kind], rows) if kind in measures else rows
        finished.append(pack_rows(kind, results, member))
    return pa.Table.from_batches(finished, CELLS)


def finish_table(measure: Measure, sums: pa.Table) -> pa.Table:
    """Finish each cell, given all its sums."""
    (rows,) = sums.combine_chunks().to_batches()
    code_n = _number_cells(measure.key, rows)
    order_n = np.argsort(code_n, kind="stable")
    ordered, bounds = sums.take(pa.array(order_n)), np.flatnonzero(np.diff(code_n[order_n])) + 1
    starts, ends = [0, *bounds.tolist()], [*bounds.tolist(), len(code_n)]
    return pa.concat_tables(
        measure.finish(ordered.slice(start, end - start).combine_chunks())
        for start, end in zip(starts, ends, strict=True)
    )


def pack_rows(kind: str, rows: pa.Table, member: int = 0) -> pa.RecordBatch:
    """Return one row of `CELLS`."""
    values = [member, kind, serialize_table(rows)]
    columns = [pa.array([value], field.type) for value, field in zip(values, CELLS, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=CELLS)


def _deserialize_tables(rows: Iterable[pa.Scalar]) -> pa.Table:
    return pa.concat_tables([pa.ipc.open_stream(value.as_buffer()).read_all() for value in rows])


def read_results(measures: Measures, cells: pa.Table, member: int = 0) -> dict[str, pa.Table]:
    """Return a model's results by kind, from finished cells."""
    own = cells.filter(pc.equal(cells.column("member"), member))
    results = {}
    for kind in own.column("kind").unique().to_pylist():
        rows = _deserialize_tables(own.filter(pc.equal(own.column("kind"), kind)).column("rows"))
        results[kind] = measures[kind].join_cells([rows]) if kind in measures else rows
    return results
