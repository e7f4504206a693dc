"""Small work without Java: the engine chosen, both engines on one warehouse, questions behind a guard."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recbench_spark
from recbench_spark import cli
from recbench_spark.commands import evaluate as job
from recbench_spark.commands import node_lists, query
from recbench_spark.commands.dispatch import list_commands
from recbench_spark.core.compiling import announce_compiling
from recbench_spark.errors import ConfigError, FallbackToSpark, MissingError, RecbenchError, StoreError
from recbench_spark.evaluation import engines
from recbench_spark.query.local_engine import check_query, run_query
from recbench_spark.schemas import CHECKS, METRICS, RUNS, TABLES
from recbench_spark.sources import arrow_files
from recbench_spark.storage.arrow_store import ArrowStore
from recbench_spark.storage.table_sql import view_files

ROOT = Path(recbench_spark.__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Lists, truth and training rows of 20 users."""
    folder, rng = tmp_path_factory.mktemp("local"), np.random.default_rng(4)
    for name, n in (("lists", 200), ("truth", 60), ("train", 80)):
        table = pa.table({"user_id": rng.integers(0, 20, n), "item_id": rng.integers(0, 30, n)})
        if name == "lists":
            table = table.append_column("score", pa.array(rng.random(n)))
        pq.write_table(table, folder / f"{name}.parquet")
    return folder


def argv(files: Path, warehouse: Path, *more: str) -> list[str]:
    given = [f"--{name}={files / name}.parquet" for name in ("lists", "truth", "train")]
    return [*given, "--warehouse", str(warehouse), "--model", "m", "--bootstrap", "20", *more]


