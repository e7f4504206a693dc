"""The rule of ids, slowly: what a value in a column of a type is called, from the text of `core.ids`."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa

BITS = {"halffloat": 11, "float": 24, "double": 53}


def make_id(kind: pa.DataType, value: Any) -> str | None:
    """The id as text; None where it is missing. ValueError where it is none."""
    if value is None:
        return None
    if pa.types.is_floating(kind):
        if math.isnan(value):
            return None
        if math.isinf(value) or value != int(value) or abs(int(value)) >= 2 ** BITS[str(kind)]:
            raise ValueError(value)
        return str(int(value))
    if pa.types.is_decimal(kind):
        if Decimal(value) % 1:
            raise ValueError(value)
        return str(int(value))
    if pa.types.is_boolean(kind):
        return "true" if value else "false"
    text = value.decode() if isinstance(value, bytes) else str(value)
    return text if text.strip(" ") else None


def make_csv_ids(fields: Sequence[str | None]) -> list[str | None]:
    """The ids of a column of a text file."""
    fields = [field if field and field.strip(" ") else None for field in fields]
    known = [field for field in fields if field is not None and field.lower() != "nan"]
    if not known or not all(re.fullmatch(r"-?\d+\.0|-?\d(\.\d+)?[eE]\+\d\d\d?", field) for field in known):
        return list(fields)
    return [None if field is None else make_id(pa.float64(), float(field)) for field in fields]


WHOLE = [10, 11, 2, None]
GOOD: dict[str, tuple[pa.DataType, list[Any]]] = {
    **{str(kind): (kind, WHOLE) for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())},
    **{str(kind): (kind, WHOLE) for kind in (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())},
    "large int64": (pa.int64(), [2**63 - 1, -(2**63), 2**53, 2**53 + 1]),
    "large uint64": (pa.uint64(), [2**64 - 1, 2**64 - 2, 7]),
    "float": (pa.float32(), [10.0, -11.0, 2.0**24 - 1, None, math.nan]),
    "double": (pa.float64(), [10.0, -11.0, -0.0, 2.0**53 - 1, None, math.nan]),
    "decimal": (pa.decimal128(12, 2), [Decimal("10.00"), Decimal("-11.00"), None]),
    "wide decimal": (pa.decimal128(38, 3), [Decimal("10.000"), Decimal(10**25)]),
    "narrow in wide": (pa.decimal128(38, 3), [Decimal("10.000"), Decimal("9.000")]),
    "text": (pa.string(), ["7", "007", " 7", "7 ", "7.0", "", " ", "   ", "\t", "NA", "é", "\ufffd", None]),
    "large_string": (pa.large_string(), ["7", "007", None]),
    "bytes": (pa.binary(), [b"7", b"", b" ", "é".encode(), None]),
    "bool": (pa.bool_(), [True, False, None]),
}
"""Column types with values that are ids, or missing."""

BAD: dict[str, tuple[pa.DataType, list[Any], str]] = {
    "half": (pa.float64(), [1.0, 1.5], "1.5"),
    "2^53": (pa.float64(), [1.0, 2.0**53], "9007199254740992|9.00719"),
    "-2^53": (pa.float64(), [1.0, -(2.0**53)], "-9007199254740992|-9.00719"),
    "infinite": (pa.float64(), [1.0, math.inf], "inf|Inf"),
    "2^24 of 32 bits": (pa.float32(), [1.0, 2.0**24], "16777216|1.6777216E7"),
    "decimal": (pa.decimal128(12, 2), [Decimal("1.00"), Decimal("10.50")], "10.50"),
    "wide decimal": (pa.decimal128(38, 2), [Decimal("1.00"), Decimal("10.50")], "10.50"),
    "bytes": (pa.binary(), [b"a", b"caf\xe9"], "caf"),
}
"""Column types with a value that is not an id, and what the error shows of it."""


def column(kind: pa.DataType, values: list[Any]) -> pa.Array:
    return pa.array(values, kind, from_pandas=False)


def not_utf8() -> pa.Array:
    """A column of text whose second value is Latin-1."""
    return pa.array([b"a", b"caf\xe9"]).view(pa.string())
