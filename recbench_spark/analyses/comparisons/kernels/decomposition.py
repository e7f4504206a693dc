"""A mean's change between two nights, split in two.

One part is due to other users, one to other results for the same users. With shares s and means m for
groups g on two nights (1, 2) and c the mean of both totals,

    M2 - M1 = sum_g (s2 - s1) ((m1 + m2) / 2 - c)  +  sum_g (m2 - m1) (s1 + s2) / 2,

the change in mix and the change within, exactly (Kitagawa 1955, "Components of a difference between two
rates"; c changes no sum, since shares add up to 1, and gives a group's part a meaning). State: each group's
users and exact sum; all arithmetic is in fractions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from recbench_spark.errors import DataError

Group = tuple[int, int]
"""Users, and their summed values in units of 2^-52 (high * 2^32 + low from `exact_sums`)."""

UNIT = Fraction(1, 1 << 52)


@dataclass(frozen=True)
class Change:
    """A group's part in the mean's change.

    A mean is None if the group has no users that night.
    """

    group: str
    share_before: Fraction
    share_after: Fraction
    mean_before: Fraction | None
    mean_after: Fraction | None
    mix: Fraction
    within: Fraction


def whole_number(high: int, low: int) -> int:
    """Combine a pair from `resampling.exact_sums` into 2^-52 units."""
    return (int(high) << 32) + int(low)


def split(before: Mapping[str, Group], after: Mapping[str, Group]) -> list[Change]:
    """Return every group's change, by name.

    Over all groups, mix and within add up to the mean's change. A group present on one night only changes
    the mix alone.

    Raises:
        DataError: a night has no users.
    """
    first, second = _total(before, "before"), _total(after, "after")
    users, centre = (first[0], second[0]), (_mean(first) + _mean(second)) / 2
    names = sorted({*before, *after})
    return [_change(g, before.get(g, (0, 0)), after.get(g, (0, 0)), users, centre) for g in names]


def _change(group: str, one: Group, two: Group, users: tuple[int, int], centre: Fraction) -> Change:
    share_1, share_2 = Fraction(one[0], users[0]), Fraction(two[0], users[1])
    mean_1, mean_2 = (_mean(night) if night[0] else None for night in (one, two))
    known_1 = mean_2 if mean_1 is None else mean_1
    known_2 = mean_1 if mean_2 is None else mean_2
    if known_1 is None or known_2 is None:
        return Change(group, share_1, share_2, mean_1, mean_2, Fraction(0), Fraction(0))
    mix = (share_2 - share_1) * ((known_1 + known_2) / 2 - centre)
    within = (known_2 - known_1) * (share_1 + share_2) / 2
    return Change(group, share_1, share_2, mean_1, mean_2, mix, within)


def _mean(group: Group) -> Fraction:
    return group[1] * UNIT / group[0]


def _total(night: Mapping[str, Group], when: str) -> Group:
    users, total = sum(g[0] for g in night.values()), sum(g[1] for g in night.values())
    if not users:
        raise DataError(f"no users on the night {when}", "compare two nights that have results")
    return users, total
