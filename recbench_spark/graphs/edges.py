"""Read edge lists and id tables in tasks.

The input is any table, or text whose first lines show its layout.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.core.ids import CANONICAL_INTEGER, WHOLE_FLOAT, as_ids, drop_empty
from recbench_spark.core.streams import group_batches
from recbench_spark.errors import ConfigError, DataError, FallbackToSpark, SchemaError, nearest
from recbench_spark.graphs.edge_values import to_id_array
from recbench_spark.sources import table_pieces
from recbench_spark.sources.arrow_files import Problems, convert_vectors
from recbench_spark.sources.formats import (
    FilePiece,
    TablePiece,
    TablePieces,
    choose_reader,
    get_reader,
    open_files,
)
from recbench_spark.sources.list_columns import is_list
from recbench_spark.sources.paths import check_path
from recbench_spark.sources.text_lines import RFC_4180, cut_quoted
from recbench_spark.sources.text_pieces import MARK, Fields, LinePiece
from recbench_spark.storage.local_files import bare_name, read_head
from recbench_spark.storage.text_forms import BLANKS

ROWS_A_CHUNK = 1 << 21
"""Rows a task holds at once: some 100 MB."""

TEXT_SAMPLE = 1 << 22
"""First bytes of a text file, which decide its column types.

Later rows with another type are refused.
"""

BYTES_A_LINE = 16
"""Bytes in a text line, about."""


@dataclass(frozen=True)
class RowSource:
    """A table to read column by column, in pieces.

    Attributes:
        pieces: a few values each, held by the driver and sent to all tasks.
        columns: names to read, in order.
        n: row count; for text, an estimate by bytes.
        where: column -> the text a row must have there.
        numeric: by column, true if ids are whole numbers; other columns are not converted.
        floats: text columns whose whole numbers are written as floats (`10.0`).
        what: the rows' name in errors.
        others: columns not read.
    """

    pieces: tuple[TablePiece, ...]
    columns: tuple[str, ...]
    n: int
    where: tuple[tuple[str, str], ...] = ()
    numeric: tuple[tuple[str, bool], ...] = ()
    floats: frozenset[str] = frozenset()
    what: str = "edges"
    others: tuple[str, ...] = ()

    def part(self, number: int, tasks: int) -> tuple[TablePiece, ...]:
        """Return the pieces for task `number` of `tasks`."""
        return self.pieces[number::tasks]

    def chunks(self, pieces: Iterable[TablePiece]) -> Iterator[pa.Table]:
        """Yield the rows of pieces, about ROWS_A_CHUNK at once."""
        for piece in pieces:
            for batches in group_batches(self._read(piece), ROWS_A_CHUNK):
                table = pa.Table.from_batches(batches)
                for column, value in self.where:
                    table = table.filter(pc.equal(table.column(column).cast(pa.string()), value))
                if table.num_rows:
                    yield table.select(list(self.columns))

    def _read(self, piece: TablePiece) -> Iterator[pa.RecordBatch]:
        names = list(dict.fromkeys([*self.columns, *(name for name, _ in self.where)]))
        for stored in piece.read(names):
            stored.refuse_lines(f"{self.what} {piece.file}")
            table = stored.table
            marked = (pc.match_substring(texts, "\N{REPLACEMENT CHARACTER}") for texts in table.columns)
            if stored.line and any(pc.any(one).as_py() for one in marked):
                raise DataError(f"{self.what} {piece.file}: it is not UTF-8", "save it as CSV in UTF-8")
            if stored.line and "vector" in names:
                problems = Problems(self.what, piece.file)
                vectors = convert_vectors(table.column("vector").combine_chunks(), self.what, problems)
                problems.refuse()
                table = table.set_column(names.index("vector"), "vector", vectors)
            yield from table.to_batches()

    def ids(self, table: pa.Table, column: str, name: str | None = None) -> pa.Array:
        """Return an id column as int64 or texts, one chunk.

        NULL stands where there is no id.

        Args:
            table: rows.
            column: its name in `table`.
            name: its name in `columns`, if different.

        Raises:
            DataError: a value is no id (`core.ids`), or no whole number where ids are numeric.
        """
        name = name or column
        what, values = f"{self.what}: column {name}", table.column(column)
        return to_id_array(values, dict(self.numeric)[name], what, floats=name in self.floats)


def open_rows(
    path: str,
    columns: Sequence[str],
    what: str,
    *,
    fmt: str | None = None,
    ids: Mapping[str, str] | None = None,
    where: Mapping[str, str] | None = None,
    partitions: Mapping[str, str] | None = None,
) -> RowSource:
    """Open a table on any storage.

    Only footers are read, and the first lines of text.

    Args:
        path: file, folder or Delta table.
        columns: names that must exist.
        what: the rows' name in errors.
        fmt: csv, parquet or delta; None: by the files' names.
        ids: id columns -> auto, numeric or text.
        where: column -> the text a row must have there.
        partitions: partitions of a Delta table, column -> value.

    Raises:
        MissingError: there is no such path. DataError: it cannot be read. SchemaError: a column is
            missing.
    """
    wanted = list(dict.fromkeys([*columns, *(where or {})]))
    look = partial(look_at_text, columns=columns, wanted=wanted)
    try:
        opened = _open(path, fmt, wanted, partitions or {}, look)
    except (DataError, SchemaError) as error:
        if isinstance(error, FallbackToSpark):
            check_path(path)
        kind = SchemaError if isinstance(error, SchemaError) else DataError
        raise kind(f"{what} {error.message}", error.hint or "copy its rows to Parquet") from None
    names = opened.schema.names
    _require_columns(names, wanted, f"{what} {path}")
    for piece in {one.file: one for one in opened.pieces}.values():
        own = find_names(piece, names)
        _require_columns([name for name in names if name in own], wanted, f"{what} {piece.file}")
    kept = frozenset(ids or {})
    pieces = tuple(
        replace(one, kept=kept) if isinstance(one, FilePiece) else one
        for one in sorted(opened.pieces, key=lambda one: one.file)
    )
    others = tuple(name for name in names if name not in columns)
    n = opened.n or opened.size // BYTES_A_LINE
    rows = RowSource(pieces, tuple(columns), n, tuple((where or {}).items()), what=what, others=others)
    kinds = {name: _find_kind(rows, opened, name, kind) for name, kind in (ids or {}).items()}
    numeric = tuple((name, kind != "text") for name, kind in kinds.items())
    floats = frozenset(name for name, kind in kinds.items() if kind == "floats")
    return replace(rows, numeric=numeric, floats=floats)


def _open(
    path: str,
    fmt: str | None,
    wanted: Sequence[str],
    partitions: Mapping[str, str],
    look: Callable[[str], tuple[Fields, int]],
) -> TablePieces:
    if fmt == "delta" or partitions or table_pieces.is_delta(path):
        return table_pieces.open_typed(path, fmt or "delta", wanted, {}, partitions)
    files = table_pieces.list_files(table_pieces.find_place(path), strict=True)
    is_text = any(bare_name(file).lower().endswith(TEXT_ENDINGS) for file in [path, *files])
    if fmt == "csv" or (fmt is None and is_text):
        return table_pieces.open_texts(path, files, look)
    if fmt is None and table_pieces.find_layout(path):
        return table_pieces.open_pieces(path)
    reader = get_reader(fmt) if fmt else choose_reader(path, files)
    try:
        return open_files(path, files, reader, wanted, any_case=True)
    except DataError as error:
        raise DataError(error.message, f"{error.hint}; see --format") from None


TEXT_ENDINGS = (".csv", ".tsv", ".txt", ".edges")
"""Endings of text files whose first lines show the layout.

