"""Select the rows of a log that count, by conditions on its columns.

Tasks import this module: conditions arrive as plain values, without the settings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, date, tzinfo
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.core.calendar_spans import end_day
from recbench_spark.errors import ConfigError, SchemaError
from recbench_spark.sources.arrow_rows import as_double, as_mask, combine_column, spell_values
from recbench_spark.sources.times import convert_times

if TYPE_CHECKING:  # workers import this module and need no settings
    from recbench_spark.config import Dataset
    from recbench_spark.sources.settings import Value

Bools = npt.NDArray[np.bool_]

MOST_VALUES = 1000
"""Distinct values of a column that a task remembers for hints."""


class Condition(NamedTuple):
    """A condition on a column that rows must hold.

    Attributes:
        column: the log's own name of the column.
        rule: the kind of condition; `in` and `not_in` compare with values, `above` and `below` with one
            number, `between` with two numbers or times, both included.
        values: the values; none for `not_null`.
        ends: the first and last microsecond, if `between` has times.
        unit: the unit of numbers in a column of times.
        zone: the zone for times without an offset.
        pattern: the pattern for times in text; empty: they are ISO 8601.
        is_time: true for the log's column `event_time`, where text may hold numbers, too.
    """

    column: str
    rule: str
    values: tuple[Value, ...] = ()
    ends: tuple[int, int] | None = None
    unit: str = "timestamp"
    zone: tzinfo = UTC
    pattern: str = ""
    is_time: bool = False

    def describe(self) -> str:
        """Return the condition in words, such as `event in view, cart`."""
        words = (" and " if self.rule == "between" else ", ").join
        values = words(f"{one:g}" if isinstance(one, float) else spell_value(one) for one in self.values)
        return f"{self.column} {self.rule.replace('_', ' ')} {values}".strip()


def make_conditions(dataset: Dataset, unit: str, time_name: str | None) -> tuple[Condition, ...]:
    """Return a log's conditions for tasks.

    Args:
        dataset: the settings.
        unit: the unit of numeric times.
        time_name: the log's own name of its times.

    Raises:
        ConfigError: `between` has texts that are no times, or ends before it begins.
    """
    conditions = []
    for one in dataset.where:
        ((rule, values),) = one.list_rules().items()
        condition = Condition(one.column, rule, values, unit=unit, zone=dataset.zone)
        if rule == "not_null":
            condition = condition._replace(values=())
        elif rule == "between" and isinstance(values[0], str):
            is_time = one.column == time_name
            pattern = dataset.time_format if is_time else ""
            condition = condition._replace(ends=_find_ends(condition), pattern=pattern, is_time=is_time)
        conditions.append(condition)
    return tuple(conditions)


def _find_ends(condition: Condition) -> tuple[int, int]:
    """Return the first and last microsecond of a period; a day ends with its last."""
    texts, zone = [*map(str, condition.values)], condition.zone
    low, high = convert_times(pa.array(texts), "timestamp", zone).to_pylist()
    if low is None or high is None:
        message = f"dataset.where: {condition.describe()}: '{texts[0 if low is None else 1]}' is no time"
        raise ConfigError(message, "a day such as 2026-01-31, or a time such as 2026-01-31T12:00:00")
    with suppress(ValueError):
        high = end_day(date.fromisoformat(texts[1]), zone) - 1
    if high < low:
        raise ConfigError(f"dataset.where: {condition.describe()}: it ends before it begins")
    return low, high


class Selection(NamedTuple):
    """Rows that hold all conditions, and what each condition did.

    Attributes:
        kept_r: (r,) the rows that count, or whose value cannot be compared.
        bad_rs: each condition's rows, (r,), whose value cannot be compared.
        dropped: rows that each condition leaves out, after those before it.
        seen: values of columns with `in` or `not_in`, by condition.
    """

    kept_r: Bools
    bad_rs: tuple[Bools, ...]
    dropped: tuple[int, ...]
    seen: tuple[Counter[str], ...]


class SelectionCounts(NamedTuple):
    """Counts over many rows; `seen` and `dropped` as in `Selection`.

    `rows`: rows that count; `bad`: rows whose value cannot be compared.
    """

    rows: int
    bad: int
    dropped: tuple[int, ...]
    seen: tuple[Counter[str], ...]


def count_selection(tables: Iterable[pa.Table], conditions: Sequence[Condition]) -> SelectionCounts:
    """Count a task's rows that hold all conditions."""
    counts = [_count_table(rows, conditions) for rows in tables]
    none = SelectionCounts(0, 0, (0,) * len(conditions), (Counter(),) * len(conditions))
    return sum_selections([none, *counts])


