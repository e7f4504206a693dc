"""Models as references for tasks; a host's workers share arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, Literal, Protocol, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from recbench_spark.core.arrays import Floats, Ints
from recbench_spark.ranking.kernels.scorers import (
    DotScorer,
    HashScorer,
    NeighbourScorer,
    Scorer,
    centring_bias,
)
from recbench_spark.ranking.known_items import KnownItems
from recbench_spark.storage import shared_arrays
from recbench_spark.storage.shared_arrays import Arrays, SharedRows

Strings = npt.NDArray[np.bytes_]
OPEN_MODELS = 2
"""Scorers cached by a worker: a night evaluates one model after the other, one part after the other."""


class Source(Protocol):
    """A model for tasks: its scorer and original item ids."""

    @property
    def wants_history(self) -> bool:
        """Tell whether the model knows a user by history."""

    @property
    def dims(self) -> int:
        """Return how long users' vectors are; 0: there are none."""

    def scorer(self) -> Scorer:
        """Return the model over shared arrays, opened once per worker."""

    def item_ids(self) -> Strings:
        """Return original item ids as UTF-8, by item_index, (i,)."""


@dataclass(frozen=True)
class DotSource:
    """Item vectors and biases, with or without a catalogue.

    `rows` has item_index, item_id, vector, bias (NULL: not scored). With a `catalogue` the rows come from
    the table `embeddings` (id, vector, bias), or from a fit's file, with item_id. Ids are looked up, and
    items outside the catalogue are left out.
    """

    rows: SharedRows
    n_items: int
    dims: int
    kind: Literal["dot", "cosine"] = "dot"
    catalogue: KnownItems | None = None

    wants_history: ClassVar[bool] = False

    def scorer(self) -> Scorer:
        """Return the scorer, as in `Source`."""
        return _dot_scorer(self)

    def item_ids(self) -> Strings:
        """Return the item ids, as in `Source`."""
        return cast(Strings, self.rows.arrays(self.build)["item_ids"])

    def build(self, rows: ds.Dataset, folder: Path) -> None:
        """Write the rows as arrays by item_index.

        The arrays take 4 dims + 9 bytes per item, and its id.
        """
        vectors = shared_arrays.create_array(folder, "vectors", (self.n_items, self.dims), np.float32)
        bias = shared_arrays.create_array(folder, "bias", (self.n_items,), np.float64)
        scored = shared_arrays.create_array(folder, "scored", (self.n_items,), np.bool_)
        item = next(name for name in ("item_index", "id", "item_id") if name in rows.schema.names)
        for batch in rows.to_batches(columns=[item, "vector", "bias"]):
            known = batch.filter(pc.is_valid(batch.column("vector")))
            if self.catalogue:
                index = self.catalogue.find(known.column(item))[0]
                known, index = known.filter(pa.array(index >= 0)), index[index >= 0]
            else:
                index = known.column("item_index").to_numpy()
            values = shared_arrays.flatten_lists(known.column("vector"))[1]
            vectors[index] = values.reshape(len(index), self.dims)
            bias[index] = known.column("bias").fill_null(0.0).to_numpy(zero_copy_only=False)
            scored[index] = True
        if self.catalogue:
            shared_arrays.save_array(folder, "item_ids", self.catalogue.ids())
        else:
            _save_ids(rows, self.n_items, folder)

    def share(self, make: Callable[[], Arrays]) -> Arrays:
        """Return arrays that the first worker of a host makes."""

        def build(_: ds.Dataset, folder: Path) -> None:
            for name, array in make().items():
                shared_arrays.save_array(folder, name, array)

        return SharedRows(f"{self.rows.key}-{self.kind}-tiles", self.rows.files).arrays(build)


@lru_cache(maxsize=OPEN_MODELS)
def _dot_scorer(source: DotSource) -> Scorer:
    arrays = source.rows.arrays(source.build)
    return DotScorer(arrays["vectors"], arrays["bias"], arrays["scored"], source.kind, source.share)


