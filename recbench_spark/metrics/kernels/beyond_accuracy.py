"""Novelty, popularity, diversity, coverage and evenness of lists.

Coverage and evenness describe the items in all lists together.

Axes: u users, n list entries, user after user, best first (`lists.UserItems`), i catalogue items, k places,
c cut-offs, d dimensions, g categories. A value at k uses the first min(k, length) entries, NaN where they
do not define it; sums run along a list, so a user's value does not depend on the batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from recbench_spark.core.arrays import Floats, Ints
from recbench_spark.metrics.kernels.about import NO_ROWS, NOT_NEGATIVE, About, register
from recbench_spark.metrics.kernels.chunk import divide

Number = TypeVar("Number", np.int64, np.float64)

CELLS = 1 << 20
"""Cells computed at once: users x places x (dimensions or places)."""


@dataclass(frozen=True)
class ListedCounts:
    """Lists by the training users of their entries.

    Attributes:
        offsets: (u + 1,), user u has the entries `offsets[u]:offsets[u + 1]`.
        count_n: each entry's training users; below 0: a place without an item, left out.
        users: training users.
        head: training users from which on an item is in the short head (`splits.popularity.find_head`).
    """

    offsets: Ints
    count_n: Ints
    users: int
    head: int

    def share_users(self, at_least: int = 0) -> Floats:
        """Return the share of training users with each entry, (n,)."""
        shares: Floats = np.clip(self.count_n, at_least, max(self.users, 1)) / max(self.users, 1)
        return shares


PopularityMetric = Callable[[ListedCounts, Sequence[int]], Floats]
OverallMetric = Callable[[Sequence[int], Sequence[int], int], float]

POPULARITY: dict[str, PopularityMetric] = {}
"""User metrics computed from each listed item's number of training users."""

OVERALL: dict[str, OverallMetric] = {}
"""Metrics over all lists together: how many lists have an item, as a histogram."""


def popularity_metric(name: str, about: About) -> Callable[[PopularityMetric], PopularityMetric]:
    """Register a function of POPULARITY."""

    def keep(function: PopularityMetric) -> PopularityMetric:
        POPULARITY[name] = function
        return register(name, about)(function)

    return keep


def overall_metric(name: str, about: About) -> Callable[[OverallMetric], OverallMetric]:
    """Register a function of OVERALL."""

    def keep(function: OverallMetric) -> OverallMetric:
        OVERALL[name] = function
        return register(name, about)(function)

    return keep


@popularity_metric(
    "novelty",
    About(
        place=130,
        family="popularity",
        needs=("train",),
        bounds=NOT_NEGATIVE,
        title="novelty (surprisal, in bits)",
        formula="Mean -log2 p over the first k entries; p is the share of training users with the item.",
        edges=f"{NO_ROWS} An item nobody has counts as if one user had it.",
        source="Zhou et al. 2010, Solving the apparent diversity-accuracy dilemma of recommender systems",
    ),
)
def novelty(lists: ListedCounts, ks: Sequence[int]) -> Floats:
    """Mean -log2 p over the first k entries.

    p is the share of training users with the item. float64 (u, c), in bits; NaN for a user without a list.
    An item which nobody has counts as if one user had it: log2(users), the largest possible value. Blind to
    whether anything new is any good, and to what the user knows from elsewhere. Source: Zhou et al. 2010,
    "Solving the apparent diversity-accuracy dilemma of recommender systems" (surprisal). Without training
    users the value is NaN.
    """
    return average_entries(lists, -np.log2(lists.share_users(at_least=1)), ks)


@popularity_metric(
    "mean_popularity",
    About(
        "small",
        place=150,
        family="popularity",
        needs=("train",),
        title="mean popularity",
        formula="Share of training users with an item, averaged over the first k entries.",
        edges=NO_ROWS,
        source="Yin et al. 2012, Challenging the long tail recommendation",
    ),
)
def mean_popularity(lists: ListedCounts, ks: Sequence[int]) -> Floats:
    """Mean share of training users with a listed item.

    float64 (u, c), in [0, 1], over the first k entries; NaN for a user without a list. A mean: blind to one
    unknown item among hits. Without training users the value is NaN. Source: Yin et al. 2012, "Challenging
    the long tail recommendation", as a share.
    """
    return average_entries(lists, lists.share_users(), ks)


