"""Write vectors as Parquet by block, committed to Delta.

Blocks are committed in groups, each block once. A file's name holds its block number, so the table's log
shows which blocks of a layer exist. A task that is tried again, or a run that is continued, writes the
same bits. A file's footer holds a digest of its rows, its model, layer or side, and its block. Every
later reader compares it, so a file that was cut, changed or exchanged for another one is refused by its
name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash

from recbench_spark.errors import StoreError
from recbench_spark.graphs.folders import NodeBlock, make_file_place
from recbench_spark.storage.delta_files import File
from recbench_spark.storage.delta_tables import list_files
from recbench_spark.storage.object_access import explain_arrow, open_filesystem
from recbench_spark.storage.objects import open_output

PREFIX = "part-b"

VECTORS = pa.schema(
    [
        pa.field("block", pa.int32(), False),
        pa.field("first", pa.int64(), False),
        pa.field("nodes", pa.int32(), False),
        pa.field("dims", pa.int32(), False),
        pa.field("dtype", pa.string(), False),
        pa.field("vectors", pa.binary(), False),
    ]
)


class BlockFile(NamedTuple):
    """The place of a block's new file in its table.

    Attributes:
        folder: the table's folder.
        partition: model_id, with layer or side.
        block: the nodes' block.
        blocks: blocks in the whole graph; a continued run must have as many.
    """

    folder: str
    partition: Mapping[str, str]
    block: NodeBlock
    blocks: int


def write_vectors(into: BlockFile, rows: Iterable[tuple[int, Any]]) -> File:
    """Write vectors as bytes, some thousand nodes per row (`graph_vectors`).

    `rows`: first dense id, and vectors (r, d) as they are stored.
    """

    def pack(digest: RowsDigest) -> Iterator[pa.RecordBatch]:
        for first, vectors in rows:
            digest.add(vectors)
            yield _pack_vectors(into.block, first, vectors)

    return _write_batches(into, VECTORS, pack)


def _write_batches(
    into: BlockFile, schema: pa.Schema, pack: Callable[[RowsDigest], Iterable[pa.RecordBatch]]
) -> File:
    """Write a block's file, whose footer holds its digest.

    `pack` yields the rows, and adds them to a digest.
    """
    name = f"{PREFIX}{into.block.number:05d}of{into.blocks}"
    file, place = make_file_place(into.folder, into.partition, name)
    written, digest = 0, RowsDigest(file)
    dictionary = ["bias"] if "bias" in schema.names else False
    options: dict[str, Any] = {"compression": "none", "write_statistics": False, "store_schema": False}
    with open_output(place) as stream:
        with pq.ParquetWriter(stream, schema, use_dictionary=dictionary, **options) as out:
            for batch in pack(digest):
                out.write_batch(batch)
                written += batch.num_rows
            out.add_key_value_metadata({DIGEST: digest.text})
        size = stream.tell()
    return File(file, size, written)


def _pack_vectors(block: NodeBlock, first: int, vectors: Any) -> pa.RecordBatch:
    """Pack vectors (r, d) of consecutive nodes into a row."""
    offsets = pa.py_buffer(np.array([0, vectors.nbytes], np.int32))
    packed = pa.Array.from_buffers(pa.binary(), 1, [None, offsets, pa.py_buffer(vectors)])
    values: list[Any] = [block.number, first, len(vectors), vectors.shape[1], vectors.dtype.name]
    arrays = [pa.array([v], f.type) for v, f in zip(values, list(VECTORS)[:5], strict=True)]
    return pa.RecordBatch.from_arrays([*arrays, packed], schema=VECTORS)


def write_embeddings(into: BlockFile, ids: pa.Array, rows: Iterable[tuple[int, Any]]) -> File:
    """Write vectors as arrays with their nodes' ids (`embeddings`).

    Args:
        into: the file.
        ids: (rows,) raw ids, by dense id.
        rows: first dense id, and vectors (r, d) float32.
    """
    schema = pa.schema([("id", pa.string()), ("vector", pa.list_(pa.float32())), ("bias", pa.float64())])

    def pack(digest: RowsDigest) -> Iterator[pa.RecordBatch]:
        for first, vectors in rows:
            n, d = vectors.shape
            offsets = pa.array(np.arange(0, n * d + 1, d, dtype=np.int32))
            lists = pa.ListArray.from_arrays(offsets, pa.array(vectors.reshape(-1)))
            names = ids.slice(first - into.block.first, n).cast(pa.string())
            digest.add(vectors, names)
            yield pa.RecordBatch.from_arrays([names, lists, pa.array(np.zeros(n))], schema=schema)

    return _write_batches(into, schema, pack)


DIGEST = "recbench.rows"
"""Key of the digest in a file's footer.