@dataclass(frozen=True)
class NeighbourSource:
    """Item-to-item weights; items without training rows are not scored.

    Attributes:
        rows: item_id, neighbour_id, weight.
        n_items: catalogue size.
        catalogue: the items.
        counts: item_id, users: how many users have each item, and how many there are (item_id NULL), to be
            added. They give the mean with which a history's entries are compared; None: 0.
    """

    rows: SharedRows
    n_items: int
    catalogue: KnownItems
    counts: SharedRows | None = None

    wants_history: ClassVar[bool] = True
    dims: ClassVar[int] = 0

    def scorer(self) -> Scorer:
        """Return the scorer, as in `Source`."""
        return _neighbour_scorer(self)

    def item_ids(self) -> Strings:
        """Return the item ids, as in `Source`."""
        return self.catalogue.ids()

    @property
    def arrays_name(self) -> SharedRows:
        """Name a host's arrays; counts change the name."""
        return SharedRows(f"{self.rows.key}-{self.counts.key if self.counts else 'sum'}", self.rows.files)

    def build(self, rows: ds.Dataset, folder: Path) -> None:
        """Write the similarities as CSR by the history's item.

        The similarities take 16 bytes per pair, 8 bytes per item.
        """
        neighbours, items, weights = self._read_pairs(rows)
        order = np.argsort(neighbours.astype(np.int64) * self.n_items + items)  # a pair stands once
        items, weights = items[order].astype(np.int64), weights[order]
        sizes = np.bincount(neighbours, minlength=self.n_items)
        offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        shared_arrays.save_array(folder, "offsets", offsets)
        shared_arrays.save_array(folder, "items", items)
        shared_arrays.save_array(folder, "weights", weights)
        bias = np.zeros(self.n_items)
        if self.counts:
            bias = centring_bias(self._means(self.counts), offsets, items, weights)
        shared_arrays.save_array(folder, "bias", bias)
        shared_arrays.save_array(folder, "scored", self.catalogue.counts() > 0)

    def _read_pairs(self, rows: ds.Dataset) -> tuple[Ints, Ints, Floats]:
        """Return each pair's neighbour index, item index and weight, (n,)."""
        ids, weights = [np.empty((2, 0), np.int32)], [np.empty(0)]
        for batch in rows.to_batches(columns=["neighbour_id", "item_id", "weight"]):
            index = np.stack(
                [self.catalogue.find(column)[0].astype(np.int32) for column in batch.columns[:2]]
            )
            known = (index >= 0).all(axis=0)
            ids.append(index[:, known])
            weights.append(batch.column("weight").to_numpy()[known])
        neighbours, items = np.concatenate(ids, axis=1)
        return neighbours, items, np.concatenate(weights)

    def _means(self, counts: SharedRows) -> Floats:
        """Return the share of users with each item, (i,).

        Only relevant training rows count.
        """
        users_i, users = np.zeros(self.n_items), 0
        for batch in counts.dataset().to_batches():
            index = self.catalogue.find(batch.column("item_id").fill_null(""))[0]
            is_total = batch.column("item_id").is_null().to_numpy(zero_copy_only=False)
            users_r = batch.column("users").to_numpy()
            users += int(users_r[is_total].sum())
            known = (index >= 0) & ~is_total
            np.add.at(users_i, index[known], users_r[known])
        return users_i / max(users, 1)


@lru_cache(maxsize=OPEN_MODELS)
def _neighbour_scorer(source: NeighbourSource) -> Scorer:
    arrays = source.arrays_name.arrays(source.build)
    names = ("offsets", "items", "weights", "bias", "scored")
    return NeighbourScorer(*(arrays[name] for name in names))


@dataclass(frozen=True)
class HashSource:
    """A random model; `rows` has item_index and item_id."""

    rows: SharedRows
    n_items: int
    seed: int

    wants_history: ClassVar[bool] = False
    dims: ClassVar[int] = 0

    def scorer(self) -> Scorer:
        """Return the scorer, as in `Source`."""
        return HashScorer(np.arange(self.n_items), self.seed)

    def item_ids(self) -> Strings:
        """Return the item ids, as in `Source`."""
        build = lambda rows, folder: _save_ids(rows, self.n_items, folder)  # noqa: E731
        return cast(Strings, self.rows.arrays(build)["item_ids"])


def _save_ids(rows: ds.Dataset, n_items: int, folder: Path) -> None:
    """Write ids as fixed-width bytes, memory-mapped without pickle."""
    longest = max((_longest_id(batch) for batch in _ids(rows)), default=1)
    ids = shared_arrays.create_array(folder, "item_ids", (n_items,), f"S{max(longest, 1)}")
    for batch in _ids(rows):
        index = batch.column("item_index").to_numpy()
        ids[index] = np.array([text.encode() for text in batch.column("item_id").to_pylist()])


def _ids(rows: ds.Dataset) -> Iterator[pa.RecordBatch]:
    batches = rows.to_batches(columns=["item_index", "item_id"])
    return (batch for batch in batches if batch.num_rows)


def _longest_id(batch: pa.RecordBatch) -> int:
    return int(pc.max(pc.binary_length(batch.column("item_id"))).as_py())


def ids_to_lists(item_ids: Strings, top_items_uk: npt.NDArray[np.int64]) -> pa.Array:
    """Return lists of original ids from padded item indices.

    The padding is -1.
    """
    listed = top_items_uk >= 0
    offsets = np.concatenate([[0], np.cumsum(listed.sum(axis=1))]).astype(np.int32)
    texts = pa.array(item_ids[top_items_uk[listed]], pa.binary()).cast(pa.string())
    return pa.ListArray.from_arrays(pa.array(offsets), texts)
