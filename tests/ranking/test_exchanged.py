"""Exchanged truth: who has whose, in any pieces, and what a model that knows users says of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recbench_spark.config import parse
from recbench_spark.config.benchmark import Benchmark
from recbench_spark.core.hashing import hash_numbers, place_hashes, start
from recbench_spark.errors import ConfigError
from recbench_spark.night.night import open_night
from recbench_spark.ranking import exchanged
from recbench_spark.schemas import CHECKS, METRICS, RANKINGS, RUNS, SPLITS
from recbench_spark.storage.arrow_store import ArrowStore
from tests.nights import DATE, SMALL, Ran, models, run, run_in_pieces, small

PARTS = ("test", "test_exchanged")
EVALUATION = {**SMALL["evaluation"], "metrics": ["ndcg"], "k": [10], "parts": [*PARTS]}
FILE: dict[str, Any] = {
    "models": models("random", "popular", "als_4", "truth"),
    "evaluation": EVALUATION,
    "headline": "ndcg@10",
}


def ask(folder: Path) -> Ran:
    return run(ArrowStore(str(folder)), small(**FILE))


def read_numbers(ran: Ran) -> list[str]:
    rows = ran.store.rows(METRICS, [("part", "=", PARTS[1])])
    return sorted(str([row[name] for name in ("metric", "k", "value", "stderr", "n")]) for row in rows)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """A night in 1, 3 and 17 tasks, where half of the users have another one's truth."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exchanged, "USERS", 60)
        return run_in_pieces(tmp_path_factory.mktemp("exchanged"), ask, read_numbers)


def read_truth(ran: Ran, model: str, part: str) -> dict[str, tuple[int, set[str]]]:
    (run_id,) = {row["run_id"] for row in ran.store.rows(RUNS, [("model", "=", model)])}
    rows = ran.store.rows(RANKINGS, [("run_id", "=", run_id), ("part", "=", part)])
    return {row["user_id"]: (row["user_key"], {*row["item_ids"]}) for row in rows}


def test_users_have_the_truth_of_the_next_one_without_their_own_items(ran: Ran) -> None:
    own, other = (read_truth(ran, "als_4", part) for part in PARTS)
    known: dict[str, set[str]] = {}
    for row in ran.store.rows(SPLITS, [("split_id", "=", ran.night.split_id)]):
        if row["part"] in ("train", "valid"):
            known.setdefault(row["user_id"], set()).add(row["item_id"])
    keys = np.array([key for key, _ in own.values()])
    place = dict(zip(own, place_hashes(hash_numbers(keys, start(len(keys)))), strict=True))
    drawn = sorted((user for user in own if place[user] < 60 / len(own)), key=lambda user: place[user])
    assert 40 < len(drawn) < 80
    turned = zip(drawn, [*drawn[1:], drawn[0]], strict=True)
    expected = {user: own[partner][1] - known.get(user, set()) for user, partner in turned}
    assert {user: truth for user, (_, truth) in other.items()} == {
        u: one for u, one in expected.items() if one
    }


def test_a_model_that_knows_users_is_above_it_and_chance_is_not(ran: Ran) -> None:
    by_run = {row["run_id"]: row["model"] for row in ran.store.rows(RUNS)}
    checks = [row for row in ran.store.rows(CHECKS) if "with the truth of other users" in row["check"]]
    passed = {by_run[row["run_id"]]: row["passed"] for row in checks}
    assert passed["truth"] and not passed["random"] and len(passed) == 4
    assert {row["check"] for row in checks} == {"test: ndcg@10 with the truth of other users"}


@pytest.mark.parametrize(
    "changes",
    [
        {"definition": {"candidates": "uniform"}},
        {"definition": {"candidates_as_of": "first_seen"}},
        {"exposure": {"propensities": {"method": "true"}}},
    ],
    ids=["drawn", "moments", "exposure"],
)
def test_other_questions_are_refused(changes: dict[str, Any], tmp_path: Path) -> None:
    file = small(**{**FILE, "evaluation": {**EVALUATION, **changes}})
    with pytest.raises(ConfigError, match="'test_exchanged' needs one ranking of all items a user"):
        open_night(ArrowStore(str(tmp_path)), file, DATE)


def test_a_part_alone_has_nothing_to_exchange(tmp_path: Path) -> None:
    file = parse(
        Benchmark, {**SMALL, **FILE, "evaluation": {**EVALUATION, "parts": ["test_exchanged"]}}, "tests"
    )
    with pytest.raises(ConfigError, match="does not hold out 'test_exchanged'"):
        open_night(ArrowStore(str(tmp_path)), file, DATE)
