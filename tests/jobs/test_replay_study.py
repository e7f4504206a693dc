"""The study and the bench of replays at a small size: they run, and print what they promise."""

from __future__ import annotations

import json

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
