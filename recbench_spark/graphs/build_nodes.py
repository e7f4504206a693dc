"""Number a graph's nodes, in a build's first shuffle."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.core.hashing import Hashes
from recbench_spark.engine.pipes import remove_shuffle
from recbench_spark.errors import DataError
from recbench_spark.graphs.build_inputs import EdgeCounts, GraphInputs, read_edges
from recbench_spark.graphs.edges import count_tasks
from recbench_spark.graphs.folders import SEPARATE, Parts, publish_arrays
from recbench_spark.graphs.kernels.ids import (
    NumberSet,
    assign_blocks,
    hash_node_ids,
    hash_texts,
    sort_distinct,
)
from recbench_spark.storage.block_arrays import write_part
from recbench_spark.storage.blocks import Engine
from recbench_spark.storage.packed_blocks import Block as Packed
from recbench_spark.storage.packed_blocks import partition_rows, unpack_blocks
from recbench_spark.storage.uris import join_uri

TASKS_A_CORE = 2
"""Reading tasks per core for a graph with whole numbers.

Each of them may send all ids.
"""


class NodeBlockCounts(NamedTuple):
    """A task's counts and parts for a block's nodes.

    Attributes:
        number: block number.
        rows: its nodes.
        isolated: nodes without any edge.
        parts: written parts, by array name.
    """

    number: int
    rows: int
    isolated: int
    parts: Parts


def build_nodes(
    engine: Engine, inputs: GraphInputs, folder: str, per_side: int
) -> tuple[EdgeCounts, list[NodeBlockCounts]]:
    """Write the sorted hashes of all nodes by block.

    Each block is one object, and the nodes' texts lie beside them.
    """
    total = per_side * len(inputs.sides)
    readers = count_tasks(inputs.edges, engine.cores)
    if all(inputs.numeric):  # few tasks, because each one sends a node's hash at most once
        readers = min(readers, TASKS_A_CORE * engine.cores)
    read = partial(_partition_nodes, inputs=inputs, readers=readers, per_side=per_side)
    packed = engine.parallelize(range(readers), readers).mapPartitions(read)
    write = partial(_write_nodes, inputs=inputs, folder=folder, per_side=per_side)
    results = run_shuffle(packed.partitionBy(total + 1, int), write)
    counts = [result for result in results if isinstance(result, EdgeCounts)]
    nodes = {result.number: result for result in results if isinstance(result, NodeBlockCounts)}
    names: dict[str, Any] = {NODES: np.uint64}
    if not all(inputs.numeric):
        names |= {TEXT_ENDS: np.int64, TEXT_BYTES: np.uint8}
    arrays = {name: (SEPARATE, dtype) for name, dtype in names.items()}
    publish_arrays(folder, (block.parts for block in nodes.values()), arrays)
    return EdgeCounts(*map(sum, zip(*counts, strict=True))), [
        nodes.get(number, NodeBlockCounts(number, 0, 0, {})) for number in range(total)
    ]


NODES = "nodes"
"""Node hashes of each block, until dense ids are known."""

TEXT_ENDS, TEXT_BYTES = "text-ends", "text-bytes"
"""Texts of a block's ids by dense id.

