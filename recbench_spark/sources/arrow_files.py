"""Read, convert and check whole tables in this process.

The functions raise `FallbackToSpark` for what only Spark can read: a catalog, storage known to Hadoop
alone, or Delta features unknown to `deltalake`.
"""

from __future__ import annotations

import bz2
import gzip
import json
import os
import sys
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.core.ids import WHOLE_FLOAT, as_ids, drop_empty
from recbench_spark.core.inputs import Options, PinnedInput, look_once
from recbench_spark.errors import DataError, SchemaError
from recbench_spark.schemas import ID_KIND, ID_NAMES, ID_TYPE
from recbench_spark.sources import arrow_rows, text_layouts
from recbench_spark.sources.column_names import ColumnNames
from recbench_spark.sources.delta_snapshots import read_snapshot
from recbench_spark.sources.digests import content_identity
from recbench_spark.sources.formats import TablePieces
from recbench_spark.sources.table_pieces import (
    detect_kind,
    find_place,
    is_delta,
    list_files,
    open_pieces,
    read_rows,
)
from recbench_spark.sources.text_lines import StoredTable
from recbench_spark.storage.local_files import (
    COMPRESSED,
    HEAD_BYTES,
    describe_undecoded,
    refuse_misspelt,
    require_columns,
)
from recbench_spark.storage.objects import measure_files, open_input

Bools = npt.NDArray[np.bool_]


def read_table(
    path: str,
    columns_required: Sequence[str],
    what: str,
    columns: ColumnNames | None = None,
    *,
    keeps: bool = False,
) -> pa.Table:
    """Read a table at a path, with ids as text.

    Metadata on id columns say how ids were stored. The columns in NUMBER_COLUMNS become float64, `rank`
    int64, `vector` lists of float32 (in text a JSON array); other columns stay as they are. NULL stays
    NULL.

    Raises:
        FallbackToSpark: only Spark reads it. MissingError: nothing is there. SchemaError: a column is
            missing, or has a type that cannot be read. DataError: a value or a line cannot be read.
    """
    stored = open_path(path, columns_required)
    return check_table(stored, columns_required, what, path, columns=columns, keeps=keeps)


def check_table(
    stored: StoredTable,
    columns_required: Sequence[str],
    what: str,
    path: str,
    *,
    columns: ColumnNames | None = None,
    keeps: bool = False,
) -> pa.Table:
    """Convert and check a table, as `read_table` does."""
    where = f"{what} {path}"
    if columns is not None:
        stored = replace(stored, table=columns.rename(stored.table, what))
    names = stored.table.column_names
    check_names(names, columns_required, what, path)
    problems = Problems(where, path, keeps=keeps)
    problems.add_lines(stored.bad_lines, stored.line)
    table = convert_columns(stored, names, where, problems, plain=columns_required)
    problems.refuse()
    return table


def check_names(names: Sequence[str], needed: Sequence[str], what: str, path: str) -> None:
    """Refuse missing columns, and misspelt ones which change results."""
    require_columns(names, needed, f"{what} {path}", path)
    optional = text_layouts.OPTIONAL_COLUMNS.get(what.partition(" of ")[0], ())
    refuse_misspelt(names, optional, f"{what} {path}")


def convert_columns(
    stored: StoredTable,
    names: Sequence[str],
    where: str,
    problems: Problems,
    plain: Sequence[str] = (),
    *,
    floats: Collection[str] | None = None,
) -> pa.Table:
    """Convert columns by the meaning of their names.

    Args:
        stored: the table.
        names: the columns.
        where: the table's name in messages.
        problems: collects what is wrong.
        plain: columns in a text file whose bytes are checked.
        floats: id columns in a text file which hold whole floats throughout, and become float64; None: all
            rows are here, and say so.
    """
    fields, arrays = [], []
    for name in dict.fromkeys(names):
        raw = arrow_rows.read_column(stored.table, name, where)
        if name in ID_NAMES and stored.line:
            own = stored.table.schema.field(name)
            field, column = _convert_field_ids(own, raw, where, problems, floats)
        elif name in ID_NAMES:
            field, column = _convert_ids(stored.table, name, where)
        elif name in text_layouts.NUMBER_COLUMNS or name == "rank":
            field, column = _convert_number(raw, name, where, problems)
        elif name == "vector":
            field, column = pa.field(name, arrow_rows.FLOAT32), convert_vectors(raw, where, problems)
        else:
            field, column = pa.field(name, raw.type), raw
            if stored.line and name in plain:
                problems.add_undecoded(name, raw)
        fields.append(field)
        arrays.append(column)
    return pa.table(arrays, schema=pa.schema(fields))


