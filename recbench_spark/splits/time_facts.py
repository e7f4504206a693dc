"""Facts about a log's newest row, age and covered period."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import date, tzinfo
from typing import Any

from recbench_spark.config import AGE_FACT, Split
from recbench_spark.core.calendar_spans import end_day, format_instant
from recbench_spark.splits.manifests import Fact, Parts
from recbench_spark.splits.pairs import OPEN_LOOP
from recbench_spark.splits.periods import find_period, share_covered

DAY = 86_400_000_000
"""Microseconds in 24 hours."""

AGES = {"newest_event": AGE_FACT, "oldest_event": "oldest_age_days"}
"""Facts about a log's ends, and those about their ages."""


def list_time_facts(parts: Parts, split: Split, zone: tzinfo) -> list[Fact]:
    """Return the ends of log and period, and the period's coverage.

    Args:
        parts: summaries of the labelled parts.
        split: the protocol.
        zone: the dataset's zone.
    """
    times = {name: (part.earliest, part.latest) for name, part in parts.items()}
    oldest = min((first for first, _ in times.values() if first is not None), default=None)
    newest = max((last for _, last in times.values() if last is not None), default=None)
    if oldest is None or newest is None:
        return []
    facts = [_time_fact("newest_event", newest, zone), _time_fact("oldest_event", oldest, zone)]
    divided = [last for name, (_, last) in times.items() if name != OPEN_LOOP and last is not None]
    if split.holdout != "period" or not split.length or not divided:
        return facts
    instants = find_period(split, max(divided), zone)
    detail = "share of the period from its begin to the newest row"
    return [
        *facts,
        _time_fact("period_begin", instants[1], zone),
        _time_fact("period_end", instants[2], zone),
        Fact("log", "period_covered", share_covered(instants, max(divided)), detail),
    ]


def _time_fact(name: str, micros: int, zone: tzinfo) -> Fact:
    return Fact("log", name, float(micros), format_instant(micros, zone))


def list_age_facts(facts: Iterable[Mapping[str, Any]], day: date, zone: tzinfo) -> list[Fact]:
    """Return how old a log is when a day ends.

    Both ends of the log have an age, in days of 24 hours.

    Args:
        facts: rows in the manifest.
        day: the night's logical date.
        zone: the dataset's zone, in which the day ends.
    """
    end = end_day(day, zone)
    return [
        Fact(
            "log",
            AGES[row["fact"]],
            (end - row["value"]) / DAY,
            f"{row['fact']} {row['detail']}, at the end of {day}",
        )
        for row in facts
        if row["fact"] in AGES and row["value"] is not None
    ]
