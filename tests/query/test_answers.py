"""Questions of a night's steps: in this process, or a clear refusal where Spark alone reads a table."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from recbench_spark.errors import FallbackToSpark
from recbench_spark.query import answers
from recbench_spark.query.answers import list_texts, make_query_runner
from recbench_spark.schemas import RUNS
from recbench_spark.storage.arrow_store import ArrowStore


def test_rows_without_spark_have_the_types_of_its_frames(tmp_path: Path) -> None:
    store, names = ArrowStore(str(tmp_path / "w")), ("it's", "b")
    night = {"logical_date": date(2026, 1, 2), "status": "succeeded", "attempt": 1, "model": "m",
             "source": "own"}  # fmt: skip
    store.append([{**night, "run_id": name, "run_key": name, "suite": "s"} for name in names], RUNS)
    ask = make_query_runner(store)
    rows = ask(f"SELECT run_id, logical_date FROM runs WHERE run_id IN ({list_texts(names[:1])})")
    assert rows.to_numpy().tolist() == [["it's", date(2026, 1, 2)]]
    assert ask(f"SELECT run_id FROM runs WHERE run_id IN ({list_texts([])})").empty


def test_without_spark_nothing_else_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise FallbackToSpark("table runs")

    monkeypatch.setattr(answers, "run_query", refuse)
    with pytest.raises(FallbackToSpark, match="table runs"):
        make_query_runner(ArrowStore(str(tmp_path / "w")))("SELECT 1")
