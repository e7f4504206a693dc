"""The one interface of all indexes: build files, propose candidates.

An index holds the scored items of one catalogue partition, in the order of their indices. It only proposes
candidates; `retrieval.search` orders them by exact score. Tasks cut users into different blocks, so an
index must answer each query alike, whichever other queries stand in the block.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, Protocol

from recbench_spark.core.arrays import Floats32, Ints
from recbench_spark.retrieval.kernels.candidates import ItemSets
from recbench_spark.storage.seals import SEAL


class IndexedItems(NamedTuple):
    """The scored items of one catalogue partition.

    `vectors_nd`: float32 vectors as the index multiplies them. `items_n`: ascending item indices. A bias is
    one more dimension, and then the query's last number is 1.
    """

    vectors_nd: Floats32
    items_n: Ints


class IndexReader(Protocol):
    """An open index, ready to propose candidates."""

    def search(self, queries_ud: Floats32, depth: int) -> ItemSets:
        """Return each query's candidates, as ascending indices.

        A query has at least `depth` candidates, if the index can find so many.
        """

    def limit_candidates(self, depth: int) -> int:
        """Return the most candidates per query; they bound task memory."""

    @property
    def cut_items(self) -> int:
        """Return how many entries large buckets have left out."""


class IndexBuilder(Protocol):
    """Builds and opens indexes with fixed settings."""

    def build(self, items: IndexedItems, folder: Path) -> None:
        """Write the index's files into an empty folder."""

    def read(self, folder: Path) -> IndexReader:
        """Open the files; large arrays are memory-mapped."""


def count_bytes(folder: Path) -> int:
    """Return the index's size in bytes.

    The list which a host keeps about its files does not count.
    """
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != SEAL)
    return sum(path.stat().st_size for path in files)
