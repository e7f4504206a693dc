"""`--export`: the results in one DuckDB file. No JVM: the rows are written by the store without Java."""

from __future__ import annotations

import re
import shutil
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import duckdb
import pytest

from recbench_spark import cli
from recbench_spark.commands import query
from recbench_spark.errors import RecbenchError
from recbench_spark.query.local_engine import run_query
from recbench_spark.schemas import CHECKS, COMPARISONS, METRICS, RUNS, TABLES, USER_METRICS, Table
from recbench_spark.storage.arrow_store import ArrowStore
from recbench_spark.storage.table_sql import view_files

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how_to" / "bi.md"
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
VALUES: dict[str, Any] = {
    "suite": "demo", "status": "succeeded", "attempt": 1, "dataset": "world", "split": "RO_RS",
    "part": "test", "split_id": "s1", "source": "baseline", "metric": "ndcg", "definition": "v1", "k": 10,
    "estimator": "holdout", "n": 4, "severity": "info", "passed": True, "started_at": NOW,
    "finished_at": NOW, "at_grid_edge": ["rank"], "regressed": False,
}  # fmt: skip


def make_row(table: Table, **more: Any) -> dict[str, Any]:
    """A row with a value in every column that needs one."""
    known = {**VALUES, **more}
    return {
        c.name: known.get(c.name, None if c.nullable else "x" if str(c.type) == "string" else 0)
        for c in table.columns
    }


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("export") / "warehouse"
    store = ArrowStore(str(root))
    for n, day in enumerate((date(2026, 1, 1), date(2026, 1, 2))):
        for m, model in enumerate(("als", "it's")):
            run = {"run_id": f"{model}-{n}", "model": model, "logical_date": day, "run_key": f"{model}{n}"}
            store.append([make_row(METRICS, value=0.1 * (m + n), **run)], METRICS)
            store.append([make_row(CHECKS, check="rows", **run)], CHECKS)
            store.append([make_row(RUNS, model_kind="als", **run)], RUNS)
    store.append(
        [make_row(METRICS, run_id="als-1", slice_key="popularity", slice_value="head", value=0.2)], METRICS
    )
    sides: dict[str, Any] = {"run_id": "als-1", "model": "als", "logical_date": date(2026, 1, 2)}
    pair = {"kind": "pair", "other": "it's", "other_run_id": "it's-1", "other_date": date(2026, 1, 2)}
    fall = {"kind": "previous", "other": "als", "other_run_id": "als-0", "other_date": date(2026, 1, 1)}
    differences = [
        make_row(COMPARISONS, comparison_id="c1", with_baseline=True, compared_at=NOW, **sides, **pair),
        make_row(COMPARISONS, comparison_id="c2", regressed=True, compared_at=NOW, **sides, **fall),
    ]
    store.append(differences, COMPARISONS)
    return str(root)


def run_export(warehouse: str, target: Path, *more: str) -> int:
    return query.main(query.parser().parse_args(["--warehouse", warehouse, "--export", str(target), *more]))


@pytest.fixture(scope="module")
def export_file(warehouse: str) -> Path:
    """The warehouse in one file, for tests that only read it."""
    target = Path(warehouse).with_name("results.duckdb")
    assert run_export(warehouse, target) == 0
    return target


def read(target: Path, sql: str) -> list[tuple[Any, ...]]:
    with duckdb.connect(str(target), read_only=True) as connection:
        return connection.execute(sql).fetchall()


