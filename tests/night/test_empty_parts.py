"""A split by time whose part is empty names the unit of time, and what the times are in each unit."""

from __future__ import annotations

import pytest

from recbench_spark.config import Dataset, Split
from recbench_spark.errors import ProtocolError
from recbench_spark.night.split import name_time_unit
from recbench_spark.sources.times import describe_units
from recbench_spark.splits.manifests import refuse_empty

ENDS = (20_000 * 10**6, 20_400 * 10**6)
"""Days since 1970 that were read as seconds: 20,000 and 20,400."""


def refuse(split: Split, **settings: str) -> str:
    dataset = Dataset.model_validate({"name": "d", "reader": "csv", "path": "x", **settings})
    with pytest.raises(ProtocolError) as error, name_time_unit(dataset):
        refuse_empty({"train": 0, "valid": 0, "test": 5}, split, *ENDS)
    return error.value.hint


def test_the_times_are_named_in_each_unit() -> None:
    hint = refuse(Split(holdout="period", length="1d"), time_unit="s")
    assert "hold out less" in hint and "dataset.time_unit is s" in hint
    assert "by s 1970-01-01 to 1970-01-01, by ms 1970-01-01 to 1970-01-01" in hint


def test_units_by_hand() -> None:
    """1,767,225,600 seconds are 2026-01-01; the same number of milliseconds is 20.45 days after 1970."""
    seconds = 1_767_225_600 * 10**6
    sentence = describe_units((seconds, seconds + 86_400 * 10**6), "s")
    assert "by s 2026-01-01 to 2026-01-02, by ms 1970-01-21 to 1970-01-21, by us 1970-01-01" in sentence
    sentence = describe_units((1_767_225_600 * 1000, 1_767_225_600 * 1000), "ms")
    assert "by s 2026-01-01 to 2026-01-01" in sentence
    assert "by s beyond the year 9999" in describe_units((seconds, seconds), "us")


def test_where_no_unit_counts_none_is_named() -> None:
    period = Split(holdout="period", length="1d")
    assert "time_unit" not in refuse(period, time_unit="timestamp")
    assert "time_unit" not in refuse(Split(order="random", holdout="ratio"), time_unit="s")
