"""Convert columns, test for values that cannot be converted, and count such rows in one pass."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql import types as T

from recbench_spark.data.input_rules import EXACT_LIMIT, WHOLE_NUMBER
from recbench_spark.data.readers.files import column
from recbench_spark.data.readers.ids import convert_ids, has_replacement
from recbench_spark.data.readers.paths import explain_errors
from recbench_spark.data.text_layouts import BELOW_2_53, FINITE_TEXT, IN_UTF8
from recbench_spark.data.text_pieces import BAD_LINE, FILE
from recbench_spark.engine.versions import try_cast
from recbench_spark.errors import DataError, SchemaError


@dataclass(frozen=True)
class Value:
    """A converted column, and the rows in which the conversion fails.

    Attributes:
        name: the column's name.
        column: the converted column.
        bad: the rows in which the conversion fails; None where it cannot fail.
        expected: the description of a good value.
        hint: advice for bad rows, where this column needs its own.
        notes: metadata of the column.
    """

    name: str
    column: Column
    bad: Column | None = None
    expected: str = ""
    hint: str = ""
    notes: Mapping[str, str] = field(default_factory=dict)

    @property
    def problem(self) -> str:
        """Return the problem of a bad row."""
        return f"not {self.expected}" if self.name == BAD_LINE else f"'{self.name}' is not {self.expected}"

    @staticmethod
    def line(expected: str) -> Value:
        """Check the layout of a line."""
        return Value(BAD_LINE, F.col(BAD_LINE), F.col(BAD_LINE).isNotNull(), expected)

    @staticmethod
    def ids(frame: DataFrame, name: str, where: str, *, text_file: bool, floats: bool = False) -> Value:
        """Convert ids to text by the rules of `convert_ids`; missing ids and NaN become NULL."""
        ids = convert_ids(frame, name, where, text_file=text_file, floats=floats)
        return Value(name, ids.text, ids.bad, ids.expected, ids.hint, ids.notes)

    @staticmethod
    def field(frame: DataFrame, name: str) -> Value:
        """Check a field of a text file that is used as it is."""
        return Value(name, column(name), has_replacement(frame, name), "text in UTF-8", IN_UTF8)

    @staticmethod
    def number(frame: DataFrame, name: str, where: str, *, exact: bool = False) -> Value:
        """Convert to a finite float64; with `exact`, refuse whole numbers that float64 cannot represent."""
        number = _as_double(frame, name, where)
        unreadable = column(name).isNotNull() & number.isNull()
        kind = frame.schema[name].dataType
        finite, expected = F.abs(number) < F.lit(float("inf")), "a finite number"
        if exact and isinstance(kind, T.StringType):
            finite &= ~(F.trim(column(name)).rlike(WHOLE_NUMBER) & (F.abs(number) >= F.lit(EXACT_LIMIT)))
            expected = FINITE_TEXT
        elif exact and _may_exceed_float64(kind):
            finite, expected = F.abs(number) < F.lit(EXACT_LIMIT), BELOW_2_53
        return Value(name, number, unreadable | ~finite, expected)

    @staticmethod
    def whole(frame: DataFrame, name: str, where: str) -> Value:
        """Convert to int64."""
        number = _as_double(frame, name, where)
        unreadable = column(name).isNotNull() & number.isNull()
        fits = (F.abs(number) < F.lit(2.0**53)) & (number == F.floor(number))
        return Value(name, try_cast(number, "bigint"), unreadable | ~fits, "a whole number")

    @staticmethod
    def vector(frame: DataFrame, name: str, where: str) -> Value:
        """Convert an array of numbers, or a JSON array, to an array of float32 without NULLs."""
        raw, data_type = column(name), frame.schema[name].dataType
        if isinstance(data_type, T.StringType):
            array = F.from_json(raw, "array<double>")
        elif isinstance(data_type, T.ArrayType) and isinstance(data_type.elementType, T.NumericType):
            array = raw
        else:
            raise SchemaError(
                f"{where}: column '{name}' is {data_type.simpleString()}, not an array of numbers",
                "for vectors of Spark ML, apply pyspark.ml.functions.vector_to_array first",
            )
        holes = F.exists(array, lambda element: element.isNull())
        bad = (raw.isNotNull() & array.isNull()) | holes
        return Value(name, array.cast("array<float>"), bad, "an array of numbers such as [0.1, -2]")


def _may_exceed_float64(kind: T.DataType) -> bool:
    """Check whether a type holds whole numbers that float64 cannot represent exactly."""
    return isinstance(kind, T.LongType) or (isinstance(kind, T.DecimalType) and not kind.scale)


def _as_double(frame: DataFrame, name: str, where: str) -> Column:
    data_type = frame.schema[name].dataType
    if isinstance(data_type, T.NumericType | T.BooleanType):
        return column(name).cast("double")
    if isinstance(data_type, T.StringType):
        return try_cast(column(name), "double")
    raise SchemaError(f"{where}: column '{name}' is {data_type.simpleString()}, not a number")


def read_pattern(raw: Column, pattern: str, zone: str) -> Column:
    """Return microseconds of texts by a pattern of Spark; one without an offset is of the zone."""
    parsed = F.try_to_timestamp(raw, F.lit(pattern))
    has_offset = re.search("[XxZzVO]", re.sub("'[^']*'", "", pattern))
    return F.unix_micros(parsed if has_offset else _shift_zone(parsed, zone))


def _shift_zone(parsed: Column, zone: str) -> Column:
    """Return the same time of day in the zone instead of the session's."""
    return F.to_utc_timestamp(F.from_utc_timestamp(parsed, F.current_timezone()), zone)


