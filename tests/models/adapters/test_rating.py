"""A night that predicts ratings: means and ALS against plain arithmetic on the tables of the split."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from recbench_spark.errors import ConfigError
from recbench_spark.night.benchmark_checks import check_benchmark
from recbench_spark.schemas import CHECKS, COMPARISONS, EMBEDDINGS, METRICS, SPLITS, USER_METRICS
from recbench_spark.storage.arrow_store import ArrowStore
from tests.nights import Ran, read_rows, run, small

Rows = list[tuple[str, str, float]]

pytestmark = pytest.mark.full  # a night of its own

MODELS = [
    {"name": "mean", "kind": "means", "means": "global"},
    {"name": "means", "kind": "means", "item_shrinkage": 3, "user_shrinkage": 2},
    {"name": "als", "kind": "als", "rank": 3, "iterations": 3, "implicit": False},
    {"name": "popular", "kind": "popular"},
]


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    evaluation = {"task": "rating", "bootstrap": {"replicates": 20}}
    store = ArrowStore(str(tmp_path_factory.mktemp("rating")))
    return run(store, small(models=MODELS, evaluation=evaluation, comparisons={}))


def read_part(night: Ran, part: str) -> Rows:
    return [(row.user_id, row.item_id, row.rating) for row in read_rows(night.store, SPLITS, part=part)]


def value(night: Ran, model: str, metric: str) -> float:
    run_id = night.outcome.run_ids[model]
    (row,) = read_rows(night.store, METRICS, run_id=run_id, metric=metric)
    assert (row.part, row.k, row.slice_key) == ("test", None, None)
    return float(row.value)


def slow_means(train: Rows, item_shrinkage: float | Fraction, user_shrinkage: float | Fraction) -> Any:
    """mu, b_i and b_u as fractions, one user and item at a time."""
    mean = Fraction(sum(Fraction(r) for _, _, r in train), len(train))

    def deviations(side: int, left: list[Fraction], shrinkage: int) -> dict[str, Fraction]:
        ids = {row[side] for row in train}
        own = {one: [x for row, x in zip(train, left, strict=True) if row[side] == one] for one in ids}
        return {one: sum(xs, Fraction()) / (len(xs) + shrinkage) for one, xs in own.items()}

    left = [Fraction(r) - mean for _, _, r in train]
    items = deviations(1, left, item_shrinkage)
    left = [x - items[i] for x, (_, i, _) in zip(left, train, strict=True)]
    users = deviations(0, left, user_shrinkage)
    return lambda u, i: mean + items.get(i, Fraction()) + users.get(u, Fraction())


def rmse_and_mae(test: Rows, predict: Any) -> tuple[float, float]:
    errors = [predict(u, i) - Fraction(r) for u, i, r in test]
    return math.sqrt(sum(e * e for e in errors) / len(errors)), float(sum(map(abs, errors)) / len(errors))


def test_means_predict_what_plain_arithmetic_does(night: Ran) -> None:
    train, test = read_part(night, "train"), read_part(night, "test")
    means = rmse_and_mae(test, slow_means(train, 3, 2))
    assert (value(night, "means", "rmse"), value(night, "means", "mae")) == pytest.approx(means, rel=1e-9)
    mean = Fraction(sum(Fraction(r) for _, _, r in train), len(train))
    assert value(night, "mean", "rmse") == pytest.approx(rmse_and_mae(test, lambda u, i: mean)[0], rel=1e-9)
    assert value(night, "means", "rmse") < value(night, "mean", "rmse")


def test_als_is_measured_on_its_stored_vectors_and_unseen_pairs_get_the_mean(night: Ran) -> None:
    train, test = read_part(night, "train"), read_part(night, "test")
    vectors = {}
    for row in read_rows(night.store, EMBEDDINGS):
        if len(row.vector) == 3:
            vectors[row.side, row.id] = [float(x) for x in row.vector]
    mean = sum(r for _, _, r in train) / len(train)
    low, *_, high = sorted(r for _, _, r in train + test)  # the scale of the log, as the file gives none

    def predict(u: str, i: str) -> float:
        if ("user", u) not in vectors or ("item", i) not in vectors:
            return mean
        score = sum(a * b for a, b in zip(vectors["user", u], vectors["item", i], strict=True))
        return min(max(score, low), high)

    wanted = math.sqrt(sum((predict(u, i) - r) ** 2 for u, i, r in test) / len(test))
    assert value(night, "als", "rmse") == pytest.approx(wanted, rel=1e-9)


def test_users_pairs_and_unknown_pairs_stand_in_checks(night: Ran) -> None:
    train, test = read_part(night, "train"), read_part(night, "test")
    known = [{row[side] for row in train} for side in (0, 1)]
    unknown = sum(u not in known[0] or i not in known[1] for u, i, _ in test)
    result = read_rows(night.store, CHECKS, run_id=night.outcome.run_ids["als"])
    facts = {row.check: row.observed for row in result}
    assert facts["test: predicted pairs"] == len(test)
    assert facts["test: users"] == len({u for u, _, _ in test})
    assert facts["test: pairs unknown to the model"] == unknown


def test_squared_errors_of_users_are_kept_and_compared(night: Ran) -> None:
    run_id = night.outcome.run_ids["mean"]
    rows = read_rows(night.store, USER_METRICS, run_id=run_id)
    assert {row.metric for row in rows} == {"mse", "mae"}
    assert {row.metric for row in read_rows(night.store, COMPARISONS)} == {"mse", "mae"}


def test_a_model_without_ratings_fails_alone_and_says_why(night: Ran) -> None:
    assert set(night.outcome.run_ids) == {"mean", "means", "als"}
    assert "kind 'popular' does not predict ratings" in night.outcome.failed["popular"]


def test_the_report_and_the_leaderboard_know_the_headline(night: Ran) -> None:
    assert "rmse" in night.outcome.leaderboard
    lines = [line for line in night.outcome.leaderboard.splitlines() if "mean" in line]
    assert lines.index(next(x for x in lines if "means" in x)) == 0


def test_predictions_are_clipped_to_the_scale_that_is_given(tmp_path: Path) -> None:
    """A user above all items that others dislike, and an item that all like: together above the scale."""
    low, high = 1.0, 5.0
    rows = [("a", f"{i}", high, "train") for i in range(5)]
    rows += [(user, f"{i}", low, "train") for user in "bcd" for i in range(5)]
    rows += [(user, "9", high, "train") for user in "bcd"]
    rows += [("a", "9", high, "test"), ("b", "0", low, "test"), ("c", "9", low, "test")]
    path = tmp_path / "log.csv"
    path.write_text("u,i,r,p\n" + "".join(f"{','.join(map(str, row))}\n" for row in rows))
    columns = {"user_id": "u", "item_id": "i", "rating": "r", "part": "p"}
    result = {}
    for name, scale in (("clipped", [low, high]), ("narrow", [low, high - 1])):
        dataset = {"name": name, "reader": "csv", "path": str(path), "columns": columns, "scale": scale}
        models = [
            {"name": "means", "kind": "means", "item_shrinkage": 0.01, "user_shrinkage": 0.01},
            *([{"name": "sgd", "kind": "sgd_mf", "dims": 2, "epochs": 2}] if name == "narrow" else []),
        ]
        evaluation = {"task": "rating", "bootstrap": {"replicates": 20}}
        split = {"protocol": "given"}
        changes = {"dataset": dataset, "split": split, "models": models, "evaluation": evaluation}
        result[name] = run(ArrowStore(str(tmp_path / name)), small(**changes, comparisons={}))
    assert set(result["narrow"].outcome.failed) == {"means", "sgd"}
    assert "outside dataset.scale" in result["narrow"].outcome.failed["means"]
    train, test = read_part(result["clipped"], "train"), read_part(result["clipped"], "test")
    free = slow_means(train, Fraction(1, 100), Fraction(1, 100))
    clipped = rmse_and_mae(test, lambda u, i: min(max(free(u, i), Fraction(low)), Fraction(high)))[0]
    assert value(result["clipped"], "means", "rmse") == pytest.approx(clipped, rel=1e-9)
    assert rmse_and_mae(test, free)[0] > 1.01 * clipped, "or this log would not show it"


def test_a_metric_of_rankings_is_refused() -> None:
    with pytest.raises(ConfigError, match="unknown metric 'ndcg'"):
        check_benchmark(small(models=MODELS, evaluation={"task": "rating", "metrics": ["ndcg"]}))
