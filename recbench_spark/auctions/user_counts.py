"""Check and count users, for a bootstrap which draws users."""

from __future__ import annotations

import numpy as np

from recbench_spark.auctions.auction_log import AuctionLogParts, LoggedPart, Sums
from recbench_spark.core.arrays import Ints
from recbench_spark.errors import ConfigError, DataError


def count_users(log: AuctionLogParts) -> Ints:
    """Return auctions, their squares summed by user, and users, (3,).

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
"""Mistakes about users, in the order in which they are reported."""


def find_user_problems(part: LoggedPart) -> Sums:
    """Count a part's mistakes about users, (3,).

    The first number is 1 if it has no users; the others are rows with each of PROBLEMS.
    """
    user_r, starts_a = part.auctions.user_key_r, part.auctions.starts_a
    if user_r is None:
        return (np.array([1, 0, 0]),)
    first_r = np.repeat(user_r[starts_a[:-1]], np.diff(starts_a))
    return (np.array([0, (user_r < 0).sum(), (user_r != first_r).sum()]),)
