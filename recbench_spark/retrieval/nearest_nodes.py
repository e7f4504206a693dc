"""Nearest graph nodes by final vectors, as rows of `nearest_nodes`.

A task takes a block of nodes: it maps the vectors of the block's side, searches for some thousand nodes at
a time, and writes one file. Each side's index is built once, one task per partition, and removed at the
end. Neighbours depend on vectors and settings alone: neither blocks nor tasks change a row. A building task
holds one partition's vectors twice. A searching task holds 25 bytes per node of the side beside the mapped
files, and the lists for `NODES_A_PIECE` nodes. The driver holds three numbers per block.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from recbench_spark.config import digest
from recbench_spark.errors import ConfigError, nearest
from recbench_spark.graphs.folders import Graph, NodeBlock, make_file_place
from recbench_spark.graphs.incremental import restore_vectors
from recbench_spark.graphs.incremental_run import read_model_night
from recbench_spark.graphs.local_walks import NODES_A_PIECE, look_up_names
from recbench_spark.graphs.model_inputs import PreparedGraphModel, model_folder
from recbench_spark.graphs.stored_graphs import prefix_split_id, write_graph_checks
from recbench_spark.ranking.kernels.products import Products, lengths, make_products
from recbench_spark.retrieval.faiss_indexes import load_faiss
from recbench_spark.retrieval.interface import IndexReader
from recbench_spark.retrieval.kernels.candidates import ItemSets
from recbench_spark.retrieval.search import IndexLists, cut_items, make_builder, search_lists
from recbench_spark.retrieval.settings import AnyIndexSettings, NearestNodes
from recbench_spark.runtime.journal import Journal
from recbench_spark.schemas import NEAREST_NODES
from recbench_spark.storage import delta_files
from recbench_spark.storage.block_arrays import map_whole
from recbench_spark.storage.blocks import Engine
from recbench_spark.storage.file_tables import FileTables
from recbench_spark.storage.leases import make_folder_once
from recbench_spark.storage.made_folders import hold_private_folder
from recbench_spark.storage.objects import open_output
from recbench_spark.storage.publish import local_path
from recbench_spark.storage.retries import commit_files
from recbench_spark.storage.shared_arrays import host_folder
from recbench_spark.storage.uris import is_remote, join_uri

ROWS = pa.schema(
    [
        ("model_id", pa.string()),
        ("side", pa.string()),
        ("node", pa.string()),
        ("neighbours", pa.list_(pa.string())),
        ("scores", pa.list_(pa.float64())),
    ]
)


def check_nearest(settings: NearestNodes, sides: tuple[str, ...] | None) -> None:
    """Check, before Spark starts, that lists can be made.

    `sides` is None where they are not known yet.

    Raises:
        ConfigError: the graph has no such side.
        MissingError: the index needs faiss, and it is not installed.
    """
    if settings.side is not None and sides is not None and settings.side not in sides:
        raise ConfigError(f"--nearest-side: no side {settings.side}", nearest(settings.side, sides))
    if settings.index.kind != "lsh":
        load_faiss()


class NearestFile(NamedTuple):
    """A written file and its counts: nodes, neighbours, short lists.

    A short list has fewer neighbours than configured.
    """

    file: delta_files.File
    nodes: int
    neighbours: int
    short: int


def ensure_nearest_nodes(
    store: FileTables, prepared: PreparedGraphModel, settings: NearestNodes, journal: Journal
) -> str:
    """Return the name of a model's lists; make them if missing.

    All lists are made once, and committed together.

    Args:
        store: the warehouse.
        prepared: the model, whose vectors are in the table.
        settings: length of the lists, index, similarity and side.
        journal: journal of the job.

    Raises:
        ConfigError: as `check_nearest`; or there are more cells than nodes.
        DataError: there are more index partitions than nodes.
    """
    model_id = prepared.model.model_id
    check_nearest(settings, prepared.graph.sides)
    name = prefix_split_id(prepared.settings.graph, settings.key(model_id))
    store.create(NEAREST_NODES)
    folder, partition = store.location(NEAREST_NODES.name), {"nearest_id": name}
    if delta_files.is_committed(folder, name):
        journal.say(f"nearest nodes {name}: already made")
        return name
    with journal.stage("nearest", f"nearest nodes {name}: search", model_id=model_id) as counts:
        written = _search_graph(store, prepared, settings, folder, partition)
        files = [one.file for one in written]
        delta_files.require_visible(folder, files)
        lists = {
            "nodes": sum(one.nodes for one in written),
            "neighbours": sum(one.neighbours for one in written),
            "short_lists": sum(one.short for one in written),
        }
        counts.update(lists)
        # The checks come first: if the run is killed in between, a second run writes both.
        write_graph_checks(store, name, lists)
        commit_files(folder, files, partition, name)
    journal.say("{nodes:,} nodes, {neighbours:,} neighbours, {short_lists:,} short lists".format(**counts))
    return name


def _search_graph(
    store: FileTables,
    prepared: PreparedGraphModel,
    settings: NearestNodes,
    folder: str,
    partition: Mapping[str, str],
) -> list[NearestFile]:
    """Put the vectors where tasks can map them, and search.

    Sides are searched one after the other.
    """
    model_id, engine = prepared.model.model_id, store.engine
    night, _ = read_model_night(store, model_id)
    last, written = len(prepared.model.layers) - 1, []
    with hold_private_folder(model_folder(store, model_id)) as place:
        vectors = join_uri(place, "vectors")
        restore_vectors(engine, night, night.places[last:], vectors, "float32")
        indexes = "" if is_remote(place) else str(local_path(place) / "indexes")
        for side, name in enumerate(night.graph.sides):
            if settings.side in (None, name):
                first, end = night.graph.side_range(side)
                source = SideVectors(vectors, first, end, settings.similarity, settings.index, indexes)
                task = NearestTask(night.graph, source, settings.count, model_id, folder, partition)
                written += search_side(engine, task, side)
    return written


# ------------------------------------------------------------------------------------------ the index


@dataclass(frozen=True)
class SideVectors:
    """One side's vectors as tasks map them, and their index.

    Attributes:
        vectors: path or URI of all nodes' vectors.
        first: dense id of the side's first node.
        end: dense id after its last node.
        similarity: cosine or dot.
        index: settings of the index.
        indexes: folder with the index's files; empty: each host has files of its own.
    """

    vectors: str
    first: int
    end: int
    similarity: Literal["cosine", "dot"]
    index: AnyIndexSettings
    indexes: str

    def make_products(self) -> Products:
        """Return the mapped vectors with their lengths."""
        return make_products(map_whole(self.vectors)[self.first : self.end], kind=self.similarity)

    def open_part(self, part: int, products: Products | None = None) -> IndexReader:
        """Return a partition's index; the first caller builds it."""
        builder, folder = make_builder(self.index), Path(self.indexes) if self.indexes else host_folder()
        target = folder / f"index-{digest(self.vectors, self.first, part)}"

        def build(work: Path) -> None:
            builder.build(cut_items(products or self.make_products(), self.index.index_parts, part), work)

        make_folder_once(target, build, report=lambda _: None)
        return builder.read(target)


