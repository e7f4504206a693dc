"""Write node features, the first layer's input, by dense id."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.errors import DataError, SchemaError
from recbench_spark.graphs.build import NodeFinder, read_ids
from recbench_spark.graphs.build_nodes import run_shuffle
from recbench_spark.graphs.edges import RowSource, count_tasks, open_rows
from recbench_spark.graphs.folders import Graph, NodeBlock
from recbench_spark.graphs.kernels.dense import store
from recbench_spark.graphs.kernels.ids import MOST_NODES, hash_node_ids, hash_numbers
from recbench_spark.sources.list_columns import is_list
from recbench_spark.storage.block_arrays import ArrayPart, make_part, publish_parts
from recbench_spark.storage.blocks import Engine

SHOWN = 5
"""Number of ids an error names."""


class ReadFeatures(NamedTuple):
    """A task's counts while it reads a vector table.

    Attributes:
        rows: rows read.
        unknown: rows whose id is no node.
        faults: fault -> number of its rows, and an example.
    """

    rows: int
    unknown: int
    faults: dict[str, tuple[int, str]]


def open_features(path: str, id_column: str, kind: str) -> RowSource:
    """Open a vector table (id, vector).

    Args:
        path: the table.
        id_column: the id column's name.
        kind: how to read ids: numeric, text or auto.

    Raises:
        DataError, SchemaError: the table or a column is missing.
    """
    return open_rows(path, [id_column, "vector"], "features", ids={id_column: kind})


def count_dimensions(rows: RowSource) -> int:
    """Return the first vector's length.

    Raises:
        DataError: there are no vectors, or the first is NULL.
        SchemaError: the column holds no lists of numbers.
    """
    lengths = _read_first_lengths(rows)
    if not lengths or not lengths[0]:
        raise DataError("features: the first vector is NULL or empty", "one list of numbers per id")
    return lengths[0]


def require_equal_lengths(rows: RowSource) -> RowSource:
    """Return the table if its first rows have one length.

    This check needs no Spark.

    Raises:
        DataError: the lengths differ. SchemaError: the column holds no lists of numbers.
    """
    lengths = _read_first_lengths(rows)
    other = next((length for length in lengths if length and length != lengths[0]), None)
    if lengths and lengths[0] and other is not None:
        raise DataError(
            f"features: vectors of {lengths[0]} and of {other} numbers", "give all vectors the same length"
        )
    return rows


def _read_first_lengths(rows: RowSource) -> list[int]:
    """Return the first vector's length, then all different ones nearby.

    The length is 0 for NULL or an empty vector.
    """
    chunk = next(iter(rows.chunks(rows.pieces[:1])), None)
    if chunk is None:
        return []
    kind = chunk.column("vector").type
    tests = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
    if not is_list(kind) or not any(test(kind.value_type) for test in tests):
        raise SchemaError(f"features: column vector is of type {kind}", "a list of numbers per id")
    lengths = pc.fill_null(pc.list_value_length(chunk.column("vector")), 0)
    return [] if not len(lengths) else [lengths[0].as_py(), *pc.unique(lengths).to_pylist()]


@dataclass(frozen=True)
class TableWork:
    """The inputs every task over a vector table needs.

    Attributes:
        graph: graph whose dense ids are the matrix rows.
        rows: id and vector.
        side: side of these ids.
        dims: numbers in a vector.
        place: the matrix's path or URI; None: the table is checked, and no vector is sent.
        dtype: the matrix's number type; None: there is no place.
    """

    graph: Graph
    rows: RowSource
    side: int
    dims: int
    place: str | None = None
    dtype: Any = None

    @property
    def blocks(self) -> tuple[NodeBlock, ...]:
        """The side's blocks."""
        return self.graph.side_blocks(self.side)