Files from older versions have none, and are read unchecked.
"""


class RowsDigest:
    """A digest over a file's rows and place.

    Any batches with the same rows give the same digest.
    """

    def __init__(self, file: str) -> None:
        *_, model, part, name = file.split("/")
        self._vectors = xxhash.xxh3_128(f"{model}/{part}/{name.split('-')[1]}".encode())
        self._names = xxhash.xxh3_128()
        self._kind = ""

    def add(self, vectors: Any, names: pa.Array | None = None) -> None:
        """Add the (r, d) vectors of the next nodes.

        The (r,) ids of these nodes are added where the file holds them.
        """
        if not self._kind:
            self._kind = f"{vectors.dtype.name} {vectors.shape[1]}"
            self._vectors.update(self._kind.encode())
        self._vectors.update(np.ascontiguousarray(vectors).data)
        if names is not None and len(names):
            lines = pa.ListArray.from_arrays(pa.array([0, len(names)], pa.int32()), names)
            self._names.update(pc.binary_join(lines, "\0")[0].as_buffer())
            self._names.update(b"\0")

    @property
    def text(self) -> str:
        """The digest as text."""
        return self._vectors.hexdigest() + self._names.hexdigest()


def list_committed(folder: str, partition: Mapping[str, str], blocks: int) -> dict[int, str]:
    """Return a partition's blocks in the table, with their files.

    Raises:
        StoreError: the partition was written with another number of blocks.
    """
    return number_files(list_files(folder, partition), partition, blocks)


def number_files(paths: Iterable[str], partition: Mapping[str, str], blocks: int) -> dict[int, str]:
    """Number block files by block; errors as in `list_committed`."""
    files = {}
    for file in sorted(paths):
        name = file.rsplit("/", 1)[1]
        if name.startswith(PREFIX):
            number, _, count = name[len(PREFIX) :].split("-")[0].partition("of")
            if int(count) != blocks:
                raise StoreError(
                    f"{dict(partition)} was begun over {count} blocks, and the graph has {blocks} now",
                    "go on with the same number of blocks (--blocks, a side's)",
                )
            files[int(number)] = file
    return files


def read_vectors(file: str, block: NodeBlock) -> Iterator[tuple[int, Any]]:
    """Yield vectors, each batch with its first dense id.

    The file was written by this module.

    Raises:
        StoreError: the file is missing, or its bytes are not those that were written. It is raised at the
            end at the latest, after the rows.
    """
    system, path = open_filesystem(file)
    digest = RowsDigest(file)
    try:
        with explain_arrow(file), pq.ParquetFile(path, filesystem=system) as table:
            yield from _read_batches(table, block.first, digest)
            stored = (table.metadata.metadata or {}).get(DIGEST.encode())
    except FileNotFoundError:
        raise StoreError(f"no file {file}, and the log of its table names it", REPAIR) from None
    except (pa.ArrowException, OSError, ValueError, TypeError, KeyError) as error:
        message = f"{file} is cut short or damaged: {str(error).strip()[:200]}"
        raise StoreError(message, REPAIR) from None
    if stored is not None and stored.decode(errors="replace") != digest.text:
        raise StoreError(f"{file} holds other vectors than were written for its block", REPAIR)


REPAIR = "restore this file from a copy, or compute the model in another warehouse"
"""Advice for a damaged committed file.

The table's log goes on naming the file.
"""


def _read_batches(table: pq.ParquetFile, first: int, digest: RowsDigest) -> Iterator[tuple[int, Any]]:
    for batch in table.iter_batches(1 << 14):
        if "vectors" in batch.schema.names:
            for row in batch.to_pylist():
                vectors = np.frombuffer(row["vectors"], row["dtype"]).reshape(row["nodes"], row["dims"])
                digest.add(vectors)
                yield row["first"], vectors
        elif batch.num_rows:
            values = batch.column("vector").flatten().to_numpy()
            vectors = values.reshape(batch.num_rows, -1)
            digest.add(vectors, batch.column("id"))
            yield first, vectors
            first += batch.num_rows


def check_file(stored: tuple[NodeBlock, str]) -> None:
    """Read a block's file, and refuse it if damaged.

    Errors are those of `read_vectors`.
    """
    block, file = stored
    if sum(len(vectors) for _, vectors in read_vectors(file, block)) != block.rows:
        raise StoreError(f"{file} holds more or fewer vectors than its block has nodes", REPAIR)


def group_blocks(blocks: Sequence[NodeBlock], size: int) -> list[tuple[NodeBlock, ...]]:
    """Split blocks into commit groups, each on one side."""
    groups: list[list[NodeBlock]] = []
    for block in blocks:
        if not groups or len(groups[-1]) >= size or groups[-1][-1].side != block.side:
            groups.append([])
        groups[-1].append(block)
    return [tuple(group) for group in groups]
