"""Metrics over groups of items: who is listed, and who is found.

The short head and the long tail are two groups by training popularity. Axes: u users, n list entries, p
truth items, c cut-offs, g groups. A group's rates come from counts added up over users; an interval comes
from the same counts of resampled users.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from recbench_spark.core.arrays import Floats, Ints
from recbench_spark.core.resampling import RATIO_SHIFT
from recbench_spark.metrics.kernels.about import NO_ROWS, NOT_NEGATIVE, About, register
from recbench_spark.metrics.kernels.beyond_accuracy import (
    ListedCounts,
    average_entries,
    popularity_metric,
)
from recbench_spark.metrics.kernels.chunk import divide
from recbench_spark.metrics.kernels.user_lists import Grouping, UserLists, cut_labels, sum_labels

HEAD_SHARE = Fraction(8, 10)
"""Share of training rows that the short head passes."""

TAIL, HEAD = 0, 1
"""Groups by popularity."""

KINDS = {"relevant": (False, True), "listed": (True, True), "hits": (True, True), "offered": (False, True),
         "exposure": (True, True), "history": (False, True),
         "listed_share": (True, False), "history_share": (True, False)}  # fmt: skip
"""Fields of `GroupCounts`: whether each is counted at each cut-off, and for each group."""

OF_HISTORY = ("offered", "history", "listed_share", "history_share")
"""Fields which need the users' training items."""


def no_counts() -> Floats:
    """Return an array for a field that nobody asked for."""
    return np.zeros(0)


@dataclass(frozen=True)
class GroupCounts:
    """Counts for each group of items, per user or as means, (..., c or 1, g or 1) each.

    Attributes:
        relevant: relevant items.
        listed: entries among the first k.
        hits: relevant items among the first k.
        offered: items that the user could have got, as a share of the catalogue.
        exposure: sum of 1 / log2(rank + 1) over the entries among the first k.
        history: training items.
        listed_share: mean share of training users with a listed item; NaN without a history.
        history_share: mean share of training users with a training item; NaN without a history.
    """

    relevant: Floats = field(default_factory=no_counts)
    listed: Floats = field(default_factory=no_counts)
    hits: Floats = field(default_factory=no_counts)
    offered: Floats = field(default_factory=no_counts)
    exposure: Floats = field(default_factory=no_counts)
    history: Floats = field(default_factory=no_counts)
    listed_share: Floats = field(default_factory=no_counts)
    history_share: Floats = field(default_factory=no_counts)


GroupFunction = Callable[[GroupCounts], Floats]


@dataclass(frozen=True)
class GroupMetric:
    """A metric over all users together, from means of their counts.

    Attributes:
        measure: computes it, (..., c); with `each`, (..., c, g).
        kinds: the counts that it reads.
        signed: its size is the metric, and the sign lets an interval know of 0.
        labels: the groups are those of a table of items; otherwise long tail and short head.
        each: each group has a number of its own.
        spread: a size without a sign, which noise makes larger; its interval is corrected for that.
    """

    measure: GroupFunction
    kinds: tuple[str, ...]
    signed: bool = False
    labels: bool = False
    each: bool = False
    spread: bool = False


GROUP_METRICS: dict[str, GroupMetric] = {}
"""Metrics of groups of items, over all users together."""

BY_HEAD = ("aplt", "aclt", "popularity_reo", "popularity_rsp")
"""Metrics that know the short head."""


def group_metric(
    name: str, about: About, *kinds: str, **facts: bool
) -> Callable[[GroupFunction], GroupFunction]:
    """Register a function of GROUP_METRICS, with the counts that it reads; facts as in `GroupMetric`."""

    def keep(function: GroupFunction) -> GroupFunction:
        GROUP_METRICS[name] = GroupMetric(function, kinds, **facts)
        return register(name, about)(function)

    return keep


ABDOLLAHPOURI = (
    "Abdollahpouri, Burke and Mobasher 2019, Managing popularity bias in recommender systems with"
    " personalized re-ranking"
)


GROUPS = "An item's labels weigh 1 together; an item without a label is in no group."
OFFERED = (
    "Offered are the items that a user's masks or own candidates leave, also those that"
    " `candidates_as_of` leaves out at a moment."
)
ZHU = "Zhu, Wang and Caverlee 2020, Measuring and mitigating item under-recommendation bias"


