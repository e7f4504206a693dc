"""Hold users' items in time order; cut histories and targets.

A minibatch's histories are tokens: an item's number plus 1, the oldest first. Token 0 is an empty place,
behind the newest item in a history or, as noise, before an item.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from recbench_spark.core.arrays import Ints, Ints32
from recbench_spark.graphs.kernels.ids import hash_numbers


class Sequences(NamedTuple):
    """Each user's items in time order, in compressed rows.

    Attributes:
        items: number of items.
        indptr: (users + 1,) place where each user's items begin.
        item: (e,) the oldest first within a user.
    """

    items: int
    indptr: Ints
    item: Ints32

    @property
    def users(self) -> int:
        """Return the number of users."""
        return len(self.indptr) - 1

    @property
    def sizes(self) -> Ints:
        """Return each user's number of items, (users,)."""
        return np.diff(self.indptr)


class TokenWindows(NamedTuple):
    """Padded windows of histories, in tokens.

    Attributes:
        token: (b, l) the oldest first, 0 behind the newest.
        length: (b,) tokens of each.
    """

    token: torch.Tensor
    length: torch.Tensor


def make_sequences(lists: Any, items: int) -> Sequences:
    """Return sequences from each user's list of items.

    >>> make_sequences([[3, 1], [2]], 5).indptr.tolist()
    [0, 2, 3]
    """
    indptr = np.concatenate([[0], np.cumsum([len(own) for own in lists])]).astype(np.int64)
    flat = [np.asarray(own, np.int32) for own in lists]
    return Sequences(items, indptr, np.concatenate(flat) if flat else np.empty(0, np.int32))


def set_last_aside(sequences: Sequences) -> tuple[Sequences, Ints]:
    """Return the sequences without last items, and the last items, (users,).

    A user with one item keeps it, and -1 stands for the last one.
    """
    last = np.full(sequences.users, -1, np.int64)
    has_last = sequences.sizes >= 2
    ends = sequences.indptr[1:][has_last] - 1
    last[has_last] = sequences.item[ends]
    indptr = np.concatenate([[0], np.cumsum(sequences.sizes - has_last)])
    return Sequences(sequences.items, indptr, np.delete(sequences.item, ends)), last


def sort_within_users(sequences: Sequences) -> Ints32:
    """Return each user's items ascending, (e,), for look-ups."""
    user = np.repeat(np.arange(sequences.users), sequences.sizes)
    return sequences.item[np.lexsort((sequences.item, user))]


def cut_windows(sequences: Sequences, begin_b: Ints, end_b: Ints) -> TokenWindows:
    """Return the items in [begin, end), (b,) each, as padded tokens."""
    length = end_b - begin_b
    columns = np.arange(max(int(length.max(initial=0)), 1))
    place = np.minimum(begin_b[:, None] + columns, max(len(sequences.item) - 1, 0))
    token = np.where(columns < length[:, None], sequences.item[place].astype(np.int64) + 1, 0)
    return TokenWindows(torch.from_numpy(token), torch.from_numpy(length))


def cut_newest(sequences: Sequences, user_b: Ints, memory: int) -> TokenWindows:
    """Return some users' newest `memory` items."""
    end = sequences.indptr[user_b + 1]
    return cut_windows(sequences, np.maximum(sequences.indptr[user_b], end - memory), end)


def add_empty_places(histories: TokenWindows, share: float, memory: int, *, seed: int) -> TokenWindows:
    """Insert an empty place before items with a probability, by hash.

    So they come before the query, which is the newest item, and before the oldest item, too. A history
    longer than `memory` places and a query loses its oldest places.

    Args:
        histories: histories in a minibatch.
        share: probability of an empty place before an item: 0.1 makes 0.1 of 1.1 places empty, about .09.
        memory: places in the memory, without the query.
        seed: seed of the draws.
    """
    if not share:
        return histories
    token, length = histories.token.numpy(), histories.length.numpy()
    hashes = hash_numbers(np.arange(token.size), seed % 2**31) >> np.uint64(11)
    drawn = hashes.reshape(token.shape) < np.uint64(share * 2.0**53)
    out = np.zeros((len(token), memory + 1), np.int64)
    sizes = np.empty(len(token), np.int64)
    for row, (own, size) in enumerate(zip(token, length, strict=True)):
        empty = np.flatnonzero(drawn[row, :size])
        mixed = np.insert(own[:size], empty, 0)[-(memory + 1) :]
        out[row, : len(mixed)], sizes[row] = mixed, len(mixed)
    return TokenWindows(torch.from_numpy(out[:, : sizes.max(initial=1)]), torch.from_numpy(sizes))
