"""recbench nightly: flags, exit codes, and what it prints."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from recbench_spark import __version__, cli
from recbench_spark.commands import estimate, evaluate, maintain, nightly, propensity, split
from recbench_spark.commands import nightly as backfill
from recbench_spark.commands.nightly import check_item_features
from recbench_spark.config import make_benchmark
from recbench_spark.errors import ConfigError, Interrupted
from recbench_spark.night.run_night import run_night
from recbench_spark.runtime.journal import Journal
from recbench_spark.schemas import RUNS
from recbench_spark.storage.scratch import SCRATCH
from recbench_spark.storage.store import Store
from tests.conftest import forbid_spark
from tests.nights import DATE, RANKED, SMALL, Ran, small

ROOT = Path(__file__).resolve().parent.parent.parent


def run(*argv: str) -> int | str | None:
    with pytest.raises(SystemExit) as end:
        cli.run(nightly.main, nightly.parser(), list(argv))
    return end.value.code


@pytest.fixture
def small_file(tmp_path: Path) -> str:
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump(SMALL))
    return str(path)


def flags(config: str, warehouse: str | Path, *more: str) -> list[str]:
    return ["--config", config, "--warehouse", str(warehouse), "--logical-date", "2026-01-01", *more]


def test_a_dry_run_needs_no_java_and_writes_nothing(tmp_path: Path) -> None:
    """A bare python process from another folder, with nothing but Python on its path."""
    command = [
        sys.executable,
        str(ROOT / "jobs" / "recbench.py"),
        "nightly",
        *flags("demo", tmp_path / "w", "--dry-run"),
    ]
    env = {"PATH": "/nonexistent", "HOME": str(tmp_path), "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for word in (
        "demo",
        "2026-01-01",
        "RO_RS 0.8/0/0.2 seed 42",
        "als_32 (als)",
        "open_loop",
        "threshold=4",
    ):
        assert word in done.stdout
    assert not (tmp_path / "w").exists()


def test_a_dry_run_spells_a_family_out_and_says_what_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    metrics = ["ndcg", {"family": "coverage"}, {"family": "diversity"}]
    config = {**SMALL, "evaluation": {**SMALL["evaluation"], "metrics": metrics}}
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(config))
    assert run(*flags(str(tmp_path / "small.yaml"), tmp_path / "w", "--dry-run")) == 0
    out = capsys.readouterr().out
    assert "metrics     ndcg, coverage, gini, entropy at " in out
    assert re.search(r"^left out    diversity \(needs features\)", out, re.MULTILINE)


@pytest.mark.parametrize("flag", ["--help", "--version"])
def test_help_and_version(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(flag) == 0
    said = capsys.readouterr().out
    assert __version__ in said if flag == "--version" else "--logical-date" in said and "Exit codes" in said


@pytest.mark.parametrize(
    ("argv", "word"),
    [
        (flags("dmeo", "w"), "did you mean 'demo'"),
        (flags("demo", "w", "--set", "split.sed=3"), "did you mean 'seed'"),
        (flags("demo", "w", "--set", "evaluation.metrics=[ndgc]"), "ndcg"),
        (flags("demo", "w", "--set", "evaluation.k=[0]"), "cut-offs"),
        (flags("demo", "w", "--frce"), "--frce"),
        (["--config", "demo", "--warehouse", "w"], "--logical-date"),
        (["--config", "demo", "--warehouse", "w", "--logical-date", "2026-13-01"], "not a date"),
    ],
)
def test_wrong_usage_exits_2_before_spark_starts(
    argv: list[str], word: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    forbid_spark(monkeypatch)
    assert run(*argv) == 2
    said = capsys.readouterr().err
    assert word in said and "Traceback" not in said


def test_a_night_done_before_says_so(
    small_night: Ran, small_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*flags(small_file, small_night.store.root)) == 0
    printed = capsys.readouterr().out
    assert "already done this night, nothing to do: random, popular" in printed
    assert f"report: file://{small_night.outcome.report_path}" in printed
    assert f"recbench query leaderboard --warehouse {small_night.store.root}\n" in printed
    assert "read_dataset" not in printed
    for model in RANKED:
        assert model in printed


def test_the_line_of_python_that_it_prints_works(small_night: Ran) -> None:
    line = next(line for line in small_night.outcome.sql_lines if "delta_tables" in line)
    done = subprocess.run(line, shell=True, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for model in RANKED:
        assert model in done.stdout


def test_a_model_that_fails_exits_1_and_names_it(
    small_night: Ran, small_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = "models=[{name: gone, kind: lists, path: /no/such/lists.parquet}]"
    code = run(*flags(small_file, small_night.store.root, "--set", broken, "--set", "name=gone"))
    said = capsys.readouterr()
    assert code in (1, 2)
    assert "/no/such/lists.parquet" in said.err
    assert "Traceback" not in said.err and "at org.apache" not in said.err


def test_a_warehouse_that_cannot_be_made_exits_1(
    small_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*flags(small_file, "/proc/recbench")) == 1
    assert "cannot create warehouse /proc/recbench" in capsys.readouterr().err


def test_jobs_that_were_cancelled_are_no_failed_model(spark, small_night: Ran) -> None:
    """Whoever cancels Spark's jobs ends the night: nothing is published of it, and no scratch is left."""
    store, over = Store(spark, small_night.store.root), threading.Event()

    def cancel() -> None:
        while not over.wait(0.02):
            spark.sparkContext.cancelAllJobs()

    benchmark = small(
        name="cancelled", models=[{"name": "als_4", "kind": "als", "rank": 4, "iterations": 9}]
    )
    journal = Journal(io.StringIO())
    journal.say = lambda text: cancelling.start() if ": train" in text else None  # type: ignore[method-assign]
    cancelling = threading.Thread(target=cancel)
    try:
        with pytest.raises(Interrupted):
            run_night(store, benchmark, DATE, journal)
    finally:
        over.set()
        cancelling.join()
    assert store.read(RUNS).where("suite = 'cancelled'").count() == 0
    assert not (Path(store.root) / SCRATCH).exists()