def average_entries(lists: ListedCounts, value_n: Floats, ks: Sequence[int]) -> Floats:
    """Average the entries' values over first entries, (u, c).

    NaN without an entry, and without training users.
    """
    if not lists.users:
        return np.full((len(lists.offsets) - 1, len(ks)), np.nan)
    return mean_at_cutoffs(lists.offsets, np.where(lists.count_n < 0, np.nan, value_n), ks)


def mean_at_cutoffs(offsets: Ints, value_n: Floats, ks: Sequence[int]) -> Floats:
    """Average lists' first min(k, length) values, float64 (u, c).

    NaN if empty. NaN among the values is a place without one.
    """
    length = np.diff(offsets)
    out = np.full((len(length), len(ks)), np.nan)
    for rows, place in _blocks(offsets, ks, 1):
        filled = (place >= 0) & ~np.isnan(value_n[place])
        running = np.cumsum(np.where(filled, value_n[place], 0.0), axis=1)
        out[rows] = _at(running, np.cumsum(filled, axis=1, dtype=np.int64), length[rows], ks, at_least=1)
    return out


@register(
    "diversity",
    About(
        place=140,
        family="diversity",
        needs=("features",),
        bounds=(0.0, 2.0),
        title="intra-list diversity",
        formula="1 - mean cosine over pairs among the first k items.",
        edges="No value for fewer than two entries. An item without features has cosine 0 with all.",
        source="Ziegler et al. 2005, Improving recommendation lists through topic diversification",
    ),
)
def intra_list_diversity(offsets: Ints, items: Ints, vector_id: Floats, ks: Sequence[int]) -> Floats:
    """1 - mean cosine over pairs among the first k entries.

    float64 (u, c), in [0, 2]; NaN for fewer than two entries; a zero vector has cosine 0 with all. sum_{a <
    b} v_a v_b is summed as v_b (v_1 + .. + v_{b-1}), all k in one pass. The value depends on where the
    vectors come from: by the model's own vectors its lists look uniform. Source: Ziegler et al. 2005,
    "Improving recommendation lists through topic diversification"; Zhang and Hurley 2008.

    Args:
        offsets: (u + 1,), list bounds.
        items: (n,), rows of `vector_id`; -1: an item without a vector, as with a zero vector; -2: a place
            without an item, left out.
        vector_id: (i, d), of any length.
        ks: cut-offs.
    """
    unit = divide(vector_id, np.linalg.norm(vector_id, axis=1, keepdims=True))

    def similar(items_uk: Ints) -> Floats:
        v_ukd = np.where(items_uk[:, :, None] >= 0, unit[items_uk.clip(min=0)], 0.0)
        earlier = np.cumsum(v_ukd, axis=1) - v_ukd
        total: Floats = np.einsum("ukd,ukd->uk", v_ukd, earlier)
        return total

    return _one_minus_pairs(offsets, items, similar, vector_id.shape[1], ks)


def _one_minus_pairs(
    offsets: Ints, items: Ints, similar: Callable[[Ints], Floats], width: int, ks: Sequence[int]
) -> Floats:
    """Return 1 - mean over pairs.

    `similar` sums each place's similarities to earlier places.
    """
    length = np.diff(offsets)
    out = np.full((len(length), len(ks)), np.nan)
    for rows, place in _blocks(offsets, ks, width):
        items_uk = np.where(place >= 0, items[place], -2)
        running = np.cumsum(similar(items_uk), axis=1)
        filled = np.cumsum(items_uk > -2, axis=1, dtype=np.int64)
        shown = _take_at(filled, length[rows], ks)
        # _at divides by the shown entries; a mean over pairs must divide by the pairs.
        total = _at(running, filled, length[rows], ks, at_least=2) * shown
        out[rows] = 1.0 - divide(total, shown * (shown - 1) / 2, np.nan)
    return out


