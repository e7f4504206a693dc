"""Periods in which items are available, from a table.

A row has item_id, available_from, and available_until (empty: without end). An item is available from the
first time on and no longer at the second. Times are those of the log: stored times, texts, or numbers in
`dataset.time_unit`; without an offset they are in `dataset.time_zone`.
"""

from __future__ import annotations

from datetime import tzinfo

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.core.arrays import Ints
from recbench_spark.errors import DataError
from recbench_spark.sources.arrow_rows import is_text
from recbench_spark.sources.input_rows import CheckedInput, check_input, open_input
from recbench_spark.sources.times import convert_times, time_hint
from recbench_spark.storage.blocks import Engine

FROM, UNTIL = "available_from", "available_until"
NO_END = 2**63 - 1
"""End of a period without end, in microseconds."""

NUMBERS = r"^\s*[+-]?[0-9]+(\.[0-9]*)?\s*$"
"""Pattern for a text that is a number, as fields of text files are."""


def open_availability(engine: Engine, path: str) -> CheckedInput:
    """Open a table of availability, and check its ids.

    Raises:
        SchemaError, DataError, FallbackToSpark: as `open_input` and `check_input`.
    """
    what = f"dataset.availability {path}"
    table = open_input(engine, path, ["item_id", FROM], what)
    others = [name for name in (FROM, UNTIL) if name in table.schema.names]
    return check_input(table, {}, what, ids=("item_id",), others=others)


def read_periods(rows: pa.Table, unit: str, zone: tzinfo) -> tuple[Ints, Ints]:
    """Return begins and ends in microseconds, (r,), where there is an end.

    Args:
        rows: available_from, and available_until if there is any.
        unit: `dataset.time_unit`.
        zone: the log's time zone.

    Raises:
        DataError: a value is no time, or a begin is missing; with the first such value.
    """
    begin = _read_times(rows, FROM, unit, zone)
    if missing := begin.null_count:
        raise DataError(
            f"dataset.availability: {missing} rows have no {FROM}",
            "give each period a begin, such as 1970-01-01",
        )
    if UNTIL not in rows.column_names:
        return begin.to_numpy(), np.full(len(rows), NO_END)
    return begin.to_numpy(), pc.fill_null(_read_times(rows, UNTIL, unit, zone), NO_END).to_numpy()


def _read_times(rows: pa.Table, name: str, unit: str, zone: tzinfo) -> pa.Array:
    column = rows.column(name).combine_chunks()
    column = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
    if pa.types.is_null(column.type):
        return column.cast(pa.int64())
    if is_text(column.type):
        column = pc.replace_with_mask(
            column, pc.equal(pc.utf8_trim_whitespace(column), ""), pa.scalar(None, column.type)
        )
        numbers = pc.match_substring_regex(column.drop_null(), NUMBERS)
        unit = unit if pc.all(numbers, min_count=1).as_py() else "timestamp"
    micros = convert_times(column, unit, zone)
    wrong = column.filter(pc.and_(pc.is_null(micros), pc.is_valid(column)))
    if len(wrong):
        example = str(wrong[0].as_py())
        hint = time_hint(example, unit) or "a time such as 2026-01-31 12:00:00"
        raise DataError(
            f"dataset.availability: {len(wrong)} rows whose {name} is no time, e.g. '{example}'", hint
        )
    return micros


def order_periods(item_r: Ints, begin_r: Ints, end_r: Ints, ids: pa.Array) -> Ints:
    """Return the order of periods by item and begin, (r,).

    Args:
        item_r: each row's place in `ids`.
        begin_r, end_r: its period.
        ids: the items' ids.

    Raises:
        DataError: a period does not end after its begin, or two of an item overlap.
    """
    wrong = np.flatnonzero(end_r <= begin_r)
    if len(wrong):
        what = _describe(ids, item_r, begin_r, end_r, wrong[0])
        raise DataError(
            f"dataset.availability: {len(wrong)} periods do not end after they begin, e.g. {what}",
            f"{UNTIL} is the first moment at which the item is no longer there",
        )
    order = np.lexsort((begin_r, item_r))
    item_o, begin_o, end_o = item_r[order], begin_r[order], end_r[order]
    wrong = np.flatnonzero((item_o[1:] == item_o[:-1]) & (begin_o[1:] < end_o[:-1]))
    if len(wrong):
        one, other = (_describe(ids, item_o, begin_o, end_o, wrong[0] + n) for n in (0, 1))
        raise DataError(
            f"dataset.availability: {len(wrong)} periods overlap another one, e.g. {one} and {other}",
            f"join them, or let the first end where the second begins ({UNTIL} itself is no longer in it)",
        )
    return order


def _describe(ids: pa.Array, item_r: Ints, begin_r: Ints, end_r: Ints, row: int) -> str:
    until = "" if end_r[row] == NO_END else f" until {_format(end_r[row])}"
    return f"item '{ids[int(item_r[row])].as_py()}' from {_format(begin_r[row])}{until}"


def _format(micros: int) -> str:
    return str(np.datetime64(int(micros), "us")).replace("T", " ").removesuffix(".000000")
