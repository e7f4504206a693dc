"""A whole night: complete, right to the last number, done once, and never half visible."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections import Counter
from dataclasses import replace
from datetime import date, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from deltalake import DeltaTable

from recbench_spark.config import Provenance
from recbench_spark.errors import ConfigError, DataError, MissingError, StoreError
from recbench_spark.night import run_night as story
from recbench_spark.night import split
from recbench_spark.night.batched_evaluation import MODELS_AT_ONCE_SETTING
from recbench_spark.night.benchmark_checks import check_benchmark
from recbench_spark.night.night import count_attempts, open_night
from recbench_spark.night.night_status import find_finished_night
from recbench_spark.night.results import find_grid_edges
from recbench_spark.query.local_engine import find_names, is_portable, translate_question
from recbench_spark.schemas import (
    CHECKS,
    EMBEDDINGS,
    ITEMS,
    MANIFESTS,
    METRICS,
    PROPENSITIES,
    RANKINGS,
    RUNS,
    SPLITS,
    USER_BLOCKS,
    USER_METRICS,
    Table,
)
from recbench_spark.splits.item_counts import Catalogue
from recbench_spark.splits.slice_tables import label_slices
from recbench_spark.splits.user_blocks import BlockPlan
from recbench_spark.storage import spark_places
from recbench_spark.storage.arrow_store import ArrowStore
from recbench_spark.storage.blocks import PieceRows
from recbench_spark.storage.frame_blocks import FrameRows, make_frame_rows
from recbench_spark.storage.packed_blocks import are_whole
from recbench_spark.storage.spark_types import spark_schema
from recbench_spark.storage.store import Store
from recbench_spark.storage.table_sql import query_files
from recbench_spark.tuning.board_update import append_entries, update_board
from tests import oracles
from tests.nights import (
    DATE,
    RANKED,
    SMALL,
    Ran,
    answer,
    copy_warehouse,
    make_split,
    models,
    read_pandas,
    read_rows,
    read_split,
    run,
    small,
)

NIGHT_2 = date(2026, 1, 2)
TINY = {
    "dataset": {
        "name": "tiny",
        "reader": "world",
        "world": {"users": 60, "items": 40, "interactions": 1000, "open_loop": 100, "seed": 9},
    },
    "models": models("popular"),
    "evaluation": {"metrics": ["ndcg", "hit"], "k": [5], "slices": [], "bootstrap": {"replicates": 10}},
}


@pytest.fixture(scope="module")
def metrics(small_night: Ran) -> pd.DataFrame:
    rows, of_model = read_pandas(small_night.store, METRICS), small_night.outcome.run_ids
    return rows.merge(pd.DataFrame(of_model.items(), columns=["model", "run_id"]), on="run_id")


def model_named(ran: Ran, name: str):
    return next(model for model in ran.benchmark.models if model.name == name)


def versions(store: Store) -> dict[str, int]:
    """The Delta version of every table: any write moves one."""
    logs = Path(store.root).glob("*/_delta_log")
    return {log.parent.name: DeltaTable(str(log.parent)).version() for log in logs}


# --------------------------------------------------------------------------------- complete


def test_every_model_is_done(small_night: Ran) -> None:
    assert sorted(small_night.outcome.run_ids) == sorted([*RANKED, "paper"])
    assert (small_night.outcome.skipped, small_night.outcome.failed) == ((), {})


def test_every_metric_stands_for_every_model_part_and_cut_off(metrics: pd.DataFrame) -> None:
    everyone = metrics[metrics.slice_key.isna() & (metrics.model != "paper")]
    measured = {
        (row.model, row.part, row.metric, None if math.isnan(row.k) else int(row.k))
        for row in everyone.itertuples()
    }
    at_k = [("hit", k) for k in (5, 10)] + [
        (m, k) for m in ("precision", "recall", "coverage") for k in (5, 10)
    ]
    whole = [(m, k) for m in ("map", "mrr", "ndcg") for k in (5, 10, None)] + [("auc", None)]
    wanted = {(model, part, *m) for model in RANKED for part in ("test", "open_loop") for m in at_k + whole}
    assert wanted <= measured
    assert len(everyone) == len(measured)
    assert everyone.value.between(0, 1).all()
    users = everyone[~everyone.metric.isin(["coverage"])]
    assert (users.ci_low <= users.value).all() and (users.value <= users.ci_high).all()
    assert (users.stderr >= 0).all() and (users.n > 0).all()
    assert everyone.groupby(["part", "metric"]).n.nunique().loc[:, ["ndcg", "hit"]].eq(1).all()


def test_slices_stand_beside_the_whole(metrics: pd.DataFrame, small_night: Ran) -> None:
    ranked = metrics[metrics.model.isin(RANKED)]
    keys = ranked[ranked.slice_key.notna()].groupby("slice_key").slice_value.unique().map(set).to_dict()
    assert set(keys) == {"popularity", "genre", "cold_user"}
    assert {"head", "torso", "tail"} <= keys["popularity"] <= {"head", "torso", "tail", "cold"}
    assert keys["cold_user"] <= {"warm", "cold"}
    assert keys["genre"] <= {row.attributes["genre"] for row in read_split(small_night.night, SPLITS)}


def test_user_metrics_average_to_the_metrics(metrics: pd.DataFrame, small_night: Ran) -> None:
    per_user = read_rows(small_night.store, USER_METRICS, run_id=small_night.outcome.run_ids["als_4"])
    overall = metrics[
        (metrics.model == "als_4") & metrics.slice_key.isna() & (metrics.metric != "coverage")
    ]
    assert len(overall) > 20
    for row in overall.itertuples():
        mine = [user for user in per_user if (user.part, user.metric) == (row.part, row.metric)]
        k = None if math.isnan(row.k) else row.k
        values = [user.values[user.ks.index(k)] for user in mine]
        kept = [value for value in values if value is not None]
        assert len(kept) == row.n
        assert math.fsum(kept) / len(kept) == pytest.approx(row.value, abs=1e-12)


def test_checks_and_manifests(small_night: Ran) -> None:
    checks, night = read_pandas(small_night.store, CHECKS), small_night.night
    runs = {v for k, v in small_night.outcome.run_ids.items() if k != "paper"}
    assert runs <= set(checks.run_id) and small_night.outcome.run_ids["paper"] not in set(checks.run_id)
    facts = {(r.part, r.fact): r.value for r in read_split(night, MANIFESTS)}
    assert facts["log", "overlap"] == 0
    assert Counter(row.part for row in read_split(night, SPLITS)) == {
        part: facts[part, "rows"] for part in ("train", "valid", "test", "open_loop")
    }
    assert [row.method for row in read_split(night, PROPENSITIES)].count("true") == 60


def test_the_world_s_truth_leads_where_exposure_is_uniform(metrics: pd.DataFrame) -> None:
    chosen = metrics[(metrics.part == "open_loop") & metrics.slice_key.isna()]
    for metric, k in (("ndcg", 10), ("recall", 5)):
        board = chosen[(chosen.metric == metric) & (chosen.k == k)].set_index("model").value
        assert board.idxmax() == "truth"
        assert board["truth"] > board["random"] + 0.05


def test_published_figures_stand_beside_ours(metrics: pd.DataFrame, small_night: Ran) -> None:
    paper = metrics[metrics.model == "paper"]
    assert {(row.metric, row.k if row.k == row.k else None): row.value for row in paper.itertuples()} == {
        ("ndcg", 10): 0.25,
        ("rmse", None): 0.9,
    }
    (run_row,) = read_rows(small_night.store, RUNS, model="paper")
    assert (run_row.source, run_row.source_year, run_row.ran_by) == ("published", 2019, "somebody")


def test_the_best_setting_on_the_edge_of_its_grid_is_said(small_night: Ran) -> None:
    (als,) = read_rows(small_night.store, RUNS, model="als_4", suite="small", attempt=1)
    assert als.at_grid_edge == ["rank"]
    assert json.loads(als.search_space) == {"rank": [4, 8], "alpha": [0.5, 1, 2]}
    model = model_named(small_night, "als_4")
    assert find_grid_edges(model, Provenance(search_space={"rank": (2, 4, 8)})) == []
    assert find_grid_edges(model, Provenance(search_space={"rank": (4,), "unknown": (1, 2)})) == []


# ---------------------------------------------------------------------------- against an oracle


@pytest.fixture(scope="module")
def als_scores(small_night: Ran) -> dict[str, dict[int, float]]:
    """float64 scores of every user for every item the model knows: sums in index order."""
    night = small_night.night
    key = night.data.key(model_named(small_night, "als_4"))
    rows = read_rows(small_night.store, EMBEDDINGS, model_id=key)
    index = {row.item_id: row.item_index for row in read_split(night, ITEMS)}
    users = {r.id: np.array(r.vector, np.float32) for r in rows if r.side == "user"}
    items = {index[r.id]: np.array(r.vector, np.float32) for r in rows if r.side == "item"}
    assert len(users) > 90 and len(items) > 40
    return {user: {i: dot(u, v) for i, v in items.items()} for user, u in users.items()}


def dot(u: np.ndarray, v: np.ndarray) -> float:
    total = 0.0
    for a, b in zip(u.tolist(), v.tolist(), strict=True):
        total += a * b
    return total


def drop_seen(block, scores: dict[int, float]) -> dict[int, float]:
    valid = block.held_out["valid"]["items"] if "valid" in block.held_out else []
    out = {*block.train_items, *valid}
    return {item: score for item, score in scores.items() if item not in out}


def test_ranks_equal_a_slow_float64_oracle(small_night: Ran, als_scores) -> None:
    blocks = {row.user_id: row for row in read_split(small_night.night, USER_BLOCKS)}
    rankings = read_rows(small_night.store, RANKINGS, run_id=small_night.outcome.run_ids["als_4"])
    assert {row.part for row in rankings} == {"test", "open_loop"}
    for row in rankings:
        block = blocks[row.user_id]
        truth = block.held_out[row.part]
        candidates = drop_seen(block, als_scores.get(row.user_id, {}))
        assert (row.item_ids, row.relevance) == (truth["item_ids"], truth["relevance"])
        assert row.length == len(candidates)
        for place, item in enumerate(truth["items"]):
            score = candidates.get(item)
            above = -1 if score is None else sum(s > score for s in candidates.values())
            tied = [i for i, s in candidates.items() if s == score and i != item]
            ranks = (row.above[place], row.tied[place], row.before[place])
            assert ranks == (above, len(tied), sum(i < item for i in tied))


@pytest.mark.full
def test_metrics_equal_a_slow_oracle(small_night: Ran, als_scores, metrics: pd.DataFrame) -> None:
    definition = small_night.night.definition
    blocks = read_split(small_night.night, USER_BLOCKS)
    for part in ("test", "open_loop"):
        users = [
            (
                drop_seen(block, als_scores.get(block.user_id, {})),
                dict(zip(block.held_out[part]["items"], block.held_out[part]["relevance"], strict=True)),
            )
            for block in blocks
            if part in block.held_out
        ]
        for metric, k in (("ndcg", 10), ("recall", 5), ("map", 10), ("mrr", 5), ("auc", None)):
            values = [oracles.value(metric, scores, truth, k, definition) for scores, truth in users]
            kept = [value for value in values if not math.isnan(value)]
            mine = metrics[(metrics.model == "als_4") & (metrics.part == part) & (metrics.metric == metric)]
            mine = mine[mine.slice_key.isna() & (mine.k.isna() if k is None else mine.k == k)]
            assert mine.n.tolist() == [len(kept)]
            assert mine.value.iloc[0] == pytest.approx(math.fsum(kept) / len(kept), abs=1e-12)


@pytest.mark.full
def test_models_handed_over_get_the_numbers_of_the_model_they_came_from(
    small_night: Ran, als_scores, metrics: pd.DataFrame, tmp_path: Path
) -> None:
    """The same model as embeddings, as tables of all scores, one a list a user, and as complete lists.

    The lists come with scores: this model has ties, which ranks would break, and AUC would tell.
    """
    night = small_night.night
    key = night.data.key(model_named(small_night, "als_4"))
    rows = read_pandas(small_night.store, EMBEDDINGS, model_id=key)
    for side in ("user", "item"):
        one = rows[rows.side == side].rename(columns={"id": f"{side}_id"})
        one[[f"{side}_id", "vector", "bias"]].to_parquet(tmp_path / f"{side}s.parquet")
    ids = {row.item_index: row.item_id for row in read_split(night, ITEMS)}
    scores = [(u, ids[i], s) for u, of_user in als_scores.items() for i, s in of_user.items()]
    pd.DataFrame(scores, columns=["user_id", "item_id", "score"]).to_parquet(tmp_path / "scores.parquet")
    cells = [(u, [{"item": ids[i], "rating": s} for i, s in x.items()]) for u, x in als_scores.items()]
    pd.DataFrame(cells, columns=["customer", "recommendations"]).to_parquet(tmp_path / "cells.parquet")
    lists = []
    for block in read_split(night, USER_BLOCKS):
        candidates = drop_seen(block, als_scores.get(block.user_id, {}))
        lists += [(block.user_id, ids[item], score) for item, score in candidates.items()]
    pd.DataFrame(lists, columns=["user_id", "item_id", "score"]).to_csv(tmp_path / "lists.csv", index=False)
    handed_over = small(
        name="handed_over",
        models=[
            {"name": "vectors", "kind": "embeddings", "users": str(tmp_path / "users.parquet"),
             "items": str(tmp_path / "items.parquet")},
            {"name": "scores", "kind": "scores", "path": str(tmp_path / "scores.parquet")},
            {"name": "cells", "kind": "scores", "path": str(tmp_path / "cells.parquet"),
             "columns": {"user_id": "customer", "item_id": "recommendations"}},
            {"name": "lists", "kind": "lists", "path": str(tmp_path / "lists.csv")},
            {"name": "whole", "kind": "lists", "path": str(tmp_path / "scores.parquet"),
             "training_items": "drop"},
        ],
    )  # fmt: skip
    ran = run(small_night.store, handed_over)
    assert ran.outcome.failed == {}
    assert f"split {night.split_id}: already made" in ran.remarks
    key_columns = ["part", "metric", "definition", "k", "slice_key", "slice_value"]
    values = ["value", "stderr", "ci_low", "ci_high", "n"]
    wanted = metrics[metrics.model == "als_4"].set_index(key_columns)[values].sort_index()
    for model, run_id in ran.outcome.run_ids.items():
        numbers = read_pandas(small_night.store, METRICS, run_id=run_id)
        numbers = numbers.set_index(key_columns)[values].sort_index()
        pd.testing.assert_frame_equal(numbers, wanted, check_exact=True, obj=model)


# --------------------------------------------------------------------------------- done once


def test_a_second_run_does_nothing_and_says_so(small_night: Ran) -> None:
    before = versions(small_night.store)
    again = run(small_night.store, small_night.benchmark)
    assert again.outcome.run_ids == {}
    assert again.outcome.skipped == tuple(model["name"] for model in SMALL["models"])
    assert "rank" not in again.remarks and "split" not in again.remarks
    assert versions(small_night.store) == before
    assert again.outcome.leaderboard == small_night.outcome.leaderboard


@pytest.mark.slow
def test_force_makes_a_second_attempt_with_the_same_numbers(small_night: Ran) -> None:
    store = small_night.store
    first = small_night.outcome.run_ids["popular"]
    second = run(store, small(models=models("popular")), force=True).outcome.run_ids["popular"]
    assert first != second
    attempts = read_rows(store, RUNS, suite="small", model="popular")
    assert sorted((row.attempt, row.run_id) for row in attempts) == [(1, first), (2, second)]
    assert len({row.run_key for row in attempts}) == 1
    one, other = (
        read_pandas(store, METRICS, run_id=run_id).drop(columns="run_id").sort_values(METRICS.names[1:8])
        for run_id in (first, second)
    )
    pd.testing.assert_frame_equal(
        one.reset_index(drop=True), other.reset_index(drop=True), check_exact=True
    )
    board = answer(store, "SELECT run_id FROM leaderboard WHERE suite = 'small' AND model = 'popular'")
    assert {row["run_id"] for row in board} == {second}


@pytest.mark.full
def test_a_forced_earlier_night_prints_its_own_board(small_night: Ran) -> None:
    store, benchmark = small_night.store, small(name="backfilled", models=models("popular"))
    later = run(store, benchmark, DATE + timedelta(days=1))
    assert later.outcome.leaderboard.startswith(f"backfilled  {DATE + timedelta(days=1)}\n")
    for options in ({}, {"force": True}):
        earlier = run(store, benchmark, DATE, **options)
        assert earlier.outcome.leaderboard.startswith(f"backfilled  {DATE}\n")
    again = run(store, benchmark, DATE + timedelta(days=1))
    assert again.outcome.leaderboard == later.outcome.leaderboard


def test_a_changed_setting_is_another_run(small_night: Ran) -> None:
    evaluation = {**SMALL["evaluation"], "k": [5]}
    changed = small(models=models("popular"), evaluation=evaluation)
    assert count_attempts(open_night(small_night.store, changed, DATE)) == {"popular": 0}


# ------------------------------------------------------------------------- killed and failing


class Killed(BaseException):
    """A kill as seen from inside: nothing catches it."""


def kill(*_args, **_kwargs):
    raise Killed


@pytest.mark.full
def test_a_killed_run_leaves_nothing_visible_and_the_next_completes(
    small_night: Ran, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, popular = small_night.store, small(name="killed", models=models("popular"))
    with monkeypatch.context() as patch:
        patch.setattr(story, "add_runs", kill)
        with pytest.raises(Killed):
            run(store, popular, NIGHT_2)
    (lost,) = store.list_values(METRICS, "run_id") - store.list_values(RUNS, "run_id")
    for table in (METRICS, USER_METRICS, RANKINGS, CHECKS):
        assert store.read_run(table.name, lost).num_rows > 0
    board = "SELECT DISTINCT run_id FROM leaderboard WHERE suite = 'killed'"
    assert answer(store, board) == []
    # The next run completes; here it comes a day later, and sweeps up.
    monkeypatch.setattr(story, "yesterday_stamp", lambda _: "9999")
    done = run(store, popular, NIGHT_2).outcome
    assert [row["run_id"] for row in answer(store, board)] == list(done.run_ids.values()) != [lost]
    for table in (METRICS, USER_METRICS, RANKINGS, CHECKS):
        assert store.read_run(table.name, lost).num_rows == 0
        assert store.read_run(table.name, done.run_ids["popular"]).num_rows > 0


@pytest.mark.parametrize(
    "step", ["make_user_blocks", pytest.param("build_manifest", marks=pytest.mark.slow)]
)
def test_a_split_killed_half_way_is_completed_without_doubling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    store, tiny = ArrowStore(str(tmp_path)), small(**TINY)
    with monkeypatch.context() as patch:
        patch.setattr(split, step, kill)
        with pytest.raises(Killed):
            make_split(store, tiny)
    night = make_split(store, tiny)
    # What is tested on may be shown in the open loop too.
    for table, keys in (
        (SPLITS, ["user_id", "item_id", "part"]),
        (ITEMS, ["item_id"]),
        (USER_BLOCKS, ["user_id"]),
        (MANIFESTS, ["part", "fact"]),
    ):
        rows = store.rows(table, [("split_id", "=", night.split_id)], keys)
        assert len(rows) == len({tuple(row.values()) for row in rows}) > 0


def test_whole_files_and_a_shuffle_give_the_same_blocks(spark, small_night: Ran) -> None:
    """Compacted files have names without the mark."""
    night, store = small_night.night, Store(spark, small_night.store.root)
    slices = label_slices(store, night.benchmark.evaluation.slices)
    rows = split.open_labelled(store, night.split_id)
    assert isinstance(rows, PieceRows)
    renamed = [file.replace("by-user_id-", "") for file in rows.pieces]
    plan = BlockPlan(night.data.known_items.find, (3, 9), ("valid", "test"), slices)
    whole, shuffled = (
        split.make_user_blocks(store, night.split_id, opened, plan)
        for opened in (rows, FrameRows(store.read_partition(SPLITS, "split_id", night.split_id)))
    )
    assert are_whole(rows.pieces, "user_id") and not are_whole(renamed, "user_id")
    schema = spark_schema(USER_BLOCKS)
    made = [make_frame_rows(store.spark, blocks, schema).collect() for blocks in (whole, shuffled)]
    n = store.count_rows(USER_BLOCKS, "split_id", night.split_id)
    assert sorted(map(repr, made[0])) == sorted(map(repr, made[1])) and len(made[0]) == n


def lose_rows(made):
    if isinstance(made, Catalogue):
        return made._replace(rows=made.rows.slice(0, 0))
    change = made.change  # tasks get no session
    return replace(made, change=lambda rows: change(rows).slice(0, 0))


@pytest.mark.parametrize(("step", "table"), [("count_catalogue", ITEMS), ("make_user_blocks", USER_BLOCKS)])
def test_a_split_that_lacks_rows_is_dropped_and_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, table: Table
) -> None:
    """A session once committed a table without a row under its name, and reported no error."""
    store, tiny = ArrowStore(str(tmp_path)), small(**TINY)
    build = getattr(split, step)
    with monkeypatch.context() as patch:
        patch.setattr(split, step, lambda *args: lose_rows(build(*args)))
        with pytest.raises(StoreError, match=f"{table.name} has 0 rows, and the log has") as refused:
            make_split(store, tiny)
    assert "run again" in refused.value.hint
    assert not store.rows(MANIFESTS, [("fact", "=", "rows")]) and not store.rows(SPLITS)
    night = make_split(store, tiny)
    for one, key in ((ITEMS, "item_id"), (USER_BLOCKS, "user_id")):
        whole = {getattr(row, key) for row in read_split(night, SPLITS)}
        assert len(read_split(night, one)) == len(store.rows(one)) == len(whole) > 0


@pytest.mark.full
def test_a_failing_model_does_not_stop_the_others(small_night: Ran, tmp_path: Path) -> None:
    for side, dims in (("user", 2), ("item", 3)):
        frame = pd.DataFrame({f"{side}_id": ["a"], "vector": [[0.5] * dims]})
        frame.to_parquet(tmp_path / f"{side}s.parquet")
    broken = {"name": "broken", "kind": "embeddings", "users": str(tmp_path / "users.parquet"),
              "items": str(tmp_path / "items.parquet")}  # fmt: skip
    ran = run(small_night.store, small(name="failing", models=[broken, *models("popular")]))
    assert set(ran.outcome.failed) == {"broken"}, ran.outcome.failed
    assert set(ran.outcome.run_ids) == {"popular"}
    assert "2 dimensions" in ran.outcome.failed["broken"]
    (failed,) = read_rows(small_night.store, RUNS, model="broken", suite="failing")
    assert failed.status == "failed" and "2 dimensions" in failed.error
    result = json.loads((Path(small_night.store.root) / "results" / f"{failed.run_id}.json").read_text())
    assert (result["status"], result["exit_code"]) == ("failed", 1)
    assert "2 dimensions" in Path(ran.outcome.report_path or "").read_text(), "the report tells of it"


WORDS = {
    "disk": "/mnt/some/file: No space left on device",
    "network": "Connection reset by peer",
    "memory": "out of memory",
    "odd": "internal error: ZeroDivisionError: division by zero",
    "long": "internal error: ValueError: xxx",
    "exit": "code that was called ended Python: sys.exit(3)",
}


@pytest.mark.full
@pytest.mark.parametrize("at_once", ["64", "0"], ids=["together", "alone"])
def test_whatever_error_a_model_ends_by_is_its_own_in_words_and_with_its_trace(
    spark, small_night: Ran, at_once: str
) -> None:
    broken = [
        {"name": f"{how}_{where}", "kind": "tests.failing_model:FailingModel", "how": how, "where": where}
        for how, where in [*((how, "fit") for how in WORDS), ("disk", "told")]
    ]
    leaving = {"name": "leaving", "kind": "tests.failing_model:LeavingModel"}
    needy = {**broken[0], "name": "needy", "how": "spark"}  # Spark is there, so it is its own failure
    chosen = [*broken[:3], needy, *models("popular"), *broken[3:], leaving]
    benchmark = small(name=f"failing{at_once}", models=chosen)
    spark.conf.set(MODELS_AT_ONCE_SETTING, at_once)
    try:
        ran = run(Store(spark, small_night.store.root), benchmark)
    finally:
        spark.conf.unset(MODELS_AT_ONCE_SETTING)
    assert set(ran.outcome.run_ids) == {"popular"} and ran.outcome.exit_code == 1
    rows_by_model = {row.model: row for row in read_rows(small_night.store, RUNS, suite=benchmark.name)}
    assert "importing tests.leaving_module ends Python" in rows_by_model["leaving"].error
    assert rows_by_model["needy"].error.startswith("only Spark reads its table")
    for model in broken:
        row = rows_by_model[model["name"]]
        assert row.status == "failed" and row.error.startswith(WORDS[model["how"]])
        assert len(row.error) < 1000 and row.error == ran.outcome.failed[model["name"]]
        (trace,) = re.findall(r"its trace[:,] (\S+)", row.error)
        assert "failing_model.py" in Path(trace).read_text()
        Path(trace).unlink()


@pytest.mark.full
def test_an_empty_part_is_refused_and_names_those_with_rows(small_night: Ran) -> None:
    world = {**SMALL["dataset"], "world": {**SMALL["dataset"]["world"], "open_loop": 0}}
    with pytest.raises(DataError, match="part 'open_loop'") as error:
        run(small_night.store, small(name="empty", dataset=world))
    assert "test" in error.value.hint
    evaluation = {**SMALL["evaluation"], "parts": ["probe"]}
    with pytest.raises(ConfigError, match="neither the split nor the log has rows of 'probe'"):
        run(small_night.store, small(name="empty", evaluation=evaluation))


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"evaluation": {"metrics": ["ndgc"]}}, "ndgc"),
        ({"evaluation": {"definition": {"candidates": "given"}}}, "candidates_path"),
        ({"evaluation": {"preset": "recbol"}}, "recbol"),
        ({"evaluation": {"slices": [{"key": "age", "of": "users"}]}}, "slice age"),
        ({"models": [{"name": "p", "kind": "published", "figures": {"ndcg@ten": 0.1}}]}, "ndcg@ten"),
        (
            {
                "dataset": {"name": "f", "reader": "csv", "path": "f.csv"},
                "evaluation": {"slices": []},
                "models": models("truth"),
            },
            "truth",
        ),
    ],
)
def test_what_cannot_work_is_refused_before_spark_starts(changes, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        check_benchmark(small(**changes))


# ------------------------------------------------------------------------------ reports


class Page(HTMLParser):
    """Collects what a page would load from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = {"src", "srcset", "data"} | ({"href"} if tag in ("link", "image", "use") else set())
        self.loads += [
            f"{tag} {v}" for k, v in attrs if k in names and v and not v.startswith(("#", "data:"))
        ]


