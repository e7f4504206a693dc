"""Metrics over groups of items: who is listed, and who is found.

The short head and the long tail are two groups by training popularity. Axes: u users, n list entries, p
truth items, c cut-offs, g groups. A group's rates come from counts added up over users; an interval comes
from the same counts of resampled users.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from recbench_spark.core.arrays import Floats, Ints
from recbench_spark.metrics.kernels.about import NO_ROWS, NOT_NEGATIVE, About, register
from recbench_spark.metrics.kernels.beyond_accuracy import ListedCounts, average_entries, popularity_metric
from recbench_spark.metrics.kernels.chunk import divide

HEAD_SHARE = Fraction(8, 10)
"""Share of training rows that the short head passes."""

TAIL, HEAD = 0, 1
"""Groups by popularity."""

KINDS = 3
"""Fields of `GroupCounts`."""


@dataclass(frozen=True)
class GroupCounts:
    """Counts for each group of items, per user, (..., g) each.

    Attributes:
        relevant: relevant items.
        listed: entries among the first k.
        hits: relevant items among the first k.
    """

    relevant: Floats
    listed: Floats
    hits: Floats


GroupMetric = Callable[[GroupCounts], Floats]

GROUP_METRICS: dict[str, GroupMetric] = {}
"""Metrics of popularity groups, over all users together."""

BY_HEAD = ("aplt", "aclt", "popularity_reo")
"""Metrics that know the short head."""


def group_metric(name: str, about: About) -> Callable[[GroupMetric], GroupMetric]:
    """Register a function of GROUP_METRICS."""

    def keep(function: GroupMetric) -> GroupMetric:
        GROUP_METRICS[name] = function
        return register(name, about)(function)

    return keep


ABDOLLAHPOURI = (
    "Abdollahpouri, Burke and Mobasher 2019, Managing popularity bias in recommender systems with"
    " personalized re-ranking"
)


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
        source="Zhu, Wang and Caverlee 2020, Measuring and mitigating item under-recommendation bias",
    ),
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


def count_groups(
    lists: ListedCounts,
    hit_n: npt.NDArray[np.bool_],
    truth: tuple[Ints, Ints],
    ks: Sequence[int],
) -> Floats:
    """Count each user's entries and truth by popularity group, (u, c, KINDS, g).

    Args:
        lists: lists with their counts.
        hit_n: whether an entry is relevant.
        truth: (u + 1,) bounds of users' relevant items, and these items' training users.
        ks: cut-offs.
    """
    bounds, count_p = truth
    out = np.zeros((len(bounds) - 1, len(ks), KINDS, 2))
    for group in (TAIL, HEAD):
        relevant = (count_p >= lists.head) == group
        out[:, :, 0, group] = count_entries(bounds, relevant, [len(count_p)])
        own = (lists.count_n >= 0) & ((lists.count_n >= lists.head) == group)
        out[:, :, 1, group] = count_entries(lists.offsets, own, ks)
        out[:, :, 2, group] = count_entries(lists.offsets, own & hit_n, ks)
    return out


def count_entries(offsets: Ints, marked_n: npt.NDArray[np.bool_], ks: Sequence[int]) -> Ints:
    """Count each list's marked entries among the first k, (u, c)."""
    before = np.concatenate([[0], np.cumsum(marked_n)])
    ends = np.minimum(offsets[:-1, None] + np.asarray(ks), offsets[1:, None])
    counts: Ints = before[ends] - before[offsets[:-1], None]
    return counts
