"""Check any log in one pass; return its usable rows.

Rows have canonical columns. Unusable ones are counted and refused, or left out; messages name file, column
and an example.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from itertools import accumulate
from operator import add
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.config import LOG_COLUMNS, Dataset, Split
from recbench_spark.config.placeholders import log_end_micros
from recbench_spark.core.arrays import Ints
from recbench_spark.errors import ConfigError, DataError, ProtocolError, nearest
from recbench_spark.schemas import IDS, INTERACTIONS
from recbench_spark.sources import arrow_files, columnar, times
from recbench_spark.sources.conditions import (
    MOST_VALUES,
    Condition,
    SelectionCounts,
    make_conditions,
    spell_value,
)
from recbench_spark.sources.dealt_ids import apply_both
from recbench_spark.sources.events import name_events
from recbench_spark.sources.log_checks import PLACE, LogRules, Mark, convert_rows, find_rejects
from recbench_spark.sources.log_sources import RawLog
from recbench_spark.sources.log_survey import RowFacts, survey_rows
from recbench_spark.sources.text_layouts import IN_UTF8, read_options
from recbench_spark.sources.text_pieces import BAD_LINE
from recbench_spark.storage import blocks
from recbench_spark.storage.local_files import describe_undecoded, refuse_misspelt, require_columns

REJECT_COLUMNS = ("file", "line", "reason")


@dataclass(frozen=True)
class OpenedLog:
    """A checked log: its usable rows, and what was counted.

    Attributes:
        rows: the usable rows.
        columns: their columns.
        n: their number.
        numeric: id columns whose ids sort as numbers.
        later: usable rows after `dataset.until`.
        rejects: file, line and reason of the rejected rows; None if bad rows are an error.
        rejected: number of rejected rows.
        reasons: number of rows for each reason; a row may have several reasons.
        facts: all counts.
        rules: the rules for converting rows.
    """

    rows: blocks.Rows
    columns: tuple[str, ...]
    n: int
    numeric: frozenset[str] = frozenset(IDS)
    later: int = 0
    rejects: blocks.TaskRows | None = None
    rejected: int = 0
    reasons: Mapping[str, int] = field(default_factory=dict)
    facts: RowFacts = field(default_factory=RowFacts)
    rules: LogRules = field(default_factory=LogRules)

    @property
    def condition_counts(self) -> tuple[tuple[str, int], ...]:
        """Conditions in words, with the rows that each leaves out."""
        words = (condition.describe() for condition in self.rules.conditions)
        return tuple(zip(words, self.facts.dropped, strict=True))

    def describe_reasons(self) -> str | None:
        """Return reasons and their numbers in one text, if any.

        None: no row was rejected.
        """
        return "; ".join(f"{n} {reason}" for reason, n in self.reasons.items()) or None


def fill_columns(log: OpenedLog) -> blocks.ChangedRows:
    """Return a log's rows in `INTERACTIONS`; missing columns are NULL."""
    names = tuple(INTERACTIONS.names)
    return blocks.ChangedRows(log.rows, [name for name in names if name in log.columns], _fill, names)


def _fill(rows: pa.Table) -> pa.Table:
    missing = {one.name: pa.nulls(len(rows), one.type) for one in INTERACTIONS}
    columns = missing | dict(zip(rows.column_names, rows.columns, strict=True))
    return pa.table([columns[one.name].cast(one.type) for one in INTERACTIONS], schema=INTERACTIONS)


