"""Look-up of item ids on workers: one sorted array of ids per host, without Spark and torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.dataset as ds

from recbench_spark.config import digest
from recbench_spark.kernels.arrays import Ints
from recbench_spark.schemas import ITEMS
from recbench_spark.storage import shared_arrays
from recbench_spark.storage.file_tables import FileTables
from recbench_spark.storage.shared_arrays import SharedRows


def find_shared_items(store: FileTables, split_id: str) -> SharedRows | None:
    """Return the files of a split's catalogue, which workers map; None where Spark must read the table."""
    files = store.list_partition_files(ITEMS, {"split_id": split_id}, max_bytes=math.inf)
    return SharedRows(digest(files, length=32), tuple(files)) if files else None


@dataclass(frozen=True)
class KnownItems:
    """The catalogue as workers see it; `rows` has item_id, n_train, and item_index.

    numeric: None: rows have item_index. Else workers number the rows like `protocol.catalogue.index_items`,
    by their ids as numbers (True) or as UTF-8 (False).
    """

    rows: SharedRows
    n_items: int
    numeric: bool | None = None

    def build(self, rows: ds.Dataset, folder: Path) -> None:
        """Write the rows into arrays in the order of ids: 16 bytes per item, and its id."""
        names = ["item_id", "n_train", *(["item_index"] if self.numeric is None else [])]
        table = rows.to_table(columns=names).sort_by("item_id")
        ids = table.column("item_id").to_pylist()
        shared_arrays.save_array(folder, "ids", np.array([text.encode() for text in ids], dtype="S"))
        shared_arrays.save_array(folder, "n_train", table.column("n_train").to_numpy().astype(np.int64))
        shared_arrays.save_array(folder, "item_index", self._index(table))

    def _index(self, by_bytes: pa.Table) -> Ints:
        """Return the index of each item in the order that decides ties, (i,)."""
        if self.numeric is None:
            index: Ints = by_bytes.column("item_index").to_numpy().astype(np.int64)
            return index
        ids, places = by_bytes.column("item_id"), np.arange(len(by_bytes))
        if self.numeric:
            places[np.argsort(ids.cast(pa.int64()).to_numpy())] = np.arange(len(ids))
        return places

    def ids(self) -> npt.NDArray[np.bytes_]:
        """Return the ids as UTF-8, by item_index, (i,)."""
        arrays = self.rows.arrays(self.build)
        by_index = np.empty_like(arrays["ids"])
        by_index[arrays["item_index"]] = arrays["ids"]
        return by_index

    def find(self, ids: pa.Array) -> tuple[Ints, Ints]:
        """Return each id's item_index, or -1, and its training rows, or 0, (n,) each."""
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
