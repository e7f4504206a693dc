"""`recbench replay` with Spark and in one process: the same rows and the same sentences."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import yaml
from deltalake import write_deltalake

from recbench_spark.auctions.settings import AuctionWorld, load_replay
from recbench_spark.auctions.worlds import make_auctions
from recbench_spark.commands import replay
from recbench_spark.commands.replay import main, parser
from recbench_spark.errors import DataError, RecbenchError
from recbench_spark.schemas import REJECTS, REPLAYS
from recbench_spark.storage.arrow_store import ArrowStore

WORLD = make_auctions(AuctionWorld(auctions=120, queries=200, zipf=0.8, participants=4, seed=9))
POINTS = [{"main_slots": 2, "side_slots": 1}, {"main_slots": 1, "exponent": 0.5}]
LOGGED_POINT = {"main_floor": 0.03, "main_slots": 4, "reserve": 0.005, "side_slots": 1}


def write_files(
    folder: Path,
    log: pa.Table,
    model: pa.Table,
    form: str = "csv",
    resample: str = "query",
    **changes: Any,
) -> str:
    """Write a log and a model in a form, and a replay file; return its path."""
    for name, table in (("log", log), ("model", model)):
        path = folder / f"{name}.{form}"
        if form == "csv":
            pyarrow.csv.write_csv(table, path)
        elif form == "parquet":
            pq.write_table(table, path, row_group_size=37)
        else:
            write_deltalake(str(path), table.slice(0, 20))
            write_deltalake(str(path), table.slice(20), mode="append")
    document = {
        "name": "own",
        "log": {"path": str(folder / f"log.{form}"), **changes},
        "replay": {
            "points": POINTS,
            "logged": LOGGED_POINT,
            "bootstrap": {"replicates": 20},
            "resample": resample,
        },
        "models": [
            {
                "name": "new",
                "path": str(folder / f"model.{form}"),
                "trained_until": "2026-01-01T00:00:05+00:00",
            }
        ],
    }
    (folder / "replay.yaml").write_text(yaml.safe_dump(document))
    return str(folder / "replay.yaml")


def make_model(log: pa.Table = WORLD.log) -> pa.Table:
    table = log.select(["auction_id", "ad_id"])
    return table.append_column("probability", pa.array(WORLD.predict(0.5, 1)[: len(log)]))


def run(config: str, warehouse: Path, *flags: str) -> list[dict[str, Any]]:
    """Replay; return the rows without their run ids."""
    assert main(parser().parse_args(["--config", config, "--warehouse", str(warehouse), *flags])) == 0
    rows = ArrowStore(str(warehouse)).rows(REPLAYS)
    newest = max(row["run_id"].split("-")[0] for row in rows)
    assert newest
    plain = [{name: value for name, value in row.items() if name != "run_id"} for row in rows]
    return sorted(plain, key=repr)


@pytest.mark.parametrize("form", ["csv", "parquet", "delta"])
def test_both_engines_give_the_same_rows(spark, tmp_path, form: str) -> None:
    config = write_files(tmp_path, WORLD.log, make_model(), form)
    expected = run(config, tmp_path / "local", "--engine", "local")
    assert len(expected) > 60 and sum(row["ci_low"] is not None for row in expected) > 30
    for parts in ("1", "3", "17") if form == "csv" else ("3",):
        assert run(config, tmp_path / parts, "--engine", "spark", "--parts", parts) == expected


def add_users(users: list[str | None]) -> pa.Table:
    """Give each auction one of some users, by its number."""
    auctions = WORLD.log["auction_id"].to_pylist()
    return WORLD.log.append_column("user_id", pa.array([users[7 * one % len(users)] for one in auctions]))


def test_both_engines_draw_the_same_users(spark, tmp_path) -> None:
    """A user's auctions are in many parts, and so are those of a query of 17 parts that is cut."""
    log = add_users([f"u{number}" for number in range(41)])
    config = write_files(tmp_path, log, make_model(), "parquet", resample="user")
    expected = run(config, tmp_path / "local", "--engine", "local")
    assert sum(row["ci_low"] is not None for row in expected) > 30
    assert {row["definition"].rpartition(";")[2] for row in expected} == {"resample=user"}
    for parts in ("3", "17"):
        assert run(config, tmp_path / parts, "--engine", "spark", "--parts", parts) == expected
        (layout,) = (tmp_path / parts / "auction_logs").glob("*/layout.json")
        assert bool(json.loads(layout.read_text())["cuts"]) == (parts == "17")
    missing = write_files(tmp_path, add_users(["a", None, "b"]), make_model(), "parquet", resample="user")
    sentence = fail(missing, tmp_path / "none", "local")
    assert "rows of the log have no user_id" in sentence[1]
    assert fail(missing, tmp_path / "none", "spark") == sentence
    without = write_files(tmp_path, WORLD.log, make_model(), "parquet", resample="user")
    assert "no column user_id" in (sentence := fail(without, tmp_path / "none", "local"))[1]
    assert fail(without, tmp_path / "none", "spark") == sentence


