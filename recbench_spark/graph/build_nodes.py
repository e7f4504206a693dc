"""Number the nodes of a graph: the first shuffle of a build."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark import RDD, SparkContext

from recbench_spark.errors import DataError
from recbench_spark.graph.build_inputs import EdgeCounts, GraphInputs, read_edges
from recbench_spark.graph.edges import count_tasks
from recbench_spark.kernels.graph.ids import (
    NumberSet,
    assign_blocks,
    hash_node_ids,
    hash_texts,
    sort_distinct,
)
from recbench_spark.kernels.hashing import Hashes
from recbench_spark.storage.blocks import Block as Packed
from recbench_spark.storage.blocks import partition_rows, unpack_blocks
from recbench_spark.storage.publish import replace_file
from recbench_spark.storage.shared_arrays import replace_array

if TYPE_CHECKING:  # workers import this module and do not need the settings
    pass


TASKS_A_CORE = 2
"""Tasks that read a graph of whole numbers, for each core. Each of them may send all ids."""


class NodeBlockCounts(NamedTuple):
    """NodeBlockCounts are the number of a block of nodes, its rows, and its nodes without any edge."""

    number: int
    rows: int
    isolated: int


def build_nodes(
    context: SparkContext, inputs: GraphInputs, folder: Path, per_side: int
) -> tuple[EdgeCounts, list[NodeBlockCounts]]:
    """Write the sorted hashes of all nodes, one file for each block, and their texts beside them."""
    total = per_side * len(inputs.sides)
    readers = count_tasks(inputs.edges, context.defaultParallelism)
    if all(inputs.numeric):  # few tasks, because each one sends the hash of a node at most once
        readers = min(readers, TASKS_A_CORE * context.defaultParallelism)
    read = partial(_partition_nodes, inputs=inputs, readers=readers, per_side=per_side)
    packed = context.parallelize(range(readers), readers).mapPartitions(read)
    write = partial(_write_nodes, inputs=inputs, folder=str(folder), per_side=per_side)
    results = run_shuffle(packed.partitionBy(total + 1, int), write)
    counts = [result for result in results if isinstance(result, EdgeCounts)]
    nodes = {result.number: result for result in results if isinstance(result, NodeBlockCounts)}
    return EdgeCounts(*map(sum, zip(*counts, strict=True))), [
        nodes.get(number, NodeBlockCounts(number, 0, 0)) for number in range(total)
    ]


def run_shuffle(shuffled: RDD[Any], write: Callable[[int, Iterable[Any]], Iterable[Any]]) -> list[Any]:
    """Run the tasks after a shuffle, then remove its files, because the next step needs the disk."""
    results = shuffled.mapPartitionsWithIndex(write).collect()
    java: Any = shuffled._jrdd
    java.rdd().cleanShuffleDependencies(False)
    return results


def _partition_nodes(
    numbers: Iterator[int], inputs: GraphInputs, readers: int, per_side: int
) -> Iterator[Packed]:
    """Yield distinct ids by block. The counts go to the partition after the last block."""
    total = per_side * len(inputs.sides)
    for number in numbers:
        counted = EdgeCounts()
        seen = [NumberSet() for _ in inputs.sides]
        for ends, _, counts in read_edges(inputs, inputs.edges.part(number, readers)):
            counted = EdgeCounts(*map(sum, zip(counted, counts, strict=True)))
            for side, ids in _pair_ids_with_side(inputs, ends):
                if not (inputs.numeric[side] and seen[side].add(ids.to_numpy())):
                    yield from _partition_ids(ids, side, per_side, inputs.seed, linked=True)
        for side, numbers_seen in enumerate(seen):
            for chunk in numbers_seen.numbers():
                yield from _partition_ids(pa.array(chunk), side, per_side, inputs.seed, linked=True)
        for side, ids in _read_extra_nodes(inputs, number, readers):
            yield from _partition_ids(ids, side, per_side, inputs.seed, linked=False)
        yield total, pickle.dumps(counted)


def _read_extra_nodes(inputs: GraphInputs, number: int, readers: int) -> Iterator[tuple[int, pa.Array]]:
    """Yield nodes that belong to the graph even without an edge, by side.

    They come from lists that may be empty, and from tables of nodes.
    """
    if inputs.lists:
        for chunk in inputs.edges.chunks(inputs.edges.part(number, readers)):
            yield 0, inputs.edges.ids(chunk, inputs.names[1]).drop_null()
    for side, rows, column in inputs.nodes:
        for chunk in rows.chunks(rows.part(number, readers)):
            ids = rows.ids(chunk, column)
            if ids.null_count:
                raise DataError(
                    f"nodes of {inputs.sides[side]}: {ids.null_count} ids are NULL", "leave these rows out"
                )
            yield side, ids


def _pair_ids_with_side(
    inputs: GraphInputs, ends: tuple[pa.Array, pa.Array]
) -> Iterator[tuple[int, pa.Array]]:
    yield from zip((0, 1) if inputs.bipartite else (0, 0), ends, strict=True)


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
    partition: int,
    blocks: Iterable[Packed],
    inputs: GraphInputs,
    folder: str,
    per_side: int,
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
    if not inputs.numeric[partition // per_side]:
        _write_texts(table.column("text").combine_chunks(), order, hashes, first, folder, number=partition)
    linked = np.logical_or.reduceat(table.column("linked").to_numpy()[order], np.flatnonzero(first))
    replace_array(Path(folder, "nodes", f"{partition:05d}.npy"), hashes[first])
    yield NodeBlockCounts(partition, int(first.sum()), int(np.count_nonzero(~linked)))


def _write_texts(
    texts: pa.Array, order: Any, hashes: Hashes, first: npt.NDArray[np.bool_], folder: str, *, number: int
) -> None:
    """Write the text of each hash by dense id.

    Raises:
        DataError: two texts have one hash, which happens once in 7,000 graphs of 50 million nodes.
    """
    in_order = texts.take(pa.array(order))
    pairs = np.flatnonzero(~first[1:])
    before, after = (in_order.take(pa.array(pairs + shift)) for shift in (0, 1))
    differ = np.flatnonzero(pc.not_equal(before, after).to_numpy(zero_copy_only=False))
    if len(differ):
        one, other = (texts[int(differ[0])].as_py() for texts in (before, after))
        raise DataError(f"ids '{one}' and '{other}' have one hash", "choose another seed: graph.seed: 1")
    path = Path(folder, "texts", f"{number:05d}.parquet")
    first_texts = in_order.take(pa.array(np.flatnonzero(first)))
    table = pa.table({"id": first_texts})
    replace_file(path, lambda private: pq.write_table(table, private, write_statistics=False))