def test_the_report_is_one_file_that_loads_nothing(small_night: Ran) -> None:
    assert small_night.outcome.report_path is not None
    text = Path(small_night.outcome.report_path).read_text()
    page = Page()
    page.feed(text)
    assert page.loads == []
    assert not re.search(r"@import|url\((?!#|data:)", text)
    for name in [*RANKED, "paper"]:
        assert name in text and name in small_night.outcome.leaderboard
    assert "<svg" in text


def test_each_run_leaves_a_result_file(small_night: Ran) -> None:
    for model, run_id in small_night.outcome.run_ids.items():
        result = json.loads((Path(small_night.store.root) / "results" / f"{run_id}.json").read_text())
        assert (result["run_id"], result["model"], result["status"]) == (run_id, model, "succeeded")
        assert (result["exit_code"], result["suite"], result["logical_date"]) == (0, "small", "2026-01-01")


@pytest.mark.full
def test_a_regression_opens_the_report_and_stands_in_the_nights_result(
    small_night: Ran, tmp_path: Path
) -> None:
    """The model falls to chance overnight; the world's truth, which nobody ships, falls for no reason."""
    night = {
        "name": "fallen",
        "evaluation": {
            **SMALL["evaluation"],
            "metrics": ["ndcg"],
            "k": [10],
            "parts": ["test"],
        },
        "comparisons": {"replicates": 20},
        "regressions": [{"metric": "ndcg", "k": 10, "drop": 0.01}],
    }
    good, bad = (
        {"name": "shipped", "kind": kind, **more}
        for kind, more in (("item_knn", {"neighbours": 10}), ("random", {}))
    )
    # The split and item-kNN are there already.
    store = copy_warehouse(small_night.store, tmp_path / "warehouse")
    folder = tmp_path / "warehouse" / "results"
    for day, model, code in ((DATE, good, 0), (date(2026, 1, 2), bad, 4)):
        ran = run(store, small(**night, models=[model, *models("truth")]), day)
        result = json.loads((folder / f"night-fallen-{day}.json").read_text())
        assert (result["exit_code"], result["suite"], result["logical_date"]) == (code, "fallen", str(day))
        assert result["run_ids"] == ran.outcome.run_ids and ran.outcome.exit_code == code
        assert result["regressions"] == list(ran.outcome.regressions)
        fallen = [(one["model"], one["metric"], one["k"], one["kind"]) for one in result["regressed"]]
        assert fallen == ([("shipped", "ndcg", 10, "previous")] if code == 4 else [])
        assert all(one["difference"] < -0.01 == -one["allowed_drop"] for one in result["regressed"])
        assert {(one["kind"], one["model"], one["other"]) for one in result["comparisons"]} >= {
            ("pair", "shipped", "truth")
        }
        page = Path(ran.outcome.report_path or "").read_text()
        answer = page[page.index('<div class="answer') : page.index('<details class="summary"')]
        assert ("<li>shipped fell by" in answer) == (code == 4)
        assert ("its setting kind from item_knn to random on 2026-01-02" in answer) == (code == 4)
        assert (
            ("Regression: shipped: ndcg@10 of test is" in page) == ('class="fell"' in page) == (code == 4)
        )
        assert ('id="nights"' in page) == (code == 4) and 'id="comparisons"' in page
        assert "Regression" in ran.outcome.leaderboard or code == 0
    # Run again: nothing to do, and the same is said.
    again = run(store, small(**night, models=[bad, *models("truth")]), date(2026, 1, 2))
    assert not again.outcome.run_ids and again.outcome.exit_code == 4
    repeated = json.loads((folder / "night-fallen-2026-01-02.json").read_text())
    assert repeated == result
    # It is known without a session too, until anything that follows from the runs is gone or requested.
    benchmark, day = small(**night, models=[bad, *models("truth")]), date(2026, 1, 2)
    done = find_finished_night(store.root, benchmark, day)
    assert done is not None and done.exit_code == 4 and done.regressions == again.outcome.regressions
    assert (done.leaderboard, done.report_path) == (again.outcome.leaderboard, again.outcome.report_path)
    stricter = small(**{**night, "comparisons": {"replicates": 30}}, models=[bad, *models("truth")])
    assert find_finished_night(store.root, stricter, day) is None
    assert find_finished_night(store.root, small(**night, models=[good, *models("truth")]), day) is None
    Path(done.report_path or "").unlink()
    assert find_finished_night(store.root, benchmark, day) is None
    run(store, benchmark, day)
    assert find_finished_night(store.root, benchmark, day) is not None
    store.delete("comparisons", "logical_date", [str(day)])
    assert find_finished_night(store.root, benchmark, day) is None
    assert run(store, benchmark, day).outcome.exit_code == 4


