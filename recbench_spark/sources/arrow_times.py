"""Check a log's times without Spark, worded as in `log_checks`.

A dry run checks a log's first rows with it.
"""

from __future__ import annotations

import io
from datetime import UTC
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.errors import DataError, SchemaError
from recbench_spark.sources.arrow_rows import as_double
from recbench_spark.sources.text_layouts import LAYOUTS, MOVIELENS, SOURCE_COLUMNS, name_layout
from recbench_spark.sources.times import (
    HAS_DATE,
    HAS_ZONE_NAME,
    KNOWN_ZONE,
    LATEST,
    TIME_TEXT,
    convert_times,
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
            ends = pc.min_max(convert_times(present, unit, UTC)).as_py()
            if mistake := describe_misread_times(where, name, (ends["min"], ends["max"])):
                raise DataError(*mistake)
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
    if not (text or pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        return  # the reader decides about this type
    micros = convert_times(present, unit, UTC)
    refuse(np.asarray(micros.is_valid()), f"'{name}' is not a time in {unit}")
    good = np.asarray(pc.fill_null(pc.less(micros, LATEST), False))
    refuse(good, f"'{name}' is not a time in {unit} before the year 2100")
    ends = pc.min_max(as_double(present, name)).as_py()
    if whole and (mistake := describe_coarser_unit(where, name, (ends["min"], ends["max"]), unit)):
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


def _refuse_bad_times(
    column: pa.Array, good: npt.NDArray[np.bool_], problem: str, *, where: str, unit: str, all_bad: bool
) -> None:
    """Raise DataError for bad values; the smallest is the example."""
    if good.all() or (all_bad and good.any()):
        return
    example = min(str(one) for one in column.filter(pa.array(~good)).to_pylist())
    hint = time_hint(example, unit) or "correct or remove these rows, or set dataset.bad_rows to reject"
    raise DataError(f"{where}: {problem}, e.g. {example[:120]!r}", hint)
