"""Check and convert other systems' tables, without Spark.

A converted table holds ids as text. As in Spark's frames, metadata on its id columns say how the ids were
stored. Errors have the same words as Spark's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.core.arrays import Ints
from recbench_spark.core.ids import CANONICAL_INTEGER, as_ids, decode_dictionary
from recbench_spark.errors import DataError, SchemaError
from recbench_spark.schemas import ID_KIND, ID_TYPE, require_names
from recbench_spark.sources.column_names import names_ids
from recbench_spark.sources.input_rules import EXACT_LIMIT, WHOLE_NUMBER
from recbench_spark.storage.shared_arrays import flatten_lists

NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?[dDfF]?$"
"""Pattern for a finite number without blanks around it: Java's `parseDouble` without hexadecimal numbers.
"""

IDS_TYPE = pa.dictionary(pa.int32(), pa.string())
"""Type of ids in a converted table: text, each distinct id once."""

FLOAT32 = pa.list_(pa.float32())


def as_table(frame: Any, what: str) -> pa.Table:
    """Convert a frame to an Arrow table.

    The frame is from pandas, polars (also lazy), Arrow (also a dataset) or DuckDB.

    Raises:
        DataError: Arrow cannot read it as a table.
    """
    try:
        # A lazy frame is computed and a dataset is read; Arrow itself reads a frame with its stream.
        names = () if hasattr(frame, "__arrow_c_stream__") else CONVERTERS
        table = next((getattr(frame, name)() for name in names if getattr(frame, name, None)), frame)
        if isinstance(table, Mapping) and not names_ids(table):
            raise TypeError("its keys are not names of columns such as user_id and item_id")
        if isinstance(table, pa.RecordBatch):
            return pa.Table.from_batches([table])
        # Arrow 18 to 20 would send its own table through C, and crash at views of bytes that a cast made.
        return table if isinstance(table, pa.Table) else pa.table(table)
    except (pa.ArrowException, TypeError, ValueError, OverflowError, AttributeError) as error:
        reason = "; ".join(str(part) for part in error.args) or type(error).__name__
        message = f"{what}: {type(frame).__name__} is not a table that Arrow can read: {reason[:300]}"
        raise DataError(message, DICT_HINT if isinstance(frame, Mapping) else FRAME_HINT) from None


CONVERTERS = ("collect", "to_table", "to_df", "to_dataframe")
"""Methods which make tables: from lazy frames, datasets, LensKit's lists, and ranx's runs and judgements.
"""


DICT_HINT = (
    "turn a dict of users and lists into a frame with one row per user and item: "
    "pd.DataFrame([(user, item, rank) for user, items in lists.items() "
    "for rank, item in enumerate(items, 1)], columns=['user_id', 'item_id', 'rank'])"
)
FRAME_HINT = "give a frame of pandas, polars, pyarrow or DuckDB, with one type per column"


def read_column(table: pa.Table, name: str, what: str) -> pa.Array:
    """Return a column in one piece, with dictionaries decoded.

    Raises:
        SchemaError: the table has two columns with this name.
    """
    require_names(table.column_names, [name], what)
    refuse_repeated(table.column_names, [name], what)
    return combine_column(table.column(name))


def refuse_repeated(names: Sequence[str], wanted: Sequence[str], what: str) -> None:
    """Refuse two wanted columns with one name. Raises SchemaError."""
    for name in wanted:
        if names.count(name) > 1:
            raise SchemaError(f"{what}: more than one column {name}", f"it has {', '.join(names)}")


def combine_column(column: pa.ChunkedArray) -> pa.Array:
    """Return a column in one piece, with dictionaries decoded."""
    if pa.types.is_dictionary(column.type):
        column = decode_dictionary(column)
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


SPARK_NAMES = {
    "int64": "bigint",
    "int32": "int",
    "int16": "smallint",
    "int8": "tinyint",
    "large_string": "string",
    "string_view": "string",
    "bool": "boolean",
    "null": "void",
}
"""Spark's names for Arrow types. Types not listed have the same name in both."""


# ------------------------------------------------------------------------------------------ ids


def encode_ids(table: pa.Table, name: str, what: str) -> tuple[pa.Field, pa.Array]:
    """Convert ids to text in a dictionary, each id once.

    Returns:
        The field, whose metadata say how the ids were stored, and the column.

    Raises:
        SchemaError: a type that holds no ids. DataError: a value that is no id.
    """
    require_names(table.column_names, [name], what)
    refuse_repeated(table.column_names, [name], what)
    metadata = table.schema.field(name).metadata or {}
    raw = table.column(name)
    ids, place_r = _convert_ids(raw, f"{what}: {name}")
    notes = {
        ID_KIND: metadata.get(ID_KIND.encode(), b"integer" if ids.type == pa.int64() else b"string"),
        ID_TYPE: metadata.get(ID_TYPE.encode(), str(raw.type).encode()),
    }
    coded = ids.dictionary_encode()
    index_r = coded.indices if place_r is None else coded.indices.take(place_r)
    texts = pa.DictionaryArray.from_arrays(index_r, coded.dictionary.cast(pa.string()))
    return pa.field(name, IDS_TYPE, metadata=notes), texts


