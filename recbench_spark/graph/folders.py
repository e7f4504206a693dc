"""Read and write files of graphs and models. The driver and all workers see their folder under one path."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from recbench_spark.errors import StoreError
from recbench_spark.kernels.graph.csr import Csr, Halo, build_halo
from recbench_spark.kernels.hashing import Hashes
from recbench_spark.storage.publish import publish_file, replace_text
from recbench_spark.storage.shared_arrays import write_array

MANIFEST = "graph.json"


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
        folder: folder of its files.
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

    def hashes(self) -> Hashes:
        """Return the (nodes,) hashes of the nodes' ids, mapped."""
        return map_array(Path(self.folder, "hashes.npy"))

    def csr(self, block: NodeBlock) -> Csr:
        """Return the edges into a block, mapped."""
        place = Path(self.folder, "blocks", f"{block.number:05d}")
        weight = map_array(place / "weight.npy") if self.weighted else None
        return Csr(map_array(place / "indptr.npy"), map_array(place / "src.npy"), weight)

    def halo(self, block: NodeBlock) -> Halo:
        """Return the sources that a block needs of other blocks.

        The first call computes them and writes them to disk.
        """
        place = Path(self.folder, "blocks", f"{block.number:05d}")
        if not (place / "place.npy").exists():
            halo = build_halo(self.csr(block))
            publish_file(place / "need.npy", partial(write_array, array=halo.need))
            publish_file(place / "place.npy", partial(write_array, array=halo.place))
        return Halo(map_array(place / "need.npy"), map_array(place / "place.npy"))

    def index(self, side: int) -> npt.NDArray[np.int64]:
        """Return the index of the hashes of a side (`ids.build_index`), mapped."""
        return map_array(Path(self.folder, f"index-{side}.npy"))

    def numbers(self, side: int) -> Path:
        """Return the file of dense ids plus 1 by whole number.

        It exists during the build, where numbers are close together.
        """
        return Path(self.folder, f"numbers-{side}.npy")

    def texts(self, block: NodeBlock) -> Path:
        """Return the file of the texts of a block's ids, by dense id."""
        return Path(self.folder, "texts", f"{block.number:05d}.parquet")

    def write(self) -> None:
        """Write the manifest as the last file. A graph with a manifest is complete.

        The manifest does not contain the folder, because the warehouse may be moved.
        """
        fields = {name: value for name, value in asdict(self).items() if name != "folder"}
        replace_text(Path(self.folder, MANIFEST), json.dumps(fields))


def read_graph(folder: Path) -> Graph | None:
    """Read a graph by its manifest, or return None if there is no manifest or an incomplete one."""
    try:
        fields: dict[str, Any] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        blocks = tuple(NodeBlock(**block) for block in fields["blocks"])
        sides, numeric = tuple(fields["sides"]), tuple(fields["numeric"])
        more = {"folder": str(folder), "blocks": blocks, "sides": sides, "numeric": numeric}
        return Graph(**{**fields, **more})
    except (OSError, ValueError, TypeError, KeyError):
        return None


def map_array(path: Path) -> npt.NDArray[Any]:
    """Map a `.npy` file read-only.

    Raises:
        StoreError: the file does not exist or is damaged.
    """
    try:
        if path.stat().st_size <= 1 << 12:  # an empty file cannot be mapped, a small one need not be
            return np.load(path, allow_pickle=False)  # type: ignore[no-any-return]
        return np.load(path, mmap_mode="r", allow_pickle=False)  # type: ignore[no-any-return]
    except FileNotFoundError:
        raise StoreError(
            f"no file {path}", "all hosts must see the warehouse's folder; run again if it was removed"
        ) from None
    except (ValueError, EOFError) as error:
        raise StoreError(
            f"{path} is cut short or damaged: {str(error)[:200]}", "run again: the graph is built again"
        ) from None


def create_matrix(path: Path, shape: tuple[int, ...], dtype: Any) -> None:
    """Create a `.npy` file of zeros. Each task fills its own rows. A file that exists stays."""
    if not path.exists():
        publish_file(path, partial(_write_zeros, shape=shape, dtype=dtype))


def _write_zeros(path: Path, shape: tuple[int, ...], dtype: Any) -> None:
    np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape).flush()


def map_writable(path: Path) -> npt.NDArray[Any]:
    """Map a matrix for writing. Two attempts of a task write the same bits to the same rows."""
    return np.load(path, mmap_mode="r+", allow_pickle=False)  # type: ignore[no-any-return]


def make_file_path(folder: str, partition: Mapping[str, str], name: str = "part") -> tuple[str, Path]:
    """Return a new Parquet file of a table's partition: its path within the table, and its full path."""
    directory = "/".join(f"{column}={value}" for column, value in partition.items())
    file = f"{directory}/{name}-{uuid.uuid4()}.parquet"
    path = Path(folder, file)
    path.parent.mkdir(parents=True, exist_ok=True)
    return file, path
