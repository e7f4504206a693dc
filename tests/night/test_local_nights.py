"""Nights by this machine's processes: the same tables as by Spark, faults, and the choice of the runner."""

from __future__ import annotations

import io
import os
import random
import signal
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recbench_spark.commands import nightly as job
from recbench_spark.config import Benchmark
from recbench_spark.engine import local
from recbench_spark.errors import ConfigError, FallbackToSpark
from recbench_spark.night import runners
from recbench_spark.night.run_night import run_night
from recbench_spark.night.runners import choose_runner
from recbench_spark.runtime.journal import Journal
from recbench_spark.schemas import COMPARISONS, RUNS
from recbench_spark.storage.arrow_store import ArrowStore
from recbench_spark.storage.store import Store
from tests.night.test_learning_curves import CURVES
from tests.nights import DATE, SMALL, copy_warehouse, models, run, small
from tools.compare_warehouses import main as compare

NEXT = date(2026, 1, 2)

WHOLE: dict[str, Any] = {
    "evaluation": {
        **SMALL["evaluation"],
        "metrics": [*SMALL["evaluation"]["metrics"], "novelty", "gini"],
        "exposure": {"propensities": {"method": "true"}},
        "multiverse": True,
    },
    "comparisons": {"baseline": "popular"},
    "paradoxes": {"metrics": ["ndcg"], "k": [10], "replicates": 20, "flips_against": "all"},
    "regressions": [{"metric": "ndcg", "k": 10, "drop": 0.01}],
}
"""A night with everything that runs without Spark."""

DRAWN: dict[str, Any] = {
    "split": {"protocol": "TO_LS", "valid": True},
    "models": models("popular", "item_knn", "als_4"),
    "evaluation": {
        "metrics": ["ndcg", "recall"],
        "k": [5],
        "definition": {"threshold": 4, "candidates": "uniform"},
        "draw": {"n": 10, "estimators": ["bias_variance"]},
        "bootstrap": {"replicates": 10},
    },
}
"""Drawn candidates, and estimates that correct for them."""

RATED: dict[str, Any] = {
    "dataset": {**SMALL["dataset"], "scale": [1, 5]},
    "split": {"holdout": "n_given", "n": 1, "held_out": {"of": "users", "test": 0.3}, "seed": 5},
    "models": [
        {"name": "mean", "kind": "means", "means": "global"},
        {"name": "means", "kind": "means"},
        {"name": "als", "kind": "als", "rank": 3, "iterations": 3, "implicit": False},
        {"name": "sgd_mf", "kind": "sgd_mf", "dims": 3, "epochs": 3},
    ],
    "evaluation": {"task": "rating", "bootstrap": {"replicates": 20}},
}
"""Predicted ratings: by biases, by vectors with users folded in, and those that a fit stored."""

CURVED: dict[str, Any] = {
    **CURVES,
    "models": [model for model in CURVES["models"] if model["name"] in ("popular", "als", "best")],
    "evaluation": {
        **CURVES["evaluation"],
        "bootstrap": {"replicates": 10},
        "exposure": {"propensities": {"method": "power_law", "floor": 0.01}, "estimators": ["ips"]},
    },
}
"""Learning curves with their ranks and a switch, and propensities that are fitted."""

LEARNT: dict[str, Any] = {
    "split": {"protocol": "TO_LS", "valid": True},
    "models": [
        *models("als_4"),
        {"name": "mf", "kind": "mf_bpr", "dims": 3, "epochs": 2, "watch": True},
        {"name": "gcn", "kind": "lightgcn", "dims": 3, "epochs": 1, "layers": 1, "items": "catalogue"},
        {"name": "sas", "kind": "sasrec", "dims": 4, "epochs": 1, "memory": 5, "history": "with_valid"},
        {
            "name": "mem",
            "kind": "memn2n",
            "dims": 4,
            "epochs": 1,
            "memory": 5,
            "explain": ["u000003", "no"],
        },
    ],
    "retrieval": {
        "models": ["als_4", "sas"],
        "length": 10,
        "indexes": [{"name": "hash", "kind": "lsh", "bits": 3, "bands": 4, "theta": 2, "index_parts": 2}],
    },
    "evaluation": {"metrics": ["ndcg"], "k": [5], "uncut": False, "bootstrap": {"replicates": 10}},
}
"""Models fitted by gradients, with attention and a history that has validation rows; lists by an index."""

