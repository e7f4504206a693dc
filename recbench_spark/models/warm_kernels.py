"""Call of each kernel for vectors of prefixes and for near items, to compile it."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from recbench_spark.models import prefix_fold_in as fold_in
from recbench_spark.models.nearest_items import cosine_neighbours


def warm() -> None:
    """Fold in one user's two items in each way, and find neighbours of one item."""
    offsets, items, ones = np.array([0, 2]), np.arange(2), np.ones(2)
    one_user = SimpleNamespace(indptr=np.array([0, 1]), indices=np.zeros(1, np.int32))
    cosine_neighbours(one_user, one_user, np.ones(1, np.int64), range(1), 1)
    ridge_n = fold_in.ridge_per_rating(1.0, 2)
    for dtype in (np.float32, np.float64):
        vectors_id = np.ones((2, 3), dtype)
        spectrum = fold_in.decompose_items(vectors_id)
        fold_in.fold_in_prefixes(offsets, items, ones, vectors_id, ridge_n)
        fold_in.fold_in_implicit_prefixes(
            offsets, items, ones, vectors_id, spectrum, ridge_n=ridge_n, alpha=1.0
        )
        fold_in.fold_in_ials_prefixes(offsets, items, vectors_id, spectrum, ridge_n)
