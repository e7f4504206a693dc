"""`recbench replay` without a JVM: the generated log, a log from files, refusals, and a killed run."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pytest
import yaml

from recbench_spark.auctions.settings import AuctionWorld, load_replay
from recbench_spark.auctions.worlds import make_auctions
from recbench_spark.commands.replay import main, parser
from recbench_spark.errors import ConfigError
from recbench_spark.schemas import REJECTS, REPLAYS, RUNS
from recbench_spark.storage.arrow_store import ArrowStore
from recbench_spark.storage.delta_files import File
from recbench_spark.storage.objects import read_bytes

POINT = {"main_slots": 2, "side_slots": 2}
SETTINGS = {"points": [POINT], "bootstrap": {"replicates": 20}}
MODEL = {"name": "new", "path": "model.csv", "trained_until": "2026-01-01T00:01:00+00:00"}


def write_file(folder: Path, **changes: Any) -> str:
    """Write a log, a model and the replay file; return its path."""
    world = make_auctions(AuctionWorld(auctions=400, queries=60, seed=9))
    if not (folder / "log.csv").exists():
        pyarrow.csv.write_csv(world.log, folder / "log.csv")
        rows = world.log.select(["auction_id", "ad_id", "probability"])
        pyarrow.csv.write_csv(rows, folder / "model.csv")
    document = {
        "name": "own",
        "log": {"path": str(folder / "log.csv")},
        "replay": SETTINGS,
        "models": [{**MODEL, "path": str(folder / "model.csv")}],
        **changes,
    }
    path = folder / "replay.yaml"
    path.write_text(yaml.safe_dump(document))
    return str(path)


def run(config: str, warehouse: Path, *flags: str) -> int:
    return main(parser().parse_args(["--config", config, "--warehouse", str(warehouse), *flags]))


@pytest.mark.full
@pytest.mark.contract("replay")
def test_a_log_from_files(tmp_path, capsys) -> None:
    assert run(write_file(tmp_path), tmp_path / "wh", "--logical-date", "2026-01-02") == 0
    rows = ArrowStore(str(tmp_path / "wh")).rows(REPLAYS)
    runs = {row["run_id"]: row for row in ArrowStore(str(tmp_path / "wh")).rows(RUNS)}
    assert {row["model"] for row in runs.values()} == {"new", "logged"}
    assert {row["run_id"] for row in rows} == set(runs)
    (views,) = {row["n"] for row in rows}
    assert views == 339, "auctions after the first minute"
    (value,) = [
        row["value"]
        for row in rows
        if (row["model"], row["metric"], row["unseen"], row["other"])
        == ("new", "click_yield", "reference", None)
    ]
    out = capsys.readouterr().out
    page = (tmp_path / "wh" / "reports" / "replay-own.html").read_text()
    assert "<svg" in page and "share of ads shown" in page and f"{value:.4f}" in page
    assert f"click_yield: {value:.6f}" in out and {row["same_log"] for row in rows} == {0}


def read_numbers(root: str) -> list[list[Any]]:
    """Rows of the table of replays without their runs' names, every number to the bit."""
    rows = ArrowStore(root, read_only=True).rows(REPLAYS)
    names = sorted({name for row in rows for name in row} - {"run_id"})
    exact = [[v.hex() if isinstance(v, float) else v for v in map(row.get, names)] for row in rows]
    return sorted(exact, key=repr)


def test_a_warehouse_on_object_storage_has_the_numbers_of_a_folder(bucket, tmp_path, capsys) -> None:
    config, day = write_file(tmp_path), ("--logical-date", "2026-01-02")
    for root in (f"{bucket}/w", str(tmp_path / "wh")):
        assert main(parser().parse_args(["--config", config, "--warehouse", root, *day])) == 0
        assert f"{root}/reports/replay-own.html" in capsys.readouterr().out
    assert read_numbers(f"{bucket}/w") == read_numbers(str(tmp_path / "wh")) != []
    assert b"<svg" in (read_bytes(f"{bucket}/w/reports/replay-own.html") or b"")
    assert main(parser().parse_args(["--config", config, "--warehouse", f"{bucket}/w", *day])) == 0
    assert "nothing to do" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="maps the parts of its log from a folder"):
        flags = ["--config", config, "--warehouse", f"{bucket}/w", "--engine", "spark"]
        main(parser().parse_args(flags))


