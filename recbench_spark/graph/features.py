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

from recbench_spark.errors import DataError, SchemaError
from recbench_spark.graph.build import NodeFinder, read_ids
from recbench_spark.graph.edges import RowSource, count_tasks, is_list, open_rows
from recbench_spark.graph.folders import Graph, NodeBlock, create_matrix, map_array, map_writable
from recbench_spark.kernels.graph.dense import store
from recbench_spark.kernels.graph.ids import MOST_NODES, hash_node_ids, hash_numbers

SHOWN = 5
"""Ids that an error names."""


class ReadFeatures(NamedTuple):
    """What a task saw of a table of vectors: rows, those of no node, and what cannot be used.

    Attributes:
        rows: read.
        unknown: of no node.
        faults: what is wrong -> how often, and an example.
    """

    rows: int
    unknown: int
    faults: dict[str, tuple[int, str]]


def open_features(path: str, id_column: str, kind: str) -> RowSource:
    """A table of vectors (id, vector): Parquet or Delta; reads footers only. kind: numeric, text or auto.

    Raises:
        DataError, SchemaError: nothing there, or a column is missing.
    """
    rows = open_rows(path, [id_column, "vector"], "features", ids={id_column: kind})
    if rows.header:
        raise DataError(f"features: {path} is CSV, which holds no vectors", "write Parquet or Delta")
    return rows


def count_dimensions(rows: RowSource) -> int:
    """Length of the first vector.

    Raises:
        DataError: no vectors, or the first is NULL. SchemaError: no lists of numbers.
    """
    lengths = _read_first_lengths(rows)
    if not lengths or not lengths[0]:
        raise DataError("features: the first vector is NULL or empty", "one list of numbers an id")
    return lengths[0]


def require_equal_lengths(rows: RowSource) -> RowSource:
    """The table, whose first rows are of one length: what can be known before Spark starts.

    Raises:
        DataError: they are not. SchemaError: no lists of numbers.
    """
    lengths = _read_first_lengths(rows)
    other = next((length for length in lengths if length and length != lengths[0]), None)
    if lengths and lengths[0] and other is not None:
        raise DataError(
            f"features: vectors of {lengths[0]} and of {other} numbers", "give all vectors one length"
        )
    return rows


def _read_first_lengths(rows: RowSource) -> list[int]:
    chunk = next(iter(rows.chunks(rows.pieces[:1])), None)
    return [] if chunk is None else _list_lengths(chunk.column("vector"))


def _list_lengths(vectors: pa.ChunkedArray) -> list[int]:
    """Of the first vector, and then every other one that there is; 0: NULL or empty."""
    kind = vectors.type
    tests = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
    if not is_list(kind) or not any(test(kind.value_type) for test in tests):
        raise SchemaError(f"features: column vector is of type {kind}", "a list of numbers an id")
    found = pc.fill_null(pc.list_value_length(vectors), 0)
    return [] if not len(found) else [found[0].as_py(), *pc.unique(found).to_pylist()]


