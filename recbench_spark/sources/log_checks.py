"""Convert any log's rows to canonical columns; find unusable ones.

One converter serves text, Parquet, Delta and Spark frames: a task applies it to the columns as they are
stored. `survey_rows` counts; `convert_rows` returns the usable rows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, tzinfo

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.core.ids import EXACT_BITS, IDS_AS_TEXT, SAFE_DIGITS, drop_empty, float_id_rule, is_utf8
from recbench_spark.errors import DataError, SchemaError
from recbench_spark.schemas import IDS
from recbench_spark.sources.arrow_rows import (
    SPARK_NAMES,
    as_double,
    as_mask,
    combine_column,
    is_text,
    spell_values,
)
from recbench_spark.sources.conditions import Condition, Selection, select_rows
from recbench_spark.sources.events import EVENT, EventNames
from recbench_spark.sources.text_layouts import IN_UTF8
from recbench_spark.sources.text_pieces import BAD_LINE, FILE
from recbench_spark.sources.times import (
    LATEST,
    MICROS_PER_UNIT,
    STORED,
    TIME_TEXT,
    convert_times,
    time_hint,
)

Bools = npt.NDArray[np.bool_]

PARTS = ("train", "given", "valid", "probe", "quiz", "test", "open_loop", "later")
"""Valid values in a log's own `part` column."""

MISTAKE_HINT = (
    "either the time is a placeholder, or milliseconds were taken for seconds where this column was made: "
    "correct or remove these rows, or set dataset.bad_rows to reject"
)
"""Advice for stored timestamps that no log can have."""


PLACE = "_place"
"""Hidden column in a frame with the row's place, from 0."""