def test_the_log_is_json_lines_with_seconds_and_counts(small_night: Ran) -> None:
    lines = [json.loads(line) for line in small_night.log.read_text().splitlines()]
    stages = {line["stage"] for line in lines}
    assert {
        "splits",
        "items",
        "user_blocks",
        "manifests",
        "train",
        "rankings",
        "metrics",
        "publish",
    } <= stages
    assert all(line["seconds"] >= 0 for line in lines if line["stage"] in ("splits", "train", "metrics"))
    assert next(line for line in lines if line["stage"] == "splits")["rows"] > 2500
    of_runs = {line["run_id"] for line in lines if line["stage"] == "publish"}
    assert set(small_night.outcome.run_ids.values()) <= of_runs


# What one plain night does not fill: tests of comparisons, the multiverse, paradoxes, changes, graphs,
# boards and pools ask these.
ASKED_ELSEWHERE = {
    "how_fast_is_each_graph_layer",
    "which_baselines_are_under_tuned",
    "which_click_model_wins",
    "which_differences_hold",
    "which_models_fell_behind",
    "how_much_is_the_protocols_doing",
    "where_do_parts_and_whole_disagree",
    "how_few_items_decide",
    "why_did_the_number_move",
    "what_could_the_candidates_reach",
    "which_models_trade_aims",
    "who_loses",
}


