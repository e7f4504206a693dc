"""A warehouse by older code (`tests/old_warehouse`) through migrate, a night and queries.

What it holds is neither taken for what this code makes nor mixed with it, and `changes` names the code.
"""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F

from recbench_spark import __version__, cli
from recbench_spark.commands import maintain, nightly, query
from recbench_spark.query.local_engine import find_names
from recbench_spark.schemas import TABLES
from recbench_spark.storage.store import Store

OLD = Path(__file__).resolve().parent
MODELS = {"item_knn", "popular"}

pytestmark = pytest.mark.slow


def job(module: Any, *argv: object) -> int | str | None:
    with pytest.raises(SystemExit) as end:
        cli.run(module.main, module.parser(), [str(arg) for arg in argv])
    return end.value.code


@pytest.fixture
def warehouse(tmp_path: Path) -> Path:
    """The warehouse as that code left it: nights of 1 and 2 January."""
    with tarfile.open(OLD / "warehouse.tar.gz") as packed:
        packed.extractall(tmp_path, filter="data")
    return tmp_path / "warehouse"


@pytest.fixture
def night(warehouse: Path) -> Callable[[int], int | str | None]:
    """Runs the night of a day of January by this code."""
    flags = ("--config", OLD / "nights.yaml", "--warehouse", warehouse, "--logical-date")
    return lambda day: job(nightly, *flags, f"2026-01-0{day}")


def read_rows(store: Store, columns: dict[str, list[str]]) -> dict[str, set[str]]:
    """Every row of every table, as text, of the columns that the old code knew."""
    return {name: {str(row) for row in store.read(TABLES[name]).select(*names).collect()}
            for name, names in columns.items()}  # fmt: skip


def test_old_numbers_are_neither_skipped_nor_mixed_and_the_code_is_named(
    spark, warehouse: Path, night: Callable[[int], int | str | None], capsys: pytest.CaptureFixture[str]
) -> None:
    assert night(3) == 1
    assert "--migrate" in capsys.readouterr().err
    old_store = Store(spark, str(warehouse), any_version=True)
    known = {name: old_store.read(TABLES[name]).columns for name in TABLES}
    before = read_rows(old_store, known)
    assert job(maintain, "--warehouse", warehouse, "--migrate") == 0
    assert night(3) == 0
    said = capsys.readouterr()
    assert "already done" not in said.out and "already made" not in said.err

    store = Store(spark, str(warehouse))
    after = read_rows(store, known)
    assert {name for name, rows in before.items() if rows - after[name]} == set()
    runs = {(row.model, row.logical_date.day): row for row in store.read(TABLES["runs"]).collect()}
    assert runs.keys() == {(model, day) for model in MODELS for day in (1, 2, 3)}
    old, new = ({runs[model, day].split_id for model in MODELS} for day in (2, 3))
    assert len(old) == len(new) == 1 and old != new
    for name, column in (
        ("splits", "split_id"),
        ("manifests", "split_id"),
        ("user_blocks", "split_id"),
        ("propensities", "split_id"),
        ("similarities", "model_id"),
        ("embeddings", "model_id"),
    ):
        result = {row[0].partition("-")[0] for row in store.read(TABLES[name]).select(column).collect()}
        assert result == old | new, name
    assert {runs[model, 3].code_version for model in MODELS} == {__version__}

    compared = store.read(TABLES["comparisons"]).where("logical_date = DATE'2026-01-03'").collect()
    previous = {(row.model, row.run_id, row.other_run_id) for row in compared if row.kind == "previous"}
    assert previous == {(model, runs[model, 3].run_id, runs[model, 2].run_id) for model in MODELS}
    # Looks at the old numbers are not looks at these.
    assert {row.looks for row in compared if row.kind == "pair"} == {1}

    assert read_changes(store, 3) == {
        "popular": {(True, f"recbench-spark 0.2.0 -> {__version__}: ", "splits 2 -> 3")},
        "item_knn": {(True, f"recbench-spark 0.2.0 -> {__version__}: ", "item_knn 2 -> 3 splits 2 -> 3")},
    }
    page = (warehouse / "reports" / "old-2026-01-03.html").read_text()
    assert page.count("the code changed since 2026-01-02") == 2 and "nothing else differs" in page
    capsys.readouterr()
    assert job(query, "--warehouse", warehouse, "why_did_the_number_move") == 0
    assert "code_change" in capsys.readouterr().out
    assert job(query, "--warehouse", warehouse, "leaderboard") == 0
    assert "2026-01-03" in capsys.readouterr().out

    # The night before, run again by this code: now both are by the same code, and nothing moved.
    assert night(2) == 0
    assert "already done" not in capsys.readouterr().out
    assert night(3) == 0
    assert "already done this night, nothing to do: popular, item_knn" in capsys.readouterr().out
    assert read_changes(store, 3) == {}
    moved = spark.table("current_changes").where("logical_date = DATE'2026-01-03' AND difference <> 0")
    assert moved.isEmpty()
    after = read_rows(store, known)
    assert {name for name, rows in before.items() if rows - after[name]} == set()


def read_changes(store: Store, day: int) -> dict[str, set[tuple[bool, str, str]]]:
    """Read for each changed model: whether only the code changed, the versions, the revisions."""
    store.install_views(find_names("current_changes"))
    requests = ("item_knn 2 -> 3", "splits 2 -> 3")
    result: dict[str, set[tuple[bool, str, str]]] = {}
    of_day = (F.col("logical_date") == F.lit(date(2026, 1, day))) & F.col("code_change").isNotNull()
    for row in store.spark.table("current_changes").where(of_day).collect():
        versions = row.code_change[: row.code_change.index(": ") + 2]
        words = " ".join(word for word in requests if word in row.code_change)
        result.setdefault(row.model, set()).add((row.code_alone, versions, words))
    return result