def test_both_engines_count_ids_that_are_none_over_all_batches(spark, tmp_path, monkeypatch) -> None:
    """Spark's sentence counted the rows of one batch, and named the column that the first bad one had."""
    monkeypatch.setattr("recbench_spark.sources.formats.MOST_ROWS", 50)
    for number, wrong in enumerate((("query_id",), ("ad_id", "auction_id"), ("ad_id",))):
        log, folder = WORLD.log, tmp_path / str(number)
        folder.mkdir()
        for name, rows in zip(wrong, ((5, 200, 201), (100, 400)), strict=False):
            ids = [float(one) for one in log[name].to_pylist()]
            for row in rows:
                ids[row] = row + 0.5
            log = log.set_column(log.column_names.index(name), name, pa.array(ids))
        config = write_files(folder, log, make_model(), "parquet")
        expected = fail(config, tmp_path / "local", "local")
        assert f"{wrong[-1]}: {3 if len(wrong) == 1 else 2} rows (double)" in expected[1]
        assert fail(config, tmp_path / "spark", "spark") == expected
    auctions = make_model()["auction_id"].to_pylist()
    floats = pa.array([one + (0.5 if one % 60 == 0 else 0.0) for one in auctions])
    model = make_model().set_column(0, "auction_id", floats)
    config = write_files(tmp_path, WORLD.log, model, "parquet")
    expected = fail(config, tmp_path / "local", "local")
    assert "auction_id: 8 rows (double)" in expected[1]
    assert fail(config, tmp_path / "spark", "spark") == expected


def test_a_second_model_reads_the_layout_alone(spark, tmp_path, capsys) -> None:
    config = write_files(tmp_path, WORLD.log, make_model())
    run(config, tmp_path / "wh", "--engine", "spark", "--parts", "3")
    assert "are laid out in" in capsys.readouterr().err
    folders = sorted(path.name for path in (tmp_path / "wh" / "auction_logs").iterdir())
    assert len(folders) == 2 and not list((tmp_path / "wh").glob("_scratch/*/*"))
    other = make_model().set_column(2, "probability", pc.divide(make_model()["probability"], 2))
    pyarrow.csv.write_csv(other, tmp_path / "model.csv")
    assert main(parser().parse_args(["--config", config, "--warehouse", str(tmp_path / "wh")])) == 0
    assert (
        main(
            parser().parse_args(
                [
                    "--config",
                    config,
                    "--warehouse",
                    str(tmp_path / "wh"),
                    "--engine",
                    "spark",
                    "--parts",
                    "3",
                ]
            )
        )
        == 0
    )
    out = capsys.readouterr().out
    assert "nothing to do" in out, "the engine is no part of a result"
    flags = ["--engine", "spark", "--parts", "3", "--force"]
    run(config, tmp_path / "wh", *flags)
    assert "are laid out in" not in capsys.readouterr().err
    assert sorted(path.name for path in (tmp_path / "wh" / "auction_logs").iterdir()) == folders


def test_sums_of_the_log_are_kept_for_the_next_model(spark, tmp_path, monkeypatch) -> None:
    """A second model takes one pass; other settings of the bootstrap take sums of their own."""
    config, flags = write_files(tmp_path, WORLD.log, make_model()), ("--engine", "spark", "--parts", "3")
    run(config, tmp_path / "wh", *flags)
    (kept,) = (tmp_path / "wh" / "auction_logs").glob("*/sums-*.npz")
    made = kept.stat().st_mtime_ns
    other = make_model().set_column(2, "probability", pc.divide(make_model()["probability"], 2))
    pyarrow.csv.write_csv(other, tmp_path / "model.csv")
    passes = count_passes(monkeypatch)
    store = ArrowStore(str(tmp_path / "wh"))
    before = {row["run_id"] for row in store.rows(REPLAYS)}
    run(config, tmp_path / "wh", *flags, "--force")
    second = [row for row in store.rows(REPLAYS) if row["run_id"] not in before]
    expected = run(config, tmp_path / "local", "--engine", "local")
    assert sorted(({**row, "run_id": ""} for row in second), key=repr) == sorted(
        ({**row, "run_id": ""} for row in expected), key=repr
    )
    assert set(passes) == {"ModelPass"} and kept.stat().st_mtime_ns == made
    text = Path(config).read_text()
    Path(config).write_text(text.replace("replicates: 20", "replicates: 21"))
    run(config, tmp_path / "wh", *flags)
    assert len(list((tmp_path / "wh" / "auction_logs").glob("*/sums-*.npz"))) == 2


