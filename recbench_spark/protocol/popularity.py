"""Classes of items by popularity."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

COLD = "cold"


def class_bounds(counts: Sequence[int], items: Sequence[int]) -> tuple[int, int]:
    """Return the bounds from distinct training counts above 0, ascending, and their numbers of items."""
    sizes = [count * n for count, n in zip(counts, items, strict=True)]
    ends = list(accumulate(sizes))
    # The middle is multiplied by six to compare whole numbers.
    middles = [6 * end - 3 * size for end, size in zip(ends, sizes, strict=True)]
    starts = [*counts, max(counts, default=0) + 1]
    torso, head = (starts[bisect_left(middles, 2 * share * sum(sizes))] for share in (1, 2))
    return torso, head
