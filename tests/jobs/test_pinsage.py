"""The study of PinSage's choices: its world, what a seed draws, what is not run again, its tables."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from jobs.studies import pinsage as study
from recbench_spark.errors import ConfigError
from recbench_spark.graphs.kernels.samples import rank_bands
from recbench_spark.graphs.kernels.walks import Walks, find_neighbourhoods
from recbench_spark.models.networks.factors import make_pairs
from recbench_spark.runtime.journal import Journal

SMALL = ["--epochs", "1", "--width", "32", "--batch", "64", "--negatives", "20", "--walks", "20"]
SMALL += ["--judged", "30", "--tested", "50", "--world", "1000", "--seeds", "1"]


@pytest.fixture(scope="module")
def world() -> study.PlantedWorld:
    return study.generate_world(1000)


@pytest.fixture
def drawn(world) -> study.SeedDraws:
    return study.SeedDraws(world, study.Setting("test", pairs=300, walks=50), 1, Journal())


def run(folder: Path, *flags: str) -> int:
    return study.main(study.parser().parse_args([*SMALL, "--folder", str(folder), *flags]))


def rows(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]


def test_what_is_there_is_not_run_again_and_another_setting_is_another_fit(tmp_path, capsys) -> None:
    names = "groups,popularity,features,visits,base,curriculum,add,per_pair,per_pair_each"
    assert run(tmp_path, "--pairs", "200", "--variants", names, "--table", str(tmp_path / "t.md")) == 0
    before = rows(tmp_path)
    assert [row["variant"] for row in before] == names.split(",")
    assert before[0]["scaled_mrr"] > before[1]["scaled_mrr"]
    table = (tmp_path / "t.md").read_text()
    assert table in capsys.readouterr().out and "| to base | seeds |" in table
    assert run(tmp_path, "--pairs", "200", "--variants", names) == 0
    assert rows(tmp_path) == before
    assert run(tmp_path, "--pairs", "100", "--variants", "base") == 0
    assert len(rows(tmp_path)) == len(before) + 1
    assert "| base | 1 |" in capsys.readouterr().out
    assert len([path for path in tmp_path.iterdir() if path.name.startswith("base-1-")]) == 2


@pytest.mark.parametrize("top", ["0", "-3"])
def test_neighbourhoods_of_nobody_are_refused(tmp_path, top) -> None:
    with pytest.raises(study.ConfigError, match=f"top: {top} is less than 1"):
        run(tmp_path, "--pairs", "200", "--variants", "base", "--top", top)


def test_groups_are_requested_only_where_there_are_some(tmp_path) -> None:
    (tmp_path / "ml").mkdir()
    (tmp_path / "ml" / "ratings.csv").write_text("userId,movieId,rating\n1,1,5\n1,2,5\n2,1,4\n2,2,4\n")
    (tmp_path / "ml" / "movies.csv").write_text("movieId,title,genres\n1,One (1999),A|B\n2,Two,A\n")
    args = study.parser().parse_args(
        ["--data", str(tmp_path / "ml"), "--folder", str(tmp_path), "--variants", "groups"]
    )
    with pytest.raises(ConfigError, match="only a generated world"):
        study.main(args)


def test_walks_visit_the_group_more_often_than_others(world, drawn) -> None:
    assert (study.generate_world(1000).train.item == world.train.item).all()
    most = drawn.most
    node = most.node.astype(int) - world.train.users
    start = np.repeat(np.arange(1000), np.diff(most.indptr))
    same = world.group[node] == world.group[start]
    assert 0.15 < same.mean() < 0.5
    assert most.visits[same].mean() > 1.5 * most.visits[~same].mean()


def test_fewer_neighbours_are_the_first_of_more(drawn) -> None:
    indptr, src = study.build_bipartite(drawn.train)
    walks = Walks(50, 5, 0.5, 2, 10, 1)
    expected = find_neighbourhoods(
        indptr, src, study.hash_numbers(np.arange(1000), 0), drawn.train.users, walks
    )
    result = study.keep_most_visited(drawn.most, 10)
    for name in ("indptr", "node", "visits"):
        assert (getattr(result, name) == getattr(expected, name)).all()
    csr = drawn.graph(10).blocks[0]
    assert np.allclose(np.add.reduceat(csr.weight, csr.indptr[:-1]), 1, atol=1e-6)
    assert set(csr.src[:10].tolist()) == set((expected.node[:10] - drawn.train.users).tolist())


def test_pairs_of_some_users_are_about_as_many_as_requested(drawn) -> None:
    drawn_users = study.draw_users(drawn.train, 300, 1)
    sizes, own = np.diff(drawn.train.indptr), np.diff(drawn_users.indptr)
    assert ((own == 0) | (own == sizes)).all() and own.sum() == len(drawn_users.item)
    user = int(np.flatnonzero(own)[3])
    begin = drawn.train.indptr[user]
    assert (
        drawn_users.item[drawn_users.indptr[user] :][: sizes[user]]
        == drawn.train.item[begin:][: sizes[user]]
    ).all()
    assert 250 < len(drawn.pairs[0]) < 350


def test_a_band_has_rows_of_its_queries_alone(drawn) -> None:
    messages: list[str] = []
    drawn.say = messages.append
    queries = np.unique(drawn.pairs[0])
    others = np.setdiff1d(np.arange(1000), queries)
    assert (np.diff(drawn.band.indptr)[others] == 0).all()
    assert f"{len(queries):,} queries, {len(queries):,} of them reach fewer" in messages[0]
    users, q = drawn.train.users, int(queries[7])
    expected = rank_bands(
        study.build_bipartite(drawn.train),
        np.array([users + q]),
        (users, users + 1000),
        (2000, 5000),
        least=1e-5,
    )
    row = drawn.band.node[drawn.band.indptr[q] : drawn.band.indptr[q + 1]]
    assert row.tolist() == (expected.node - users).tolist()


def test_ranks_by_a_query_s_numbers_then_by_popularity_by_hand() -> None:
    train = make_pairs(np.array([0, 1, 2, 0, 1, 0]), np.array([2, 2, 2, 3, 3, 1]), 3, 5)
    popular = study.popularity(train)
    assert np.argsort(-popular)[:3].tolist() == [2, 3, 1]
    pairs = np.array([0, 0, 2]), np.array([3, 1, 1])
    near = {0: (np.array([1, 4]), np.array([2, 5])), 2: (np.array([], int), 0)}
    assert study.rank_by_visits(near.__getitem__, popular, pairs).tolist() == [4, 2, 2]


def test_differences_are_within_a_seed() -> None:
    def row(variant: str, seed: int, value: float) -> dict:
        numbers = ("hit_rate@10", "hit_rate@50", "hit_rate@500", "scaled_mrr", "best_epoch")
        return {"variant": variant, "seed": seed, **dict.fromkeys(numbers, value)}

    result = [row("base", 1, 0.5), row("base", 2, 0.7), row("mean", 1, 0.4), row("mean", 2, 0.65)]
    result += [row("max", 2, 0.8), row("add", 3, 0.1)]
    table = study.format_differences(result).splitlines()
    assert len(table) == 4  # `add` has no seed with base
    assert "| mean | 2 | -0.0750 ± 0.32 |" in table[2] and "| max | 1 | +0.1000 |" in table[3]
    assert study.format_interval([1.0, 2.0, 3.0]) == "2 ± 2.5"
