"""Place values and labels in a figure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from recbench_spark.reports.facts import MetricEstimate


@dataclass(frozen=True)
class Axis:
    """A linear scale from values to positions in a figure."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Return a value's position, limited to the figure."""
        share = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 1)

    def ticks(self, about: int = 4) -> list[float]:
        """Return about so many round values inside the scale."""
        raw = (self.high - self.low) / about
        power = 10.0 ** math.floor(math.log10(raw))
        step = next(step * power for step in (1, 2, 5, 10) if step * power >= raw)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [round(i * step, 10) for i in range(first, last + 1)]


def axis_for(estimates: Iterable[MetricEstimate | None], start: float, end: float) -> Axis:
    """Make a scale for every value and interval.

    The scale starts at 0 if 0 is near.
    """
    shown = [estimate for estimate in estimates if estimate is not None]
    ends = [end for e in shown for end in (e.value, *(e.interval or ())) if math.isfinite(end)]
    low, high = (min(ends), max(ends)) if ends else (0.0, 1.0)
    if 0 <= low < 0.6 * high:
        low = 0.0
    if low == high:
        low, high = low - 0.5, high + 0.5
    margin = 0.04 * (high - low)
    return Axis(low if low == 0 else low - margin, high + margin, start, end)


def find_log_ticks(low: float, high: float) -> list[float]:
    """Return 1, 2 and 5 times powers of ten.

    The numbers are in the range from `low` to `high`, both above 0.



    >>> find_log_ticks(4.0, 60.0)
    [5.0, 10.0, 20.0, 50.0]
    """
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = (step * 10.0**power for power in powers for step in (1, 2, 5))
    return [tick for tick in ticks if low <= tick <= high]


def spread_labels(positions: Sequence[float], gap: float, top: float, bottom: float) -> list[float]:
    """Place labels at least `gap` apart, in the same order.

    Labels stay in top..bottom.

    Labels pushed down by those above keep the gap, and so do labels pushed up by those below. The mean of
    both keeps it too, and has no preferred direction.

    >>> spread_labels([10, 11, 50], gap=10, top=0, bottom=100)
    [5.5, 15.5, 50.0]
    """
    order = sorted(range(len(positions)), key=lambda index: positions[index])
    wished = [positions[index] for index in order]
    down = _push_apart(wished, gap)
    up = [-y for y in reversed(_push_apart([-y for y in reversed(wished)], gap))]
    middle = [(a + b) / 2 for a, b in zip(down, up, strict=True)]
    inside = _push_apart([max(y, top) for y in middle], gap)
    inside = [-y for y in reversed(_push_apart([-min(y, bottom) for y in reversed(inside)], gap))]
    placed = dict(zip(order, inside, strict=True))
    return [placed[index] for index in range(len(positions))]


def _push_apart(ascending: Sequence[float], gap: float) -> list[float]:
    placed: list[float] = []
    for y in ascending:
        placed.append(max(y, placed[-1] + gap) if placed else y)
    return placed
