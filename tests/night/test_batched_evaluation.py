"""Models of a night in one pass: the bits of one model at a time, each failing alone, cut into groups."""

from __future__ import annotations

import io
import os
import signal
import time
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any, ClassVar, Literal

import pandas as pd
import pytest
from deltalake import DeltaTable

from recbench_spark.config import ModelConfig
from recbench_spark.errors import ConfigError, StoreError
from recbench_spark.models.adapters.baselines import RandomAdapter
from recbench_spark.models.adapters.model_adapter import Behaviour, SplitData, Trained
from recbench_spark.night import batched_evaluation
from recbench_spark.night.batched_evaluation import (
    MODELS_AT_ONCE_SETTING,
    RankableModel,
    group_models,
    read_models_per_pass,
)
from recbench_spark.night.night import open_night
from recbench_spark.night.run_night import run_night
from recbench_spark.ranking.kernels.scorers import Scorer
from recbench_spark.ranking.sources import HashSource, Strings
from recbench_spark.runtime.journal import Journal
from recbench_spark.schemas import METRICS, RANKINGS, RUNS, USER_METRICS
from recbench_spark.storage.arrow_store import ArrowStore
from recbench_spark.storage.blocks import count_table_rows
from recbench_spark.storage.store import Store
from tests.nights import DATE, Splits, make_split, models, read_pandas, run, small
from tools import compare_warehouses

WORLD = {
    "name": "tiny",
    "reader": "world",
    "world": {"users": 70, "items": 40, "interactions": 1300, "open_loop": 300, "seed": 9},
}
EVALUATION: dict[str, Any] = {
    "metrics": ["ndcg", "recall", "coverage", "gini", "novelty"],
    "k": [3, 5],
    "parts": ["test", "open_loop"],
    "definition": {"threshold": 4},
    "slices": [{"key": "popularity", "of": "popularity"}],
    "bootstrap": {"replicates": 10},
}
NIGHTS: dict[str, dict[str, Any]] = {
    "exposure": {"exposure": {"propensities": {"method": "true"}}},
    "drawn": {
        "definition": {"threshold": 4, "candidates": "uniform"},
        "draw": {"n": 5, "estimators": ["rank_estimate", "maximum_likelihood"]},
        "multiverse": True,
    },
}


class Brittle(ModelConfig):
    """Settings of a model that fails where it is scored."""

    behaviour: ClassVar[str] = "tests.night.test_batched_evaluation:Failing"
    kind: Literal["tests.night.test_batched_evaluation:Brittle"]


class BrittleSource(HashSource):
    """Raises in the worker."""

    def scorer(self) -> Scorer:
        raise ValueError("the model's file is half a file")

    def item_ids(self) -> Strings:
        raise ValueError("the model's file is half a file")


class Failing(Behaviour[Brittle]):
    """Opens like any other."""

    runs_local: ClassVar[bool] = True

    learns: ClassVar[bool] = False

    def load(self, data: SplitData) -> Trained:
        return Trained()

    def source(self, trained: Trained, data: SplitData) -> HashSource:
        settings = type("", (), {"seed": 1})()
        base = RandomAdapter(settings).source(trained, data)
        return BrittleSource(base.rows, base.n_items, base.seed)


BROKEN = {"name": "broken", "kind": "tests.night.test_batched_evaluation:Brittle"}


class Sluggish(ModelConfig):
    """Settings of a model that takes its time where it is scored."""

    behaviour: ClassVar[str] = "tests.night.test_batched_evaluation:Dawdling"
    kind: Literal["tests.night.test_batched_evaluation:Sluggish"]


class SluggishSource(HashSource):
    """Sleeps in the worker."""

    def scorer(self) -> Scorer:
        time.sleep(SLEPT)
        return super().scorer()


class Dawdling(Failing):
    """Random, at length."""

    def source(self, trained: Trained, data: SplitData) -> HashSource:
        base = super().source(trained, data)
        return SluggishSource(base.rows, base.n_items, base.seed)


SLUGGISH = {"name": "sluggish", "kind": "tests.night.test_batched_evaluation:Sluggish"}
SLEPT = 2.0


def list_models(folder: Path) -> list[dict[str, Any]]:
    """Lists with scores and lists with ranks of a few users, some of items that nobody knows."""
    rows = pd.DataFrame({"user_id": [f"u{n % 30:06}" for n in range(200)]})
    rows["item_id"] = [f"i{n * 7 % 45:05}" for n in range(200)]
    rows = rows.drop_duplicates()
    scores, lists = rows.assign(score=range(len(rows))), rows.assign(rank=range(1, len(rows) + 1))
    entries = []
    for kind, table in (("scores", scores), ("lists", lists)):
        table.to_parquet(folder / f"{kind}.parquet")
        entries.append({"name": kind, "kind": kind, "path": str(folder / f"{kind}.parquet")})
    return entries


FEW = {"exposure": ("popular", "item_knn", "lists", "paper"), "drawn": ("random", "truth", "scores")}
"""Every way of scoring in one of the nights; the slow test has all in both."""