def _count_table(rows: pa.Table, conditions: Sequence[Condition]) -> SelectionCounts:
    one = select_rows(rows, conditions)
    bad = int(np.logical_or.reduce(one.bad_rs).sum())
    return SelectionCounts(int(one.kept_r.sum()), bad, one.dropped, one.seen)


def sum_selections(counts: Sequence[SelectionCounts]) -> SelectionCounts:
    """Add up the counts from tasks."""
    rows, bad, dropped, seen = zip(*counts, strict=True)
    return SelectionCounts(
        sum(rows),
        sum(bad),
        tuple(map(sum, zip(*dropped, strict=True))),
        tuple(sum(one, Counter()) for one in zip(*seen, strict=True)),
    )


def select_rows(
    rows: pa.Table, conditions: Sequence[Condition], broken_r: Bools | None = None
) -> Selection:
    """Decide which rows hold all conditions.

    Args:
        rows: a log's rows as they are stored.
        conditions: the conditions.
        broken_r: (r,) lines that cannot be read, which stay, to be counted as bad.

    Raises:
        ConfigError: the column has no numbers, and the condition compares with one.
    """
    kept_r = np.ones(len(rows), np.bool_)
    broken_r = np.zeros(len(rows), np.bool_) if broken_r is None else broken_r
    bad_rs, dropped, seen = [], [], []
    for condition in conditions:
        column = rows.column(condition.column)
        encoded = pa.types.is_dictionary(column.type) and condition.rule in ("in", "not_in")
        column = column.combine_chunks() if encoded else combine_column(column)
        holds, bad_r, values = _compare(column, condition)
        stays_r = kept_r & (as_mask(holds) | bad_r | broken_r)
        seen.append(values)
        dropped.append(int(kept_r.sum() - stays_r.sum()))
        bad_rs.append(bad_r & ~broken_r)
        kept_r = stays_r
    return Selection(kept_r, tuple(bad_rs), tuple(dropped), tuple(seen))


def _compare(column: pa.Array, condition: Condition) -> tuple[pa.Array, Bools, Counter[str]]:
    """Return which rows hold, which have an unusable value, and the values."""
    fine_r, rule = np.zeros(len(column), np.bool_), condition.rule
    if rule == "not_null":
        return column.is_valid(), fine_r, Counter()
    if rule in ("in", "not_in"):
        codes = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
        texts = combine_column(spell_values(pa.chunked_array([codes.dictionary])))
        among_r = _is_among(texts, condition.values).take(codes.indices)
        counts = np.bincount(codes.indices.drop_null().to_numpy(), minlength=len(texts)).tolist()
        seen = Counter(dict(zip(texts.slice(0, MOST_VALUES).to_pylist(), counts, strict=False)))
        return among_r if rule == "in" else pc.invert(among_r), fine_r, seen
    ends: Sequence[Value] = condition.ends or condition.values
    if condition.ends is not None:
        in_units = condition.is_time or pa.types.is_integer(column.type)
        unit = condition.unit if in_units else "timestamp"
        numbers = convert_times(column, unit, condition.zone, condition.pattern)
    else:
        numbers = _to_numbers(column, condition)
    bad_r = as_mask(column.is_valid()) & ~as_mask(numbers.is_valid())
    if rule == "between":
        return (
            pc.and_(pc.greater_equal(numbers, ends[0]), pc.less_equal(numbers, ends[1])),
            bad_r,
            Counter(),
        )
    return (pc.greater if rule == "above" else pc.less)(numbers, ends[0]), bad_r, Counter()


def _is_among(texts: pa.Array, values: Sequence[Value]) -> pa.Array:
    """Compare numbers as numbers, and other values as texts."""
    among = pc.is_in(texts, pa.array(map(spell_value, values), pa.string()))
    numbers = [float(value) for value in values if not isinstance(value, str | bool)]
    return pc.or_(among, pc.is_in(as_double(texts, ""), pa.array(numbers))) if numbers else among


def _to_numbers(column: pa.Array, condition: Condition) -> pa.Array:
    """Return float64, with NULL for texts that are no numbers."""
    try:
        return as_double(column, condition.column)
    except SchemaError:
        message = f"dataset.where: {condition.describe()}: the column has {column.type}, and no numbers"
        raise ConfigError(message, "between: [2026-01-01, 2026-01-31] compares times") from None


def spell_value(value: Value) -> str:
    """Return a setting as a log spells it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
