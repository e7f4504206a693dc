"""recbench split: flags, tables, audit, gates, exit codes."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest

from recbench_spark import cli
from recbench_spark.commands import split
from recbench_spark.schemas import ITEMS, MANIFESTS, SPLITS, USER_BLOCKS
from recbench_spark.storage.arrow_store import ArrowStore
from recbench_spark.storage.store import Store
from tests.nights import read_rows

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
    (tmp_path / "x.csv").write_text("user_id,item_id\n1,2\n")
    flags = ("--log", str(tmp_path / "x.csv"), "--warehouse", warehouse, "--dry-run")
    assert run(*flags, "--protocol", "TO_LS") == 0
    assert "x.csv: 2 lines" in (printed := capsys.readouterr().out) and "TO_LS test only seed 42" in printed
    there = f"dataset.path={tmp_path}"
    assert run("--config", "netflix", "--set", there, "--warehouse", warehouse, "--dry-run") == 0
    assert "netflix 9 to probe/quiz/test" in capsys.readouterr().out
    assert not (tmp_path / "w").exists()


def test_a_dry_run_looks_at_the_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A log that is not there may come later, and has its columns or not: 1; a wrong flag is 2."""
    (tmp_path / "x.csv").write_text("user,item_id\n1,2\n")
    rest = ("--warehouse", str(tmp_path / "w"), "--dry-run")
    assert run("--log", str(tmp_path / "later.csv"), *rest) == 1
    assert "later.csv" in capsys.readouterr().err
    assert run("--log", str(tmp_path / "x.csv"), *rest) == 1
    assert "has no column" in capsys.readouterr().err
    assert run("--log", str(tmp_path / "x.csv"), "--columns", "user_id=user", *rest) == 0


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ((), "--config --log is required"),
        (("--log", "x", "--protocol", "TO_LX"), "invalid choice"),
        (("--log", "x", "--columns", "user_id"), "NAME=COLUMN"),
        (("--log", "x", "--set", "split.fold=3"), "fold: not for holdout 'ratio'"),
        (("--log", "x", "--set", "split.foldz=3"), "did you mean 'fold'"),
        (("--log", "x", "--gate", "overlap over 0"), "is not a gate"),
        (("--log", "x", "--gate", "overlap above zero"), "is not a gate"),
        (("--config", "demo", "--reader", "csv"), "go with --log"),
        (("--config", "dmo"), "did you mean 'demo'"),
    ],
)
def test_mistakes_are_told_before_spark_starts(
    flags: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*flags, "--warehouse", "w", "--dry-run") == 2
    assert message in capsys.readouterr().err


def test_a_session_that_splits_twice_at_one_place_reads_no_rows_of_the_first_split(
    spark, log: str, tmp_path: Path
) -> None:
    """Spark holds a plan of the first catalogue as long as it is cached, and makes it anew, without rows,
    when retention deletes them. The folder is then removed, as with a disk that was full.
    """
    warehouse = tmp_path / "w"
    flags = ("--log", log, *COLUMNS, "--protocol=TO_LS", f"--warehouse={warehouse}", "--engine=spark")
    assert run(*flags) == 0
    split_id = spark.read.format("delta").load(f"{warehouse}/items").first().split_id
    Store(spark, str(warehouse)).delete("splits", "split_id", [split_id])
    shutil.rmtree(warehouse)
    assert run(*flags) == 0
    assert spark.read.format("delta").load(f"{warehouse}/items").count() == 5
    assert spark.read.format("delta").load(f"{warehouse}/user_blocks").count() == 4


