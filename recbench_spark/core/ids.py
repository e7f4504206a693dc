"""Ids: one definition for each column type, and common ids.

    whole numbers           their digits
    floats                  the whole number they stand for; NaN is a missing id. Refused: floats not
                            whole, and from 2^53 on (float32: 2^24, float16: 2^11), where neighbours are one
    decimals                the whole number they stand for; refused if they are not whole
    text                    unchanged, with white space and leading zeros; empty text, or blanks alone, is
                            a missing id; refused if it is not UTF-8
    bytes                   the text they spell in UTF-8
    booleans                `true` and `false`
    dictionaries            as their values
    anything else           refused

NULL and a key missing in a JSON object are missing ids, too. Every other text is an id: `NULL`, `NA` and
`nan` are what a file calls somebody, and a check of the log names them (`PLACEHOLDERS`).

Fields in a text file are text, except if a column has whole floats throughout (`10.0`, as pandas writes
whole numbers beside a missing one): these become the whole numbers, NaN beside them is a missing id, and a
message says so. This module is tested against the rule in `tests/id_rule.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.errors import DataError, SchemaError

EXACT_BITS = {"halffloat": 11, "float": 24, "double": 53}
"""Bits for whole numbers which a type of floats (Arrow's and Spark's name) can tell apart."""

SAFE_DIGITS = 18
"""Whole numbers with so many digits fit into 64 bits."""

CANONICAL_INTEGER = "^(0|-?[1-9][0-9]{0,17})$"
"""Text with the only spelling of its number, which fits into 64 bits."""

WHOLE_FLOAT = r"^-?(0|[1-9][0-9]*)\.0$|^-?[1-9](\.[0-9]+)?[eE]\+[0-9]{2,3}$|^[nN][aA][nN]$"
"""Whole floats as text files spell them: `10.0`, from 10^16 on `1e+16`; and NaN, which is missing."""

IDS_AS_TEXT = "write ids as whole numbers or as text"

PLACEHOLDERS = frozenset(
    {
        *("null", "none", "nan", "na", "n/a", "<na>", "nil", "\\n", "-"),
        *("undefined", "unknown", "anonymous", "guest"),
    }
)
"""Texts, in small letters, which often stand for a missing id. They are ids; a check warns of them."""

FEW = 0.01
"""Share of common ids below which two tables probably do not belong together."""

MANY = 100
"""Smallest number of a side's ids for which such a small share means anything."""

MEET = 0.1
"""Share of common ids from which another spelling shows that the tables belong together."""

NEARLY_ALL = 0.9
"""Share of common ids below which a warning names a spelling that reaches it."""

LETTER_CASE = "capital letters"
"""The change to small letters; `SPELLINGS` has no pattern for it."""

SPELLINGS: dict[str, tuple[str, str]] = {
    "blanks around ids": (r"^[\s\p{Z}\x{feff}\x{200b}]+|[\s\p{Z}\x{feff}\x{200b}]+$", ""),
    "quotes": (r"[\"'`]+", ""),
    "a point and zeros behind": (r"\.0+$", ""),
    LETTER_CASE: ("", ""),
    "separators": (r"[\s_./:|#-]+", ""),
    "zeros in front": (r"(^|[^0-9])0+([0-9])", "\\1\\2"),
}
"""Differences between an id's two spellings: pattern and replacement, in order of use."""


def respell(ids: pa.Array, changes: Sequence[str]) -> pa.Array:
    """Return ids as text, respelt by these changes of `SPELLINGS`."""
    for change in changes:
        pattern, text = SPELLINGS[change]
        if change == LETTER_CASE:
            ids = pc.utf8_lower(ids)
        else:
            ids = pc.replace_substring_regex(ids, pattern, text)
    return ids


def float_id_rule(bits: int) -> str:
    """Describe which floats can be ids."""
    return f"a whole number below 2^{bits} (floats do not tell larger ones apart)"


def as_ids(column: pa.ChunkedArray, what: str) -> pa.ChunkedArray:
    """Convert a column to ids: int64 if possible, else text.

    Whole numbers become int64; NULL and NaN are NULL. Decimals with more than 18 digits and uint64 become
    int64 if all values have at most 18, else text.

    Args:
        column: a column with one type.
        what: name of the table and column in errors.

    Raises:
        SchemaError: the type holds no ids.
        DataError: a value is no id.
    """
    kind = column.type
    if pa.types.is_dictionary(kind):
        return as_ids(decode_dictionary(column), what)
    if pa.types.is_floating(kind):
        _refuse(_find_wrong_floats(column, what))
        return _drop_nan(column).cast(pa.int64())
    if pa.types.is_null(kind) or (pa.types.is_integer(kind) and kind != pa.uint64()):
        return column.cast(pa.int64())
    if pa.types.is_decimal(kind) or kind == pa.uint64():
        return _decimals_to_ids(column, what)
    if pa.types.is_boolean(kind) or _is_text(kind):
        return _text_to_ids(column, what)
    raise SchemaError(f"{what} is {kind}, which holds no ids", IDS_AS_TEXT)


