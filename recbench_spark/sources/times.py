"""Rules for a log's times, and their conversion.

The rules are about units and plausible years. Times become microseconds since 1970 UTC, as Spark casts
them; a value which is no time becomes NULL.
"""

from __future__ import annotations

import calendar
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from functools import lru_cache, partial
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.errors import ConfigError
from recbench_spark.sources.arrow_rows import as_double, as_long, is_text

EPOCH, MICROSECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)

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
        return _localise(wall, parse_zone(match[2]))
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
    return (EPOCH + int(micros) * MICROSECOND).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def _format_day(micros: float) -> str:
    return str((EPOCH + int(micros) * MICROSECOND).date())


# -------------------------------------------------------------------------------------- conversion


def convert_times(array: pa.Array, unit: str, zone: tzinfo, pattern: str = "") -> pa.Array:
    """Return int64 microseconds.

    Args:
        array: timestamps, days, numbers or texts.
        unit: the unit of numbers, or `timestamp`.
        zone: the zone for times without an offset.
        pattern: Spark's pattern for texts; empty: they are ISO 8601.
    """
    kind = array.type
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        micros = _floor_micros(array)
        return micros if getattr(kind, "tz", None) else _shift_zone(micros, zone)
    if pattern:
        return _map_texts(array, partial(_parse_pattern, pattern=compile_pattern(pattern), zone=zone))
    if unit == "timestamp":
        return _read_texts(array.cast(pa.string()), zone)
    return _scale_numbers(array, MICROS_PER_UNIT[unit])


def _floor_micros(array: pa.Array) -> pa.Array:
    if pa.types.is_date(array.type):
        return array.cast(pa.timestamp("us")).cast(pa.int64())
    if array.type.unit == "ns":  # a cast would round towards zero
        nanos = array.cast(pa.int64())
        down = pc.if_else(pc.less(nanos, 0), pc.subtract(nanos, 999), nanos)
        return pc.divide(down, 1000)
    return array.cast(pa.timestamp("us", array.type.tz)).cast(pa.int64())


def _shift_zone(micros: pa.Array, zone: tzinfo) -> pa.Array:
    """Read times of day as those in a zone."""
    if str(zone) == "UTC":
        return micros
    codes, first = micros.dictionary_encode(), EPOCH.replace(tzinfo=None)
    shifted = [_localise(first + one * MICROSECOND, zone) for one in codes.dictionary.to_pylist()]
    return pa.array(shifted, pa.int64()).take(codes.indices)


def _localise(wall: datetime, zone: tzinfo) -> int:
    """Return the instant of a time of day.

    If the clock skips it, the earlier offset applies.
    """
    return (wall.replace(tzinfo=zone) - EPOCH) // MICROSECOND


# -------------------------------------------------------------------------------------------- text


PLAIN = r"^\d{4}-\d{2}-\d{2}([ T]\d{2}:\d{2}:\d{2}(\.\d{1,6})?)?$"
"""Texts that Arrow reads as Spark does."""


def _read_texts(array: pa.Array, zone: tzinfo) -> pa.Array:
    if pc.all(pc.match_substring_regex(array, PLAIN), min_count=0).as_py():
        try:
            return _shift_zone(array.cast(pa.timestamp("us")).cast(pa.int64()), zone)
        except pa.ArrowInvalid:  # the 30th of February
            pass
    return _map_texts(array, partial(_parse_text, zone=zone))


def _map_texts(array: pa.Array, parse: Callable[[str], int | None]) -> pa.Array:
    codes = array.cast(pa.string()).dictionary_encode()
    micros = [parse(text) for text in codes.dictionary.to_pylist()]
    return pa.array(micros, pa.int64()).take(codes.indices)


TIME = re.compile(
    r"\+?(?P<year>\d{4,6})(?:-(?P<month>\d{1,2})(?:-(?P<day>\d{1,2})"
    r"(?:[ T](?:(?P<hour>\d{1,2})(?::(?P<minute>\d{1,2})(?::(?P<second>\d{1,2})(?:\.(?P<part>\d*))?)?)?"
    r"\s*(?P<zone>\S+)?)?)?)?)?"
)
"""Texts that Spark casts to a timestamp."""


def _parse_text(text: str, zone: tzinfo) -> int | None:
    text = text.strip()
    match = TIME.fullmatch(text)
    if match is None or not re.search(HAS_DATE, text) or has_unknown_zone(text):
        return None
    return _read_parts(match.groupdict(), zone)


def _read_parts(parts: Mapping[str, str | None], zone: tzinfo) -> int | None:
    """Return the instant of a time in parts, if there is one."""
    micros = int((parts.get("part") or "")[:6].ljust(6, "0"))
    numbers = [int(parts.get(name) or default) for name, default in DEFAULTS.items()]
    try:
        place = parse_zone(name) if (name := parts.get("zone")) else zone
        return _localise(datetime(*numbers).replace(microsecond=micros), place)  # type: ignore[arg-type]
    except (ValueError, OverflowError, KeyError, OSError):
        return None