ASKED: dict[str, Any] = {
    "split": {"order": "temporal", "group": "global", "ratio": [0.7, 0.1, 0.2], "targets": "successive"},
    "models": models("popular", "item_knn", "als_4"),
    "evaluation": {
        "metrics": ["ndcg", "recall", "novelty", "coverage"],
        "k": [5],
        "parts": ["valid", "test"],
        "slices": SMALL["evaluation"]["slices"],
        "definition": {"threshold": 4, "weigh": "rows"},
        "bootstrap": {"replicates": 10},
        "multiverse": True,
    },
}
"""Each row asked after the rows before it, and all rows alike."""

SHOWN: dict[str, Any] = {
    **ASKED,
    "split": {"protocol": "TO_RS", "ratio": [0.6, 0.1, 0.3]},
    "evaluation": {**ASKED["evaluation"], "definition": {"candidates_as_of": "first_seen"}},
}
"""Candidates as of the moment of each row."""

TURNED: dict[str, Any] = {
    "models": models("popular", "item_knn", "als_4"),
    "evaluation": {**SMALL["evaluation"], "metrics": ["ndcg"], "parts": ["test", "test_exchanged"]},
}
"""Truth exchanged between users."""

GRAPHS: dict[str, Any] = {
    "split": {"protocol": "RO_RS", "ratio": [0.8, 0.0, 0.2], "seed": 5},
    "models": [
        {
            "name": "graph",
            "kind": "graph",
            "features": {"kind": "hashed", "dims": 4},
            "layers": [{"width": 4}, {"width": 3}],
        },
        {
            "name": "pinsage",
            "kind": "pinsage",
            "features": {"kind": "hashed", "dims": 4},
            **{"width": 4, "hidden": 4, "final": [3], "top": 5, "walks": 20, "negatives": 20},
            **{"curriculum": True, "hard_ranks": [3, 8], "epochs": 1, "batch": 64, "validation": 0.2},
        },
    ],
    "evaluation": {"metrics": ["ndcg"], "k": [5], "bootstrap": {"replicates": 10}},
}
"""Layers over a graph, and walks, hard negatives and a fit."""

FALLS: dict[str, Any] = {
    "models": [{"name": "als_4", "kind": "random"}, *models("popular", "truth")],
    "evaluation": {**SMALL["evaluation"], "metrics": ["ndcg"], "k": [10], "slices": []},
    "comparisons": WHOLE["comparisons"],
    "regressions": WHOLE["regressions"],
}
"""The next night, on which a model falls: what compares nights, and nothing that the first has shown."""


@pytest.fixture
def on_spark(spark: Any, monkeypatch: Any) -> Any:
    """Stores of Spark run their nights on Spark, which `tests.nights.run` else avoids."""
    monkeypatch.setattr("tests.nights.choose_store", lambda store, _: store)
    return spark


def test_two_nights_have_the_same_tables(on_spark: Any, tmp_path: Path, monkeypatch: Any) -> None:
    """One process; two with files between them; Spark's night before a local one, and after."""
    one, two, before, after = (str(tmp_path / place) for place in ("one", "two", "before", "after"))
    whole, falls = small(**WHOLE), small(**FALLS)
    copy_warehouse(run(ArrowStore(one), whole).store, tmp_path / "after")
    run(ArrowStore(one), falls, NEXT)
    with monkeypatch.context() as patch:
        patch.setattr(local, "SENT_BYTES", 0)
        patch.setattr(local, "ROWS_PER_TASK", 500)
        run(ArrowStore(two, workers=2), whole)
        run(ArrowStore(two, workers=2), falls, NEXT)
    run(Store(on_spark, before), whole)
    run(ArrowStore(before), falls, NEXT)
    run(Store(on_spark, after), falls, NEXT)
    assert [compare([one, place]) for place in (two, before, after)] == [0, 0, 0]
    assert ArrowStore(after).read_rows(COMPARISONS).num_rows


@pytest.mark.parametrize(
    "settings",
    [DRAWN, RATED, CURVED, LEARNT, GRAPHS, ASKED, SHOWN, TURNED],
    ids=["drawn", "rated", "curved", "learnt", "graphs", "asked", "shown", "turned"],
)
def test_other_nights_have_the_same_tables(on_spark: Any, tmp_path: Path, settings: dict[str, Any]) -> None:
    """Graphs are cut into as many blocks as cores need."""
    run(ArrowStore(str(tmp_path / "one"), workers=2 if settings is GRAPHS else 1), small(**settings))
    run(Store(on_spark, str(tmp_path / "spark")), small(**settings))
    assert compare([str(tmp_path / "one"), str(tmp_path / "spark")]) == 0