@pytest.mark.parametrize(
    ("place", "code", "words"),
    [("folder", 2, "--log {} is a folder"), ("/proc/recbench/x.jsonl", 1, "cannot write the log {}")],
)
def test_a_log_that_cannot_be_written_is_told_before_spark_starts(
    place: str,
    code: int,
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    forbid_spark(monkeypatch)
    log = str(tmp_path) if place == "folder" else place
    assert run(*flags("demo", tmp_path / "w", "--log", log)) == code
    assert words.format(log) in capsys.readouterr().err


@pytest.mark.parametrize(
    ("job", "argv", "word"),
    [
        (evaluate, ["--model", "m", "--lists", "l", "--truth", "t", "--bootstrap", "100001"], "100000"),
        (evaluate, ["--model", "m", "--lists", "l", "--truth", "t", "--metrics", "ndcg,ndcg"], "twice"),
        (evaluate, ["--model", "m", "--lists", "l", "--truth", "t", "--k", "99999", "--curve"], "--curve"),
        (evaluate, ["--model", "m", "--lists", "l", "--truth", "t", "--set", "definition.threshold=nan"],
         "definition.threshold"),
        (evaluate, ["--model", "m", "--predictions", "p", "--thresholds", "nan"], "finite"),
        (evaluate, ["--model", "m", "--lists", "s3a://k:hush@b/l", "--truth", "t"], "--lists holds"),
        (estimate, ["--model=m", "--matrix=a", "--propensities=p", "--bootstrap", "100001"], "100000"),
        (estimate, ["--model", "m", "--rounds", "r", "--clip", "inf"], "finite"),
        (estimate, ["--model", "m", "--rounds", "r", "--level", "nan"], "finite"),
        (maintain, ["--keep-days", "999999", "--logical-date", "2026-01-01"], "calendar"),
        (propensity, ["--log", "l.csv", "--floor", "nan"], "finite"),
        (split, ["--log", "l.csv", "--gate", "rows above nan"], "finite"),
        (nightly, ["--config", "a" * 5000, "--logical-date", "2026-01-01"], "no benchmark file"),
        (nightly, ["--config", "demo", "--logical-date", "2026-01-01", "--mlflow", "https://u:hush@h"],
         "--mlflow holds"),
    ],
)  # fmt: skip
def test_what_a_flag_cannot_mean_is_said_before_spark_starts(
    job, argv: list[str], word: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    forbid_spark(monkeypatch)
    for warehouse, expected in (("w", word), ("", "--warehouse is empty")):
        with pytest.raises(SystemExit) as end:
            cli.run(job.main, job.parser(), [*argv, "--warehouse", warehouse])
        said = capsys.readouterr().err
        assert end.value.code == 2 and "hush" not in said and "  hint: " in said
        assert expected in said or (word in said and not warehouse)


# ------------------------------------------------------------------------------------ many nights


def many(config: str, warehouse: str | Path, dates: str, *more: str) -> list[str]:
    return ["--config", config, "--warehouse", str(warehouse), "--dates", dates, *more]


@pytest.mark.parametrize(
    ("argv", "word"),
    [
        (many("demo", "w", "2026-01-03..2026-01-01"), "ends before it begins"),
        (many("demo", "w", "2026-01-03..tomorrow"), "'tomorrow' is not a date"),
        (many("demo", "w", "2026-01-03.."), "'' is not a date"),
        (many("demo", "w", "2026-01-03,2026-01-03"), "twice"),
        (many("demo", "w", "1026-01-03..2026-01-03"), "is the year right"),
        (many("demo", "w", "2026-01-03", "--logical-date", "2026-01-03"), "not allowed with"),
    ],
)
def test_wrong_ranges_exit_2(argv: list[str], word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*argv) == 2
    said = capsys.readouterr().err
    assert word in said and "Traceback" not in said


def test_ranges_hold_both_ends_and_lists_are_put_in_order() -> None:
    assert [str(day) for day in cli.parse_days("2026-02-27..2026-03-01")] == [
        "2026-02-27",
        "2026-02-28",
        "2026-03-01",
    ]
    assert [str(day) for day in cli.parse_days("2026-01-05,2026-01-02")] == ["2026-01-02", "2026-01-05"]
    assert [str(day) for day in cli.parse_days("2026-01-05")] == ["2026-01-05"]


def test_the_worst_of_many_nights() -> None:
    assert backfill.worst_code([0, 4, 0, 3]) == 3
    assert backfill.worst_code([4, 1]) == 1
    assert backfill.worst_code([0, 0]) == 0


def test_a_dry_run_of_many_nights_tells_a_line_a_night(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The log of the second night is not there."""
    config = {
        **SMALL,
        "dataset": {"name": "log", "reader": "csv", "path": f"{tmp_path}/{{logical_date}}.csv"},
    }
    config |= {"models": [{"name": "popular", "kind": "popular"}]}
    evaluation = {**SMALL["evaluation"], "parts": ["test"], "slices": []}
    evaluation.pop("exposure", None)
    config |= {"evaluation": evaluation}
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(config))
    (tmp_path / "2026-01-01.csv").write_text("user_id,item_id\na,b\n")
    (tmp_path / "2026-01-03.csv").write_text("user_id,item_id\na,b\n")
    assert (
        run(*many(str(tmp_path / "small.yaml"), tmp_path / "w", "2026-01-01..2026-01-03", "--dry-run")) == 1
    )
    said = capsys.readouterr().err.splitlines()
    nights = [line for line in said if "night 2026" in line]
    assert len(nights) == 3, said
    assert "to do" in nights[0] and "to do" in nights[2]
    assert "exit code 1" in nights[1] and "2026-01-02.csv" in nights[1]
    assert not (tmp_path / "w").exists()


def test_each_seed_of_a_split_is_a_night_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two days and two seeds are four nights; a seed that is no number is refused."""
    flags = ["--config", "demo", "--warehouse", str(tmp_path / "w"), "--dry-run", "--split-seeds"]
    assert run(*flags, "7,8", "--dates", "2026-01-01..2026-01-02") == 0
    said = capsys.readouterr().err
    places = re.findall(r"night (\S+) of (\S+), (\d of \d) \(", said)
    assert places == [
        ("2026-01-01", "demo-seed7", "1 of 4"),
        ("2026-01-01", "demo-seed8", "2 of 4"),
        ("2026-01-02", "demo-seed7", "3 of 4"),
        ("2026-01-02", "demo-seed8", "4 of 4"),
    ]
    args = nightly.parser().parse_args([*flags, "7,8", "--logical-date", "2026-01-01"])
    assert [(file.name, file.split.seed) for file in backfill.load_splits(args)] == [
        ("demo-seed7", 7),
        ("demo-seed8", 8),
    ]
    assert run(*flags, "7,7", "--logical-date", "2026-01-01") == 2
    assert "whole numbers from 0, each once" in capsys.readouterr().err


def test_what_the_machine_refuses_one_night_stops_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    evaluation = {**SMALL["evaluation"], "parts": ["test"], "slices": []}
    dataset = {"name": "log", "reader": "csv", "path": f"{tmp_path}/{'x' * 300}.csv"}
    config = {**SMALL, "dataset": dataset, "models": [{"name": "popular", "kind": "popular"}]}
    (tmp_path / "small.yaml").write_text(yaml.safe_dump({**config, "evaluation": evaluation}))
    request = many(str(tmp_path / "small.yaml"), tmp_path / "w", "2026-01-01..2026-01-02", "--dry-run")
    assert run(*request) == 1
    said = capsys.readouterr().err
    assert said.count("(exit code 1") == 2 == said.count("File name too long")
    assert len(list(tmp_path.glob("recbench-error-*"))) == 2


def test_many_nights_in_one_session(
    spark, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nights that are done are passed over, one that fails stops no other."""
    for name in ("2026-01-01", "2026-01-03"):
        rows = [f"{user},{item}" for user in range(6) for item in range(user, user + 6)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["user_id,item_id", *rows]))
    config = {
        "name": "many",
        "dataset": {"name": "log", "reader": "csv", "path": f"{tmp_path}/{{logical_date}}.csv"},
        "models": [{"name": "popular", "kind": "popular"}],
        "evaluation": {"metrics": ["ndcg"], "k": [3], "slices": []},
        "headline": "ndcg@3",
    }
    (tmp_path / "many.yaml").write_text(yaml.safe_dump(config))
    request = many(str(tmp_path / "many.yaml"), tmp_path / "w", "2026-01-01..2026-01-03")
    assert run(*request) == 1
    said = capsys.readouterr().err
    assert "2026-01-01, 1 of 3" in said and "2026-01-02, 2 of 3 (exit code 1" in said
    assert said.count("1 evaluated") == 2 and "starting Spark" not in said
    assert re.search(r"2026-01-01, 1 of 3: begins.*model 1/1 popular: train.*, 1 of 3 \(", said, re.DOTALL)
    assert said.count("model 1/1 popular: train") == 2
    log = tmp_path / "w" / "logs" / "many-2026-01-03.jsonl"
    assert json.loads(log.read_text().splitlines()[-1])["stage"] == "report"
    (tmp_path / "2026-01-02.csv").write_text((tmp_path / "2026-01-01.csv").read_text())
    assert run(*request) == 0
    said = capsys.readouterr().err
    assert said.count("already done") == 1 and said.count("1 evaluated") == 1
    assert "2026-01-03, 3 of 3" in said and "1 done before" in said, (
        "what follows from the runs is looked at"
    )
    forbid_spark(monkeypatch)
    assert run(*request) == 0


def test_features_of_two_lengths_are_refused_by_name_before_spark_starts(tmp_path) -> None:
    path = tmp_path / "features.parquet"
    vectors = pa.array([[1.0, 2.0], [1.0]], pa.list_(pa.float32()))
    pq.write_table(pa.table({"id": ["1", "2"], "vector": vectors}), path)
    model = {"name": "sage", "kind": "pinsage", "features": {"kind": "table", "path": str(path)}}
    request = make_benchmark({
        "name": "b", "dataset": {"name": "d", "reader": "world"}, "models": [model],
    }, [], "test")  # fmt: skip
    with pytest.raises(ConfigError, match=r"model sage: .*vectors of 2 and of 1 numbers"):
        check_item_features(request)
    pq.write_table(pa.table({"id": ["1", "2"], "vector": [[1.0, 2.0], [1.0, 3.0]]}), path)
    check_item_features(request)
    path.unlink()
    check_item_features(request)  # a night goes on, and the model fails alone
