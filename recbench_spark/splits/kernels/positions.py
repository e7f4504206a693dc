"""Find rows' places in their group's order.

Rows are sorted by one combined key if possible.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from recbench_spark.core.arrays import Ints


def positions_from_end(
    groups_r: Ints, keys_r: Ints, ties_r: Ints, *, once: bool = False
) -> tuple[Ints, Ints, Ints]:
    """Sort rows, and count their places from their group's end.

    Args:
        groups_r: (r,) each row's group, from 0.
        keys_r: (r,) each row's sort key.
        ties_r: (r,) second sort key, for equal keys.
        once: true if rows with equal keys share one place, which counts once.

    Returns:
        order_o, the rows in order of (group, key, tie); position_o from 1, and n_o, the group's size, in
        that order.

    >>> order, position, n = positions_from_end(np.array([0, 1, 0]), np.array([9, 5, 5]), np.zeros(3))
    >>> order.tolist(), position.tolist(), n.tolist()
    ([2, 0, 1], [2, 1, 1], [2, 2, 1])
    """
    order_o = ascending(groups_r, keys_r, ties_r)
    n_g = np.bincount(groups_r)
    position_o = np.repeat(np.cumsum(n_g), n_g) - np.arange(len(groups_r))
    if not once or not len(order_o):
        return order_o, position_o, np.repeat(n_g, n_g)
    columns = np.stack([values[order_o] for values in (groups_r, keys_r, ties_r)])
    first_o = np.append(True, (columns[:, 1:] != columns[:, :-1]).any(axis=0))
    place_o, end_o = np.cumsum(first_o), np.repeat(np.cumsum(n_g), n_g) - 1
    once_g = np.bincount(groups_r[order_o], first_o).astype(np.int64)
    return order_o, place_o[end_o] - place_o + 1, np.repeat(once_g, n_g)


def number_slots(counts_u: Ints) -> tuple[Ints, Ints]:
    """Number rows within users, from each user's number of rows.

    The result is the user's position, and the number within the user.
    """
    user_r = np.repeat(np.arange(len(counts_u)), counts_u)
    return user_r, np.arange(len(user_r)) - np.repeat(np.cumsum(counts_u) - counts_u, counts_u)


def ascending(
    groups_r: Ints, keys_r: Ints | npt.NDArray[np.uint64], *ties_r: Ints | npt.NDArray[np.float64]
) -> Ints:
    """Return the rows in order of (group, key, ties).

    The sort uses one word with the group and as many leading bits of the key as fit, which is an order of
    magnitude faster than three keys; rows with equal words are sorted again.
    """
    if not len(groups_r):
        return np.empty(0, np.int64)
    offset_r = keys_r.astype(np.uint64) - np.uint64(int(keys_r.min()) % 2**64)
    group_bits, key_bits = int(groups_r.max()).bit_length(), int(offset_r.max()).bit_length()
    lost = max(0, group_bits + key_bits - 64)
    word_r = (groups_r.astype(np.uint64) << np.uint64(key_bits - lost)) | (offset_r >> np.uint64(lost))
    order_r = np.argsort(word_r)
    alike_r = _has_equal_neighbour(word_r[order_r])
    rows = order_r[alike_r]
    ties = [tie_r[rows] for tie_r in reversed(ties_r)]
    order_r[alike_r] = rows[np.lexsort((*ties, keys_r[rows], word_r[rows]))]
    return order_r


def last_per_group(groups_r: Ints, keys_r: Ints) -> tuple[Ints, Ints]:
    """Return each group's row with the largest key, and ties.

    Returns:
        best_g, in group order; equal_r, all rows that share the largest key with another one.

    >>> best, equal = last_per_group(np.array([7, 7, 8, 8]), np.array([1, 2, 3, 3]))
    >>> best[0].item(), equal.tolist()
    (1, [2, 3])
    """
    order_r = np.lexsort((keys_r, groups_r))
    group_r, key_r = groups_r[order_r], keys_r[order_r]
    last_r = np.diff(group_r, append=0) != 0
    last_r[-1:] = True
    ends_g = np.flatnonzero(last_r)
    end_r = np.repeat(ends_g, np.diff(ends_g, prepend=-1))
    largest_r = key_r == key_r[end_r]
    shared_r = largest_r & (np.bincount(end_r[largest_r], minlength=len(order_r))[end_r] > 1)
    return order_r[ends_g], order_r[shared_r]


def mark_repeats(groups_r: Ints, values_r: Ints) -> npt.NDArray[np.bool_]:
    """Return (r,) true if another row has the same pair.

    A pair is a group and a value, both below 2^31.
    """
    pair_r = (groups_r << 32) | values_r
    order_r = np.argsort(pair_r)
    repeated = np.empty(len(pair_r), np.bool_)
    repeated[order_r] = _has_equal_neighbour(pair_r[order_r])
    return repeated


def _has_equal_neighbour(
    ascending_r: npt.NDArray[np.int64] | npt.NDArray[np.uint64],
) -> npt.NDArray[np.bool_]:
    """Mark values which equal a neighbour."""
    equal = ascending_r[1:] == ascending_r[:-1]
    alike: npt.NDArray[np.bool_] = np.append(equal, False) | np.insert(equal, 0, False)
    return alike[: len(ascending_r)]
