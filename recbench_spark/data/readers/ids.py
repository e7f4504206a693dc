"""Convert ids by the type of their column (see `kernels.ids`), and decide if they are ordered as
numbers.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from recbench_spark.data.readers.files import column, keeps_replacements
from recbench_spark.data.text_layouts import IN_UTF8, TEXT_FILE
from recbench_spark.data.text_pieces import BAD_LINE
from recbench_spark.engine.versions import is_utf8, try_cast
from recbench_spark.errors import SchemaError
from recbench_spark.kernels.ids import (
    EXACT_BITS,
    IDS_AS_TEXT,
    SAFE_DIGITS,
    WHOLE_FLOAT,
    float_id_rule,
)
from recbench_spark.schemas import ID_KIND, ID_TYPE


@dataclass(frozen=True)
class IdColumn:
    """A column of ids.

    Attributes:
        text: the ids as text.
        bad: the rows without a valid id; None where there can be none.
        expected: the description of a valid id.
        kind: `integer`, `string`, or `text` where only the values can decide.
        stored: the stored type, for messages.
        hint: advice for bad rows.
    """

    text: Column
    bad: Column | None
    expected: str
    kind: str
    stored: str
    hint: str = IDS_AS_TEXT

    @property
    def notes(self) -> dict[str, str]:
        """Metadata of the column."""
        return {ID_KIND: self.kind, ID_TYPE: self.stored}


def convert_ids(
    frame: DataFrame, name: str, where: str, *, text_file: bool = False, floats: bool = False
) -> IdColumn:
    """Convert a column to ids; NULL, NaN and texts that are empty or blanks alone become NULL.

    Args:
        frame: a frame with the column, and with BAD_LINE where it is from a text file.
        name: the column's name.
        where: the frame's name in messages.
        text_file: whether its columns are fields of a text file.
        floats: whether such fields may be whole floats, which some formats never hold. This reads the
            first row, and makes one pass over a column that begins as `10.0`.

    Raises:
        SchemaError: the column has a type that holds no ids.
    """
    if text_file:
        return _field_ids(frame, name, where, floats=floats)
    raw, kind, metadata = column(name), frame.schema[name].dataType, frame.schema[name].metadata
    if isinstance(kind, T.IntegralType | T.NullType):
        return IdColumn(raw.cast("string"), None, "an id", "integer", kind.simpleString())
    if isinstance(kind, T.FloatType | T.DoubleType):
        return _float_ids(raw, kind)
    if isinstance(kind, T.DecimalType):
        return _decimal_ids(raw, kind)
    if isinstance(kind, T.BooleanType):
        return IdColumn(raw.cast("string"), None, "an id", "string", "boolean")
    if isinstance(kind, T.StringType | T.BinaryType):
        bad = ~is_utf8(raw.cast("string"))
        stored = metadata.get(ID_TYPE, kind.simpleString())
        text = _drop_empty(raw.cast("string"))
        return IdColumn(text, bad, "text in UTF-8", metadata.get(ID_KIND, "string"), stored)
    raise SchemaError(f"{where}: column '{name}' is {kind.simpleString()}, which holds no ids", IDS_AS_TEXT)


def _drop_empty(text: Column) -> Column:
    return F.when(F.trim(text) != "", text)


def _float_ids(raw: Column, kind: T.DataType, stored: str | None = None) -> IdColumn:
    bits = EXACT_BITS[kind.simpleString()]
    is_number = ~F.isnan(raw)
    bad = is_number & ~((raw == F.floor(raw)) & (F.abs(raw) < F.lit(2.0**bits)))
    # try_cast makes infinity NULL, since it is no whole number; `bad` reports it where it is checked.
    text = F.when(is_number, try_cast(raw, "bigint").cast("string"))
    return IdColumn(text, bad, f"an id ({float_id_rule(bits)})", "integer", stored or kind.simpleString())


def _decimal_ids(raw: Column, kind: T.DecimalType) -> IdColumn:
    digits = max(kind.precision - kind.scale, 1)
    whole = try_cast(raw, T.DecimalType(digits, 0))
    bad = raw.isNotNull() & (whole.isNull() | (raw != whole))
    id_kind = "integer" if digits <= SAFE_DIGITS else "text"
    return IdColumn(whole.cast("string"), bad, "an id (a whole number)", id_kind, kind.simpleString())


# ----------------------------------------------------------------------------- fields of text files


def _field_ids(frame: DataFrame, name: str, where: str, *, floats: bool) -> IdColumn:
    raw, metadata = column(name), frame.schema[name].metadata
    if ID_TYPE in metadata:  # the name of a folder, which Spark does not provide together with BAD_LINE
        return IdColumn(_drop_empty(raw), None, "text in UTF-8", metadata[ID_KIND], metadata[ID_TYPE])
    if floats and _is_whole_floats(frame, name):
        print(
            f"note: {where}: {name} is whole floats throughout, such as 10.0: read as whole numbers, 10",
            file=sys.stderr,
        )
        return _float_ids(try_cast(raw, "double"), T.DoubleType(), f"{TEXT_FILE}, whole floats")
    bad = has_replacement(frame, name)
    return IdColumn(_drop_empty(raw), bad, "text in UTF-8", "text", TEXT_FILE, IN_UTF8)


def has_replacement(frame: DataFrame, name: str) -> Column | None:
    """Return a test for fields with U+FFFD, which replaces undecodable bytes; None where it is intended."""
    return None if keeps_replacements(frame.sparkSession) else column(name).contains("\ufffd")


def _is_whole_floats(frame: DataFrame, name: str) -> bool:
    """Check whether all fields are whole floats; for most columns the first row shows that they are not."""
    is_known = _drop_empty(column(name)).isNotNull() & (F.lower(column(name)) != "nan")
    present = frame.where(is_known & F.col(BAD_LINE).isNull())
    # Spark refuses to read BAD_LINE alone, so it is read with the column.
    first = present.select(column(name).alias("id"), BAD_LINE).limit(1).collect()
    if not first or first[0]["id"] is None:
        return False
    other = present.where(~column(name).rlike(WHOLE_FLOAT)).select(column(name), BAD_LINE)
    return _looks_whole(first[0]["id"]) and not other.limit(1).collect()


def _looks_whole(text: str) -> bool:
    return text.endswith(".0") or "e+" in text.lower()
