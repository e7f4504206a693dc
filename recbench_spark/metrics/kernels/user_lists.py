"""Users' lists beside what is known about their users: truth, history, and items that could be listed.

Axes: u users, n entries, user after user, c cut-offs, g groups of items.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from recbench_spark.core.arrays import Floats, Ints
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

    @property
    def user_n(self) -> Ints:
        """Return each item's user, (n,)."""
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))

    @property
    def place_n(self) -> Ints:
        """Return each item's place among its user's, from 0, (n,)."""
        return np.arange(len(self.item_n)) - np.repeat(self.offsets[:-1], np.diff(self.offsets))


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
    entry, group, weight = grouping.label(items)
    users, g, c = len(items.offsets) - 1, len(grouping.sizes_g), len(ks)
    cut = np.searchsorted(ks, items.place_n[entry], side="right")
    weight, own = weight if weight_n is None else weight * weight_n[entry], cut < c
    cell = (items.user_n[entry] * c + cut) * g + group
    sums = np.bincount(cell[own], weight[own], minlength=users * c * g).reshape(users, c, g)
    out: Floats = np.cumsum(sums, axis=1)
    return out


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