Offsets (rows + 1,) point into the bytes, from 0.
"""


def run_shuffle(shuffled: Any, write: Callable[[int, Iterable[Any]], Iterable[Any]]) -> list[Any]:
    """Run the tasks after a shuffle, then remove its files.

    The next step needs the disk.
    """
    results: list[Any] = shuffled.mapPartitionsWithIndex(write).collect()
    remove_shuffle(shuffled)
    return results


def _partition_nodes(
    numbers: Iterator[int], inputs: GraphInputs, readers: int, per_side: int
) -> Iterator[Packed]:
    """Yield distinct ids by block.

    The counts go to the partition after the last block.
    """
    total = per_side * len(inputs.sides)
    for number in numbers:
        counted = EdgeCounts()
        seen = [NumberSet() for _ in inputs.sides]
        for ends, _, counts in read_edges(inputs, inputs.edges.part(number, readers)):
            counted = EdgeCounts(*map(sum, zip(counted, counts, strict=True)))
            for side, ids in zip((0, 1) if inputs.bipartite else (0, 0), ends, strict=True):
                if not (inputs.numeric[side] and seen[side].add(ids.to_numpy())):
                    yield from _partition_ids(ids, side, per_side, inputs.seed, linked=True)
        for side, numbers_seen in enumerate(seen):
            for chunk in numbers_seen.numbers():
                yield from _partition_ids(pa.array(chunk), side, per_side, inputs.seed, linked=True)
        for side, ids in _read_extra_nodes(inputs, number, readers):
            yield from _partition_ids(ids, side, per_side, inputs.seed, linked=False)
        yield total, pickle.dumps(counted)


def _read_extra_nodes(inputs: GraphInputs, number: int, readers: int) -> Iterator[tuple[int, pa.Array]]:
    """Yield nodes that need no edge, by side.

    These nodes come from lists, which may be empty, and from node tables.
    """
    if inputs.lists:
        for chunk in inputs.edges.chunks(inputs.edges.part(number, readers)):
            yield 0, inputs.edges.ids(chunk, inputs.names[1]).drop_null()
    for side, rows, column in inputs.nodes:
        for chunk in rows.chunks(rows.part(number, readers)):
            ids = rows.ids(chunk, column)
            if ids.null_count:
                message = f"nodes of {inputs.sides[side]}: {ids.null_count} ids are NULL"
                raise DataError(message, "leave these rows out")
            yield side, ids


def _partition_ids(ids: pa.Array, side: int, per_side: int, seed: int, linked: bool) -> Iterator[Packed]:
    if pa.types.is_integer(ids.type):
        hashes = sort_distinct(hash_node_ids(ids, seed))
        columns: dict[str, Any] = {"hash": hashes}
    else:
        words = pc.unique(ids)
        hashes = hash_texts(words.cast(pa.large_binary()), seed)
        columns = {"hash": hashes, "text": words}
    table = pa.table({**columns, "linked": np.full(len(hashes), linked)})
    if len(hashes):
        yield from partition_rows(table, assign_blocks(hashes, per_side) + side * per_side)


def _write_nodes(
    partition: int, blocks: Iterable[Packed], inputs: GraphInputs, folder: str, per_side: int
) -> Iterator[EdgeCounts | NodeBlockCounts]:
    if partition == per_side * len(inputs.sides):
        for _, counts in blocks:
            yield pickle.loads(counts)
        return
    table = unpack_blocks(block for _, block in blocks)
    if table is None:
        return
    hashes = table.column("hash").to_numpy()
    order = np.argsort(hashes, kind="stable")
    hashes = hashes[order]
    first = np.append(True, hashes[1:] != hashes[:-1])
    parts = {NODES: write_part(join_uri(folder, NODES), partition, hashes[first])}
    if not inputs.numeric[partition // per_side]:
        texts = _choose_texts(table.column("text").combine_chunks(), order, hashes, first)
        parts |= _write_texts(texts, folder, partition)
    linked = np.logical_or.reduceat(table.column("linked").to_numpy()[order], np.flatnonzero(first))
    yield NodeBlockCounts(partition, int(first.sum()), int(np.count_nonzero(~linked)), parts)


def _choose_texts(texts: pa.Array, order: Any, hashes: Hashes, first: npt.NDArray[np.bool_]) -> pa.Array:
    """Return the text of each hash by dense id.

    Raises:
        DataError: two texts have one hash, which happens once in 7,000 graphs with 50 million nodes.
    """
    in_order = texts.take(pa.array(order))
    pairs = np.flatnonzero(~first[1:])
    before, after = (in_order.take(pa.array(pairs + shift)) for shift in (0, 1))
    differ = np.flatnonzero(pc.not_equal(before, after).to_numpy(zero_copy_only=False))
    if len(differ):
        one, other = (texts[int(differ[0])].as_py() for texts in (before, after))
        raise DataError(f"ids '{one}' and '{other}' have one hash", "choose another seed: graph.seed: 1")
    return in_order.take(pa.array(np.flatnonzero(first)))


def _write_texts(texts: pa.Array, folder: str, number: int) -> Parts:
    words = texts.cast(pa.large_binary())
    ends = np.frombuffer(words.buffers()[1], np.int64)[words.offset : words.offset + len(words) + 1]
    content = np.frombuffer(words.buffers()[2] or b"", np.uint8)[ends[0] : ends[-1]]
    written = {TEXT_ENDS: ends - ends[0], TEXT_BYTES: content}
    return {name: write_part(join_uri(folder, name), number, array) for name, array in written.items()}