def read_column_names(path: str) -> list[str]:
    """Read a table's column names without reading its rows.

    In a text file larger than COUNTED_BYTES, only the header is read.
    """
    opened = open_pieces(path)
    if opened.line and opened.size <= COUNTED_BYTES:
        read_whole(opened)
    return list(opened.schema.names)


def read_vector_width(path: str) -> int | None:
    """Read a table's vector width; None without a first vector."""
    first = next(iter(read_first_values(path, "vector", 1).to_pylist()), None)
    vector = _parse_json_vector(first) if isinstance(first, str) else first
    return None if vector is None else len(vector)


def read_first_values(path: str, name: str, n: int) -> pa.Array:
    """Read a column's first n values; text files give text."""
    opened = open_pieces(path)
    tables = [pa.schema([opened.schema.field(name)]).empty_table()]
    for table in read_rows(opened.pieces, [name]):
        tables.append(table)
        if sum(map(len, tables)) >= n:
            break
    return arrow_rows.combine_column(pa.concat_tables(tables).column(name).slice(0, n))


def read_common_width(users: tuple[str, str], items: tuple[str, str]) -> int | None:
    """Read the common vector length from each table's first row.

    None: a table is empty.

    Args:
        users, items: each table's name in messages, and its path.

    Raises:
        SchemaError: users and items have vectors of different lengths.
    """
    dims = [read_vector_width(path) for _, path in (users, items)]
    if None not in dims and dims[0] != dims[1]:
        message = f"{users[0]} has {dims[0]} dimensions, {items[0]} has {dims[1]}"
        raise SchemaError(message, "both must be of one model")
    return dims[0]


# ------------------------------------------------------------------------------------- whole tables


def open_path(path: str, wanted: Iterable[str] = ()) -> StoredTable:
    """Read a whole table as stored; errors as `table_pieces.open_pieces`."""
    return read_whole(open_pieces(path, wanted))


def read_whole(opened: TablePieces) -> StoredTable:
    """Read all rows of an opened table, pieces in parallel."""
    names = opened.schema.names
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        stored = [*chain(*pool.map(lambda piece: [*piece.read(names)], opened.pieces))]
    table = pa.concat_tables([opened.schema.empty_table(), *(one.table for one in stored)])
    return StoredTable(table, opened.line, tuple(line for one in stored for line in one.bad_lines))


def estimate_rows(path: str) -> int:
    """Estimate a table's number of rows without reading it.

    Metadata give it. In a text file, lines are counted: in the first COUNTED_BYTES bytes of a large one,
    and in the first UNPACKED_BYTES of text of a compressed one.
    """
    if detect_kind(path) != "text":
        return open_pieces(path).n
    n = 0
    for head, scale in map(_read_text_head, list_files(find_place(path))):
        lines = head.count(b"\n")
        n += lines if scale == 1 else round(scale * max(lines, 1))
    return n


def _read_text_head(path: str) -> tuple[bytes, float]:
    """Return a text's first bytes, and its estimated growth factor."""
    size = measure_files([path])[0] or 0
    with open_input(path) as stream:
        if not path.endswith(COMPRESSED):
            head = bytes(stream.read(COUNTED_BYTES) or b"")
            return head, max(1.0, size / len(head)) if head else 1.0
        opener = OPENERS.get(path[path.rfind(".") :])
        text = opener(stream) if opener else pa.CompressedInputStream(stream, pa.Codec.detect(path).name)
        unpacked = bytearray()
        # A damaged file ends where it is damaged; the reader reports it.
        with suppress(OSError, EOFError, zlib.error):
            while len(unpacked) < UNPACKED_BYTES and (chunk := text.read(min(UNPACKED_BYTES, HEAD_BYTES))):
                unpacked += chunk
        return bytes(unpacked), max(1.0, size / stream.tell())


OPENERS: Mapping[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open}
"""Functions to unpack a text until it is damaged, by file name ending."""


