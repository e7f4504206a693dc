"""Read and write a graph's description, and publish its arrays.

Arrays are in one object a block (`block_arrays`).
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from recbench_spark.core.hashing import Hashes
from recbench_spark.graphs.kernels.csr import Csr, Halo
from recbench_spark.storage.block_arrays import ArrayPart, map_part, map_whole, publish_parts
from recbench_spark.storage.made_folders import find_folder
from recbench_spark.storage.objects import read_bytes, write_text
from recbench_spark.storage.uris import join_uri

FOLDER = "graph_files"
"""Warehouse folder for graph files.

It holds adjacency, features, and the files of running models.
"""

NIGHT_NOTE = "night.json"
"""File in a model's folder for the next night to read.

Its paths are relative to `graph_files`.
"""

MANIFEST = "graph.json"

LAYOUT = 3
"""Version of a graph's files.

Arrays are in one object a block, whose name contains its digest.
"""


def read_note(target: str) -> dict[str, Any] | None:
    """Return the note in a complete model's folder, or None."""
    folder = find_folder(target)
    text = None if folder is None else read_bytes(join_uri(folder, NIGHT_NOTE))
    return None if text is None else json.loads(text)


@dataclass(frozen=True)
class NodeBlock:
    """A range of dense ids, which one task handles.

    A block holds the nodes on one side whose hashes are in one range.

    Attributes:
        number: number among all blocks.
        side: its side's place.
        first: its first node's dense id.
        rows: nodes.
        edges: edges into them.
        sources: distinct sources of these edges.
        parts: pairs of a node and a block with sources of it.
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
        """Dense id after the last node."""
        return self.first + self.rows


@dataclass(frozen=True)
class Graph:
    """A graph on disk, in a few numbers per block.

    These numbers go with every task.

    Attributes:
        graph_id: hash of its inputs.
        folder: path or URI with its files.
        sides: its sides' names.
        numeric: by side, true if ids are whole numbers.
        blocks: blocks by number; those on one side stand together.
        weighted: true if edges have weights.
        seed: seed for the hashes.
        checks: the build's counts, by name.
        seconds: the build's wall time.
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
        """Nodes on all sides."""
        return self.blocks[-1].end

    @property
    def edges(self) -> int:
        """Stored edges; an edge both ways counts twice."""
        return sum(block.edges for block in self.blocks)

    def side_range(self, side: int) -> tuple[int, int]:
        """Return a side's first dense id, and its end.

        The end is the id after the last.
        """
        own = [block for block in self.blocks if block.side == side]
        return own[0].first, own[-1].end

    def side_blocks(self, side: int | None) -> tuple[NodeBlock, ...]:
        """Return the blocks on a side, or all for None."""
        return tuple(block for block in self.blocks if side is None or block.side == side)

    def place(self, name: str) -> str:
        """Return an array's or another file's place."""
        return join_uri(self.folder, name)

    def hashes(self) -> Hashes:
        """Map all nodes' id hashes, (nodes,)."""
        return map_whole(self.place("hashes"))

    def block_hashes(self, block: NodeBlock) -> Hashes:
        """Map a block's id hashes, (rows,)."""
        return map_part(self.place("hashes"), block.number)

    def csr(self, block: NodeBlock) -> Csr:
        """Map the edges into a block."""
        indptr, src = (map_part(self.place(name), block.number) for name in ("indptr", "src"))
        weight = map_part(self.place("weight"), block.number) if self.weighted else None
        return Csr(indptr, src, weight)

    def halo(self, block: NodeBlock) -> Halo:
        """Map the sources a block needs (`runner.make_halos`)."""
        return Halo(*(map_part(self.place(name), block.number) for name in HALO))

    def map_sources(self, block: NodeBlock) -> npt.NDArray[np.uint32]:
        """Map the dense ids a block needs, in order: `need` in its halo."""
        return map_part(self.place(HALO[0]), block.number)

    def index(self, side: int) -> npt.NDArray[np.int64]:
        """Map a side's hash index (`ids.build_index`)."""
        return map_part(self.place("index"), side)

    def write(self) -> None:
        """Write the manifest, as the last file.

        A graph with a manifest is complete. The folder is not in it, because the warehouse may be moved.
        """
        fields = {name: value for name, value in asdict(self).items() if name != "folder"}
        write_text(self.place(MANIFEST), json.dumps({**fields, "layout": LAYOUT}))


HALO = ("need", "place")
"""Arrays of `csr.Halo`, made before the first pass that gathers."""


def read_graph(folder: str) -> Graph | None:
    """Read a graph by its manifest, or return None.

    None stands for no manifest, an incomplete one, or one for another version of the files.
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
    """Name a new Parquet file in a table's partition.

    Returns its path within the table, and its full place.
    """
    directory = "/".join(f"{column}={value}" for column, value in partition.items())
    file = f"{directory}/{name}-{uuid.uuid4()}.parquet"
    return file, join_uri(folder, file)


# --------------------------------------------------------------------------------- arrays of tasks

Parts = Mapping[str, ArrayPart]
"""Parts a task wrote, by array name."""

SEPARATE = (0,)
"""Shape of an array whose parts are read alone."""


def publish_arrays(
    folder: str, written: Iterable[Parts], arrays: Mapping[str, tuple[tuple[int, ...], Any]]
) -> None:
    """Write the part lists of arrays that tasks wrote block by block.

    Each task returned its written parts by array name; the driver holds a few numbers for each.

    Args:
        folder: the arrays' folder.
        written: parts from each task.
        arrays: shape and type by array name; `SEPARATE` for parts that are read alone.
    """
    by_name: dict[str, list[ArrayPart]] = {name: [] for name in arrays}
    for parts in written:
        for name, part in parts.items():
            by_name[name].append(part)
    for name, (shape, dtype) in arrays.items():
        publish_parts(join_uri(folder, name), by_name[name], shape, dtype)
