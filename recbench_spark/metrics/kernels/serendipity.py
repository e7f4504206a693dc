"""Serendipity of lists in its two common definitions.

Axes: u users, n entries, c cut-offs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from recbench_spark.core.arrays import Bools, Floats, Ints
from recbench_spark.metrics.kernels.about import NO_ROWS, About
from recbench_spark.metrics.kernels.beyond_accuracy import mean_at_cutoffs
from recbench_spark.metrics.kernels.user_lists import CountedItems, Grouping, UserLists, user_metric


@user_metric(
    "serendipity",
    About(
        place=145,
        title="serendipity (unexpected and relevant)",
        formula="Mean over the first k entries of max(p - b, 0) x relevance; p = (n + 1 - rank) / n, b the"
        " same of the item's rank by popularity, and n the items of the catalogue.",
        edges=f"{NO_ROWS} Items of equal popularity share a rank; b is 0 for an item nobody has.",
        source="Murakami, Mori and Orihara 2008, Metrics for evaluating the serendipity of"
        " recommendation lists; as RecTools",
        family="serendipity",
        needs=("train",),
    ),
)
def serendipity(lists: UserLists, groups: Grouping, ks: Sequence[int]) -> Floats:
    """Mean gain in rank of relevant entries over their popularity.

    float64 (u, c), in [0, 1]; NaN without an entry. Ranks by popularity are dense, so many items of equal
    counts weaken it. Blind to what the user knows from elsewhere. Source: Murakami, Mori and Orihara 2008,
    "Metrics for evaluating the serendipity of recommendation lists", in the form of RecTools.
    """
    listed, n = lists.listed, lists.n_items
    rank = lists.open_popularity()["rank"][np.maximum(listed.item_n, 0)]
    expected = np.where(listed.count_n > 0, (n + 1 - rank) / n, 0.0)
    gain = np.maximum((n - listed.place_n) / n - expected, 0.0)
    value_n = np.where(listed.item_n == NO_ITEM, np.nan, gain * lists.hit_n)
    return mean_at_cutoffs(listed.offsets, value_n, ks)


NO_ITEM = -2
"""Item index of a place without an item."""


@user_metric(
    "serendipity_primitive",
    About(
        place=146,
        title="serendipity (against the most popular list)",
        formula="Relevant entries among the first k that the user's k most popular items do not have / k.",
        edges=f"{NO_ROWS} The most popular items are those among the user's candidates at any"
        " moment, equal ones in order of their ids.",
        source="Ge, Delgado-Battenfeld and Jannach 2010, Beyond accuracy",
        family="serendipity",
        needs=("train",),
    ),
    history=True,
)
def serendipity_primitive(lists: UserLists, groups: Grouping, ks: Sequence[int]) -> Floats:
    """Share of the first k places with a relevant item that a primitive recommender does not list.

    float64 (u, c), in [0, 1]; NaN without a list. The primitive one lists the most popular candidates.
    Blind to unexpected items without relevance. Source: Ge, Delgado-Battenfeld and Jannach 2010, "Beyond
    accuracy: evaluating recommender systems by coverage and serendipity".
    """
    listed = lists.listed
    popular_n = _rank_candidates(lists)
    cuts = np.asarray(ks)
    found_nc = lists.hit_n[:, None] & (listed.place_n[:, None] < cuts) & (popular_n[:, None] >= cuts)
    before = np.concatenate([np.zeros((1, len(cuts)), np.int64), np.cumsum(found_nc, axis=0)])
    out: Floats = (before[listed.offsets[1:]] - before[listed.offsets[:-1]]) / cuts
    return out


def _rank_candidates(lists: UserLists) -> Ints:
    """Return each entry's place by popularity among its user's candidates, (n,).

    An entry that is no candidate comes last.
    """
    place_i, listed, last = lists.open_popularity()["place"], lists.listed, np.iinfo(np.int64).max
    place_n = np.where(listed.item_n < 0, lists.n_items, place_i[np.maximum(listed.item_n, 0)])
    if lists.offered is not None:
        before_n, own_n = _count_before(lists.offered, place_i, listed, place_n)
        return np.where(own_n, before_n, last)
    if lists.closed is None:
        return place_n
    before_n, own_n = _count_before(lists.closed, place_i, listed, place_n)
    return np.where(own_n, last, place_n - before_n)


def _count_before(
    items: CountedItems, place_i: Ints, listed: CountedItems, place_n: Ints
) -> tuple[Ints, Bools]:
    """Count the user's items that are more popular than each entry, and mark entries among them, (n,)."""
    width, user_n = len(place_i) + 1, listed.user_n
    sorted_k, key_n = np.sort(items.user_n * width + place_i[items.item_n]), user_n * width + place_n
    first_n, end_n = (np.searchsorted(sorted_k, key_n, side) for side in ("left", "right"))
    return first_n - items.offsets[user_n], first_n < end_n