@popularity_metric(
    "aplt",
    About(
        place=152,
        family="popularity",
        needs=("train",),
        title="share of the long tail in lists (APLT)",
        formula="Entries outside the short head / entries, among the first k.",
        edges=f"{NO_ROWS} An item nobody has is in the tail; items of equal counts stand together.",
        source=ABDOLLAHPOURI,
    ),
)
def long_tail_share(lists: ListedCounts, ks: Sequence[int]) -> Floats:
    """Share of the first k entries that are in the long tail.

    float64 (u, c), in [0, 1]; NaN for a user without a list. 1 minus it is the share of the short head.
    Blind to how far in the tail an item is. Source: Abdollahpouri et al. 2019, "Managing popularity bias
    in recommender systems with personalized re-ranking".
    """
    return average_entries(lists, (lists.count_n < lists.head).astype(np.float64), ks)


@popularity_metric(
    "aclt",
    About(
        place=153,
        family="popularity",
        needs=("train",),
        bounds=NOT_NEGATIVE,
        title="long-tail items in lists (ACLT)",
        formula="Number of entries outside the short head, among the first k.",
        edges=f"{NO_ROWS} An item nobody has is in the tail; items of equal counts stand together.",
        source=ABDOLLAHPOURI,
    ),
)
def count_long_tail(lists: ListedCounts, ks: Sequence[int]) -> Floats:
    """Number of the first k entries that are in the long tail.

    float64 (u, c), in [0, k]; NaN for a user without a list. Source: as `long_tail_share`.
    """
    in_tail = (lists.count_n >= 0) & (lists.count_n < lists.head)
    counts: Floats = count_entries(lists.offsets, in_tail, ks).astype(np.float64)
    return np.where(np.isnan(long_tail_share(lists, ks)), np.nan, counts)


@group_metric(
    "popularity_reo",
    About(
        "small",
        place=154,
        family="popularity",
        needs=("train",),
        title="unequal recall of head and tail (PopREO)",
        formula="Standard deviation / mean, over head and tail, of found / relevant items up to k.",
        edges=f"{NO_ROWS} No value if a group has no relevant item, or nothing was found.",
        source=ZHU,
    ),
    "relevant",
    "hits",
    signed=True,
)
def popularity_reo(counts: GroupCounts) -> Floats:
    """Signed spread of the recall of long tail and short head.

    (...,), in [-1, 1]: (tail - head) / (tail + head), whose size is the metric: 0 where both are found
    equally often, 1 where one of them never is. The sign lets an interval know of 0. Blind to how much is
    found, and to what is listed in vain. Source: Zhu, Wang and Caverlee 2020, "Measuring and mitigating
    item under-recommendation bias in personalized ranking systems".
    """
    recall = divide(counts.hits, counts.relevant, np.nan)
    tail, head = recall[..., TAIL], recall[..., HEAD]
    return divide(tail - head, tail + head, np.nan)


@group_metric(
    "popularity_rsp",
    About(
        "small",
        place=155,
        title="unequal chances of head and tail (PopRSP)",
        formula="Standard deviation / mean, over head and tail, of listed / offered items up to k.",
        edges=f"{NO_ROWS} {OFFERED} No value if a group has none.",
        source=ZHU,
        family="popularity",
        needs=("train",),
    ),
    "listed",
    "offered",
    signed=True,
)
def popularity_rsp(counts: GroupCounts) -> Floats:
    """Signed spread of the chance to be listed of long tail and short head.

    (...,), in [-1, 1]: as `popularity_reo`, with listed / offered items in place of the recall. Blind to
    relevance. Source: Zhu, Wang and Caverlee 2020, as `popularity_reo`.
    """
    chance = divide(counts.listed, counts.offered, np.nan)
    tail, head = chance[..., TAIL], chance[..., HEAD]
    return divide(tail - head, tail + head, np.nan)


@group_metric(
    "popularity_lift",
    About(
        "near 0",
        place=156,
        bounds=(-1.0, math.inf),
        title="popularity lift",
        formula="(P of the lists - P of the histories) / P of the histories; P is the mean over users of"
        " the mean share of training users with an item, up to k.",
        edges=f"{NO_ROWS} A user without training items is left out.",
        source="Abdollahpouri, Mansoury, Burke and Mobasher 2020, The connection between popularity bias,"
        " calibration, and fairness in recommendation",
        family="popularity",
        needs=("train",),
    ),
    "listed_share",
    "history_share",
)
def popularity_lift(counts: GroupCounts) -> Floats:
    """Relative growth of popularity from the users' histories to their lists.

    (...,), from -1 on; 0: lists are as popular as histories. A ratio of two means over users, as in the
    source, so that a user with unpopular taste does not rule it; an interval resamples users. Blind to
    users whose lifts cancel. Source: Abdollahpouri et al. 2020, "The connection between popularity bias,
    calibration, and fairness in recommendation", with means over all users.
    """
    own = counts.history_share[..., 0]
    return divide(counts.listed_share[..., 0] - own, own, np.nan)


