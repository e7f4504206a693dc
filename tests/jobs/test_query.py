"""jobs/query.py: names, statements, and mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs import query
from recbench_spark import cli
from recbench_spark.errors import ConfigError
from recbench_spark.schemas import TABLES
from recbench_spark.store import query_files, view_files
from tests.nights import RANKED, Ran


def ask(*argv: str) -> int:
    return query.main(query.parser().parse_args([*argv]))


def test_the_list_names_everything_that_can_be_asked(capsys: pytest.CaptureFixture[str]) -> None:
    assert ask("--warehouse", "nowhere", "--list") == 0
    printed = capsys.readouterr().out
    for name in [*TABLES, *view_files(), *query_files()]:
        assert f"  {name} " in printed
    assert ask("--warehouse", "nowhere") == 2


def test_a_name_is_a_view_a_table_or_a_question() -> None:
    assert query.statement("leaderboard") == "SELECT * FROM leaderboard"
    assert query.statement("runs") == "SELECT * FROM runs"
    assert query.statement("which_model_is_best") == query_files()["which_model_is_best"]
    assert query.statement("SELECT 1") == "SELECT 1"
    with pytest.raises(ConfigError) as error:
        query.statement("leaderbord")
    assert "did you mean 'leaderboard'?" in error.value.hint


@pytest.mark.spark
def test_a_statement_prints_rows(small_night: Ran, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = "suite = 'small' AND part = 'test' AND metric = 'ndcg' AND k = 5"
    sql = f"SELECT model, value FROM leaderboard WHERE {chosen}"
    assert ask("--warehouse", small_night.store.root, sql, "--format", "csv") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "model,value"
    assert {line.split(",")[0] for line in lines[1:] if line} == set(RANKED)


@pytest.mark.spark
def test_a_question_prints_a_table_no_longer_than_asked(
    small_night: Ran, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ask("--warehouse", small_night.store.root, "which_model_is_best", "--limit", "3") == 0
    lines = capsys.readouterr().out.splitlines()
    assert "next_model" in lines[0] and len(lines) == 4


@pytest.mark.spark
def test_an_empty_warehouse_is_told_and_not_made(
    spark, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        cli.run(query.main, query.parser(), ["--warehouse", str(tmp_path / "typo"), "leaderboard"])
    assert end.value.code == 2
    assert "no results in warehouse" in capsys.readouterr().err
    assert not (tmp_path / "typo").exists()


@pytest.mark.spark
def test_wrong_sql_ends_in_one_line(small_night: Ran, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.run(
            query.main,
            query.parser(),
            ["--warehouse", small_night.store.root, "SELECT modle FROM leaderboard"],
        )
    assert end.value.code == 1
    said = capsys.readouterr().err
    # PySpark logs the query's error as one line of JSON of its own before ours.
    last = said.rstrip().splitlines()[-1]
    assert last.startswith("error: ") and "modle" in last
    assert "\tat org.apache" not in said
