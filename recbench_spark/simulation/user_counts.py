"""Count users and their auctions, where a bootstrap draws users."""

from __future__ import annotations

import numpy as np

from recbench_spark.errors import ConfigError, DataError
from recbench_spark.kernels.arrays import Ints
from recbench_spark.simulation.auction_log import AuctionLogParts, AuctionParts, LoggedPart


def count_users(log: AuctionLogParts) -> Ints:
    """Return the auctions, the sum of the squares of those of each user, and the number of users, (3,).

    A user stands in many parts, so its auctions are added over all of them: 16 bytes for each user of each
    part.

    Raises:
        ConfigError: the log has no users, or its parts are files. DataError: an auction without a user, or
            with two.
    """
    if not isinstance(log, AuctionParts):
        raise ConfigError("replay.resample: user works in one process alone", "--engine local")
    for part in log.parts:
        _check_users(part)
    users = [part.auctions.users for part in log.parts]
    keys, place = np.unique(np.concatenate([one.key_u for one in users]), return_inverse=True)
    auctions = np.zeros(len(keys), dtype=np.int64)
    np.add.at(auctions, place, np.concatenate([one.auctions_u for one in users]))
    return np.array([auctions.sum(), (auctions * auctions).sum(), len(keys)])


def _check_users(part: LoggedPart) -> None:
    user_r = part.auctions.user_key_r
    if user_r is None:
        raise ConfigError(
            "replay.resample: user: the log has no column user_id", "log.columns: {user_id: NAME} maps it"
        )
    first_r = np.repeat(user_r[part.auctions.starts_a[:-1]], np.diff(part.auctions.starts_a))
    for bad_r, reason in (
        (user_r < 0, "have no user_id"),
        (user_r != first_r, "have another user_id than the first row of their auction"),
    ):
        if bad_r.any():
            raise DataError(
                f"replay.resample: user: {int(bad_r.sum()):,} rows of the log {reason}",
                "give each auction one user, or resample queries",
            )