@group_metric(
    "reo",
    About(
        "small",
        place=161,
        bounds=NOT_NEGATIVE,
        title="unequal recall of groups (REO)",
        formula="Standard deviation / mean, over groups of items, of found / relevant items up to k.",
        edges=f"{NO_ROWS} {GROUPS} A group without relevant items is left out; no value for fewer than two"
        " groups, or if nothing was found.",
        source=ZHU,
        family="groups",
        needs=("item_groups",),
    ),
    "relevant",
    "hits",
    labels=True,
    spread=True,
)
def unequal_recall(counts: GroupCounts) -> Floats:
    """Spread of the recall of groups of items, (...,), from 0 on: all are found equally often.

    Blind to which group loses, and biased upward where groups have few relevant items. Source: Zhu, Wang
    and Caverlee 2020, "Measuring and mitigating item under-recommendation bias in personalized ranking
    systems".
    """
    return spread(group_recall(counts))


@group_metric(
    "rsp",
    About(
        "small",
        place=162,
        bounds=NOT_NEGATIVE,
        title="unequal chances of groups (RSP)",
        formula="Standard deviation / mean, over groups of items, of listed / offered items up to k.",
        edges=f"{NO_ROWS} {GROUPS} {OFFERED} A group without them is left out; no value for fewer than two"
        " groups.",
        source=ZHU,
        family="groups",
        needs=("item_groups",),
    ),
    "listed",
    "offered",
    labels=True,
    spread=True,
)
def unequal_chance(counts: GroupCounts) -> Floats:
    """Spread of the chance to be listed of groups of items, (...,), from 0 on: all chances are equal.

    Blind to relevance. Source: as `unequal_recall`.
    """
    return spread(divide(counts.listed, counts.offered, np.nan))


def spread(rate: Floats) -> Floats:
    """Return standard deviation / mean over groups, (...,); NaN is no group.

    NaN for fewer than two groups, and for a mean of 0.
    """
    known = ~np.isnan(rate)
    n, filled = known.sum(axis=-1), np.where(known, rate, 0.0)
    mean = divide(filled.sum(axis=-1), n, np.nan)
    squares = np.where(known, (filled - mean[..., None]) ** 2, 0.0).sum(axis=-1)
    return np.where(n > 1, divide(np.sqrt(divide(squares, n)), mean, np.nan), np.nan)


@group_metric(
    "group_recall",
    About(
        place=163,
        title="recall of a group of items",
        formula="Found / relevant items of the group up to k, over all users together.",
        edges=f"{NO_ROWS} {GROUPS} No value for a group without relevant items.",
        source=ZHU,
        family="groups",
        needs=("item_groups",),
    ),
    "relevant",
    "hits",
    labels=True,
    each=True,
)
def group_recall(counts: GroupCounts) -> Floats:
    """Recall of each group of items, (..., c, g), in [0, 1].

    Relevant items of all users count alike. Source: as `unequal_recall`.
    """
    return divide(counts.hits, counts.relevant, np.nan)


@group_metric(
    "exposure_share",
    About(
        "none",
        place=164,
        title="share of exposure of a group of items",
        formula="Sum of 1 / log2(rank + 1) over the group's entries up to k / that over all groups.",
        edges=f"{NO_ROWS} {GROUPS}",
        source="Singh and Joachims 2018, Fairness of exposure in rankings",
        family="groups",
        needs=("item_groups",),
    ),
    "exposure",
    labels=True,
    each=True,
)
def exposure_share(counts: GroupCounts) -> Floats:
    """Share of each group of items in all exposure, (..., c, g), in [0, 1]; shares sum to 1.

    A rank's exposure is the discount of DCG. Blind to what users look at. Source: Singh and Joachims
    2018, "Fairness of exposure in rankings".
    """
    return divide(counts.exposure, counts.exposure.sum(axis=-1, keepdims=True), np.nan)


