"""Successive questions in a night: each test row alone, after the rows before it."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recbench_spark.config import Benchmark, parse
from recbench_spark.core.definitions import SAMPLED
from recbench_spark.errors import ConfigError, ProtocolError
from recbench_spark.night.benchmark_checks import check_benchmark
from recbench_spark.schemas import CHECKS, MANIFESTS, METRICS, RANKINGS, RUNS, SPLITS, USER_METRICS
from recbench_spark.storage.arrow_store import ArrowStore
from tests.nights import Ran, read_rows, run, run_in_pieces, small, work_in

SEEDS = range(*map(int, os.environ.get("RECBENCH_SUCCESSIVE_SEEDS", "0,3").split(",")))
"""Worlds drawn: a few in the suite, as many as one likes by hand."""

MODELS = [{"name": "popular", "kind": "popular"}, {"name": "item_knn", "kind": "item_knn", "neighbours": 5}]
CUT, END = 60, 100
"""Seconds where the test begins, and after the last row."""


def draw_log(seed: int) -> pa.Table:
    """Few users and items; several rows have one time, and pairs repeat."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(80, 200))
    user, item = rng.integers(0, rng.integers(2, 15), n), rng.integers(0, rng.integers(8, 25), n)
    return pa.table({
        "user_id": [f"u{one}" for one in user], "item_id": [f"i{one}" for one in item],
        "rating": rng.integers(1, 6, n).astype(float), "event_time": rng.integers(0, END, n) * 1_000_000,
    })  # fmt: skip


def make_benchmark(
    path: Path, seed: int, split: dict[str, Any], models: list[Any] | None = None, **dataset: Any
) -> Benchmark:
    evaluation = {
        "metrics": ["ndcg", "recall", "auc", "coverage"], "k": [1, 5], "bootstrap": {"replicates": 20},
        "slices": [{"key": "popularity", "of": "popularity"}],
        "definition": {"threshold": [None, 3][seed % 2], "weigh": ["users", "rows"][seed % 3 == 2]},
    }  # fmt: skip
    if not split.get("targets"):
        evaluation["definition"].pop("weigh")
    log = {"name": "log", "reader": "parquet", "path": str(path), "time_unit": "us", **dataset}
    file = {
        "name": "asked",
        "dataset": log,
        "split": split,
        "models": models or MODELS,
        "evaluation": evaluation,
    }
    return parse(Benchmark, file, "tests/night/test_successive.py")


def ask(folder: Path, seed: int, valid: bool, targets: str = "successive", store: Any = None) -> Ran:
    """The night of a drawn log."""
    folder.mkdir(parents=True)
    pq.write_table(draw_log(seed), folder / "log.parquet")
    split = {"holdout": "period", "start": f"1970-01-01T00:01:{CUT - 60:02}Z", "length": "30s"}
    split |= {"valid": valid, "targets": targets}
    benchmark = make_benchmark(folder / "log.parquet", seed, split)
    return run(store or ArrowStore(str(folder / "warehouse")), benchmark)


def ask_alone(folder: Path, made: Ran, seed: int) -> Ran:
    """The slow oracle's night: for each test row a user of its own, who was given the rows before it."""
    rows = defaultdict(list)
    for row in read_rows(made.store, SPLITS):
        rows[row.user_id].append(row)
    log: list[tuple[str, str, float, int, str]] = []
    for user, own in rows.items():
        own.sort(key=lambda row: (row.event_time, row.item_id))
        log += [
            (user, row.item_id, row.rating, row.event_time, row.part) for row in own if row.part == "train"
        ]
        for place, tested in enumerate([row for row in own if row.part == "test"]):
            before = [row for row in own if row.part in ("train", "valid")]
            before += [row for row in own if row.part == "test"][:place]
            name = f"{user}|{place + 1}"
            log += [(name, row.item_id, row.rating, row.event_time, "given") for row in before]
            log.append((name, tested.item_id, tested.rating, tested.event_time, "test"))
    names = ("user_id", "item_id", "rating", "event_time", "part")
    folder.mkdir()
    pq.write_table(
        pa.table(dict(zip(names, map(list, zip(*log, strict=True)), strict=True))), folder / "log.parquet"
    )
    benchmark = make_benchmark(folder / "log.parquet", seed, {"holdout": "given"}, columns={"part": "part"})
    return run(ArrowStore(str(folder / "warehouse")), benchmark)


def read_ranks(made: Ran) -> dict[Any, dict[str, Any]]:
    """Ranks by model and question, as `user|query`."""
    models = {row.run_id: row.model for row in read_rows(made.store, RUNS)}
    ranks: dict[Any, dict[str, Any]] = defaultdict(dict)
    for row in read_rows(made.store, RANKINGS, part="test"):
        name = row.user_id if row.query_id is None else f"{row.user_id}|{row.query_id}"
        values = (row.item_ids, row.relevance, row.above, row.tied, row.before, row.length, row.top_items)
        assert name not in ranks[models[row.run_id]]
        ranks[models[row.run_id]][name] = values
    return ranks