def make_rules(raw: RawLog, dataset: Dataset, *, keeps_replacements: bool = False) -> LogRules:
    """Return the rules for converting a log in tasks.

    Raises:
        SchemaError: a column is missing, or its name has another case. ConfigError: times have no known
            form.
    """
    names = {name: raw.source_names.get(name, name) for name in LOG_COLUMNS}
    source_names = {name: source for name, source in names.items() if source}
    required = {"user_id", "item_id", *raw.source_names}
    if not dataset.is_table:
        required -= {"event_time"}  # some files of MovieLens have none
    needed = [
        *(source for name, source in source_names.items() if name in required),
        *columnar.list_attributes(dataset),
    ]
    needed += dataset.value_columns
    sep = read_options(dataset.options).get("sep", "").replace("\\t", "\t") or None
    require_columns(raw.names, needed, raw.where, raw.where, sep)
    if dataset.is_table:
        refuse_misspelt(raw.names, list(source_names.values()), raw.where, "dataset.columns")
    if dataset.time_format:
        times.compile_pattern(dataset.time_format)
    return LogRules(
        raw.where,
        {name: source for name, source in source_names.items() if source in raw.names},
        columnar.list_attributes(dataset),
        raw.line,
        raw.nullable,
        raw.time_unit,
        dataset.zone,
        dataset.time_format,
        finds_floats=dataset.reader in ("csv", "json"),
        folders=raw.folders,
        keeps_replacements=keeps_replacements,
        end=log_end_micros(dataset),
        checked=source_names.get("event_time") in raw.checked,
        conditions=make_conditions(dataset, raw.time_unit, source_names.get("event_time")),
        events=name_events(dataset),
    )


def check_log(
    raw: RawLog, dataset: Dataset, engine: blocks.Engine, *, keeps_replacements: bool = False
) -> OpenedLog:
    """Check a log in one pass.

    Raises:
        SchemaError: a column is missing or has a type that cannot be read.
        DataError: there are no rows. Unless bad rows are rejected: ids, ratings or times are missing, not
            finite or not numbers, or lines have another layout.
    """
    rules = make_rules(raw, dataset, keeps_replacements=keeps_replacements)
    stored = raw.open(engine)
    listed = stored.each(rules.columns, partial(survey_rows, rules=rules))
    facts = reduce(add, listed, RowFacts())
    floats = frozenset(rules.sources[name] for name, one in facts.firsts.items() if all(one))
    if floats and not facts.error:
        for name in floats:
            arrow_files.note_floats(name, raw.where)
        rules = replace(rules, floats=floats)
        listed = stored.each(rules.columns, partial(survey_rows, rules=rules))
        facts = reduce(add, listed, RowFacts())
    if facts.error:
        raise facts.error
    if facts.comments:
        what = f"{facts.comments:,} lines begin with {dataset.options.get('comment', '')!r}"
        print(f"note: {raw.where}: {what} and are no rows (comment)", file=sys.stderr)
    report_conditions(rules.conditions, facts)
    _refuse_unit(raw.where, facts, rules)
    _refuse_bad(raw, facts, dataset)
    _refuse_undated(facts, dataset)
    # Texts count as numbers if each is its number's only spelling; only they are looked at for that.
    spelled = {name for name, kind in facts.kinds.items() if kind == "string" or facts.spelled[name]}
    return OpenedLog(
        _convert(stored, rules, [one.usable for one in listed]),
        rules.names,
        facts.usable,
        frozenset(facts.kinds.keys() - spelled),
        facts.later,
        _open_rejects(stored, rules) if dataset.bad_rows == "reject" else None,
        facts.bad,
        {mark.problem: n for mark, n, _ in _list_hits(facts)},
        facts,
        rules,
    )


def _convert(stored: blocks.Rows, rules: LogRules, kept: Sequence[int]) -> blocks.Rows:
    """Return the usable rows; pieces know how many come before."""
    if isinstance(stored, blocks.PieceRows):
        pieces = tuple(zip([0, *accumulate(kept)], stored.pieces, strict=False))
        read = partial(read_converted, read=stored.read, rules=rules)
        return blocks.PieceRows(stored.engine, pieces, read)
    return blocks.ChangedRows(stored, rules.columns, partial(convert_rows, rules=rules), rules.names)


def read_converted(
    pieces: Iterable[tuple[int, Any]], columns: Sequence[str], read: blocks.OpenPieces, rules: LogRules
) -> Iterator[pa.Table]:
    """Yield some columns of the usable rows in pieces."""
    for _, piece in pieces:
        for rows in read([piece], columns=rules.columns):
            yield convert_rows(rows, rules).select(list(columns))


def _open_rejects(stored: blocks.Rows, rules: LogRules) -> blocks.TaskRows:
    find = partial(find_rejects, rules=rules)
    if isinstance(stored, blocks.ChangedRows):
        change = partial(apply_both, stored.change, find)
        return cast("blocks.StoredRows", stored.rows).open(stored.columns, change, REJECT_COLUMNS)
    return cast("blocks.StoredRows", stored).open(rules.columns, find, REJECT_COLUMNS)