def fill_from_table(
    context: SparkContext, graph: Graph, rows: RowSource, side: int, dims: int, path: Path, missing: str
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
    create_matrix(flags, (graph.nodes,), np.bool_)
    readers = count_tasks(rows, context.defaultParallelism)
    fill = partial(_fill_rows, graph=graph, rows=rows, side=side, dims=dims, path=path, readers=readers)
    found = context.parallelize(range(readers), readers).mapPartitions(fill).collect()
    read, unknown = sum(part.rows for part in found), sum(part.unknown for part in found)
    _refuse_faults(found, read)
    if read == unknown:
        both = _quote_ids(rows, graph, side)
        raise DataError(
            f"features: none of {read} ids is one of side {graph.sides[side]}: {both}",
            "spell ids alike in both tables, or name the side: features.side (--features-side)",
        )
    present = context.parallelize(graph.side_blocks(side), len(graph.side_blocks(side))).map(
        partial(_find_absent, graph=graph, flags=flags)
    )
    absent = present.collect()
    lacking, first, end = sum(n for n, _ in absent), *graph.side_range(side)
    doubles = read - unknown - (end - first - lacking)
    if doubles:
        look = partial(_find_repeated, graph=graph, rows=rows, side=side, flags=flags)
        (example,) = context.parallelize([0], 1).map(look).collect()
        raise DataError(
            f"features: {doubles} ids stand more than once, e.g. {example}", "keep one vector an id"
        )
    if lacking and missing == "error":
        names = ", ".join([name for _, names in absent for name in names][:SHOWN])
        raise DataError(
            f"features: {lacking} of {end - first} nodes of side {graph.sides[side]} have none: {names}"
            + (" ..." if lacking > SHOWN else ""),
            "add them, or give them zeros: features.missing: zero (--missing zero)",
        )
    flags.unlink()
    return {"features_of_no_node": unknown, "nodes_without_features": lacking}


def _refuse_faults(found: list[ReadFeatures], read: int) -> None:
    """One line for what is wrong most basically: how often, and an example."""
    for what, hint in FAULTS.items():
        parts = [part.faults[what] for part in found if what in part.faults]
        if parts:
            told = f"features: {sum(n for n, _ in parts)} of {read} {what}"
            raise DataError(f"{told}{parts[0][1]}", hint)


def _quote_ids(rows: RowSource, graph: Graph, side: int) -> str:
    """A few ids of the table and of the graph."""
    theirs = next(rows.chunks(rows.pieces[:1]))[:3]
    block = next(block for block in graph.side_blocks(side) if block.rows)
    ours = read_names(graph, block, np.arange(min(3, block.rows)))
    listed = ", ".join(map(str, rows.ids(theirs, rows.columns[0]).to_pylist()))
    return f"{listed} ... against {', '.join(ours)} ..."


def _fill_rows(
    numbers: Iterator[int], graph: Graph, rows: RowSource, side: int, dims: int, path: Path, readers: int
) -> Iterator[ReadFeatures]:
    find, out = NodeFinder(graph), map_writable(path)
    flags = map_writable(path.with_name("present.npy"))
    for number in numbers:
        for chunk in rows.chunks(rows.part(number, readers)):
            ids = rows.ids(chunk, rows.columns[0])
            vectors = chunk.column("vector").combine_chunks()
            faults = _find_faults(ids, vectors, dims)
            if faults:
                yield ReadFeatures(len(ids), 0, faults)
                continue
            values = vectors.flatten().cast(pa.float32(), safe=False).to_numpy(zero_copy_only=False)
            dense = find(hash_node_ids(ids, graph.seed), side)
            there = dense < MOST_NODES
            stored = np.empty((int(there.sum()), dims), out.dtype)
            store(values.reshape(-1, dims)[there], stored, "features")
            out[dense[there]] = stored
            flags[dense[there]] = True
            yield ReadFeatures(len(ids), int(np.count_nonzero(~there)), {})


FAULTS = {
    "ids are NULL": "leave these rows out",
    "vectors are NULL": "leave these rows out, and give these nodes zeros: features.missing: zero",
    "vectors are not as long as the first": "give all vectors one length",
    "vectors hold NULL, NaN or infinite numbers": "mend them, or leave these rows out",
}


def _find_faults(ids: pa.Array, vectors: Any, dims: int) -> dict[str, tuple[int, str]]:
    """What of a chunk cannot be used; the first kind of it alone."""
    lengths = pc.fill_null(pc.list_value_length(vectors), dims).to_numpy(zero_copy_only=False)
    null, missing, uneven, wrong = FAULTS
    for what, flags in (
        (null, ids.is_null().to_numpy(zero_copy_only=False)),
        (missing, vectors.is_null().to_numpy(zero_copy_only=False)),
        (uneven, lengths != dims),
    ):
        if flags.any():
            at = int(flags.argmax())
            more = f" ({dims})" if what == uneven else ""
            of = f" of {lengths[at]}" if what == uneven else ""
            return {what: (int(flags.sum()), more + ("" if what == null else f", e.g. id {ids[at]}{of}"))}
    with np.errstate(over="ignore"):
        values = pc.fill_null(vectors.flatten().cast(pa.float32(), safe=False), float("nan"))
    bad = ~np.isfinite(values.to_numpy(zero_copy_only=False)).reshape(-1, dims).all(axis=1)
    return {wrong: (int(bad.sum()), f", e.g. id {ids[int(bad.argmax())]}")} if bad.any() else {}


def _find_repeated(_: int, graph: Graph, rows: RowSource, side: int, flags: Path) -> str:
    """An id that a table has twice; its rows are read again, by one task."""
    seen, find = map_writable(flags), NodeFinder(graph)
    seen[:] = False
    for chunk in rows.chunks(rows.pieces):
        ids = rows.ids(chunk, rows.columns[0])
        dense = find(hash_node_ids(ids, graph.seed), side)
        known = np.flatnonzero(dense < MOST_NODES)
        order = known[np.argsort(dense[known], kind="stable")]
        again = np.append(False, dense[order][1:] == dense[order][:-1]) | seen[dense[order]]
        if again.any():
            return str(ids[int(order[again.argmax()])])
        seen[dense[known]] = True
    return "?"


def _find_absent(block: NodeBlock, graph: Graph, flags: Path) -> tuple[int, list[str]]:
    lacking = np.flatnonzero(~map_array(flags)[block.first : block.end])
    return len(lacking), read_names(graph, block, lacking[:SHOWN])


def read_names(graph: Graph, block: NodeBlock, local_r: Any) -> list[str]:
    """Raw ids, as text, of some nodes of a block, by their place in it."""
    return [str(name) for name in read_ids(graph, block).take(pa.array(local_r)).to_pylist()]


def fill_generated(
    context: SparkContext, graph: Graph, kind: str, dims: int, seed: int, path: Path
) -> None:
    """Degrees, a constant or hashed numbers into the matrix of all nodes.

    Args:
        context: Spark's.
        graph: the graph.
        kind: `degrees`, `constant` (dims 1) or `hashed`.
        dims: of a vector.
        seed: of hashed numbers.
        path: of the matrix.
    """
    make = partial(_fill_block, graph=graph, kind=kind, dims=dims, seed=seed, path=path)
    context.parallelize(graph.blocks, len(graph.blocks)).foreach(make)


def _fill_block(block: NodeBlock, graph: Graph, kind: str, dims: int, seed: int, path: Path) -> None:
    out = map_writable(path)
    for first in range(block.first, block.end, 1 << 16):
        end = min(first + (1 << 16), block.end)
        store(
            generate_features(graph, block, kind, dims, seed, np.arange(first, end)),
            out[first:end],
            "features",
        )


def generate_features(graph: Graph, block: NodeBlock, kind: str, dims: int, seed: int, node_r: Any) -> Any:
    """(r, dims) float32 features of some nodes of a block, by dense id."""
    if kind == "constant":
        return np.ones((len(node_r), 1), np.float32)
    if kind == "degrees":
        degrees = np.diff(graph.csr(block).indptr)[node_r - block.first]
        return degrees.astype(np.float32)[:, None]
    keys = graph.hashes()[node_r].view(np.int64)[:, None] + np.arange(dims)[None, :]
    hashes = hash_numbers(np.ascontiguousarray(keys).reshape(-1), seed)
    uniform = (hashes >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-23) - np.float32(1)
    return uniform.reshape(-1, dims)