LOCAL = {name for name, sql in query_files().items() if is_portable(name, sql)}


@pytest.mark.parametrize("name", sorted(LOCAL - ASKED_ELSEWHERE))
def test_every_question_has_an_answer(small_night: Ran, name: str) -> None:
    rows = answer(small_night.store, translate_question(name, query_files()[name]))
    assert "small" in {row.get("suite", "small") for row in rows}


@pytest.mark.full
def test_every_question_for_spark_has_an_answer(spark, small_night: Ran) -> None:
    questions = {name: query_files()[name] for name in set(query_files()) - LOCAL - ASKED_ELSEWHERE}
    Store(spark, small_night.store.root).install_views(find_names("\n".join(questions.values())))
    for name, question in questions.items():
        rows = [row.asDict() for row in spark.sql(question).collect()]
        assert "small" in {row.get("suite", "small") for row in rows}, name


DRAWN = {
    "metrics": ["ndcg", "recall"], "k": [5], "bootstrap": {"replicates": 10},
    "definition": {"threshold": 4, "candidates": "uniform"}, "draw": {"n": 10},
}  # fmt: skip


def list_numbers(store: Any) -> set[tuple[Any, ...]]:
    """Values of users and metrics, without their runs."""
    rows = [*store.rows(METRICS), *store.rows(USER_METRICS)]
    return {tuple(repr(row[name]) for name in sorted(row) if name != "run_id") for row in rows}