# ---------------------------------------------------------------------------------------- refusals


def report_conditions(conditions: Sequence[Condition], facts: RowFacts | SelectionCounts) -> None:
    """Report conditions that leave out nothing, or name no value of the log.

    Raises:
        DataError: no row holds a condition.
    """
    left = facts.rows + sum(facts.dropped)
    for condition, dropped, seen in zip(conditions, facts.dropped, facts.seen, strict=True):
        what, left = f"dataset.where: {condition.describe()}", left - dropped
        names = [*map(spell_value, condition.values)]
        strange = [name for name in names if seen and name not in seen and len(seen) < MOST_VALUES]
        hint = nearest(strange[0], [*seen]) if strange else "every row of the log is left out"
        if dropped and not left:
            raise DataError(f"{what}: no row holds it", hint)
        for name in strange:
            print(f"note: {what}: no row has {name!r}; {nearest(name, [*seen])}", file=sys.stderr)
        if not dropped and facts.bad < facts.rows:
            print(f"note: {what}: every row holds it, and none is left out", file=sys.stderr)


def _refuse_unit(where: str, facts: RowFacts, rules: LogRules) -> None:
    """Raise DataError if all times fit a coarser unit."""
    if facts.ends is None or not facts.time_unit:
        return
    name = rules.sources["event_time"]
    if facts.time_unit == times.STORED:
        mistake = times.describe_misread_times(where, name, facts.ends)
    else:
        factor = times.MICROS_PER_UNIT[facts.time_unit]
        ends = (facts.ends[0] / factor, facts.ends[1] / factor)
        mistake = times.describe_coarser_unit(where, name, ends, facts.time_unit)
    if mistake:
        raise DataError(*mistake)


def _refuse_bad(raw: RawLog, facts: RowFacts, dataset: Dataset) -> None:
    """Refuse a log with bad rows, or without usable ones.

    Bad rows may also be allowed (`dataset.bad_rows`).
    """
    where = raw.where
    if not facts.rows:
        raise DataError(f"{where}: no rows")
    problems, hint = _describe_problems(where, facts)
    if problems and hint == IN_UTF8:
        problems += describe_undecoded(where)
    if problems:
        problems[-1] += raw.find_line()
    if dataset.bad_rows == "error" and problems:
        advice = "correct or remove these rows, or set dataset.bad_rows to reject"
        raise DataError(f"{where}: " + "; ".join(problems), hint or advice)
    if facts.bad == facts.rows:
        raise DataError(f"{where}: no usable row: {'; '.join(problems)}", "look at the format")


def _list_hits(facts: RowFacts) -> list[tuple[Mark, int, tuple[bool, str, str]]]:
    mistakes = zip(facts.marks, facts.counts, facts.examples, strict=True)
    return [(mark, n, example) for mark, n, example in mistakes if n and example is not None]


def _describe_problems(where: str, facts: RowFacts) -> tuple[list[str], str]:
    """Return a sentence for each mistake, and the first advice."""
    problems, hint = [], ""
    for mark, n, (is_there, value, file) in _list_hits(facts):
        shown = repr(value[:120]) if is_there else "a missing value"
        name = file.rsplit("/", 1)[-1]
        inside = f" in {name}" if name and not where.endswith(name) else ""
        what = "lines that are" if mark.name == BAD_LINE else "rows whose"
        problems.append(f"{n} {what} {mark.problem}, e.g. {shown}{inside}")
        by_example = times.time_hint(value if is_there else None, mark.unit) if mark.unit else ""
        hint = hint or mark.hint or by_example
    return problems, hint


def _refuse_undated(facts: RowFacts, dataset: Dataset) -> None:
    """Refuse rows that belong to no night."""
    if dataset.until and facts.undated:
        message = f"dataset.until is set, and {facts.undated} rows of {dataset.name} have no event_time"
        raise DataError(message, "map dataset.columns.event_time, or remove dataset.until")
    if not facts.usable:
        raise DataError(f"dataset {dataset.name} has no rows", "check dataset.path")


