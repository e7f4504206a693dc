"""The bench of one call: two ways of this package give the same values, and differing ones are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jobs.bench import call
from recbench_spark.errors import DataError


@pytest.mark.full
def test_lists_and_vectors_give_the_same_values(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "rows.jsonl"
    flags = ["--systems", "lists,vectors", "--users", "40", "--rounds", "2", "--output", str(output)]
    assert call.main(call.parser().parse_args(flags)) == 0
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    assert [(row["system"], row["round"]) for row in rows] == [
        ("lists", 0), ("lists", 1), ("vectors", 0), ("vectors", 1),
    ]  # fmt: skip
    assert all(row["cpu"] > 0 for row in rows)
    assert "| vectors |" in capsys.readouterr().out


def test_other_values_are_refused() -> None:
    calls = {"lists": {"values": {"ndcg@5": 0.5}}, "warprec": {"values": {"ndcg@5": 0.5 + 1e-7}}}
    call.check_values(calls)
    calls["warprec"]["values"]["ndcg@5"] = 0.51
    with pytest.raises(DataError, match=r"ndcg@5 of warprec is 0\.51, not 0\.5"):
        call.check_values(calls)