def test_a_query_seen_once_a_new_ad_and_nobody_above_the_floor_end_in_numbers(tmp_path, capsys) -> None:
    """A point that shows no ad has no shares of cases: printing them ended in a trace."""
    rows = [
        {
            "auction_id": n,
            "query_id": max(0, n - 4),
            "ad_id": ad,
            "position": 1 if ad else None,
            "clicked": 0,
        }
        for n in range(6)
        for ad in (0, 1)  # ad 0 was never shown, and query 1 is there once
    ]
    log = pa.Table.from_pylist(rows)
    pyarrow.csv.write_csv(log, tmp_path / "log.csv")
    probability = pa.array([0.5 if row["ad_id"] == 0 else 0.25 for row in rows])
    model = log.select(["auction_id", "ad_id"]).append_column("probability", probability)
    pyarrow.csv.write_csv(model, tmp_path / "model.csv")
    points = [{"main_slots": 1}, {"main_slots": 1, "main_floor": 5.0}]
    config = write_file(tmp_path, replay={"points": points, "bootstrap": {"replicates": 20}})
    assert run(config, tmp_path / "wh", "--same-log") == 0
    replays = ArrowStore(str(tmp_path / "wh")).rows(REPLAYS)
    values = {
        (row["metric"], row["main_floor"], row["unseen"]): row["value"]
        for row in replays
        if row["model"] == "new" and row["other"] is None
    }
    assert values["ads_per_view", 0, "reference"] == 1 and values["share_unseen", 0, None] == 1
    assert values["clicks", 0, "probability"] == pytest.approx(3) and values["clicks", 5, "reference"] == 0
    assert values["ads_per_view", 5, "reference"] == 0 and values["share_unseen", 5, None] is None
    out = capsys.readouterr().out
    assert "share_unseen: none" in out and "share_unseen: 1.0000" in out and "report: " in out


def test_a_model_that_does_not_say_what_it_was_fitted_to(tmp_path) -> None:
    silent = [{"name": "new", "path": str(tmp_path / "model.csv")}]
    config = write_file(tmp_path, models=silent)
    with pytest.raises(ConfigError, match="new has no trained_until") as raised:
        run(config, tmp_path / "wh")
    assert "--same-log" in raised.value.hint and not (tmp_path / "wh").exists()
    assert run(config, tmp_path / "wh", "--same-log") == 0
    rows = ArrowStore(str(tmp_path / "wh")).rows(REPLAYS)
    assert {row["same_log"] for row in rows} == {1} and {row["n"] for row in rows} == {400}


def test_users_are_resampled(tmp_path, capsys) -> None:
    write_file(tmp_path)
    lines = (tmp_path / "log.csv").read_text().splitlines()
    users = ["user", *(f"u{int(line.split(',')[0]) % 50}" for line in lines[1:])]
    (tmp_path / "log.csv").write_text(
        "".join(f"{line},{user}\n" for line, user in zip(lines, users, strict=True))
    )
    log = {"path": str(tmp_path / "log.csv"), "columns": {"user_id": "user"}}
    config = write_file(tmp_path, replay={**SETTINGS, "resample": "user"}, log=log)
    assert run(config, tmp_path / "wh") == 0
    rows = ArrowStore(str(tmp_path / "wh")).rows(REPLAYS)
    assert {row["definition"].rpartition(";")[2] for row in rows} == {"resample=user"}
    (effective,) = {row["effective_queries"] for row in rows}
    assert 49 < effective < 50 and any(row["ci_low"] is not None for row in rows)
    assert "effective users: 49." in capsys.readouterr().out
    page = (tmp_path / "wh" / "reports" / "replay-own.html").read_text()
    assert "bootstrap intervals over users" in page


def test_rejected_rows_are_kept(tmp_path) -> None:
    write_file(tmp_path)
    with (tmp_path / "log.csv").open("a", encoding="utf-8") as log:
        log.write("900,1,1,1900000000000000,-5,main,1,0,.5\n")
    config = write_file(tmp_path, log={"path": str(tmp_path / "log.csv"), "bad_rows": "reject"})
    assert run(config, tmp_path / "wh") == 0
    (row,) = ArrowStore(str(tmp_path / "wh")).rows(REJECTS)
    assert json.loads(row["line"])["auction_id"] in ("900", 900) and row["reason"].startswith("bid")


def test_a_killed_run_leaves_nothing_visible_and_runs_again(tmp_path, monkeypatch) -> None:
    config, warehouse = write_file(tmp_path), tmp_path / "wh"
    append = ArrowStore.append

    def die_at_runs(store: ArrowStore, rows: Any, table: Any, *names: str) -> list[File]:
        if table is RUNS:
            raise KeyboardInterrupt
        return append(store, rows, table, *names)

    monkeypatch.setattr(ArrowStore, "append", die_at_runs)
    with pytest.raises(KeyboardInterrupt):
        run(config, warehouse)
    monkeypatch.undo()
    store = ArrowStore(str(warehouse))
    first = store.rows(REPLAYS)
    assert first and store.rows(RUNS) == []
    assert run(config, warehouse) == 0
    visible = {row["run_id"] for row in store.rows(RUNS)}
    second = [row for row in store.rows(REPLAYS) if row["run_id"] in visible]
    plain = [[{**row, "run_id": ""} for row in rows] for rows in (first, second)]
    key = json.dumps
    assert sorted(plain[0], key=key) == sorted(plain[1], key=key)


