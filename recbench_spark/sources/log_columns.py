"""Choose a log's columns and time unit.

Names and values decide. Between two columns or two units nothing is chosen: the error names the flag that
chooses.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NoReturn

import numpy as np

from recbench_spark.errors import ConfigError, DataError, nearest
from recbench_spark.sources import times
from recbench_spark.sources.column_names import LOG_NAMES, strip_name
from recbench_spark.sources.json_objects import find_bad_line
from recbench_spark.sources.log_files import LogFile
from recbench_spark.sources.log_values import ColumnFacts
from recbench_spark.sources.table_pieces import list_files

FLAGS = {
    "user_id": "--user-column",
    "item_id": "--item-column",
    "rating": "--rating-column",
    "event_time": "--time-column",
}
"""The flag that names each column."""

LOOKED_AT = 20_000
"""JSON objects whose ids are looked at."""

NONE = "none"
"""Name to say that the log has no such column."""


@dataclass(frozen=True)
class ChosenColumns:
    """A log's columns by our names, and its time unit.

    Attributes:
        columns: our name -> the column; rating and event_time may be absent.
        unit: value of `dataset.time_unit`; None without times.
        unit_reason: a sentence that gives the reason for the unit.
        has_offsets: whether times in text name their zone.
        unread: our names for columns that exist, and that the caller leaves out.
        time_format: value of `timestampFormat`; empty if times need none.
    """

    columns: Mapping[str, ColumnFacts]
    unit: str | None
    unit_reason: str
    has_offsets: bool
    unread: tuple[str, ...] = ()
    time_format: str = ""


def choose_columns(
    log: LogFile,
    columns: Sequence[ColumnFacts],
    names: Mapping[str, str],
    unit: str | None = None,
    time_format: str | None = None,
) -> ChosenColumns:
    """Choose the columns with users, items, ratings and times.

    A column which may be a rating or a time is chosen or refused, never passed over.

    Args:
        log: the file.
        columns: the facts about its columns.
        names: our name -> the caller's name, or NONE.
        unit: the caller's time unit.
        time_format: the caller's pattern for times.

    Raises:
        ConfigError: two columns could be the same one, none could be a user or an item, or times have no
            plausible unit; the hint has the flag to add. DataError: times are stored wrongly.
    """
    choice = {role: _choose_column(log, columns, role, names.get(role)) for role in FLAGS}
    chosen = {role: column for role, column in choice.items() if column is not None}
    free = [column for column in columns if column.name not in {one.name for one in chosen.values()}]
    missing = [role for role in ("user_id", "item_id") if role not in chosen]
    if missing:
        message = f"{log.path}: no column is known to be {' or '.join(missing)}"
        shown = "; ".join(f"{column.name}: {', '.join(column.samples[:2])}" for column in columns[:12])
        raise ConfigError(message, f"add {' '.join(f'{FLAGS[role]} NAME' for role in missing)}, of {shown}")
    for role, find in (("event_time", _find_time), ("rating", _find_rating)):
        column = find(log, free) if role not in chosen and names.get(role) != NONE else None
        if column is not None:
            chosen[role] = column
            free = [one for one in free if one.name != column.name]
    chosen = {role: chosen[role] for role in FLAGS if role in chosen}
    _refuse_nested(log, [chosen[role] for role in ("user_id", "item_id")])
    _refuse_twice(chosen)
    _refuse_words(chosen.get("rating"))
    own = _find_own_names(columns, chosen)
    if read := next((role for role in own if names.get(role) != NONE), None):
        hint = f"rename it in the file, or add {FLAGS[read]} {own[read]} or {FLAGS[read]} {NONE}"
        raise ConfigError(f"a night reads the column {own[read]} as {read}", hint)
    if "event_time" not in chosen:
        return ChosenColumns(chosen, None, "", has_offsets=False, unread=tuple(own))
    time = chosen["event_time"]
    has_offsets = time.is_time_text and time.offsets == time.days
    pattern = _choose_format(log, time, time_format)
    if pattern:
        reason = f"dates such as {time.samples[0]}, by {pattern}"
        return ChosenColumns(chosen, "timestamp", reason, False, tuple(own), pattern)
    fitting, reason = read_unit(time, unit)
    return ChosenColumns(chosen, fitting, reason, has_offsets, tuple(own))


def _choose_column(
    log: LogFile, columns: Sequence[ColumnFacts], role: str, name: str | None
) -> ColumnFacts | None:
    """Return the column for a role, if any.

    The caller's column comes first, then the layout's, then one with a usual name.
    """
    by_name = {column.name: column for column in columns}
    if name == NONE and role in ("rating", "event_time"):
        return None
    if name is not None:
        if name not in by_name:
            raise ConfigError(f"{FLAGS[role]}: no column '{name}'", nearest(name, by_name))
        return by_name[name]
    if role in log.roles:
        return by_name[log.roles[role]]
    if role in by_name:
        return by_name[role]
    similar = [column for column in columns if strip_name(column.name) in LOG_NAMES[role]]
    plausible = [column for column in similar if _may_be(role, column)]
    if len(plausible) > 1:
        shown = " and ".join(column.name for column in plausible)
        flags = " or ".join(f"{FLAGS[role]} {column.name}" for column in plausible)
        raise ConfigError(f"{log.path}: {shown} could both be {role}", f"add {flags}")
    if similar and not plausible and role == "rating":
        _refuse_words(similar[0])
    return plausible[0] if plausible else None


# ------------------------------------------------------------------- what has another name


def _find_time(log: LogFile, free: Sequence[ColumnFacts]) -> ColumnFacts | None:
    """Return the one column which must be a time.

    The column holds dates, or epoch times in a file without names, and no column is called a time.

    Raises:
        ConfigError: a column may be a time, but need not.
    """
    similar = [column for column in free if strip_name(column.name) in LOG_NAMES["event_time"]]
    if similar:
        _refuse_text(similar[0])
    dates = [one for one in free if one.is_stored_time or one.is_time_text or one.is_other_date]
    epochs = [one for one in free if one.is_numeric and (_is_epoch(one) or _is_compact(one))]
    named = [one for one in free if one.is_numeric and TIME_NAME.search(strip_name(one.name))]
    sure = dates or [one for one in epochs if not log.has_names]
    if len(sure) == 1:
        return sure[0]
    _ask(log, "event_time", sure or epochs or named)
    return None


TIME_NAME = re.compile(
    "(time|date|timestamp|stamp)$|^(time|date|ts)|(created|updated|visited|watched)(at)?$"
)
"""Pattern for names that times may have, in the form of `strip_name`."""


def _is_epoch(column: ColumnFacts) -> bool:
    """Return whether one unit puts numbers between 1990 and 2099.

    0 and -1 count as missing times.
    """
    if column.highest is None:
        return False
    lowest = column.highest if column.lowest in (None, 0, -1) else column.lowest
    unit = times.guess_unit(column.highest)
    return unit is not None and unit == times.guess_unit(lowest)


def _is_compact(column: ColumnFacts) -> bool:
    """Return whether first and last number look like 20260131."""
    ends = [end for end in (column.lowest, column.highest) if end is not None]
    return bool(ends) and all(COMPACT.fullmatch(f"{end:.0f}") for end in ends)


COMPACT = re.compile("(19|20)[0-9]{2}(0[1-9]|1[0-2])(0[1-9]|[12][0-9]|3[01])")
"""Pattern for dates written as one number."""


def _find_rating(log: LogFile, free: Sequence[ColumnFacts]) -> ColumnFacts | None:
    """Return the one numeric column named like ratings.

    Raises:
        ConfigError: a column may be a rating, but need not.
    """
    sure = [one for one in free if one.is_numeric and strip_name(one.name).endswith(RATING_ENDS)]
    if len(sure) == 1:
        return sure[0]
    named = [one for one in free if RATING_NAME.search(strip_name(one.name)) and not _is_id(one)]
    numbers = [] if log.has_names else [one for one in free if may_be_rating(one)]
    _ask(log, "rating", sure or named or numbers)
    return None


RATING_ENDS = ("rating", "ratings", "stars", "score")

RATING_NAME = re.compile(
    "rating|stars|score|label|grade|vote|like|feedback|preference|thumb|click|(plays|hours|weight|ratio)$|"
    "(?<!dis)(?<!ac)count$"
)
"""Pattern for names that ratings may have, in the form of `strip_name`."""


def _is_id(column: ColumnFacts) -> bool:
    return strip_name(column.name).endswith("id") or (not column.numbers and column.distinct > MOST_GRADES)


MOST_GRADES = 201
"""Most different values that ratings have, if only values speak for them."""


def may_be_rating(column: ColumnFacts) -> bool:
    """Return whether values look like ratings.

    Ratings are few values, small, and with at most two decimals.
    """
    if not column.is_numeric or column.lowest is None or column.highest is None:
        return False
    is_small = column.lowest >= -10 and column.highest <= 100
    return is_small and column.hundredths == column.numbers and 1 < column.distinct <= MOST_GRADES


def _ask(log: LogFile, role: str, columns: Sequence[ColumnFacts]) -> None:
    """Refuse to ignore columns which may have a role.

    The hint has the flag.
    """
    if columns:
        shown = "; ".join(f"{one.name} ({', '.join(one.samples[:2])})" for one in columns[:4])
        flags = " or ".join(f"{FLAGS[role]} {name}" for name in (*(one.name for one in columns[:4]), NONE))
        raise ConfigError(f"{log.path}: {role} may be {shown}", f"add {flags}")


def _choose_format(log: LogFile, time: ColumnFacts, given: str | None) -> str:
    """Return the pattern for dates in another order, if needed.

    Raises:
        ConfigError: no pattern or more than one reads all of them, or the file stores no text.
    """
    if given is None and not time.is_other_date:
        return ""
    pattern = re.sub(r"([MdHh])\1", r"\1", given) if given is not None else None
    if pattern is not None and pattern not in times.TIME_FORMATS:
        raise ConfigError(f"--time-format {given} is not known", nearest(pattern, times.TIME_FORMATS))
    if log.reader not in ("csv", "json"):
        _refuse_text(time)
    if pattern in time.formats:
        return str(pattern)
    if pattern is not None or not time.formats:
        _refuse_text(time)
    if len(time.formats) > 1:
        flags = " or ".join(f"--time-format '{one}'" for one in time.formats)
        message = f"{time.name} has {', '.join(time.samples)}: a day and a month, or a month and a day"
        raise ConfigError(message, f"add {flags}")
    return time.formats[0]


def _may_be(role: str, column: ColumnFacts) -> bool:
    """Return whether a column's values fit a role."""
    if role == "rating":
        return column.is_numeric
    is_time = column.is_stored_time or column.is_time_text or column.is_other_date
    return column.is_numeric or is_time if role == "event_time" else not is_time


