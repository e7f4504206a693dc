"""Users' lists beside what is known about their users: truth, history, and items that could be listed.

Axes: u users, n entries, user after user, c cut-offs, g groups of items.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from recbench_spark.core.arrays import Floats, Ints
from recbench_spark.core.compiling import compile_kernel, readonly
from recbench_spark.metrics.kernels.about import About, register


@dataclass(frozen=True)
class CountedItems:
    """Some items of each user.

    Attributes:
        offsets: (u + 1,) bounds of each user's items.
        item_n: (n,) by item_index; below 0: outside the catalogue, or a place without an item.
        count_n: (n,) training users of each; below 0: a place without an item.
    """

    offsets: Ints
    item_n: Ints
    count_n: Ints

    @cached_property
    def user_n(self) -> Ints:
        """Return each item's user, (n,)."""
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))

    @cached_property
    def place_n(self) -> Ints:
        """Return each item's place among its user's, from 0, (n,)."""
        return np.arange(len(self.item_n)) - np.repeat(self.offsets[:-1], np.diff(self.offsets))

    @cached_property
    def results(self) -> dict[Any, Any]:
        """Return what was computed from these items, by its arguments."""
        return {}

    def label(self, grouping: Grouping) -> tuple[Ints, Ints, Floats]:
        """Return entry, group and weight of each label, as `Grouping`, looked up once."""
        if grouping not in self.results:
            self.results[grouping] = grouping.label(self)
        labels: tuple[Ints, Ints, Floats] = self.results[grouping]
        return labels


@dataclass(frozen=True)
class UserLists:
    """Lists of some users, and these users' other items.

    Attributes:
        listed: entries, best first.
        hit_n: (n,) whether an entry is relevant.
        truth: relevant items.
        history: training items; None: they were not asked for.
        closed: items that were no candidates; None: there are none.
        offered: candidates of users who have their own; None: the catalogue without `closed`.
        users: training users.
        head: training users from which on an item is in the short head.
        n_items: catalogue size.
        open_popularity: opens arrays by item_index, as `metrics.listed.ItemLookup.popularity`.
    """

    listed: CountedItems
    hit_n: npt.NDArray[np.bool_]
    truth: CountedItems
    history: CountedItems | None
    closed: CountedItems | None
    offered: CountedItems | None
    users: int
    head: int
    n_items: int = 1
    open_popularity: Callable[[], Mapping[str, Ints]] = dict


class Grouping(Protocol):
    """Groups of items.

    sizes_g: (g,) sum of the items' weights in each.
    """

    @property
    def sizes_g(self) -> Floats:
        """Return the groups' sizes over the catalogue, (g,)."""

    def label(self, items: CountedItems) -> tuple[Ints, Ints, Floats]:
        """Return entry, group and weight of each label, (m,) each."""


@dataclass(frozen=True)
class HeadAndTail:
    """Long tail (0) and short head (1), by training users.

    head: training users from which on an item is in the head; sizes: items in tail and head.
    """

    head: int
    sizes: tuple[int, int] = (0, 0)

    @property
    def sizes_g(self) -> Floats:
        """Return the items in tail and head, (2,)."""
        return np.array(self.sizes, np.float64)

    def label(self, items: CountedItems) -> tuple[Ints, Ints, Floats]:
        """Return entry, group and weight, as `Grouping`."""
        entry = np.flatnonzero(items.count_n >= 0)
        return entry, (items.count_n[entry] >= self.head).astype(np.int64), np.ones(len(entry))


def sum_labels(items: CountedItems, grouping: Grouping, weight_n: Floats | None = None) -> Floats:
    """Add up the weights of each user's items by group, (u, g)."""
    return cut_labels(items, grouping, weight_n, [np.iinfo(np.int64).max])[:, 0]


def cut_labels(
    items: CountedItems, grouping: Grouping, weight_n: Floats | None, ks: Sequence[int]
) -> Floats:
    """Add up the weights of each user's first k items by group, (u, c, g).

    weight_n: (n,) factors of the items; None: 1. ks: ascending. Labels add up in the order of a user's
    items, from one cut-off to the next.
    """
    key = (grouping, tuple(ks))
    if weight_n is None and key in items.results:
        known: Floats = items.results[key]
        return known
    factor_n = np.ones(0) if weight_n is None else np.asarray(weight_n, np.float64)
    out: Floats = np.zeros((len(items.offsets) - 1, len(ks), len(grouping.sizes_g)))
    entry, group, weight = (readonly(one) for one in items.label(grouping))
    _add_labels(entry, group, weight, readonly(factor_n), items.user_n, items.offsets, np.asarray(ks), out)
    if weight_n is None:
        items.results[key] = out
    return out


@compile_kernel
def _add_labels(
    entry_m: Ints, group_m: Ints, weight_m: Floats, factor_n: Floats, user_n: Ints, offsets: Ints,
    ks: Ints, out: Floats,
) -> None:  # fmt: skip
    """Add weights times factors by user, cut-off and group; then each cut-off to the next."""
    cuts = len(ks)
    for m in range(len(entry_m)):
        n, c = entry_m[m], 0
        u = user_n[n]
        while c < cuts and ks[c] <= n - offsets[u]:
            c += 1
        if c < cuts:
            out[u, c, group_m[m]] += weight_m[m] * factor_n[n] if len(factor_n) else weight_m[m]
    for u in range(out.shape[0]):
        for c in range(1, cuts):
            out[u, c] += out[u, c - 1]


ListFunction = Callable[[UserLists, Grouping, Sequence[int]], Floats]


class ListMetric(NamedTuple):
    """A metric of each user's list, from all that is known about the user.

    measure: computes it, (u, c); history: it needs the user's training items.
    """

    measure: ListFunction
    history: bool


USER_METRICS: dict[str, ListMetric] = {}
"""Metrics of users' lists beside what is known about the users."""


def user_metric(
    name: str, about: About, *, history: bool = False
) -> Callable[[ListFunction], ListFunction]:
    """Register a function of USER_METRICS."""

    def keep(function: ListFunction) -> ListFunction:
        USER_METRICS[name] = ListMetric(function, history)
        return register(name, about)(function)

    return keep
