"""Evaluations of one day, one after the other: what the views, questions and lists show of each number."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from recbench_spark import cli
from recbench_spark.commands import evaluate, query
from recbench_spark.query.local_engine import run_query
from recbench_spark.storage.arrow_store import ArrowStore
from recbench_spark.storage.table_sql import query_files

BOARD = (
    "SELECT dataset, definition, model, position, value FROM leaderboard WHERE metric = 'ndcg' AND k = 3"
)


@pytest.fixture
def warehouse(tmp_path: Path) -> Path:
    rng = np.random.default_rng(7)
    ids = ["user_id", "item_id"]
    every = pd.DataFrame([(u, i) for u in range(8) for i in range(9)], columns=ids)
    every = every.assign(good=rng.random(len(every)) < 0.3, noise=rng.random(len(every)))
    for name, model in (("als", every.good + 0.9 * every.noise), ("pop", every.noise)):
        every.assign(score=model)[[*ids, "score"]].to_parquet(tmp_path / f"{name}.parquet")
    every[every.good][ids].to_parquet(tmp_path / "truth.parquet")
    every[every.noise < 0.4][ids].to_parquet(tmp_path / "other.parquet")
    return tmp_path / "w"


def run(warehouse: Path, model: str, *more: str, truth: str = "truth") -> None:
    folder = warehouse.parent
    flags = ["--warehouse", warehouse, "--model", model, "--scores", folder / f"{model}.parquet", "--truth",
             folder / f"{truth}.parquet", "--dataset", truth, "--k", "3", "--bootstrap", "0",
             "--engine", "local", "--logical-date", "2026-01-01", *more]  # fmt: skip
    with pytest.raises(SystemExit) as end:
        cli.run(evaluate.main, evaluate.parser(), list(map(str, flags)))
    assert end.value.code == 0


def rows(warehouse: Path, sql: str) -> list[tuple[object, ...]]:
    result = run_query(ArrowStore(str(warehouse), read_only=True), sql, 10_000).to_pandas()
    return sorted(result.itertuples(index=False, name=None))


def test_later_runs_of_a_day_hide_no_number_that_they_do_not_have(
    warehouse: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(warehouse, "als", "--metrics", "ndcg,recall")
    run(warehouse, "pop", "--metrics", "ndcg,recall")
    before = rows(warehouse, BOARD)
    assert [row[2:4] for row in before] == [("als", 1), ("pop", 2)]

    run(warehouse, "als", "--metrics", "mrr")
    assert rows(warehouse, BOARD) == before
    best = run_query(
        ArrowStore(str(warehouse), read_only=True),
        query_files()["which_model_is_best"].replace("k = 10", "k = 3"), 10,
    ).to_pylist()  # fmt: skip
    assert [(row["position"], row["model"]) for row in best] == [(1, "als"), (2, "pop")]

    run(warehouse, "als", "--metrics", "ndcg", "--preset", "mllib")
    assert set(before) < set(rows(warehouse, BOARD))
    firsts = [row for row in rows(warehouse, BOARD) if row[3] == 1]
    assert len(firsts) == len({row[1] for row in firsts}) == 2

    run(warehouse, "als", "--metrics", "ndcg", truth="other")
    assert set(before) < set(rows(warehouse, BOARD))
    assert {row[0] for row in rows(warehouse, BOARD)} == {"truth", "other"}

    run(warehouse, "als", "--metrics", "ndcg")
    assert [row for row in rows(warehouse, BOARD) if row in before] == before
    every = rows(warehouse, "SELECT run_id FROM runs WHERE model = 'als'")
    counted = rows(warehouse, "SELECT run_id FROM current_runs WHERE model = 'als'")
    assert counted == every and len(every) == 5
    request = (
        "SELECT COUNT(*), COUNT(DISTINCT definition || dataset) FROM leaderboard WHERE model = 'als' AND "
    )
    assert rows(warehouse, f"{request} metric = 'ndcg' AND k = 3") == [(3, 3)]


def test_a_question_of_an_empty_table_names_the_lines_that_fill_it(
    warehouse: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(warehouse, "pop", "--metrics", "ndcg")
    request = ["which_differences_hold", "--warehouse", str(warehouse)]
    with pytest.raises(SystemExit) as end:
        cli.run(query.main, query.parser(), request)
    assert end.value.code == 0
    assert "the table comparisons is empty" in (said := capsys.readouterr().err)
    assert "'comparisons: {baseline: popular}'" in said