def _refuse_twice(chosen: Mapping[str, ColumnFacts]) -> None:
    for (role, column), (other, same) in combinations(chosen.items(), 2):
        if column.name == same.name:
            hint = f"add {FLAGS[other]} with another one"
            raise ConfigError(f"{column.name} is taken for {role} and for {other}", hint)


def _refuse_nested(log: LogFile, ids: Sequence[ColumnFacts]) -> None:
    """Refuse JSON ids which are objects or arrays.

    The error has the line of the first one.
    """
    if log.reader == "json":
        for file in list_files(log.path):
            bad = find_bad_line(file, [column.name for column in ids], LOOKED_AT)
            if bad is not None and "whose" in bad.what:
                raise bad.make_error(file)


def _refuse_words(rating: ColumnFacts | None) -> None:
    """Refuse ratings if some are no finite numbers."""
    if rating is not None and not rating.is_numeric:
        shown = ", ".join(rating.samples) or "nothing"
        counts = f"{rating.numbers:,} of {rating.present:,} values are finite numbers"
        hint = f"write numbers, or add {FLAGS['rating']} {NONE}"
        raise ConfigError(f"{rating.name} has {shown}: {counts}", hint)


def _find_own_names(columns: Sequence[ColumnFacts], chosen: Mapping[str, ColumnFacts]) -> dict[str, str]:
    """Return our name -> a column so called, if unchosen."""
    taken = {column.name for column in chosen.values()}
    rest = {column.name.lower(): column.name for column in columns if column.name not in taken}
    return {role: rest[role] for role in FLAGS if role in rest and role not in chosen}