@dataclass(frozen=True)
class LogRules:
    """Rules for converting a log's rows in tasks.

    Attributes:
        where: the log's name in messages.
        sources: canonical column names to the log's own, for the columns present.
        attributes: further columns.
        line: the expected layout of a line; empty if rows have types.
        nullable: canonical names of columns that may be NULL.
        unit: the unit of numeric times, or `timestamp`.
        zone: the zone for times without an offset.
        pattern: the pattern for times in text (`timestampFormat`).
        finds_floats: whether ids in a text file may be whole floats.
        floats: columns in a text file with whole floats throughout.
        folders: columns which come from folder names.
        keeps_replacements: whether U+FFFD is intended.
        end: the first instant after the log, in microseconds.
        checked: whether the time unit is known, since the log was read before.
        placed: whether rows have PLACE, which stays.
        conditions: conditions that rows hold to count.
        events: names of the rows' events; None: rows have none.
    """

    where: str = ""
    sources: Mapping[str, str] = field(default_factory=dict)
    attributes: tuple[str, ...] = ()
    line: str = ""
    nullable: tuple[str, ...] = ("part",)
    unit: str = "s"
    zone: tzinfo = UTC
    pattern: str = ""
    finds_floats: bool = False
    floats: frozenset[str] = frozenset()
    folders: frozenset[str] = frozenset()
    keeps_replacements: bool = False
    end: int | None = None
    checked: bool = False
    placed: bool = False
    conditions: tuple[Condition, ...] = ()
    events: EventNames | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns for tasks to read."""
        hidden = [BAD_LINE] * bool(self.line) + [FILE] + [PLACE] * self.placed
        compared = [condition.column for condition in self.conditions]
        compared += [self.events.column] if self.events else []
        return tuple(dict.fromkeys((*self.sources.values(), *self.attributes, *compared, *hidden)))

    @property
    def names(self) -> tuple[str, ...]:
        """The canonical columns in converted rows."""
        more = ["part"] * ("part" in self.sources) + ["attributes"] * bool(self.attributes)
        more += [EVENT] * bool(self.events)
        return (*IDS, "rating", "event_time", *more, *([PLACE] * self.placed))


@dataclass(frozen=True)
class Mark:
    """Rows with an unusable value in a column, and why.

    Attributes:
        name: the log's column, or BAD_LINE.
        expected: the description of a good value.
        bad: the rows.
        hint: advice, if this column needs its own.
        unit: the unit with which an example gives the advice; empty: none does.
    """

    name: str
    expected: str
    bad: Bools
    hint: str = ""
    unit: str = ""

    @property
    def problem(self) -> str:
        """The problem in a bad row."""
        return f"not {self.expected}" if self.name == BAD_LINE else f"'{self.name}' is not {self.expected}"


@dataclass(frozen=True)
class Checked:
    """Rows that count, converted; mistakes; how ids are stored.

    `kinds`: id column -> `integer`, `string`, or `text` if only the values can decide.
    `selection`: counts of the rows that do not count.
    """

    rows: pa.Table
    columns: Mapping[str, pa.Array]
    marks: Sequence[Mark]
    kinds: Mapping[str, str]
    time_unit: str = ""
    selection: Selection | None = None

    @property
    def bad(self) -> Bools:
        """The rows with any bad value."""
        bad: Bools = np.logical_or.reduce([mark.bad for mark in self.marks])
        return bad


def check_rows(rows: pa.Table, rules: LogRules) -> Checked:
    """Convert the columns of rows that count; mark unusable values.

    In a bad line, values are not checked.

    Raises:
        SchemaError: a column has a type that cannot be read.
    """
    selection = None
    if rules.conditions:
        selection = select_rows(
            rows, rules.conditions, is_set(rows.column(BAD_LINE)) if rules.line else None
        )
        rows = rows.filter(pa.array(selection.kept_r))
    columns: dict[str, pa.Array] = {}
    marks: list[Mark] = []
    kinds: dict[str, str] = {}
    if rules.line:
        broken = is_set(rows.column(BAD_LINE))
        marks.append(Mark(BAD_LINE, rules.line, broken))
    unit = ""
    for name, source in rules.sources.items():
        array = combine_column(rows.column(source))
        if name in IDS:
            columns[name], mistakes, kinds[name] = _check_ids(array, source, rules)
        elif name == "rating":
            number = columns[name] = parse_numbers(array, source, rules.where)
            is_finite = np.isfinite(np.asarray(pc.fill_null(number, 0.0), np.float64))
            mistakes = [Mark(source, "a finite number", ~is_finite | (is_set(array) & ~is_set(number)))]
        elif name == "event_time":
            columns[name], mistakes, unit = _check_times(array, source, rules)
        else:
            columns[name] = array.cast(pa.string())
            wrong = ~as_mask(pc.is_in(columns[name], pa.array(PARTS))) & is_set(array)
            mistakes = [Mark(source, f"one of {', '.join(PARTS)}", wrong)]
        marks += mistakes if name in rules.nullable else _refuse_nulls(columns[name], source, mistakes)
    marks += _mark_uncompared(rules, selection) if selection else []
    if rules.events:
        columns[EVENT] = rules.events.encode(combine_column(rows.column(rules.events.column)))
        marks.append(Mark(rules.events.column, "an event (dataset.events)", ~is_set(columns[EVENT])))
    for name in rules.attributes if rules.line and not rules.keeps_replacements else ():
        marks.append(Mark(name, "text in UTF-8", _is_undecoded(rows.column(name)), IN_UTF8))
    if rules.line:
        marks = [marks[0], *(replace(mark, bad=mark.bad & ~broken) for mark in marks[1:])]
    return Checked(rows, columns, marks, kinds, unit, selection)


def _mark_uncompared(rules: LogRules, selection: Selection) -> list[Mark]:
    """Mark rows that count whose value a condition cannot compare."""
    return [
        Mark(one.column, f"a {'time' if one.ends else 'number'} (dataset.where)", bad_r[selection.kept_r])
        for one, bad_r in zip(rules.conditions, selection.bad_rs, strict=True)
    ]


def _refuse_nulls(column: pa.Array, source: str, found: Sequence[Mark]) -> list[Mark]:
    """Refuse NULL too, separately if bad values have a hint."""
    missing = ~is_set(column)
    first = found[0] if found else Mark(source, "an id", np.zeros(len(column), np.bool_))
    if not first.hint:
        return [replace(first, bad=missing | first.bad), *found[1:]]
    return [Mark(source, "an id", missing & ~first.bad), *found]


def is_set(column: pa.Array | pa.ChunkedArray) -> Bools:
    """Mark where there is a value."""
    return np.asarray(column.is_valid(), np.bool_)


def _is_undecoded(column: pa.Array | pa.ChunkedArray) -> Bools:
    return as_mask(pc.match_substring(column, "\ufffd"))


# --------------------------------------------------------------------------------------------- ids


Ids = tuple[pa.Array, list[Mark], str]
"""Converted ids, their mistakes, and their kind (see `Checked`)."""


def _check_ids(array: pa.Array, source: str, rules: LogRules) -> Ids:
    """Convert ids by column type (`core.ids`), missing ones to NULL."""
    if rules.line or source in rules.folders:
        return _field_ids(array, source, rules)
    kind = array.type
    if pa.types.is_floating(kind):
        return _float_ids(array.cast(pa.float64()), source, EXACT_BITS[str(kind)])
    if pa.types.is_decimal(kind) or kind == pa.uint64():
        return _decimal_ids(array, source)
    of_bytes = pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind)
    if is_text(kind) or of_bytes or pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return _convert_texts(array, source)
    is_flag = pa.types.is_boolean(kind)
    if not (is_flag or pa.types.is_null(kind) or pa.types.is_integer(kind)):
        what = f"column '{source}' is {name_type(kind)}, which holds no ids"
        raise SchemaError(f"{rules.where}: {what}", IDS_AS_TEXT)
    ids = array.cast(pa.string() if is_flag else pa.int64())
    mark = Mark(source, "an id", np.zeros(len(array), np.bool_), IDS_AS_TEXT)
    return ids, [mark], "string" if is_flag else "integer"


def _field_ids(array: pa.Array, source: str, rules: LogRules) -> Ids:
    if source in rules.floats:
        nan = pc.equal(pc.utf8_lower(array), "nan")
        return _float_ids(pc.if_else(nan, np.nan, as_double(array, source)), source, 53)
    text = drop_empty(array.cast(pa.string()))
    if source in rules.folders or rules.keeps_replacements:
        return text, [], "text"
    return text, [Mark(source, "text in UTF-8", _is_undecoded(array), IN_UTF8)], "text"


def _float_ids(number: pa.Array, source: str, bits: int) -> Ids:
    value = np.asarray(pc.fill_null(number, np.nan), np.float64)
    with np.errstate(invalid="ignore"):
        whole = (value == np.floor(value)) & (np.abs(value) < 2.0**bits)
    ids = pa.array(np.where(whole, value, 0).astype(np.int64), mask=~whole)
    bad = ~np.isnan(value) & ~whole
    return ids, [Mark(source, f"an id ({float_id_rule(bits)})", bad, IDS_AS_TEXT)], "integer"


def _decimal_ids(array: pa.Array, source: str) -> Ids:
    digits = pc.replace_substring_regex(array.cast(pa.string()), r"\.0*$", "")
    wrong = as_mask(pc.invert(pc.match_substring_regex(digits, "^-?[0-9]+$")))
    digits = pc.if_else(pa.array(wrong), pa.scalar(None, pa.string()), digits)
    kind = array.type
    fits = pa.types.is_decimal(kind) and max(kind.precision - kind.scale, 1) <= SAFE_DIGITS
    ids = digits.cast(pa.int64()) if fits else digits
    return ids, [Mark(source, "an id (a whole number)", wrong, IDS_AS_TEXT)], "integer" if fits else "text"


def _convert_texts(array: pa.Array, source: str) -> Ids:
    binary = array.cast(pa.large_binary())
    bad = np.zeros(len(array), np.bool_)
    try:
        text = binary.cast(pa.string())
        text.validate(full=True)
    except pa.ArrowInvalid:
        bad = np.array([not is_utf8(one) for one in binary.to_pylist()])
        text = pa.array([one and one.decode(errors="replace") for one in binary.to_pylist()], pa.string())
    return drop_empty(text), [Mark(source, "text in UTF-8", bad, IDS_AS_TEXT)], "string"


def name_type(kind: pa.DataType) -> str:
    """Return Spark's name for a type, for messages."""
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"array<{name_type(kind.value_type)}>"
    if pa.types.is_struct(kind):
        inside = ",".join(f"{one.name}:{name_type(one.type)}" for one in kind)
        return f"struct<{inside}>"
    if pa.types.is_map(kind):
        return f"map<{name_type(kind.key_type)},{name_type(kind.item_type)}>"
    if pa.types.is_timestamp(kind):
        return "timestamp" if kind.tz else "timestamp_ntz"
    if pa.types.is_date(kind):
        return "date"
    return SPARK_NAMES.get(str(kind), str(kind))


