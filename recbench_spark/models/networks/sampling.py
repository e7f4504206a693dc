"""Draw negatives by hash: per minibatch, per user, or hard."""

from __future__ import annotations

from typing import Any

import numpy as np

from recbench_spark.core.arrays import Bools, Ints
from recbench_spark.core.compiling import compile_kernel, readonly
from recbench_spark.core.hashing import stream
from recbench_spark.graphs.kernels.samples import Band
from recbench_spark.graphs.kernels.walks import draw, to_share

TRIES = 64
"""Draws after which a user's negative is accepted as it is: users with nearly all items need this."""


def draw_shared_negatives(first: int, end: int, size: int, seed: int) -> Ints:
    """Draw (size,) dense ids in [first, end), equal in all processes.

    The draw is even, with replacement.
    """
    out = np.empty(size, np.int64)
    _draw_evenly(np.uint64(seed), first, end, out)
    return out


@compile_kernel
def _draw_evenly(seed: np.uint64, first: int, end: int, out: Any) -> None:
    for i in range(len(out)):
        out[i] = first + np.int64(to_share(draw(seed, i, 0, 0)) * (end - first))


def draw_unseen(indptr: Ints, item_e: Any, user_b: Any, key_b: Any, items: int, *, seed: int) -> Ints:
    """Draw each user an item outside its training items, (b,).

    Args:
        indptr: (users + 1,) place where each user's items begin.
        item_e: (e,) ascending within a user.
        user_b: (b,) users.
        key_b: (b,) the examples' numbers, which determine the draws.
        items: number of items.
        seed: seed of the draws.
    """
    out = np.empty(len(user_b), np.int64)
    begins, own_e, users, keys = (readonly(np.asarray(x)) for x in (indptr, item_e, user_b, key_b))
    _draw_unseen(begins, own_e, users, keys, items, np.uint64(seed), out)
    return out


@compile_kernel
def _draw_unseen(
    indptr: Any, item_e: Any, user_b: Any, key_b: Any, items: int, seed: np.uint64, out: Any
) -> None:
    for b in range(len(user_b)):
        base = stream(seed, np.uint64(key_b[b]))
        own = item_e[indptr[user_b[b]] : indptr[user_b[b] + 1]]
        for i in range(TRIES):
            out[b] = np.int64(to_share(draw(base, i, 0, 0)) * items)
            place = np.searchsorted(own, out[b])
            if place == len(own) or own[place] != out[b]:
                break


def find_owned_items(indptr: Ints, item_e: Any, user_b: Any, group_b: Ints, item_gn: Ints) -> Bools:
    """Return (b, n) true for group items among training items.

    Args:
        indptr: (users + 1,) place where each user's items begin.
        item_e: (e,) items.
        user_b: (b,) users.
        group_b: (b,) group of each.
        item_gn: (g, n) items of each group, each as often as it was drawn.
    """
    out = np.zeros((len(user_b), item_gn.shape[1]), np.bool_)
    order = np.argsort(item_gn, axis=1, kind="stable")
    columns = (indptr, item_e, user_b, group_b, np.take_along_axis(item_gn, order, axis=1), order)
    begins, own_e, users, groups, sorted_gn, order = (readonly(np.asarray(x)) for x in columns)
    _find_owned_items(begins, own_e, users, groups, sorted_gn, order, out)
    return out


@compile_kernel
def _find_owned_items(
    indptr: Any, item_e: Any, user_b: Any, group_b: Any, sorted_gn: Any, order_gn: Any, out: Any
) -> None:
    for b in range(len(user_b)):
        drawn, order = sorted_gn[group_b[b]], order_gn[group_b[b]]
        for e in range(indptr[user_b[b]], indptr[user_b[b] + 1]):
            place = np.searchsorted(drawn, item_e[e])
            while place < len(drawn) and drawn[place] == item_e[e]:
                out[b, order[place]] = True
                place += 1


def draw_hard_negatives(
    band: Band, query_b: Any, key_b: Any, size: int, others: Ints, *, seed: int
) -> Ints:
    """Draw (b, size) nodes from each query's band, with replacement.

    An empty band is replaced by `others`.

    Args:
        band: the band, by the query's number.
        query_b: (b,) numbers of queries.
        key_b: (b,) numbers of the examples.
        size: nodes for each query.
        others: first and end of the dense ids to draw from where nothing is reached.
        seed: seed of the draws.
    """
    out = np.empty((len(query_b), size), np.int64)
    columns = (band.indptr, band.node, query_b, key_b)
    begins, nodes, queries, keys = (readonly(np.asarray(x)) for x in columns)
    _draw_hard_negatives(
        begins, nodes, queries, keys, (int(others[0]), int(others[1])), np.uint64(seed), out
    )
    return out


@compile_kernel
def _draw_hard_negatives(
    indptr: Any, node: Any, query_b: Any, key_b: Any, others: Any, seed: np.uint64, out: Any
) -> None:
    first, end = others
    for b in range(len(query_b)):
        base = stream(seed, np.uint64(key_b[b]))
        own = node[indptr[query_b[b]] : indptr[query_b[b] + 1]]
        for i in range(out.shape[1]):
            share = to_share(draw(base, i, 1, 0))
            if len(own):
                out[b, i] = own[np.int64(share * len(own))]
            else:
                out[b, i] = first + np.int64(share * (end - first))