# -------------------------------------------------------------------------------------------- unit


def read_unit(time: ColumnFacts, unit: str | None) -> tuple[str, str]:
    """Return the time unit, and the reason for it.

    Raises:
        ConfigError: no unit or more than one is plausible, or the caller's is not. DataError: timestamps
            were made in a wrong unit.
    """
    if time.is_stored_time or time.is_time_text:
        _check_stored(time, unit)
        kind = "timestamps" if time.is_stored_time else "dates or times as text"
        return "timestamp", f"{kind} from {time.first} to {time.last}"
    if not time.is_numeric or time.lowest is None or time.highest is None:
        _refuse_text(time)
    ends = (time.lowest, time.highest)
    if unit is not None:
        return _check_unit(time.name, ends, unit)
    fits = {str(times.guess_unit(end)) for end in ends}
    if len(fits) == 1 and fits <= times.MICROS_PER_UNIT.keys():
        only = fits.pop()
        return only, f"by {only} they are from {_day(ends[0], only)} to {_day(ends[1], only)}"
    raise _make_unit_error(time.name, ends)


def _check_stored(time: ColumnFacts, unit: str | None) -> None:
    if unit not in (None, "timestamp"):
        raise ConfigError(f"--time-unit {unit}: {time.name} has {time.first}, no numbers", "leave it out")
    if time.is_stored_time and time.first and time.last:
        ends = _read_micros(time.first), _read_micros(time.last)
        mistake = times.describe_misread_times("log", time.name, ends)
        if mistake:
            raise DataError(*mistake)