def encode_texts(ids: pa.ChunkedArray) -> pa.DictionaryArray:
    """Return ids as a dictionary of texts, in one piece.

    So each distinct id is handled once.
    """
    codes = ids.combine_chunks().dictionary_encode()
    codes = codes.combine_chunks() if isinstance(codes, pa.ChunkedArray) else codes
    return pa.DictionaryArray.from_arrays(codes.indices, codes.dictionary.cast(pa.string()))


def decode_dictionary(column: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray | pa.Array:
    """Return a dictionary column's values.

    Text views (Categorical in polars) become text.
    """
    if isinstance(column, pa.ChunkedArray):
        kind = _plain(column.type.value_type)
        return pa.chunked_array([decode_dictionary(chunk) for chunk in column.chunks], kind)
    return column.dictionary.cast(_plain(column.type.value_type)).take(column.indices)


def _plain(kind: pa.DataType) -> pa.DataType:
    """Return a value type that Arrow can index.

    Arrow has no such function for text views.
    """
    return pa.large_string() if pa.types.is_string_view(kind) else kind


def _is_text(kind: pa.DataType) -> bool:
    tests = ("is_string", "is_large_string", "is_string_view", "is_binary", "is_large_binary")
    more = ("is_binary_view", "is_fixed_size_binary")
    return any(getattr(pa.types, test)(kind) for test in (*tests, *more))


def _drop_nan(column: pa.ChunkedArray) -> pa.ChunkedArray:
    number = column.cast(pa.float64())
    return pc.if_else(pc.is_nan(number), pa.scalar(None, pa.float64()), number)


def _decimals_to_ids(column: pa.ChunkedArray, what: str) -> pa.ChunkedArray:
    _refuse(_find_wrong_decimals(column, what))
    written = column.cast(pa.string())
    digits = pc.replace_substring_regex(written, r"\.0*$", "")
    if pa.types.is_decimal(column.type) and column.type.precision - column.type.scale <= SAFE_DIGITS:
        return digits.cast(pa.int64())
    fits = pc.match_substring_regex(digits, CANONICAL_INTEGER)
    return digits.cast(pa.int64()) if pc.all(fits, min_count=0).as_py() else digits


def _text_to_ids(column: pa.ChunkedArray, what: str) -> pa.ChunkedArray:
    try:
        text = _as_bytes(column).cast(pa.string())
        text.validate(full=True)
    except pa.ArrowInvalid:
        _refuse(_find_wrong_texts(column, what))
        raise
    return drop_empty(text)


def drop_empty(text: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray | pa.Array:
    """Replace texts that are empty or only blanks by NULL."""
    maybe = pc.or_(pc.equal(pc.binary_length(text), 0), pc.starts_with(text, " "))
    if not pc.any(maybe, min_count=0).as_py():
        return text
    return pc.if_else(pc.equal(pc.utf8_trim(text, " "), ""), pa.scalar(None, text.type), text)


def _as_bytes(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column if pa.types.is_boolean(column.type) else column.cast(pa.large_binary())


# ---------------------------------------------------------------------------- values that are no ids


@dataclass(frozen=True)
class WrongIds:
    """A column's values unfit as ids.

    Attributes:
        what: name of the table and column.
        rows: number of rows.
        kind: type of the column.
        expected: the form missing in the values.
        example: the first value.
    """

    what: str
    rows: int
    kind: str
    expected: str
    example: str

    def __add__(self, later: WrongIds) -> WrongIds:
        """Add the values in a later part of the column."""
        return replace(self, rows=self.rows + later.rows)

    def make_error(self) -> DataError:
        """Return the error for these values."""
        return DataError(
            f"{self.what}: {self.rows} rows ({self.kind}) are not {self.expected}, e.g. {self.example}",
            IDS_AS_TEXT,
        )


def find_wrong_ids(column: pa.ChunkedArray, what: str) -> WrongIds | None:
    """Return the values refused by `as_ids`, or None.

    For these, `as_ids` raises DataError.
    """
    kind = column.type
    if pa.types.is_dictionary(kind):
        return find_wrong_ids(decode_dictionary(column), what)
    if pa.types.is_floating(kind):
        return _find_wrong_floats(column, what)
    if pa.types.is_decimal(kind):
        return _find_wrong_decimals(column, what)
    return _find_wrong_texts(column, what) if _is_text(kind) else None


def _find_wrong_floats(column: pa.ChunkedArray, what: str) -> WrongIds | None:
    bits, present = EXACT_BITS[str(column.type)], _drop_nan(column)
    whole = pc.and_(pc.equal(present, pc.floor(present)), pc.less(pc.abs(present), 2.0**bits))
    return _describe_wrong(column, pc.invert(whole), what, float_id_rule(bits))


def _find_wrong_decimals(column: pa.ChunkedArray, what: str) -> WrongIds | None:
    if not pa.types.is_decimal(column.type):
        return None
    return _describe_wrong(column, pc.not_equal(column, pc.floor(column)), what, "a whole number")


def _find_wrong_texts(column: pa.ChunkedArray, what: str) -> WrongIds | None:
    raw = _as_bytes(column)
    bad = pa.chunked_array([[not is_utf8(value) for value in raw.to_pylist()]], pa.bool_())
    return _describe_wrong(raw, bad, what, "text in UTF-8")


def is_utf8(value: bytes | None) -> bool:
    """Check whether bytes are UTF-8 text; missing ones are."""
    try:
        return value is None or value.decode() is not None
    except UnicodeDecodeError:
        return False


def _describe_wrong(
    column: pa.ChunkedArray, bad: pa.ChunkedArray, what: str, expected: str
) -> WrongIds | None:
    wrong = column.filter(pc.fill_null(bad, False))
    if not len(wrong):
        return None
    return WrongIds(what, len(wrong), str(column.type), expected, repr(wrong[0].as_py()))


def _refuse(wrong: WrongIds | None) -> None:
    if wrong is not None:
        raise wrong.make_error()


# ------------------------------------------------------------------------------- ids in common


@dataclass(frozen=True)
class IdArray:
    """One column of ids, as messages show it.

    Attributes:
        what: name of the table and column.
        kind: its type as stored.
        first: three of its ids.
    """

    what: str
    kind: str
    first: Sequence[str | int]

    def describe(self) -> str:
        """Describe the column in one line."""
        return f"{self.what} ({self.kind}): {', '.join(repr(one) for one in self.first)}"


@dataclass(frozen=True)
class IdOverlap:
    """Counts of two sides' distinct, common and numeric ids.

    Text counts as a whole number only in its one spelling: no leading zeros, no white space.

    Attributes:
        n: each side's distinct ids.
        common: ids on both sides.
        numbers: each side's whole numbers.
    """

    n: tuple[int, int]
    common: int
    numbers: tuple[int, int]

    @property
    def share(self) -> float:
        """Share of the smaller side's ids also on the other.

        The share is 1 without ids.
        """
        return self.common / min(self.n) if min(self.n) else 1.0

    @property
    def is_disjoint(self) -> bool:
        """True if one side alone has numbers, and only numbers.

        Then no two ids can be equal.
        """
        return any(self.numbers[a] == self.n[a] and not self.numbers[1 - a] for a in (0, 1))

    @property
    def few(self) -> bool:
        """True if too few ids are common for related tables."""
        return self.share < FEW and (min(self.n) >= MANY or not self.common)

    def fails(self, must: bool) -> bool:
        """Return True if common ids are required but missing.

        `must`: they must match. Ids which cannot match fail in any case.
        """
        return self.share == 0 and (must or self.is_disjoint)

    def describe(self, left: IdArray, right: IdArray) -> str:
        """Describe both sides with types and examples."""
        numbers = f"{self.common} ids in common, of {self.n[0]} and {self.n[1]}"
        return f"{numbers}; {left.describe()}; {right.describe()}"

    def refuse(self, left: IdArray, right: IdArray) -> None:
        """Raise DataError: the ids do not meet."""
        raise DataError(
            f"{left.what} and {right.what} have no id in common\n  {left.describe()}\n  {right.describe()}",
            "spell ids alike in both tables: the whole number 7 and the text '7' are one id, 'u7' and "
            "'007' are others",
        )


class IdSides(Protocol):
    """Two columns of ids, read again only if few meet."""

    def read_examples(self) -> tuple[IdArray, IdArray]:
        """Return three ids from each side."""

    def count_respelled(self, changes: Sequence[str]) -> IdOverlap:
        """Count common ids after changes of `SPELLINGS`."""

    def drop_common(self) -> IdSides:
        """Return each side's ids without those in common."""


def find_other_spelling(overlap: IdOverlap, sides: IdSides, least: float) -> tuple[IdOverlap, str] | None:
    """Find a spelling with enough common ids, and count these.

    Args:
        overlap: the ids as they are spelt.
        sides: the two columns.
        least: the share of common ids to reach.

    Returns:
        The counts, and the changes in words; None: no such spelling.
    """
    if overlap.numbers == overlap.n:  # whole numbers have one spelling
        return None
    every = sides.count_respelled(tuple(SPELLINGS))
    if not every.common or every.share < least:
        return None
    changes = tuple(SPELLINGS)
    for change in reversed(SPELLINGS):  # the gentlest changes stay
        fewer = tuple(other for other in changes if other != change)
        if fewer and sides.count_respelled(fewer).common >= every.common:
            changes = fewer
    without = " and ".join(filter(None, [", ".join(changes[:-1]), changes[-1]]))
    return sides.count_respelled(changes), without


def refuse_other_spelling(overlap: IdOverlap, sides: IdSides) -> None:
    """Refuse ids that would meet only in another spelling.

    Raises:
        DataError: the message has the spelling, and three ids from each side.
    """
    respelling = find_other_spelling(overlap, sides, max(MEET, 10 * overlap.share))
    if respelling is None:
        return
    (meeting, without), (left, right) = respelling, sides.drop_common().read_examples()
    common = f"{overlap.common} ids" if overlap.common else "no id"
    raise DataError(
        f"{left.what} and {right.what} have {common} in common, "
        f"and {meeting.common} of {min(meeting.n)} without {without}\n"
        f"  {left.describe()}\n  {right.describe()}",
        f"spell ids alike in both tables: they differ in {without}",
    )
