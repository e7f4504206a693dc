"""Walls of small work: every case is a command that its job understands; slow medians are bold."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from jobs.bench import small
from jobs.bench.harness import Seconds
from recbench_spark.errors import DataError


def test_every_case_is_understood_by_its_job(tmp_path: Path) -> None:
    cases = small.list_cases(tmp_path)
    assert len({case.name for case in cases}) == len(cases) > 20
    for case in cases:
        job, *flags = case.argv
        if flags != ["--help"]:
            import_module(f"recbench_spark.commands.{job}").parser().parse_args(flags)


@pytest.mark.full
def test_a_run_is_timed_and_one_that_fails_is_told(tmp_path: Path) -> None:
    small.make_inputs(tmp_path)
    (lists,) = [case for case in small.list_cases(tmp_path) if case.name == "evaluate dry run"]
    result = small.time_case(lists)
    assert result.wall > 0 and result.cpu > 0
    (tmp_path / "lists.parquet").unlink()
    with pytest.raises(DataError, match="ended with 1"):
        small.time_case(lists)
    runs = {"a": [Seconds(1.0, 0.5), Seconds(3.0, 0.5), Seconds(2.0, 0.4)]}
    assert small.format_table([small.Case("a", 2, [])], runs)[-1] == "| a | 2.00 (1.00, 3.00) | 2 | 0.50 |"
    assert "**2.00**" in small.format_table([small.Case("a", 1.5, [])], runs)[-1]