def read_table(engine: Engine, work: TableWork, missing: str) -> dict[str, int]:
    """Check a vector table against a side's nodes, and copy it.

    Without a place for the matrix it is only checked, before anything is built from it: node places are
    shuffled, 4 bytes each, and no vector. With one, vectors go into the matrix of all nodes, where rows
    of the other side are zeros. They are shuffled once, by node block, as they are stored. A reading task
    holds a chunk of the table, and what PySpark collects before it hands it on: some ten pieces of
    `PIECE_BYTES` at first, then from 1 to 10 MB for each block. A writing task holds a piece; its block is
    mapped.

    Args:
        engine: the runner.
        work: the table, its nodes, and the matrix.
        missing: `error`, or `zero`: nodes without a vector get zeros.

    Returns:
        Counts by name.

    Raises:
        DataError: a vector has another length, is NULL or not finite, an id is repeated or NULL, or a
            node has no vector.
    """
    readers = count_tasks(work.rows, engine.cores)
    read = partial(_send_rows, work=work, readers=readers)
    sent = engine.parallelize(range(readers), readers).mapPartitions(read)
    results = run_shuffle(sent.partitionBy(len(work.blocks) + 1, int), partial(_write_rows, work=work))
    read_parts = [result for result in results if isinstance(result, ReadFeatures)]
    blocks = [result for result in results if isinstance(result, BlockFeatures)]
    counts = _check_features(read_parts, blocks, work, missing)
    if work.place is not None:
        parts = (block.part for block in blocks if block.part is not None)
        publish_parts(work.place, parts, (work.graph.nodes, work.dims), work.dtype)
    return counts


def _check_features(
    parts: list[ReadFeatures], blocks: list[BlockFeatures], work: TableWork, missing: str
) -> dict[str, int]:
    """Return a vector table's counts; errors as in `read_table`."""
    read, unknown = sum(part.rows for part in parts), sum(part.unknown for part in parts)
    for what, hint in FAULTS.items():  # the most basic fault first
        faults = [part.faults[what] for part in parts if what in part.faults]
        if faults:
            raise DataError(f"features: {sum(n for n, _ in faults)} of {read} {what}{faults[0][1]}", hint)
    name = work.graph.sides[work.side]
    if read == unknown:
        raise DataError(
            f"features: none of {read} ids is one of side {name}: {_quote_ids(work)}",
            "spell ids alike in both tables, or name the side: features.side (--features-side)",
        )
    without, first, end = sum(block.absent for block in blocks), *work.graph.side_range(work.side)
    doubles = read - unknown - (end - first - without)
    if doubles:
        example = next(block.repeated for block in blocks if block.repeated)
        message = f"features: {doubles} ids occur more than once, e.g. {example}"
        raise DataError(message, "keep one vector per id")
    if without and missing == "error":
        names = ", ".join([name for block in blocks for name in block.names][:SHOWN])
        raise DataError(
            f"features: {without} of {end - first} nodes of side {name} have none: {names}"
            + (" ..." if without > SHOWN else ""),
            "add them, or give them zeros: features.missing: zero (--missing zero)",
        )
    return {"features_of_no_node": unknown, "nodes_without_features": without}


def _quote_ids(work: TableWork) -> str:
    """Quote a few ids from both table and graph."""
    rows, graph = work.rows, work.graph
    table_rows = next(rows.chunks(rows.pieces[:1]))[:3]
    block = next(block for block in work.blocks if block.rows)
    graph_ids = read_names(graph, block, np.arange(min(3, block.rows)))
    table_ids = ", ".join(map(str, rows.ids(table_rows, rows.columns[0]).to_pylist()))
    return f"{table_ids} ... against {', '.join(graph_ids)} ..."


PIECE_BYTES = 1 << 24
"""Bytes of vectors a task sends at once, to all blocks together."""

SentRows = tuple[int, tuple[bytes, bytes]]
"""A block's place on its side, then node places and vectors.

The places are those in the block (uint32).
"""


