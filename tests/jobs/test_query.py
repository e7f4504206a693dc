"""recbench query: names, statements, and mistakes."""

from __future__ import annotations

import csv
import io
import json
import shlex
from pathlib import Path

import pyarrow as pa
import pytest

from recbench_spark import cli
from recbench_spark.commands import compare, query
from recbench_spark.commands import query as asking
from recbench_spark.errors import ConfigError
from recbench_spark.query import local_engine
from recbench_spark.query.sql_guard import check_query
from recbench_spark.schemas import TABLES
from recbench_spark.storage.arrow_store import ArrowStore
from recbench_spark.storage.store import Store
from recbench_spark.storage.table_sql import query_files, view_files
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
    assert asking.read_statement("leaderboard") == "SELECT * FROM leaderboard ORDER BY ALL"
    assert asking.read_statement("runs") == "SELECT * FROM runs"
    assert asking.read_statement("which_model_is_best") == query_files()["which_model_is_best"]
    assert asking.read_statement("SELECT 1") == "SELECT 1"
    with pytest.raises(ConfigError) as error:
        asking.read_statement("leaderbord")
    assert "did you mean 'leaderboard'?" in error.value.hint


def test_what_a_statement_names_stands_before_what_needs_it() -> None:
    """Spark registers these alone, one by one."""
    names = local_engine.find_names("SELECT * FROM `Leaderboard`")
    assert names[-1] == "leaderboard" and {"runs", "metrics"} <= set(names) < {*TABLES, *view_files()}
    for at, name in enumerate(names):
        words = set(view_files().get(name, "").replace(",", " ").split())
        assert words & set(names) <= set(names[: at + 1])
    assert local_engine.find_names("SELECT 1") == []


@pytest.fixture(params=["local", pytest.param("spark", marks=[pytest.mark.spark, pytest.mark.full])])
def engine(request: pytest.FixtureRequest) -> str:
    if request.param == "spark":
        request.getfixturevalue("spark")
    return request.param