def run(module: object, *words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        cli.run(module.main, module.parser(), [*words])
    return int(ended.value.code or 0)


# ------------------------------------------------------------------------------------ who evaluates


def test_auto_takes_this_process_up_to_its_limit(files: Path, monkeypatch, capsys) -> None:
    paths = [str(files / f"{name}.parquet") for name in ("lists", "truth", "train")]
    monkeypatch.setattr(engines, "MOST_ROWS", 340)
    assert engines.choose_engine("auto", paths).engine == "local"
    monkeypatch.setattr(engines, "MOST_ROWS", 339)
    chosen = engines.choose_engine("auto", paths)
    assert chosen.engine == "spark" and "340 rows, up to 339" in chosen.describe()
    assert engines.choose_engine("local", paths).engine == "local"
    assert run(job, *argv(files, files / "never", "--dry-run")) == 0
    assert "engine spark: 340 rows" in capsys.readouterr().out


def test_a_run_and_judgements_of_trec(tmp_path: Path, capsys) -> None:
    """The score decides: 9.5 of d2 stands above 9.1 of d1, whose rank is 1."""
    (tmp_path / "run.trec").write_text("q1 Q0 d1 1 9.1 bm25\nq1 Q0 d2 2 9.5 bm25\n")
    (tmp_path / "qrels.txt").write_text("q1 0 d1 1\nq1 0 d3 1\n")
    words = ["--warehouse", tmp_path / "w", "--model", "bm25", "--lists", tmp_path / "run.trec"]
    words += ["--truth", tmp_path / "qrels.txt", "--metrics", "recall", "--k", "1,2", "--engine", "local"]
    assert run(job, *map(str, words), "--dry-run") == 0
    assert run(job, *map(str, words)) == 0
    filters = [("metric", "=", "recall"), ("k", "in", [1, 2])]
    rows = ArrowStore(str(tmp_path / "w"), read_only=True).rows(METRICS, filters)
    assert {row["k"]: row["value"] for row in rows} == {1: 0.0, 2: 0.5}


def test_auto_leaves_large_texts_to_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few lines may be many bytes, such as those of lists and vectors."""
    path = tmp_path / "lists.csv"
    path.write_text("user_id,item_ids\n1,[2]\n")
    assert engines.choose_engine("auto", [str(path)]).engine == "local"
    monkeypatch.setattr(engines.arrow_files, "COUNTED_BYTES", 10)
    chosen = engines.choose_engine("auto", [str(path)])
    assert chosen.engine == "spark" and "23 bytes of text" in chosen.describe()


def test_auto_counts_what_embeddings_cost(files: Path, monkeypatch) -> None:
    paths = [str(files / "lists.parquet"), str(files / "truth.parquet")]
    monkeypatch.setattr(engines, "MOST_PAIRS", 200 * 60)
    assert engines.choose_engine("auto", paths, paths).engine == "local"
    monkeypatch.setattr(engines, "MOST_PAIRS", 200 * 60 - 1)
    assert engines.choose_engine("auto", paths, paths).engine == "spark"


@pytest.mark.parametrize("path", ["hdfs:/lists", "schema.table"])
def test_what_only_spark_reads(path: str) -> None:
    assert engines.choose_engine("auto", [path]).engine == "spark"
    with pytest.raises(ConfigError, match="--engine local"):
        engines.choose_engine("local", [path])


def test_a_path_that_is_not_there_yet_may_be_tried_again(files: Path, capsys) -> None:
    with pytest.raises(MissingError, match=r"lists\.parket"):
        engines.choose_engine("auto", [str(files / "lists.parket")])
    for flag in ("--lists", "--train"):
        words = argv(files, files / "never", flag, str(files / "later.parquet"), "--dry-run")
        assert run(job, *words) == 1
        assert "later.parquet" in capsys.readouterr().err


def test_a_dry_run_looks_at_headers(files: Path, tmp_path: Path, capsys) -> None:
    (tmp_path / "t.csv").write_text("user_id,thing\n1,2\n")
    for flag, output in (("--truth", "item_id"), ("--lists", "item_id")):
        assert run(job, *argv(files, files / "never", flag, str(tmp_path / "t.csv"), "--dry-run")) == 1
        said = capsys.readouterr().err
        assert "t.csv has no column" in said and output in said
    (tmp_path / "t.csv").write_text("user_id,item_id\n1,2\n")
    words = argv(files, files / "never", "--lists", str(tmp_path / "t.csv"), "--dry-run")
    assert run(job, *words) == 1 and "score" in capsys.readouterr().err
    assert run(job, *argv(files, files / "never", "--dry-run")) == 0
    assert not (files / "never").exists()


def test_a_dry_run_looks_at_widths_and_at_the_warehouse(files: Path, tmp_path: Path, capsys) -> None:
    for side, name, dims in (("users", "user_id", 3), ("items", "item_id", 4)):
        pq.write_table(pa.table({name: [1], "vector": [[1.0] * dims]}), tmp_path / f"{side}.parquet")
    words = ["--embeddings", str(tmp_path / "users.parquet"), str(tmp_path / "items.parquet"), "--dry-run"]
    assert run(job, *argv(files, tmp_path / "w")[1:], *words) == 1
    said = capsys.readouterr().err
    assert "3 dimensions" in said and "items.parquet has 4" in said
    (tmp_path / "file").write_text("")
    assert run(job, *argv(files, tmp_path / "file" / "w", "--dry-run")) == 1
    assert "is a file" in capsys.readouterr().err and not (tmp_path / "w").exists()


@pytest.mark.slow
def test_at_the_limit_of_auto_memory_is_what_the_documentation_says(tmp_path: Path) -> None:
    """Lists and truth of MOST_ROWS rows, evaluated here: less than 1 GiB."""
    users = engines.MOST_ROWS // 20
    user_r = np.repeat(np.arange(users), 19)
    item_r = (user_r * 7 + np.tile(np.arange(19) * 11, users)) % 20_011
    rank = np.tile(np.arange(1, 20), users)
    pq.write_table(
        pa.table({"user_id": user_r, "item_id": item_r, "rank": rank}), tmp_path / "lists.parquet"
    )
    truth = {"user_id": np.arange(users), "item_id": np.arange(users) * 7 % 20_011}
    pq.write_table(pa.table(truth), tmp_path / "truth.parquet")
    words = [f"--{name}={tmp_path / name}.parquet" for name in ("lists", "truth")]
    words += ["--warehouse", str(tmp_path / "w"), "--model", "m"]
    code, said, peak = run_measured(str(ROOT / "jobs" / "recbench.py"), "evaluate", *words)
    assert code == 0, said
    assert "engine local: 2,000,000 rows" in said and peak < 1 << 20, peak


def test_measured_memory_is_not_that_of_the_process_that_starts_it(tmp_path: Path) -> None:
    """`wait4` counts what the parent held, since a child begins as a copy of it."""
    (tmp_path / "empty.py").write_text("")
    held = np.ones(1 << 26)  # 512 MiB
    code, _, peak = run_measured(str(tmp_path / "empty.py"))
    assert code == 0 and peak < held.nbytes >> 11


MEASURE = """
import atexit, os, re, runpy, sys
from pathlib import Path
place, *sys.argv = sys.argv[1:]
end = os._exit

def note():
    Path(place).write_text(re.search("VmHWM:[^0-9]*([0-9]+)", Path("/proc/self/status").read_text())[1])

os._exit = lambda code: (note(), end(code))
atexit.register(note)
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run_measured(script: str, *words: str) -> tuple[int, str, int]:
    """Run a script; returns its exit code, its standard error, and the KiB that it held at most."""
    with tempfile.NamedTemporaryFile() as note:
        command = [sys.executable, "-c", MEASURE, note.name, script, *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.returncode, done.stderr, int(Path(note.name).read_text())


@pytest.mark.parametrize("warehouse", ["viewfs://host/w", "catalog.schema"])
def test_a_warehouse_out_of_reach_is_sparks(files: Path, warehouse: str) -> None:
    chosen = engines.choose_engine("auto", [str(files / "lists.parquet")], (), (warehouse, (RUNS,)))
    assert chosen.engine == "spark" and warehouse in chosen.why


# ------------------------------------------------------------------------- without Java, torch, waiting

IMPORTED = """
import sys
from recbench_spark import cli
from recbench_spark.commands.{module} import main, parser
try:
    cli.run(main, parser(), {words!r})
except SystemExit as end:
    assert not end.code, end.code
found = [name for name in {never!r} if name in sys.modules]
assert not found, found
"""


def modules_stay_out(module: str, words: list[str], never: tuple[str, ...]) -> None:
    """Run a job in a process of its own, and look at what it loaded."""
    code = IMPORTED.format(module=module, words=words, never=never)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_an_evaluation_loads_no_torch_and_starts_no_java(files: Path, tmp_path: Path) -> None:
    vectors = np.eye(30, 4, dtype=np.float32).tolist()
    for name, ids in (("user_id", 20), ("item_id", 30)):
        pq.write_table(pa.table({name: range(ids), "vector": vectors[:ids]}), tmp_path / f"{name}.parquet")
    words = ["--embeddings", str(tmp_path / "user_id.parquet"), str(tmp_path / "item_id.parquet")]
    words += argv(files, tmp_path / "w")[1:]
    modules_stay_out("evaluate", words, ("torch", "py4j.clientserver_started"))
    assert {path.name for path in (tmp_path / "w").iterdir()} >= {"runs", "metrics", "checks", "rankings"}


HELP = """
import sys
from recbench_spark.commands.dispatch import list_commands, start_command
for name in list_commands():
    try:
        start_command(name, ["--help"])
    except SystemExit as end:
        assert not end.code, (name, end.code)
    loaded = {"numpy", "pyspark", "pandas", "pyarrow", "torch", "numba"} & set(sys.modules)
    assert not loaded, (name, loaded)
"""


def test_help_is_answered_before_anything_is_loaded() -> None:
    """All jobs in one process: the first one that loads something is named."""
    done = subprocess.run([sys.executable, "-c", HELP], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("usage: ") == len(list_commands()) > 15


COMPILE = "from recbench_spark.core.hashing import splitmix64, mix; splitmix64(1); mix(1)"


def test_whoever_compiles_says_so_first(tmp_path: Path) -> None:
    """In a bare process, without any command: once, and not where the code is cached."""
    for messages in (1, 0):
        env = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "TMPDIR": tempfile.mkdtemp(dir=tmp_path)}
        done = subprocess.run(
            [sys.executable, "-c", COMPILE], env=env, capture_output=True, text=True, check=True
        )
        assert done.stderr.count("compiling kernels, once, into " + str(tmp_path)) == messages


def test_tasks_that_compile_side_by_side_say_it_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    class Kernel:
        class stats:  # noqa: N801
            cache_path: str | None = str(tmp_path)

    announce_compiling(Kernel)
    announce_compiling(Kernel)
    assert capsys.readouterr().err.count("compiling kernels") == 1
    os.utime(tmp_path / "recbench-compiling", (0, 0))
    announce_compiling(Kernel)
    assert capsys.readouterr().err.count("compiling kernels") == 1


@pytest.mark.full
def test_a_job_announces_a_cold_cache_as_a_user_sees_it(files: Path, tmp_path: Path) -> None:
    """An empty folder is announced, filled, and not announced again."""
    words = argv(files, tmp_path / "w", "--metrics", "hit")
    command = [sys.executable, str(ROOT / "jobs" / "recbench.py"), "evaluate", *words]
    for messages in ("compiling kernels, once", ""):
        env = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
        env["TMPDIR"] = tempfile.mkdtemp(dir=tmp_path)
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert messages in done.stderr and ("compiling" in done.stderr) == bool(messages)


# -------------------------------------------------------------------------------------- the warehouse


def test_tables_are_made_as_spark_makes_them(tmp_path: Path) -> None:
    store = ArrowStore(str(tmp_path))
    store.append([{"run_id": "a", "check": "c", "severity": "info", "passed": True}], CHECKS)
    with pytest.raises(StoreError, match="checks"):
        store.append([{"run_id": "a", "check": "c", "severity": "bad", "passed": True}], CHECKS)
    with pytest.raises(StoreError, match="checks: column 'run_id' holds NULL"):
        store.append([{"run_id": None, "check": "c", "severity": "info", "passed": True}], CHECKS)
    assert [row["run_id"] for row in store.rows(CHECKS)] == ["a"]
    assert store.rows(CHECKS, [("run_id", "=", "b")]) == [] and store.read_rows(METRICS).num_rows == 0
    store.create(CHECKS)
    assert len(list((tmp_path / "checks" / "_delta_log").glob("*.json"))) == 2


def test_many_writers_at_once_lose_nothing(tmp_path: Path) -> None:
    def write(n: int) -> None:
        rows = [{"run_id": f"r{n}", "check": "c", "severity": "info", "passed": True}]
        ArrowStore(str(tmp_path)).append(rows, CHECKS)

    threads = [threading.Thread(target=write, args=(n,)) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    result = ArrowStore(str(tmp_path)).rows(CHECKS)
    assert sorted(row["run_id"] for row in result) == sorted(f"r{n}" for n in range(12))


def test_one_warehouse_written_by_both_engines_at_once(spark, files: Path, tmp_path: Path) -> None:
    """Half of the runs by each, side by side from the first commit on; all are there, and alike."""
    ends: list[tuple[int, bytes]] = []

    def evaluate(engine: str, n: int) -> None:
        words = argv(files, tmp_path / "w", "--engine", engine, "--suite", f"{engine}{n}")
        if engine == "spark":
            ends.append((run(job, *words), b""))
            return
        command = [sys.executable, str(ROOT / "jobs" / "recbench.py"), "evaluate", *words]
        done = subprocess.run(command, check=False, capture_output=True)
        ends.append((done.returncode, done.stderr))

    others = [threading.Thread(target=evaluate, args=("local", n)) for n in range(3)]
    for thread in others:
        thread.start()
    for n in range(2):
        evaluate("spark", n)
    for thread in others:
        thread.join()
    assert [code for code, _ in ends] == [0] * 5, ends
    store = ArrowStore(str(tmp_path / "w"))
    runs = {row["run_id"]: row for row in store.rows(RUNS)}
    assert len(runs) == 5 and len({row["run_key"] for row in runs.values()}) == 1
    for name in ("metrics", "user_metrics", "rankings", "checks"):
        by_run: dict[str, list[str]] = {run_id: [] for run_id in runs}
        for row in store.read_rows(TABLES[name]).to_pylist():
            by_run[row.pop("run_id")].append(repr(sorted(row.items(), key=repr)))
        assert len({tuple(sorted(rows)) for rows in by_run.values()}) == 1, name
        assert spark.read.format("delta").load(str(tmp_path / "w" / name)).count() == 5 * len(
            by_run.popitem()[1]
        )
    one, other = (next(r for r in runs.values() if r["suite"] == f"{e}0") for e in ("local", "spark"))
    named = {"run_id", "suite", "started_at", "finished_at", "seconds"}
    assert {k: v for k, v in one.items() if k not in named} == {
        k: v for k, v in other.items() if k not in named
    }


def test_inputs_are_identified_alike(spark, files: Path, tmp_path: Path) -> None:
    from recbench_spark.sources.identity import identity

    odd = tmp_path / "a b ü"
    odd.mkdir()
    for name in ("lists", "truth"):
        (odd / f"{name}.parquet").write_bytes((files / f"{name}.parquet").read_bytes())
    (odd / "_hidden").write_text("x")
    for path in (odd, odd / "lists.parquet", files / "truth.parquet"):
        assert arrow_files.identity(str(path)) == identity(spark, str(path))


# ----------------------------------------------------------------------------------------- questions


@pytest.fixture(scope="module")
def warehouse(files: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("asked") / "w"
    assert run(job, *argv(files, root)) == 0
    return str(root)


def test_names_are_answered_without_java(warehouse: str, capsys) -> None:
    modules_stay_out("query", ["--warehouse", warehouse, "leaderboard"], ("torch", "numba"))
    assert run(query, "--warehouse", warehouse, "leaderboard", "--format", "csv", "--limit", "3") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("suite,logical_date,") and len(lines) == 4


def test_a_select_of_ones_own(warehouse: str, capsys) -> None:
    chosen = "metric = 'recall' AND slice_key IS NULL"
    sql = f"SELECT metric, count(*) AS n FROM metrics WHERE {chosen} GROUP BY ALL"
    assert run(query, "--warehouse", warehouse, "--engine", "local", sql, "--format", "csv") == 0
    assert capsys.readouterr().out.splitlines() == ["metric,n", "recall,5"]


ATTACKS = (
    "SELECT * FROM read_csv('/etc/passwd')",
    "SELECT * FROM '/etc/passwd'",
    'SELECT * FROM "/etc/passwd"',
    "SELECT * FROM read_text('/etc/passwd')",
    "SELECT * FROM read_blob('/etc/passwd')",
    "SELECT * FROM read_parquet('{root}/runs/*.parquet')",
    "SELECT * FROM glob('/etc/*')",
    "SELECT (SELECT max(content) FROM read_text('/etc/passwd'))",
    "WITH a AS (SELECT * FROM read_text('/etc/passwd')) SELECT * FROM a",
    "SELECT * FROM runs WHERE run_id IN (SELECT content FROM read_text('/etc/passwd'))",
    "SELECT * FROM query('SELECT * FROM read_text(''/etc/passwd'')')",
    "SELECT * FROM query_table('runs')",
    "SELECT * FROM json_execute_serialized_sql(json_serialize_sql('SELECT 1'))",
    "SELECT * FROM sniff_csv('/etc/passwd')",
    "SELECT * FROM parquet_metadata('{root}/x.parquet')",
    "SELECT * FROM delta_scan('{root}/runs')",
    "SELECT * FROM arrow_scan(1::POINTER, 2::POINTER, 3::POINTER)",
    "SELECT * FROM pandas_scan(1::POINTER)",
    "SELECT * FROM duckdb_settings()",
    "SELECT current_setting('enable_external_access')",
    "SELECT getenv('HOME')",
    "SELECT write_log('x')",
    "SELECT * FROM secret",
    "SELECT * FROM information_schema.tables",
    "SELECT * FROM main.runs",
    "ATTACH '{root}/x.db'",
    "COPY runs TO '{root}/x.csv'",
    "COPY (SELECT 1) TO '{root}/x.csv'",
    "EXPORT DATABASE '{root}/x'",
    "INSTALL httpfs",
    "LOAD httpfs",
    "SET enable_external_access = true",
    "RESET enable_external_access",
    "PRAGMA database_list",
    "CALL pragma_version()",
    "CREATE TABLE x AS SELECT 1",
    "CREATE MACRO f(x) AS x",
    "INSERT INTO runs SELECT * FROM runs",
    "DELETE FROM runs",
    "UPDATE runs SET model = 'x'",
    "DROP VIEW runs",
    "EXPLAIN SELECT 1",
    "DESCRIBE runs",
    "SUMMARIZE runs",
    "SHOW TABLES",
    "PREPARE x AS SELECT 1",
    "BEGIN",
    "CHECKPOINT",
    "VACUUM",
    "SELECT 1; SELECT 2",
    "SELECT 1; COPY runs TO '{root}/x.csv'",
    "SELEC 1",
    "",
    "SELECT " + "(" * 5000 + "1" + ")" * 5000,
)


def test_what_is_no_query_over_our_tables_is_refused(warehouse: str) -> None:
    secret = pa.table({"a": [1]})  # a variable of this process, which DuckDB must not see
    assert secret.num_rows == 1
    before = {str(path): path.stat().st_mtime_ns for path in Path(warehouse).rglob("*")}
    taken = []
    for attack in ATTACKS:
        try:
            check_query(attack.format(root=warehouse), (*TABLES, *view_files()))
        except ConfigError:
            continue
        taken.append(attack)
    assert taken == []
    assert {str(path): path.stat().st_mtime_ns for path in Path(warehouse).rglob("*")} == before


@pytest.mark.parametrize(
    ("sql", "result"),
    [
        ("SELECT 'a `b` c' AS `the name`", {"the name": "a `b` c"}),
        ("SELECT 'it''s `1`' AS x", {"x": "it's `1`"}),
        ("SELECT E'it\\'s `1`' AS x", {"x": "it's `1`"}),
        ("SELECT $$a `b`$$ AS x, $t$`$t$ AS y", {"x": "a `b`", "y": "`"}),
        ('SELECT 1 AS "a`b" -- `c`', {"a`b": 1}),
        ("SELECT /* ` ' */ 1 AS `a`, '`' AS `b`", {"a": 1, "b": "`"}),
        ('SELECT 1 AS `a"b`, 2 AS `c``d`', {'a"b': 1, "c`d": 2}),
    ],
)
def test_backticks_are_of_names_and_nothing_else(warehouse: str, sql: str, result: dict) -> None:
    assert run_query(ArrowStore(warehouse), sql, 10).to_pylist() == [result]


def test_duckdb_itself_reaches_nothing_either(warehouse: str, monkeypatch) -> None:
    """Should the judge ever let something pass, the connection has no files, no network, no settings."""
    from recbench_spark.query import local_engine

    monkeypatch.setattr(local_engine, "check_query", lambda sql, known: None)
    store = ArrowStore(warehouse, read_only=True)
    for attack in (*(one for one in ATTACKS[:8] if "glob" not in one), "SELECT * FROM store"):
        with pytest.raises(ConfigError):
            run_query(store, attack.format(root=warehouse), 1)
    with pytest.raises(RecbenchError, match="configuration has been locked"):
        run_query(store, "SET threads = 1", 1)


def test_a_large_question_is_sparks(warehouse: str, monkeypatch) -> None:
    from recbench_spark.query import local_engine

    monkeypatch.setattr(local_engine, "MAX_LOCAL_ROWS", 1)
    with pytest.raises(FallbackToSpark, match="up to 1 "):
        run_query(ArrowStore(warehouse, read_only=True), "SELECT * FROM metrics", 1)


def test_a_file_of_nodes_is_text_with_an_id_a_line(tmp_path: Path) -> None:
    ids = tmp_path / "ids"
    ids.write_bytes("\ufeff17\r\n42\n".encode())
    assert node_lists.read_lines(str(ids)) == ["17", "42"]
    for content in (b"PAR1\x15\x04\xff\xfe", b"17\x00\x0042", gzip.compress(b"17\n42\n")):
        ids.write_bytes(content)
        with pytest.raises(ConfigError, match=f"--nodes @{ids}: the file is not UTF-8 text"):
            node_lists.read_lines(str(ids))
    with pytest.raises(ConfigError, match="Is a directory"):
        node_lists.read_lines(str(tmp_path))
    with pytest.raises(MissingError, match="no such file"):
        node_lists.read_lines(str(tmp_path / "none"))


def test_auto_counts_the_users_of_the_truth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Vectors of 900 users, a truth of 2 users in 40 rows, 20 items: 40 pairs are scored, not 18,000."""
    users, items, truth = (str(tmp_path / f"{name}.csv") for name in ("users", "items", "truth"))
    Path(users).write_text("user_id,v\n" + "".join(f"{u},1\n" for u in range(900)))
    Path(items).write_text("item_id,v\n" + "".join(f"{i},1\n" for i in range(20)))
    Path(truth).write_text("user_id,item_id\n" + "".join(f"{i % 2},{i // 2}\n" for i in range(40)))
    paths, sides = [users, items, truth], [users, items]
    monkeypatch.setattr(engines, "MOST_PAIRS", 50)
    assert engines.choose_engine("auto", paths, sides).engine == "spark"
    assert engines.choose_engine("auto", paths, sides, truth=truth).engine == "local"
    monkeypatch.setattr(engines, "MOST_PAIRS", 39)
    assert engines.choose_engine("auto", paths, sides, truth=truth).engine == "spark"
