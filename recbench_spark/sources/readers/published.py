"""Read what published data sets have beside a log.

These are rounds, propensities and negatives. Tasks cut the lines, on either runner, without Spark.

Sources: Open Bandit, Saito et al., NeurIPS 2021, Datasets and Benchmarks; Coat, Schnabel et al., ICML 2016;
NCF, He et al., WWW 2017.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial, reduce
from operator import add
from typing import Any, NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.core.arrays import Floats
from recbench_spark.errors import DataError, FallbackToSpark
from recbench_spark.schemas import IDS, require_names
from recbench_spark.sources.arrow_files import Problems
from recbench_spark.sources.arrow_rows import combine_column
from recbench_spark.sources.input_rows import InputRows
from recbench_spark.sources.log_checks import Bools, LogRules, Mark, check_rows, parse_numbers
from recbench_spark.sources.log_sources import HERE, Finder, RawLog, TextLog, open_text_files
from recbench_spark.sources.paths import check_path
from recbench_spark.sources.table_pieces import find_place
from recbench_spark.sources.text_layouts import TEXT_NOTES
from recbench_spark.sources.text_lines import RFC_4180, cut_quoted
from recbench_spark.sources.text_pieces import BAD_LINE, Fields, ItemLines, Matrix, TextLayout
from recbench_spark.storage.blocks import ChangedRows, Engine, StoredRows, return_rows
from recbench_spark.storage.local_files import head_lines
from recbench_spark.storage.packed_blocks import Change

ROUND_COLUMN = "_c0"
"""Our name for the first column, which has none in the files; it numbers the rounds."""

LOGGED = ("item_id", "position", "click", "propensity_score")
REQUIRED = (ROUND_COLUMN, "timestamp", *LOGGED)


class TextInput(NamedTuple):
    """Text in a known layout, with rules for its columns.

    Attributes:
        raw: its rows.
        marked: columns to check.
        mark: function from these to unusable values; None: none is.
        read: columns to read.
        change: function from these to typed rows.
    """

    raw: RawLog
    marked: tuple[str, ...]
    mark: Callable[[pa.Table], Sequence[tuple[pa.Array, Mark]]] | None
    read: tuple[str, ...]
    change: Change

    def open(self, engine: Engine) -> InputRows:
        """Check all rows in one pass, and return them.

        Raises:
            DataError: there are none, or values cannot be used.
        """
        where, stored = self.raw.where, self.raw.open(engine)
        work = partial(_count_mistakes, mark=self.mark, line=self.raw.line, where=where)
        counts = stored.each((*self.marked, BAD_LINE), work)
        reduce(add, (problems for _, problems in counts), Problems(where, where)).refuse()
        if not sum(n for n, _ in counts):
            raise DataError(f"{where}: no rows")
        empty = self.change(pa.table({name: pa.array([], pa.string()) for name in self.read}))
        rows = ChangedRows(stored, self.read, self.change, tuple(empty.column_names))
        fields = [one.with_metadata(TEXT_NOTES) if one.name in IDS else one for one in empty.schema]
        return InputRows(cast("StoredRows", rows), pa.schema(fields))


def find_rounds(path: str, engine: Any = None) -> TextInput:
    """Find a CSV file with rounds, also by its folder.

    The file has a header. Each policy has its own folder: `random` and `bts` are read separately.

    Args:
        path: `all.csv` (`men.csv`, `women.csv`; `.gz`), or its folder.
        engine: a runner, which reads remote files if it is Spark; None: only this machine's files.

    Returns:
        item_id, position, reward (the click) and propensity, when it is opened.

    Raises:
        ConfigError: no such file. SchemaError: a column is missing. FallbackToSpark: Spark must read it.
    """
    raw = _find_text(path, partial(_find_rounds, path=path), engine)
    require_names(raw.names, list(REQUIRED), raw.where)
    prefix = re.escape("user-item_affinity_")
    affinities = tuple(name for name in raw.names if re.fullmatch(f"{prefix}[0-9]+", name))
    mark = partial(_mark_rounds, where=raw.where, affinities=affinities)
    return TextInput(raw, (*REQUIRED, *affinities), mark, LOGGED, _type_rounds)


def find_propensities(path: str, engine: Any = None) -> TextInput:
    """Find a matrix such as Coat's `propensities.ascii`.

    The matrix is at or under a path; arguments as `find_rounds`.

    Returns:
        user_id, item_id and propensity, when it is opened; ids are places, from 0, like the ratings'. A
        task holds the matrix as text.
    """
    layout = Matrix("propensity", zeros=True)
    raw = _find_text(path, partial(_find_file, path=path, name="propensities.ascii", layout=layout), engine)
    return TextInput(raw, ("propensity",), _mark_chances, (*IDS, "propensity"), _type_chances)


def find_negatives(path: str, engine: Any = None) -> TextInput:
    """Find the listed negatives in `*.test.negative`.

    The files are at or under a path; arguments as `find_rounds`.

    Returns:
        user_id and item_id, when it is opened. 156 users in MovieLens 1M have 98 competitors, since their
        test item is among them.
    """
    find = partial(_find_file, path=path, name="*.test.negative", layout=ItemLines(listed=True))
    return TextInput(_find_text(path, find, engine), (), None, IDS, return_rows)


def _find_text(path: str, find: Callable[[Finder], TextLog], engine: Any) -> RawLog:
    """Open text in tasks if possible, else by Spark."""
    try:
        check_path(path)
        find_place(path)
        return open_text_files(find(HERE))
    except FallbackToSpark:
        if getattr(engine, "spark", None) is None:
            raise
    from recbench_spark.sources.readers.logs import read_text_files  # noqa: PLC0415

    return read_text_files(engine.spark, find)


def _find_rounds(finder: Finder, path: str) -> TextLog:
    names = ("all.csv", "men.csv", "women.csv")
    file = finder.find(path, names) if finder.is_folder(path) else path
    lines = head_lines(finder.read_head(file))
    header = cut_quoted(lines[0], ",", file, None) if lines else []
    columns = tuple(name or f"_c{place}" for place, name in enumerate(header))
    return TextLog([({}, file, Fields(columns, ",", header=True, quotes=RFC_4180))], file)


def _find_file(finder: Finder, path: str, name: str, layout: TextLayout) -> TextLog:
    file = finder.find(path, [name]) if finder.is_folder(path) else path
    return TextLog([({}, file, layout)], file)


# ------------------------------------------------------------------------------- what tasks do


def _count_mistakes(
    tables: Iterable[pa.Table], mark: Callable[[pa.Table], Any] | None, line: str, where: str
) -> tuple[int, Problems]:
    """Count rows and unusable values.

    In a bad line, values are not checked.
    """
    n, problems = 0, Problems(where, where)
    for rows in tables:
        is_good = ~np.asarray(rows.column(BAD_LINE).is_valid())
        n += len(rows)
        own = Problems(where, where)
        own.add_lines(rows.column(BAD_LINE).drop_null().to_pylist(), line)
        for raw, one in mark(rows) if mark else ():
            own.add_values(one.name, raw, one.bad & is_good, one.expected, one.hint)
        problems += own
    return n, problems


def _mark_rounds(rows: pa.Table, where: str, affinities: Sequence[str]) -> list[tuple[pa.Array, Mark]]:
    sources = {"item_id": "item_id", "event_time": "timestamp"}
    rules = LogRules(where, sources, nullable=(), unit="timestamp")
    number = {name: _read_numbers(rows, name) for name in (ROUND_COLUMN, *LOGGED[1:])}
    place, click, chance = (number[name] for name in LOGGED[1:])
    marks = [
        Mark(ROUND_COLUMN, "a whole number", ~_is_whole(number[ROUND_COLUMN])),
        *check_rows(rows, rules).marks,
        Mark("position", "a position from 1", ~(_is_whole(place) & (place >= 1))),
        Mark("click", "0 or 1", ~((click == 0) | (click == 1))),
        _mark_chance("propensity_score", chance),
    ]
    bad = [~np.isfinite(_read_numbers(rows, name)) for name in affinities]
    if bad and np.any(bad):
        texts = [combine_column(rows.column(name)) for name in affinities]
        joined = pc.binary_join_element_wise(*texts, ",", null_handling="replace")
        rows = rows.append_column("affinities", joined)
        marks.append(Mark("affinities", "an array of numbers", np.any(bad, axis=0)))
    return [(combine_column(rows.column(mark.name)), mark) for mark in marks]


def _mark_chances(rows: pa.Table) -> list[tuple[pa.Array, Mark]]:
    name = "propensity"
    return [(combine_column(rows.column(name)), _mark_chance(name, _read_numbers(rows, name)))]


def _mark_chance(name: str, chance: Floats) -> Mark:
    return Mark(name, "a probability above 0", ~((chance > 0) & (chance <= 1)))


def _is_whole(number: Floats) -> Bools:
    whole: Bools = (np.abs(number) < 2.0**53) & (number == np.floor(number))
    return whole


def _read_numbers(rows: pa.Table, name: str) -> Floats:
    """Return a column as float64, NaN for other texts."""
    number = parse_numbers(combine_column(rows.column(name)), name, name)
    return np.asarray(pc.fill_null(number, np.nan), np.float64)


def _type_rounds(rows: pa.Table) -> pa.Table:
    position = pa.array(_read_numbers(rows, "position")).cast(pa.int64(), safe=False)
    numbers = {"reward": "click", "propensity": "propensity_score"}
    columns = {name: pa.array(_read_numbers(rows, old)) for name, old in numbers.items()}
    return pa.table({"item_id": rows.column("item_id"), "position": position, **columns})


def _type_chances(rows: pa.Table) -> pa.Table:
    ids = {name: rows.column(name) for name in IDS}
    return pa.table({**ids, "propensity": pa.array(_read_numbers(rows, "propensity"))})
