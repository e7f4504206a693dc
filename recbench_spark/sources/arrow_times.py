"""Check a log's times without Spark, worded as in `log_checks`.

A dry run checks a log's first rows with it.
"""

from __future__ import annotations

import io
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.errors import DataError, SchemaError
from recbench_spark.sources.text_layouts import LAYOUTS, MOVIELENS, SOURCE_COLUMNS, name_layout
from recbench_spark.sources.times import (
    HAS_DATE,
    HAS_ZONE_NAME,
    KNOWN_ZONE,
    LATEST,
    MICROS_PER_UNIT,
    TIME_TEXT,
    describe_coarser_unit,
    describe_misread_times,
    time_hint,
)
from recbench_spark.storage.local_files import COMPRESSED, open_stream


def check_times(column: pa.Array, name: str, unit: str, where: str, *, whole: bool, all_bad: bool) -> None:
    """Refuse values which are no times, or outside logs' years.

    Args:
        column: (n,) the first values; NULL is ignored.
        name: the column's name.
        unit: s, ms, us or timestamp.
        where: the log's name in messages.
        whole: true if these are all values in the log.
        all_bad: true to refuse the column only if no value is good (bad rows are left out later).

    Raises:
        SchemaError: numbers are read as timestamps. DataError: values are no such times.
    """
    present, kind = column.drop_null(), column.type
    if not len(present):
        return
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        if whole:  # the reader checks all times of a larger log
            _refuse_misread(present, name, where)
        return
    if unit == "timestamp" and not text:
        hint = time_hint(str(present[0].as_py()), unit) or "set dataset.time_unit to s, ms or us"
        raise SchemaError(f"{where}: column '{name}' is {kind}, not a timestamp", hint)
    refuse = partial(_refuse_bad_times, present, where=where, unit=unit, all_bad=all_bad)
    if unit == "timestamp":
        dated, named, known = (
            pc.match_substring_regex(present, pattern).to_numpy(zero_copy_only=False)
            for pattern in (HAS_DATE, HAS_ZONE_NAME, KNOWN_ZONE)
        )
        refuse(dated & (~named | known), f"'{name}' is not {TIME_TEXT}")
        return
    number = _parse_numbers(present)
    if number is None:
        return
    with np.errstate(over="ignore", invalid="ignore"):
        micros = number * MICROS_PER_UNIT[unit]
    good = np.isfinite(micros) & (np.abs(micros) < 2.0**63)
    refuse(good, f"'{name}' is not a time in {unit}")
    good &= micros < LATEST
    refuse(good, f"'{name}' is not a time in {unit} before the year 2100")
    ends = float(number.min()), float(number.max())
    mistake = describe_coarser_unit(where, name, ends, unit) if whole else None
    if mistake:
        raise DataError(*mistake)


def read_movielens_times(path: str, reader: str, n: int) -> tuple[str, str, pa.Array] | None:
    """Return a MovieLens file, its time column and first times.

    The result is None if the ratings file or the column is missing; the reader reports that.

    Args:
        path: the folder or the file.
        reader: a key in MOVIELENS.
        n: the largest number of values to read.
    """
    names, place = MOVIELENS[reader], Path(path)
    if place.is_dir():
        candidates = (place / f"{name}{ending}" for name in names for ending in ("", *COMPRESSED))
        place = next((file for file in candidates if file.is_file()), place)
    if not place.is_file():
        return None
    name = name_layout(place, names)
    layout, column = LAYOUTS[name], SOURCE_COLUMNS.get(name, {}).get("event_time", "event_time")
    with open_stream(str(place)) as raw, io.TextIOWrapper(raw, "utf-8", "replace") as lines:
        header = layout.names or tuple(next(lines, "").strip().split(layout.separator))
        if column not in header:
            return None
        rows = (line.rstrip("\r\n").split(layout.separator) for line in islice(lines, n))
        at = header.index(column)
        times = [row[at] for row in rows if len(row) == len(header)]
    return str(place), column, pa.array(times, pa.string())


def _refuse_misread(times: pa.Array, name: str, where: str) -> None:
    """Raise DataError for timestamps made in too fine a unit."""
    instants = times.cast(pa.timestamp("us", getattr(times.type, "tz", None)), safe=False)
    ends = pc.min_max(instants.cast(pa.int64()))
    mistake = describe_misread_times(where, name, (ends["min"].as_py(), ends["max"].as_py()))
    if mistake:
        raise DataError(*mistake)


def _parse_numbers(column: pa.Array) -> npt.NDArray[np.float64] | None:
    """Parse (n,) float64, NaN where a text is no number.

    None: the reader decides about this type.
    """
    if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
        numbers: npt.NDArray[np.float64] = column.cast(pa.float64(), safe=False).to_numpy()
        return numbers
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return None
    number_n = np.full(len(column), np.nan)
    for n, text in enumerate(column.to_pylist()):
        with suppress(ValueError):
            number_n[n] = float(text)
    return number_n


def _refuse_bad_times(
    column: pa.Array, good: npt.NDArray[np.bool_], problem: str, *, where: str, unit: str, all_bad: bool
) -> None:
    """Raise DataError for bad values; the smallest is the example."""
    if good.all() or (all_bad and good.any()):
        return
    example = min(str(one) for one in column.filter(pa.array(~good)).to_pylist())
    hint = time_hint(example, unit) or "correct or remove these rows, or set dataset.bad_rows to reject"
    raise DataError(f"{where}: {problem}, e.g. {example[:120]!r}", hint)