def write_system(folder: Path) -> dict[str, str]:
    """Tables of another system, with unknown ids, a repeated row and gaps; returns their paths."""
    draws = random.Random(4)
    users, items = ([f"{name}{n:0{digits}}" for n in range(size)] for name, size, digits in SYSTEM)
    scores = [(u, i, float(draws.randrange(4))) for u in users[3:] for i in draws.sample(items, 20)]
    scores += [("nobody", items[7], 1.0), (users[5], "unknown", 2.0), *scores[:3]]
    ranks = [(u, i, r + 1 + (r > 5)) for u in users[4:] for r, i in enumerate(draws.sample(items, 15))]
    given = [(u, i) for u in users for i in draws.sample(items, 30)]
    tables = {
        "users": {"user_id": users[1:], "vector": [[draws.gauss(0, 1), 1.0] for _ in users[1:]]},
        "items": {"item_id": items[2:], "vector": [[draws.gauss(0, 1), 0.5] for _ in items[2:]]},
        "scores": dict(zip(("user_id", "item_id", "score"), zip(*scores, strict=True), strict=True)),
        "given": dict(zip(("user_id", "item_id"), zip(*given, strict=True), strict=True)),
    }
    for name, columns in tables.items():
        pq.write_table(pa.table({n: list(c) for n, c in columns.items()}), folder / f"{name}.parquet")
    lines = ["user_id,item_id,rank", *(",".join(map(str, row)) for row in ranks)]
    (folder / "lists.csv").write_text("\n".join(lines))
    return {
        **{name: str(folder / f"{name}.parquet") for name in tables},
        "lists": str(folder / "lists.csv"),
    }


SYSTEM = (("u", 120, 6), ("i", 60, 5))
"""Prefix, number and digits of the ids of a small world."""


@pytest.mark.full
def test_other_systems_have_the_same_tables(spark: Any, tmp_path: Path) -> None:
    """Vectors, scores and lists, and features for diversity; then candidates of a table."""
    paths = write_system(tmp_path)
    vectors = {"kind": "embeddings", "users": paths["users"], "items": paths["items"]}
    lists = {"kind": "lists", "path": paths["lists"]}
    others = [
        {"name": "vectors", **vectors},
        {"name": "cosine", **vectors, "similarity": "cosine"},
        {"name": "scores", "kind": "scores", "path": paths["scores"]},
        {"name": "lists", **lists},
        {"name": "masked", **lists, "training_items": "drop"},
    ]
    definition = {"threshold": 4, "candidates": "given"}
    metrics = [*SMALL["evaluation"]["metrics"], "diversity"]
    spread = {**SMALL["evaluation"], "metrics": metrics, "features": paths["items"]}
    among = {"metrics": ["ndcg"], "k": [5], "definition": definition, "candidates_path": paths["given"]}
    for place, store in (("one", ArrowStore), ("spark", lambda root: Store(spark, root))):
        opened = store(str(tmp_path / place))
        for day, evaluation in ((DATE, spread), (NEXT, among)):
            chosen = others if day == DATE else others[:1]
            benchmark = small(models=chosen, evaluation=evaluation)
            done = run_night(opened, benchmark, day, Journal(io.StringIO()))
            assert set(done.run_ids) == {one["name"] for one in chosen}, done.failed
    assert compare([str(tmp_path / "one"), str(tmp_path / "spark")]) == 0


def test_object_storage_holds_the_same_night(bucket: str, tmp_path: Path) -> None:
    """`auto` needs no Spark there, since the variables of the environment reach it."""
    chosen, _ = choose_runner("auto", small(models=models("popular")), f"{bucket}/w", night=True)
    assert chosen.engine == "local"
    for place in (f"{bucket}/w", str(tmp_path / "w")):
        run(ArrowStore(place), small(models=models("popular", "item_knn", "als_4")))
    assert compare([f"{bucket}/w", str(tmp_path / "w")]) == 0


def test_a_second_run_does_nothing_and_a_new_model_is_added(tmp_path: Path) -> None:
    store = ArrowStore(str(tmp_path))
    first = run(store, small(models=models("popular")))
    again = run(store, small(models=models("popular")))
    assert first.outcome.run_ids and not again.outcome.run_ids and again.outcome.skipped == ("popular",)
    more = run(store, small(models=models("popular", "random")))
    assert set(more.outcome.run_ids) == {"random"} and more.outcome.skipped == ("popular",)
    assert not list((tmp_path / "_scratch").glob("*/*"))