# ----------------------------------------------------------------------------------------- numbers


def parse_numbers(array: pa.Array, source: str, where: str) -> pa.Array:
    """Return float64, with NULL for texts without a number.

    Raises:
        SchemaError: a type that holds no numbers.
    """
    try:
        if is_text(array.type):
            return array.cast(pa.float64())
    except pa.ArrowInvalid:  # one is no number, or is written as Java alone reads it
        pass
    try:
        return as_double(array, source)
    except SchemaError:
        raise SchemaError(f"{where}: column '{source}' is {name_type(array.type)}, not a number") from None


def _check_times(array: pa.Array, source: str, rules: LogRules) -> tuple[pa.Array, list[Mark], str]:
    kind, unit = array.type, rules.unit
    stored = pa.types.is_timestamp(kind) or pa.types.is_date(kind)
    if unit == "timestamp" and not stored and not rules.pattern and not is_text(kind):
        example = next((str(one) for one in array.drop_null().slice(0, 1).to_pylist()), None)
        hint = time_hint(example, unit) or "set dataset.time_unit to s, ms or us"
        raise SchemaError(f"{rules.where}: column '{source}' is {name_type(kind)}, not a timestamp", hint)
    if not stored and not is_text(kind) and not rules.pattern:
        parse_numbers(array.slice(0, 0), source, rules.where)  # refuses other types
    micros = convert_times(array, unit, rules.zone, rules.pattern)
    wrong = is_set(array) & ~is_set(micros)
    expected = TIME_TEXT if unit == "timestamp" else f"a time in {unit}"
    expected = f"a timestamp by {rules.pattern}" if rules.pattern else expected
    first = Mark(source, "a timestamp" if stored else expected, wrong, unit="" if stored else unit)
    late = np.asarray(pc.fill_null(micros, 0)) >= LATEST
    named = unit if unit == "timestamp" else f"time in {unit}"
    year = "before the year 2100" if stored else f"a {named} before the year 2100"
    second = Mark(source, year, late, MISTAKE_HINT if stored else "", unit)
    numbers = unit in MICROS_PER_UNIT and not stored
    doubted = "" if rules.checked else unit if numbers else STORED if stored else ""
    return micros, [first, second], doubted