DEFAULTS = {"year": 1970, "month": 1, "day": 1, "hour": 0, "minute": 0, "second": 0}


PARTS = re.compile(r"'(?P<quoted>(?:[^']|'')*)'|(?P<letter>[A-Za-z])(?P=letter)*|(?P<other>.)", re.DOTALL)
"""A part of a pattern: letters in quotes, a field, or another letter."""

NUMBERS = {"M": "month", "d": "day", "H": "hour", "h": "half", "m": "minute", "s": "second"}

FIELDS = {
    "y": {2: r"(?P<short>\d{2})", 4: r"(?P<year>\d{4})"},
    "M": {
        3: f"(?P<name>{'|'.join(calendar.month_abbr[1:])})",
        4: f"(?P<name>{'|'.join(calendar.month_name[1:])})",
    },
    "a": {1: "(?P<noon>AM|PM)"},
    "X": {
        1: r"(?P<zone>Z|[+-]\d\d(?:\d\d)?)",
        2: r"(?P<zone>Z|[+-]\d{4})",
        3: r"(?P<zone>Z|[+-]\d\d:\d\d)",
    },
    "Z": dict.fromkeys((1, 2, 3), r"(?P<zone>[+-]\d{4})"),
    "V": {2: r"(?P<zone>[A-Z][\w/+-]*)"},
}
"""Letters in a pattern -> how often one may stand -> Python's pattern."""


@lru_cache(8)
def compile_pattern(pattern: str) -> re.Pattern[str]:
    """Translate a Spark pattern (`timestampFormat`) into one of Python.

    Raises:
        ConfigError: it has letters that are not known here.
    """
    least = 1 if pattern in TIME_FORMATS else 2
    texts = [_translate_part(part, least, pattern) for part in PARTS.finditer(pattern)]
    try:
        return re.compile("".join(texts), re.IGNORECASE)
    except re.error as error:
        raise ConfigError(f"timestampFormat {pattern!r}: {error}", KNOWN_PARTS) from None


KNOWN_PARTS = "known: yyyy yy M MM MMM MMMM d dd H HH h hh mm ss S a X XX XXX Z VV, [optional] and 'text'"


def _translate_part(part: re.Match[str], least: int, pattern: str) -> str:
    letter, n = part["letter"], len(part[0])
    if letter is None:
        other = {"[": "(?:", "]": ")?", " ": r"\s+"}.get(part["other"] or "")
        return other or re.escape((part["other"] or part["quoted"] or "'").replace("''", "'"))
    if n in FIELDS.get(letter, {}):
        return FIELDS[letter][n]
    if letter in NUMBERS and n <= 2:
        return rf"(?P<{NUMBERS[letter]}>\d{{{min(n, least)},2}})"
    if letter == "S":
        return rf"(?P<part>\d{{1,{n}}})"
    raise ConfigError(f"timestampFormat {pattern!r}: {part[0]} is not known", KNOWN_PARTS)


def _parse_pattern(text: str, pattern: re.Pattern[str], zone: tzinfo) -> int | None:
    if not (match := pattern.fullmatch(text)):
        return None
    parts = {name: one for name, one in match.groupdict().items() if one}
    if "half" in parts:
        half, is_late = int(parts["half"]), parts.get("noon", "").upper() == "PM"
        parts["hour"] = str(half % 12 + 12 * is_late) if 1 <= half <= 12 else "99"
    if "short" in parts:
        parts["year"] = f"20{parts['short']}"
    if "name" in parts:
        parts["month"] = str(MONTHS[parts["name"].lower()[:3]])
    return _read_parts(parts, zone) if int(parts.get("year", 1970)) > 99 else None


MONTHS = {name.lower(): n for n, name in enumerate(calendar.month_abbr)}


# ----------------------------------------------------------------------------------------- numbers


def _scale_numbers(array: pa.Array, factor: int) -> pa.Array:
    """Convert numbers to microseconds, with NULL when out of range.

    Whole numbers are exact, and others go to the nearest microsecond.
    """
    whole = _read_whole(array)
    fits = pc.less_equal(pc.abs(whole), (2**63 - 1) // factor)
    micros = pc.multiply(pc.if_else(fits, whole, None), factor)
    if micros.null_count == array.null_count:
        return micros
    number = np.asarray(pc.fill_null(as_double(array, "time"), np.nan), np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = number * factor
        near = np.where(scaled < 0, np.ceil(scaled - 0.5), np.floor(scaled + 0.5))
        inside = np.abs(near) < 2.0**63
    rounded = pa.array(np.where(inside, near, 0).astype(np.int64), mask=~inside)
    return pc.coalesce(micros, rounded)


def _read_whole(array: pa.Array) -> pa.Array:
    try:
        if is_text(array.type):
            return array.cast(pa.int64())
    except pa.ArrowInvalid:
        pass
    return as_long(array, "time")
