"""Where a graph's and a model's files lie: a folder that the driver and all workers see under one path."""

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
from recbench_spark.storage.publish import publish_file, replace_file, replace_text

MANIFEST = "graph.json"


@dataclass(frozen=True)
class NodeBlock:
    """A range of dense ids: the nodes of one side whose hashes are in one range.

    Attributes:
        number: of all blocks.
        side: place of its side.
        first: dense id of its first node.
        rows: nodes.
        edges: edges into them.
        sources: distinct sources of these.
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
        """Dense id after its last node."""
        return self.first + self.rows


@dataclass(frozen=True)
class Graph:
    """A graph laid out: what a task needs to know of it, a few numbers a block.

    Attributes:
        graph_id: hash of its inputs.
        folder: of its files.
        sides: names of its sides.
        numeric: by side, whether ids are whole numbers.
        blocks: by number; those of a side stand together.
        weighted: whether edges have weights.
        seed: of the hashes.
        checks: what was counted.
        seconds: wall time of the layout.
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
        """Nodes of all sides."""
        return self.blocks[-1].end

    @property
    def edges(self) -> int:
        """Edges as they are stored: both ways counts twice."""
        return sum(block.edges for block in self.blocks)

    def side_range(self, side: int) -> tuple[int, int]:
        """Dense ids of a side."""
        own = [block for block in self.blocks if block.side == side]
        return own[0].first, own[-1].end

    def side_blocks(self, side: int | None) -> tuple[NodeBlock, ...]:
        """Blocks of a side, or all."""
        return tuple(block for block in self.blocks if side is None or block.side == side)

    def hashes(self) -> Hashes:
        """(nodes,) hash of each node's id, mapped."""
        return map_array(Path(self.folder, "hashes.npy"))

    def csr(self, block: NodeBlock) -> Csr:
        """The edges into a block, mapped."""
        place = Path(self.folder, "blocks", f"{block.number:05d}")
        weight = map_array(place / "weight.npy") if self.weighted else None
        return Csr(map_array(place / "indptr.npy"), map_array(place / "src.npy"), weight)

    def halo(self, block: NodeBlock) -> Halo:
        """What a block needs of others; worked out by the first that asks, and kept."""
        place = Path(self.folder, "blocks", f"{block.number:05d}")
        if not (place / "place.npy").exists():
            halo = build_halo(self.csr(block))
            publish_file(place / "need.npy", partial(_write_array, array=halo.need))
            publish_file(place / "place.npy", partial(_write_array, array=halo.place))
        return Halo(map_array(place / "need.npy"), map_array(place / "place.npy"))

    def index(self, side: int) -> npt.NDArray[np.int64]:
        """Where hashes begin (`ids.build_index`), mapped."""
        return map_array(Path(self.folder, f"index-{side}.npy"))

    def numbers(self, side: int) -> Path:
        """Dense ids by whole number, plus 1, while edges are laid out; there where numbers lie close."""
        return Path(self.folder, f"numbers-{side}.npy")

    def texts(self, block: NodeBlock) -> Path:
        """The texts of a block's ids, by dense id."""
        return Path(self.folder, "texts", f"{block.number:05d}.parquet")

    def write(self) -> None:
        """Write the manifest, last of all files: a graph that has one is whole.

        It does not say where it lies: the warehouse may be moved.
        """
        fields = {name: value for name, value in asdict(self).items() if name != "folder"}
        replace_text(Path(self.folder, MANIFEST), json.dumps(fields))


def read_graph(folder: Path) -> Graph | None:
    """A graph by its manifest; None where there is none, or one that was cut short."""
    try:
        fields: dict[str, Any] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        blocks = tuple(NodeBlock(**block) for block in fields["blocks"])
        sides, numeric = tuple(fields["sides"]), tuple(fields["numeric"])
        more = {"folder": str(folder), "blocks": blocks, "sides": sides, "numeric": numeric}
        return Graph(**{**fields, **more})
    except (OSError, ValueError, TypeError, KeyError):
        return None


def map_array(path: Path) -> npt.NDArray[Any]:
    """A `.npy` file, mapped read-only.

    Raises:
        StoreError: it is not there.
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
            f"{path} is cut short or damaged: {str(error)[:200]}", "run again: the graph is laid out anew"
        ) from None


def save_array(path: Path, array: npt.NDArray[Any]) -> None:
    """Write an array as a `.npy` file that is there whole or not at all.

    A second attempt of a task replaces the file by one with the same bytes.
    """
    replace_file(path, partial(_write_array, array=array))


def _write_array(path: Path, array: npt.NDArray[Any]) -> None:
    with path.open("wb") as file:
        np.save(file, array, allow_pickle=False)


def create_matrix(path: Path, shape: tuple[int, ...], dtype: Any) -> None:
    """Make a `.npy` file of zeros that tasks fill, each its own rows; a file that is there stays."""
    if not path.exists():
        publish_file(path, partial(_write_zeros, shape=shape, dtype=dtype))


def _write_zeros(path: Path, shape: tuple[int, ...], dtype: Any) -> None:
    np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape).flush()


def map_writable(path: Path) -> npt.NDArray[Any]:
    """A matrix that a task fills; two attempts write the same bits to the same rows."""
    return np.load(path, mmap_mode="r+", allow_pickle=False)  # type: ignore[no-any-return]


def make_file_path(folder: str, partition: Mapping[str, str], name: str = "part") -> tuple[str, Path]:
    """A new Parquet file of a table's partition: its path within the table's folder, and where that is."""
    directory = "/".join(f"{column}={value}" for column, value in partition.items())
    file = f"{directory}/{name}-{uuid.uuid4()}.parquet"
    path = Path(folder, file)
    path.parent.mkdir(parents=True, exist_ok=True)
    return file, path