def _blocks(offsets: Ints, ks: Sequence[int], width: int) -> Iterator[tuple[slice, Ints]]:
    """Yield users with first max(k) entries' positions, (u, k).

    -1 stands beyond the list.
    """
    length = np.diff(offsets)
    depth = int(min(max(ks), length.max(initial=0)))
    step = max(1, CELLS // max(1, depth * width))
    for start in range(0, len(length) if depth else 0, step):
        rows = slice(start, start + step)
        place = offsets[:-1][rows, None] + np.arange(depth)
        yield rows, np.where(place < offsets[1:][rows, None], place, -1)


def _at(running_uk: Floats, filled_uk: Ints, length_u: Ints, ks: Sequence[int], *, at_least: int) -> Floats:
    """Return running sums at min(k, length), divided by entries.

    NaN below `at_least` entries.
    """
    total, shown = _take_at(running_uk, length_u, ks), _take_at(filled_uk, length_u, ks)
    mean: Floats = np.full(total.shape, np.nan)
    return np.divide(total, shown, out=mean, where=shown >= at_least)


def _take_at(running_uk: npt.NDArray[Number], length_u: Ints, ks: Sequence[int]) -> npt.NDArray[Number]:
    """Return each list's running sums at min(k, length).

    An empty list has 0.
    """
    place = np.minimum(length_u[:, None], np.asarray(ks, dtype=np.int64))
    taken = np.take_along_axis(running_uk, np.maximum(place, 1) - 1, axis=1)
    return np.where(place > 0, taken, 0).astype(running_uk.dtype)


OTHER_USERS = "Its interval is for as many other users: more users cover more, and are less uneven."


@overall_metric(
    "coverage",
    About(
        place=80,
        family="coverage",
        wide=True,
        title="catalogue coverage",
        formula="Items in at least one list up to k / items of the catalogue.",
        edges=f"0 without lists. {OTHER_USERS}",
    ),
)
def coverage(times_x: Sequence[int], items_x: Sequence[int], n_items: int) -> float:
    """Return the catalogue's share in at least one list.

    Args as for `gini`. Blind to how often an item is shown: one list in a million is enough.

    >>> coverage([2, 1], [1, 2], 6)
    0.5
    """
    return sum(items for times, items in zip(times_x, items_x, strict=True) if times > 0) / n_items


@overall_metric(
    "gini",
    About(
        "small",
        place=160,
        family="coverage",
        title="Gini coefficient of the items' numbers of lists",
        formula="sum_j (2 j - n - 1) t_j / (n sum t) over the n items in ascending order of their numbers"
        " t.",
        edges=f"No value if nothing was listed. Items never listed count 0. {OTHER_USERS}",
        source="Fleder and Hosanagar 2009, Blockbuster culture's next rise or fall",
    ),
)
def gini(times_x: Sequence[int], items_x: Sequence[int], n_items: int) -> float:
    """Return how unequally often items are listed, 0 .. 1 - 1 / n_items.

    t_j is the number of lists with item j, n the catalogue size. With t ascending, G = sum_j (2 j - n - 1)
    t_j / (n sum t); items_x items were listed times_x times, and items never listed count 0. 0: all equally
    often. The arithmetic is in whole numbers until the division. NaN if nothing was listed. Blind to which
    items are favoured, and to demand: lists following demand are uneven. Source: Fleder and Hosanagar 2009,
    "Blockbuster culture's next rise or fall", section 4.

    Args:
        times_x: different numbers of lists, in any order.
        items_x: how many items are in so many lists.
        n_items: catalogue size, at least sum(items_x).
    """
    known = sorted((int(t), int(h)) for t, h in zip(times_x, items_x, strict=True))
    never = int(n_items) - sum(h for _, h in known)
    # Items a + 1 .. a + h share a count: sum (2 j - n - 1) = h (2 a + h - n).
    before = accumulate((h for _, h in known), initial=never)
    spread = sum(t * h * (2 * a + h - n_items) for (t, h), a in zip(known, before, strict=False))
    total = n_items * sum(t * h for t, h in known)
    return spread / total if total else float("nan")


@overall_metric(
    "entropy",
    About(
        place=165,
        family="coverage",
        bounds=NOT_NEGATIVE,
        title="entropy of the listed items (in nats)",
        formula="-sum p log p over the items; p is an item's share of all entries up to k.",
        edges=f"No value if nothing was listed. {OTHER_USERS}",
        source="Shannon 1948, A mathematical theory of communication",
    ),
)
def entropy(times_x: Sequence[int], items_x: Sequence[int], n_items: int) -> float:
    """Return the entropy of listed items, 0 .. log(n_items), in nats.

    Args as for `gini`. 0: one item has all entries. NaN if nothing was listed. Blind to which items are
    shown. The terms are added exactly, so their order changes no bit.

    >>> entropy([1], [2], 9) == math.log(2)
    True
    """
    shown = [(t, h) for t, h in zip(times_x, items_x, strict=True) if t > 0]
    total = sum(t * h for t, h in shown)
    return math.fsum(t * h / total * math.log(total / t) for t, h in shown) if total else math.nan
