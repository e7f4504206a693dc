"""Generate likes with planted communities.

Pooling by importance can show an effect in them. Items are in groups of about 20, with 50 groups per
taste; there are twice as many users as items. A user has one taste and two of its groups. Of 20 likes, 15
are in these groups (uniformly), 5 among all items, with popular ones more often (density falls with the
square root of the popularity rank). So walks visit an item's group often, and others seldom. Features sum
the taste's and the group's centre (31 normal numbers each) with noise NOISE times as large, and the log
degree. A fifth of each user's likes is held out by hash. The arrays need about 1 GB for a million nodes,
without Spark.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from jobs.studies.liked_movies import log_degree, write_features
from recbench_spark.errors import ConfigError
from recbench_spark.models.networks import factors

Floats = npt.NDArray[np.float32]
Rows = npt.NDArray[np.int64]

VERSION = 2
"""Version of the generator; results from other versions are not reused."""

HELD_OUT, SPLIT_SEED = 0.2, 7
ITEMS_PER_TASTE, GROUPS_PER_TASTE, GROUP_LIKES, OTHER_LIKES, GROUPS_PER_USER = 1000, 50, 15, 5, 2
DIMS, NOISE = 31, 2.0


class PlantedWorld(NamedTuple):
    """A generated world: liked pairs, item features, groups and tastes.

    Pairs are train and held out; each item has a group and a taste.
    """

    train: factors.UserItemPairs
    held: factors.UserItemPairs
    features: Floats
    group: Rows | None = None
    taste: Rows | None = None


def generate_world(items: int) -> PlantedWorld:
    """Generate the world with so many items.

    The world is the same in every run and version of the code.
    """
    draw = np.random.default_rng(11)
    users, tastes = 2 * items, max(items // ITEMS_PER_TASTE, 1)
    groups = tastes * GROUPS_PER_TASTE
    taste_u = draw.integers(0, tastes, users)
    group_ug = taste_u[:, None] + tastes * draw.integers(0, GROUPS_PER_TASTE, (users, GROUPS_PER_USER))
    chosen = np.take_along_axis(group_ug, draw.integers(0, GROUPS_PER_USER, (users, GROUP_LIKES)), axis=1)
    own = chosen + groups * draw.integers(0, max(items // groups, 1), chosen.shape)
    place = (items * draw.random((users, OTHER_LIKES)) ** 2).astype(np.int64)
    item = np.hstack([own % items, draw.permutation(items)[place]])
    pairs = factors.make_pairs(np.repeat(np.arange(users), item.shape[1]), item.reshape(-1), users, items)
    train, held = factors.split_pairs(pairs, HELD_OUT, SPLIT_SEED)
    group = np.arange(items) % groups
    centres = (draw.standard_normal((size, DIMS), np.float32) for size in (tastes, groups))
    features = next(centres)[group % tastes] + next(centres)[group]
    features += NOISE * draw.standard_normal((items, DIMS), np.float32)
    return PlantedWorld(train, held, np.hstack([features, log_degree(train)]), group, group % tastes)


def write_tables(world: PlantedWorld, folder: Path, test_users: int = 0) -> tuple[int, int]:
    """Write a world as the tables a night reads.

    The tables are `log.parquet` (user_id, item_id, part) and `items.parquet` (id, vector).

    Args:
        world: the world to write; its ids are whole numbers.
        folder: the target; it is created if needed.
        test_users: number of users, drawn by hash, whose held-out rows are part `test`; others' held-out
            rows are left out. 0 means all users.

    Returns:
        Counts of training rows and test rows.

    Raises:
        ConfigError: the number of users is negative, or larger than the world's.
    """
    held = _select_users(world.held, test_users)
    folder.mkdir(parents=True, exist_ok=True)
    parts = {"train": world.train, "test": held}
    rows = [
        pa.table(
            {"user_id": pairs.user.astype(np.int64), "item_id": pairs.item.astype(np.int64)}
        ).append_column("part", pa.repeat(part, len(pairs.item)))
        for part, pairs in parts.items()
    ]
    pq.write_table(pa.concat_tables(rows), folder / "log.parquet")
    write_features(folder / "items.parquet", np.arange(world.train.items), world.features)
    return len(world.train.item), len(held.item)


def _select_users(pairs: factors.UserItemPairs, users: int) -> factors.UserItemPairs:
    """Select the pairs of users with the smallest hashes."""
    if not 0 <= users <= pairs.users:
        raise ConfigError(f"{users} users of {pairs.users}", "0 is all of them")
    if not users:
        return pairs
    is_selected = np.zeros(pairs.users, np.bool_)
    is_selected[factors.order_users_by_hash(pairs.users, SPLIT_SEED)[:users]] = True
    return factors.select_users(pairs, is_selected)
