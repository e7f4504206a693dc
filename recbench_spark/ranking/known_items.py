"""Look-up of item ids: one sorted array per host.

Needs neither Spark nor torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from recbench_spark.config import digest
from recbench_spark.core.arrays import Ints
from recbench_spark.schemas import ITEMS
from recbench_spark.storage import shared_arrays
from recbench_spark.storage.blocks import PieceRows, Rows
from recbench_spark.storage.file_tables import FileTables
from recbench_spark.storage.shared_arrays import SharedRows

ITEM_COLUMNS = ("item_id", "item_index", "n_train")


def share_items(store: FileTables, split_id: str) -> SharedRows:
    """Share a split's catalogue (ITEM_COLUMNS) with workers."""
    return share_rows(store.open_rows(ITEMS, "split_id", [split_id]), ITEM_COLUMNS, store.scratch)


def share_rows(rows: Rows, columns: Sequence[str], scratch: str) -> SharedRows:
    """Return rows as files readable by all workers.

    The files are the table's own, or a copy where only Spark can read. The key names the files: another
    warehouse may hold other rows under the same name.
    """
    if isinstance(rows, PieceRows):
        return SharedRows(digest(rows.files, length=32), rows.files)

    from recbench_spark.storage import frame_blocks  # noqa: PLC0415

    frame: Any = rows
    return frame_blocks.share_rows(scratch, frame.frame.select(*columns))


@dataclass(frozen=True)
class KnownItems:
    """The catalogue as workers see it, built from `rows`.

    Attributes:
        rows: item_id, n_train, and item_index where rows have one.
        numeric: None: rows have item_index. Else workers number the rows as `item_counts.number_items`
            does, by their ids as numbers (True) or as UTF-8 (False).
        trained: only items with training rows count, and they are numbered without a look at others.
    """

    rows: SharedRows
    n_items: int
    numeric: bool | None = None
    trained: bool = False

    def build(self, rows: ds.Dataset, folder: Path) -> None:
        """Write the rows as arrays in id order.

        The arrays take 16 bytes per item, and its id.
        """
        names = ["item_id", "n_train", *(["item_index"] if self.numeric is None else [])]
        chosen = pc.field("n_train") > 0 if self.trained else None
        table = rows.to_table(columns=names, filter=chosen).sort_by("item_id")
        ids = table.column("item_id").to_pylist()
        shared_arrays.save_array(folder, "ids", np.array([text.encode() for text in ids], dtype="S"))
        shared_arrays.save_array(folder, "n_train", table.column("n_train").to_numpy().astype(np.int64))
        shared_arrays.save_array(folder, "item_index", self._index(table))

    def _index(self, by_bytes: pa.Table) -> Ints:
        """Return each item's index in the tie-breaking order, (i,)."""
        if self.numeric is None:
            index: Ints = by_bytes.column("item_index").to_numpy().astype(np.int64)
            return np.argsort(np.argsort(index)) if self.trained else index
        ids, places = by_bytes.column("item_id"), np.arange(len(by_bytes))
        if self.numeric:
            places[np.argsort(ids.cast(pa.int64()).to_numpy())] = np.arange(len(ids))
        return places

    def ids(self) -> npt.NDArray[np.bytes_]:
        """Return the ids as UTF-8, by item_index, (i,)."""
        return self._order("ids")

    def counts(self) -> Ints:
        """Return each item's training rows, by item_index, (i,)."""
        return self._order("n_train")

    def popularity(self) -> shared_arrays.Arrays:
        """Return training rows, and places by popularity, mapped: see `metrics.listed.ItemLookup`."""
        return SharedRows(f"{self.rows.key}-popularity", self.rows.files).arrays(self._save_popularity)

    def _save_popularity(self, _: ds.Dataset, folder: Path) -> None:
        for name, values in order_popularity(self.counts()).items():
            shared_arrays.save_array(folder, name, values)

    def _order(self, name: str) -> npt.NDArray[Any]:
        arrays = self.rows.arrays(self.build)
        by_index = np.empty_like(arrays[name])
        by_index[arrays["item_index"]] = arrays[name]
        return by_index

    def find(self, ids: pa.Array) -> tuple[Ints, Ints]:
        """Return each id's item_index and training rows, (n,) each.

        An unknown id has -1 and 0.
        """
        arrays = self.rows.arrays(self.build)
        codes = ids.dictionary_encode()
        texts = np.array([text.encode() for text in codes.dictionary.to_pylist()], dtype="S")
        known = arrays["ids"]
        place = np.minimum(np.searchsorted(known, texts), max(len(known) - 1, 0))
        is_known = known[place] == texts if len(known) else np.zeros(len(texts), bool)
        code_n = codes.indices.to_numpy()
        if not len(known):
            return np.full(len(code_n), -1), np.zeros(len(code_n), np.int64)
        index, n_train = np.where(is_known, arrays["item_index"][place], -1), arrays["n_train"][place]
        return index[code_n], np.where(is_known, n_train, 0)[code_n]


def order_popularity(n_train_i: Ints) -> dict[str, Ints]:
    """Return training rows, and places and ranks by popularity, as arrays by name."""
    place_i = np.empty_like(n_train_i)
    place_i[np.argsort(-n_train_i, kind="stable")] = np.arange(len(n_train_i))
    rank_i = np.unique(-n_train_i, return_inverse=True)[1] + 1
    return {"n_train": n_train_i, "place": place_i, "rank": rank_i}
