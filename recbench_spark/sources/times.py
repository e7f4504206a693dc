"""Rules for the times of logs: units of numbers, plausible years, and the unit that fits a number."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

MICROS_PER_UNIT = {"s": 1_000_000, "ms": 1000, "us": 1}
"""Microseconds per unit."""

LATEST = 4_102_444_800_000_000
"""2100-01-01 in microseconds: the first time that no log can have.

A number that is read in too coarse a unit is beyond it (milliseconds of 2021 as seconds are the year
52971), and so is a placeholder such as 9999-12-31. Both would fill the test part of a split by time.
Small numbers are not refused, since a log may number its rows instead of timing them."""

FIRST_LOGS = 631_152_000_000_000
"""1990-01-01 in microseconds, the first plausible time. Logs of interactions begin in the nineties. A
number is said to be of another unit only where that unit puts it between FIRST_LOGS and LATEST."""

HAS_DATE = r"^\W*[0-9]{4,6}([^0-9]|$)"
"""Pattern of a text that begins with a year. Spark reads a time of day without a date as one of today."""

_REGIONS = (
    "Africa|America|Antarctica|Arctic|Asia|Atlantic|Australia|Brazil|Canada|Chile|Etc|Europe|Indian|Mexico"
    "|Pacific|US"
)
_OFFSET = "[+-](?:[0-9]{1,2}(?::[0-9]{2}){0,2}|[0-9]{4}|[0-9]{6})"
_ZONE = rf"(Z|(?:UTC|GMT)?{_OFFSET}|UTC|GMT|(?:{_REGIONS})/[A-Za-z0-9_+/-]+)"

HAS_ZONE_NAME = r":[0-9.]+\s*[A-Za-z]"
"""Pattern of a text with letters behind its time of day."""

KNOWN_ZONE = rf":[0-9.]+\s*{_ZONE}\s*$"
"""Pattern of a text whose zone is read: an offset, Z, UTC, GMT, or a region of IANA's with its city.

Short names mean several zones. Java takes BST for Dhaka, AST for Alaska and SST for the Solomon Islands."""

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
"""Patterns of times by Spark (`timestampFormat`), and the same ones by DuckDB and Python."""

CHECKED = "times_checked"
"""Key in a column's metadata for times that came from a log that was read before: their unit is known."""


STORED = "stored"
"""Name of the unit of times that are stored as timestamps."""

MISREAD_FACTORS = {
    1_000_000_000: ("s", "seconds were taken for nanoseconds where it was made"),
    1_000_000: (
        "ms",
        "milliseconds were taken for nanoseconds (or seconds for microseconds) where it was made",
    ),
    1000: ("us", "microseconds were taken for nanoseconds (or seconds for milliseconds) where it was made"),
}
"""Factor that corrects stored timestamps -> the unit of the numbers, and the mistake.

pandas reads numbers as nanoseconds, so that seconds become the first seconds of 1970. A log is refused
only where one of these factors puts all of its times between 1990 and 2099; as stored they are in
the first seven weeks of 1970."""


def guess_unit(number: float) -> str | None:
    """Return the unit (s, ms, us, ns) by which a number is a time from 1990 to 2099, or None."""
    units = {**MICROS_PER_UNIT, "ns": 0.001}
    fits = [unit for unit, factor in units.items() if FIRST_LOGS <= number * factor < LATEST]
    return fits[0] if fits else None


def coarser_unit(lowest: float | None, highest: float | None, unit: str) -> str | None:
    """Return the coarser unit that fits all times of a log which are read in this one, or None.

    Args:
        lowest: the smallest number of the log; None for a log without numbers.
        highest: the largest one.
        unit: s, ms or us.
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
    """Return message and hint for a log that is read in too fine a unit; None where it is not.

    Args:
        where: the log's name in messages.
        name: the column of times.
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
    """Return message and hint for stored timestamps made in too fine a unit; None where they are right.

    Args:
        where: the log's name in messages.
        name: the column of times.
        ends: the first and the last time of the log, in microseconds since 1970.
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
    """Return the ends of a log in its unit of time and in the other units, as a sentence.

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
    """Return the day of a time, also of one that the calendar does not have."""
    try:
        return _format_day(micros)
    except OverflowError:
        return "beyond the year 9999" if micros > 0 else "before the year 1"


def time_hint(text: str | None, unit: str) -> str:
    """Return the setting that makes a value a time; empty where no setting is known to help.

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
    """Return whether a text names a zone that is not read.

    >>> has_unknown_zone("2026-07-01 12:00:00 BST"), has_unknown_zone("2026-07-01 12:00:00 Europe/Rome")
    (True, False)
    """
    return bool(re.search(HAS_ZONE_NAME, text)) and not re.search(KNOWN_ZONE, text)


def parse_zoned_time(text: str) -> int | None:
    """Return the microseconds of a text that names its zone, as Spark reads it; None where it is no time.

    A time that the clock skips is that of the offset before, one that comes twice is the first.
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
    """Return the zone of an offset, Z, UTC, GMT, or a full name; ValueError or KeyError for others."""
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