def count_large_text(path: str) -> int:
    """Return a text file's bytes if above COUNTED_BYTES, else 0.

    One process reads such a file whole. Compressed files count with the bytes of their text, as
    `estimate_rows` estimates them.
    """
    size = 0
    for file in list_files(find_place(path)) if detect_kind(path) == "text" else ():
        if file.endswith(COMPRESSED):
            head, scale = _read_text_head(file)
            size += round(len(head) * scale)
        else:
            size += measure_files([file])[0] or 0
    return size if size > COUNTED_BYTES else 0


COUNTED_BYTES = 1 << 28
"""Bytes in a text file whose lines are counted; the rest has as many lines per byte."""

UNPACKED_BYTES = 1 << 24
"""Bytes of a compressed file's text whose lines are counted: a tenth of a second."""


# ------------------------------------------------------------------------------------------ columns


class Problems:
    """Wrong values in a table. `keeps`: U+FFFD is a letter."""

    def __init__(self, where: str, path: str, *, keeps: bool = False) -> None:
        self.where, self.path, self.hint, self.keeps = where, path, "", keeps
        self.found: dict[str, tuple[int, str | None]] = {}

    def __add__(self, other: Problems) -> Problems:
        """Return the problems from both pieces."""
        both = Problems(self.where, self.path)
        both.hint = self.hint or other.hint
        for text, (n, example) in (*self.found.items(), *other.found.items()):
            before = both.found.get(text, (0, None))
            both.found[text] = (before[0] + n, min(filter(None, (before[1], example)), default=None))
        return both

    def add_lines(self, bad: Sequence[str], expected: str) -> None:
        """Add lines with a wrong number of fields."""
        if bad:
            self.found[f"lines that are not {expected}"] = (len(bad), min(bad))

    def add_values(self, name: str, raw: pa.Array, bad: Bools, expected: str, hint: str = "") -> None:
        """Add values which do not fit their column."""
        if bad.any():
            shown = map(str, raw.filter(pa.array(bad)).drop_null().to_pylist())
            counted = (int(bad.sum()), min(shown, default=None))
            self.found[f"rows whose '{name}' is not {expected}"] = counted
            self.hint = self.hint or hint

    def add_undecoded(self, name: str, raw: pa.Array) -> None:
        """Add fields which are not UTF-8 in a text file."""
        if not self.keeps:
            undecoded = np.asarray(pc.fill_null(pc.match_substring(raw, "\ufffd"), False))
            self.add_values(name, raw, undecoded, "text in UTF-8", text_layouts.IN_UTF8)

    def refuse(self) -> None:
        """Raise DataError if there is any problem."""
        if self.found:
            lines = [
                f"{n} {text}, e.g. {'a missing value' if example is None else repr(example[:120])}"
                for text, (n, example) in self.found.items()
            ]
            lines += describe_undecoded(self.path) if self.hint == text_layouts.IN_UTF8 else []
            hint = self.hint or "correct or remove these rows"
            raise DataError(f"{self.where}: " + "; ".join(lines), hint)


def _convert_ids(table: pa.Table, name: str, where: str) -> tuple[pa.Field, pa.Array]:
    """Convert an id column in a typed table."""
    field, ids = arrow_rows.encode_ids(table, name, where)
    notes = {**field.metadata, **(note_id_type(table.schema.field(name)).metadata or {})}
    return field.with_metadata(notes), ids


def note_id_type(column: pa.Field) -> pa.Field:
    """Note Spark's type name on an id column, for messages."""
    kind = str(column.type)
    notes = {ID_TYPE.encode(): arrow_rows.SPARK_NAMES.get(kind, kind).encode(), **(column.metadata or {})}
    return column.with_metadata(notes)


def _convert_field_ids(
    column: pa.Field, raw: pa.Array, where: str, problems: Problems, floats: Collection[str] | None
) -> tuple[pa.Field, pa.Array]:
    """Convert text ids, to integers if all are whole floats."""
    name, raw = column.name, drop_empty(raw)
    if name not in floats if floats is not None else not holds_floats(raw):
        problems.add_undecoded(name, raw)
        return column, raw
    notes = {ID_KIND: "integer", ID_TYPE: f"{text_layouts.TEXT_FILE}, whole floats"}
    if floats is not None:
        return pa.field(name, pa.float64(), metadata=notes), raw.cast(pa.float64())
    note_floats(name, where)
    ids = arrow_rows.combine_column(as_ids(pa.chunked_array([raw.cast(pa.float64())]), f"{where}: {name}"))
    return pa.field(name, pa.string(), metadata=notes), ids.cast(pa.string())


