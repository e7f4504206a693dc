"""Indexes from the library faiss: exact, inverted lists, and HNSW graphs.

Each task uses one thread. Distances for single queries are computed without matrix products, so a query
gets the same candidates in every block.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from recbench_spark.core.arrays import Floats32, Ints
from recbench_spark.core.extras import install_command
from recbench_spark.core.hashing import hash_longs, start
from recbench_spark.errors import ConfigError, MissingError
from recbench_spark.ranking.kernels.products import error_bounds, lengths
from recbench_spark.retrieval.interface import IndexedItems
from recbench_spark.retrieval.kernels.candidates import ItemSets
from recbench_spark.retrieval.settings import FlatIndexSettings, GraphIndexSettings, InvertedIndexSettings

INSTALL = f"{install_command('retrieval')}, on the driver and on the workers"
INDEX_FILE, ITEMS_FILE = "index.faiss", "items.npy"
NEVER = 2**31 - 1
"""Number of queries from which faiss multiplies matrices: never. Sums of such products depend on the
block's shape."""

MATRIX_QUERIES = 20
"""Number of queries from which faiss multiplies matrices by default."""
EXTRA = 8
"""Rows beyond the depth in the first search of a flat index."""

FaissSettings = FlatIndexSettings | InvertedIndexSettings | GraphIndexSettings


def load_faiss() -> Any:
    """Return faiss, set to one thread and block-independent sums.

    Raises:
        MissingError: faiss is not installed.
    """
    faiss = _import_faiss()
    faiss.omp_set_num_threads(1)
    return faiss


@cache
def _import_faiss() -> Any:
    """Import faiss and turn its matrix products off.

    Only `multiply_matrices` turns them on again, for a while.
    """
    try:
        faiss = import_module("faiss")
    except ImportError as error:
        raise MissingError(f"this kind of index needs the library faiss: {error}", INSTALL) from None
    faiss.cvar.distance_compute_blas_threshold = NEVER
    return faiss


@contextmanager
def multiply_matrices(faiss: Any) -> Iterator[None]:
    """Let faiss multiply matrices where blocks change no result."""
    faiss.cvar.distance_compute_blas_threshold = MATRIX_QUERIES
    try:
        yield
    finally:
        faiss.cvar.distance_compute_blas_threshold = NEVER


@dataclass(frozen=True)
class FaissBuilder:
    """Builds faiss indexes in files and opens them.

    The index has faiss's own format. A second file beside it maps its rows to item indices.
    """

    settings: FaissSettings

    def build(self, items: IndexedItems, folder: Path) -> None:
        """Train the index, add the items in order, write files.

        Raises:
            MissingError: faiss is not installed.
            ConfigError: there are more cells than items.
        """
        faiss = load_faiss()
        with multiply_matrices(faiss):
            index = self._make_index(faiss, items)
            index.add(np.ascontiguousarray(items.vectors_nd))
        faiss.write_index(index, str(folder / INDEX_FILE))
        np.save(folder / ITEMS_FILE, items.items_n)

    def read(self, folder: Path) -> FaissReader:
        """Open the files.

        Raises:
            MissingError: faiss is not installed.
        """
        faiss = load_faiss()
        flags = faiss.IO_FLAG_READ_ONLY | faiss.IO_FLAG_MMAP_IFC
        if isinstance(self.settings, InvertedIndexSettings):
            flags = faiss.IO_FLAG_READ_ONLY | faiss.IO_FLAG_MMAP
        index = faiss.read_index(str(folder / INDEX_FILE), flags)
        if isinstance(self.settings, InvertedIndexSettings):
            # By default each search starts 32 threads to read cells ahead of it.
            faiss.downcast_InvertedLists(index.invlists).prefetch_nthread = 0
        return FaissReader(index, np.load(folder / ITEMS_FILE, mmap_mode="r"), self.settings)

    def _make_index(self, faiss: Any, items: IndexedItems) -> Any:
        dims = items.vectors_nd.shape[1]
        if isinstance(self.settings, FlatIndexSettings):
            return faiss.IndexFlatIP(dims)
        if isinstance(self.settings, GraphIndexSettings):
            index = faiss.IndexHNSWFlat(dims, self.settings.links, faiss.METRIC_INNER_PRODUCT)
            index.hnsw.efConstruction = self.settings.built_with
            return index
        cells = find_cells(self.settings, len(items.items_n))
        quantizer = faiss.IndexFlatIP(dims)
        quantizer.add(train_centroids(faiss, items, cells, self.settings))
        index = faiss.IndexIVFFlat(quantizer, dims, cells, faiss.METRIC_INNER_PRODUCT)
        index.own_fields, index.is_trained = True, True
        quantizer.this.disown()
        return index


