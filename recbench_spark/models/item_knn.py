"""Find item-based nearest neighbours (Deshpande and Karypis, TOIS 2004) on a user x item matrix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class SimilarItems:
    """SimilarItems are the most similar items of a block of items: n rows, by item, then falling weight.

    Attributes:
        items: (n,) the item whose score is raised.
        neighbours: (n,) the item in the history that raises it.
        weights: (n,) cosine similarity.
    """

    items: npt.NDArray[np.int64]
    neighbours: npt.NDArray[np.int64]
    weights: npt.NDArray[np.float64]


def cosine_neighbours(
    items_by_users: Any, users_by_items: Any, n_i: npt.NDArray[np.int64], block: range, k: int
) -> SimilarItems:
    """Return the k items j != i of largest s_ij = |U_i and U_j| / sqrt(n_i n_j) for each item i of a block.

    Equal similarities go to the smaller item index. They are equal numbers where their squares are equal
    fractions: 3 / sqrt(13 * 18) and 1 / sqrt(13 * 2), divided by roots, differ in the last bit. So the root
    is taken of |U_i and U_j|^2 / (n_i n_j), which float64 rounds by its value alone.

    Args:
        items_by_users: (items, users) binary CSR matrix.
        users_by_items: (users, items) binary CSR matrix, its transpose.
        n_i: (items,) users of each item.
        block: items whose neighbours are computed.
        k: neighbours of each item.
    """
    common = (items_by_users[block.start : block.stop] @ users_by_items).tocsr()
    rows = np.repeat(np.arange(block.start, block.stop), np.diff(common.indptr))
    columns = common.indices.astype(np.int64)
    other = rows != columns
    rows, columns, counts = rows[other], columns[other], common.data[other]
    weights = np.sqrt(
        _divide_exactly(counts.astype(np.int64) ** 2, n_i[rows].astype(np.int64) * n_i[columns])
    )
    order = np.lexsort((columns, -weights, rows))
    rows, columns, weights = rows[order], columns[order], weights[order]
    place = np.arange(len(rows)) - np.searchsorted(rows, rows, side="left")
    nearest = place < k
    return SimilarItems(rows[nearest], columns[nearest], weights[nearest])


EXACT = 1 << 53
"""Whole numbers below it are exact in float64."""


def _divide_exactly(
    above_n: npt.NDArray[np.int64], below_n: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    """Divide whole numbers so that equal fractions give equal float64 numbers.

    Large ones are reduced first.
    """
    large = below_n >= EXACT
    if large.any():
        divisor = np.gcd(above_n[large], below_n[large])
        above_n, below_n = above_n.copy(), below_n.copy()
        above_n[large] //= divisor
        below_n[large] //= divisor
    quotient_n: npt.NDArray[np.float64] = above_n / below_n
    return quotient_n


def normalise_weights(similar: SimilarItems) -> SimilarItems:
    """Divide the weights of each item by their sum: s_ij / sum_j s_ij."""
    sums = np.bincount(similar.items, similar.weights) if len(similar.items) else np.zeros(0)
    return SimilarItems(similar.items, similar.neighbours, similar.weights / sums[similar.items])


def centring_bias(
    mean_i: npt.NDArray[np.float64],
    offsets_j: npt.NDArray[np.int64],
    items_n: npt.NDArray[np.int64],
    weights_n: npt.NDArray[np.float64],
) -> npt.NDArray[np.float64]:
    """Return (i,) b_i = mean_i - sum_j s_ij mean_j, so that sum_j s_ij r_uj + b_i is the centred score.

    It is the part of mean_i + sum_j s_ij (r_uj - mean_j) that does not depend on the user.

    Args:
        mean_i: (i,) mean of each item's column over all users.
        offsets_j: (i + 1,) bounds of row j: the items that have item j as a neighbour.
        items_n: (n,) these items.
        weights_n: (n,) similarities s_ij.
    """
    expected_n = np.repeat(mean_i, np.diff(offsets_j)) * weights_n
    # Terms are added by size, so that items with the same terms in another order have the same sum.
    order_n = np.lexsort((expected_n, items_n))
    return mean_i - np.bincount(items_n[order_n], expected_n[order_n], minlength=len(mean_i))


def binary_matrix(indptr: npt.NDArray[np.int64], indices: npt.NDArray[np.int32], n_items: int) -> Any:
    """Return a user x item CSR matrix of ones from its row bounds and item indices.

    Its type is int32, because sums of ones in float32 stop growing at 2^24 users.
    """
    from scipy import sparse  # noqa: PLC0415 (takes half a second, and few runs need it)

    ones = np.ones(len(indices), dtype=np.int32)
    return sparse.csr_matrix((ones, indices, indptr), shape=(len(indptr) - 1, n_items))
