"""Compute the hashes for random splits, of the rows that a task holds."""

from __future__ import annotations

from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recbench_spark.kernels.splits.labels import Hashes
from recbench_spark.protocol.positions import id_column


class Draws:
    """Hashes of each row's ids under a seed, as in `randomness.hashed`, computed only on demand.

    The label of a row does not depend on how its log is stored: ids are hashed as texts.
    """

    def __init__(self, rows: pa.Table, seed: int) -> None:
        self._rows, self._seed = rows, seed

    @cached_property
    def pairs(self) -> Hashes:
        """Return the hash of (user, item)."""
        return self._hash_columns("user_id", "item_id")

    @cached_property
    def deal_hashes(self) -> Hashes:
        """Return the hash of (user, item, `deal`), which differs from the one that orders the rows."""
        return self._hash_columns("user_id", "item_id", word=b"deal")

    def ids(self, of: Literal["users", "items"]) -> Hashes:
        """Return the hash of each row's user or item."""
        return self._hash_columns(f"{of[:-1]}_id")

    @staticmethod
    def places(hashes_r: Hashes) -> npt.NDArray[np.float64]:
        """Return numbers in [0, 1) with 53 random bits, as in `randomness.uniform`."""
        return (hashes_r >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def _hash_columns(self, *names: str, word: bytes = b"") -> Hashes:
        # Imported here, because numba takes half a second to load and temporal splits need no hashes.
        from recbench_spark.kernels import hashing  # noqa: PLC0415
        from recbench_spark.kernels.hashed_ids import hash_encoded  # noqa: PLC0415

        hashes_r = hash_encoded(id_column(self._rows, names[0]))
        for name in names[1:]:
            hashes_r = hash_encoded(id_column(self._rows, name), hashes_r)
        if word:
            hashes_r = hashing.hash_bytes(word, hashes_r)
        return hashing.hash_bytes(self._seed.to_bytes(8, "little", signed=True), hashes_r)
