"""Divide users' histories into given, tested and hidden rows.

This is done for each user and each number of given ratings. Axes: u users, p rows of the users (user after
user, in the order in which they are given), l points on the curve, x pairs (user, point) at which a user
stands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
import numpy.typing as npt

from recbench_spark.core.arrays import Ints
from recbench_spark.core.compiling import compile_kernel
from recbench_spark.core.hashing import hash_longs, start
from recbench_spark.errors import ConfigError
from recbench_spark.splits.kernels.positions import ascending, number_slots


@dataclass(frozen=True)
class PrefixRule:
    """The users at each point, and the rows tested there.

    Attributes:
        given: the points, ascending; the last one is L.
        test: `common`: rows 1 .. L are neither truth nor candidates at any point, so points differ by what
            is known alone. `rest`: all that is not given is the truth.
        minimum: fewest rows that a user is tested on.
        users: `fixed`: users with L + minimum rows or more, at every point. `as_long_as`: a user with n
            rows stands at the points up to min(L, n - minimum).
    """

    given: tuple[int, ...]
    test: Literal["common", "rest"] = "common"
    minimum: int = 1
    users: Literal["fixed", "as_long_as"] = "fixed"

    def __post_init__(self) -> None:
        """Check that points are ascending whole numbers, with test rows.

        Raises:
            ConfigError: the points are no such numbers.
        """
        whole = all(isinstance(point, int) and not isinstance(point, bool) for point in self.given)
        if not self.given or not whole or self.given[0] < 1 or any(b <= a for a, b in pairwise(self.given)):
            raise ConfigError(
                f"learning curve: {list(self.given)} are no numbers of given ratings",
                "whole numbers from 1, ascending, each once",
            )
        if self.minimum < 1:
            raise ConfigError(f"learning curve: a minimum of {self.minimum} test rows", "1 or more")


@dataclass(frozen=True)
class PrefixRows:
    """Rows for all pairs (user, point), as places.

    Attributes:
        user_x: each pair's user.
        point_x: the number of given ratings.
        given_p: places of the given rows; `given_offsets` (x + 1,) are their bounds.
        truth_p: places of the rows to be ranked, with `truth_offsets`.
        masked_p: places of rows which are no candidates, with `masked_offsets`.
    """

    user_x: Ints
    point_x: Ints
    given_offsets: Ints
    given_p: Ints
    truth_offsets: Ints
    truth_p: Ints
    masked_offsets: Ints
    masked_p: Ints


def order_by_hash(
    offsets: Ints,
    user_keys_u: npt.NDArray[np.int64],
    item_keys_p: npt.NDArray[np.int64],
    draw: int,
    seed: int,
) -> Ints:
    """Order each user's rows by hash.

    The hash is over (seed, draw, user, item), and the result is the rows' places. A user's order depends on
    raw keys alone: no partitioning and no row order changes it.

    Args:
        offsets: (u + 1,) bounds of the users' rows.
        user_keys_u: keys of the users.
        item_keys_p: keys of the items, each once for a user.
        draw: number of the draw.
        seed: for all draws.
    """
    user_p = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    hashes_p = start(len(item_keys_p))
    for numbers in (np.array([seed]), np.array([draw])):
        hashes_p = hash_longs(np.resize(numbers, len(item_keys_p)).astype(np.int64), hashes_p)
    hashes_p = hash_longs(user_keys_u[user_p], hashes_p)
    hashes_p = hash_longs(item_keys_p, hashes_p)
    return ascending(user_p, hashes_p, item_keys_p)


def count_points(offsets: Ints, rule: PrefixRule) -> Ints:
    """Count the points at which each user stands, (u,).

    Each user stands at the first points.
    """
    room_u = np.diff(offsets) - rule.minimum
    if rule.users == "fixed":
        return np.where(room_u >= rule.given[-1], len(rule.given), 0)
    return np.searchsorted(np.asarray(rule.given), room_u, side="right").astype(np.int64)


def make_prefixes(offsets: Ints, rule: PrefixRule, points: Sequence[int] | None = None) -> PrefixRows:
    """Return the rows for all pairs, by user and point.

    Args:
        offsets: (u + 1,) bounds of the users' rows.
        rule: who stands where, and what is tested.
        points: the points to make, some of `rule.given`; None: all.
    """
    standing_u = count_points(offsets, rule)
    given = np.asarray(rule.given)
    last_u = np.where(standing_u > 0, given[np.maximum(standing_u - 1, 0)], 0)
    user_x, place_x = number_slots(standing_u)
    if points is not None:
        chosen = np.isin(given[place_x], points)
        user_x, place_x = user_x[chosen], place_x[chosen]
    point_x, first_x, end_x = given[place_x], offsets[user_x], offsets[user_x + 1]
    hidden_x = last_u[user_x] if rule.test == "common" else point_x
    return PrefixRows(
        user_x,
        point_x,
        *list_ranges(first_x, first_x + point_x),
        *list_ranges(first_x + hidden_x, end_x),
        *list_ranges(first_x, first_x + hidden_x),
    )


def list_ranges(first_x: Ints, end_x: Ints) -> tuple[Ints, Ints]:
    """Return all ranges one after another: bounds and numbers."""
    offsets = np.concatenate([[0], np.cumsum(end_x - first_x)]).astype(np.int64)
    numbers = np.empty(offsets[-1], np.int64)
    _fill_ranges(first_x.astype(np.int64), offsets, numbers)
    return offsets, numbers


@compile_kernel
def _fill_ranges(first_x: Ints, offsets: Ints, numbers: Ints) -> None:
    for x in range(len(first_x)):
        for at in range(offsets[x], offsets[x + 1]):
            numbers[at] = first_x[x] + at - offsets[x]
