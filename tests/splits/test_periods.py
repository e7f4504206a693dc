"""Periods by the calendar of a zone: by hand where clocks change, and against pandas. No JVM."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pandas as pd
import pytest

from recbench_spark.config import Benchmark, Split, parse
from recbench_spark.config.placeholders import fill_placeholders
from recbench_spark.errors import ConfigError, ProtocolError
from recbench_spark.night.run_keys import hash_split
from recbench_spark.splits.audit import PartSummary
from recbench_spark.splits.windows import find_period, list_age_facts, list_time_facts

ROME, NEW_YORK = "Europe/Rome", "America/New_York"
HOUR = 3_600_000_000


def micros(text: str, zone: str = "UTC") -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()) * 1_000_000


def period(newest: str, zone: str = "UTC", **split: Any) -> tuple[list[str], int]:
    """The local begins of validation, test and the time after, and the hours of the test."""
    settings = Split(holdout="period", **split)
    instants = find_period(settings, micros(newest, zone), ZoneInfo(zone))
    local = [datetime.fromtimestamp(one / 1e6, ZoneInfo(zone)) for one in instants]
    return [f"{one:%Y-%m-%dT%H:%M}" for one in local], (instants[2] - instants[1]) // HOUR


@pytest.mark.parametrize(
    ("newest", "zone", "length", "begin", "end", "hours"),
    [
        ("2026-03-12T23:55:39", "UTC", "1d", "2026-03-12", "2026-03-13", 24),
        ("2026-03-12T00:00:00", "UTC", "1d", "2026-03-12", "2026-03-13", 24),
        # The clocks of Rome: an hour less on 29 March, one more on 25 October 2026.
        ("2026-03-29T23:10:00", ROME, "1d", "2026-03-29", "2026-03-30", 23),
        ("2026-10-25T12:00:00", ROME, "1d", "2026-10-25", "2026-10-26", 25),
        ("2026-03-31T09:00:00", ROME, "7d", "2026-03-25", "2026-04-01", 7 * 24 - 1),
        # New York: 8 March and 1 November 2026.
        ("2026-03-08T01:30:00", NEW_YORK, "1d", "2026-03-08", "2026-03-09", 23),
        ("2026-11-01T23:59:59", NEW_YORK, "2d", "2026-10-31", "2026-11-02", 49),
        # Weeks begin on Monday: 2026 has 53, of which the last one ends in 2027.
        ("2027-01-01T12:00:00", "UTC", "1w", "2026-12-28", "2027-01-04", 168),
        ("2026-12-28T00:00:00", "UTC", "1w", "2026-12-28", "2027-01-04", 168),
        ("2027-01-03T23:59:59", "UTC", "2w", "2026-12-21", "2027-01-04", 336),
        ("2026-10-25T23:00:00", ROME, "1w", "2026-10-19", "2026-10-26", 169),
        ("2026-02-10T12:00:00", "UTC", "1mo", "2026-02-01", "2026-03-01", 28 * 24),
        ("2028-02-29T12:00:00", "UTC", "1mo", "2028-02-01", "2028-03-01", 29 * 24),
        ("2026-03-01T00:00:00", ROME, "1mo", "2026-03-01", "2026-04-01", 31 * 24 - 1),
        ("2026-02-10T12:00:00", "UTC", "3mo", "2025-12-01", "2026-03-01", 90 * 24),
        # Cairo has no midnight on 24 April 2026: the day begins at one.
        ("2026-04-24T12:00:00", "Africa/Cairo", "1d", "2026-04-24T01:00", "2026-04-25", 23),
        # Havana has two of them on 1 November 2026: the day begins with the first one.
        ("2026-11-01T12:00:00", "America/Havana", "1d", "2026-11-01", "2026-11-02", 25),
    ],
)
def test_the_last_period_of_the_calendar(
    newest: str, zone: str, length: str, begin: str, end: str, hours: int
) -> None:
    (_, start, after), lasts = period(newest, zone, length=length)
    whole = [text if "T" in text else f"{text}T00:00" for text in (begin, end)]
    assert ([start, after], lasts) == (whole, hours)


def test_windows_and_validation_stay_at_local_midnight() -> None:
    begins, hours = period("2026-03-31T12:00:00", ROME, length="1d", window=2, valid=True)
    assert (begins, hours) == (["2026-03-28T00:00", "2026-03-29T00:00", "2026-03-30T00:00"], 23)
    begins, _ = period("2026-03-31T12:00:00", ROME, length="1w", step="1d", window=1, valid=True)
    assert begins == ["2026-03-22T00:00", "2026-03-29T00:00", "2026-04-05T00:00"]
    begins, _ = period("2026-05-15T12:00:00", length="1mo", window=2, valid=True)
    assert begins == ["2026-02-01T00:00", "2026-03-01T00:00", "2026-04-01T00:00"]
    # A month from 31 January ends with February, and two months with 31 March.
    begins, _ = period("2026-01-01T00:00:00", start="2026-01-31", length="1mo", window=1)
    assert begins[1:] == ["2026-02-28T00:00", "2026-03-31T00:00"]
    # The day after one without a midnight begins at midnight again.
    begins, _ = period("2026-01-01T00:00:00", "Africa/Cairo", start="2026-04-24", length="1d", window=1)
    assert begins[1:] == ["2026-04-25T00:00", "2026-04-26T00:00"]


def test_from_the_last_event_back_as_before() -> None:
    split = Split(holdout="period", length="1d", anchor="last_event", window=1)
    newest = micros("2026-03-30T12:00:00", ROME)
    day = 24 * HOUR
    assert find_period(split, newest, ZoneInfo(ROME)) == (
        newest + 1 - 2 * day, newest + 1 - 2 * day, newest + 1 - day,
    )  # fmt: skip
    assert not Split(holdout="period", length="12h").by_calendar
    assert find_period(Split(holdout="period", length="12h"), newest)[1] == newest + 1 - 12 * HOUR


def test_a_period_outside_the_calendar_is_an_error() -> None:
    with pytest.raises(ProtocolError, match="out of the calendar"):
        find_period(Split(holdout="period", length="9000d", window=300), micros("2026-01-01T00:00:00"))


@pytest.mark.parametrize("zone", [ROME, NEW_YORK, "Australia/Lord_Howe", "Asia/Kathmandu", "UTC"])
def test_periods_are_those_of_pandas(zone: str) -> None:
    draw = random.Random(zone)
    for _ in range(200):
        newest = draw.randrange(micros("2015-01-01T00:00:00"), micros("2035-01-01T00:00:00"))
        number, unit, window = draw.randint(1, 5), draw.choice(["d", "w", "mo"]), draw.randint(0, 3)
        split = Split(holdout="period", length=f"{number}{unit}", window=window, valid=True)
        local = pd.Timestamp(newest, unit="us", tz="UTC").tz_convert(zone).tz_localize(None)
        last = local.to_period({"d": "D", "w": "W-SUN", "mo": "M"}[unit])
        ends = [last + 1 - number * (window + n) for n in (2, 1, 0)]
        walls = [end.start_time.tz_localize(zone).tz_convert("UTC") for end in ends]
        expected = tuple(int(wall.timestamp()) * 1_000_000 for wall in walls)
        assert find_period(split, newest, ZoneInfo(zone)) == expected, (newest, split)


def benchmark(zone: str, start: Any = None, **split: Any) -> Benchmark:
    document = {
        "name": "b",
        "dataset": {"name": "d", "reader": "csv", "path": "/log", "time_zone": zone},
        "split": {"holdout": "period", "length": "1d", "start": start, **split},
        "models": [{"name": "p", "kind": "popular"}],
    }
    return parse(Benchmark, document, "test")


@pytest.mark.parametrize(
    ("start", "zone", "begin"),
    [
        ("2026-01-02", "UTC", "2026-01-02T00:00"),
        ("2026-01-02", ROME, "2026-01-01T23:00"),
        (date(2026, 1, 2), ROME, "2026-01-01T23:00"),
        ("2026-07-02", "America/New_York", "2026-07-02T04:00"),
        ("2026-01-02", "+05:30", "2026-01-01T18:30"),
        ("2026-01-02T12:00:00", ROME, "2026-01-02T11:00"),
        (datetime(2026, 1, 2, 12), ROME, "2026-01-02T11:00"),
        ("2026-01-02T12:00:00Z", ROME, "2026-01-02T12:00"),
        ("2026-01-02T12:00:00+05:00", ROME, "2026-01-02T07:00"),
        ("{logical_date}", ROME, "2026-03-28T23:00"),
        ("{logical_date}T06:00", ROME, "2026-03-29T04:00"),
        ("{logical_date:%Y-%m}-01", ROME, "2026-02-28T23:00"),
    ],
)
def test_a_start_is_a_time_of_the_zone(start: Any, zone: str, begin: str) -> None:
    filled = fill_placeholders(benchmark(zone, start), date(2026, 3, 29))
    assert filled.split.start == datetime.fromisoformat(begin).replace(tzinfo=UTC)
    assert fill_placeholders(filled, date(2030, 1, 1)) == filled


@pytest.mark.parametrize("start", ["{logical_date}X", "{logical_dat}", "{logical_date} {a,b}"])
def test_a_start_that_becomes_no_time_is_refused(start: str) -> None:
    with pytest.raises(ConfigError, match=r"split\.start"):
        fill_placeholders(benchmark("UTC", start), date(2026, 3, 29))


def identify(path: str, **_options: Any) -> str:
    return path


def split_hash(zone: str = "UTC", start: Any = None, **split: Any) -> str:
    filled = fill_placeholders(benchmark(zone, start, **split), date(2026, 3, 29))
    return hash_split(identify, filled)[0]


def test_the_hash_moves_where_the_instants_do() -> None:
    assert split_hash(anchor="calendar") == split_hash() != split_hash(anchor="last_event")
    same = {split_hash(start=start) for start in ("2026-03-29", "2026-03-29T00:00Z", "{logical_date}")}
    assert len(same) == 1
    assert split_hash(ROME, "2026-03-29") == split_hash(ROME, "2026-03-28T23:00Z")
    # Days of UTC from a given start have one length under either rule: their hash is the old one.
    fixed = benchmark("UTC", "2026-03-29").split.model_dump()
    assert "anchor" not in fixed
    assert split_hash(start="2026-03-29") == split_hash(start="2026-03-29", anchor="calendar")


def summary(first: str, last: str) -> PartSummary:
    return PartSummary(1, "", micros(first), micros(last))


def test_the_manifest_says_how_much_of_the_period_the_log_covers() -> None:
    """The day of 23 hours begins at 23:00 UTC; the newest row comes 11.5 hours later, half of it."""
    parts = {
        "train": summary("2026-03-01T00:00:00", "2026-03-28T10:00:00"),
        "test": summary("2026-03-28T23:30:00", "2026-03-29T10:30:00"),
    }
    split = Split(holdout="period", length="1d")
    facts = {fact.fact: fact for fact in list_time_facts(parts, split, ZoneInfo(ROME))}
    assert facts["newest_event"].value == micros("2026-03-29T10:30:00")
    assert facts["newest_event"].detail == "2026-03-29 10:30:00 UTC, 2026-03-29 12:30:00 Europe/Rome"
    assert facts["oldest_event"].detail == "2026-03-01 00:00:00 UTC, 2026-03-01 01:00:00 Europe/Rome"
    assert facts["period_begin"].detail == "2026-03-28 23:00:00 UTC, 2026-03-29 00:00:00 Europe/Rome"
    assert facts["period_end"].detail == "2026-03-29 22:00:00 UTC, 2026-03-30 00:00:00 Europe/Rome"
    assert facts["period_covered"].value == (11.5 * HOUR + 1) / (23 * HOUR)


def test_ages_count_to_the_end_of_the_local_day() -> None:
    parts = {"train": summary("2026-03-19T22:00:00", "2026-03-28T22:00:00")}
    rows = [fact._asdict() for fact in list_time_facts(parts, Split(), ZoneInfo(ROME))]
    ages = {fact.fact: fact.value for fact in list_age_facts(rows, date(2026, 3, 29), ZoneInfo(ROME))}
    assert ages == {"newest_age_days": 1.0, "oldest_age_days": 10.0}  # 22:00 UTC ends the 29th
    assert list_age_facts([], date(2026, 3, 29), ZoneInfo(ROME)) == []
