"""jobs/bench/lists.py: the generated rows, a tiny run in a process of its own, and mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jobs.bench import lists as bench_lists
from recbench_spark.errors import ConfigError, DataError


def test_generated_rows_hold_no_pair_twice_and_no_tie() -> None:
    truth, lists = bench_lists.generate(30)
    shuffled = bench_lists.generate(30, shuffled=True)
    assert (lists.groupby("user_id").size() == 100).all() and truth.groupby("user_id").size().between(
        1, 19
    ).all()
    assert truth.user_id.nunique() == 30
    for rows in (truth, lists):
        assert not rows.duplicated(["user_id", "item_id"]).any()
    assert not lists.duplicated(["user_id", "score"]).any() and not shuffled[1].equals(lists)
    hits = len(truth.merge(lists, on=["user_id", "item_id"]))
    assert 0.1 < hits / len(truth) < 0.6
    for preset in ("replay", "rectools"):
        of_rows, of_shuffled = (
            bench_lists.compute_expected(*r, preset) for r in ((truth, lists), shuffled)
        )
        assert of_rows == of_shuffled and len(of_rows) == 36


@pytest.mark.full
def test_a_tiny_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "out.jsonl"
    flags = ["--users", "30", "--rounds", "1", "--systems", "ours", "--output", str(output)]
    assert bench_lists.main(bench_lists.parser().parse_args(flags)) == 0
    assert "1.0 times the seconds of ours" in capsys.readouterr().out
    (row,) = map(json.loads, output.read_text().splitlines())
    assert row["users_per_second"] == 30 / row["seconds"] > 0
    wanted = {"benchmark": "lists", "system": "ours", "users": 30, "items": 20_011, "dims": None, "k": 100}
    assert {**wanted, "round": 0}.items() <= row.items()


def test_ratios_are_of_the_same_round() -> None:
    spent = [("ours", 1.0, 0), ("peer", 3.0, 0), ("ours", 2.0, 1), ("peer", 8.0, 1)]
    lines = bench_lists.format_table(
        [bench_lists.make_record(name, 100, s, turn) for name, s, turn in spent]
    )
    assert "67 users/s   1.0, 1.0 times" in lines[0] and "18 users/s   3.0, 4.0 times" in lines[1]


def test_mistakes(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown system 'raplay'"):
        bench_lists.find_interpreter("raplay", tmp_path)
    with pytest.raises(ConfigError, match="no environment") as error:
        bench_lists.find_interpreter("replay-polars", tmp_path)
    assert error.value.hint == "tools/library_envs.sh replay-spark"
    with pytest.raises(DataError, match="hit@1"):
        bench_lists.largest_difference({"hit@1": 1.0}, {"hit@1": 1.0, "hit@5": 1.0})
    assert bench_lists.largest_difference({"hit@1": 0.75}, {"hit@1": 0.5}) == 0.25
