"""Read large text files as tables, without Spark.

One pass of tasks checks their lines; then tasks convert them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from operator import add
from typing import Any

import pyarrow as pa

from recbench_spark.schemas import ID_NAMES
from recbench_spark.sources.arrow_files import Problems, convert_columns, holds_floats, note_floats
from recbench_spark.sources.formats import TablePiece
from recbench_spark.sources.text_layouts import TEXT_NOTES
from recbench_spark.sources.text_lines import StoredTable
from recbench_spark.storage.blocks import Engine, PieceRows

TextFacts = tuple[Problems, dict[str, bool]]
"""Problems in some lines, and for each id column whether all ids are whole floats."""


@dataclass(frozen=True)
class TextRules:
    """Rules for converting a text file in tasks.

    Attributes:
        where: its name in messages.
        path: its path.
        plain: columns whose bytes are checked.
        floats: ids that are whole floats throughout.
        keeps: whether U+FFFD is a letter.
    """

    where: str
    path: str
    plain: tuple[str, ...]
    floats: tuple[str, ...] = ()
    keeps: bool = False

    def convert(self, stored: StoredTable, taken: Mapping[str, str]) -> tuple[pa.Table, Problems]:
        """Return columns under our names (new -> old), and problems."""
        table = stored.table.select(list(taken.values())).rename_columns(list(taken))
        problems = Problems(self.where, self.path, keeps=self.keeps)
        problems.add_lines(stored.bad_lines, stored.line)
        given = replace(stored, table=table)
        typed = convert_columns(given, list(taken), self.where, problems, self.plain, floats=self.floats)
        return typed, problems

    def check(self, pieces: Sequence[TablePiece], engine: Engine, taken: Mapping[str, str]) -> TextRules:
        """Return the rules after a pass over all lines.

        Raises:
            DataError: some lines are wrong.
        """
        survey: Any = PieceRows(engine, pieces, partial(_survey_text, taken=taken, rules=self))
        facts: list[TextFacts] = [one for some in survey.each((), list) for one in some]
        reduce(add, (one for one, _ in facts), Problems(self.where, self.path)).refuse()
        known = {name: {one[name] for _, one in facts if name in one} for name in ID_NAMES}
        floats = tuple(name for name, are_floats in known.items() if are_floats == {True})
        for name in floats:
            note_floats(name, self.where)
        return replace(self, floats=floats)

    def name_types(self, taken: Mapping[str, str]) -> pa.Schema:
        """Return the types in converted columns."""
        notes = [pa.field(own, pa.string(), metadata=TEXT_NOTES) for own in taken.values()]
        return self.convert(StoredTable(pa.schema(notes).empty_table(), "text"), taken)[0].schema


def _survey_text(
    pieces: Iterable[TablePiece], columns: Sequence[str], taken: Mapping[str, str], rules: TextRules
) -> Iterator[TextFacts]:
    for piece in pieces:
        for stored in piece.read(list(taken.values())):
            typed, problems = rules.convert(stored, taken)
            floats = {name: holds_floats(typed.column(name)) for name in ID_NAMES if name in taken}
            yield problems, {name: value for name, value in floats.items() if value is not None}


def read_text(
    pieces: Iterable[TablePiece], columns: Sequence[str], taken: Mapping[str, str], rules: TextRules
) -> Iterator[pa.Table]:
    """Yield some columns."""
    wanted = {name: taken[name] for name in columns}
    for piece in pieces:
        for stored in piece.read(list(dict.fromkeys(wanted.values()))):
            yield rules.convert(stored, wanted)[0]
