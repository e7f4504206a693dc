"""Retention, migration, late data: what a warehouse goes through over the years."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F

from recbench_spark import cli
from recbench_spark.commands import maintain
from recbench_spark.config import Benchmark
from recbench_spark.errors import ConfigError, StoreError
from recbench_spark.maintenance.retention import OldResults, Upkeep
from recbench_spark.night.night import require_split
from recbench_spark.query.answers import make_query_runner
from recbench_spark.schemas import (
    EMBEDDINGS,
    MANIFESTS,
    METRICS,
    OLDEST_SCHEMA,
    RANKINGS,
    RUNS,
    SPLITS,
    USER_BLOCKS,
    USER_METRICS,
)
from recbench_spark.storage.arrow_store import ArrowStore
from recbench_spark.storage.frame_blocks import SETTING, local_scratch
from recbench_spark.storage.migration import migrate
from recbench_spark.storage.spark_types import spark_schema, spark_type
from recbench_spark.storage.store import Store
from recbench_spark.storage.table_folders import remove_uncommitted
from recbench_spark.storage.table_sql import VERSION_PROPERTY
from recbench_spark.storage.table_upkeep import change_table
from tests.nights import models, run, small

DAYS = [date(2026, 1, day) for day in (1, 2, 3)]


def job(*argv: str | Path) -> int | str | None:
    with pytest.raises(SystemExit) as end:
        cli.run(maintain.main, maintain.parser(), [str(arg) for arg in argv])
    return end.value.code


def read_current(store: Any, day: date) -> list[dict[str, Any]]:
    """The rows of `current_runs` of a night."""
    rows = make_query_runner(store)(f"SELECT * FROM current_runs WHERE logical_date = DATE '{day}'")
    return rows.to_dict("records")


def numbers(store: Any, day: date) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    """Every number of a night's last attempts."""
    models = {row["run_id"]: row["model"] for row in read_current(store, day)}
    rows_ = [
        {**row, "model": models[row["run_id"]]} for row in store.rows(METRICS) if row["run_id"] in models
    ]
    key = ("model", "part", "metric", "k", "slice_key", "slice_value")
    values = ("value", "stderr", "ci_low", "ci_high", "n")
    assert len({tuple(row[name] for name in key) for row in rows_}) == len(rows_) >= 3
    return {tuple(row[name] for name in key): tuple(row[name] for name in values) for row in rows_}


