"""Cut a log at one instant for all users, exactly.

The log is not sorted. A period follows a time zone's calendar, or runs back from the last event. Facts tell
the ends of log and period, and their age.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime, tzinfo
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.config import AGE_FACT, Split, parse_duration, seconds
from recbench_spark.core.arrays import Ints
from recbench_spark.core.calendar_spans import (
    Span,
    add_spans,
    begin_last,
    end_day,
    format_instant,
    make_span,
    move,
    to_micros,
)
from recbench_spark.errors import ProtocolError
from recbench_spark.splits.labels import LATER, TRAIN, VALID
from recbench_spark.splits.manifests import Fact, Parts, refuse_empty
from recbench_spark.splits.pairs import OPEN_LOOP
from recbench_spark.storage.blocks import Rows

BUCKETS = 1 << 14
"""Counts that a task returns to `find_time`: four passes for a log over a century in microseconds."""

TIMES = ("event_time",)


def find_instants(
    times: Rows, split: Split, zone: tzinfo = UTC, every: Rows | None = None
) -> tuple[int, int, int]:
    """Find the starts of validation, test and `later`.

    Held-out rows come after all training rows. Each pass reads one column, and its tasks return counts. A
    period's days, weeks and months follow the zone.

    Args:
        times: rows to label, with their event_time.
        split: the protocol.
        zone: the zone for days, weeks and months.
        every: all rows, where some train and are never held out.

    Raises:
        ProtocolError: there are no training rows, or no test rows.
    """
    ends = _join_ends(times)
    if not ends[0]:
        hint = "the log has none, or all of them came with a part"
        raise ProtocolError("no rows to split", "no row is of dataset.events.targets" if every else hint)
    n, low, high = ends
    if split.holdout == "period":
        cuts = find_period(split, _join_ends(every)[2] if every else high, zone)
    else:
        cuts = _share_instants(times, split, (low, high, n))
    count = partial(_count_between, cuts=cuts)
    counts = np.sum(times.each(TIMES, count), axis=0)
    if every and not counts[0]:
        counts[0] = np.sum(every.each(TIMES, count), axis=0)[0]
    names = (TRAIN, VALID, split.parts[0], LATER)  # test rows count under the name of their first part
    refuse_empty(dict(zip(names, map(int, counts), strict=True)), split, low, high)
    return cuts


def _join_ends(times: Rows) -> tuple[int, int, int]:
    """Return the number of times, the first and the last."""
    ends = [one for one in times.each(TIMES, _find_ends) if one[0]]
    n, low, high = zip(*ends, strict=True) if ends else ((0,), (0,), (0,))
    return sum(n), min(low), max(high)


def _share_instants(times: Rows, split: Split, facts: tuple[int, int, int]) -> tuple[int, int, int]:
    """Find when the first validation and test rows begin.

    All rows at one instant are on one side, so a share can be larger than requested, but not smaller.
    """
    low, high, n = facts
    n_test, n_valid = (int(share * n + 1e-9) for share in (split.ratio[2], split.ratio[1]))
    if not n_test:
        raise ProtocolError(f"a share of {split.ratio[2]:g} of {n} rows is not a row", "hold out more")
    start = find_time(times, n - n_test, low, high)
    valid = find_time(times, n - n_test - n_valid, low, high) if n_valid else start
    return valid, start, high + 1


def find_time(times: Rows, place: int, low: int, high: int) -> int:
    """Find the time at a place in ascending order.

    Places begin with 0, and the time is exact. Rows are counted in BUCKETS equal ranges, then inside the
    range with the place, until a range is one microsecond: at most four passes over one column, without a
    sort, with a shuffle only of counts.

    Args:
        times: event_time.
        place: 0 <= place < number of rows.
        low: the smallest time.
        high: the largest time.
    """
    while low < high:
        width = -(-(high - low + 1) // BUCKETS)
        count = partial(_count_buckets, low=low, high=high, width=width)
        counts: Ints = np.sum(times.each(TIMES, count), axis=0)
        before = np.cumsum(counts)
        bucket = int(np.searchsorted(before, place, side="right"))
        place -= int(before[bucket] - counts[bucket])
        low += bucket * width
        high = min(high, low + width - 1)
    return low


# ------------------------------------------------------------------------------- periods


def find_period(split: Split, newest: int, zone: tzinfo = UTC) -> tuple[int, int, int]:
    """Find a period's instants in microseconds.

    The instants are the begins of validation, of the period, and of the time after it.

    Args:
        split: the protocol, with holdout `period`.
        newest: the time of the newest row to count.
        zone: the zone for days, weeks and months.

    Raises:
        ProtocolError: the period leads out of the calendar.
    """
    try:
        return _find_period(split, newest, zone)
    except (OverflowError, ValueError):
        message = f"split: {split.describe()} leads out of the calendar"
        raise ProtocolError(message, "another start, a shorter length, step or window") from None


def _find_period(split: Split, newest: int, zone: tzinfo) -> tuple[int, int, int]:
    length, step = _read_span(split, split.length), _read_span(split, split.step or split.length)
    if split.start:
        assert isinstance(split.start, datetime)
        start = split.start if split.start.tzinfo else split.start.replace(tzinfo=zone)
        origin, back = to_micros(start), 1
    elif split.by_calendar:
        assert split.length is not None
        origin, back = begin_last(newest, *parse_duration(split.length), zone), -1
    else:
        origin, back = newest + 1 - length.micros, -1
    moved = add_spans(Span(), step, back * split.window)
    begin = move(origin, moved, zone)
    end = move(origin, add_spans(moved, length), zone) if split.length else max(newest, begin) + 1
    by_time = split.valid and split.validation == "time"
    valid = move(origin, add_spans(moved, length, -1), zone) if by_time else begin
    return valid, begin, end


def _read_span(split: Split, duration: str | None) -> Span:
    """Return a duration as a span.

    Days and weeks before the last event have 24 and 168 hours.
    """
    if duration is None:
        return Span()
    return make_span(*parse_duration(duration)) if split.by_calendar else make_span(seconds(duration), "s")


# ------------------------------------------------------------------------------- facts


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
    _, begin, end = find_period(split, max(divided), zone)
    covered = min(max((max(divided) + 1 - begin) / (end - begin), 0.0), 1.0)
    detail = "share of the period from its begin to the newest row"
    facts += [_time_fact("period_begin", begin, zone), _time_fact("period_end", end, zone)]
    return [*facts, Fact("log", "period_covered", covered, detail)]


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
    ages = []
    for row in facts:
        if row["fact"] in AGES and row["value"] is not None:
            age = (end_day(day, zone) - row["value"]) / DAY
            detail = f"{row['fact']} {row['detail']}, at the end of {day}"
            ages.append(Fact("log", AGES[row["fact"]], age, detail))
    return ages


# ------------------------------------------------------------------------- what tasks do


def _read_times(tables: Iterable[pa.Table]) -> Iterable[Ints]:
    return (pc.drop_null(table.column("event_time")).to_numpy() for table in tables)


def _find_ends(tables: Iterable[pa.Table]) -> tuple[int, int, int]:
    """Return the number of times, the first and the last."""
    n, low, high = 0, 0, 0
    for time_r in _read_times(tables):
        if len(time_r):
            first, last = int(time_r.min()), int(time_r.max())
            low, high = (min(low, first), max(high, last)) if n else (first, last)
            n += len(time_r)
    return n, low, high


def _count_between(tables: Iterable[pa.Table], cuts: tuple[int, int, int]) -> Ints:
    """Count the times before, between and after the cuts, (4,).

    A time at a cut counts behind it.
    """
    total = np.zeros(4, np.int64)
    for time_r in _read_times(tables):
        total += np.bincount(np.searchsorted(cuts, time_r, side="right"), minlength=4)
    return total


def _count_buckets(tables: Iterable[pa.Table], low: int, high: int, width: int) -> Ints:
    """Count the times from `low` to `high` by range, (BUCKETS,).

    All ranges are equally wide.
    """
    total = np.zeros(BUCKETS, np.int64)
    for time_r in _read_times(tables):
        inside = time_r[(time_r >= low) & (time_r <= high)]
        total += np.bincount((inside - low) // width, minlength=BUCKETS)
    return total