# ------------------------------------------------------------------------------------- protocols


def refuse_missing(log: OpenedLog, split: Split) -> None:
    """Refuse rows without what the protocol needs: parts, or times.

    Raises:
        ProtocolError: there are such rows.
    """
    if split.holdout == "given" and log.facts.unparted:
        raise ProtocolError(
            "split.protocol is 'given', and the log has rows without a part",
            "map dataset.columns.part to a column that says train, valid or test",
        )
    if split.temporal and split.holdout not in ("given", "consecutive") and log.facts.undated_unparted:
        raise ProtocolError(
            "a temporal split (TO_..) needs a time in every row, and this log has rows without",
            "use RO_RS or RO_LS, or map dataset.columns.event_time",
        )


@dataclass(frozen=True)
class Stretches:
    """Folds with equal length, cut in a log's row order.

    Attributes:
        n: number of rows.
        folds, fold: number of folds, and the test fold.
        valid: whether the next fold validates.
        every_fold: whether a row's part is its fold's number.
    """

    n: int
    folds: int
    fold: int
    valid: bool
    every_fold: bool

    def name_parts(self, place_r: Ints) -> pa.Array:
        """Return the part of the rows at these places."""
        fold_r = place_r * self.folds // max(self.n, 1)
        if self.every_fold:
            return pa.array(fold_r).cast(pa.string())
        is_valid = self.valid & (fold_r == (self.fold + 1) % self.folds)
        names = np.where(fold_r == self.fold, "test", np.where(is_valid, "valid", "train"))
        return pa.array(names.astype(object), pa.string())


def label_stretches(log: OpenedLog, split: Split, *, every_fold: bool = False) -> OpenedLog:
    """Add `part` by the row's place, unless the log does.

    Raises:
        ConfigError: Spark reads the log, and `dataset.where` selects rows: their places are unknown.
    """
    stretches = Stretches(log.n, split.folds, split.fold, split.valid, every_fold)
    names = tuple(dict.fromkeys((*log.columns, "part")))
    if isinstance(log.rows, blocks.PieceRows):
        read = partial(_read_stretches, read=log.rows.read, names=log.columns, stretches=stretches)
        return replace(log, rows=replace(log.rows, read=read), columns=names)
    if log.rules.conditions:
        raise ConfigError(
            "dataset.where: Spark reads this log, and consecutive folds count the rows that it selects",
            "write these rows as files that Python reads, or another split.holdout",
        )
    rules = replace(log.rules, placed=True)
    change = partial(_convert_placed, rules=rules, stretches=replace(stretches, n=log.facts.rows))
    stored = cast("blocks.ChangedRows", log.rows).rows
    return replace(log, rows=blocks.ChangedRows(stored, rules.columns, change, names), columns=names)


def _read_stretches(
    pieces: Iterable[tuple[int, Any]],
    columns: Sequence[str],
    read: blocks.OpenPieces,
    names: Sequence[str],
    stretches: Stretches,
) -> Iterator[pa.Table]:
    for piece in pieces:
        start = piece[0]
        for rows in read([piece], columns=names):
            parts = stretches.name_parts(np.arange(start, start + len(rows)))
            yield _set_parts(rows, parts).select(list(columns))
            start += len(rows)


def _set_parts(rows: pa.Table, parts: pa.Array) -> pa.Table:
    if "part" not in rows.column_names:
        return rows.append_column("part", parts)
    place = rows.column_names.index("part")
    return rows.set_column(place, "part", pc.coalesce(rows.column("part"), parts))


def _convert_placed(rows: pa.Table, rules: LogRules, stretches: Stretches) -> pa.Table:
    """Convert rows in a frame, which has their places.

    Rejected rows have a place, too.
    """
    converted = convert_rows(rows, rules)
    return _set_parts(converted, stretches.name_parts(converted.column(PLACE).to_numpy()))


def choose_identity(store: Any) -> Callable[..., str]:
    """Return the function which identifies a warehouse's inputs.

    Both runners then give the same text.
    """
    if store.spark is None:
        return arrow_files.identity
    from recbench_spark.sources.identity import identity  # noqa: PLC0415

    return partial(identity, store.spark)