def _send_rows(numbers: Iterator[int], work: TableWork, readers: int) -> Iterator[SentRows]:
    """Send nodes and vectors to their blocks, and the counts behind them."""
    firsts, dims = np.array([block.first for block in work.blocks]), work.dims
    for counts, node_r, there, vectors in _read_chunks(numbers, work, readers):
        node_t = node_r[there].astype(np.int64)
        if work.place is None:
            yield from _group_rows(node_t, np.zeros((len(there), 0), np.uint8), firsts)
        elif vectors is not None:
            values = vectors.flatten().cast(pa.float32(), safe=False).to_numpy(zero_copy_only=False)
            step = max(1, PIECE_BYTES // (dims * work.dtype.itemsize))
            for at in range(0, len(there), step):
                rows_there = there[at : at + step]
                stored = np.empty((len(rows_there), dims), work.dtype)
                store(values.reshape(-1, dims)[rows_there], stored, "features")
                yield from _group_rows(node_t[at : at + step], stored, firsts)
        yield len(work.blocks), (b"", pickle.dumps(counts))


def _read_chunks(
    numbers: Iterator[int], work: TableWork, readers: int
) -> Iterator[tuple[ReadFeatures, Any, Any, Any]]:
    """Read a task's rows, and find their nodes.

    A chunk has its counts, (r,) dense ids, the rows whose id is a node, and the vectors; the last is None
    where a row has a fault.
    """
    find, rows = NodeFinder(work.graph), work.rows
    for number in numbers:
        for chunk in rows.chunks(rows.part(number, readers)):
            ids = rows.ids(chunk, rows.columns[0])
            vectors = chunk.column("vector").combine_chunks()
            if faults := _find_faults(ids, vectors, work.dims):
                none = np.zeros(0, np.int64)
                yield ReadFeatures(len(ids), 0, faults), none, none, None
                continue
            node_r = find(hash_node_ids(ids, work.graph.seed), work.side)
            there = np.flatnonzero(node_r < MOST_NODES)
            yield ReadFeatures(len(ids), len(ids) - len(there), {}), node_r, there, vectors


def _group_rows(node_r: Any, vectors: Any, firsts: Any) -> Iterator[SentRows]:
    """Yield nodes and vectors by block, in row order."""
    block_r = np.searchsorted(firsts, node_r, side="right") - 1
    order = np.argsort(block_r, kind="stable")
    cuts = np.flatnonzero(np.diff(block_r[order])) + 1
    for chosen in np.split(order, cuts):
        if len(chosen):
            place = int(block_r[chosen[0]])
            local = (node_r[chosen] - firsts[place]).astype(np.uint32)
            yield place, (local.tobytes(), vectors[chosen].tobytes())


class BlockFeatures(NamedTuple):
    """A block's written vectors, and its nodes without any.

    Attributes:
        part: the block's object; None: the table is only checked.
        absent: nodes without a vector.
        names: a few of their ids.
        repeated: an id with more than one vector, or an empty text.
    """

    part: ArrayPart | None
    absent: int
    names: list[str]
    repeated: str


def _write_rows(
    number: int, sent: Iterable[SentRows], work: TableWork
) -> Iterator[ReadFeatures | BlockFeatures]:
    if number == len(work.blocks):
        yield from (pickle.loads(packed) for _, (_, packed) in sent)
        return
    graph, block, repeated = work.graph, work.blocks[number], -1
    present = np.zeros(block.rows, np.bool_)
    with ExitStack() as stack:
        maker, out = None, None
        if work.place is not None:
            shape = (block.rows, work.dims)
            made = make_part(work.place, block.number, shape, work.dtype, block.first)
            maker = stack.enter_context(made)
            out = maker.map_rows()
        for _, (places, vectors) in sent:
            local = np.frombuffer(places, np.uint32)
            repeated = max(repeated, _find_repeated(local, present))
            if out is not None:
                out[local] = np.frombuffer(vectors, work.dtype).reshape(-1, work.dims)
            present[local] = True
    part = None if maker is None else maker.entry
    absent = np.flatnonzero(~present)
    double = read_names(graph, block, np.array([repeated]))[0] if repeated >= 0 else ""
    yield BlockFeatures(part, len(absent), read_names(graph, block, absent[:SHOWN]), double)


def _find_repeated(local: Any, present: Any) -> int:
    """Find a repeated or present node's place, else -1."""
    in_order = np.sort(local)
    again = np.append(in_order[1:][in_order[1:] == in_order[:-1]], local[present[local]])
    return int(again.max()) if len(again) else -1


FAULTS = {
    "ids are NULL": "leave these rows out",
    "vectors are NULL": "leave these rows out, and give these nodes zeros: features.missing: zero",
    "vectors are not as long as the first": "give all vectors the same length",
    "vectors hold NULL, NaN or infinite numbers": "mend them, or leave these rows out",
}


def _find_faults(ids: pa.Array, vectors: Any, dims: int) -> dict[str, tuple[int, str]]:
    """Find a chunk's first kind of fault.

    Returns it with a row count and an example, or nothing.
    """
    lengths = pc.fill_null(pc.list_value_length(vectors), dims).to_numpy(zero_copy_only=False)
    null, missing, uneven, wrong = FAULTS
    for what, flags in (
        (null, ids.is_null().to_numpy(zero_copy_only=False)),
        (missing, vectors.is_null().to_numpy(zero_copy_only=False)),
        (uneven, lengths != dims),
    ):
        if flags.any():
            at = int(flags.argmax())
            example = "" if what == null else f", e.g. id {ids[at]}"
            note = f" ({dims}){example} of {lengths[at]}" if what == uneven else example
            return {what: (int(flags.sum()), note)}
    with np.errstate(over="ignore"):
        values = pc.fill_null(vectors.flatten().cast(pa.float32(), safe=False), float("nan"))
    bad = ~np.isfinite(values.to_numpy(zero_copy_only=False)).reshape(-1, dims).all(axis=1)
    return {wrong: (int(bad.sum()), f", e.g. id {ids[int(bad.argmax())]}")} if bad.any() else {}


def read_names(graph: Graph, block: NodeBlock, local_r: Any) -> list[str]:
    """Return nodes' raw ids as text, by place.

    The places are those in the block.
    """
    return [str(name) for name in read_ids(graph, block).take(pa.array(local_r)).to_pylist()]


def fill_generated(
    engine: Engine, graph: Graph, kind: str, dims: int, seed: int, *, place: str, dtype: Any
) -> None:
    """Fill the matrix for all nodes with generated features.

    Args:
        engine: the runner.
        graph: the graph.
        kind: `degrees`, `constant` (dims 1) or `hashed`.
        dims: numbers in a vector.
        seed: seed for the hashed numbers.
        place: the matrix's path or URI.
        dtype: its number type.
    """
    make = partial(
        _fill_block, graph=graph, kind=kind, dims=dims, seed=seed, place=place, dtype=np.dtype(dtype)
    )
    parts = engine.parallelize(graph.blocks, len(graph.blocks)).map(make).collect()
    publish_parts(place, parts, (graph.nodes, dims), dtype)


def _fill_block(
    block: NodeBlock, graph: Graph, kind: str, dims: int, seed: int, *, place: str, dtype: np.dtype[Any]
) -> ArrayPart:
    with make_part(place, block.number, (block.rows, dims), dtype, block.first) as maker:
        for first in range(0, block.rows, 1 << 16):
            node_r = np.arange(block.first + first, min(block.first + first + (1 << 16), block.end))
            stored = np.empty((len(node_r), dims), dtype)
            store(generate_features(graph, block, kind, dims, seed, node_r=node_r), stored, "features")
            maker.append(stored)
    return maker.entry


def generate_features(
    graph: Graph, block: NodeBlock, kind: str, dims: int, seed: int, *, node_r: Any
) -> Any:
    """Generate features for nodes in a block, (r, dims) float32.

    `node_r` are their dense ids.
    """
    if kind == "constant":
        return np.ones((len(node_r), 1), np.float32)
    if kind == "degrees":
        degrees = np.diff(graph.csr(block).indptr)[node_r - block.first]
        return degrees.astype(np.float32)[:, None]
    keys = (
        graph.block_hashes(block)[node_r - block.first].view(np.int64)[:, None] + np.arange(dims)[None, :]
    )
    hashes = hash_numbers(np.ascontiguousarray(keys).reshape(-1), seed)
    uniform = (hashes >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-23) - np.float32(1)
    return uniform.reshape(-1, dims)
