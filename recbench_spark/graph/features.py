"""What nodes are known by before the first layer, as one mapped matrix by dense id."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import SparkContext

from recbench_spark.errors import DataError
from recbench_spark.graph.edges import Rows, id_array, open_rows, task_count
from recbench_spark.graph.folders import Block, Graph, mapped, new_matrix, writable
from recbench_spark.graph.layout import Finder, ids_of
from recbench_spark.kernels.graph.dense import store
from recbench_spark.kernels.graph.ids import MOST_NODES, hashed_numbers, hashes_of

SHOWN = 5
"""Ids that an error names."""


class Read(NamedTuple):
    """What a task saw of a table of vectors: rows, those of no node, least and largest length."""

    rows: int
    unknown: int
    shortest: int
    longest: int


def table_of(path: str, id_column: str, numeric: bool) -> Rows:
    """A table of vectors (id, vector): Parquet or Delta; reads footers only.

    Raises:
        DataError, SchemaError: nothing there, or a column is missing.
    """
    kind = "numeric" if numeric else "text"
    return open_rows(path, [id_column, "vector"], "features", ids={id_column: kind})


def dimensions(rows: Rows) -> int:
    """Length of the first vector.

    Raises:
        DataError: no vectors, or the first is NULL.
    """
    for chunk in rows.chunks(rows.pieces[:1]):
        length = pc.list_value_length(chunk.column("vector")[:1])[0].as_py()
        if length:
            return int(length)
        break
    raise DataError("features: the first vector is NULL or empty", "one list of numbers an id")


def lay_table(
    context: SparkContext, graph: Graph, rows: Rows, side: int, dims: int, path: Path, missing: str
) -> dict[str, int]:
    """A table of vectors into the matrix of all nodes; rows of the other side stay zero.

    Args:
        context: Spark's.
        graph: whose dense ids are rows of the matrix.
        rows: id and vector.
        side: whose ids these are.
        dims: length of a vector.
        path: of the matrix, there already and full of zeros.
        missing: `error`, or `zero`: nodes without a vector get zeros.

    Returns:
        What was counted.

    Raises:
        DataError: vectors of another length, NULL or not finite, ids twice or NULL, nodes without one.
    """
    flags = path.with_name("present.npy")
    flags.unlink(missing_ok=True)
    new_matrix(flags, (graph.nodes,), np.bool_)
    readers = task_count(rows, context.defaultParallelism)
    fill = partial(_fill, graph=graph, rows=rows, side=side, dims=dims, path=path, readers=readers)
    found = context.parallelize(range(readers), readers).mapPartitions(fill).collect()
    read, unknown = sum(part.rows for part in found), sum(part.unknown for part in found)
    lengths = [part for part in found if part.rows]
    if lengths and {part.shortest for part in lengths} | {part.longest for part in lengths} != {dims}:
        shortest, longest = min(p.shortest for p in lengths), max(p.longest for p in lengths)
        raise DataError(f"features: vectors of {shortest} to {longest} dimensions", "give one length")
    present = context.parallelize(graph.blocks_of(side), len(graph.blocks_of(side))).map(
        partial(_absent, graph=graph, flags=flags)
    )
    absent = present.collect()
    lacking, first, end = sum(n for n, _ in absent), *graph.side_range(side)
    doubles = read - unknown - (end - first - lacking)
    if doubles:
        raise DataError(f"features: {doubles} ids stand more than once", "keep one vector an id")
    if lacking and missing == "error":
        names = ", ".join([name for _, names in absent for name in names][:SHOWN])
        raise DataError(
            f"features: {lacking} of {end - first} nodes of side {graph.sides[side]} have none: {names}"
            + (" ..." if lacking > SHOWN else ""),
            "add them, or give them zeros: features.missing: zero (--missing zero)",
        )
    flags.unlink()
    return {"features_of_no_node": unknown, "nodes_without_features": lacking}


def _fill(
    numbers: Iterator[int], graph: Graph, rows: Rows, side: int, dims: int, path: Path, readers: int
) -> Iterator[Read]:
    find, out = Finder(graph), writable(path)
    flags = writable(path.with_name("present.npy"))
    id_column = rows.columns[0]
    for number in numbers:
        for chunk in rows.chunks(rows.part(number, readers)):
            ids = id_array(chunk.column(id_column), graph.numeric[side])
            values, shortest, longest = _values(chunk.column("vector").combine_chunks(), ids)
            if {shortest, longest} != {dims}:
                yield Read(len(ids), 0, shortest, longest)
                return
            dense = find(hashes_of(ids, graph.seed), side)
            there = dense < MOST_NODES
            stored = np.empty((int(there.sum()), dims), out.dtype)
            store(values.reshape(-1, dims)[there], stored, "features")
            out[dense[there]] = stored
            flags[dense[there]] = True
            yield Read(len(ids), int(np.count_nonzero(~there)), shortest, longest)


def _values(vectors: Any, ids: pa.Array) -> tuple[Any, int, int]:
    """The numbers end to end, and the least and largest length."""
    if ids.null_count or vectors.null_count:
        raise DataError(
            f"features: {ids.null_count} ids, {vectors.null_count} vectors are NULL", "leave them out"
        )
    lengths = pc.list_value_length(vectors)
    ends = pc.min_max(lengths).as_py()
    values = vectors.flatten().cast(pa.float32(), safe=False)
    if values.null_count or not np.isfinite(values.to_numpy(zero_copy_only=False)).all():
        raise DataError(
            "features: vectors hold NULL, NaN or infinite numbers", "mend them, or leave them out"
        )
    return values.to_numpy(), ends["min"], ends["max"]


def _absent(block: Block, graph: Graph, flags: Path) -> tuple[int, list[str]]:
    lacking = np.flatnonzero(~mapped(flags)[block.first : block.end])
    return len(lacking), names_of(graph, block, lacking[:SHOWN])


def names_of(graph: Graph, block: Block, local_r: Any) -> list[str]:
    """Raw ids, as text, of some nodes of a block, by their place in it."""
    return [str(name) for name in ids_of(graph, block).take(pa.array(local_r)).to_pylist()]


def lay_made(context: SparkContext, graph: Graph, kind: str, dims: int, seed: int, path: Path) -> None:
    """Degrees, a constant or hashed numbers into the matrix of all nodes.

    Args:
        context: Spark's.
        graph: the graph.
        kind: `degrees`, `constant` (dims 1) or `hashed`.
        dims: of a vector.
        seed: of hashed numbers.
        path: of the matrix.
    """
    make = partial(_make, graph=graph, kind=kind, dims=dims, seed=seed, path=path)
    context.parallelize(graph.blocks, len(graph.blocks)).foreach(make)


def _make(block: Block, graph: Graph, kind: str, dims: int, seed: int, path: Path) -> None:
    out = writable(path)
    for first in range(block.first, block.end, 1 << 16):
        end = min(first + (1 << 16), block.end)
        store(made(graph, block, kind, dims, seed, np.arange(first, end)), out[first:end], "features")


def made(graph: Graph, block: Block, kind: str, dims: int, seed: int, node_r: Any) -> Any:
    """(r, dims) float32 features of some nodes of a block, by dense id."""
    if kind == "constant":
        return np.ones((len(node_r), 1), np.float32)
    if kind == "degrees":
        degrees = np.diff(graph.csr(block).indptr)[node_r - block.first]
        return degrees.astype(np.float32)[:, None]
    keys = graph.hashes()[node_r].view(np.int64)[:, None] + np.arange(dims)[None, :]
    hashes = hashed_numbers(np.ascontiguousarray(keys).reshape(-1), seed)
    uniform = (hashes >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-23) - np.float32(1)
    return uniform.reshape(-1, dims)
