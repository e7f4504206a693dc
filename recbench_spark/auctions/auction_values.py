"""Convert an auction log's columns to arrays.

They hold ids, numbers, blocks and times.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.core.arrays import Floats, Ints
from recbench_spark.core.hashed_ids import hash_ids
from recbench_spark.core.ids import as_ids
from recbench_spark.errors import SchemaError
from recbench_spark.sources.arrow_rows import (
    as_double,
    as_long,
    combine_column,
    encode_ids,
    has_numeric_order,
)
from recbench_spark.sources.times import MICROS_PER_UNIT, parse_zoned_time

ID_COLUMNS = ("auction_id", "query_id", "ad_id")
BLOCKS = ("main", "side")


@dataclass(frozen=True)
class RowRules:
    """Rules for converting rows, the same in the whole log.

    Attributes:
        time_unit: unit of numeric times.
        number_times: whether times in text are numbers; None: if all texts in the rows are digits.
        numeric_ads: whether ads sort as numbers; None: if all ids here are numbers.
    """

    time_unit: str
    number_times: bool | None = None
    numeric_ads: bool | None = None


@dataclass(frozen=True, eq=False)
class ConvertedRows:
    """Rows of a log as arrays, in any order.

    Attributes:
        ids: distinct texts in each id column, and their places, (r,); -1 if an id is missing.
        columns: the other columns as float64, (r,); NaN if a value is missing or no number.
    """

    ids: Mapping[str, tuple[pa.Array, Ints]]
    columns: Mapping[str, Floats]


def convert_rows(rows: pa.Table, rules: RowRules, where: str) -> ConvertedRows:
    """Convert a log's columns to arrays.

    Raises:
        SchemaError: a column has another type. DataError: an id or a time is none.
    """
    return ConvertedRows(read_ids(rows, rules, where), _read_columns(rows, rules, where))


def read_ids(rows: pa.Table, rules: RowRules, where: str) -> dict[str, tuple[pa.Array, Ints]]:
    """Return each id column's distinct texts, and their places.

    The place is -1 if an id is missing.
    """
    ids = {}
    for name in ID_COLUMNS:
        field, coded = encode_ids(rows, name, where)
        order = np.arange(len(coded.dictionary))
        if name == "ad_id" and len(coded.dictionary):
            whole = rules.numeric_ads
            if whole is None:
                whole = has_numeric_order([pa.table([coded], schema=pa.schema([field]))], name)
            keys = coded.dictionary.cast(pa.int64() if whole else pa.large_binary())
            order = pc.array_sort_indices(keys).to_numpy()
        place = np.empty(len(order) + 1, np.int64)
        place[order], place[-1] = np.arange(len(order)), -1
        indices = pc.fill_null(coded.indices, len(order)).to_numpy().astype(np.int64)
        ids[name] = (coded.dictionary.take(pa.array(order)), place[indices])
    return ids


def _read_columns(rows: pa.Table, rules: RowRules, where: str) -> dict[str, npt.NDArray[np.float64]]:
    """Return the other columns as float64.

    A missing value or text without a number is NaN.
    """
    columns = {}
    for name in ("bid", "quality", "probability", "clicked", "position"):
        if name in rows.column_names:
            numbers = as_double(combine_column(rows.column(name)), name)
            columns[name] = pc.fill_null(numbers, np.nan).to_numpy(zero_copy_only=False)
    given = combine_column(rows.column("position"))
    if given.type in (pa.string(), pa.large_string()):
        given = pc.if_else(pc.equal(given, ""), None, given)
    columns["no_position"] = given.is_null().to_numpy(zero_copy_only=False)
    if "block" in rows.column_names:
        text = combine_column(rows.column("block").cast(pa.string()))
        code = pc.index_in(text, value_set=pa.array(BLOCKS))
        columns["block"] = pc.fill_null(code, -1).to_numpy().astype(np.float64)
    if "user_id" in rows.column_names:  # 53 bits of each user's hash, or NaN: a bootstrap needs no more
        _, coded = encode_ids(rows, "user_id", where)
        hashes = np.append((hash_ids(coded.dictionary) >> np.uint64(11)).astype(np.float64), np.nan)
        columns["user_id"] = hashes[pc.fill_null(coded.indices, len(coded.dictionary)).to_numpy()]
    if "event_time" in rows.column_names:
        columns["event_time"] = _read_times(combine_column(rows.column("event_time")), rules, where)
    return columns


def _read_times(column: pa.Array, rules: RowRules, where: str) -> npt.NDArray[np.float64]:
    """Return microseconds since 1970 UTC, NaN without a time.

    A time without a zone is in UTC.
    """
    try:
        if pa.types.is_timestamp(column.type):
            times = column.cast(pa.timestamp("us", column.type.tz), safe=False).cast(pa.int64())
        else:
            is_number = pa.types.is_integer(column.type)
            if not is_number:
                column = column.cast(pa.string())
                is_number = has_number_times(column) if rules.number_times is None else rules.number_times
            unit = MICROS_PER_UNIT[rules.time_unit]
            times = pc.multiply(as_long(column, "event_time"), unit) if is_number else _parse_times(column)
    except pa.ArrowNotImplementedError:
        raise SchemaError(f"{where}: event_time is {column.type}, not a time", "give a timestamp") from None
    filled = pc.fill_null(times.cast(pa.float64(), safe=False), np.nan)
    microseconds: Floats = filled.to_numpy(zero_copy_only=False)
    return microseconds


def _parse_times(texts: pa.Array) -> pa.Array:
    """Return microseconds for ISO texts; NULL for other texts."""
    for kind in TIME_TYPES:
        try:
            return texts.cast(kind).cast(pa.int64())
        except pa.ArrowInvalid:
            continue
    coded = texts.dictionary_encode()
    parsed = pa.array([_parse_time(text) for text in coded.dictionary], pa.int64())
    return parsed.take(coded.indices)


TIME_TYPES = (pa.timestamp("us"), pa.timestamp("us", "UTC"))
"""Types for texts without and with a zone."""


def _parse_time(text: pa.Scalar) -> int | None:
    for kind in TIME_TYPES:
        try:
            return int(text.cast(kind).cast(pa.int64()).as_py())
        except pa.ArrowInvalid:
            continue
    return parse_zoned_time(text.as_py())


def has_number_times(texts: pa.Array) -> bool:
    """Return whether all texts are digits, ignoring missing ones."""
    return bool(pc.all(pc.match_substring_regex(texts, "^[0-9]+$"), min_count=0).as_py())


def pack_ids(column: pa.ChunkedArray, what: str) -> pa.Array:
    """Return ids as whole numbers or text.

    The column's type decides, not its values.
    """
    ids = combine_column(as_ids(column, what))
    may_be_text = pa.types.is_decimal(column.type) or column.type == pa.uint64()
    return ids.cast(pa.string()) if may_be_text else ids