def count_passes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that gets the name of each pass over the parts with Spark."""
    from recbench_spark.auctions.part_tasks import LaidOutParts

    add, passes = LaidOutParts.add, []

    def count(self: LaidOutParts, work: Any, *others: Any) -> Any:
        passes.append(getattr(work, "__name__", type(work).__name__))
        return add(self, work, *others)

    monkeypatch.setattr(LaidOutParts, "add", count)
    return passes


MISTAKES = {
    "a bid": {"bid": (7, -1.0)},
    "an ad twice": {"ad_id": (1, WORLD.log["ad_id"][0].as_py())},
    "two queries": {"query_id": (3, 77)},
    "several": {"bid": (7, -1.0), "clicked": (30, 5), "query_id": (3, 77)},
}


def spoil(mistake: dict[str, tuple[int, Any]]) -> pa.Table:
    log = WORLD.log
    for name, (row, value) in mistake.items():
        values = log[name].to_pylist()
        values[row] = value
        log = log.set_column(log.column_names.index(name), name, pa.array(values, log[name].type))
    return log


def fail(config: str, warehouse: Path, engine: str) -> tuple[str, str, str]:
    with pytest.raises(RecbenchError) as raised:
        run(config, warehouse, "--engine", engine, "--parts", "3")
    return type(raised.value).__name__, raised.value.message, raised.value.hint


@pytest.mark.parametrize("mistake", MISTAKES)
def test_both_engines_refuse_and_reject_the_same_rows(spark, tmp_path, mistake: str) -> None:
    config = write_files(tmp_path, spoil(MISTAKES[mistake]), make_model())
    expected = fail(config, tmp_path / "local", "local")
    assert expected[0] == "DataError" and fail(config, tmp_path / "spark", "spark") == expected
    assert not list((tmp_path / "spark" / "auction_logs").glob(".*/*")), "no file of a refused log stays"
    config = write_files(tmp_path, spoil(MISTAKES[mistake]), make_model(), bad_rows="reject")
    each = {
        engine: (
            run(config, tmp_path / engine, "--engine", engine, "--parts", "3"),
            sorted(map(repr, ArrowStore(str(tmp_path / engine)).rows(REJECTS))),
        )
        for engine in ("local", "spark")
    }
    assert each["local"] == each["spark"] and each["local"][1]


def test_both_engines_refuse_the_same_tables(spark, tmp_path) -> None:
    model = make_model()
    last = model["probability"].to_pylist()
    tables = {
        "missing": model.slice(0, 400),
        "twice": pa.concat_tables([model, model.slice(60, 2)]),
        "bad": model.set_column(2, "probability", pa.array([*last[:-9], *[2.0] * 9])),
        "column": model.drop_columns(["ad_id"]),
    }
    for name, table in tables.items():
        folder = tmp_path / name
        folder.mkdir()
        config = write_files(folder, WORLD.log, table)
        assert fail(config, tmp_path / "spark", "spark") == fail(config, tmp_path / "local", "local"), name
    config = write_files(tmp_path, WORLD.log.drop_columns(["event_time"]), model)
    assert fail(config, tmp_path / "spark", "spark") == fail(config, tmp_path / "local", "local")
    config = write_files(tmp_path, WORLD.log, model)
    with (tmp_path / "log.csv").open("a") as log:
        log.write("1,2\n3,4\n")
    expected = fail(config, tmp_path / "local", "local")
    assert "2 lines have not 9 fields" in expected[1]
    assert fail(config, tmp_path / "spark", "spark") == expected


def test_a_run_that_was_killed_leaves_no_layout_and_runs_again(spark, tmp_path, monkeypatch) -> None:
    config = write_files(tmp_path, WORLD.log, make_model())
    from recbench_spark.auctions import layout_tasks

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(layout_tasks.LogLayout, "write", die)
    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path / "spark", "--engine", "spark", "--parts", "3")
    monkeypatch.undo()
    folder = tmp_path / "spark" / "auction_logs"
    assert not [path for path in folder.iterdir() if not path.name.startswith(".")]
    rows = run(config, tmp_path / "spark", "--engine", "spark", "--parts", "3")
    assert rows == run(config, tmp_path / "local", "--engine", "local")


def test_a_log_larger_than_one_process_holds_is_refused_by_rows(tmp_path, monkeypatch) -> None:
    """A plain CSV of many bytes was taken for as many rows. In a folder such a log is laid out."""
    from recbench_spark.sources import arrow_files

    config = write_files(tmp_path, WORLD.log, make_model())
    monkeypatch.setattr(arrow_files, "COUNTED_BYTES", 1000)
    monkeypatch.setattr(replay, "MOST_ROWS", 1000)
    assert (tmp_path / "log.csv").stat().st_size > 1000
    assert replay.choose_engine("local", load_replay(config), "s3://bucket/w").engine == "local"
    monkeypatch.setattr(replay, "MOST_ROWS", 100)
    with pytest.raises(DataError, match="rows, one process replays up to 100"):
        replay.choose_engine("local", load_replay(config), "s3://bucket/w")
    assert run(config, tmp_path / "wh", "--engine", "local")


@pytest.mark.parametrize("form", ["csv", "parquet", "delta"])
def test_a_log_that_is_laid_out_by_processes_gives_the_same_rows(tmp_path, monkeypatch, form: str) -> None:
    log = add_users([f"u{number}" for number in range(41)])
    config = write_files(tmp_path, log, make_model(), form, resample="user")
    expected = run(config, tmp_path / "memory", "--engine", "local")
    assert not (tmp_path / "memory" / "auction_logs").exists()
    monkeypatch.setattr(replay, "FEW_ROWS", 100)
    for parts, workers in (("1", 1), ("17", 1)) if form == "csv" else (("3", 2),):
        monkeypatch.setattr(replay, "choose_workers", lambda _, workers=workers: workers)
        assert run(config, tmp_path / parts, "--engine", "local", "--parts", parts) == expected
        (layout,) = (tmp_path / parts / "auction_logs").glob("*/layout.json")
        assert bool(json.loads(layout.read_text())["cuts"]) == (parts == "17")
        assert not list((tmp_path / parts).glob("_scratch/*/*"))


@pytest.mark.parametrize("mistake", ["an ad twice", "several"])
def test_a_log_that_is_laid_out_by_processes_rejects_the_same_rows(
    tmp_path, monkeypatch, mistake: str
) -> None:
    config = write_files(tmp_path, spoil(MISTAKES[mistake]), make_model())
    expected = fail(config, tmp_path / "memory", "local")
    config = write_files(tmp_path, spoil(MISTAKES[mistake]), make_model(), bad_rows="reject")
    rows = run(config, tmp_path / "memory", "--engine", "local")
    monkeypatch.setattr(replay, "FEW_ROWS", 100)
    assert run(config, tmp_path / "files", "--engine", "local", "--parts", "3") == rows
    rejects = [sorted(map(repr, ArrowStore(str(tmp_path / n)).rows(REJECTS))) for n in ("memory", "files")]
    assert rejects[0] == rejects[1] and rejects[0]
    config = write_files(tmp_path, spoil(MISTAKES[mistake]), make_model())
    assert fail(config, tmp_path / "other", "local") == expected


def test_an_id_that_is_no_number_is_refused_behind_a_bad_row(spark, tmp_path) -> None:
    """The bad row ended the look at the piece, and the good rows behind it were lost without a word."""
    log = spoil({"clicked": (3, 5)})
    ids = [float(each) for each in log["auction_id"].to_pylist()]
    ids[200] = 2.5
    log = log.set_column(log.column_names.index("auction_id"), "auction_id", pa.array(ids))
    config = write_files(tmp_path, log, make_model(), "parquet", bad_rows="reject")
    expected = fail(config, tmp_path / "local", "local")
    assert "auction_id" in expected[1] and fail(config, tmp_path / "spark", "spark") == expected


def test_both_engines_take_seconds_as_floats_and_reject_a_missing_one(spark, tmp_path) -> None:
    """A program that knows no missing whole numbers writes such a column as floats."""
    seconds = pc.divide(WORLD.log["event_time"].cast(pa.timestamp("us")).cast(pa.int64()), 1_000_000)
    floats = [float(each) for each in seconds.to_pylist()]
    log = WORLD.log.set_column(
        WORLD.log.column_names.index("event_time"), "event_time", pa.array([*floats[:-1], None])
    )
    config = write_files(tmp_path, log, make_model(), "parquet", bad_rows="reject", time_unit="s")
    expected = run(config, tmp_path / "local", "--engine", "local")
    assert run(config, tmp_path / "spark", "--engine", "spark", "--parts", "3") == expected
    rejects = [ArrowStore(str(tmp_path / engine)).rows(REJECTS) for engine in ("local", "spark")]
    assert len(rejects[0]) == len(rejects[1]) > 0