@pytest.mark.full
@pytest.mark.parametrize("name", NIGHTS)
@pytest.mark.parametrize("few", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["few", "all"])
def test_one_pass_gives_the_bits_of_one_model_at_a_time(
    splits: Splits, tmp_path: Path, name: str, few: bool, capsys: Any, monkeypatch: Any
) -> None:
    evaluation = {**EVALUATION, **NIGHTS[name]}
    chosen = [*models("random", "popular", "item_knn", "truth", "paper"), *list_models(tmp_path)]
    chosen = [model for model in chosen if not few or model["name"] in FEW[name]]
    benchmark = small(name=name, dataset=WORLD, models=chosen, evaluation=evaluation)
    for place, at_once in (("alone", 1), ("together", 64)):
        monkeypatch.setattr(batched_evaluation, "MAX_MODELS", at_once)
        said = io.StringIO()
        store = splits.copy(benchmark, tmp_path / place)
        outcome = run_night(store, benchmark, DATE, Journal(said))
        assert outcome.failed == {} and len(outcome.run_ids) == len(chosen)
        assert (f"measure {chosen[0]['name']}, " in said.getvalue()) == (place == "together")
    assert compare_warehouses.main([str(tmp_path / "alone"), str(tmp_path / "together")]) == 0, (
        capsys.readouterr().out
    )


def test_how_many_models_a_pass_has_is_a_setting_of_spark(spark, tmp_path: Path) -> None:
    night = open_night(Store(spark, str(tmp_path)), small(), DATE)
    try:
        for text, most in (("3", 3), ("0", 1)):
            spark.conf.set(MODELS_AT_ONCE_SETTING, text)
            assert read_models_per_pass(night) == most
        spark.conf.set(MODELS_AT_ONCE_SETTING, "many")
        with pytest.raises(ConfigError, match="is 'many', not a number of models"):
            read_models_per_pass(night)
    finally:
        spark.conf.unset(MODELS_AT_ONCE_SETTING)
    assert read_models_per_pass(night) == batched_evaluation.MAX_MODELS


def test_how_many_rows_are_ranked_is_known_before(tmp_path: Path) -> None:
    """Two thirds of 30 users have test rows: the others are ranked only where they count 0."""
    folder = tmp_path / "log"
    rows = pd.DataFrame({"user_id": [f"u{n % 30}" for n in range(90)], "item_id": range(90)})
    rows["part"] = ["test" if n >= 60 and n % 3 else "train" for n in range(90)]
    folder.mkdir()
    rows.astype({"item_id": str}).to_parquet(folder / "log.parquet")
    store = ArrowStore(str(tmp_path / "warehouse"))
    for empty, ranked in (("leave_out", 20), ("zero", 30)):
        benchmark = small(
            name="some", dataset={"name": "some", "reader": "parquet", "path": str(folder / "log.parquet")},
            split={"protocol": "given"}, models=models("random"),
            evaluation={"metrics": ["ndcg"], "k": [5], "definition": {"empty_users": empty}},
        )  # fmt: skip
        night = make_split(store, benchmark)
        assert night.n_rankings == sum(night.select_users().each(["part"], count_table_rows)) == ranked


def commits(store: Any, name: str) -> int:
    return DeltaTable(store.location(name)).version()


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.full)])
def test_a_model_that_fails_in_the_pass_fails_alone(tmp_path: Path, workers: int) -> None:
    evaluation = {**EVALUATION, "metrics": ["ndcg"]}
    chosen = [*models("random"), BROKEN, *models("popular")]
    benchmark = small(name="night", dataset=WORLD, models=chosen, evaluation=evaluation)
    store = ArrowStore(str(tmp_path / "w"), workers=workers)
    ran = run(store, benchmark)
    assert set(ran.outcome.failed) == {"broken"}
    assert ran.outcome.failed["broken"] == "ValueError: the model's file is half a file"
    assert set(ran.outcome.run_ids) == {"random", "popular"}
    runs = {row["model"]: row for row in store.rows(RUNS)}
    assert (runs["broken"]["status"], runs["popular"]["status"]) == ("failed", "succeeded")
    for table in (RANKINGS, USER_METRICS, METRICS):
        run_ids = {row["run_id"] for row in store.rows(table, columns=["run_id"])}
        assert run_ids == {runs["random"]["run_id"], runs["popular"]["run_id"]}, table.name
    # Version 0 made the table, 1 is the whole night's.
    assert {
        commits(store, table) for table in ("rankings", "user_metrics", "metrics", "checks", "runs")
    } == {1}
    assert all(row["seconds"] > 0 for row in runs.values())


class Mortal(ModelConfig):
    """Settings of a model that ends the process which scores it."""

    behaviour: ClassVar[str] = "tests.night.test_batched_evaluation:Dying"
    kind: Literal["tests.night.test_batched_evaluation:Mortal"]


class DyingSource(HashSource):
    """Ends the worker, as the system does where memory runs out."""

    def scorer(self) -> Scorer:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError


class Dying(Failing):
    """Random, and deadly."""

    def source(self, trained: Trained, data: SplitData) -> HashSource:
        base = super().source(trained, data)
        return DyingSource(base.rows, base.n_items, base.seed)