def test_a_statement_prints_rows(spark, small_night: Ran, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = "suite = 'small' AND part = 'test' AND metric = 'ndcg' AND k = 5"
    sql = f"SELECT model, value FROM leaderboard WHERE {chosen}"
    assert ask("--warehouse", small_night.store.root, sql, "--format", "csv") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "model,value"
    assert {line.split(",")[0] for line in lines[1:] if line} == set(RANKED)


def test_a_suite_without_comparisons_is_told_how_to_get_them(
    engine: str, small_night: Ran, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ask("--warehouse", small_night.store.root, "which_differences_hold", f"--engine={engine}") == 0
    said = capsys.readouterr().err
    assert "suite small has no comparisons" in said and "  comparisons: {baseline: popular}\n" in said
    (line,) = [line for line in said.splitlines() if " compare " in line and "--suite small " in line]
    words = shlex.split(line)
    assert Path(words[0]).name == "recbench" and words[1] == "compare" and words[-1] == "popular"
    assert compare.main(compare.parser().parse_args([*words[2:], "--bootstrap=20"])) == 0
    assert "with popular on" in capsys.readouterr().out


def test_a_question_prints_a_table_no_longer_than_asked(
    small_night: Ran, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ask("--warehouse", small_night.store.root, "which_model_is_best", "--limit", "3") == 0
    lines = capsys.readouterr().out.splitlines()
    assert "next_model" in lines[0] and len(lines) == 4


def test_csv_is_whole_and_a_table_says_what_it_hides(
    engine: str, small_night: Ran, capsys: pytest.CaptureFixture[str]
) -> None:
    place = ("--warehouse", small_night.store.root, f"--engine={engine}")
    n = len(small_night.store.rows(TABLES["metrics"]))
    assert n > 50 and ask(*place, "metrics", "--format", "csv") == 0
    whole = capsys.readouterr()
    assert len(whole.out.splitlines()) == n + 1 and "rows" not in whole.err
    assert ask(*place, "metrics") == 0
    table = capsys.readouterr()
    assert len(table.out.splitlines()) == 51
    assert f"50 of {n:,} rows: {n - 50:,} more with --limit {n}; --format csv has all" in table.err
    assert ask(*place, "metrics", "--format", "csv", "--limit", "3") == 0
    assert len(capsys.readouterr().out.splitlines()) == 4
    assert ask(*place, "SELECT 1 AS one -- a comment", "--limit", "1") == 0
    assert "rows:" not in capsys.readouterr().err


def test_lists_maps_and_large_numbers_are_whole_in_csv(capsys: pytest.CaptureFixture[str]) -> None:
    """numpy shortens lists of more than 1,000 values, pandas rounds whole numbers beside NULL."""
    lists = [[number / 3 for number in range(1200)], None]
    maps = [[("a", [{"x": 1}, None])], []]
    kind = pa.map_(pa.string(), pa.list_(pa.struct({"x": pa.int64()})))
    columns = {"n": [2**60 + 1, None], "l": lists, "m": pa.array(maps, kind), "t": ['say "ü"', None]}
    asking.print_rows(pa.table(columns), "csv")
    first, second = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert (first["n"], first["t"]) == (str(2**60 + 1), 'say "ü"')
    assert json.loads(first["l"]) == lists[0] and json.loads(first["m"]) == {"a": [{"x": 1}, None]}
    assert (second["n"], second["l"], second["m"]) == ("", "", "{}")


@pytest.mark.parametrize("name", sorted(query_files()))
def test_no_question_hides_rows_by_itself(name: str) -> None:
    assert "LIMIT" not in query_files()[name]


@pytest.mark.parametrize("name", sorted(query_files()))
def test_each_question_is_answered_here_or_says_what_it_needs(
    small_night: Ran, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--warehouse", small_night.store.root, "--engine=local", name]
    if any(part in query_files()[name] for part in local_engine.SPARK_ONLY):
        with pytest.raises(SystemExit) as end:
            cli.run(query.main, query.parser(), words)
        assert end.value.code == 2 and f"{name} needs Spark" in capsys.readouterr().err
    else:
        assert ask(*words) == 0


def test_an_empty_warehouse_is_told_and_not_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        cli.run(query.main, query.parser(), ["--warehouse", str(tmp_path / "typo"), "leaderboard"])
    assert end.value.code == 2
    assert "no results in warehouse" in capsys.readouterr().err
    assert not (tmp_path / "typo").exists()


@pytest.mark.parametrize(("only", "requests"), [("fits", "fits_over_folds"), ("graph_runs", "graph_runs")])
def test_a_warehouse_of_fits_or_graphs_alone_is_asked_as_their_jobs_say(
    tmp_path: Path, only: str, requests: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ArrowStore(str(tmp_path)).create(TABLES[only])
    assert ask("--warehouse", str(tmp_path), requests) == 0
    assert "Columns: [" in capsys.readouterr().out


def test_wrong_sql_ends_in_one_line(spark, small_night: Ran, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.run(
            query.main,
            query.parser(),
            ["--warehouse", small_night.store.root, "SELECT modle FROM leaderboard"],
        )
    assert end.value.code == 1
    said = capsys.readouterr().err
    # PySpark logs the query's error as one line of JSON of its own before ours.
    last, hint = said.rstrip().splitlines()[-2:]
    assert last.startswith("error: ") and "modle" in last and hint.startswith("  hint: ")
    assert "\tat org.apache" not in said


ATTACKS = (
    # changes, commands, scripts
    "DELETE FROM delta.`{runs}`",
    "DELETE FROM runs",
    "-- SELECT\nDELETE FROM delta.`{runs}`",
    "UPDATE delta.`{runs}` SET model = 'x'",
    "MERGE INTO delta.`{runs}` USING runs ON true WHEN MATCHED THEN DELETE",
    "INSERT INTO delta.`{runs}` SELECT * FROM runs",
    "FROM runs INSERT INTO delta.`{runs}` SELECT *",
    "TRUNCATE TABLE delta.`{runs}`",
    "DROP TABLE delta.`{runs}`",
    "VACUUM delta.`{runs}`",
    "OPTIMIZE delta.`{runs}`",
    "RESTORE TABLE delta.`{runs}` TO VERSION AS OF 0",
    "ALTER TABLE delta.`{runs}` ADD COLUMNS (x INT)",
    "CREATE TABLE mine AS SELECT 1",
    "CREATE OR REPLACE TEMP VIEW runs AS SELECT 1",
    "CREATE FUNCTION mine(x INT) RETURNS INT RETURN x",
    "INSERT OVERWRITE DIRECTORY '{runs}' USING parquet SELECT 1",
    "BEGIN DELETE FROM delta.`{runs}`; END",
    "EXECUTE IMMEDIATE 'DELETE FROM delta.`{runs}`'",
    "CALL system.rollback()",
    "SET spark.sql.ansi.enabled=false",
    "SET -v",
    "ADD JAR '/tmp/x.jar'",
    "CACHE TABLE runs",
    "EXPLAIN SELECT 1",
    "SHOW TABLES",
    "DESCRIBE HISTORY delta.`{runs}`",
    "SELECT 1; DELETE FROM delta.`{runs}`",
    # files and tables that are not ours
    "SELECT * FROM delta.`{runs}`",
    "SELECT * FROM text.`/etc/passwd`",
    "SELECT * FROM csv.`/etc/passwd`",
    "SELECT * FROM binaryFile.`/etc/passwd`",
    "SELECT * FROM runs, text.`/etc/passwd`",
    "TABLE text.`/etc/passwd`",
    "SELECT (SELECT max(value) FROM text.`/etc/passwd`)",
    "SELECT * FROM runs WHERE run_id IN (SELECT value FROM text.`/etc/passwd`)",
    "SELECT * FROM runs WHERE EXISTS (SELECT * FROM text.`/etc/passwd`)",
    "WITH a AS (SELECT * FROM text.`/etc/passwd`) SELECT * FROM a",
    "SELECT (WITH secrets AS (SELECT 1) SELECT 1), s.* FROM secrets s",
    "FROM runs |> UNION ALL SELECT * FROM text.`/etc/passwd`",
    "SELECT * FROM IDENTIFIER('text.`/etc/passwd`')",
    "SELECT * FROM IDENTIFIER('text' || '.x')",
    "SELECT * FROM global_temp.runs",
    "SELECT * FROM spark_catalog.default.runs",
    "SELECT * FROM read_files('/etc')",
    "SELECT * FROM table_changes_by_path('{runs}', 0)",
    "SELECT * FROM python_worker_logs()",
    "SELECT * FROM STREAM(runs)",
    "SELECT * FROM runs VERSION AS OF 0",
    # code, and secrets of the session
    "SELECT java_method('java.lang.System', 'exit', 0)",
    "SELECT reflect('java.lang.System', 'getenv', 'HOME')",
    "SELECT Try_Reflect('java.lang.System', 'getenv', 'HOME')",
    "SELECT `reflect`('java.lang.System', 'getenv', 'HOME')",
    "SELECT system.builtin.reflect('java.lang.System', 'getenv', 'HOME')",
    "SELECT IDENTIFIER('reflect')('java.lang.System', 'getenv', 'HOME')",
    "SELECT 1 FROM runs ORDER BY reflect('a', 'b')",
    "SELECT sum(1) OVER w FROM runs WINDOW w AS (ORDER BY reflect('a', 'b'))",
    "SELECT transform(array(1), x -> reflect('a', 'b'))",
    "SELECT * FROM VALUES (reflect('a', 'b'))",
    "SELECT * FROM runs LATERAL VIEW explode(array(reflect('a', 'b'))) t",
    "SELECT * FROM explode(array(reflect('a', 'b')))",
    "SELECT max(model) FILTER (WHERE reflect('a', 'b') = 'c') FROM runs",
    "SELECT * FROM runs LIMIT int(reflect('a', 'b'))",
    "WITH a AS (SELECT reflect('a', 'b')) SELECT 1 FROM runs",
    "FROM runs |> EXTEND reflect('a', 'b') AS x",
    "SELECT from_xml('<a/>', 'a INT', map('rowValidationXSDPath', '/etc/passwd'))",
    "SELECT from_protobuf(x'', 'A', '/etc/passwd')",
    "SELECT xpath('<a/>', 'a')",
    "SELECT mine(1)",
    "SELECT TRANSFORM(run_id) USING 'cat' AS (a) FROM runs",
    "MAP run_id USING 'cat' FROM runs",
    "SELECT '${{env:HOME}}'",
    "SELECT '${{spark:spark.app.id}}'",
    "SELECT :x",
    "SELECT ?",
    # no SQL
    "SELEC 1 FROM",
    "SELECT " + "(" * 5000 + "1" + ")" * 5000,
)

TAKEN = (
    "FROM runs",
    "TABLE runs",
    "SELECT model, count(*) AS n FROM RUNS GROUP BY ALL HAVING n > 0 ORDER BY ALL",
    "WITH a AS (SELECT 1 AS n), b AS (SELECT n + 1 AS n FROM a) SELECT * FROM a JOIN b USING (n)",
    "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 3) SELECT * FROM r",
    "SELECT row_number() OVER w FROM runs WINDOW w AS (ORDER BY run_id)",
    "SELECT * FROM runs a, LATERAL (SELECT a.model AS m)",
    "SELECT col FROM VALUES (array(1, 2)) AS t(a) LATERAL VIEW explode(a) e AS col",
    "SELECT (SELECT max(id) FROM range(3)), transform(array(1), x -> x + 1)",
    "FROM runs |> WHERE model = 'popular' |> SELECT run_id",
    "SELECT * FROM runs PIVOT (max(n_users) FOR model IN ('a', 'b'))",
)


def contents(root: str) -> dict[str, tuple[int, int]]:
    """Every file of a warehouse, its size and time."""
    files = (path for path in Path(root).rglob("*") if path.is_file())
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in files}


@pytest.mark.full
def test_what_is_no_query_over_our_tables_is_refused_and_changes_nothing(
    spark, small_night: Ran, capsys: pytest.CaptureFixture[str]
) -> None:
    root = small_night.store.root
    before, taken = contents(root), []
    known = (*TABLES, *view_files())
    for attack in ATTACKS:
        with pytest.raises(ConfigError):
            check_query(spark, attack.format(runs=f"{root}/runs"), known)
    for attack in ATTACKS[::60]:  # the job refuses by the same words
        with pytest.raises(SystemExit) as end:
            words = ["--engine=spark", "--warehouse", root, attack.format(runs=f"{root}/runs")]
            cli.run(query.main, query.parser(), words)
        said = capsys.readouterr()
        if end.value.code != 2 or said.out or "  hint: " not in said.err or "Traceback" in said.err:
            taken.append((attack, end.value.code, said))
    assert taken == []
    assert contents(root) == before


@pytest.fixture(scope="module")
def views(spark, small_night: Ran) -> Store:
    """The small night by Spark, with all tables and views registered."""
    store = Store(spark, small_night.store.root)
    store.install_views()
    return store


@pytest.mark.full
def test_queries_of_every_form_and_all_of_ours_are_taken(spark, views: Store) -> None:
    ours = {**view_files(), **query_files()}
    for sql in {*TAKEN, *ours.values(), *map(asking.read_statement, ours)}:
        check_query(spark, sql, (*TABLES, *view_files()))
    for sql in TAKEN:
        assert spark.sql(sql).count() >= 0


@pytest.mark.parametrize("limit", ["0", "-1", "2147483648", "ten"])
def test_a_limit_is_a_number_of_rows(limit: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.run(query.main, query.parser(), ["--warehouse", "w", "--limit", limit, "runs"])
    assert end.value.code == 2 and "whole number from 1" in capsys.readouterr().err


@pytest.mark.full
def test_names_have_the_same_rows_in_the_same_order_without_spark(views: Store) -> None:
    """Every view and question that this process answers, beside Spark; a table has no order of its own."""
    store, here = views, ArrowStore(views.root, read_only=True)
    for name in (*view_files(), *query_files()):
        sql = asking.read_statement(name)
        if local_engine.is_portable(name, sql):
            here_sql = local_engine.translate_question(name, sql)
            ours = asking.convert_to_utc(local_engine.run_query(here, here_sql, 10_000)).to_pandas()
            theirs = asking.convert_to_utc(store.spark.sql(sql).limit(10_000).toArrow()).to_pandas()
            assert ours.to_csv(index=False) == theirs.to_csv(index=False), name
    for name in ("runs", "metrics", "checks", "manifests"):
        ours, theirs = (
            asking.convert_to_utc(rows).to_pandas().to_csv(index=False).splitlines()
            for rows in (
                local_engine.run_query(here, f"SELECT * FROM {name}", 10_000),
                store.spark.sql(f"SELECT * FROM {name}").toArrow(),
            )
        )
        assert sorted(ours) == sorted(theirs) and len(ours) > 1, name
    assert sum(local_engine.is_portable(name, sql) for name, sql in query_files().items()) >= 12
