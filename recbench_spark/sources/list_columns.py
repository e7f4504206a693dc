"""Unfold rows which hold a user's items in one cell.

Each item gets a row. Spark's ALS gives `recommendations: array<struct<item, rating>>`; others give an array
of ids, with or without an array of scores beside it, or a text with several ids. A list's order is its
rank, unless another is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.core.arrays import Ints
from recbench_spark.errors import DataError, SchemaError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SEPARATORS = (",", "|", ";", " ")
"""Separators between several ids in one cell, in the order in which they are tried."""

AROUND = r"^[\s\[\](){}'\"]+|[\s\[\](){}'\"]+$"
"""Pattern for what stands around an id in such a cell."""

SAMPLE = 100
"""Cells to look at."""

NUMBERS = {"scores": "score", "truth": "relevance"}
"""Our name for the number beside an item in a struct; lists take their order instead."""

FIELDS = ("rating", "score", "prediction", "relevance", "similarity", "rank")
"""Names for fields beside the item in a struct."""

VALUES = (
    "item_id", "rank", "score", "relevance", "rating", "event_time", "prediction", "outcome", "weight",
)  # fmt: skip
"""Columns that can hold arrays with one length."""


def find_separator(cells: Sequence[str | None]) -> str | None:
    """Return the separator in most cells, if any.

    None: they hold one id each.

    >>> find_separator(["a, b", "c,d", "e"]), find_separator(["a b", "c d"]), find_separator(["a", "b"])
    (',', ' ', None)
    """
    texts = [cell.strip() for cell in cells if cell and cell.strip()]
    return next((one for one in SEPARATORS if 2 * sum(one in text for text in texts) > len(texts)), None)


def may_hold_texts(names: Sequence[str], what: str) -> bool:
    """Return whether text cells may hold several ids.

    The cells may do so for lists with neither a rank nor a score.
    """
    return what == "lists" and "item_id" in names and not {"rank", "score"} & {*names}


# ------------------------------------------------------------------------------------------ Arrow


def unfold_table(table: pa.Table, what: str) -> pa.Table:
    """Return a row per user and item.

    The table is under our names. One without lists stays as it is.

    Raises:
        DataError: arrays in one row have different lengths. SchemaError: structs without an item.
    """
    if "item_id" not in table.column_names or table.column_names.count("item_id") > 1:
        return table
    if may_hold_texts(table.column_names, what):
        table = _split_table(table)
    if not is_list(table.schema.field("item_id").type):
        return table
    names = {one.name for one in table.schema if is_list(one.type)}
    lists = [name for name in VALUES if name in names]
    columns, place_n = unfold_arrays(table, lists, what, keeps_empty=what == "truth")
    columns = _open_structs(columns, what)
    if what == "lists" and not {"rank", "score"} & columns.keys():
        columns["rank"] = pa.array(place_n + 1)
    return pa.table(columns)


def unfold_arrays(
    table: pa.Table, lists: Sequence[str], what: str, *, keeps_empty: bool = False
) -> tuple[dict[str, pa.Array], Ints]:
    """Return a row per array entry, and each row's place from 0.

    The other columns are repeated.

    Args:
        table: some rows.
        lists: the columns with arrays, the items' first.
        what: the table's name in messages.
        keeps_empty: whether an empty array, or none, gives a row with NULL.

    Raises:
        DataError: arrays in one row have different lengths.
    """
    arrays = {name: combine_array(table.column(name)) for name in lists}
    length = pc.fill_null(pc.list_value_length(arrays[lists[0]]), 0).to_numpy()
    rows = np.maximum(length, 1) if keeps_empty else length
    row_n = np.repeat(np.arange(len(rows)), rows)
    place_n = np.arange(len(row_n)) - np.repeat(np.cumsum(rows) - rows, rows)
    filled = place_n < length[row_n]
    at = pa.array((np.cumsum(length) - length)[row_n] + place_n, mask=~filled)
    others = [name for name in table.column_names if name not in arrays]
    columns = {name: table.column(name).take(pa.array(row_n)) for name in others}
    for name, column in arrays.items():
        if (pc.fill_null(pc.list_value_length(column), 0).to_numpy() != length).any():
            raise make_lengths_error(what, name, lists[0])
        columns[name] = column.flatten().take(at)
    return columns, place_n


def make_lengths_error(what: str, name: str, item: str) -> DataError:
    """Return the error for arrays in one row with different lengths."""
    return DataError(f"{what}: arrays of {name} and {item} have different lengths", "one for each")


def is_list(kind: pa.DataType) -> bool:
    """Return whether a type is an array."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _split_table(table: pa.Table) -> pa.Table:
    column = table.column("item_id")
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return table
    separator = find_separator(column.slice(0, SAMPLE).to_pylist())
    if separator is None:
        return table
    parts = pc.split_pattern(pc.replace_substring_regex(column, AROUND, ""), separator)
    cells = ((part.strip(" \t\r\n[](){}'\"") for part in cell or ()) for cell in parts.to_pylist())
    lists = [[part for part in cell if part] for cell in cells]
    at = table.column_names.index("item_id")
    return table.set_column(at, "item_id", pa.array(lists, pa.list_(pa.string())))