def find_cells(settings: InvertedIndexSettings, items: int) -> int:
    """Return how many cells a partition with so many items gets.

    Raises:
        ConfigError: there are more cells than items.
    """
    if settings.cells == "auto":
        return max(1, min(items, round(4 * math.sqrt(items))))
    if settings.cells > items:
        raise ConfigError(
            f"index {settings.name}: {settings.cells} cells for {items} items of a part",
            "give fewer cells, or `cells: auto`",
        )
    return int(settings.cells)


def train_centroids(
    faiss: Any, items: IndexedItems, cells: int, settings: InvertedIndexSettings
) -> Floats32:
    """Return unit-length centroids, (cells, dims), trained on a sample.

    A hash of the item index draws the sample.
    """
    size = max(cells, min(settings.sample, len(items.items_n)))
    order = np.argsort(hash_longs(items.items_n, start(len(items.items_n))), kind="stable")
    sample = np.ascontiguousarray(items.vectors_nd[np.sort(order[:size])])
    trainer = faiss.Kmeans(
        sample.shape[1], cells, seed=settings.seed, spherical=True, min_points_per_centroid=1,
        max_points_per_centroid=size,
    )  # fmt: skip
    trainer.train(sample)
    centroids = np.asarray(trainer.centroids, np.float32)
    length_c = np.linalg.norm(centroids, axis=1, keepdims=True)
    return (centroids / np.where(length_c > 0.0, length_c, 1.0)).astype(np.float32)


@dataclass(frozen=True)
class FaissReader:
    """Searches one faiss index and turns its rows into items."""

    index: Any
    items_n: Ints
    settings: FaissSettings

    cut_items: ClassVar[int] = 0

    def limit_candidates(self, depth: int) -> int:
        """Return the most candidates one query can get.

        A flat index may return all items, because all may tie.
        """
        return len(self.items_n) if isinstance(self.settings, FlatIndexSettings) else depth

    def search(self, queries_ud: Floats32, depth: int) -> ItemSets:
        """Return each query's first `depth` items, in ascending order.

        A query has fewer items where the index finds fewer.
        """
        queries = np.ascontiguousarray(queries_ud)
        if isinstance(self.settings, FlatIndexSettings):
            rows_u = [np.sort(row) for row in self._search_exactly(queries, depth)]
            sizes = np.array([len(row) for row in rows_u], np.int64)
            rows = np.concatenate([np.zeros(0, np.int64), *rows_u])
        else:
            rows_uk = np.sort(self._search(queries, depth)[1], axis=1)  # -1 where there are fewer
            sizes, rows = (rows_uk >= 0).sum(axis=1), rows_uk[rows_uk >= 0]
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        return ItemSets(offsets, np.asarray(self.items_n[rows], np.int32))

    def _search(self, queries_ud: Floats32, depth: int) -> tuple[Floats32, Ints]:
        depth = min(depth, len(self.items_n))
        parameters = self._make_parameters(depth)
        products_uk, rows_uk = self.index.search(queries_ud, depth, params=parameters)
        return products_uk, rows_uk

    def _search_exactly(self, queries_ud: Floats32, depth: int) -> list[Ints]:
        """Return rows certain to hold each query's exact first `depth`.

        A search goes deeper until the last product lies below the product at place `depth` by more than
        both errors.
        """
        rows_u: list[Ints] = [np.arange(len(self.items_n))] * len(queries_ud)
        length_u = lengths(queries_ud)
        bound_u = error_bounds(length_u, self.longest, 0.0, queries_ud.shape[1])
        users, room = np.arange(len(queries_ud)), depth + EXTRA
        while len(users) and room < len(self.items_n):
            with multiply_matrices(load_faiss()):  # the bound holds for sums in any order
                products_uk, rows_uk = self._search(queries_ud[users], room)
            with np.errstate(invalid="ignore"):
                sure_u = products_uk[:, depth - 1] - products_uk[:, -1] > 2.0 * bound_u[users]
            sure_u &= (rows_uk >= 0).all(axis=1)  # faiss leaves out products which are not finite
            for row in np.flatnonzero(sure_u):
                rows_u[users[row]] = rows_uk[row]
            users, room = users[~sure_u], 4 * room
        return rows_u

    @cached_property
    def longest(self) -> float:
        """Length of the longest vector in a flat index."""
        vectors = load_faiss().rev_swig_ptr(self.index.get_xb(), self.index.ntotal * self.index.d)
        return float(lengths(vectors.reshape(-1, self.index.d)).max())

    def _make_parameters(self, depth: int) -> Any:
        faiss = load_faiss()
        if isinstance(self.settings, InvertedIndexSettings):
            return faiss.SearchParametersIVF(nprobe=min(self.settings.probes, self.index.nlist))
        if isinstance(self.settings, GraphIndexSettings):
            return faiss.SearchParametersHNSW(efSearch=max(self.settings.candidates, depth))
        return None