@pytest.mark.slow
@pytest.mark.parametrize("writer", ["tasks", "Spark"])
def test_a_night_in_a_catalog(spark, writer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with several models, and drawn candidates: as in a folder."""
    spark.sql("CREATE SCHEMA recbench_night_test")
    monkeypatch.chdir(tmp_path)
    if writer == "Spark":
        monkeypatch.setattr(spark_places, "find_schema_place", lambda *_: None)
    try:
        store = Store(spark, "spark_catalog.recbench_night_test")
        ran = run(store, small(**TINY))
        assert set(ran.outcome.run_ids) == {"popular"}, ran.outcome.failed
        place = tmp_path / "reports" / store.root if writer == "Spark" else Path(store.root, "reports")
        assert Path(str(ran.outcome.report_path)).parent == place
        assert "popular" in Path(str(ran.outcome.report_path)).read_text()
        assert spark.table("recbench_night_test.runs").count() == 1
        assert "popular" in ran.outcome.leaderboard
        shutil.rmtree(tmp_path / "reports", ignore_errors=True)
        (tmp_path / "reports").touch()  # no folder can be made there
        again = run(store, small(**TINY))
        assert again.outcome.skipped == ("popular",)
        assert (again.outcome.report_path is None) == (writer == "Spark")
        if writer == "Spark":
            for lost in ("metrics", "items"):
                spark.sql(f"DROP TABLE recbench_night_test.{lost}")
                again = run(Store(spark, store.root), small(**TINY))
                assert set(again.outcome.run_ids) == {"popular"} and f"table {lost} is not" in again.remarks
                assert spark.table(f"recbench_night_test.{lost}").count() > 0
            assert run(store, small(**TINY)).outcome.skipped == ("popular",)
            several = {**TINY, "models": models("popular", "random", "als_4"), "evaluation": DRAWN}
            assert set(run(store, small(**several)).outcome.run_ids) == {"popular", "random", "als_4"}
            run(Store(spark, str(tmp_path / "w")), small(**several))
            assert list_numbers(store) >= list_numbers(ArrowStore(str(tmp_path / "w")))
    finally:
        spark.sql("DROP SCHEMA recbench_night_test CASCADE")


@pytest.mark.full
def test_a_board_takes_the_headlines_of_nights_that_rank(small_night: Ran, metrics: pd.DataFrame) -> None:
    """The larger the better; figures of a publication in the file are rows of its night, none of ours."""
    store, name = small_night.store, "board_of_rankings"
    benchmark = small_night.benchmark.model_copy(update={"board": name})
    assert benchmark.headline == "ndcg@10"
    board = update_board(store, benchmark, None)
    assert update_board(store, benchmark, None).entries == board.entries
    test = metrics[(metrics.part == "test") & (metrics.metric == "ndcg") & (metrics.k == 10)]
    wanted = test[test.slice_key.isna() & test.model.isin(RANKED)].set_index("model").value
    headlines = {entry.name: entry.value for entry in board.entries}
    assert headlines == wanted.to_dict() and [*headlines.values()] == sorted(
        headlines.values(), reverse=True
    )
    assert {e.metric for e in board.entries} == {"ndcg@10"} and not board.entries[0].lower_is_better
    best = board.entries[0]
    append_entries(
        store, [replace(best, name="elsewhere", value=best.value / 2, ran_by="rival", evidence="x")]
    )
    judged = update_board(store, benchmark, None)
    (flagged,) = (e.name for e in judged.entries if judged.verdicts[e.entry_id].under_tuned)
    assert flagged == "elsewhere"
    with pytest.raises(MissingError, match=r"no night of small in .* has measured auc@7"):
        update_board(store, benchmark.model_copy(update={"headline": "auc@7"}), None)