def _check_unit(name: str, ends: tuple[float, float], unit: str) -> tuple[str, str]:
    if unit == "timestamp":
        raise ConfigError(f"--time-unit timestamp: {name} has numbers", "s, ms or us")
    if ends[1] * times.MICROS_PER_UNIT[unit] >= times.LATEST:
        message = f"--time-unit {unit}: {ends[1]:.0f} is after the year 2099"
        raise ConfigError(message, "a finer unit: ms, us")
    return unit, f"as --time-unit says; from {_day(ends[0], unit)} to {_day(ends[1], unit)}"


def _make_unit_error(name: str, ends: tuple[float, float]) -> ConfigError:
    """Return the error for numbers in no unit or several."""
    shown = f"{name} is from {ends[0]:.15g} to {ends[1]:.15g}"
    if {times.guess_unit(end) for end in ends} == {"ns"}:
        hint = "these are nanoseconds since 1970: divide them by 1000, then --time-unit us"
        return ConfigError(f"{shown}, which no unit of a night fits", hint)
    if all(COMPACT.fullmatch(f"{end:.0f}") for end in ends):
        hint = "write them as 2026-01-31; or add --time-unit s where they are seconds"
        return ConfigError(f"{shown}: dates such as 20260131, or seconds of 1970", hint)
    units = [unit for unit, factor in times.MICROS_PER_UNIT.items() if ends[1] * factor < times.LATEST]
    days = "; ".join(f"by {unit} from {_day(ends[0], unit)} to {_day(ends[1], unit)}" for unit in units)
    hint = f"add --time-unit {' or '.join(units) or 's'}, or --time-column {NONE}"
    return ConfigError(f"{shown}, and no unit puts all of it between 1990 and 2099: {days}", hint)


def _refuse_text(time: ColumnFacts) -> NoReturn:
    hint = (
        f"write times as 2026-01-31 12:00:00 or as numbers; or add --time-format PATTERN, such as "
        f"'MM/dd/yyyy HH:mm:ss', or {FLAGS['event_time']} {NONE}"
    )
    shown = ", ".join(time.samples) or "nothing"
    raise ConfigError(f"{time.name} has {shown}, which are no times that a night reads", hint)


def _read_micros(text: str) -> float:
    """Return microseconds since 1970 for a time written by DuckDB."""
    return float(np.datetime64(text.replace(" ", "T").partition("+")[0], "us").astype(np.int64))


def _day(number: float, unit: str) -> str:
    """Return the day of a number in a unit."""
    micros = round(number * times.MICROS_PER_UNIT[unit])
    try:
        return str(np.datetime64(micros, "us").astype("datetime64[D]"))
    except (OverflowError, ValueError):
        return "no day"
