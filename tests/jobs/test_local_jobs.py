"""Fits, searches, boards, bundles, protocols and upkeep without a JVM, and what they say of it."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml

from recbench_spark import cli
from recbench_spark.commands import benchmark, board, bundle, maintain, multiverse, tune
from recbench_spark.config import load_benchmark
from recbench_spark.errors import ConfigError, StoreError
from recbench_spark.night.runners import choose_job_runner, count_no_log
from recbench_spark.schemas import BOARD_DECISIONS, BOARDS, FITS, OLDEST_SCHEMA, RUNS, SUBMISSIONS, TRIALS
from recbench_spark.storage.arrow_store import ArrowStore
from recbench_spark.storage.delta_tables import open_table
from recbench_spark.storage.migration import migrate
from recbench_spark.storage.table_folders import create_local_table
from recbench_spark.storage.table_sql import VERSION_PROPERTY, table_properties
from tests.nights import TINY
from tests.tuning.test_fold_fits import MODELS, TASK, write_log

BY_SIZE = "160 rows of this machine (up to 20,000,000), without Spark"


def run_job(job: Any, *argv: str | Path) -> int | str | None:
    with pytest.raises(SystemExit) as end:
        cli.run(job.main, job.parser(), [str(arg) for arg in argv])
    return end.value.code


def write_config(folder: Path, **changes: Any) -> Path:
    document = {
        "name": "tiny",
        "dataset": {"name": "tiny", "reader": "parquet", "path": write_log(folder)},
        "split": {"holdout": "folds", "folds": 3},
        "models": MODELS[:2],
        "evaluation": TASK,
        "search": {"budget": 2, "share": 0.2, "spaces": {"sgd": {"rates": {"low": 0.001, "high": 0.1}}}},
        **changes,
    }
    (folder / "tiny.yaml").write_text(yaml.safe_dump(document))
    return folder / "tiny.yaml"


def test_fits_searches_boards_and_bundles_start_no_java(tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.setattr("recbench_spark.runtime.session.get_session", pytest.fail)
    place, config = tmp_path / "w", write_config(tmp_path)
    flags = ["--config", config, "--warehouse", place]
    assert run_job(benchmark, *flags, "--dry-run") == 0
    assert f"runner      engine local: {BY_SIZE}" in capsys.readouterr().out
    for job, name in ((benchmark, "benchmark"), (tune, "search"), (board, "board")):
        assert run_job(job, *flags) == 0
        (first, *_) = capsys.readouterr().err.splitlines()
        assert first.endswith(f"{name} tiny: engine local: {BY_SIZE}")
    assert run_job(board, *flags, "--paired", "--engine", "local") == 0
    assert "board tiny: engine local: 160 rows, as requested" in capsys.readouterr().err
    packed = tmp_path / "packed"
    assert run_job(bundle, "pack", *flags, "--model", "sgd", "--output", packed, "--who", "them") == 0
    assert run_job(bundle, "score", *flags, "--bundle", packed) == 0
    store = ArrowStore(str(place))
    assert [len(store.rows(table)) for table in (FITS, TRIALS, SUBMISSIONS)] == [8, 2, 1]
    entry = next(row for row in store.rows(BOARDS) if row["origin"] == "bundle")
    ours = next(row for row in store.rows(BOARDS) if (row["origin"], row["name"]) == ("ours", "sgd"))
    assert entry["value"] == ours["value"]
    decided = ["--warehouse", place, "--entry", entry["entry_id"], "--why", "a test"]
    assert run_job(bundle, "retract", *decided) == run_job(bundle, "accept", *decided) == 0
    assert {row["decision"] for row in store.rows(BOARD_DECISIONS)} == {"retracted", "accepted"}
    assert not list((place / "_scratch").glob("*/*"))


def test_protocols_start_no_java(tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.setattr("recbench_spark.runtime.session.get_session", pytest.fail)
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(TINY))
    flags = [
        "--config",
        tmp_path / "tiny.yaml",
        "--warehouse",
        tmp_path / "w",
        "--logical-date",
        "2026-01-01",
    ]
    assert run_job(multiverse, *flags, "--protocols", "RO_RS,RO_LS", "--candidates", "unseen") == 0
    said = capsys.readouterr()
    assert "multiverse: engine local: 1,000 rows of this machine" in said.err
    assert "in which the row wins" in said.out and (tmp_path / "w/reports/tiny-multiverse.html").is_file()


def test_what_needs_spark_is_told(tmp_path: Path, monkeypatch) -> None:
    config = write_config(
        tmp_path, models=[{"name": "als", "kind": "mllib_als", "implicit": False}], search=None
    )
    flags = ["--config", str(config), "--warehouse", str(tmp_path / "w"), "--engine", "local"]
    with pytest.raises(ConfigError, match=r"--engine local: model als \(kind mllib_als\) runs on Spark"):
        benchmark.main(benchmark.parser().parse_args(flags))
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    choice, _ = choose_job_runner("auto", str(tmp_path / "w"), count_no_log, ())
    assert (choice.engine, choice.why) == ("spark", "spark-submit started this job")


def test_an_older_folder_is_migrated_without_spark(tmp_path: Path, capsys) -> None:
    """Two columns, the constraints and the version come by one commit; a breach is refused."""
    older = replace(
        RUNS, columns=tuple(c for c in RUNS.columns if c.name not in ("n_users", "error")), constraints={}
    )
    row = {"run_id": "r1", "run_key": "k", "attempt": 1, "suite": "s", "model": "m", "split_id": "x",
           "status": "succeeded", "source": "own", "logical_date": date(2026, 1, 1)}  # fmt: skip
    for name, status in (("good", "succeeded"), ("bad", "unheard of")):
        place = tmp_path / name
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("recbench_spark.storage.table_sql.SCHEMA_VERSION", OLDEST_SCHEMA)
            create_local_table(place / "runs", older)
        ArrowStore(str(place), any_version=True).append([{**row, "status": status}], older)
    with pytest.raises(StoreError, match="--migrate"):
        ArrowStore(str(tmp_path / "good"))
    assert run_job(maintain, "--warehouse", tmp_path / "good", "--migrate", "--engine", "local") == 0
    said = capsys.readouterr().err
    assert "ADD COLUMNS (`n_users` bigint COMMENT" in said and "`error` string COMMENT" in said
    store = ArrowStore(str(tmp_path / "good"))
    assert migrate(store) == [] and store.rows(RUNS)[0]["n_users"] is None
    properties = open_table(store.location("runs")).metadata().configuration
    assert properties == table_properties(RUNS) and VERSION_PROPERTY in properties
    with pytest.raises(StoreError, match="a row breaks the constraint"):
        migrate(ArrowStore(str(tmp_path / "bad"), any_version=True))


def test_a_search_of_rankings_says_its_runner(tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.setattr("recbench_spark.runtime.session.get_session", pytest.fail)
    document = {**TINY, "headline": "ndcg@5", "search": {
        "budget": 2, "share": 0.2, "spaces": {"item_knn": {"neighbours": {"low": 2, "high": 9}}},
    }}  # fmt: skip
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(document))
    flags = ["--config", tmp_path / "tiny.yaml", "--warehouse", tmp_path / "w"]
    assert run_job(tune, *flags) == 0
    assert "search tiny: engine local: 1,000 rows of this machine" in capsys.readouterr().err
    assert load_benchmark(str(tmp_path / "tiny.yaml"), []).search is not None
    assert {row["metric"] for row in ArrowStore(str(tmp_path / "w")).rows(TRIALS)} == {"ndcg@5"}
