"""The one interface of indexes: files made from item vectors, and candidates of a block of users.

An index holds the scored items of one part of the catalogue, in the order of their indices. It only
proposes candidates; `retrieval.search` orders them by exact score. What an index returns must depend on the
query alone, not on the other queries of its block: tasks cut users differently.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, Protocol

from recbench_spark.core.arrays import Floats32, Ints
from recbench_spark.retrieval.kernels.candidates import ItemSets
from recbench_spark.storage.seals import SEAL


class IndexedItems(NamedTuple):
    """Items of one part: `vectors_nd` float32 as the index multiplies them, `items_n` ascending indices.

    A bias is one more dimension, and the query's last number is then 1.
    """

    vectors_nd: Floats32
    items_n: Ints


class IndexReader(Protocol):
    """An index that was read from its files."""

    def search(self, queries_ud: Floats32, depth: int) -> ItemSets:
        """Return candidates of each query, ascending indices; at least `depth` if it can."""

    def limit_candidates(self, depth: int) -> int:
        """Return the largest number of candidates that a query may have: they bound a task's memory."""

    @property
    def cut_items(self) -> int:
        """Return the entries of items that were left out of large buckets."""


class IndexBuilder(Protocol):
    """Settings that can make and read an index."""

    def build(self, items: IndexedItems, folder: Path) -> None:
        """Write the index's files into an empty folder."""

    def read(self, folder: Path) -> IndexReader:
        """Open the files; large arrays are mapped."""


def count_bytes(folder: Path) -> int:
    """Return the bytes of an index's files, without the list that a host keeps of its files."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != SEAL)
    return sum(path.stat().st_size for path in files)