def write_rounds(folder: Path, rounds: Path, query: str) -> str:
    """Write logged rounds as auctions of one ad, by features of users or by the hour; return the file."""
    with rounds.open(encoding="utf-8") as stored:
        rows = list(csv.DictReader(stored))
    features = [f"user_feature_{n}" for n in range(3)]
    log = pa.Table.from_pylist(
        [
            {
                "auction_id": number, "ad_id": row["item_id"], "position": 1, "clicked": int(row["click"]),
                "query_id": row["timestamp"][:13] if query == "hour" else ",".join(map(row.get, features)),
            }
            for number, row in enumerate(rows)
        ]
    )  # fmt: skip
    pyarrow.csv.write_csv(log, folder / "log.csv")
    probability = pa.array([0.001 + int(row["item_id"]) / 10_000 for row in rows])
    model = log.select(["auction_id", "ad_id"]).append_column("probability", probability)
    pyarrow.csv.write_csv(model, folder / "model.csv")
    points = [{"main_slots": 1}, {"main_slots": 1, "main_floor": 0.004}]
    return write_file(folder, replay={"points": points, "bootstrap": {"replicates": 200}})


@pytest.mark.parametrize("query", ["hour", "user"])
def test_logged_rounds_as_auctions_of_one_ad(tmp_path, shared_data, capsys, query: str) -> None:
    """10,000 rounds have 38 clicks: intervals are wide, and 10 effective queries have none."""
    config = write_rounds(tmp_path, shared_data / "obd-sample" / "random" / "all.csv", query)
    assert run(config, tmp_path / "wh", "--same-log") == 0
    rows = [row for row in ArrowStore(str(tmp_path / "wh")).rows(REPLAYS) if row["metric"] == "clicks"]
    own = [row for row in rows if row["other"] is None and row["unseen"] in (None, "reference")]
    logged, whole, filtered = sorted(own, key=lambda row: (row["point"] or "", row["main_floor"] or 0))
    assert logged["value"] == 38 and filtered["value"] < whole["value"] == pytest.approx(38, abs=1e-5)
    out = capsys.readouterr().out
    assert "the log has no losers: models only reorder what was shown" in out
    if query == "user":
        assert logged["ci_low"] is None and "too few queries for intervals" in out
    else:
        assert logged["ci_low"] < 30 and logged["ci_high"] > 46 and logged["effective_queries"] > 30


def test_a_replay_that_has_succeeded_is_not_run_again(tmp_path, capsys) -> None:
    config, warehouse = write_file(tmp_path), tmp_path / "wh"
    for flags in ((), ("--parts", "3")):
        assert run(config, warehouse, "--logical-date", "2026-01-02", *flags) == 0
    assert "nothing to do: this replay has succeeded" in capsys.readouterr().out
    first = ArrowStore(str(warehouse)).rows(REPLAYS)
    assert len({row["run_id"] for row in first}) == 2
    assert run(config, warehouse, "--logical-date", "2026-01-02", "--force") == 0
    assert len(ArrowStore(str(warehouse)).rows(REPLAYS)) == 2 * len(first)
    assert run(config, warehouse, "--logical-date", "2026-01-03") == 0, "another day"
    write_file(tmp_path, replay={**SETTINGS, "shrinkage": 1.0})
    assert run(config, warehouse, "--logical-date", "2026-01-03") == 0, "another setting"
    assert len(ArrowStore(str(warehouse)).rows(REPLAYS)) == 4 * len(first)


def test_a_generated_log_is_replayed_in_one_process(tmp_path) -> None:
    with pytest.raises(ConfigError, match="a generated log is replayed in one process"):
        run("demo", tmp_path / "wh", "--engine", "spark")


def test_a_dry_run_writes_nothing(tmp_path, capsys) -> None:
    assert run(write_file(tmp_path), tmp_path / "wh", "--dry-run") == 0
    out = capsys.readouterr().out
    assert "replay own: new at 1 operating points" in out and "engine local: " in out
    assert not (tmp_path / "wh").exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"replay": {**SETTINGS, "point": []}}, "replay.point"),
        ({"replay": {"points": []}}, "at least one operating point"),
        ({"log": {}}, "give one of 'path'"),
        ({"models": [{**MODEL, "noise": 0.5}]}, "give one of 'path'"),
        ({"models": [MODEL, MODEL]}, "is the name of models.0"),
        ({"log": {"path": "log.csv", "columns": {"auction": "a"}}}, "no column 'auction' of auctions"),
    ],
)
def test_mistakes_in_the_file(tmp_path, changes, words) -> None:
    with pytest.raises(ConfigError, match=words):
        load_replay(write_file(tmp_path, **changes))


def test_an_unknown_file_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="no replay file 'dmo'") as raised:
        load_replay("dmo")
    assert "demo" in raised.value.hint
