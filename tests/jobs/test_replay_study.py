"""The study and the bench of replays at a small size: they run, and print what they promise."""

from __future__ import annotations

import json

import pyarrow.parquet as pq
import pytest

from jobs.bench import replay
from jobs.studies import auctions

FLAGS = ["--worlds", "2", "--auctions", "2000", "--queries", "80", "--replicates", "20"]


@pytest.mark.parametrize("more", [[], ["--unseen"]])
def test_a_study_prints_a_line_for_each_curve(capsys, more: list[str]) -> None:
    assert auctions.main(auctions.parser().parse_args([*FLAGS, *more])) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["conditional", "plain"]
    assert all("2 worlds, coverage" in line for line in lines)


def test_a_kept_world_has_the_revision_of_its_numbers_in_its_name(monkeypatch) -> None:
    """Numbers of older code were taken for those of newer code."""
    args = auctions.parser().parse_args(FLAGS)
    world = auctions.describe_world(args, 0)
    before = auctions.name_world(world, args)
    assert before == auctions.name_world(world, args)
    monkeypatch.setattr(auctions, "REVISION", auctions.REVISION + 1)
    assert before != auctions.name_world(world, args)


def test_tables_of_a_bench_stay_for_the_same_size_alone(tmp_path) -> None:
    """Another size found the old tables in its folder and measured them."""
    first = replay.make_tables(tmp_path, 200, 2)
    written = {file: file.stat().st_mtime_ns for file in first.rglob("*.parquet")}
    assert len(written) == 6 and replay.make_tables(tmp_path, 200, 2) == first
    assert {file: file.stat().st_mtime_ns for file in first.rglob("*.parquet")} == written
    other = replay.make_tables(tmp_path, 300, 1)
    rows = [pq.read_table(tables / "log") for tables in (first, other)]
    assert [len(set(table["auction_id"].to_pylist())) for table in rows] == [400, 300]


def test_a_bench_measures_every_step(capsys) -> None:
    flags = ["--auctions", "500", "--pieces", "2", "--replicates", "5"]
    assert replay.main(replay.parser().parse_args(flags)) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    spent = {row["system"]: row.get("cpu_seconds") for row in rows}
    assert rows[0]["auctions"] == 1000 and rows[-1]["peak_gib"] > 0
    names = ("check", "counts", "curve", "first point", "two points", "point with intervals", "kernel")
    assert all(spent[name] >= 0 for name in names)
    assert spent["kernel"] == pytest.approx(
        spent["counts"] + spent["curve"] + spent["first point"], abs=0.01
    )