# ----------------------------------------------------------------------------------------- results


def convert_rows(rows: pa.Table, rules: LogRules) -> pa.Table:
    """Return usable rows in canonical columns, whole-number ids as int64."""
    checked = check_rows(rows, rules)
    rows, n = checked.rows, len(checked.rows)
    times = checked.columns.get("event_time", pa.nulls(n, pa.int64()))
    columns: dict[str, pa.Array | pa.ChunkedArray] = {**checked.columns, "event_time": times}
    columns.setdefault("rating", pa.array(np.ones(n)))
    if rules.attributes:
        columns["attributes"] = _map_attributes(rows, rules.attributes, rules.where)
    if rules.placed:
        columns[PLACE] = rows.column(PLACE)
    keep = ~checked.bad & ~is_later(times, rules)
    table = pa.table({name: columns[name] for name in rules.names})
    return table if keep.all() else table.filter(pa.array(keep))


def is_later(times: pa.Array, rules: LogRules) -> Bools:
    """Mark times after the log's end."""
    if rules.end is None:
        return np.zeros(len(times), np.bool_)
    return as_mask(pc.greater_equal(times, rules.end))


def _map_attributes(rows: pa.Table, names: Sequence[str], where: str) -> pa.Array:
    n, width = len(rows), len(names)
    values = []
    for name in names:
        try:
            values.append(combine_column(spell_values(rows.column(name))))
        except pa.ArrowInvalid:
            message = f"{where}: attribute {name} has bytes that are no text in UTF-8"
            raise DataError(message, "leave it out of dataset.attributes, or write it as text") from None
    order = np.arange(n * width).reshape(width, n).T.reshape(-1)  # from column by column to row by row
    flat = pa.concat_arrays(values).take(pa.array(order))
    keys = pa.array(np.tile(np.array(names, object), n), pa.string())
    offsets = pa.array(np.arange(0, n * width + 1, width), pa.int32())
    return pa.MapArray.from_arrays(offsets, keys, flat)


def find_rejects(rows: pa.Table, rules: LogRules) -> pa.Table:
    """Return file, line and reason for each unusable row.

    A line is its text, or the row as JSON.
    """
    checked = check_rows(rows, rules)
    places = np.flatnonzero(checked.bad)
    bad = checked.rows.take(pa.array(places))
    reasons = ["; ".join(mark.problem for mark in checked.marks if mark.bad[place]) for place in places]
    shown = [name for name in rules.columns if name not in (BAD_LINE, FILE, PLACE)]
    objects = [
        dict(zip(shown, row, strict=True))
        for row in zip(*(list_values(combine_column(bad.column(name))) for name in shown), strict=True)
    ]
    texts = bad.column(BAD_LINE).to_pylist() if rules.line else [None] * len(bad)
    lines = [text if text is not None else _show_row(row) for row, text in zip(objects, texts, strict=True)]
    files = [file or rules.where for file in bad.column(FILE).to_pylist()]
    columns = [pa.array(column, pa.string()) for column in (files, lines, reasons)]
    return pa.table(columns, ["file", "line", "reason"])


def _show_row(row: Mapping[str, object]) -> str:
    present = {name: show_value(value) for name, value in row.items() if value is not None}
    return json.dumps(present, ensure_ascii=False, separators=(",", ":"))


def list_values(column: pa.Array) -> list[object]:
    """Return a column's values, with timestamps as text.

    Python has too few years for all of them.
    """
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp(column.type.unit)).cast(pa.string())
    if pa.types.is_string(column.type):  # bytes of a file may be no UTF-8
        return [None if text is None else show_value(text) for text in column.cast(pa.binary()).to_pylist()]
    return [*column.to_pylist()]


def show_value(value: object) -> str:
    """Return a value as text, as Spark casts it."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, bool):
        return str(value).lower()
    text = "" if value is None else str(value)
    return JAVA_NUMBERS.get(text, text) if isinstance(value, float) else text


JAVA_NUMBERS = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