@group_metric(
    "bias_disparity",
    About(
        "near 0",
        place=166,
        bounds=(-1.0, math.inf),
        title="bias disparity of a group of items",
        formula="(B of the lists - B of the histories) / B of the histories; B is the group's share of"
        " entries up to k, or of training items, / its share of the catalogue.",
        edges=f"{NO_ROWS} {GROUPS} No value for a group without training items of these users.",
        source="Tsintzou, Pitoura and Tsaparas 2019, Bias disparity in recommendation systems",
        family="groups",
        needs=("train", "item_groups"),
    ),
    "listed",
    "history",
    labels=True,
    each=True,
)
def bias_disparity(counts: GroupCounts) -> Floats:
    """Relative growth of each group's share from histories to lists, (..., c, g), from -1 on.

    0: lists hold the group as often as histories. The share of the catalogue cancels. Users without a
    history count in the lists alone. Source: Tsintzou, Pitoura and Tsaparas 2019, "Bias disparity in
    recommendation systems"; Mansoury et al. 2019, "Bias disparity in collaborative recommendation".
    """
    shown, own = (
        divide(one, one.sum(axis=-1, keepdims=True), np.nan) for one in (counts.listed, counts.history)
    )
    return divide(shown - own, own, np.nan)


def count_groups(
    lists: UserLists, groups: Grouping, kinds: Sequence[str], ks: Sequence[int]
) -> dict[str, Floats]:
    """Count each user's items by group, (u, c or 1, g or 1) by kind.

    Counts of items are times RATIO_SHIFT, so that sums of their squares stay exact.
    """
    cuts = list(ks)
    counts = {
        "relevant": lambda: sum_labels(lists.truth, groups)[:, None] * RATIO_SHIFT,
        "listed": lambda: cut_labels(lists.listed, groups, None, cuts) * RATIO_SHIFT,
        "hits": lambda: cut_labels(lists.listed, groups, lists.hit_n.astype(float), cuts) * RATIO_SHIFT,
        "offered": lambda: _share_offered(lists, groups)[:, None],
        "exposure": lambda: cut_labels(lists.listed, groups, _discount(lists), cuts) * RATIO_SHIFT,
        "history": lambda: _sum_history(lists, groups)[:, None] * RATIO_SHIFT,
        "listed_share": lambda: _average_shares(lists, cuts)[0][..., None],
        "history_share": lambda: _average_shares(lists, cuts)[1][..., None],
    }
    return {kind: counts[kind]() for kind in kinds}


def _discount(lists: UserLists) -> Floats:
    """Return 1 / log2(rank + 1) of each entry, (n,)."""
    discount: Floats = 1 / np.log2(lists.listed.place_n + 2.0)
    return discount


def _sum_history(lists: UserLists, groups: Grouping) -> Floats:
    assert lists.history is not None
    return sum_labels(lists.history, groups)


def _share_offered(lists: UserLists, groups: Grouping) -> Floats:
    """Return each group's items that a user could have got / items of the catalogue, (u, g)."""
    if lists.offered is not None:
        return sum_labels(lists.offered, groups) / lists.n_items
    if lists.closed is None:
        return np.tile(groups.sizes_g / lists.n_items, (len(lists.listed.offsets) - 1, 1))
    return (groups.sizes_g - sum_labels(lists.closed, groups)) / lists.n_items


def _average_shares(lists: UserLists, ks: Sequence[int]) -> tuple[Floats, Floats]:
    """Return the mean share of training users of listed, and of training items, (u, c) each.

    NaN in both without a training item, or without a listed one.
    """
    own, listed = lists.history, lists.listed
    assert own is not None
    entries, rows = (
        ListedCounts(one.offsets, one.count_n, lists.users, lists.head) for one in (listed, own)
    )
    shown = average_entries(entries, entries.share_users(), ks)
    total_u = np.bincount(own.user_n, rows.share_users(), minlength=len(shown))
    history = divide(total_u, np.diff(own.offsets), np.nan)[:, None]
    return np.where(np.isnan(history), np.nan, shown), np.where(np.isnan(shown), np.nan, history)


def count_entries(offsets: Ints, marked_n: npt.NDArray[np.bool_], ks: Sequence[int]) -> Ints:
    """Count each list's marked entries among the first k, (u, c)."""
    before = np.concatenate([[0], np.cumsum(marked_n)])
    ends = np.minimum(offsets[:-1, None] + np.asarray(ks), offsets[1:, None])
    counts: Ints = before[ends] - before[offsets[:-1], None]
    return counts
