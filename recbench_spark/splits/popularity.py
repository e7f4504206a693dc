"""Classify items by popularity: head, torso, tail, cold."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from itertools import accumulate

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recbench_spark.core.arrays import Ints

COLD = "cold"
CLASSES = np.array([COLD, "tail", "torso", "head"])
"""Indexed by the number of bounds that a training count reaches."""


def class_bounds(counts: Sequence[int], items: Sequence[int]) -> tuple[int, int]:
    """Return the training counts at which torso and head begin.

    The counts follow from the distinct training counts above 0, ascending, and the number of items with
    each.
    """
    sizes = [count * n for count, n in zip(counts, items, strict=True)]
    ends = list(accumulate(sizes))
    # The middle is multiplied by six to compare whole numbers.
    middles = [6 * end - 3 * size for end, size in zip(ends, sizes, strict=True)]
    starts = [*counts, max(counts, default=0) + 1]
    torso, head = (starts[bisect_left(middles, 2 * share * sum(sizes))] for share in (1, 2))
    return torso, head


def count_items(tables: Iterable[pa.Table]) -> Counter[int]:
    """Count items by their training rows, above 0."""
    total: Counter[int] = Counter()
    for table in tables:
        counts, items = np.unique(table.column("n_train").to_numpy(), return_counts=True)
        total.update({int(count): int(n) for count, n in zip(counts, items, strict=True) if count})
    return total


def find_head(histogram: Mapping[int, int], share: Fraction) -> int:
    """Return the training count from which items are the short head.

    The head: the most popular items that together hold more than `share` (below 1) of the training rows,
    as few as possible; items of equal counts stand together. `histogram`: items by training rows above 0.

    >>> find_head({1: 3, 2: 1, 7: 1}, Fraction(7, 12)), find_head({1: 3, 2: 1, 7: 1}, Fraction(1, 2))
    (2, 7)
    """
    total, held = sum(count * n for count, n in histogram.items()), 0
    for count in sorted(histogram, reverse=True):
        held += count * histogram[count]
        if held > share * total:
            return count
    return 1


def find_bounds(n_train_i: Ints) -> tuple[int, int]:
    """Return `class_bounds` from all items' training counts, (i,)."""
    counts, items = np.unique(n_train_i[n_train_i > 0], return_counts=True)
    return class_bounds(counts.tolist(), items.tolist())


def measure_head(histogram: Mapping[int, int], share: Fraction) -> tuple[int, int]:
    """Return the training count of `find_head`, and how many items are in the head."""
    head = find_head(histogram, share)
    return head, sum(items for count, items in histogram.items() if count >= head)


def label_popularity(n_train_i: Ints, bounds: tuple[int, int]) -> npt.NDArray[np.str_]:
    """Return popularity classes, (i,), by training count.

    `bounds` are the counts from which on items are torso and head.
    """
    return CLASSES[(n_train_i > 0) * (1 + np.searchsorted(bounds, n_train_i, "right"))]
