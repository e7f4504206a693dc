"""Categories of lists: calibration to the user's history, diversity, and subtopics.

Categories are groups of items (`user_lists.Grouping`). Axes: u users, c cut-offs, g categories.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from recbench_spark.core.arrays import Floats
from recbench_spark.metrics.kernels.about import NO_ROWS, NOT_NEGATIVE, About
from recbench_spark.metrics.kernels.chunk import divide
from recbench_spark.metrics.kernels.user_lists import (
    CountedItems,
    Grouping,
    UserLists,
    cut_labels,
    sum_labels,
    user_metric,
)

ALPHA = 0.01
"""Share of the history that smooths a list's distribution."""

LABELLED = "An item's labels weigh 1 together, and items without a label are left out."
NO_HISTORY = f"{NO_ROWS} {LABELLED} No value without a labelled training item, or a labelled entry."


@user_metric(
    "calibration",
    About(
        "small",
        place=143,
        bounds=(0.0, -math.log(ALPHA)),
        title="miscalibration to the history (KL divergence, in nats)",
        formula="sum_g p log(p / q'); p and q are a category's shares of the history and of the first k"
        f" entries, and q' = {1 - ALPHA:g} q + {ALPHA:g} p.",
        edges=NO_HISTORY,
        source="Steck 2018, Calibrated recommendations",
        family="calibration",
        needs=("train", "item_groups"),
    ),
    history=True,
)
def calibration(lists: UserLists, groups: Grouping, ks: Sequence[int]) -> Floats:
    """Divergence of the list's categories from those of the history.

    float64 (u, c), in nats, from 0 (equal shares) to -log(ALPHA); NaN without a labelled training item or
    entry. All training items weigh alike. Blind to the order of entries. Source: Steck 2018, "Calibrated
    recommendations", section 3.
    """
    p, q = _share_categories(lists, groups, ks)
    return np.minimum(_diverge(p, (1 - ALPHA) * q + ALPHA * p), -math.log(ALPHA))


@user_metric(
    "calibration_js",
    About(
        "small",
        place=144,
        title="miscalibration to the history (Jensen-Shannon divergence)",
        formula="(sum_g p log2(p / m) + sum_g q log2(q / m)) / 2; p and q as in calibration, and"
        " m = (p + q) / 2.",
        edges=NO_HISTORY,
        source="Lin 1991, Divergence measures based on the Shannon entropy",
        family="calibration",
        needs=("train", "item_groups"),
    ),
    history=True,
)
def calibration_js(lists: UserLists, groups: Grouping, ks: Sequence[int]) -> Floats:
    """Symmetric divergence of the list's categories from those of the history.

    float64 (u, c), from 0 (equal shares) to 1 (no category in common); NaN as `calibration`. It needs no
    smoothing. Source: Lin 1991, "Divergence measures based on the Shannon entropy".
    """
    p, q = _share_categories(lists, groups, ks)
    middle = (p + q) / 2
    return np.minimum((_diverge(p, middle) + _diverge(q, middle)) / (2 * math.log(2)), 1.0)


def _share_categories(lists: UserLists, groups: Grouping, ks: Sequence[int]) -> tuple[Floats, Floats]:
    """Return categories' shares of the history and of the list, (u, c, g) each."""
    assert lists.history is not None
    parts = sum_labels(lists.history, groups)[:, None], cut_labels(lists.listed, groups, None, ks)
    p, q = (divide(part, part.sum(axis=-1, keepdims=True), np.nan) for part in parts)
    return np.broadcast_to(p, q.shape), q


def _diverge(p: Floats, q: Floats) -> Floats:
    """Return sum_g p log(p / q), (u, c); 0 for p = 0; not below 0."""
    ratio = np.divide(p, q, out=np.ones(p.shape), where=(p > 0) | np.isnan(p))
    divergence: Floats = np.maximum((p * np.log(ratio)).sum(axis=-1), 0.0)
    return np.where(np.isnan(q).any(axis=-1), np.nan, divergence)


@user_metric(
    "category_diversity",
    About(
        place=141,
        bounds=NOT_NEGATIVE,
        title="intra-list diversity by category",
        formula="Mean number of categories that one of two entries has alone, over pairs among the first"
        " k entries.",
        edges="No value for fewer than two entries. An item without a label has no category.",
        source="Ziegler et al. 2005, Improving recommendation lists through topic diversification",
        family="diversity",
        needs=("item_groups",),
    ),
)
def category_diversity(lists: UserLists, groups: Grouping, ks: Sequence[int]) -> Floats:
    """Mean Hamming distance of entries' categories over pairs.

    float64 (u, c), from 0 on; NaN for fewer than two entries. Each label counts 1, whatever its weight.
    Blind to how much categories differ. Source: Ziegler et al. 2005, "Improving recommendation lists
    through topic diversification"; the distance is that of RecTools.
    """
    listed = lists.listed
    with_label = cut_labels(listed, _Plain(groups), None, ks)
    n = cut_labels(listed, _Entries(), None, ks)
    return divide((with_label * (n - with_label)).sum(axis=-1), (n * (n - 1) / 2)[..., 0], np.nan)


@user_metric(
    "subtopic_recall",
    About(
        place=142,
        title="subtopic recall",
        formula="Categories of relevant entries among the first k / categories of relevant items.",
        edges=f"{NO_ROWS} No value for a user without a labelled relevant item.",
        source="Zhai, Cohen and Lafferty 2003, Beyond independent relevance",
        family="diversity",
        needs=("item_groups",),
    ),
)
def subtopic_recall(lists: UserLists, groups: Grouping, ks: Sequence[int]) -> Floats:
    """Share of the categories of relevant items that relevant entries have.

    float64 (u, c), in [0, 1]; NaN without a labelled relevant item. Blind to how often a category is
    found. Source: Zhai, Cohen and Lafferty 2003, "Beyond independent relevance: methods and evaluation
    metrics for subtopic retrieval".
    """
    listed = cut_labels(lists.listed, groups, lists.hit_n.astype(np.float64), ks) > 0
    wanted = sum_labels(lists.truth, groups) > 0
    return divide(listed.sum(axis=-1), wanted.sum(axis=-1)[:, None], np.nan)


class _Plain:
    """Groups whose labels all weigh 1."""

    def __init__(self, groups: Grouping) -> None:
        self.groups, self.sizes_g = groups, groups.sizes_g

    def label(self, items: CountedItems) -> tuple[Any, Any, Floats]:
        entry, group, _ = items.label(self.groups)
        return entry, group, np.ones(len(entry))


class _Entries:
    """One group with all entries that are items."""

    sizes_g = np.ones(1)

    def label(self, items: CountedItems) -> tuple[Any, Any, Floats]:
        entry = np.flatnonzero(items.item_n > -2)
        return entry, np.zeros(len(entry), np.int64), np.ones(len(entry))
