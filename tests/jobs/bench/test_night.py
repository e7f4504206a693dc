"""jobs/bench/night.py: a tiny night without Spark has the bits of its bare arithmetic."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jobs.bench import night as bench_night


@pytest.mark.full
def test_a_tiny_night_has_the_bits_of_its_arithmetic(tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    world = ["--models", "2", "--users", "300", "--items", "100", "--folder", str(tmp_path)]
    flags = [*world, "--systems", "bare,local", "--rounds", "1", "--output", str(output)]
    assert bench_night.main(bench_night.parser().parse_args(flags)) == 0
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    assert {row["system"] for row in rows} == {"bare", "local"}
