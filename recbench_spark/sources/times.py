"""Rules for a log's times: units and plausible years."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

MICROS_PER_UNIT = {"s": 1_000_000, "ms": 1000, "us": 1}
"""Microseconds per unit."""

LATEST = 4_102_444_800_000_000
"""2100-01-01 in microseconds: the first time that no log can have.

A number read in too coarse a unit is beyond it (milliseconds from 2021 as seconds are the year 52971), and
so is a placeholder such as 9999-12-31. Both would fill the test part in a split by time. Small numbers are
not refused, since a log may number its rows instead of timing them.
"""

FIRST_LOGS = 631_152_000_000_000
"""1990-01-01 in microseconds, the first plausible time. Interaction logs begin in the nineties. A number
gets another unit only if that unit puts it between FIRST_LOGS and LATEST.
"""

HAS_DATE = r"^\W*[0-9]{4,6}([^0-9]|$)"
"""Pattern for a text that begins with a year. Spark reads a time of day without a date as one today."""

_REGIONS = (
    "Africa|America|Antarctica|Arctic|Asia|Atlantic|Australia|Brazil|Canada|Chile|Etc|Europe|Indian|Mexico"
    "|Pacific|US"
)
_OFFSET = "[+-](?:[0-9]{1,2}(?::[0-9]{2}){0,2}|[0-9]{4}|[0-9]{6})"
_ZONE = rf"(Z|(?:UTC|GMT)?{_OFFSET}|UTC|GMT|(?:{_REGIONS})/[A-Za-z0-9_+/-]+)"

HAS_ZONE_NAME = r":[0-9.]+\s*[A-Za-z]"
"""Pattern for a text with letters behind its time of day."""

KNOWN_ZONE = rf":[0-9.]+\s*{_ZONE}\s*$"
"""Pattern for a text with a readable zone: an offset, Z, UTC, GMT, or an IANA region with its city.

Short names mean several zones. Java takes BST for Dhaka, AST for Alaska and SST for the Solomon Islands.
"""

TIME_TEXT = "a timestamp such as 2026-01-31 12:00:00, or its zone is no offset, Z, UTC, GMT or full name"
"""Expected form of a text with a time; messages put it behind the words `is not`."""

ZONE_HINT = (
    "short names of zones mean several places: write an offset such as +01:00, Z, UTC, GMT, or a full name "
    "such as Europe/Rome"
)

_DAYS = {
    "M/d/yyyy": "%m/%d/%Y",
    "d/M/yyyy": "%d/%m/%Y",
    "M-d-yyyy": "%m-%d-%Y",
    "d-M-yyyy": "%d-%m-%Y",
    "d.M.yyyy": "%d.%m.%Y",
    "yyyy/M/d": "%Y/%m/%d",
}
_HOURS = {
    "": "",
    " H:mm": " %H:%M",
    " H:mm:ss": " %H:%M:%S",
    " h:mm a": " %I:%M %p",
    " h:mm:ss a": " %I:%M:%S %p",
}
TIME_FORMATS = {java + hour: own + _HOURS[hour] for java, own in _DAYS.items() for hour in _HOURS}
"""Spark's patterns for times (`timestampFormat`), and the same ones for DuckDB and Python."""

CHECKED = "times_checked"
"""Key in a column's metadata for times from a log that was read before: their unit is known."""


STORED = "stored"
"""Unit name for times stored as timestamps."""

MISREAD_FACTORS = {
    1_000_000_000: ("s", "seconds were taken for nanoseconds where it was made"),
    1_000_000: (
        "ms",
        "milliseconds were taken for nanoseconds (or seconds for microseconds) where it was made",
    ),
    1000: ("us", "microseconds were taken for nanoseconds (or seconds for milliseconds) where it was made"),
}
"""Factor that corrects stored timestamps -> the unit of the numbers, and the mistake.

pandas reads numbers as nanoseconds, so that seconds become the first seconds in 1970. A log is refused only
if one of these factors puts all its times between 1990 and 2099; as stored they are in the first seven
weeks of 1970.
"""


def guess_unit(number: float) -> str | None:
    """Guess a number's unit for times from 1990 to 2099.

    The result is s, ms, us, ns or None.
    """
    units = {**MICROS_PER_UNIT, "ns": 0.001}
    fits = [unit for unit, factor in units.items() if FIRST_LOGS <= number * factor < LATEST]
    return fits[0] if fits else None


def coarser_unit(lowest: float | None, highest: float | None, unit: str) -> str | None:
    """Return the coarser unit that fits all times, if any.

    Args:
        lowest: the log's smallest number; None for a log without numbers.
        highest: the largest one.
        unit: the unit in use: s, ms or us.
    """
    if lowest is None or highest is None:
        return None
    fits = {guess_unit(lowest), guess_unit(highest)}
    other = fits.pop()
    coarser = not fits and other in MICROS_PER_UNIT and MICROS_PER_UNIT[str(other)] > MICROS_PER_UNIT[unit]
    return other if coarser else None


def describe_coarser_unit(
    where: str, name: str, ends: tuple[float, float], unit: str
) -> tuple[str, str] | None:
    """Return message and hint for too fine a unit.

    None: the unit is right.

    Args:
        where: the log's name in messages.
        name: the time column.
        ends: the smallest and the largest number.
        unit: the unit in which they are read.
    """
    fits = coarser_unit(*ends, unit)
    if fits is None:
        return None
    days = [[_format_day(number * MICROS_PER_UNIT[one]) for number in ends] for one in (unit, fits)]
    message = f"{where}: by time_unit {unit} all times of '{name}' lie between {' and '.join(days[0])}"
    return message, f"set dataset.time_unit: {fits}, by which they lie between {' and '.join(days[1])}"