A compression's ending may follow.
"""


def look_at_text(path: str, columns: Sequence[str], wanted: Sequence[str]) -> tuple[Fields, int]:
    """Find a text file's layout, and where its rows begin.

    The layout comes from the first lines, and the place is a byte. Lines at the start with a leading #
    are comments. If the first row holds a number and lacks some wanted name, there is no header, and the
    columns are the wanted ones in order.

    Raises:
        DataError: the file has no lines, or its lines end in two ways.
        SchemaError: its header names a column in `wanted` twice.
    """
    head = read_head(path)
    at = begin = len(MARK) if head.startswith(MARK) else 0
    while head[at : at + 1] == b"#":
        at = head.find(b"\n", at) + 1 or len(head)
    line = head[at:].splitlines(keepends=True)[:1]
    if not line or not line[0].strip():
        raise DataError(f"{path} is empty", f"write one line per row: {','.join(columns)}")
    text = line[0].decode("utf-8", "replace").strip("\r\n")
    mark = next((one for one in ("\t", ",", ";", " ") if one in text), ",")
    # Any number of blanks separates two columns; other separators count one by one.
    sep = BLANKS if mark == " " else mark
    cut = text.split() if mark == " " else cut_quoted(text, mark, path, None)
    fields = [(field or f"_c{n}").strip().strip('"') for n, field in enumerate(cut)]
    if any(map(_is_number, fields)) and not {*columns} <= {*fields}:
        more = (f"column_{n}" for n in range(len(columns), len(fields)))
        given = tuple([*columns, *more][: len(fields)])
        return Fields(given, sep, quotes=RFC_4180), 0 if at == begin else at
    if doubled := [name for name in wanted if fields.count(name) > 1]:
        raise SchemaError(f"{path}: two columns are called {doubled[0]}", "rename one")
    layout = Fields(tuple(fields), sep, quotes=RFC_4180)
    if not line[0].endswith(b"\r"):
        return layout, at + len(line[0])
    if at > begin:
        raise DataError(f"{path}: some lines end in \\n and some in \\r", "end all lines in \\n")
    return replace(layout, header=True), 0


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def find_names(piece: TablePiece, names: Collection[str]) -> Collection[str]:
    """Return the columns in a piece's file.

    For Delta these are the table's `names`.
    """
    if isinstance(piece, LinePiece):
        return {*piece.layout.columns, *piece.given}
    return {*piece.own, *piece.folders} if isinstance(piece, FilePiece) else names


def _require_columns(names: Sequence[str], columns: Sequence[str], what: str) -> None:
    missing = [name for name in columns if name not in names]
    if missing:
        raise SchemaError(
            f"{what} has no column {', '.join(missing)}; it has {', '.join(names)}",
            f"{_name_hint(what, missing, names)}; {nearest(missing[0], names)}",
        )


def _name_hint(what: str, missing: Sequence[str], names: Sequence[str]) -> str:
    """Hint how to give a column another name."""
    if what.startswith("features"):
        return "the vectors' column is called vector, that of ids as in features.id_column"
    if what.startswith("nodes"):
        return "the ids' column is called as in graph.node_column"
    headless = "" if len(missing) < 2 else f", or write {','.join(missing)} into a first line of names"
    return f"name it in columns (--columns NAME=COLUMN){headless}"


def _find_kind(rows: RowSource, opened: TablePieces, name: str, requested: str) -> str:
    """Name the id kind in a column: `whole`, `floats`, `text`.

    `floats` are whole numbers written as floats.
    """
    if not opened.line:
        kind = opened.schema.field(name).type
        return "whole" if _is_numeric(kind, requested, name, rows.what) else "text"
    lines = (one for one in opened.pieces if isinstance(one, LinePiece))
    first = (one._replace(size=min(one.size, TEXT_SAMPLE)) for one in lines)
    sample = next(replace(rows, where=()).chunks(first), None)
    values = pa.chunked_array([], pa.string()) if sample is None else sample.column(name)
    return detect_id_kind(values, name, requested, rows.what)


def _is_numeric(kind: pa.DataType, requested: str, name: str, what: str) -> bool:
    """Tell whether ids are read as whole numbers, by type.

    Texts are read as numbers if the graph's ids are numbers; each text must then be one.
    """
    if is_list(kind):
        kind = kind.value_type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    try:
        as_ids(pa.chunked_array([], kind), f"{what}: column {name}")
    except pa.ArrowNotImplementedError:
        message = f"{what}: column {name} is {kind}, which holds no ids"
        raise SchemaError(message, "ids are whole numbers or texts") from None
    tests = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
    return requested == "numeric" or (requested == "auto" and any(test(kind) for test in tests))


def detect_id_kind(sample: pa.ChunkedArray, name: str, requested: str, what: str) -> str:
    """Detect the id kind in texts: `whole`, `floats`, `text`.

    `floats` are whole numbers written as floats.
    """
    values = drop_empty(sample).drop_null()
    if requested == "text" or not len(values):
        return "whole" if requested == "numeric" else "text"
    if _match_all(values, CANONICAL_INTEGER):
        return "whole"
    if _match_all(values, WHOLE_FLOAT):
        known = pc.not_equal(pc.utf8_lower(values), "nan")
        return "floats" if pc.any(known).as_py() else "text"
    bare = pc.utf8_trim_whitespace(values)
    if requested == "auto" and _match_all(bare, CANONICAL_INTEGER):
        example = values.filter(pc.not_equal(bare, values))[0].as_py()
        raise DataError(
            f"{what}: column {name} has white space around its ids, e.g. {example!r}",
            "remove it, or take ids as they are written: ids: text (--ids text)",
        )
    return "whole" if requested == "numeric" else "text"


def _match_all(texts: pa.ChunkedArray, pattern: str) -> bool:
    return bool(pc.all(pc.match_substring_regex(texts, pattern)).as_py())


# --------------------------------------------------------------------------------- values


def expand_lists(table: pa.Table, node: str, neighbours: str, weights: str | None) -> pa.Table:
    """Turn nodes with neighbour lists into edges.

    src is the neighbour, dst the node.

    Raises:
        DataError: a node has more or fewer weights than neighbours. SchemaError: a column holds no lists.
    """
    for name in (neighbours, *([] if weights is None else [weights])):
        if not is_list(table.column(name).type):
            raise SchemaError(
                f"column {name} is of type {table.column(name).type}, and lists are expected",
                "one edge per row is read without lists (--lists)",
            )
    lists = table.column(neighbours).combine_chunks()
    counts = pc.fill_null(pc.list_value_length(lists), 0).to_numpy()
    owner = table.column(node).combine_chunks().take(pa.array(np.repeat(np.arange(len(counts)), counts)))
    columns: dict[str, Any] = {"src": lists.flatten(), "dst": owner}
    if weights is not None:
        weight_lists = table.column(weights).combine_chunks()
        if not np.array_equal(pc.fill_null(pc.list_value_length(weight_lists), 0).to_numpy(), counts):
            message = "a node has more or fewer weights than neighbours"
            raise DataError(message, "give one weight per neighbour")
        columns["weight"] = weight_lists.flatten()
    return pa.table(columns)


def require_one_kind(rows: RowSource, names: Sequence[str], what: str) -> None:
    """Refuse ids with two kinds on one side.

    Such ids are numbers in one column and texts in another.

    Raises:
        ConfigError: the kinds differ.
    """
    kinds = dict(rows.numeric)
    if len({kinds[name] for name in names}) > 1:
        raise ConfigError(
            f"{what}: {names[0]} and {names[1]} are whole numbers and texts, and one node may be in both",
            "take all as texts: ids: text (--ids text), or name two sides (--sides a,b)",
        )


def count_tasks(rows: RowSource, cores: int) -> int:
    """Return the number of reading tasks.

    Each piece has a task; many rows get full rounds of the cores.
    """
    return max(1, min(len(rows.pieces), cores * max(1, -(-rows.n // (cores * 4 * ROWS_A_CHUNK)))))