def test_a_model_whose_worker_dies_is_named_and_the_others_go_on(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(batched_evaluation.shuffle, "PAIRS_PER_TASK", 10)
    deadly = {"name": "deadly", "kind": "tests.night.test_batched_evaluation:Mortal"}
    chosen = [*models("random"), deadly, *models("popular")]
    evaluation = {**EVALUATION, "metrics": ["ndcg"], "parts": ["test"]}
    benchmark = small(name="night", dataset=WORLD, models=chosen, evaluation=evaluation)
    monkeypatch.setattr("recbench_spark.storage.file_tables.host_folder", lambda: tmp_path / "host")
    store = ArrowStore(str(tmp_path / "w"), workers=2)
    ran = run(store, benchmark)
    assert set(ran.outcome.run_ids) == {"random", "popular"} and set(ran.outcome.failed) == {"deadly"}
    assert "was ended from outside" in ran.outcome.failed["deadly"]
    assert "model 2/3 deadly: FAILED" in ran.remarks
    assert not list((tmp_path / "host").glob("shuffle-*"))


@pytest.mark.slow
def test_of_twelve_models_one_is_broken_one_slow_and_one_fell(spark, tmp_path: Path) -> None:
    """The second of two nights: the others are there, with the numbers of the night before."""
    night: dict[str, Any] = {
        "name": "twelve",
        "dataset": WORLD,
        "evaluation": {**EVALUATION, "metrics": ["ndcg"], "parts": ["test"]},
        "comparisons": {"replicates": 20},
        "regressions": [{"metric": "ndcg", "k": 5, "drop": 0.01}],
    }
    random = [{"name": f"random{n}", "kind": "random", "seed": n} for n in range(6)]
    steady = [*random, *models("popular", "truth"), *list_models(tmp_path)]
    good, bad = (
        {"name": "shipped", "kind": kind, **more}
        for kind, more in (("item_knn", {"neighbours": 10}), ("random", {"seed": 9}))
    )
    store, day = Store(spark, str(tmp_path / "w")), date(2026, 1, 2)
    first = run(store, small(**night, models=[*steady, good, SLUGGISH]))
    assert len(first.outcome.run_ids) == 12 and first.outcome.exit_code == 0
    before = commits(store, "rankings"), commits(store, "metrics"), commits(store, "runs")
    ran = run(store, small(**night, models=[*steady[1:], bad, BROKEN, SLUGGISH]), day)
    assert set(ran.outcome.failed) == {"broken"} and ran.outcome.held == ()
    assert ran.outcome.exit_code == 1, "a failed model counts before a regression"
    assert ["shipped" in said for said in ran.outcome.regressions] == [True]
    after = commits(store, "rankings"), commits(store, "metrics"), commits(store, "runs")
    assert [new - old for new, old in zip(after, before, strict=True)] == [1, 1, 1]
    runs = read_pandas(store, RUNS, logical_date=day).set_index("model")
    assert (runs.status == "succeeded").sum() == 11 and runs.status["broken"] == "failed"
    assert runs.seconds.drop("broken").idxmax() == "sluggish" and runs.seconds["sluggish"] > SLEPT / 2
    values = read_pandas(store, METRICS)[["run_id", "k", "slice_value", "value"]]
    for model in [*(one["name"] for one in steady[1:]), "sluggish"]:
        mine, theirs = (
            values[values.run_id == done.outcome.run_ids[model]]
            .drop(columns="run_id")
            .sort_values(["k", "slice_value"], ignore_index=True)
            for done in (first, ran)
        )
        assert len(mine) and mine.equals(theirs), model


@pytest.mark.full
def test_a_night_whose_pass_dies_is_ranked_one_by_one(
    splits: Splits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, seen = batched_evaluation.shuffle.evaluate, []

    def dying(engine: Any, inputs: Any, work: Any) -> Any:
        seen.append(len(inputs.ranked))
        if len(inputs.ranked) > 1:
            raise StoreError("a worker is gone", "")
        return real(engine, inputs, work)

    monkeypatch.setattr(batched_evaluation.shuffle, "evaluate", dying)
    evaluation = {**EVALUATION, "metrics": ["ndcg"], "parts": ["test"]}
    chosen = models("random", "popular")
    benchmark = small(dataset=WORLD, models=chosen, evaluation=evaluation)
    ran = run(splits.copy(benchmark, tmp_path / "w"), benchmark)
    assert set(ran.outcome.run_ids) == {"random", "popular"} and not ran.outcome.failed
    assert seen == [2, 1, 1]


def test_groups_are_cut_by_number_and_by_bytes() -> None:
    one = RankableModel("r", None, None, [], batched_evaluation.MAX_ITEM_BYTES // 2)  # type: ignore[arg-type]
    small_ones = [replace(one, bytes=1) for _ in range(5)]
    assert [len(group) for group in group_models(small_ones, 2)] == [2, 2, 1]
    assert [len(group) for group in group_models([one, one, one], 64)] == [2, 1]
    assert [len(group) for group in group_models([replace(one, bytes=one.bytes * 9), one], 64)] == [1, 1]
    assert list(group_models([], 64)) == []
