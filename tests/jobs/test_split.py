"""jobs/split.py: flags, tables, audit, gates, exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jobs import split
from recbench_spark import cli

ROWS = [(user, item, 3, 100 * user + 10 * item) for user in range(4) for item in range(5)]


@pytest.fixture
def log(tmp_path: Path) -> str:
    path = tmp_path / "ratings.csv"
    lines = ["userId,movieId,rating,ts", *(",".join(map(str, row)) for row in ROWS)]
    path.write_text("\n".join([*lines, lines[1]]) + "\n")
    return str(path)


def run(*argv: str) -> int | str | None:
    with pytest.raises(SystemExit) as end:
        cli.run(split.main, split.parser(), list(argv))
    return end.value.code


COLUMNS = ("--columns", "user_id=userId,item_id=movieId,event_time=ts")


def test_a_dry_run_needs_no_spark(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    warehouse = str(tmp_path / "w")
    assert run("--log", "x.csv", "--protocol", "TO_LS", "--warehouse", warehouse, "--dry-run") == 0
    assert "csv x.csv" in (printed := capsys.readouterr().out) and "TO_LS test only seed 42" in printed
    assert run("--config", "netflix", "--set", "dataset.path=x", "--warehouse", warehouse, "--dry-run") == 0
    assert "netflix 9 to probe/quiz/test" in capsys.readouterr().out
    assert not (tmp_path / "w").exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ((), "--config --log is required"),
        (("--log", "x", "--protocol", "TO_LX"), "invalid choice"),
        (("--log", "x", "--columns", "user_id"), "ours=theirs"),
        (("--log", "x", "--set", "split.fold=3"), "fold: not for holdout 'ratio'"),
        (("--log", "x", "--set", "split.foldz=3"), "did you mean 'fold'"),
        (("--log", "x", "--gate", "overlap over 0"), "is no gate"),
        (("--log", "x", "--gate", "overlap above zero"), "is no gate"),
        (("--config", "demo", "--reader", "csv"), "go with --log"),
        (("--config", "dmo"), "did you mean 'demo'"),
    ],
)
def test_mistakes_are_told_before_spark_starts(
    flags: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*flags, "--warehouse", "w", "--dry-run") == 2
    assert message in capsys.readouterr().err


@pytest.mark.spark
def test_a_log_becomes_labelled_tables_and_an_audit(
    spark, log: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Four users of five rows, one row twice: the last of each is test; users come one after another."""
    warehouse = tmp_path / "w"
    flags = ("--log", log, *COLUMNS, "--protocol", "TO_LS", "--warehouse", str(warehouse))
    assert run(*flags) == 0
    printed = capsys.readouterr().out
    facts = {line.split()[0]: line.split()[1:] for line in printed.splitlines() if line.strip()}
    assert facts["rows"] == ["16", "4"]
    assert facts["duplicates_dropped"] == ["1"]
    assert facts["overlap"] == facts["own_future_rows"] == ["0"]
    # The first held-out row is at 40 s; the twelve training rows of the other users are later.
    assert facts["future_rows"] == ["12"]
    splits = spark.read.format("delta").load(f"{warehouse}/splits")
    tested = splits.where("part = 'test'").select("user_id", "item_id").collect()
    assert {(row.user_id, row.item_id) for row in tested} == {(str(user), "4") for user in range(4)}
    blocks = spark.read.format("delta").load(f"{warehouse}/user_blocks").collect()
    assert {len(row.train_items) for row in blocks} == {4} and len(blocks) == 4
    (journal,) = (warehouse / "logs").glob("split-*.jsonl")
    stages = [json.loads(line)["stage"] for line in journal.read_text().splitlines()]
    assert stages == ["splits", "items", "user_blocks", "manifests", "split"]

    gates = (
        "--gate",
        "future_rows of train above 0",
        "--gate",
        "overlap above 0",
        "--gate",
        "rows of test below 9 warn",
    )
    assert run(*flags, *gates) == 3
    again = capsys.readouterr()
    assert "made before" in again.err
    assert "error: 1 gate failed: train: future_rows is 12 (gate: fail above 0)" in again.err
    assert "gate passed: log: overlap is 0" in again.out and "gate warning: test: rows is 4" in again.out
    (result,) = (warehouse / "results").glob("split-*.json")
    assert json.loads(result.read_text())["exit_code"] == 3
