"""Count a log's rows and their mistakes, in tasks.

Facts from tasks are added up in task order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.core.ids import CANONICAL_INTEGER, WHOLE_FLOAT, drop_empty
from recbench_spark.errors import RecbenchError
from recbench_spark.schemas import IDS
from recbench_spark.sources import log_checks
from recbench_spark.sources.arrow_rows import combine_column
from recbench_spark.sources.text_pieces import BAD_LINE, COMMENTS, FILE

Example = tuple[bool, str, str]
"""A bad value: whether there is one, the value as text, its file. Messages show the smallest."""


@dataclass(frozen=True)
class RowFacts:
    """Counts over some rows of a log.

    Facts from several tasks are added up in task order.

    Attributes:
        rows, bad, later: rows read, unusable ones, and usable ones after the log's end.
        marks: mistakes without their rows, in order.
        counts, examples: each mistake's number of rows and an example.
        spelled: usable ids that are not canonical numbers, by column.
        firsts: by text column, whether the first id looks like a whole float, and whether all do.
        kinds: as in `Checked`.
        ends: the first and last time over all rows.
        undated, unparted: usable rows without a time, or without a part.
        undated_unparted: usable rows without either.
        comments: comment lines.
        time_unit: unit of times, if it may be wrong.
        error: what ended the task.
        dropped, seen: as in `Selection`, by condition; dropped rows count nowhere else.
    """

    rows: int = 0
    bad: int = 0
    later: int = 0
    marks: tuple[log_checks.Mark, ...] = ()
    counts: tuple[int, ...] = ()
    examples: tuple[Example | None, ...] = ()
    spelled: Counter[str] = field(default_factory=Counter)
    firsts: Mapping[str, tuple[bool, bool]] = field(default_factory=dict)
    kinds: Mapping[str, str] = field(default_factory=dict)
    ends: tuple[int, int] | None = None
    undated: int = 0
    undated_unparted: int = 0
    unparted: int = 0
    comments: int = 0
    time_unit: str = ""
    error: RecbenchError | None = None
    dropped: tuple[int, ...] = ()
    seen: tuple[Counter[str], ...] = ()

    @property
    def usable(self) -> int:
        """The number of rows to label."""
        return self.rows - self.bad - self.later

    def __add__(self, other: RowFacts) -> RowFacts:
        """Return the facts from both, these first."""
        if self.error or (not other.marks and not other.error):
            return self
        if other.error or not self.marks:
            return other
        firsts = {
            name: (self.firsts.get(name, one)[0], self.firsts.get(name, one)[1] and one[1])
            for name, one in {**self.firsts, **other.firsts}.items()
            for one in [other.firsts.get(name, one)]
        }
        pairs = zip(self.examples, other.examples, strict=True)
        ends = [one for one in (self.ends, other.ends) if one]
        return replace(
            self,
            **{name: getattr(self, name) + getattr(other, name) for name in SUMMED},
            counts=tuple(map(sum, zip(self.counts, other.counts, strict=True))),
            examples=tuple(min(filter(None, pair), default=None) for pair in pairs),
            firsts=firsts,
            ends=(min(one[0] for one in ends), max(one[1] for one in ends)) if ends else None,
            dropped=tuple(map(sum, zip(self.dropped, other.dropped, strict=True))),
            seen=tuple(one + more for one, more in zip(self.seen, other.seen, strict=True)),
        )


SUMMED = ("rows", "bad", "later", "spelled", "undated", "undated_unparted", "unparted", "comments")
"""Facts which add up as they are."""


def survey_rows(tables: Iterable[pa.Table], rules: log_checks.LogRules) -> RowFacts:
    """Count a task's rows and their mistakes."""
    facts = RowFacts()
    try:
        for rows in tables:
            facts += _survey_table(rows, rules)
    except RecbenchError as error:
        return RowFacts(error=error)
    return facts


def _survey_table(rows: pa.Table, rules: log_checks.LogRules) -> RowFacts:
    checked = log_checks.check_rows(rows, rules)
    rows, selection = checked.rows, checked.selection
    bad, columns = checked.bad, checked.columns
    good = ~bad
    times = columns.get("event_time", pa.nulls(len(rows), pa.int64()))
    later = good & log_checks.is_later(times, rules)
    kept = good & ~later
    ends = pc.min_max(times)
    parts = columns.get("part", pa.nulls(len(rows), pa.string()))
    undated, unparted = kept & ~log_checks.is_set(times), kept & ~log_checks.is_set(parts)
    comments = (rows.schema.metadata or {}).get(COMMENTS, b"0")
    return RowFacts(
        len(rows),
        int(bad.sum()),
        int(later.sum()),
        tuple(replace(mark, bad=np.zeros(0, np.bool_)) for mark in checked.marks),
        tuple(int(mark.bad.sum()) for mark in checked.marks),
        tuple(_find_example(rows, mark) for mark in checked.marks),
        _count_spelled(checked, kept),
        _find_firsts(rows, rules) if rules.line and rules.finds_floats else {},
        checked.kinds,
        None if ends["min"].as_py() is None else (ends["min"].as_py(), ends["max"].as_py()),
        int(undated.sum()),
        int((undated & unparted).sum()),
        int(unparted.sum()),
        int(comments),
        checked.time_unit,
        dropped=selection.dropped if selection else (),
        seen=selection.seen if selection else (),
    )


def _count_spelled(checked: log_checks.Checked, kept: log_checks.Bools) -> Counter[str]:
    """Count ids which are not their number's only spelling.

    Only columns count where values decide the order of ids.
    """
    spelled: Counter[str] = Counter()
    for name, kind in checked.kinds.items():
        if kind == "text":
            codes = checked.columns[name].filter(pa.array(kept)).dictionary_encode()
            canonical = pc.match_substring_regex(codes.dictionary, CANONICAL_INTEGER)
            spelled[name] = int(pc.sum(pc.invert(canonical), min_count=0).as_py())
    return spelled


def _find_firsts(rows: pa.Table, rules: log_checks.LogRules) -> dict[str, tuple[bool, bool]]:
    """Look for whole floats in each id column.

    The result says whether the first id looks like one, and whether all are.
    """
    firsts = {}
    good = rows.filter(pc.is_null(rows.column(BAD_LINE)))
    for name in IDS:
        source = rules.sources[name]
        ids = drop_empty(combine_column(good.column(source)).cast(pa.string())).drop_null()
        if pc.any(pc.match_substring(ids, "nan", ignore_case=True), min_count=0).as_py():
            ids = ids.filter(pc.not_equal(pc.utf8_lower(ids), "nan"))
        if len(ids) and source not in rules.folders:
            first, whole = ids[0].as_py(), pc.all(pc.match_substring_regex(ids, WHOLE_FLOAT)).as_py()
            firsts[name] = (first.endswith(".0") or "e+" in first.lower(), bool(whole))
    return firsts


def _find_example(rows: pa.Table, mark: log_checks.Mark) -> Example | None:
    if not mark.bad.any():
        return None
    mask = pa.array(mark.bad)
    values = log_checks.list_values(combine_column(rows.column(mark.name).filter(mask)))
    files = [""] * len(values)
    if FILE in rows.column_names:
        files = rows.column(FILE).filter(mask).to_pylist()
    examples = zip(values, files, strict=True)
    return min((one is not None, log_checks.show_value(one), file or "") for one, file in examples)