def describe_misread_times(where: str, name: str, ends: tuple[float, float]) -> tuple[str, str] | None:
    """Return message and hint for timestamps made too fine.

    None: the timestamps are right.

    Args:
        where: the log's name in messages.
        name: the time column.
        ends: the log's first and last time, in microseconds since 1970.
    """
    for factor, (unit, mistake) in MISREAD_FACTORS.items():
        if all(FIRST_LOGS <= end * factor < LATEST for end in ends):
            times = [_format_time(end) for end in ends]
            days = [_format_day(end * factor) for end in ends]
            range_ = f"all times of '{name}' lie between {times[0]} and {times[1]}"
            return f"{where}: {range_}, since {mistake}", (
                "make the column anew in its unit, or store the numbers and set "
                f"dataset.time_unit: {unit}, by which they lie between {days[0]} and {days[1]}"
            )
    return None


def describe_units(ends: tuple[int, int], unit: str) -> str:
    """Say where a log begins and ends, by each unit.

    Args:
        ends: the first and the last time in microseconds since 1970, by the unit.
        unit: s, ms or us.
    """

    def describe(one: str) -> str:
        oldest, newest = (end // MICROS_PER_UNIT[unit] * MICROS_PER_UNIT[one] for end in ends)
        return f"by {one} {_format_far_day(oldest)} to {_format_far_day(newest)}"

    listed = ", ".join(map(describe, MICROS_PER_UNIT))
    return f"dataset.time_unit is {unit}; from the oldest to the newest time the log runs {listed}"


def _format_far_day(micros: int) -> str:
    """Return a time's day, even outside the calendar."""
    try:
        return _format_day(micros)
    except OverflowError:
        return "beyond the year 9999" if micros > 0 else "before the year 1"


def time_hint(text: str | None, unit: str) -> str:
    """Return the setting which makes a value a time.

    The text is empty if none is known.

    Args:
        text: the value, which is no time in the unit; None for a missing one.
        unit: the unit in which it is read, or `timestamp`.
    """
    if text is None:
        return ""
    try:
        number = float(text)
    except ValueError:
        return _text_hint(text, unit)
    fits = guess_unit(number)
    if fits == "ns":
        return "these are nanoseconds since 1970: divide them by 1000 and set dataset.time_unit: us"
    if fits is not None:
        day = _format_day(number * MICROS_PER_UNIT[fits])
        return f"set dataset.time_unit: {fits}, by which {text} is of {day}"
    return "set dataset.time_unit to s, ms or us" if unit == "timestamp" else ""


def has_unknown_zone(text: str) -> bool:
    """Return whether a text names an unreadable zone.

    >>> has_unknown_zone("2026-07-01 12:00:00 BST"), has_unknown_zone("2026-07-01 12:00:00 Europe/Rome")
    (True, False)
    """
    return bool(re.search(HAS_ZONE_NAME, text)) and not re.search(KNOWN_ZONE, text)


def parse_zoned_time(text: str) -> int | None:
    """Return a zoned text's microseconds, as Spark reads it.

    None: the text is no time. If the clock skips a time, the earlier offset applies; if a time comes twice,
    the first counts.
    """
    match = re.fullmatch(rf"\s*(\S.*?:[0-9.]+)\s*{_ZONE}\s*", text)
    try:
        wall = datetime.fromisoformat(match[1]) if match else None
        if match is None or wall is None or wall.tzinfo is not None:
            return None
        return (wall.replace(tzinfo=parse_zone(match[2])) - EPOCH) // timedelta(microseconds=1)
    except (ValueError, OverflowError, KeyError, OSError):
        return None


def parse_zone(name: str) -> tzinfo:
    """Return a zone by its offset or full name.

    Z, UTC and GMT are read, too.

    Raises:
        ValueError, KeyError: there is no such zone.
    """
    offset = re.fullmatch(f"(?:UTC|GMT)?({_OFFSET})", name)
    if offset is None:
        return UTC if name in ("Z", "UTC", "GMT") else ZoneInfo(name)
    digits = offset[1][1:].replace(":", "")
    digits = digits.zfill(len(digits) + len(digits) % 2)
    hours, minutes, seconds = (int(digits[n : n + 2] or 0) for n in (0, 2, 4))
    if hours > 18 or minutes > 59 or seconds > 59:
        raise ValueError("no such offset")
    sign = -1 if offset[1][0] == "-" else 1
    return timezone(sign * timedelta(hours=hours, minutes=minutes, seconds=seconds))


def _text_hint(text: str, unit: str) -> str:
    if has_unknown_zone(text):
        return ZONE_HINT
    if re.match(r"\W*T?[0-9]{1,2}:[0-9]", text):
        return "a time of day needs its date: write both, such as 2026-01-31 12:00:00"
    if unit != "timestamp" and re.match(r"\W*[0-9]{4}-[0-9]", text):
        return "set dataset.time_unit: timestamp"
    return ""


def _format_time(micros: float) -> str:
    """Return a time to the millisecond, as SQL writes it."""
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=int(micros))
    return moment.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def _format_day(micros: float) -> str:
    return str((datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=int(micros))).date())