def list_names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_file_holds_every_table_view_and_comment(
    warehouse: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "new" / "results.duckdb"
    assert run_export(warehouse, target) == 0
    said = capsys.readouterr().out
    assert f"{target}: {len(TABLES)} tables (4 with rows, 15 rows), {len(view_files())} views" in said
    assert f"duckdb -readonly {target}" in said
    assert list_names(target.parent) == ["results.duckdb"]
    tables = dict(read(target, "SELECT table_name, comment FROM duckdb_tables()"))
    assert tables == {name: table.comment for name, table in TABLES.items()}
    views = dict(read(target, "SELECT view_name, comment FROM duckdb_views() WHERE NOT internal"))
    assert views.keys() == view_files().keys() and all("?" in text for text in views.values())
    chosen = "FROM duckdb_columns() WHERE table_name = 'metrics' ORDER BY column_index"
    columns = read(target, f"SELECT column_name, comment {chosen}")
    assert columns == [(c.name, c.comment) for c in METRICS.columns]


@pytest.mark.full
def test_every_view_has_the_rows_that_a_query_of_the_warehouse_has(
    warehouse: str, export_file: Path
) -> None:
    """DuckDB's own order of NULL differs from that of our queries, and changes no row."""
    store, filled = ArrowStore(warehouse, read_only=True), 0
    with duckdb.connect(str(export_file), read_only=True) as connection:
        for name in (*view_files(), "runs", "metrics", "user_metrics"):
            ours = run_query(store, f"SELECT * FROM {name}", 1000).to_pylist()
            theirs = connection.sql(f"SELECT * FROM {name}").to_arrow_table().to_pylist()
            assert sorted(map(repr, theirs)) == sorted(map(repr, ours)), name
            filled += bool(ours)
    assert filled >= 8 and USER_METRICS.name in TABLES


def test_shells_that_are_older_than_the_writer_read_the_file(export_file: Path) -> None:
    """The format's number stands behind the mark: 65 is DuckDB 1.2; without the setting 2.0 writes 69."""
    head = export_file.read_bytes()[:20]
    assert head[8:12] == b"DUCK" and int.from_bytes(head[12:20], "little") <= 65


def test_an_existing_file_stays_unless_it_is_to_be_replaced(
    warehouse: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "results.duckdb"
    target.write_text("mine")
    flags = ["--warehouse", warehouse, "--export", str(target)]
    with pytest.raises(SystemExit) as end:
        cli.run(query.main, query.parser(), flags)
    said = capsys.readouterr().err
    assert end.value.code == 2 and "is there already" in said and "--replace" in said
    assert target.read_text() == "mine"
    assert run_export(warehouse, target, "--replace") == 0
    assert read(target, "SELECT COUNT(*) FROM runs") == [(4,)]
    assert list_names(tmp_path) == ["results.duckdb"]


def test_the_log_of_an_old_file_goes_with_it(warehouse: str, tmp_path: Path) -> None:
    """A killed process that wrote to the old file has left a log; the new file does not open beside it."""
    target, log = tmp_path / "results.duckdb", tmp_path / "results.duckdb.wal"
    with duckdb.connect(str(target)) as connection:
        connection.execute("CREATE TABLE mine (x INT)")
        left = log.read_bytes()
    log.write_bytes(left)
    assert run_export(warehouse, target, "--replace") == 0
    assert list_names(tmp_path) == ["results.duckdb"]
    assert read(target, "SELECT COUNT(*) FROM runs") == [(4,)]


def test_an_error_on_the_way_leaves_the_old_file_and_nothing_else(
    warehouse: str, export_file: Path, tmp_path: Path
) -> None:
    target, copy = tmp_path / "results.duckdb", tmp_path / "copy"
    shutil.copy(export_file, target)
    before = target.read_bytes()
    shutil.copytree(warehouse, copy)
    for path in (copy / "metrics").glob("**/*.parquet"):
        path.unlink()
    with pytest.raises(RecbenchError):
        run_export(str(copy), target, "--replace")
    assert target.read_bytes() == before and list_names(tmp_path) == ["copy", "results.duckdb"]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--export", "x.duckdb", "--warehouse", "w", "leaderboard"], "takes no query"),
        (["--export", "x.duckdb"], "required: --warehouse"),
        (["--replace", "--warehouse", "w", "runs"], "--replace goes with --export"),
        (["--export", "s3://bucket/x.duckdb", "--warehouse", "."], "no results in warehouse"),
    ],
)
def test_flags_that_do_not_go_together_are_refused(
    flags: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        cli.run(query.main, query.parser(), flags)
    assert end.value.code == 2 and words in capsys.readouterr().err


def test_the_questions_of_the_page_have_answers(export_file: Path) -> None:
    """The warehouse has two models, two nights, a slice, a comparison with the baseline and a fall."""
    questions = re.findall(r"```sql\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(questions) == 5
    with duckdb.connect(str(export_file), read_only=True) as connection:
        counts = [len(connection.sql(sql).fetchall()) for sql in questions]
    assert counts == [2, 4, 1, 1, 1]