def _convert_ids(raw: pa.ChunkedArray, what: str) -> tuple[pa.Array, pa.Array | None]:
    """Convert ids; those in a dictionary once each, with rows' places in them."""
    if pa.types.is_dictionary(raw.type):
        whole = raw.unify_dictionaries().combine_chunks()
        coded = whole.indices.dictionary_encode()  # in the order in which rows use them, without the others
        values = decode_dictionary(pa.DictionaryArray.from_arrays(coded.dictionary, whole.dictionary))
        with suppress(DataError):  # it would count ids: the message below counts rows
            return combine_column(as_ids(pa.chunked_array([values]), what)), coded.indices
    return combine_column(as_ids(raw, what)), None


def has_numeric_order(tables: Sequence[pa.Table], name: str = "item_id") -> bool:
    """Return whether ids in converted tables sort as numbers."""
    kinds = {table.schema.field(name).metadata[ID_KIND.encode()] for table in tables}
    texts = [t.column(name) for t in tables if t.schema.field(name).metadata[ID_KIND.encode()] == b"text"]
    are_numbers = pc.match_substring_regex(distinct_ids(texts), CANONICAL_INTEGER)
    return kinds <= {b"text", b"integer"} and bool(pc.all(are_numbers, min_count=0).as_py())


def distinct_ids(columns: Sequence[pa.ChunkedArray | pa.Array]) -> pa.Array:
    """Return distinct ids in order of first occurrence, without NULL."""
    chunks = [chunk for column in columns for chunk in getattr(column, "chunks", [column])]
    texts = [pc.unique(_list_texts(chunk)).drop_null() for chunk in chunks]
    return pc.unique(pa.chunked_array(texts, pa.string()))


def _list_texts(chunk: pa.Array) -> pa.Array:
    """Return a dictionary column's used texts in row order.

    A plain column is returned as it is.
    """
    if not pa.types.is_dictionary(chunk.type):
        return chunk
    if not chunk.indices.null_count:
        # After encoding, rows use all codes, in order, such as 0 0 1 0 2.
        highest = np.maximum.accumulate(np.append(-1, chunk.indices.to_numpy()))
        if np.all(np.diff(highest) <= 1) and highest[-1] + 1 == len(chunk.dictionary):
            return chunk.dictionary
    return chunk.dictionary.take(pc.unique(chunk.indices))


def find_indices(values: pa.ChunkedArray | pa.Array, known: pa.Array) -> Ints:
    """Return (r,) each id's index in `known`, or -1.

    NULL, and an id missing from `known`, have -1.
    """
    chunks = [_find_chunk_indices(chunk, known) for chunk in getattr(values, "chunks", [values])]
    return np.concatenate(chunks) if chunks else np.zeros(0, np.int64)


def _find_chunk_indices(chunk: pa.Array, known: pa.Array) -> Ints:
    plain = chunk.dictionary if pa.types.is_dictionary(chunk.type) else chunk
    index: Ints = pc.fill_null(pc.index_in(plain, value_set=known), -1).to_numpy().astype(np.int64)
    return index if plain is chunk else np.append(index, -1)[pc.fill_null(chunk.indices, -1).to_numpy()]


# ----------------------------------------------------------------------------------------- values


def mask_unusable(name: str, column: pa.Array) -> npt.NDArray[np.bool_]:
    """Mask unusable values: NULL, NaN, infinite, or ranks below 1."""
    values = np.asarray(column.to_numpy(zero_copy_only=False), np.float64)
    bad = np.asarray(column.is_null()) | ~np.isfinite(values)
    return bad | (values < 1) | (values >= EXACT_LIMIT) if name == "rank" else bad


def as_double(column: pa.Array, name: str, *, exact: bool = False) -> pa.Array:
    """Convert to float64; texts without a number become NULL.

    With `exact`, a whole number beyond 2^53 becomes NULL, too, also as a text.

    Raises:
        SchemaError: a type that holds no numbers.
    """
    kind = column.type
    if is_text(kind):
        number = _parse_numbers(column)
        return pc.if_else(find_inexact(column, number), None, number) if exact else number
    if pa.types.is_decimal(kind):
        number = column.cast(pa.string()).cast(pa.float64())  # Arrow's direct cast can be wrong by one bit
        exact = exact and not kind.scale
    elif pa.types.is_integer(kind) or pa.types.is_null(kind):
        number = column.cast(pa.float64(), safe=False)
        exact = exact and kind in (pa.int64(), pa.uint64())
    elif pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        number = column.cast(pa.int8() if pa.types.is_boolean(kind) else kind).cast(pa.float64())
        exact = False
    else:
        raise SchemaError(f"{name} is {kind}, not a number", f"give {name} as a number")
    return pc.if_else(pc.less(pc.abs(number), EXACT_LIMIT), number, None) if exact else number


