"""{logical_date} in paths: filled in, or refused with the nearest known name, before anything is read."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

import pytest

from recbench_spark.config import Benchmark, parse
from recbench_spark.config.placeholders import fill_placeholders, log_end_micros
from recbench_spark.errors import ConfigError

DAY = date(2026, 1, 5)


def benchmark(**dataset: Any) -> Benchmark:
    document = {
        "name": "b",
        "dataset": {"name": "d", "reader": "delta", "path": "/log", **dataset},
        "models": [
            {"name": "e", "kind": "embeddings", "users": "/u/{logical_date}", "items": "/i"},
            {"name": "l", "kind": "lists", "path": "/l/{logical_date:%Y/%m/%d}/x"},
            {"name": "s", "kind": "scores", "path": "/s/dt={logical_date:%Y%m%d}"},
            {"name": "p", "kind": "popular"},
        ],
        "evaluation": {
            "candidates_path": "/c/{logical_date}",
            "features": "/f/{logical_date:%G-W%V}",
            "slices": [{"key": "age", "of": "users", "path": "/a/{logical_date}"}],
        },
    }
    return parse(Benchmark, document, "test")


def test_every_path_is_filled_in() -> None:
    filled = fill_placeholders(
        benchmark(path="/log/{logical_date}", options={"timestampAsOf": "{logical_date}"}), DAY
    )
    assert filled.dataset.path == "/log/2026-01-05"
    assert filled.dataset.options == {"timestampAsOf": "2026-01-05"}
    embeddings, lists, scores, popular = filled.models
    assert (embeddings.users, embeddings.items) == ("/u/2026-01-05", "/i")
    assert (lists.path, scores.path) == ("/l/2026/01/05/x", "/s/dt=20260105")
    assert popular == benchmark().models[3]
    # 5 January 2026 is the Monday of the second ISO week.
    assert (filled.evaluation.candidates_path, filled.evaluation.features) == (
        "/c/2026-01-05",
        "/f/2026-W02",
    )
    assert filled.evaluation.slices[0].path == "/a/2026-01-05"


def test_filled_in_twice_is_filled_in_once() -> None:
    once = fill_placeholders(benchmark(), DAY)
    assert fill_placeholders(once, date(2026, 2, 1)) == once


@pytest.mark.parametrize("path", ["/log/{2025,2026}/*.csv", "/log/{a,b}", "/log"])
def test_globs_are_left_alone(path: str) -> None:
    assert fill_placeholders(benchmark(path=path), DAY).dataset.path == path


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/x/{logical_dat}", ["dataset.path", "{logical_dat}", "did you mean 'logical_date'"]),
        ("/x/{run_id}", ["unknown placeholder", "known: logical_date"]),
        ("/x/{logical_date:%H}", ["not a format of a day", "%Y%m%d"]),
        ("/x/{logical_date:yyyy}", ["not a format of a day"]),
        ("/x/{logical_date:%Y%}", ["not a format of a day"]),
    ],
)
def test_what_cannot_be_filled_in_is_refused(path: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        fill_placeholders(benchmark(path=path), DAY)
    for word in words:
        assert word in str(error.value)


def test_without_a_night_there_is_nothing_to_fill_in() -> None:
    with pytest.raises(ConfigError, match="logical-date"):
        fill_placeholders(benchmark(), None)


@pytest.mark.parametrize(
    ("zone", "end"),
    [
        ("UTC", datetime(2026, 1, 6, tzinfo=UTC)),
        ("+02:00", datetime(2026, 1, 5, 22, tzinfo=UTC)),
        ("-05:30", datetime(2026, 1, 6, 5, 30, tzinfo=UTC)),
        ("Europe/Rome", datetime(2026, 1, 5, 23, tzinfo=UTC)),
    ],
)
def test_the_log_ends_with_the_day_where_the_log_was_written(zone: str, end: datetime) -> None:
    filled = fill_placeholders(benchmark(until="{logical_date}", time_zone=zone), DAY)
    assert log_end_micros(filled.dataset) == int(end.timestamp()) * 10**6


def test_the_day_the_clocks_change_has_23_hours() -> None:
    """Rome, 29 March 2026: from 23:00 UTC of the 28th to 22:00 UTC of the 29th."""
    ends = [
        log_end_micros(benchmark(until=day, time_zone="Europe/Rome").dataset)
        for day in ("2026-03-28", "2026-03-29")
    ]
    assert ends[1] - ends[0] == 23 * 3600 * 10**6  # type: ignore[operator]


@pytest.mark.parametrize("until", ["yesterday", "2026-13-01", "2026-01-05T12:00"])
def test_until_is_a_day(until: str) -> None:
    with pytest.raises(ConfigError, match="not a day like"):
        fill_placeholders(benchmark(until=until), DAY)


def test_yaml_may_write_the_day_without_quotes() -> None:
    assert benchmark(until=date(2026, 1, 5)).dataset.until == "2026-01-05"
    assert log_end_micros(benchmark().dataset) is None
