"""Days, weeks and months in a time zone.

Instants are microseconds since 1970 UTC. A day begins at its local midnight. Where the clock skips midnight
(zones that change at 00:00), the day begins where the clock goes on; where midnight comes twice, at the
first one.
"""

from __future__ import annotations

from calendar import monthrange
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from typing import NamedTuple

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROS = {"s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000}
"""Microseconds in units with the same length everywhere."""


class Span(NamedTuple):
    """Months and days in a calendar, then microseconds."""

    months: int = 0
    days: int = 0
    micros: int = 0


def make_span(number: int, unit: str) -> Span:
    """Return a number of units as a span.

    >>> make_span(2, "w")
    Span(months=0, days=14, micros=0)
    """
    if unit in MICROS:
        return Span(micros=number * MICROS[unit])
    return Span(months=number) if unit == "mo" else Span(days=number * (7 if unit == "w" else 1))


def add_spans(first: Span, second: Span, times: int = 1) -> Span:
    """Return the first span plus `times` the second."""
    return Span(*(a + times * b for a, b in zip(first, second, strict=True)))


def to_micros(moment: datetime) -> int:
    """Return a zoned time in microseconds since 1970."""
    return (moment - EPOCH) // timedelta(microseconds=1)


def move(micros: int, span: Span, zone: tzinfo) -> int:
    """Return the instant a span later, by a zone's clock.

    A month ends at its last day.

    Raises:
        OverflowError: the result is outside the calendar.
    """
    if span.months or span.days:
        wall = _move_wall(_read_wall(micros, zone), span)
        micros = to_micros(wall.replace(tzinfo=zone))
    return micros + span.micros


def begin_last(micros: int, number: int, unit: str, zone: tzinfo) -> int:
    """Return the start of the last days, weeks or months.

    The last one holds the instant. Weeks begin on Monday.
    """
    day = _read_wall(micros, zone).date()
    if unit == "mo":
        day = day.replace(day=1)
    elif unit == "w":
        day -= timedelta(days=day.weekday())
    begin = _move_wall(_midnight(day), make_span(1 - number, unit))
    return to_micros(begin.replace(tzinfo=zone))


def end_day(day: date, zone: tzinfo) -> int:
    """Return a local day's end, where the next begins.

    Raises OverflowError.
    """
    return to_micros(_midnight(day + timedelta(days=1)).replace(tzinfo=zone))


def format_instant(micros: int, zone: tzinfo) -> str:
    """Return an instant to the second, in UTC and locally."""
    moment = EPOCH + timedelta(microseconds=micros)
    local = moment.astimezone(zone)
    here = "" if zone is UTC or str(zone) == "UTC" else f", {local:%Y-%m-%d %H:%M:%S} {zone}"
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC{here}"


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time())


def _read_wall(micros: int, zone: tzinfo) -> datetime:
    """Return date and time on the wall.

    Where midnight was skipped, the day's start counts as that midnight.
    """
    wall = (EPOCH + timedelta(microseconds=micros)).astimezone(zone).replace(tzinfo=None, fold=0)
    midnight = _midnight(wall.date())
    return midnight if to_micros(midnight.replace(tzinfo=zone)) == micros else wall


def _move_wall(wall: datetime, span: Span) -> datetime:
    """Move a time by months, then days. Raises OverflowError."""
    months = wall.year * 12 + wall.month - 1 + span.months
    year, month = divmod(months, 12)
    if not 1 <= year <= 9999:
        raise OverflowError("the year is outside the calendar")
    day = min(wall.day, monthrange(year, month + 1)[1])
    return wall.replace(year=year, month=month + 1, day=day) + timedelta(days=span.days)
