"""Find where the period of a split begins and ends.

It follows a time zone's calendar, or runs back from the last event.
"""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo

from recbench_spark.config import Split, parse_duration, seconds
from recbench_spark.core.calendar_spans import Span, add_spans, begin_last, make_span, move, to_micros
from recbench_spark.errors import ProtocolError


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
        origin, back = read_start(split, zone), 1
    elif split.by_calendar:
        assert split.length is not None
        origin, back = begin_last(newest, *parse_duration(split.length), zone), -1
    else:
        origin, back = newest + 1 - length.micros, -1
    moved = add_spans(Span(), step, back * split.window)
    start = move(origin, moved, zone)
    end = move(origin, add_spans(moved, length), zone) if split.length else max(newest, start) + 1
    valid = move(origin, add_spans(moved, length, -1), zone) if split.valid else start
    return valid, start, end


def _read_span(split: Split, duration: str | None) -> Span:
    """Return a duration as a span.

    Days and weeks before the last event have 24 and 168 hours.
    """
    if duration is None:
        return Span()
    return make_span(*parse_duration(duration)) if split.by_calendar else make_span(seconds(duration), "s")


def read_start(split: Split, zone: tzinfo) -> int:
    """Return the split's `start` in microseconds.

    Without an offset it is a time in the zone.
    """
    assert isinstance(split.start, datetime)
    return to_micros(split.start if split.start.tzinfo else split.start.replace(tzinfo=zone))


def share_covered(instants: tuple[int, int, int], newest: int) -> float:
    """Return which share of a period the log covers.

    The covered time goes from the period's begin to the newest row.
    """
    _, start, end = instants
    return min(max((newest + 1 - start) / (end - start), 0.0), 1.0)
