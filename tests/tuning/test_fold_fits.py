"""Fits as Spark tasks over all folds of a small log: the splits of nights, restarts, rows, summaries."""

from __future__ import annotations

import io
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from recbench_spark.commands.benchmark import format_table, select_models
from recbench_spark.config import make_benchmark
from recbench_spark.errors import ConfigError, DataError, ProtocolError
from recbench_spark.models.fits import running
from recbench_spark.models.fits.tasks import fit_one
from recbench_spark.night.split import open_any_log
from recbench_spark.query.answers import make_query_runner
from recbench_spark.runtime.journal import Journal
from recbench_spark.schemas import FITS, METRICS, SPLITS, SUBMISSIONS, VERDICTS
from recbench_spark.splits.rules import label_log
from recbench_spark.storage.arrow_store import ArrowStore
from recbench_spark.storage.store import Store
from recbench_spark.tuning import fold_fits
from recbench_spark.tuning.board_update import append_entries, read_views, update_board
from recbench_spark.tuning.fold_fits import FitPlanner, run_plan, summarise_models
from recbench_spark.tuning.folds import open_folded_log
from recbench_spark.tuning.submissions import make_facts, pack_bundle, read_predictions, score_bundle
from tests.labelled import Labelled
from tests.nights import run, small

MODELS = [
    {"name": "means", "kind": "means"},
    {"name": "sgd", "kind": "sgd_mf", "dims": 2, "epochs": 3, "rates": 0.02},
    {"name": "wild", "kind": "sgd_mf", "dims": 2, "epochs": 3, "rates": 90},
]
TASK = {"task": "rating", "metrics": ["rmse", "mae"], "bootstrap": {"replicates": 5}}