def test_a_failing_model_stops_no_other(tmp_path: Path) -> None:
    broken = {"name": "broken", "kind": "tests.own_model:PureSvd", "wrong": "nan"}
    ran = run(ArrowStore(str(tmp_path)), small(models=[broken, *models("popular")]))
    assert set(ran.outcome.run_ids) == {"popular"} and set(ran.outcome.failed) == {"broken"}


def job_line(place: Path, *flags: str) -> list[str]:
    sizes = [f"users={u}" for u in (400,)] + ["items=200", "interactions=20000", "open_loop=2000"]
    sets = [f"--set=dataset.world.{one}" for one in sizes]
    return ["--config", "demo", "--warehouse", str(place), "--logical-date", str(DATE), *sets, *flags]


def test_the_job_starts_no_java(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("recbench_spark.commands.nightly.open_store", pytest.fail)
    flags = job_line(tmp_path / "w", "--set=evaluation.bootstrap.replicates=10")
    assert job.main(job.parser().parse_args(flags)) == 0
    said = capsys.readouterr()
    assert "engine local: 22,000 rows" in said.out + said.err and "als_32" in said.out


HALF = ("--engine=local", "--set=evaluation.bootstrap.replicates=10")


def run_job(place: Path) -> Path:
    assert job.main(job.parser().parse_args(job_line(place, *HALF))) == 0
    return place


@pytest.fixture(scope="module")
def whole_night(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_job(tmp_path_factory.mktemp("whole") / "w")


@pytest.mark.full
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGINT])
def test_a_night_that_ended_half_way_is_completed(
    whole_night: Path, tmp_path: Path, sent: signal.Signals
) -> None:
    """It ends while models are ranked: nothing is visible; the next run has the tables of a whole one."""
    words = [sys.executable, "jobs/recbench.py", "nightly", *job_line(tmp_path / "w", *HALF)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as started:
        assert started.stdout is not None
        for line in started.stdout:
            if "] rank " in line:
                break
        os.kill(started.pid, sent)
        started.stdout.read()
    assert started.returncode == (130 if sent == signal.SIGINT else -sent)
    store = ArrowStore(str(tmp_path / "w"))
    assert not [row for row in store.rows(RUNS) if row["status"] == "succeeded"]
    assert compare([str(run_job(tmp_path / "w")), str(whole_night)]) == 0


FEATURES = {"method": "logistic_regression", "item_features": "f.csv"}


def test_what_needs_spark_is_said(tmp_path: Path) -> None:
    changes: dict[str, Any] = {
        "evaluation": {**SMALL["evaluation"], "exposure": {"propensities": FEATURES}}
    }
    assert choose_runner("auto", small(**changes), str(tmp_path), night=True)[0].engine == "local"
    benchmark: Benchmark = small(**changes, models=[{"name": "als", "kind": "mllib_als"}])
    assert choose_runner("auto", benchmark, str(tmp_path), night=True)[0].engine == "spark"
    with pytest.raises(ConfigError, match=r"model als \(kind mllib_als\) runs on Spark") as refused:
        choose_runner("local", benchmark, str(tmp_path), night=True)
    assert refused.value.hint == "use --engine spark"


@pytest.mark.parametrize("variable", runners.SESSIONS)
def test_who_asks_for_a_session_gets_spark(tmp_path: Path, monkeypatch: Any, variable: str) -> None:
    monkeypatch.setenv(variable, "sc://host:15002")
    choice, _ = choose_runner("auto", small(), str(tmp_path), night=True)
    assert choice.engine == "spark" and choice.why == runners.SESSIONS[variable]
    assert choose_runner("local", small(), str(tmp_path), night=True)[0].engine == "local"


def test_rewards_that_spark_must_read_fail_no_model(tmp_path: Path) -> None:
    """A table of a catalog: the night ends for the other runner, and leaves no run."""
    exposure = {
        "propensities": {"method": "true"},
        "estimators": ["ips", "dr"],
        "rewards": "main.scores.rewards",
    }
    benchmark = small(models=models("popular"), evaluation={**SMALL["evaluation"], "exposure": exposure})
    store = ArrowStore(str(tmp_path / "w"))
    with pytest.raises(FallbackToSpark, match=r"main\.scores\.rewards may be a table of a catalog"):
        run(store, benchmark)
    assert not store.rows(RUNS)