class OpenSide(NamedTuple):
    """A side's vectors and index, opened by a worker."""

    products: Products
    readers: list[IndexReader]


@lru_cache(maxsize=1)
def open_side(source: SideVectors) -> OpenSide:
    """Open a side's vectors and index, once per worker."""
    products = source.make_products()
    parts = range(source.index.index_parts)
    return OpenSide(products, [source.open_part(part, products) for part in parts])


# ------------------------------------------------------------------------------------------ the lists


@dataclass(frozen=True)
class NearestTask:
    """Input to every task on a side: graph, vectors and table."""

    graph: Graph
    source: SideVectors
    count: int
    model_id: str
    folder: str
    partition: Mapping[str, str]


def search_side(engine: Engine, task: NearestTask, side: int) -> list[NearestFile]:
    """Search for a side's nodes; each block becomes a file."""
    blocks = [block for block in task.graph.side_blocks(side) if block.rows]
    if not blocks:
        return []
    if task.source.indexes:
        parts = range(task.source.index.index_parts)
        engine.parallelize(parts, len(parts)).foreach(task.source.open_part)
    return list(engine.parallelize(blocks, len(blocks)).map(partial(_search_block, task=task)).collect())


def _search_block(block: NodeBlock, task: NearestTask) -> NearestFile:
    """Write a block's lists to one table file, piece by piece."""
    file, place = make_file_place(task.folder, task.partition)
    neighbours = short = 0
    options: dict[str, Any] = {"use_dictionary": ["model_id", "side"], "write_statistics": False}
    with open_output(place) as stream:
        with pq.ParquetWriter(stream, ROWS, store_schema=False, **options) as out:
            opened = open_side(task.source)
            for first in range(block.first, block.end, NODES_A_PIECE):
                end = min(first + NODES_A_PIECE, block.end)
                places = first - task.source.first, end - task.source.first
                lists = find_nearest_nodes(opened, *places, task.count)
                out.write_batch(_make_rows(task, block, first, lists))
                sizes = np.count_nonzero(lists.items_uk >= 0, axis=1)
                neighbours, short = neighbours + int(sizes.sum()), short + int((sizes < task.count).sum())
        size = stream.tell()
    return NearestFile(delta_files.File(file, size, block.rows), block.rows, neighbours, short)


def find_nearest_nodes(opened: OpenSide, start: int, stop: int, count: int) -> IndexLists:
    """Return some nodes' nearest other nodes, by score, then place.

    Places count within the side. The score is an exact product, for a cosine divided by the neighbour's
    length; it orders the list. Then a cosine is divided by the node's own length, which is the same for the
    whole list. The cosine with a zero vector is 0.
    """
    products = opened.products
    vectors = products.vectors_id[start:stop]
    own = ItemSets(np.arange(stop - start + 1), np.arange(start, stop, dtype=np.int32))
    lists = search_lists(opened.readers, products, vectors, own, count)
    if bool((products.divisor_i == 1.0).all()):
        return lists
    length_u = lengths(vectors)
    return lists._replace(scores_uk=lists.scores_uk / np.where(length_u > 0.0, length_u, 1.0)[:, None])


def _make_rows(task: NearestTask, block: NodeBlock, first: int, lists: IndexLists) -> pa.RecordBatch:
    """Return the rows of consecutive nodes, from dense id `first`."""
    n, there = len(lists.items_uk), lists.items_uk >= 0
    offsets = pa.array(np.concatenate([[0], np.cumsum(there.sum(axis=1))]).astype(np.int32))
    names = partial(look_up_names, task.graph, side=block.side)
    columns = [
        pa.array([task.model_id] * n, pa.string()),
        pa.array([task.graph.sides[block.side]] * n, pa.string()),
        names(np.arange(first, first + n)),
        pa.ListArray.from_arrays(offsets, names(lists.items_uk[there] + task.source.first)),
        pa.ListArray.from_arrays(offsets, pa.array(lists.scores_uk[there])),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=ROWS)
