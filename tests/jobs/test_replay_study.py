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
    flags = ["--auctions", "500", "--queries", "50", "--replicates", "5"]
    assert replay.main(replay.parser().parse_args(flags)) == 0
    steps = json.loads(capsys.readouterr().out)
    assert steps["auctions"] == 500
    names = ("check", "layout", "curve", "sort", "first point", "further point", "point with intervals")
    assert all(len(steps[name]) == 2 and min(steps[name]) >= 0 for name in names)
