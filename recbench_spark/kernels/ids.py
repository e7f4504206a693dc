"""What an id is, by the type of its column; and whether the ids of two tables can meet.

    whole numbers           their digits
    floats                  the whole number they stand for; NaN is a missing id. Refused: floats not
                            whole, and from 2^53 on (float32: 2^24, float16: 2^11), where neighbours are one
    decimals                the whole number they stand for; refused where they are not whole
    text                    as it is, white space and leading zeros too; refused where it is not UTF-8
    bytes                   the text that they spell in UTF-8
    booleans                `true` and `false`
    dictionaries            as their values
    anything else           refused

Fields of a text file are text, except where a column is whole floats throughout (`10.0`, as pandas writes
whole numbers beside a missing one): these are the whole numbers, and that is said. Here the rule is carried
out for Arrow, in `data.readers.ids` for Spark; `tests/id_rule.py` is the rule that both are tested against.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.errors import DataError, SchemaError

EXACT_BITS = {"halffloat": 11, "float": 24, "double": 53}
"""Bits of whole numbers that floats of a type (Arrow's and Spark's name) tell from each other."""

SAFE_DIGITS = 18
"""Whole numbers of so many digits fit 64 bits."""

CANONICAL_INTEGER = "^(0|-?[1-9][0-9]{0,17})$"
"""Text that is the only spelling of its number, and fits 64 bits."""

WHOLE_FLOAT = r"^-?(0|[1-9][0-9]*)\.0$|^-?[1-9](\.[0-9]+)?[eE]\+[0-9]{2,3}$"
"""How whole floats stand in text files: `10.0`, from 10^16 on `1e+16`."""

IDS_AS_TEXT = "write ids as whole numbers or as text"

FEW = 0.01
"""Share of common ids below which two tables are thought not to belong together."""

MANY = 100
"""Ids that a side must have before so small a share says anything."""


def float_id_rule(bits: int) -> str:
    """What a float must be to be an id."""
    return f"a whole number below 2^{bits} (floats do not tell larger ones apart)"


def as_ids(column: pa.ChunkedArray, what: str) -> pa.ChunkedArray:
    """Ids by the rule above: int64 where they are whole numbers, else text; NULL and NaN are NULL.

    Decimals of more than 18 digits and uint64 are int64 where all of them have at most 18, else text.

    Args:
        column: of one type.
        what: table and column, as errors name them.

    Raises:
        SchemaError: a type that holds no ids. DataError: a value that is none.
    """
    kind = column.type
    if pa.types.is_dictionary(kind):
        return as_ids(decode_dictionary(column), what)
    if pa.types.is_floating(kind):
        return _floats_to_ids(column, what)
    if pa.types.is_null(kind) or (pa.types.is_integer(kind) and kind != pa.uint64()):
        return column.cast(pa.int64())
    if pa.types.is_decimal(kind) or kind == pa.uint64():
        return _decimals_to_ids(column, what)
    if pa.types.is_boolean(kind) or _is_text(kind):
        return _text_to_ids(column, what)
    raise SchemaError(f"{what} is {kind}, which holds no ids", IDS_AS_TEXT)


def decode_dictionary(column: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray | pa.Array:
    """Return a column of a dictionary as its values; text views (Categorical of polars) as text."""
    if isinstance(column, pa.ChunkedArray):
        kind = _plain(column.type.value_type)
        return pa.chunked_array([decode_dictionary(chunk) for chunk in column.chunks], kind)
    return column.dictionary.cast(_plain(column.type.value_type)).take(column.indices)


def _plain(kind: pa.DataType) -> pa.DataType:
    """The type of values that Arrow takes by place: it has no such function of text views."""
    return pa.large_string() if pa.types.is_string_view(kind) else kind


def _is_text(kind: pa.DataType) -> bool:
    tests = ("is_string", "is_large_string", "is_string_view", "is_binary", "is_large_binary")
    more = ("is_binary_view", "is_fixed_size_binary")
    return any(getattr(pa.types, test)(kind) for test in (*tests, *more))


def _floats_to_ids(column: pa.ChunkedArray, what: str) -> pa.ChunkedArray:
    bits = EXACT_BITS[str(column.type)]
    number = column.cast(pa.float64())
    known = pc.if_else(pc.is_nan(number), pa.scalar(None, pa.float64()), number)
    whole = pc.and_(pc.equal(known, pc.floor(known)), pc.less(pc.abs(known), 2.0**bits))
    _refuse(column, pc.invert(whole), what, float_id_rule(bits))
    return known.cast(pa.int64())


def _decimals_to_ids(column: pa.ChunkedArray, what: str) -> pa.ChunkedArray:
    if pa.types.is_decimal(column.type):
        _refuse(column, pc.not_equal(column, pc.floor(column)), what, "a whole number")
    written = column.cast(pa.string())
    digits = pc.replace_substring_regex(written, r"\.0*$", "")
    if pa.types.is_decimal(column.type) and column.type.precision - column.type.scale <= SAFE_DIGITS:
        return digits.cast(pa.int64())
    fits = pc.match_substring_regex(digits, CANONICAL_INTEGER)
    return digits.cast(pa.int64()) if pc.all(fits, min_count=0).as_py() else digits


def _text_to_ids(column: pa.ChunkedArray, what: str) -> pa.ChunkedArray:
    raw = column.cast(pa.large_binary()) if not pa.types.is_boolean(column.type) else column
    try:
        found = raw.cast(pa.string())
        found.validate(full=True)
    except pa.ArrowInvalid:
        _refuse(raw, pa.chunked_array([[not _is_utf8(v) for v in raw.to_pylist()]]), what, "text in UTF-8")
        raise
    return found


def _is_utf8(value: bytes | None) -> bool:
    try:
        return value is None or value.decode() is not None
    except UnicodeDecodeError:
        return False


def _refuse(column: pa.ChunkedArray, bad: pa.ChunkedArray, what: str, expected: str) -> None:
    wrong = column.filter(pc.fill_null(bad, False))
    if len(wrong):
        first = wrong[0].as_py()
        raise DataError(
            f"{what}: {len(wrong)} rows ({column.type}) are not {expected}, e.g. {first!r}", IDS_AS_TEXT
        )


# ------------------------------------------------------------------------------- ids that do not meet


@dataclass(frozen=True)
class IdArray:
    """One column of one table: its name, its type as it is stored, and three of its ids."""

    what: str
    kind: str
    first: Sequence[str | int]

    def told(self) -> str:
        """In one line."""
        return f"{self.what} ({self.kind}): {', '.join(repr(one) for one in self.first)}"


@dataclass(frozen=True)
class IdOverlap:
    """How many distinct ids two sides have, how many in common, and how many are whole numbers.

    Text counts as a whole number in its one spelling: no leading zeros, no white space.
    """

    n: tuple[int, int]
    common: int
    numbers: tuple[int, int]

    @property
    def share(self) -> float:
        """Of the smaller side's ids, those that the other has too; 1 where there are none."""
        return self.common / min(self.n) if min(self.n) else 1.0

    @property
    def is_disjoint(self) -> bool:
        """Whether one side is whole numbers throughout and the other has none: no two can be equal."""
        return any(self.numbers[a] == self.n[a] and not self.numbers[1 - a] for a in (0, 1))

    @property
    def few(self) -> bool:
        """Whether so few are common that the tables hardly belong together."""
        return self.share < FEW and min(self.n) >= MANY

    def fails(self, must: bool) -> bool:
        """Whether nothing is common, of ids that must meet or that cannot."""
        return self.share == 0 and (must or self.is_disjoint)

    def told(self, left: IdArray, right: IdArray) -> str:
        """Both sides with types and examples."""
        numbers = f"{self.common} ids in common, of {self.n[0]} and {self.n[1]}"
        return f"{numbers}; {left.told()}; {right.told()}"

    def refuse(self, left: IdArray, right: IdArray, must: bool) -> None:
        """DataError where it fails."""
        if self.fails(must):
            raise DataError(
                f"{left.what} and {right.what} have no id in common\n  {left.told()}\n  {right.told()}",
                "spell ids alike in both tables: the whole number 7 and the text '7' are one id, 'u7' and "
                "'007' are others",
            )
