"""The generated world of likes: its tables hold it, and a night can read them."""

from __future__ import annotations

import numpy as np
import pyarrow.parquet as pq
import pytest

from jobs.studies import grouped_likes as job
from jobs.studies import movie_features
from jobs.studies.planted_communities import generate_world, write_tables
from recbench_spark.errors import ConfigError


@pytest.fixture(scope="module")
def world():
    return generate_world(1000)


def pairs(table, part: str) -> set[tuple[int, int]]:
    rows = table.filter(np.array(table["part"].to_pylist()) == part)
    return set(zip(rows["user_id"].to_pylist(), rows["item_id"].to_pylist(), strict=True))


def test_tables_hold_the_world_as_it_is(world, tmp_path) -> None:
    sizes = write_tables(world, tmp_path)
    log = pq.read_table(tmp_path / "log.parquet")
    for part, own in (("train", world.train), ("test", world.held)):
        assert pairs(log, part) == set(zip(own.user.tolist(), own.item.tolist(), strict=True))
    assert sizes == (len(pairs(log, "train")), len(pairs(log, "test"))) and sum(sizes) == len(log)
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
    test_pairs = pairs(pq.read_table(tmp_path / "some" / "log.parquet"), "test")
    whole = set(zip(world.held.user.tolist(), world.held.item.tolist(), strict=True))
    users = {user for user, _ in test_pairs}
    assert 40 < len(users) <= 50 and test_pairs == {(u, i) for u, i in whole if u in users}


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


def test_features_of_movies_are_genres_and_words_and_nothing_of_who_watched(tmp_path, capsys) -> None:
    """Movie 7 was liked by nobody and has its row; a like more moves no number."""
    folder = tmp_path / "ml"
    folder.mkdir()
    (folder / "movies.csv").write_text("movieId,title,genres\n3,One One,A|B\n5,Two,A\n7,Two,C\n")
    features = []
    for likes in ("1,3,5\n2,5,4\n", "1,3,5\n2,5,4\n2,3,5\n"):
        (folder / "ratings.csv").write_text(f"userId,movieId,rating\n{likes}")
        out = ["--data", str(folder), "--out", str(tmp_path / "movies.parquet")]
        assert movie_features.main(movie_features.parser().parse_args(out)) == 0
        features.append(pq.read_table(tmp_path / "movies.parquet"))
    assert "3 movies, 35 numbers each" in capsys.readouterr().err
    assert features[0].equals(features[1]) and features[0]["id"].to_pylist() == [3, 5, 7]
    vectors = np.array(features[0]["vector"].to_pylist())
    assert vectors[:, :3].tolist() == [[1, 1, 0], [1, 0, 0], [0, 0, 1]]
    assert sorted(np.abs(vectors[0, 3:]))[-2:] == [0, 2] and (vectors[1, 3:] == vectors[2, 3:]).all()