# --- counts of values that cannot be read ---


@dataclass(frozen=True)
class RowCounts:
    """Counts of one pass: rows, bad rows, rows for each reason, messages and a hint."""

    rows: int
    bad: int
    reasons: dict[str, int]
    problems: list[str]
    hint: str = ""


class Checks:
    """The values of a frame that can be bad. Values of a bad line are not checked."""

    def __init__(self, frame: DataFrame, values: Iterable[Value], where: str) -> None:
        self.frame, self.where = frame, where
        self.values = [value for value in values if value.bad is not None]
        self.by_line = any(value.name == BAD_LINE for value in self.values)

    def bad(self, value: Value) -> Column:
        """Test for rows in which the value is bad; never NULL."""
        assert value.bad is not None
        is_bad = F.coalesce(value.bad, F.lit(False))
        return is_bad & F.col(BAD_LINE).isNull() if self.by_line and value.name != BAD_LINE else is_bad

    def count(self) -> RowCounts:
        """Count rows and bad rows in one pass; a second one collects reasons and examples of bad rows."""
        any_bad = reduce(or_, map(self.bad, self.values), F.lit(False))
        # Spark refuses to read BAD_LINE alone, so another column is counted, too.
        counts = [F.count(F.lit(1)).alias("rows"), F.count(column(self.frame.columns[0])).alias("first")]
        counts.append(F.count_if(any_bad).alias("bad"))
        with explain_errors(self.where):
            counted = self.frame.agg(*counts).collect()[0]
        return (
            self._explain_counts(counted) if counted["bad"] else RowCounts(int(counted["rows"]), 0, {}, [])
        )

    def _explain_counts(self, counted: Row) -> RowCounts:
        # Not in the first pass: with examples Spark does not compile the sums and is several times slower.
        aggregates = [count for n, value in enumerate(self.values) for count in self._count(f"c{n}", value)]
        with explain_errors(self.where):
            results = self.frame.agg(*aggregates).collect()[0]
        hit = [(n, value) for n, value in enumerate(self.values) if results[f"c{n}"]]
        reasons = {value.problem: int(results[f"c{n}"]) for n, value in hit}
        problems = [self._describe_problem(value, results[f"c{n}"], results[f"c{n}_e"]) for n, value in hit]
        hint = next(filter(None, (value.hint for _, value in hit)), "")
        return RowCounts(int(counted["rows"]), int(counted["bad"]), reasons, problems, hint)

    def _count(self, key: str, value: Value) -> Sequence[Column]:
        """Return the number of bad rows, and the smallest bad value with its file as an example."""
        bad = self.bad(value)
        file = F.col(FILE) if FILE in self.frame.columns else F.lit(None).cast("string")
        example = F.struct(column(value.name).cast("string").alias("value"), file.alias("file"))
        return F.count_if(bad).alias(key), F.min(F.when(bad, example)).alias(f"{key}_e")

    def _describe_problem(self, value: Value, n: int, example: Row) -> str:
        shown = "a missing value" if example["value"] is None else repr(example["value"][:120])
        name = (example["file"] or "").rsplit("/", 1)[-1]
        inside = f" in {name}" if name and not self.where.endswith(name) else ""
        what = "lines that are" if value.name == BAD_LINE else "rows whose"
        return f"{n} {what} {value.problem}, e.g. {shown}{inside}"

    def refuse(self, counts: RowCounts, hint: str = "correct or remove these rows") -> None:
        """Raise DataError where any row is bad."""
        if counts.problems:
            raise DataError(f"{self.where}: " + "; ".join(counts.problems), counts.hint or hint)