def _open_structs(columns: dict[str, pa.Array], what: str) -> dict[str, pa.Array]:
    items = columns["item_id"]
    if not pa.types.is_struct(items.type):
        return columns
    item, number = name_fields([field.name for field in items.type], what)
    columns["item_id"] = pc.struct_field(items, item)
    if number and what in NUMBERS:
        columns[NUMBERS[what]] = pc.struct_field(items, number)
    return columns


def name_fields(names: Sequence[str], what: str) -> tuple[str, str | None]:
    """Return the item's field and its number's in a struct.

    Structs look like `struct<item, rating>`.

    Raises:
        SchemaError: not one field beside the numbers.
    """
    numbers = [name for name in names if name.lower() in FIELDS]
    items = [name for name in names if name not in numbers]
    if len(items) != 1:
        message = f"{what}: which of {', '.join(names)} is the item?"
        raise SchemaError(message, "give a struct<item, rating>")
    return items[0], next(iter(numbers), None)


# ------------------------------------------------------------------------------------------ Spark


def unfold_frame(frame: DataFrame, what: str) -> DataFrame:
    """Unfold a Spark frame, as `unfold_table` unfolds tables."""
    from pyspark.sql import functions as F  # noqa: PLC0415
    from pyspark.sql import types as T  # noqa: PLC0415

    if frame.columns.count("item_id") != 1:
        return frame
    if may_hold_texts(frame.columns, what) and isinstance(frame.schema["item_id"].dataType, T.StringType):
        cells = [row[0] for row in frame.select("item_id").limit(SAMPLE).collect()]
        separator = find_separator(cells)
        if separator is not None:
            bare = F.split(F.regexp_replace("item_id", AROUND, ""), f"[{separator}]")
            parts = F.transform(bare, lambda part: F.regexp_replace(part, AROUND, ""))
            frame = frame.withColumn("item_id", F.filter(parts, lambda part: part != ""))
    arrays = {one.name for one in frame.schema if isinstance(one.dataType, T.ArrayType)}
    lists = [name for name in VALUES if name in arrays]
    if "item_id" not in lists:
        return frame
    _refuse_lengths(frame, lists, what)
    others = [F.col(f"`{name}`") for name in frame.columns if name not in lists]
    explode = F.posexplode_outer if what == "truth" else F.posexplode
    opened = frame.select(*others, explode(F.arrays_zip(*lists)).alias("_place", "_entry"))
    columns = {name: F.col(f"_entry.{name}") for name in lists}
    kind = frame.schema["item_id"].dataType
    element = kind.elementType if isinstance(kind, T.ArrayType) else kind
    if isinstance(element, T.StructType):
        item, number = name_fields(element.names, what)
        entry = columns["item_id"]
        columns["item_id"] = entry[item]
        if number and what in NUMBERS:
            columns[NUMBERS[what]] = entry[number]
    if what == "lists" and not {"rank", "score"} & {*columns, *frame.columns}:
        columns["rank"] = F.col("_place") + 1
    return opened.select(*others, *(column.alias(name) for name, column in columns.items()))


def _refuse_lengths(frame: DataFrame, lists: Sequence[str], what: str) -> None:
    """Raise DataError if arrays in one row have different lengths.

    A pass over the arrays looks; Spark would fill up the shorter ones.
    """
    from pyspark.sql import functions as F  # noqa: PLC0415

    item, *others = (F.coalesce(F.array_size(name), F.lit(0)) for name in lists)
    if others:
        differ = [F.max(one != item).alias(name) for name, one in zip(lists[1:], others, strict=True)]
        (row,) = frame.select(*differ).collect()
        for name in [name for name in lists[1:] if row[name]]:
            raise make_lengths_error(what, name, lists[0])


def combine_array(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array, whatever its type."""
    whole = column.combine_chunks()
    return pa.concat_arrays(whole.chunks) if isinstance(whole, pa.ChunkedArray) else whole