# ------------------------------------------------------------------------------------ flags


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        ([], "nothing to do"),
        (["--keep-days", "3"], "--logical-date"),
        (["--keep-days", "0", "--logical-date", "2026-01-01"], "at least 1 day"),
        (["--vacuum-hours", "23"], "at least 24"),
    ],
)
def test_flags_that_mean_nothing_exit_2(
    flags: list[str], word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert job("--warehouse", "w", *flags) == 2
    assert word in capsys.readouterr().err


# ------------------------------------------------------------------------------------ retention


@pytest.mark.slow
def test_old_nights_go_and_can_be_run_again(tmp_path: Path) -> None:
    store = ArrowStore(str(tmp_path / "w"))
    world = {"users": 60, "items": 40, "interactions": 1000, "open_loop": 100}

    def make_benchmark(day: date) -> Benchmark:
        """Each night a log of its own."""
        dataset = {"name": "d", "reader": "world", "world": {**world, "seed": day.day}}
        evaluation = {"metrics": ["ndcg"], "k": [5, 10], "slices": [], "bootstrap": {"replicates": 10}}
        return small(dataset=dataset, models=models("popular"), evaluation=evaluation)

    nights = [run(store, make_benchmark(day), day) for day in DAYS[:2]]
    before = numbers(store, DAYS[0])
    first, second = (read_current(store, day)[0] for day in DAYS[:2])
    assert first["split_id"] != second["split_id"]
    opened = open_run_night(nights[0], DAYS[0])

    assert Upkeep(store).find_old_results(DAYS[1], keep=[DAYS[0]]) == OldResults((), ())
    assert Upkeep(store).find_old_results(DAYS[1]) == OldResults((first["run_id"],), (first["split_id"],))
    flags = ["--warehouse", store.root, "--logical-date", "2026-01-03", "--keep-days", "1"]
    assert job(*flags, "--dry-run") == 0
    assert Upkeep(store).find_old_results(DAYS[1]) == OldResults((first["run_id"],), (first["split_id"],))
    assert job(*flags, "--optimize", "--vacuum-hours", "24") == 0

    for table, column in (
        (RANKINGS, "run_id"),
        (USER_METRICS, "run_id"),
        (SPLITS, "split_id"),
        (USER_BLOCKS, "split_id"),
    ):
        assert store.list_values(table, column) == {second[column]}
        assert store.read_rows(table, [], [column]).column(column).unique().to_pylist() == [second[column]]
    kept = {name.partition("-")[0] for name in store.list_values(EMBEDDINGS, "model_id")}
    assert kept == {second["split_id"]}
    assert numbers(store, DAYS[0]) == before
    assert Upkeep(store).find_old_results(DAYS[1]) == OldResults((), ())
    with pytest.raises(StoreError, match="removed"):
        require_split(opened)

    again = run(store, make_benchmark(DAYS[0]), DAYS[0])
    assert again.outcome.skipped == ("popular",)
    forced = run(store, make_benchmark(DAYS[0]), DAYS[0], force=True)
    assert forced.outcome.failed == {}
    (latest,) = read_current(store, DAYS[0])
    assert latest["split_id"] == f"{first['split_id']}.1" and latest["attempt"] == 2
    assert numbers(store, DAYS[0]) == before
    assert store.count_rows(RANKINGS, "run_id", latest["run_id"]) > 0


def open_run_night(ran: Any, day: date) -> Any:
    return replace(ran.night, logical_date=day)


# ------------------------------------------------------------------------------------ migration


OLDER = ("n_users", "error", "at_grid_edge")


def older_runs(spark, folder: Path) -> Store:
    """A table `runs` as an earlier schema had it: without three columns and one constraint."""
    kept = [c for c in RUNS.columns if c.name not in OLDER]
    columns = ", ".join(
        f"`{c.name}` {spark_type(c.type).simpleString()}{'' if c.nullable else ' NOT NULL'}" for c in kept
    )
    spark.sql(
        f"CREATE TABLE delta.`{folder}/runs` ({columns}) USING delta "
        f"TBLPROPERTIES ('{VERSION_PROPERTY}' = '{OLDEST_SCHEMA}')"
    )
    values = {"run_id": "r1", "run_key": "k", "attempt": 1, "suite": "s", "model": "m", "split_id": "x",
              "status": "succeeded", "source": "own", "logical_date": DAYS[0]}  # fmt: skip
    schema = spark_schema(RUNS)
    rows = [tuple(values.get(c.name) for c in kept)]
    types = type(schema)([schema[c.name] for c in kept])
    spark.createDataFrame(rows, types).write.format("delta").mode("append").save(f"{folder}/runs")
    return Store(spark, str(folder), any_version=True)


def test_an_older_warehouse_is_migrated(spark, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = older_runs(spark, tmp_path / "w").root
    with pytest.raises(StoreError) as error:
        Store(spark, root)
    assert f"recbench maintain --warehouse {root} --migrate" in str(error.value)
    assert job("--warehouse", root, "--migrate") == 0
    assert "ADD COLUMNS" in capsys.readouterr().err

    store = Store(spark, root)
    (old,) = store.read(RUNS).collect()
    assert (old.run_id, old.n_users, old.error, old.at_grid_edge) == ("r1", None, None, None)
    comments = {row.col_name: row.comment for row in spark.sql(f"DESCRIBE delta.`{root}/runs`").collect()}
    assert comments["n_users"] == next(c.comment for c in RUNS.columns if c.name == "n_users")
    names = {
        name.removeprefix("delta.constraints.")
        for name in store.properties("runs")
        if "constraints" in name
    }
    assert names == set(RUNS.constraints)
    newer = old.asDict() | {"run_id": "r2", "n_users": 7}
    store.append(spark.createDataFrame([newer], spark_schema(RUNS)), RUNS)
    assert {row.run_id: row.n_users for row in store.read(RUNS).collect()} == {"r1": None, "r2": 7}
    assert migrate(store) == []


def test_two_migrations_at_once_change_a_table_once(spark, tmp_path: Path) -> None:
    root = older_runs(spark, tmp_path / "w").root
    stores = [Store(spark, root, any_version=True) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        said = list(pool.map(migrate, stores))
    assert sorted(map(bool, said)) == [False, True]
    store = Store(spark, root)
    assert migrate(store) == [] and [row.run_id for row in store.read(RUNS).collect()] == ["r1"]


def test_a_migration_keeps_what_another_writer_appends_meanwhile(
    spark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer without a mark appends a row after the migration has looked at the table."""
    store = older_runs(spark, tmp_path / "w")
    late = ["r2"]

    def append_and_change(place: str, table: Any, version: int) -> None:
        if late:
            older = spark.read.format("delta").load(place).withColumn("run_id", F.lit(late.pop()))
            older.write.format("delta").mode("append").save(place)
        change_table(place, table, version)

    monkeypatch.setattr("recbench_spark.storage.migration.change_table", append_and_change)
    migrate(store)
    assert {row.run_id for row in store.read(RUNS).collect()} == {"r1", "r2"} and not late
    assert migrate(store) == []


AT_WORK = """
import sys, time
from pathlib import Path
from recbench_spark.storage.marks import note_run
note_run(Path(sys.argv[1]), "r9")
print("works", flush=True)
time.sleep(600)
"""


def test_no_table_is_migrated_while_a_run_is_at_work(spark, tmp_path: Path) -> None:
    folder = tmp_path / "w"
    older_runs(spark, folder)
    night = subprocess.Popen(
        [sys.executable, "-c", AT_WORK, str(folder)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert night.stdout is not None and night.stdout.readline() == "works\n"
        store = Store(spark, str(folder), any_version=True)
        with pytest.raises(StoreError, match=f"while a run is at work: process {night.pid} of") as refused:
            migrate(store)
        assert "end it, and run --migrate again" in str(refused.value)
    finally:
        night.kill()
        night.wait()
    assert migrate(store) and migrate(store) == []


def test_what_cannot_be_migrated_is_refused(spark, tmp_path: Path) -> None:
    newer = tmp_path / "newer"
    properties = f"TBLPROPERTIES ('{VERSION_PROPERTY}' = '99')"
    spark.sql(f"CREATE TABLE delta.`{newer}/runs` (run_id STRING) USING delta {properties}")
    with pytest.raises(StoreError, match="update"):
        Store(spark, str(newer))
    with pytest.raises(StoreError, match="newer code"):
        migrate(Store(spark, str(newer), any_version=True))
    too_old = tmp_path / "too_old"
    properties = f"TBLPROPERTIES ('{VERSION_PROPERTY}' = '{OLDEST_SCHEMA - 1}')"
    spark.sql(f"CREATE TABLE delta.`{too_old}/runs` (run_id STRING) USING delta {properties}")
    with pytest.raises(StoreError) as refused:
        Store(spark, str(too_old))
    assert "recbench-spark 0.1, which made it" in str(refused.value)
    with pytest.raises(StoreError, match=r"schema version 3: recbench-spark 0\.1 made it"):
        migrate(Store(spark, str(too_old), any_version=True))
    foreign = tmp_path / "foreign"
    spark.sql(f"CREATE TABLE delta.`{foreign}/runs` (run_id INT) USING delta")
    with pytest.raises(StoreError, match="run_id cannot be brought"):
        migrate(Store(spark, str(foreign), any_version=True))


def test_a_table_whose_creation_was_killed_is_created(spark, tmp_path: Path) -> None:
    """Its folder and log are there, its first commit is not."""
    log = tmp_path / "w" / "manifests" / "_delta_log"
    log.mkdir(parents=True)
    (log / ".00000000000000000000.json.0b7c.tmp").write_text("{}")
    store, row = Store(spark, str(tmp_path / "w")), ("s", "log", "rows", 1.0, None)
    long_ago = time.time() - 60
    os.utime(log, (long_ago, long_ago))
    store.append(spark.createDataFrame([row], spark_schema(MANIFESTS)), MANIFESTS)
    assert store.read(MANIFESTS).count() == 1


def test_a_table_that_is_being_created_or_is_there_is_left_alone(tmp_path: Path) -> None:
    young, made = tmp_path / "young", tmp_path / "made"
    for folder in (young, made):
        (folder / "_delta_log").mkdir(parents=True)
    (made / "_delta_log" / "00000000000000000000.json").write_text("{}")
    os.utime(made / "_delta_log", (0, 0))
    for folder in (young, made):
        remove_uncommitted(folder)
        assert (folder / "_delta_log").is_dir()


def make_unfinished(folder: Path, *files: str) -> Path:
    """A table's folder with an old log and these files."""
    (folder / "_delta_log").mkdir(parents=True)
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text("kept")
    os.utime(folder / "_delta_log", (0, 0))
    return folder


@pytest.mark.parametrize(
    "file",
    [
        "part-0.snappy.parquet",
        "split_id=s/part-0.snappy.parquet",
        ".part-0.parquet.crc",
        "notes.txt",
        "_delta_log/_last_checkpoint",
        "_delta_log/00000000000000000000.crc",
        "_delta_log/00000000000000000003.json.bak",
    ],
)
def test_a_restore_that_copies_data_first_loses_nothing(tmp_path: Path, file: str) -> None:
    folder = make_unfinished(tmp_path / "runs", file, "_delta_log/.00000000000000000000.json.0b7c.tmp")
    with pytest.raises(StoreError, match="no commit"):
        remove_uncommitted(folder)
    assert (folder / file).read_text() == "kept"


@pytest.mark.parametrize("leftover", ["_commit_0b7c.json.tmp", ".00000000000000000000.json.0b7c.tmp"])
def test_what_a_killed_create_leaves_goes(tmp_path: Path, leftover: str) -> None:
    folder = make_unfinished(tmp_path / "runs", f"_delta_log/{leftover}")
    (folder / "_delta_log" / "_staged_commits").mkdir()
    os.utime(folder / "_delta_log", (0, 0))
    remove_uncommitted(folder)
    assert not folder.exists()


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_table_whose_log_is_gone_is_an_error_everywhere(
    spark, tmp_path: Path, scheme: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither an empty leaderboard with exit 0 nor a new table over the old rows."""
    root, row = f"{scheme}{tmp_path}/w", ("s", "log", "rows", 1.0, None)
    Store(spark, root).append(spark.createDataFrame([row], spark_schema(MANIFESTS)), MANIFESTS)
    log = tmp_path / "w" / "manifests" / "_delta_log"
    files = sorted(log.parent.rglob("*.parquet"))
    log.rename(tmp_path / "log")
    for emptied in (False, True):
        if emptied:
            log.mkdir()
            os.utime(log, (0, 0))
        for ask in (
            lambda: Store(spark, root).read(MANIFESTS),
            lambda: Store(spark, root).install_views(),
            lambda: Store(spark, root).create(MANIFESTS),
        ):
            with pytest.raises(StoreError, match=r"manifests.*no commit"):
                ask()
        ran = job("--warehouse", root, "--optimize")
        said = capsys.readouterr().err
        assert ran == 1 and "restore all of its _delta_log" in said and "Traceback" not in said
    assert sorted(log.parent.rglob("*.parquet")) == files
    log.rmdir()
    (tmp_path / "log").rename(log)
    assert Store(spark, root).read(MANIFESTS).count() == 1


# ------------------------------------------------------------------------------------ late data


def log_until(spark, path: Path, days: int) -> str:
    """A log that grows day by day: users like what their number says, and more of it each day."""
    rows = [
        (user, (user * 7 + day * 5 + n * n) % 23, 1.0, datetime(2026, 1, day, 8 + n % 12, n, tzinfo=UTC))
        for day in range(1, days + 1)
        for user in range(1, 31)
        for n in range(6)
    ]
    frame = spark.createDataFrame(rows, "user_id long, item_id long, rating double, event_time timestamp")
    frame.coalesce(1).write.mode("overwrite").parquet(str(path))
    return str(path)


@pytest.mark.slow
def test_nights_run_in_any_order_give_the_same_bits(spark, tmp_path: Path) -> None:
    """One warehouse runs each night on the log as it lay then, the other runs them late, and backwards."""

    def benchmark() -> Benchmark:
        dataset = {"name": "growing", "reader": "parquet", "path": str(tmp_path / "log"),
                   "time_unit": "timestamp", "until": "{logical_date}"}  # fmt: skip
        evaluation = {
            "metrics": ["ndcg", "recall"],
            "k": [5],
            "slices": [],
            "bootstrap": {"replicates": 20},
        }
        return small(dataset=dataset, models=models("popular"), evaluation=evaluation)

    on_time, late = (Store(spark, str(tmp_path / name)) for name in ("on_time", "late"))
    for day in DAYS[:2]:
        log_until(spark, tmp_path / "log", day.day)
        run(on_time, benchmark(), day)
    for day in reversed(DAYS[:2]):
        run(late, benchmark(), day)
    first, second = (numbers(on_time, day) for day in DAYS[:2])
    assert first == numbers(late, DAYS[0]) != second == numbers(late, DAYS[1])
    facts = late.read(MANIFESTS).where("fact = 'later_rows'").collect()
    assert sorted(row.value for row in facts) == [0.0, 180.0]
    assert {row.detail[:21] for row in facts} == {"rows after 2026-01-01", "rows after 2026-01-02"}


# ------------------------------------------------------------------------------------ scratch


def test_scratch_lies_where_spark_is_told(spark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Store(spark, str(tmp_path))
    catalog = Store(spark, "spark_catalog.default")
    assert folder.scratch == folder.root
    assert Path(catalog.scratch).is_dir()
    spark.conf.set(SETTING, "s3a://bucket/scratch")
    try:
        assert folder.scratch == catalog.scratch == "s3a://bucket/scratch"
    finally:
        spark.conf.unset(SETTING)


@pytest.mark.parametrize("master", ["spark://host:7077", "yarn", "k8s://https://host", "unknown"])
def test_a_catalog_on_a_cluster_needs_the_setting(master: str) -> None:
    with pytest.raises(ConfigError, match=r"--conf spark\.recbench\.scratch="):
        local_scratch(master)
    assert Path(local_scratch("local[*]")).is_dir()
