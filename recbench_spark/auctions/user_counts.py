"""Check users and count them, where a bootstrap draws users."""

from __future__ import annotations

import numpy as np

from recbench_spark.auctions.auction_log import AuctionLogParts, LoggedPart, Sums
from recbench_spark.core.arrays import Ints
from recbench_spark.errors import ConfigError, DataError


def count_users(log: AuctionLogParts) -> Ints:
    """Return the auctions, the sum of the squares of those of each user, and the number of users, (3,).

    Raises:
        ConfigError: the log has no users. DataError: an auction without a user, or with two.
    """
    (problems,) = log.add(find_user_problems)
    if problems[0]:
        raise ConfigError(
            "replay.resample: user: the log has no column user_id", "log.columns: {user_id: NAME} maps it"
        )
    for rows, reason in zip(problems[1:].tolist(), PROBLEMS, strict=True):
        if rows:
            raise DataError(
                f"replay.resample: user: {rows:,} rows of the log {reason}",
                "give each auction one user, or resample queries",
            )
    return log.count_users()


PROBLEMS = ("have no user_id", "have another user_id than the first row of their auction")
"""Mistakes of users, in the order in which they are reported."""


def find_user_problems(part: LoggedPart) -> Sums:
    """Return whether a part has no users, and its rows with each of PROBLEMS, (3,)."""
    user_r, starts_a = part.auctions.user_key_r, part.auctions.starts_a
    if user_r is None:
        return (np.array([1, 0, 0]),)
    first_r = np.repeat(user_r[starts_a[:-1]], np.diff(starts_a))
    return (np.array([0, (user_r < 0).sum(), (user_r != first_r).sum()]),)
