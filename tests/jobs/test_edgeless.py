"""`jobs/studies/edgeless.py`: items without edges, which a fit with dropout places better."""

from __future__ import annotations

import json

import numpy as np
import pytest

from jobs.studies import edgeless as study
from recbench_spark.errors import ConfigError


def run(*flags: str) -> int:
    return int(study.main(study.parser().parse_args(list(flags))))


def test_items_without_edges_have_no_like_in_any_part() -> None:
    world = study.draw_world(300, 1)
    user, item = world.held
    assert (
        world.alone.sum() == 50 and not world.alone[world.train.item].any() and not world.alone[item].any()
    )
    assert len(item) == study.HELD_LIKES * world.train.users
    train = set(zip(world.train.user.tolist(), world.train.item.tolist(), strict=True))
    assert not train & set(zip(user.tolist(), item.tolist(), strict=True))
    assert set(np.unique(world.block)) == set(range(study.BLOCKS))


def test_shares_of_neighbours_and_ranks_by_hand() -> None:
    block = np.array([0] * 12 + [1] * 12)
    vectors = np.eye(2)[block] + 1e-3 * np.arange(24)[:, None]
    assert study.same_block_share(vectors, block, block >= 0) == 1
    assert study.same_block_share(vectors, np.arange(24), block >= 0) == 0
    world = study.draw_world(300, 1)
    first, best = np.zeros((world.train.users, 1)), np.zeros((300, 1))
    ranked = study.rank_likes(first, best, world)
    assert (ranked["hit_rate"], ranked["gain"]) == (1.0, 1.0)  # nothing scores higher
    alone = study.rank_likes(first + 1, world.alone[:, None].astype(float), world)
    assert alone["in_first"] == 1 and alone["hit_rate"] == 0  # all 50 of them come before the liked ones


def test_a_fit_with_dropout_places_items_without_edges_better(tmp_path, capsys) -> None:
    output = tmp_path / "lines.jsonl"
    flags = ("--kinds", "pinsage", "--items", "360", "--seeds", "1", "--epochs", "4", "--dropouts", "0,0.1")
    assert run(*flags, "--output", str(output)) == 0
    plain, dropped = (json.loads(line) for line in output.read_text(encoding="utf-8").splitlines())
    assert plain["with_edges"] > 0.9 and dropped["with_edges"] > 0.9
    assert dropped["edgeless"] > plain["edgeless"] + 0.05
    table = capsys.readouterr().out.splitlines()
    assert table[-1].startswith("| pinsage | 0.1 |") and len(table) == 4
    assert "hit_rate, to no dropout | gain, to no dropout" in table[0]


@pytest.mark.full
def test_processes_that_share_the_seeds_fit_the_same(tmp_path, capsys) -> None:
    flags = (
        "--kinds",
        "graphsage",
        "--items",
        "120",
        "--seeds",
        "2",
        "--epochs",
        "1",
        "--dropouts",
        "0,.1",
    )
    tables = []
    for processes in ("1", "2"):
        assert run(*flags, "--seeds", "2", "--processes", processes) == 0
        tables.append(capsys.readouterr().out)
    assert tables[0] == tables[1] and "±" in tables[0]


@pytest.mark.parametrize(
    "flags", [("--dropouts", "0,1"), ("--dropouts", "few"), ("--items", "100"), ("--processes", "0")]
)
def test_what_means_nothing_is_refused(flags) -> None:
    with pytest.raises(ConfigError, match=flags[0]):
        run(*flags)