def holds_floats(raw: pa.Array) -> bool | None:
    """Return whether all ids are whole floats; None without ids."""
    present = raw.filter(pc.not_equal(pc.utf8_lower(raw), "nan"))
    return bool(pc.all(pc.match_substring_regex(present, WHOLE_FLOAT)).as_py()) if len(present) else None


def note_floats(name: str, where: str) -> None:
    """Print that text ids are read as whole numbers."""
    what = f"note: {where}: {name} is whole floats throughout, such as 10.0"
    print(f"{what}: read as whole numbers, 10", file=sys.stderr)


def _convert_number(raw: pa.Array, name: str, where: str, problems: Problems) -> tuple[pa.Field, pa.Array]:
    """Convert to finite float64 (`rank`: int64) and collect bad values."""
    try:
        number = arrow_rows.as_double(raw, name)
    except SchemaError:
        raise SchemaError(f"{where}: column '{name}' is {raw.type}, not a number") from None
    values, present = np.asarray(number, np.float64), np.asarray(raw.is_valid())
    whole, kind = name == "rank", raw.type
    exact = kind in (pa.int64(), pa.uint64()) or (pa.types.is_decimal(kind) and not kind.scale)
    good = np.isfinite(values)
    if whole or exact:
        good &= np.abs(values) < 2.0**53
    if whole:
        good &= values == np.floor(values)
    elif arrow_rows.is_text(kind):
        good &= ~np.asarray(pc.fill_null(arrow_rows.find_inexact(raw, number), False))
    bad = present & ~good
    number_text = text_layouts.FINITE_TEXT if arrow_rows.is_text(kind) else "a finite number"
    expected = "a whole number" if whole else text_layouts.BELOW_2_53 if exact else number_text
    problems.add_values(name, raw, bad, expected)
    if not whole:
        return pa.field(name, pa.float64()), number
    valid = pc.if_else(pa.array(~bad), number, None)
    return pa.field(name, pa.int64()), valid.cast(pa.int64(), safe=False)


def convert_vectors(raw: pa.Array, where: str, problems: Problems) -> pa.Array:
    """Convert number lists and JSON arrays to float32 lists."""
    column = raw
    if pa.types.is_string(raw.type) or pa.types.is_large_string(raw.type):
        column = pa.array(map(_parse_json_vector, raw.to_pylist()), pa.list_(pa.float64()))
    vectors = arrow_rows.as_vectors(column, where)
    offsets = vectors.offsets.to_numpy()
    at = np.concatenate([[0], np.cumsum(np.asarray(vectors.values.is_null()))])
    unread = np.asarray(raw.is_valid()) & ~np.asarray(vectors.is_valid())
    bad = (at[offsets[1:]] > at[offsets[:-1]]) | unread
    problems.add_values("vector", raw, bad, "an array of numbers such as [0.1, -2]")
    return vectors


def _parse_json_vector(text: str | None) -> list[float | None] | None:
    if text is None:
        return None
    try:
        values = json.loads(text)
    except ValueError:
        return None
    good = isinstance(values, list) and all(
        one is None or (isinstance(one, int | float) and not isinstance(one, bool)) for one in values
    )
    return [None if one is None else float(one) for one in values] if good else None


# ----------------------------------------------------------------------------------------- identity


def identity(path: str, *, named: bool = False, options: Options | None = None) -> str:
    """Return the same identity as `sources.identity.identity`, without Spark.

    Args:
        path: a path on this machine.
        named: whether names of plain files count.
        options: the reader's options; `versionAsOf` names a Delta table's version.

    Raises:
        FallbackToSpark: only Spark can tell. DataError, MissingError: nothing is there.
    """
    return look_once(path, options or {}, named, partial(_identify, path, named, options or {})).identity


def _identify(path: str, named: bool, options: Options) -> PinnedInput:
    place = find_place(path)
    if not is_delta(path):
        look = partial(content_identity, place, named)
        return PinnedInput(path, digest := look(), None, look, digest)
    snapshot = read_snapshot(place, options=options)

    def sign_now() -> str:
        return read_snapshot(place, snapshot.version).identity

    return PinnedInput(path, snapshot.identity, snapshot.version, sign_now, snapshot.identity)
