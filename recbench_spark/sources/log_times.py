"""Convert times to microseconds since 1970 UTC, as Spark does.

A value which is no time becomes NULL.
"""

from __future__ import annotations

import calendar
import re
from collections.abc import Callable
from datetime import datetime, timedelta, tzinfo
from functools import lru_cache, partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.errors import ConfigError
from recbench_spark.sources.arrow_rows import as_double, as_long, is_text
from recbench_spark.sources.times import (
    EPOCH,
    HAS_DATE,
    MICROS_PER_UNIT,
    TIME_FORMATS,
    has_unknown_zone,
    parse_zone,
)

MICROSECOND = timedelta(microseconds=1)


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
    numbers = [int(match[name] or default) for name, default in DEFAULTS.items()]
    micros = int((match["part"] or "")[:6].ljust(6, "0"))
    try:
        place = parse_zone(match["zone"]) if match["zone"] else zone
        wall = datetime(*numbers).replace(microsecond=micros)  # type: ignore[arg-type]
        return _localise(wall, place)
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
    match = pattern.fullmatch(text)
    parts = {name: one for name, one in match.groupdict().items() if one} if match else {}
    if "half" in parts:
        half = int(parts["half"])
        parts["hour"] = (
            str(half % 12 + 12 * (parts.get("noon", "").upper() == "PM")) if 1 <= half <= 12 else "99"
        )
    if "short" in parts:
        parts["year"] = f"20{parts['short']}"
    if "name" in parts:
        parts["month"] = str(MONTHS[parts["name"].lower()[:3]])
    try:
        place = parse_zone(parts["zone"]) if "zone" in parts else zone
        micros = int(parts.get("part", "")[:6].ljust(6, "0"))
        numbers = [int(parts.get(name, default)) for name, default in DEFAULTS.items()]
        wall = datetime(*numbers).replace(microsecond=micros)  # type: ignore[arg-type]
        return _localise(wall, place) if match and wall.year > 99 else None
    except (ValueError, OverflowError, KeyError, OSError):
        return None


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
