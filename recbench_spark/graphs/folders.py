"""Read and write the description of a graph. Its arrays are in one object a block (`block_arrays`)."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from recbench_spark.core.hashing import Hashes
from recbench_spark.graphs.kernels.csr import Csr, Halo
from recbench_spark.storage.block_arrays import map_part, map_whole
from recbench_spark.storage.made_folders import find_folder
from recbench_spark.storage.objects import read_bytes, write_text
from recbench_spark.storage.uris import join_uri

FOLDER = "graph_files"
"""Folder of the warehouse for the adjacency and features of graphs, and for the files of running models."""

NIGHT_NOTE = "night.json"
"""File in a model's folder that the next night reads. Its paths are relative to `graph_files`."""

MANIFEST = "graph.json"

LAYOUT = 3
"""Version of the files of a graph: arrays are in one object a block, whose name contains its digest."""


def read_note(target: str) -> dict[str, Any] | None:
    """Return the note of a complete model by its folder; None if there is none."""
    folder = find_folder(target)
    text = None if folder is None else read_bytes(join_uri(folder, NIGHT_NOTE))
    return None if text is None else json.loads(text)


@dataclass(frozen=True)
class NodeBlock:
    """NodeBlock is a range of dense ids: the nodes of one side whose hashes are in one range.

    Attributes:
        number: number among all blocks.
        side: place of its side.
        first: dense id of its first node.
        rows: number of nodes.
        edges: edges into them.
        sources: distinct sources of these edges.
        parts: pairs of a node and a block that has sources of it.
    """

    number: int
    side: int
    first: int
    rows: int
    edges: int = 0
    sources: int = 0
    parts: int = 0

    @property
    def end(self) -> int:
        """Return the dense id after the last node."""
        return self.first + self.rows


@dataclass(frozen=True)
class Graph:
    """Graph describes a graph on disk. A task needs no more than this: a few numbers for each block.

    Attributes:
        graph_id: hash of its inputs.
        folder: folder of its files, a path or a URI.
        sides: names of its sides.
        numeric: by side, true if ids are whole numbers.
        blocks: blocks by number; those of a side follow one another.
        weighted: true if edges have weights.
        seed: seed of the hashes.
        checks: counts of the build, by name.
        seconds: wall time of the build.
    """

    graph_id: str
    folder: str
    sides: tuple[str, ...]
    numeric: tuple[bool, ...]
    blocks: tuple[NodeBlock, ...]
    weighted: bool
    seed: int
    checks: dict[str, int]
    seconds: float = 0.0

    @property
    def nodes(self) -> int:
        """Return the number of nodes of all sides."""
        return self.blocks[-1].end

    @property
    def edges(self) -> int:
        """Return the number of stored edges. An edge that goes both ways counts twice."""
        return sum(block.edges for block in self.blocks)

    def side_range(self, side: int) -> tuple[int, int]:
        """Return the first dense id of a side and the one after its last."""
        own = [block for block in self.blocks if block.side == side]
        return own[0].first, own[-1].end

    def side_blocks(self, side: int | None) -> tuple[NodeBlock, ...]:
        """Return the blocks of a side, or all for None."""
        return tuple(block for block in self.blocks if side is None or block.side == side)

    def place(self, name: str) -> str:
        """Return the path or URI of an array of the graph, or of another file."""
        return join_uri(self.folder, name)

    def hashes(self) -> Hashes:
        """Return the (nodes,) hashes of the nodes' ids, mapped."""
        return map_whole(self.place("hashes"))

    def block_hashes(self, block: NodeBlock) -> Hashes:
        """Return the (rows,) hashes of a block's ids, mapped."""
        return map_part(self.place("hashes"), block.number)

    def csr(self, block: NodeBlock) -> Csr:
        """Return the edges into a block, mapped."""
        indptr, src = (map_part(self.place(name), block.number) for name in ("indptr", "src"))
        weight = map_part(self.place("weight"), block.number) if self.weighted else None
        return Csr(indptr, src, weight)

    def halo(self, block: NodeBlock) -> Halo:
        """Return the sources that a block needs of other blocks, mapped (`runner.make_halos`)."""
        return Halo(*(map_part(self.place(name), block.number) for name in HALO))

    def map_sources(self, block: NodeBlock) -> npt.NDArray[np.uint32]:
        """Return the dense ids of the sources that a block needs, in order, mapped: `need` of its halo."""
        return map_part(self.place(HALO[0]), block.number)

    def index(self, side: int) -> npt.NDArray[np.int64]:
        """Return the index of the hashes of a side (`ids.build_index`), mapped."""
        return map_part(self.place("index"), side)

    def write(self) -> None:
        """Write the manifest as the last file. A graph with a manifest is complete.

        The manifest does not contain the folder, because the warehouse may be moved.
        """
        fields = {name: value for name, value in asdict(self).items() if name != "folder"}
        write_text(self.place(MANIFEST), json.dumps({**fields, "layout": LAYOUT}))


HALO = ("need", "place")
"""Arrays of `csr.Halo`, made before the first pass that gathers."""


def read_graph(folder: str) -> Graph | None:
    """Read a graph by its manifest, or return None if there is no manifest or an incomplete one.

    Manifests of other versions of the files count as incomplete.
    """
    try:
        fields: dict[str, Any] = json.loads(read_bytes(join_uri(folder, MANIFEST)) or b"")
        if fields.pop("layout") != LAYOUT:
            return None
        blocks = tuple(NodeBlock(**block) for block in fields["blocks"])
        sides, numeric = tuple(fields["sides"]), tuple(fields["numeric"])
        more = {"folder": folder, "blocks": blocks, "sides": sides, "numeric": numeric}
        return Graph(**{**fields, **more})
    except (OSError, ValueError, TypeError, KeyError):
        return None


def make_file_place(folder: str, partition: Mapping[str, str], name: str = "part") -> tuple[str, str]:
    """Return a new Parquet file of a table's partition: its path within the table, and its full place."""
    directory = "/".join(f"{column}={value}" for column, value in partition.items())
    file = f"{directory}/{name}-{uuid.uuid4()}.parquet"
    return file, join_uri(folder, file)
