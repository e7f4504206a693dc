"""The catalogue as workers look ids up in it: one sorted array of ids a host. Without Spark and torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.dataset as ds

from recbench_spark import shared_files
from recbench_spark.kernels.arrays import Ints
from recbench_spark.shared_files import SharedRows


@dataclass(frozen=True)
class KnownItems:
    """The catalogue as workers see it; `rows` has item_index, item_id, n_train."""

    rows: SharedRows
    n_items: int

    def build(self, rows: ds.Dataset, folder: Path) -> None:
        """Stream the rows into arrays by the order of ids: 16 bytes an item, and its id."""
        table = rows.to_table(columns=["item_id", "item_index", "n_train"]).sort_by("item_id")
        ids = table.column("item_id").to_pylist()
        shared_files.save(folder, "ids", np.array([text.encode() for text in ids], dtype="S"))
        for name in ("item_index", "n_train"):
            shared_files.save(folder, name, table.column(name).to_numpy().astype(np.int64))

    def ids(self) -> npt.NDArray[np.bytes_]:
        """(i,) the ids as UTF-8, by item_index."""
        arrays = self.rows.arrays(self.build)
        by_index = np.empty_like(arrays["ids"])
        by_index[arrays["item_index"]] = arrays["ids"]
        return by_index

    def find(self, ids: pa.Array) -> tuple[Ints, Ints]:
        """(n,) of each id its item_index, or -1, and its training rows, or 0."""
        arrays = self.rows.arrays(self.build)
        codes = ids.dictionary_encode()
        wanted = np.array([text.encode() for text in codes.dictionary.to_pylist()], dtype="S")
        known = arrays["ids"]
        place = np.minimum(np.searchsorted(known, wanted), max(len(known) - 1, 0))
        there = known[place] == wanted if len(known) else np.zeros(len(wanted), bool)
        code_n = codes.indices.to_numpy()
        if not len(known):
            return np.full(len(code_n), -1), np.zeros(len(code_n), np.int64)
        index, n_train = np.where(there, arrays["item_index"][place], -1), arrays["n_train"][place]
        return index[code_n], np.where(there, n_train, 0)[code_n]
