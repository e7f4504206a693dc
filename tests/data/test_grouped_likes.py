"""The generated world of likes: what its tables hold, and that a night can read them."""

from __future__ import annotations

import numpy as np
import pyarrow.parquet as pq
import pytest

from jobs.studies import grouped_likes as job
from recbench_spark.data.grouped_likes import generated, write_tables
from recbench_spark.errors import ConfigError


@pytest.fixture(scope="module")
def world():
    return generated(1000)


def pairs(table, part: str) -> set[tuple[int, int]]:
    rows = table.filter(np.array(table["part"].to_pylist()) == part)
    return set(zip(rows["user_id"].to_pylist(), rows["item_id"].to_pylist(), strict=True))


def test_tables_hold_the_world_as_it_is(world, tmp_path) -> None:
    told = write_tables(world, tmp_path)
    log = pq.read_table(tmp_path / "log.parquet")
    for part, own in (("train", world.train), ("test", world.held)):
        assert pairs(log, part) == set(zip(own.user.tolist(), own.item.tolist(), strict=True))
    assert told == (len(pairs(log, "train")), len(pairs(log, "test"))) and sum(told) == len(log)
    items = pq.read_table(tmp_path / "items.parquet")
    assert items["id"].to_pylist() == list(range(1000))
    assert np.array_equal(np.array(items["vector"].to_pylist(), np.float32), world.features)


def test_three_quarters_of_likes_are_of_two_groups_of_a_taste(world) -> None:
    """15 of 20 by construction, and a few of the other five; likes drawn twice count once."""
    user = world.train.user
    taste, group = world.taste[world.train.item], world.group[world.train.item]
    own = np.array([np.bincount(taste[user == u]).argmax() for u in range(200)])
    rows = user < 200
    assert 0.7 < (taste[rows] == own[user[rows]]).mean() <= 1
    largest = [np.sort(np.bincount(group[user == u]))[-2:].sum() / (user == u).sum() for u in range(200)]
    assert 0.6 < np.mean(largest) < 0.85


def test_test_rows_of_some_users_are_all_of_theirs(world, tmp_path) -> None:
    write_tables(world, tmp_path / "some", test_users=50)
    found = pairs(pq.read_table(tmp_path / "some" / "log.parquet"), "test")
    whole = set(zip(world.held.user.tolist(), world.held.item.tolist(), strict=True))
    users = {user for user, _ in found}
    assert 40 < len(users) <= 50 and found == {(u, i) for u, i in whole if u in users}


@pytest.mark.parametrize("users", [-1, 2001])
def test_test_users_that_there_are_not_are_refused(world, tmp_path, users) -> None:
    with pytest.raises(ConfigError, match=f"{users} users of 2000"):
        write_tables(world, tmp_path, users)


def test_the_job_tells_what_it_wrote_and_refuses_no_items(tmp_path, capsys) -> None:
    args = job.parser().parse_args(["--items", "200", "--folder", str(tmp_path / "w")])
    assert job.main(args) == 0
    assert "400 users, 200 items, " in capsys.readouterr().err
    assert (tmp_path / "w" / "log.parquet").exists()
    args.items = 0
    with pytest.raises(ConfigError, match="--items 0"):
        job.main(args)