@pytest.mark.contract("split")
def test_a_log_becomes_labelled_tables_and_an_audit(
    log: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Four users of five rows, one row twice: the last of each is test; users come one after another."""
    warehouse = tmp_path / "w"
    flags = ("--log", log, *COLUMNS, "--protocol", "TO_LS", "--warehouse", str(warehouse))
    assert run(*flags) == 0
    printed = capsys.readouterr().out
    facts = {line.split()[0]: line.split()[1:] for line in printed.splitlines() if line.strip()}
    assert facts["rows"] == ["16", "4"]
    assert facts["duplicates_dropped"] == ["1", "1"] and facts["rows_read"] == ["21"]
    assert facts["overlap"] == facts["own_future_rows"] == ["0"]
    # The first held-out row is at 40 s; the twelve training rows of the other users are later.
    assert facts["future_rows"] == ["12"]
    tested = read_rows(ArrowStore(str(warehouse)), SPLITS, part="test")
    assert {(row.user_id, row.item_id) for row in tested} == {(str(user), "4") for user in range(4)}
    blocks = read_rows(ArrowStore(str(warehouse)), USER_BLOCKS)
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
    assert "already made" in again.err
    assert "error: 1 gate failed: train: future_rows is 12 (gate: fail above 0)" in again.err
    assert "gate passed: log: overlap is 0" in again.out and "gate warning: test: rows is 4" in again.out
    (result,) = (warehouse / "results").glob("split-*.json")
    assert json.loads(result.read_text())["exit_code"] == 3


# ------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("settings", "sizes"),
    [
        (["holdout=period", "start=2030-01-01"], "train 21, valid 0, test 0, later 0"),
        (["holdout=n_given", "n=5000"], "test 0, train 20"),
        (["holdout=n_given", "n=5000", "order=temporal"], "test 0, train 20"),
        (["holdout=n_given", "n=0"], "test 20, train 0"),
        (["holdout=last_n", "n=3", "held_out.test=0.0001"], "test 0, train 20"),
    ],
)
def test_a_split_without_training_or_test_rows_is_refused_with_sizes_and_range(
    log: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], settings: list[str], sizes: str
) -> None:
    flags = [flag for setting in settings for flag in ("--set", f"split.{setting}")]
    warehouse = tmp_path / "w"
    assert run("--log", log, *COLUMNS, *flags, "--warehouse", str(warehouse)) == 1
    said = capsys.readouterr().err
    missing = "training" if "train 0" in sizes else "test"
    result = re.search(r"error: no (\w+) rows \(([^)]*)\); the log runs from (.*) to (.*)", said)
    assert result is not None, said
    assert result[1] == missing and sorted(result[2].split(", ")) == sorted(sizes.split(", "))
    assert (result[3], result[4]) == ("1970-01-01 00:00:00+00:00", "1970-01-01 00:05:40+00:00")
    assert "hint: hold out" in said and not (warehouse / "manifests").exists()


# ------------------------------------------------------------------------------- rows of one instant


@pytest.mark.parametrize(
    ("kind", "items", "last"),
    [("csv", (10, 9, 2), "10"), ("parquet", (10, 9, 2), "10"), ("parquet", ("10", "9", "2"), "9"),
     ("csv", (10, 9, "b"), "b"), ("csv", ("a10", "a9", "a2"), "a9")],
)  # fmt: skip
def test_rows_of_one_instant_are_in_the_order_that_breaks_ties(
    tmp_path: Path, kind: str, items: tuple[object, ...], last: str
) -> None:
    """The last one is tested, and has the largest index: as numbers where all ids are, else by bytes."""
    table = {"user_id": [1] * 3 + [2] * 3, "item_id": [*items] * 2, "event_time": [7] * 6}
    path = tmp_path / f"log.{kind}"
    frame = pd.DataFrame(table)
    if kind == "csv":
        frame.to_csv(path, index=False)
    else:
        frame.to_parquet(path, index=False)
    warehouse = tmp_path / "w"
    assert run("--log", str(path), "--protocol", "TO_LS", "--warehouse", str(warehouse)) == 0
    store = ArrowStore(str(warehouse))
    tested = read_rows(store, SPLITS, part="test")
    assert {(row.user_id, row.item_id) for row in tested} == {("1", last), ("2", last)}
    catalogue = {row.item_id: row.item_index for row in read_rows(store, ITEMS)}
    assert max(catalogue, key=lambda item: catalogue[item]) == last


def test_ties_in_time_are_broken_by_user_id_where_items_are_held_out(tmp_path: Path) -> None:
    """Every item is held out, its last row is tested: that of user 10, not of 9."""
    path = tmp_path / "log.parquet"
    pd.DataFrame(
        [(user, item, 7) for user in (9, 10, 2) for item in range(40)],
        columns=["user_id", "item_id", "event_time"],
    ).to_parquet(path, index=False)
    flags = ("--set", "split.order=temporal", "--set", "split.holdout=last_n", "--set", "split.n=1")
    held = ("--set", "split.held_out={of: items, test: 0.5}", "--warehouse", str(tmp_path / "w"))
    assert run("--log", str(path), *flags, *held) == 0
    splits = read_rows(ArrowStore(str(tmp_path / "w")), SPLITS, part="test")
    assert {row.user_id for row in splits} == {"10"} and len(splits) > 5


def test_the_last_day_of_a_shop_in_rome(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows of every hour; 29 March 2026 has 23 hours in Rome, and ends at 22:00 UTC."""
    first = pd.Timestamp("2026-03-26T00:00", tz="UTC")
    times = [first + pd.Timedelta(hours=n) for n in range(4 * 24)]
    texts = [f"{time:%Y-%m-%dT%H:%M:%S}Z" for time in times]
    lines = [f"u{n % 7},i{n},{text}" for n, text in enumerate(texts)]
    path = tmp_path / "shop.csv"
    path.write_text("\n".join(["user_id,item_id,event_time", *lines, ""]))
    flags = ("--log", str(path), "--warehouse", str(tmp_path / "w"), "--logical-date", "2026-04-02")
    settings = ("dataset.time_unit=timestamp", "dataset.time_zone=Europe/Rome", "dataset.until=2026-03-29")
    period = "split={holdout: period, length: 1d, valid: true}"
    assert run(*flags, *(word for one in (*settings, period) for word in ("--set", one))) == 0
    printed = capsys.readouterr().out
    local = pd.DatetimeIndex(times).tz_convert("Europe/Rome")
    days = pd.Series(local.strftime("%Y-%m-%d")).value_counts()
    store = ArrowStore(str(tmp_path / "w"))
    parts = Counter(row.part for row in read_rows(store, SPLITS))
    assert parts["test"] == days["2026-03-29"] == 23
    assert parts["valid"] == days["2026-03-28"] == 24
    assert parts["train"] == days[days.index < "2026-03-28"].sum()
    assert "log newest_event 2026-03-29 21:00:00 UTC, 2026-03-29 23:00:00 Europe/Rome" in printed
    assert "log period_begin 2026-03-28 23:00:00 UTC, 2026-03-29 00:00:00 Europe/Rome" in printed
    # 22:00 UTC of 2 April ends the night's day, 97 hours after the newest row: more than two days.
    assert f"gate warning: log: newest_age_days is {97 / 24:g} (gate: warn above 2; newest_event" in printed
    facts = {row["fact"]: row["value"] for row in store.rows(MANIFESTS, [("part", "=", "log")])}
    assert facts["period_covered"] == pytest.approx(22 / 23, abs=1e-9)
    assert facts["newest_age_days"] == 97 / 24
    assert facts["later_rows"] == (days[days.index > "2026-03-29"].sum())
