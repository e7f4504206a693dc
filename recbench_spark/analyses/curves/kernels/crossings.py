"""Crossings of two learning curves: where to switch systems.

The place is a number of given ratings. The switching system uses A up to tau given ratings, and B from then
on. Its mean over the points is largest at the crossing. Axes: u users, b bootstrap replicates, l points, t
places to switch (0: before the first point; l: behind the last one).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
import numpy.typing as npt

from recbench_spark.analyses.comparisons.kernels.significance import holm
from recbench_spark.core.arrays import Floats, Ints
from recbench_spark.core.resampling import bootstrap_sums, mean_and_error, moments, replicate_means
from recbench_spark.metrics.kernels.learning_curves import point_weights

MOST_AT_ENDS = 0.05
"""If so many replicates (a share) switch before the first or behind the last point, no crossing is shown.
"""


@dataclass(frozen=True)
class SwitchPoint:
    """The best place to switch.

    Attributes:
        swapped: true if the second system comes first.
        place: how many points the first system has.
        given: the largest number of given ratings where the first one is used; 0: never.
        value: the switching system's mean over the points.
    """

    swapped: bool
    place: int
    given: int
    value: float


@dataclass(frozen=True)
class CurveCrossing:
    """Place where two curves cross, with its uncertainty over users.

    Attributes:
        switch: the best place on all users.
        low: lower end of the place's percentile interval, as a number of given ratings.
        high: upper end.
        sign_changes: how often the curves' difference changes its sign.
        share_at_ends: share of replicates whose best place is before the first or behind the last point.
    """

    switch: SwitchPoint
    low: int
    high: int
    sign_changes: int
    share_at_ends: float

    @property
    def shown(self) -> bool:
        """True if the users show a crossing."""
        return self.share_at_ends < MOST_AT_ENDS

    def describe(self) -> str:
        """Return the crossing in words."""
        if not self.shown:
            return "no crossing shown"
        return f"switch after {self.switch.given} given ratings (interval {self.low} to {self.high})"


def find_switch(first_l: Floats, second_l: Floats, given: Sequence[int]) -> SwitchPoint:
    """Find the order and place with the largest mean.

    Among equal ones, the smallest place counts.

    >>> import numpy as np
    >>> find_switch(np.array([0.3, 0.3, 0.3]), np.array([0.1, 0.4, 0.5]), [1, 2, 3])
    SwitchPoint(swapped=False, place=1, given=1, value=0.39999999999999997)
    """
    switches = [find_place(first_l, second_l, given), find_place(second_l, first_l, given, swapped=True)]
    return max(switches, key=lambda switch: switch.value)


def find_place(
    before_l: Floats, after_l: Floats, given: Sequence[int], *, swapped: bool = False
) -> SwitchPoint:
    """Find the smallest place with the largest mean.

    The systems' order is given.

    >>> import numpy as np
    >>> find_place(np.array([0.1, 0.4, 0.5]), np.array([0.3, 0.3, 0.3]), [1, 2, 3]).given
    3
    """
    weights_l = point_weights(given)
    place = int(_best_places(before_l[None], after_l[None], weights_l)[0])
    value = float(np.average(np.append(before_l[:place], after_l[place:]), weights=weights_l))
    return SwitchPoint(swapped, place, int(given[place - 1]) if place else 0, value)


def _best_places(before_bl: Floats, after_bl: Floats, weights_l: Floats) -> Ints:
    """Return the smallest best place t for each replicate, (b,).

    This place maximises sum_{l <= t} before + sum_{l > t} after.
    """
    gains_bl = np.cumsum((before_bl - after_bl) * weights_l, axis=1)
    gains_bt = np.column_stack([np.zeros(len(gains_bl)), gains_bl])
    places_b: Ints = np.argmax(gains_bt, axis=1).astype(np.int64)
    return places_b


def find_crossing(
    first_l: Floats,
    second_l: Floats,
    first_bl: Floats,
    second_bl: Floats,
    given: Sequence[int],
    *,
    level: float = 0.95,
) -> CurveCrossing:
    """Find where two mean curves cross, with an interval.

    The interval comes from bootstrap replicates of the curves. The interval's ends are places in
    replicates, rounded outwards (Efron and Tibshirani 1993, section 13.3). All replicates keep the systems
    in the best order for all users.
    """
    switch = find_switch(first_l, second_l, given)
    pair = (second_bl, first_bl) if switch.swapped else (first_bl, second_bl)
    drawn = ~np.isnan(pair[0] + pair[1]).any(axis=1)
    places_b = _best_places(pair[0][drawn], pair[1][drawn], point_weights(given))
    given_b = np.concatenate([[0], np.asarray(given, np.int64)])[places_b]
    low = int(np.quantile(given_b, (1 - level) / 2, method="lower"))
    high = int(np.quantile(given_b, (1 + level) / 2, method="higher"))
    signs = np.sign(first_l - second_l)
    changes = int(np.count_nonzero(np.diff(signs[signs != 0])))
    ends = float(np.mean((places_b == 0) | (places_b == len(given))))
    return CurveCrossing(switch, low, high, changes, ends)


def bootstrap_crossing(
    keys_u: npt.NDArray[np.int64],
    first_ul: Floats,
    second_ul: Floats,
    given: Sequence[int],
    *,
    replicates: int = 1000,
    seed: int = 42,
    level: float = 0.95,
) -> CurveCrossing:
    """Find two systems' crossing from their common users' values.

    Sums are whole numbers, so the users' order changes no bit. A user without both values at a point enters
    neither curve there.

    Args:
        keys_u: (u,) hashed users; they decide the bootstrap weights.
        first_ul: (u, l) one system's values.
        second_ul: (u, l) the other's values.
        given: the points.
        replicates: number of bootstrap replicates.
        seed: seed of the bootstrap.
        level: level of the interval.
    """
    missing = np.isnan(first_ul) | np.isnan(second_ul)
    values = np.where(np.tile(missing, 2), np.nan, np.column_stack([first_ul, second_ul]))
    means = mean_and_error(moments(values))[0]
    means_b = replicate_means(*bootstrap_sums(keys_u, values, replicates, seed))
    at = len(given)
    return find_crossing(means[:at], means[at:], means_b[:, :at], means_b[:, at:], given, level=level)


def adjust_shares(crossings: Sequence[CurveCrossing]) -> Floats:
    """Return the shares at the ends, adjusted by Holm's method.

    The adjustment is for the number of pairs. From `MOST_AT_ENDS` on, no crossing is shown among these
    pairs.
    """
    return holm(np.array([crossing.share_at_ends for crossing in crossings]))


def switch_values(first_ul: Floats, second_ul: Floats, switch: SwitchPoint) -> Floats:
    """Return the switching system's values, (u, l).

    Nothing is ranked again.
    """
    before_ul, after_ul = (second_ul, first_ul) if switch.swapped else (first_ul, second_ul)
    return np.column_stack([before_ul[:, : switch.place], after_ul[:, switch.place :]])


def choose_switch(values: Mapping[str, Floats], given: Sequence[int]) -> tuple[str, str, SwitchPoint]:
    """Choose two systems and the place with the largest mean.

    The mean is over the points, on users set aside. Among equal ones, the first pair counts. Measure the
    switching system on other users: on these it looks better than it is.

    Args:
        values: (u, l) each system's values, two or more.
        given: the points.

    Returns:
        The first system, the second one, and the place.
    """
    means = {name: mean_and_error(moments(values_ul))[0] for name, values_ul in values.items()}
    return choose_pair(means, given)


def choose_pair(means: Mapping[str, Floats], given: Sequence[int]) -> tuple[str, str, SwitchPoint]:
    """Choose two systems and their switch from mean curves.

    The rule is that of `choose_switch`.

    >>> import numpy as np
    >>> choose_pair({"a": np.array([0.1, 0.4]), "b": np.array([0.3, 0.3])}, [1, 2])[:2]
    ('b', 'a')
    """
    switches = {(a, b): find_switch(means[a], means[b], given) for a, b in combinations(means, 2)}
    (first, second), switch = max(switches.items(), key=lambda one: one[1].value)
    order = (second, first) if switch.swapped else (first, second)
    return (*order, replace(switch, swapped=False))