@pytest.mark.parametrize(
    "seed", [*SEEDS[:2], *(pytest.param(n, marks=pytest.mark.full) for n in SEEDS[2:])]
)
def test_each_test_row_is_ranked_as_if_it_were_asked_alone(seed: int, tmp_path: Path) -> None:
    try:
        made = run_in_pieces(tmp_path, lambda folder: ask(folder, seed, valid=seed % 2 == 1), read_bits)
    except ProtocolError as error:  # all test rows are of pairs that training knows
        assert "no test rows" in error.message
        return
    ranks = read_ranks(made)
    assert ranks.keys() == {"popular", "item_knn"}
    with work_in(1):
        assert ranks == read_ranks(ask_alone(tmp_path / "alone", made, seed))
    tested = [row for row in read_rows(made.store, SPLITS) if row.part == "test"]
    facts = {(row.part, row.fact): row.value for row in read_rows(made.store, MANIFESTS)}
    assert facts["test", "questions"] == len(tested)
    assert len(ranks["popular"]) == len(tested)
    check_means(made)


def check_means(made: Ran) -> None:
    """Recall at 1 of each question by hand, then of users."""
    threshold = made.benchmark.evaluation.resolve().threshold or 0.5
    for run_row in read_rows(made.store, RUNS):
        users = defaultdict(list)
        for row in read_rows(made.store, RANKINGS, run_id=run_row.run_id, part="test"):
            if row.relevance[0] >= threshold:
                users[row.user_id].append(Fraction(int(row.above[0] + row.before[0] == 0 <= row.above[0])))
        means = {user: sum(values) / len(values) for user, values in users.items()}
        listed = {
            row.user_id: row.values[0]
            for row in read_rows(made.store, USER_METRICS, run_id=run_row.run_id, metric="recall")
            if row.values[0] is not None
        }
        assert listed == {user: pytest.approx(float(mean), abs=1e-15) for user, mean in means.items()}
        (value,) = [
            row for row in read_rows(made.store, METRICS, run_id=run_row.run_id, metric="recall", k=1)
            if row.slice_key is None
        ]  # fmt: skip
        rows = [one for values in users.values() for one in values]
        if made.benchmark.evaluation.resolve().weigh == "users":
            rows = list(means.values())
        mean = pytest.approx(float(sum(rows) / len(rows)), abs=1e-14) if rows else None
        assert (value.n, value.value) == (len(rows), mean)


def read_bits(made: Ran) -> tuple[Any, Any]:
    return read_ranks(made), read_numbers(made)


def read_numbers(made: Ran) -> list[Any]:
    names = ("metric", "k", "slice_value", "value", "stderr", "ci_low", "ci_high", "n")
    rows = [str([getattr(row, name) for name in names]) for row in read_rows(made.store, METRICS)]
    return sorted(rows) + sorted(f"{row.check} {row.observed}" for row in read_rows(made.store, CHECKS))


def test_a_user_with_one_test_row_is_asked_as_before(tmp_path: Path) -> None:
    """Rows beyond each user's first are `later` under `first`: its question is the first of successive."""
    first, every = (ask(tmp_path / one, 4, valid=False, targets=one) for one in ("first", "successive"))
    first_ranks = {
        model: {f"{user}|1": ranks for user, ranks in of.items()} for model, of in read_ranks(first).items()
    }
    of_first = {
        model: {name: of[name] for name in of if name.endswith("|1")}
        for model, of in read_ranks(every).items()
    }
    assert first_ranks == of_first


PERIOD = {"holdout": "period", "start": "2020-01-01", "length": "7d", "targets": "successive"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"split": {**PERIOD, "parts": ["a", "b"]}}, "'successive' goes with one of parts"),
        ({"split": {"protocol": "TO_LS", "targets": "successive"}}, "targets 'successive' needs holdout"),
        ({"evaluation": {"definition": {"weigh": "rows"}}}, "weigh is rows, and the split asks once"),
        *(
            ({"split": PERIOD, "evaluation": {"definition": {"candidates": one}}}, one)
            for one in (*SAMPLED, "rated")
        ),
        (
            {"split": PERIOD, "evaluation": {"exposure": {"propensities": {"method": "power_law"}}}},
            "exposure",
        ),
        (
            {"split": PERIOD, "paradoxes": {"metrics": ["ndcg"]}},
            "paradoxes is for users who are asked once",
        ),
        (
            {"split": PERIOD, "comparisons": {}, "evaluation": {"definition": {"weigh": "rows"}}},
            "weigh is rows, and comparisons are of users",
        ),
    ],
)
def test_what_does_not_go_together(changes: dict[str, Any], message: str) -> None:
    evaluation = {"metrics": ["ndcg"], "k": [5], **changes.get("evaluation", {})}
    with pytest.raises(ConfigError, match=re.escape(message)):
        check_benchmark(small(**{**changes, "evaluation": evaluation}))