def write_log(folder: Path, timed: bool = True, groups: int = 1) -> str:
    """A log in so many row groups."""
    rows = [(u, i, 1.0 + (u * i + i) % 5, u * 9 + i) for u in range(20) for i in range(12) if (u + i) % 3]
    names = ("user_id", "item_id", "rating", "event_time")[: 4 if timed else 3]
    columns = dict(zip(names, zip(*rows, strict=True), strict=False))
    path = folder / "log.parquet"
    pq.write_table(pa.table(columns), path, row_group_size=-(-len(rows) // groups))
    return str(path)


def write_text(folder: Path, rows: Any) -> str:
    """A log that Spark reads: text."""
    path = folder / "log.csv"
    lines = [",".join(map(str, row)) for row in rows]
    path.write_text("\n".join(["user_id,item_id,rating,event_time", *lines]) + "\n")
    return str(path)


def benchmark(path: str, models: Any = MODELS, **split: Any) -> Any:
    dataset = {"name": "tiny", "reader": path.rpartition(".")[2], "path": path}
    held_out = {"holdout": "folds", "folds": 3, **split}
    document = {"name": "tiny", "dataset": dataset, "split": held_out, "models": models, "evaluation": TASK}
    return make_benchmark(document, [], "test")


def make_fits(store: Store, one: Any) -> FitPlanner:
    return FitPlanner(store, one, open_folded_log(store, one, Journal(io.StringIO())))


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> ArrowStore:
    return ArrowStore(str(tmp_path_factory.mktemp("fits")))


@pytest.fixture(scope="module")
def one(tmp_path_factory) -> Any:
    return benchmark(write_log(tmp_path_factory.mktemp("log")))


@pytest.fixture(scope="module")
def rows(store, one) -> list[dict[str, Any]]:
    return run_plan(store, make_fits(store, one).over_folds(one.models), Journal(io.StringIO()))


def test_every_fit_is_a_row_and_a_diverged_one_too(store, rows) -> None:
    kept = {row["fit_id"]: row for row in store.rows(FITS)}
    assert len(kept) == len(rows) == 9
    assert {(row["model"], row["status"]) for row in rows} == {
        ("means", "succeeded"), ("sgd", "succeeded"), ("wild", "diverged"),
    }  # fmt: skip
    for row in rows:
        stored = kept[row["fit_id"]]
        assert stored["rmse"] == row.get("rmse")
        assert stored["seconds"] > 0 and stored["peak_bytes"] > 10_000_000
        assert stored["started_at"] is not None
    table = format_table(rows)
    assert "wild" in table and "no fit succeeded" in table and "over folds" in table


def test_fits_of_an_earlier_start_say_nothing_of_the_pace(monkeypatch) -> None:
    monkeypatch.setattr(fold_fits, "estimate_cost", lambda task, _log: task.dims)
    tasks = [SimpleNamespace(fit_id=name, dims=dims) for name, dims in (("a", 1000), ("b", 10), ("c", 20))]
    said: list[str] = []
    journal = SimpleNamespace(say=said.append, record=lambda *_, **__: None)
    progress = fold_fits._Progress(SimpleNamespace(log=None), tasks, journal)
    row = {"model": "m", "fold": 1, "seed": 0, "status": "succeeded", "rmse": 0.5, "seconds": 1.0}
    progress.report({**row, "fit_id": "a", "started_at": "2026-01-01T00:00:00+00:00"})
    progress.started -= 10.0
    progress.report({**row, "fit_id": "b", "started_at": "2999-01-01T00:00:00+00:00"})
    assert said[0] == "fit 1/3 m fold 1 seed 0: RMSE 0.5000 in 1.0 s, 0 MB"
    assert said[1].endswith("; about 20 s left")


def test_another_start_does_nothing_and_a_lost_row_is_found_again(store, one, rows, monkeypatch) -> None:
    counts: list[int] = []

    def count_tasks(spark: Any, tasks: Any, *rest: Any) -> Any:
        counts.append(len(tasks))
        return running.run_tasks(spark, tasks, *rest)

    monkeypatch.setattr(fold_fits, "run_tasks", count_tasks)
    plan = make_fits(store, one).over_folds(one.models)
    again = run_plan(store, plan, Journal(io.StringIO()))
    assert counts == [] and [row["rmse"] for row in again] == [row.get("rmse") for row in rows]
    lost = rows[0]["fit_id"]
    store.delete("fits", "fit_id", [lost])
    repeated = run_plan(store, plan, Journal(io.StringIO()))
    assert counts == [1] and [row["rmse"] for row in repeated] == [row.get("rmse") for row in rows]
    assert store.has(FITS, "fit_id", lost)


@pytest.fixture(scope="module")
def night(store, one, rows) -> Any:
    """In the warehouse of the fits, after them."""
    gibbs = {"name": "gibbs", "kind": "bayesian_mf", "features": "u,i,t", "dims": 2, "samples": 4}
    return run(store, benchmark(one.dataset.path, [MODELS[1], gibbs], fold=1))


@pytest.mark.full
def test_a_fold_is_the_fold_of_a_night(store, night, rows) -> None:
    split_id = night.night.split_id
    test = store.rows(SPLITS, [("split_id", "=", split_id), ("part", "=", "test")])
    fitted = next(row for row in rows if row["model"] == "means" and row["fold"] == 1)
    kept = pq.read_table(f"{store.root}/{fitted['files']}/predictions.parquet").to_pylist()
    triples = [{(r["user_id"], r["item_id"], r["rating"]) for r in side} for side in (kept, test)]
    assert triples[0] == triples[1]


@pytest.mark.full
def test_a_night_of_rating_models_is_the_same_fit(store, night, rows) -> None:
    assert not night.outcome.failed, night.outcome.failed
    values = store.rows(METRICS, [("run_id", "=", night.outcome.run_ids["sgd"]), ("metric", "=", "rmse")])
    fitted = next(row for row in rows if row["model"] == "sgd" and row["fold"] == 1)
    assert [row["value"] for row in values] == [fitted["rmse"]]
    fits = store.rows(FITS, [("purpose", "=", "night")])
    assert {row["model"] for row in fits} == {"sgd", "gibbs"}


def open_own(request: pytest.FixtureRequest, engine: str, root: str) -> Any:
    """A warehouse of one of the two runners."""
    return Store(request.getfixturevalue("spark"), root) if engine == "spark" else ArrowStore(root)


BOTH = ["local", pytest.param("spark", marks=pytest.mark.spark)]


@pytest.mark.parametrize("engine", BOTH)
@pytest.mark.parametrize("reader", ["parquet", "csv"])
def test_neither_runner_nor_pieces_change_a_bit(request, tmp_path, one, rows, engine, reader) -> None:
    own, path = open_own(request, engine, str(tmp_path / "w")), write_log(tmp_path, groups=17)
    if reader == "csv":
        columns = pq.read_table(path).to_pydict()
        path = write_text(tmp_path, zip(*columns.values(), strict=True))
    two = benchmark(path)
    fits = make_fits(own, two)
    fit_rows = run_plan(own, fits.over_folds(two.models[:2], folds=(0,)), Journal(io.StringIO()))
    wanted = [row for row in rows if row["fold"] == 0 and row["model"] != "wild"]
    numbers = [(row["model"], row["rmse"], row["rmse_by_step"]) for row in fit_rows]
    assert sorted(numbers) == sorted((row["model"], row["rmse"], row["rmse_by_step"]) for row in wanted)


def test_fits_of_a_start_that_was_killed_are_counted_as_made(store, one) -> None:
    """The files of two fits lie there, and no table has their rows."""
    own = ArrowStore(f"{store.root}-killed")
    fits, text = make_fits(own, one), io.StringIO()
    plan = fits.over_folds(one.models[:1])
    for task in plan.tasks[:2]:
        fit_one(task, plan.log.files)
    run_plan(own, plan, Journal(text))
    assert "3 fits, 2 of them already done (2 of these by a run that did not end)" in text.getvalue()
    run_plan(own, plan, again := Journal(io.StringIO()))
    assert "3 fits, 3 of them already done\n" in again.stream.getvalue()


def test_consecutive_folds_are_stretches_of_the_file(spark, one, tmp_path) -> None:
    columns = pq.read_table(one.dataset.path).to_pydict()
    path = write_text(tmp_path, zip(*columns.values(), strict=True))
    store = Store(spark, str(tmp_path / "w"))
    five = benchmark(path, holdout="consecutive", folds=5)
    log = make_fits(store, five).log
    lines = [line.split(",") for line in Path(path).read_text().splitlines()[1:]]
    parts = {}
    for row in store.spark.read.parquet(*log.files.shared.files).collect():
        parts[row.user_id, row.item_id] = row.part
    assert [parts[u, i] for u, i, *_ in lines] == [str(n * 5 // len(lines)) for n in range(len(lines))]
    second = five.split.model_copy(update={"fold": 1, "valid": True})
    opened = open_any_log(store, five.dataset, placed=True)
    labelled = Labelled(store.spark, label_log(opened, five.dataset, second, store.engine))
    parts = {(r.user_id, r.item_id): r.part for r in labelled.rows().collect()}
    names = {1: "test", 2: "valid"}
    wanted = [names.get(n * 5 // len(lines), "train") for n in range(len(lines))]
    assert [parts[u, i] for u, i, *_ in lines] == wanted


def test_spreads_over_folds_and_seeds_stand_apart(store, one) -> None:
    fits = make_fits(store, one)
    plan = fits.over_folds(one.models[1:2], seeds=(1, 2), folds=(0, 1))
    summary = summarise_models(run_plan(store, plan, Journal(io.StringIO())))["sgd"]
    view = make_query_runner(store)("SELECT * FROM fits_over_folds WHERE purpose = 'benchmark'")
    assert view.query("model == 'sgd' and seeds == 2").empty, "fold 2 has but one seed"
    (row,) = view.query("model == 'means'").replace({np.nan: None}).itertuples()
    assert (row.folds, row.seeds, row.spread_over_seeds) == (3, 1, None)
    assert (summary.folds, summary.seeds) == (2, 2) and summary.over_seeds > 0


def test_what_cannot_be_is_told(store, one, tmp_path) -> None:
    with pytest.raises(ProtocolError, match=r"fold \d+ of 400 has no rows"):
        make_fits(store, benchmark(one.dataset.path, folds=400))
    days = [{"name": "days", "kind": "bayesian_mf", "features": "u,i,t"}]
    untimed = benchmark(write_log(tmp_path, timed=False), days)
    with pytest.raises(ConfigError, match="model days: features 'u,i,t' need the time"):
        make_fits(store, untimed).over_folds(untimed.models)
    narrow = one.model_copy(update={"dataset": one.dataset.model_copy(update={"scale": (1.0, 4.0)})})
    with pytest.raises(DataError, match="holds the rating 5, outside"):
        make_fits(store, narrow)
    with pytest.raises(ConfigError, match="no rating model"):
        select_models(small(), None)


# ------------------------------------------------------------------------------- boards and bundles


def test_a_board_holds_what_covers_all_folds_and_judges_it(store, one, rows) -> None:
    log = make_fits(store, one).log
    board = update_board(store, one, log)
    again = update_board(store, one, log)
    assert [entry.entry_id for entry in again.entries] == [entry.entry_id for entry in board.entries]
    entries = {entry.name: entry for entry in board.entries}
    assert {"means", "sgd"} <= set(entries) and "wild" not in entries
    wanted = summarise_models([row for row in rows if row["model"] == "sgd"])["sgd"]
    assert (entries["sgd"].value, entries["sgd"].spread_folds) == (wanted.mean, wanted.over_folds)
    assert entries["sgd"].method == "matrix factorisation by SGD" and entries["sgd"].folds == 3
    worse = replace(
        entries["sgd"], name="RSVD", value=entries["sgd"].value + 0.5, ran_by="rival", evidence="x"
    )
    append_entries(store, [worse])
    judged = update_board(store, one, log)
    assert judged.verdicts[worse.entry_id].under_tuned
    verdicts = store.rows(VERDICTS)
    reasons = [row for row in verdicts if row["under_tuned"]]
    assert [(row["entry_id"], row["code"]) for row in reasons] == [(worse.entry_id, "better_run_known")]
    assert {row["code"] for row in verdicts if not row["under_tuned"]} == {"never_searched"}
    (gap,) = (
        read_views(store, "tiny")["board_gaps"]
        .query("method == 'matrix factorisation by SGD'")
        .itertuples()
    )
    assert gap.rival - gap.ours == pytest.approx(0.5)


@pytest.mark.parametrize("engine", BOTH)
def test_a_bundle_is_scored_again_to_the_same_bits(request, store, one, rows, tmp_path, engine) -> None:
    shutil.copytree(store.root, tmp_path / "w")
    store = open_own(request, engine, str(tmp_path / "w"))
    log = make_fits(store, one).log
    pairs, fit = read_predictions(store, one, log, "sgd")
    bundle = pack_bundle(pairs, tmp_path / "b", make_facts(one, log, fit, "somebody"))
    entry = score_bundle(store, one, log, tmp_path / "b", never)
    wanted = summarise_models([row for row in rows if row["model"] == "sgd"])["sgd"]
    assert (entry.value, entry.spread_folds, entry.origin) == (wanted.mean, wanted.over_folds, "bundle")
    score_bundle(store, one, log, tmp_path / "b", never)
    looks = store.rows(SUBMISSIONS)
    assert [(row["who"], row["content"]) for row in looks] == [("somebody", bundle.content)] * 2

    table = pq.read_table(tmp_path / "b" / "predictions.parquet")
    pq.write_table(table.slice(1), tmp_path / "b" / "predictions.parquet")
    with pytest.raises(DataError, match="is not what bundle"):
        score_bundle(store, one, log, tmp_path / "b", never)
    facts = make_facts(one, log, fit, "somebody")
    pack_bundle(pairs.filter(pc.greater(pairs["fold"], 0)), tmp_path / "few", facts)
    with pytest.raises(DataError, match=r"held-out pairs: \d+ held-out pairs without a prediction\n"):
        score_bundle(store, one, log, tmp_path / "few", never)
    moved = pa.array((pairs["fold"].to_numpy() + 1) % 3, pa.int32())
    pack_bundle(pairs.drop_columns("fold").append_column("fold", moved), tmp_path / "leak", facts)
    n = len(pairs)
    message = f"{n} rows for {n} held-out pairs: {n} held-out pairs without a prediction, {n} rows that"
    with pytest.raises(DataError, match=message):
        score_bundle(store, one, log, tmp_path / "leak", never)
    for extra, wrong in (
        (pairs[:2], "2 rows of a pair that another row predicts"),
        (
            pairs[:3].set_column(1, "item_id", pa.array(["none"] * 3)),
            "3 rows that predict no held-out pair",
        ),
    ):
        place = tmp_path / wrong[:6]
        pack_bundle(pa.concat_tables([pairs, extra]), place, facts)
        with pytest.raises(
            DataError, match=rf"has {n + int(wrong[0])} rows for {n} held-out pairs: {wrong}\n"
        ):
            score_bundle(store, one, log, place, never)
    with pytest.raises(DataError, match="made from a log with other rows"):
        score_bundle(store, one, replace(log, log_id="other"), tmp_path / "few", never)
    with pytest.raises(ConfigError, match="no seed of model wild has stored fits of all folds"):
        read_predictions(store, one, log, "wild")


def never(_: Any) -> str:
    raise AssertionError("nothing is ranked")


@pytest.mark.parametrize("repeats", ["drop", "keep"])
def test_folds_of_a_log_with_repeated_pairs(tmp_path: Path, repeats: str) -> None:
    """Each fold learns from and predicts the rows that a night on it alone has, and a bundle has them."""
    store = ArrowStore(str(tmp_path / "w"))
    draw = np.random.default_rng(5)
    log = pd.DataFrame({"user_id": draw.integers(0, 6, 300), "item_id": draw.integers(0, 20, 300)}).assign(
        rating=draw.integers(1, 6, 300), event_time=draw.permutation(300)
    )
    log.to_csv(tmp_path / "log.csv", index=False)
    one = benchmark(str(tmp_path / "log.csv"), MODELS[:1], holdout="consecutive", folds=3, repeats=repeats)
    fits = make_fits(store, one)
    rows = {
        row["fold"]: row for row in run_plan(store, fits.over_folds(one.models), Journal(io.StringIO()))
    }
    pair, fold_r = ["user_id", "item_id"], np.arange(300) // 100
    for fold, row in rows.items():
        sides = log[fold_r != fold], log[fold_r == fold]
        train, test = (side.sort_values("event_time").drop_duplicates(pair, keep="last") for side in sides)
        known = pd.MultiIndex.from_frame(test[pair]).isin(pd.MultiIndex.from_frame(train[pair]))
        test = test[~known] if repeats == "drop" else test
        assert (row["status"], row["n_train"], row["n_watched"]) == ("succeeded", len(train), len(test))
        assert 0 < known.sum() < len(known)
    pairs, fit = read_predictions(store, one, fits.log, "means")
    pack_bundle(pairs, tmp_path / "b", make_facts(one, fits.log, fit, "somebody"))
    entry = score_bundle(store, one, fits.log, tmp_path / "b", never)
    assert entry.value == pytest.approx(sum(row["rmse"] for row in rows.values()) / 3)


def test_a_period_of_fits_is_that_of_the_zone(store, tmp_path: Path) -> None:
    """The last day of New York begins at 05:00 UTC: two rows test, and a day of UTC has five."""
    hours = [1, 2, 3, 24, 26, 28, 30, 40]
    rows = [(f"u{n % 2}", f"i{n}", 1.0 + n % 5, hour * 3600) for n, hour in enumerate(hours)]
    columns = dict(
        zip(("user_id", "item_id", "rating", "event_time"), zip(*rows, strict=True), strict=True)
    )
    pq.write_table(pa.table(columns), tmp_path / "log.parquet")
    document = benchmark(str(tmp_path / "log.parquet"), MODELS[:1]).model_dump(mode="json")
    document["dataset"]["time_zone"] = "America/New_York"
    document["split"] = {"holdout": "period", "length": "1d"}
    one = make_benchmark(document, [], "test")
    log = make_fits(store, one).log.files.open()
    assert [len(log.find_rows((part,))) for part in ("train", "test")] == [6, 2]
