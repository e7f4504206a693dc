"""Convert id and weight columns of edge lists to arrays."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.core.ids import CANONICAL_INTEGER, WHOLE_FLOAT, as_ids, drop_empty
from recbench_spark.errors import DataError, SchemaError


def to_id_array(
    column: pa.ChunkedArray | pa.Array, numeric: bool, what: str = "ids", *, floats: bool = False
) -> pa.Array:
    """Return ids as int64 or as texts, in one chunk.

    The rules are those of `core.ids`; NULL and NaN become NULL.

    Args:
        column: values of one type.
        numeric: true if ids are whole numbers; texts must then spell them (`7`, never `07`).
        what: the ids' name in errors.
        floats: true if texts spell whole floats (`10.0`).

    Raises:
        DataError: a value is no id, or no whole number.
    """
    chunks = column if isinstance(column, pa.ChunkedArray) else pa.chunked_array([column])
    ids = as_ids(_parse_whole_floats(chunks, what) if floats else chunks, what)
    if numeric and not pa.types.is_integer(ids.type):
        ids = _parse_whole_numbers(ids, what)
    array = ids.cast(pa.int64() if numeric else pa.string()).combine_chunks()
    return array if isinstance(array, pa.Array) else pa.concat_arrays(array.chunks)


def _parse_whole_numbers(texts: pa.ChunkedArray, what: str) -> pa.ChunkedArray:
    """Parse texts as whole numbers, or raise DataError."""
    hint = "ids of a graph are all whole numbers or all texts: ids: text (--ids text)"
    try:
        parsed = texts.cast(pa.int64())
        odd = pc.not_equal(parsed.cast(pa.string()), texts)
    except pa.ArrowInvalid:
        odd = pc.invert(pc.match_substring_regex(texts, CANONICAL_INTEGER))
        parsed = None
    wrong = texts.filter(pc.fill_null(odd, False))
    if parsed is None or len(wrong):
        example = wrong[0].as_py() if len(wrong) else texts.drop_null()[0].as_py()
        raise DataError(f"{what}: {len(wrong)} ids are not whole numbers, e.g. {example!r}", hint)
    return parsed


def _parse_whole_floats(texts: pa.ChunkedArray, what: str) -> pa.ChunkedArray:
    texts = drop_empty(texts)
    odd = texts.filter(pc.fill_null(pc.invert(pc.match_substring_regex(texts, WHOLE_FLOAT)), False))
    if len(odd):
        raise DataError(
            f"{what}: {len(odd)} ids are not written as the others, e.g. {odd[0].as_py()!r} beside 10.0",
            "one spelling for all, or take them as they are written: ids: text (--ids text)",
        )
    return texts.cast(pa.float64())


def parse_weights(column: pa.ChunkedArray | pa.Array, what: str) -> npt.NDArray[np.float64]:
    """Return a weight column as (r,) float64; NULL becomes NaN.

    Raises:
        DataError: a text is no number. SchemaError: the type holds no numbers.
    """
    chunks = column if isinstance(column, pa.ChunkedArray) else pa.chunked_array([column])
    kind = chunks.type
    tests = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_null)
    if not (pa.types.is_string(kind) or any(test(kind) for test in tests)):
        raise SchemaError(f"{what} is of type {kind}", "weights are numbers")
    if pa.types.is_string(kind):
        chunks = pc.utf8_trim_whitespace(chunks)
        missing = pc.is_in(pc.utf8_lower(chunks), pa.array(MISSING_NUMBERS))
        chunks = pc.if_else(missing, pa.scalar(None, pa.string()), chunks)
    try:
        parsed = chunks.cast(pa.float64(), safe=False)
    except pa.ArrowInvalid:
        odd = next(filter(_is_no_number, chunks)).as_py()
        raise DataError(f"{what}: {odd!r} is not a number", "mend it; weights are numbers") from None
    values: npt.NDArray[np.float64] = pc.fill_null(parsed, float("nan")).to_numpy()
    return values


def _is_no_number(text: pa.Scalar) -> bool:
    """Tell whether Arrow refuses a text as a number.

    Python would accept `1_0`.
    """
    try:
        text.cast(pa.float64())
    except pa.ArrowInvalid:
        return True
    return False


MISSING_NUMBERS = ("na", "n/a", "null", "none", "nan")
"""Spellings for a missing number, in small letters."""