def as_mask(values: pa.Array | pa.ChunkedArray) -> npt.NDArray[np.bool_]:
    """Return flags for numpy, False for NULL."""
    return np.asarray(pc.fill_null(values, False), np.bool_)


def find_inexact(column: pa.Array, number: pa.Array) -> pa.Array:
    """Mark texts with whole numbers too large for float64.

    From 2^53 on, float64 merges some.
    """
    whole = pc.match_substring_regex(pc.ascii_trim_whitespace(column.cast(pa.string())), WHOLE_NUMBER)
    return pc.and_(whole, pc.fill_null(pc.greater_equal(pc.abs(number), EXACT_LIMIT), False))


def as_long(column: pa.Array, name: str) -> pa.Array:
    """Convert to int64; values which do not fit become NULL.

    A value that does not fit is no whole number, or too large for int64.
    """
    if is_text(column.type):
        text = pc.ascii_trim_whitespace(column.cast(pa.string()))
        fits = pc.match_substring_regex(text, "^[+-]?0*[0-9]{1,18}$")
        return pc.if_else(fits, pc.replace_substring_regex(text, r"^\+", ""), None).cast(pa.int64())
    if pa.types.is_boolean(column.type):
        return pa.nulls(len(column), pa.int64())
    if pa.types.is_integer(column.type) and column.type != pa.uint64():
        return column.cast(pa.int64())
    number = as_double(column, name)
    whole = pc.and_(pc.equal(number, pc.floor(number)), pc.less(pc.abs(number), 2.0**63))
    return pc.if_else(whole, number, None).cast(pa.int64(), safe=False)


def is_text(kind: pa.DataType) -> bool:
    """Return whether a type is text."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _parse_numbers(column: pa.Array) -> pa.Array:
    text = pc.ascii_trim_whitespace(column.cast(pa.string()))
    fits = pc.match_substring_regex(text, NUMBER)
    return pc.replace_substring_regex(pc.if_else(fits, text, None), r"^\+|[dDfF]$", "").cast(pa.float64())


# ---------------------------------------------------------------------------------------- vectors


def as_vectors(column: pa.Array, what: str) -> pa.Array:
    """Convert lists to lists of float32, rounded to the nearest.

    Raises:
        SchemaError: the column holds no lists of numbers.
    """
    kind = column.type
    tests = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    element = kind.value_type if any(test(kind) for test in tests) else None
    numbers = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_null)
    if element is None or not any(test(element) for test in numbers):
        message = f"{what}: column 'vector' is {kind}, not an array of numbers"
        raise SchemaError(message, "give lists of numbers")
    return column.cast(pa.list_(element)).cast(FLOAT32, safe=False)


def find_wrong_vectors(vectors: pa.Array, bias: pa.Array) -> dict[str, int]:
    """Count vectors and biases with NaN or infinity, by column."""
    offsets, values = flatten_lists(vectors)
    values = values.astype(np.float32)
    bad_u = np.zeros(len(vectors), bool)
    bad_u[np.repeat(np.arange(len(vectors)), np.diff(offsets))[~np.isfinite(values)]] = True
    biases = bias.drop_null().to_numpy()
    return {"vector": int(bad_u.sum()), "bias": int((~np.isfinite(biases)).sum())}


def spell_values(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return values as text, spelled as in Spark's casts.

    >>> spell_values(pa.chunked_array([[1.0, 1e10, 0.0001, None]])).to_pylist()
    ['1.0', '1.0E10', '1.0E-4', None]
    """
    if pa.types.is_floating(column.type):
        if pa.types.is_float16(column.type):
            column = column.cast(pa.float32())
        codes = column.combine_chunks().dictionary_encode()
        texts = pa.array(map(_spell_float, codes.dictionary.to_numpy()), pa.string())
        return pa.chunked_array([texts.take(codes.indices)])
    if pa.types.is_timestamp(column.type):  # the fraction without zeros at its end
        texts = column.cast(pa.timestamp("us"), safe=False).cast(pa.string())
        return pc.replace_substring_regex(texts, r"\.?0+$", "")
    return column.cast(pa.string())


def _spell_float(value: np.floating) -> str:
    if not np.isfinite(value):
        return "NaN" if np.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return np.format_float_positional(value, trim="0")
    text = np.format_float_scientific(value, trim="0", exp_digits=1)
    return text.replace("e+", "E").replace("e", "E")
