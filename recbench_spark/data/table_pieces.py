"""Open a table at any path in pieces that tasks read: Parquet, Delta or text, here or on object storage.

A piece is a row group, or the lines of a text file that begin in a range of bytes. The rows of all pieces
in their order are the rows of the table. A task holds MOST_ROWS rows, or some lines of text.

A table has the columns of all of its files. A column that a file lacks is NULL in its rows. Whole numbers
in one file and floats in another are float64, and infinite where that is not exact. A folder NAME=VALUE is
a column of text, as it is written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from recbench_spark.data.arrow_rows import as_double
from recbench_spark.data.delta_snapshots import select_version
from recbench_spark.data.list_columns import is_list
from recbench_spark.data.paths import check_path, exists, may_be_table
from recbench_spark.data.text_layouts import (
    FOLDER_NOTES,
    LAYOUTS,
    NUMBER_COLUMNS,
    Layout,
    note_texts,
    read_options,
)
from recbench_spark.data.text_lines import RFC_4180, StoredTable, read_names
from recbench_spark.data.text_pieces import Fields, measure_text, split_file
from recbench_spark.data.trec_files import FIELDS, find_format
from recbench_spark.errors import ConfigError, DataError, FallbackToSpark, SchemaError
from recbench_spark.inputs import Options, find_version, normalise_path
from recbench_spark.kernels.ids import decode_dictionary
from recbench_spark.schemas import IDS
from recbench_spark.storage.local_files import (
    DAMAGED,
    bare_name,
    data_files,
    head_lines,
    read_head,
    refuse_case,
    refuse_packed_text,
    refuse_strange_names,
    text_separator,
)
from recbench_spark.storage.objects import stat_visible
from recbench_spark.storage.packed_blocks import Change
from recbench_spark.storage.table_scans import (
    NULL_FOLDER,
    Piece,
    find_partition,
    is_delta_table,
    list_row_groups,
    open_delta,
    read_footers,
    read_row_group,
    spark_schema,
    split_groups,
)
from recbench_spark.storage.text_forms import BLANKS
from recbench_spark.storage.uris import arrow_uri, is_hdfs, is_object_storage, is_remote

MOST_ROWS = 1 << 18

READ_COLUMNS = frozenset({*IDS, *NUMBER_COLUMNS, "rank", "vector"})
"""Columns that must have a common type in all files of a table."""

Folders = Mapping[str, str | None]
"""Columns that the folders of a file give, with their values."""


class TablePiece(Protocol):
    """Some rows of a table."""

    @property
    def file(self) -> str:
        """The file that holds them."""

    def read(self, columns: Sequence[str]) -> Iterator[StoredTable]:
        """Yield some columns of the rows, in order."""


@dataclass(frozen=True)
class TablePieces:
    """A table in pieces.

    Attributes:
        pieces: in the order of the rows; each is a few values that are sent to a task.
        schema: names and types of all columns.
        n: number of rows; 0 where only its lines tell.
        line: the layouts of a line of text; empty: rows have types.
        size: bytes of text.
        notes: metadata of the first file of Parquet.
    """

    pieces: tuple[TablePiece, ...]
    schema: pa.Schema
    n: int = 0
    line: str = ""
    size: int = 0
    notes: Mapping[bytes, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class FragmentPiece:
    """A row group of Delta; the fragment knows its file, its number and the columns of its folders."""

    fragment: ds.Fragment
    schema: pa.Schema
    path: str

    @property
    def file(self) -> str:
        """The file of the fragment."""
        return f"{self.path.rstrip('/')}/{self.fragment.path}"

    def read(self, columns: Sequence[str]) -> Iterator[StoredTable]:
        """Yield the rows in batches."""
        scanner = self.fragment.scanner(
            schema=self.schema, columns=list(columns), batch_size=MOST_ROWS, use_threads=False
        )
        try:
            for batch in scanner.to_batches():
                yield StoredTable(pa.Table.from_batches([batch]))
        except (pa.ArrowException, OSError) as error:
            message = str(error).strip().splitlines()[0]
            raise DataError(f"{self.path}: cannot be read: {message[:300]}", DAMAGED) from None


@dataclass(frozen=True)
class RowGroupPiece:
    """A row group of Parquet.

    Attributes:
        group: its file and number.
        own: columns of the file.
        schema: of the table.
        folders: as in `Folders`.
    """

    group: Piece
    own: frozenset[str]
    schema: pa.Schema
    folders: Folders = field(default_factory=dict)

    @property
    def file(self) -> str:
        """The file of the row group."""
        return self.group.path

    def read(self, columns: Sequence[str]) -> Iterator[StoredTable]:
        """Yield the rows in batches."""
        stored = [name for name in columns if name in self.own and name not in self.folders]
        for batch in read_row_group(self.group, stored, MOST_ROWS):
            yield StoredTable(fit_columns(batch, columns, self.schema, self.folders))


def fit_columns(
    rows: pa.Table | pa.RecordBatch, columns: Sequence[str], schema: pa.Schema, folders: Folders
) -> pa.Table:
    """Return columns of a file in the types of its table."""
    fitted = []
    for name in columns:
        kind = schema.field(name).type
        if name in folders or name not in rows.schema.names:
            fitted.append(pa.repeat(pa.scalar(folders.get(name), kind), rows.num_rows))
        else:
            fitted.append(_fit(rows.column(name), kind))
    return pa.table(fitted, schema=pa.schema([schema.field(name) for name in columns]))


def _fit(column: pa.Array | pa.ChunkedArray, kind: pa.DataType) -> pa.Array | pa.ChunkedArray:
    if column.type == kind:
        return column
    if pa.types.is_dictionary(column.type):
        column = decode_dictionary(column)
    if pa.types.is_timestamp(column.type) and column.type.unit == "ns":  # a cast rounds towards zero
        column = pc.floor_temporal(column, unit="microsecond")
    if pa.types.is_floating(kind) and not pa.types.is_floating(column.type):
        number = as_double(column, "number")
        return pc.if_else(pc.less(pc.abs(number), 2.0**53), number, np.inf)
    return column.cast(kind, safe=False)


# ------------------------------------------------------------------------------------------ opening


def find_place(path: str) -> str:
    """Return the name by which tasks read a path.

    Raises:
        MissingError: nothing is there. DataError: nobody reads a file of this name, or it is empty.
        FallbackToSpark: it is a table of a catalog, or on a storage that Hadoop alone reads.
    """
    place = arrow_uri(normalise_path(path))
    if is_object_storage(place) and not (is_hdfs(place) and find_spec("hdfs_native") is None):
        return place
    if is_remote(place) or re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/", place):
        raise FallbackToSpark(f"{path} is on a storage that Spark reads")
    if not exists(place) and may_be_table(path):
        raise FallbackToSpark(f"{path} may be a table of a catalog")
    check_path(path if exists(path) else place)
    return place


def is_delta(path: str) -> bool:
    """Check whether a path is a Delta table, or a partition of one; errors as `find_place`."""
    place = find_place(path)
    return is_delta_table(place) or find_partition(place) is not None


def detect_kind(path: str) -> str:
    """Return the kind of a table at a path: delta, text or parquet; errors as `find_place`."""
    if is_delta(path):
        return "delta"
    return "text" if find_layout(path) else "parquet"


def find_layout(path: str) -> Fields | Layout | None:
    """Return the layout of a text file or of a folder of them; None: it is no text."""
    if (name := bare_name(path)) in LAYOUTS:
        return LAYOUTS[name]
    if kind := find_format(path):
        return Fields(FIELDS[kind], BLANKS)
    sep = text_separator(path)
    return Layout(sep) if sep else None


def open_pieces(path: str, wanted: Iterable[str] = ()) -> TablePieces:
    """Open a table in pieces; footers, and the first lines of text files, are read.

    Args:
        path: file, folder, Delta table or a partition of one, here or on object storage.
        wanted: columns that must have a common type in all files, beside READ_COLUMNS.

    Raises:
        MissingError: nothing is there. DataError: a file cannot be read. SchemaError: columns of two files
            do not fit. FallbackToSpark: as `find_place`, or Delta has a feature that only Spark knows.
    """
    place = find_place(path)
    if is_delta(path):
        return _open_delta(path)
    files = list_files(place)
    if layout := find_layout(path):
        return _open_text(path, files, layout)
    return _open_parquet(path, files, READ_COLUMNS | {*wanted})


def open_typed(path: str, reader: str, wanted: Collection[str], options: Options) -> TablePieces:
    """Open Parquet or Delta, whose rows have types; errors as `open_pieces`.

    Args:
        path: as for `open_pieces`.
        reader: `parquet` or `delta`.
        wanted: columns that must have a common type in all files.
        options: those of `dataset.options`.

    Raises:
        DataError: the path is of the other kind.
    """
    place = find_place(path)
    if is_delta(path) != (reader == "delta"):
        kind, other = ("no table", "parquet") if reader == "delta" else ("a table", "delta")
        raise DataError(f"{path}: cannot be read: it is {kind} of Delta", f"dataset.reader: {other}")
    if reader == "delta":
        return _open_delta(path, options)
    return _open_parquet(path, list_files(place, read_options(options).get("pathglobfilter")), wanted)


def _open_delta(path: str, options: Options | None = None) -> TablePieces:
    pinned = find_version(path, options)
    dataset = open_delta(path, select_version(options or {}) if pinned is None else pinned)
    place, schema = find_place(path), dataset.schema
    pieces = tuple(FragmentPiece(group, schema, place) for group in split_groups(dataset))
    return TablePieces(pieces, schema, int(dataset.count_rows()))


def list_files(place: str, pattern: str | None = None) -> dict[str, Folders]:
    """Return the files of a place with the values of their folders, in order.

    Hidden files and those without a byte are left out, and files in folders of other names. `pattern`: of
    the names of files in a folder.
    """
    if is_remote(place):
        root = place.rstrip("/")
        names = [name for name, one in stat_visible(place).items() if one.size]
    else:
        root = str(Path(place))
        paths = data_files(Path(place)) if Path(place).is_dir() else [Path(place)]
        names = [str(path) for path in paths if path.stat().st_size]
    if pattern:
        glob = compile_glob(pattern)
        names = [name for name in names if glob.fullmatch(cut_name(name))]
    return read_folders(root, names)


def compile_glob(pattern: str) -> re.Pattern[str]:
    r"""Compile a pattern of names as Hadoop reads it.

    >>> compile_glob(r"\-[!1]*.{csv,tsv}").pattern
    '\\-[^1].*\\.(?:csv|tsv)'

    Raises:
        ConfigError: it is none.
    """
    text, depth = "", 0
    for token in re.findall(r"\\.|\[[!^]?(?:\\.|[^]\\])+\]|.", pattern, re.DOTALL):
        depth += (token == "{") - (token == "}")
        if len(token) > 1:
            text += token.replace("[!", "[^", 1) if token[0] == "[" else re.escape(token[1])
        else:
            text += "|" if token == "," and depth else GLOB.get(token) or re.escape(token)
    try:
        return re.compile(text, re.DOTALL)
    except re.error as error:
        message = f"dataset.options: pathGlobFilter {pattern!r} is no pattern: {error}"
        raise ConfigError(message, "such as *.csv, part-[0-9]*, {a,b}*.csv") from None


GLOB = {"*": ".*", "?": ".", "{": "(?:", "}": ")", "[": "[", "\\": "\\"}
"""Signs of Hadoop's patterns as regular expressions; `re` refuses one without its pair."""


def require_files(files: Collection[str], path: str) -> None:
    """Refuse a place of whose files none is read. Raises DataError."""
    if not files:
        hint = "files whose names begin with _ or . are ignored, those that pathGlobFilter leaves out, "
        hint += "those in folders that are not called NAME=VALUE, and those without a line"
        what = "it has no lines" if Path(path).is_file() else "it has no files"
        raise DataError(f"{path}: cannot be read: {what}", hint)


def read_folders(root: str, names: Iterable[str]) -> dict[str, Folders]:
    """Return names of files below a folder with what folders NAME=VALUE between them say.

    Files in folders of other names are left out.
    """
    parts = {name: name.removeprefix(root).strip("/").split("/")[:-1] for name in names}
    return {
        name: dict(map(_read_folder, folders))
        for name, folders in parts.items()
        if all("=" in folder for folder in folders)
    }


def _read_folder(folder: str) -> tuple[str, str | None]:
    name, _, value = folder.partition("=")
    return unquote(name), None if value == NULL_FOLDER else unquote(value)


def read_rows(pieces: Iterable[TablePiece], columns: Sequence[str]) -> Iterator[pa.Table]:
    """Yield some columns of the rows of pieces."""
    for piece in pieces:
        for stored in piece.read(columns):
            yield stored.table


def read_unfolded(
    pieces: Iterable[TablePiece], columns: Sequence[str], names: Sequence[str], rename: Change
) -> Iterator[pa.Table]:
    """Yield a row for each item of lists in a cell."""
    for table in read_rows(pieces, names):
        yield rename(table).select(list(columns))


# --------------------------------------------------------------------------------------------- text


def _open_text(path: str, files: Mapping[str, Folders], given: Fields | Layout) -> TablePieces:
    refuse_packed_text(path)
    layouts = {file: _read_layout(file, given) for file in files}
    heads: dict[str, list[str]] = {}
    for file, layout in layouts.items():
        if layout.header and layout.names:
            heads.setdefault(layout.sep.join(map(str, layout.names)), []).append(file)
    refuse_strange_names(heads, next(iter(layouts.values())).sep if heads else ",", path)
    used = {file: layout for file, layout in layouts.items() if layout.names}
    folders = list(dict.fromkeys(name for file in used for name in files[file]))
    own = dict.fromkeys(name for layout in used.values() for name in layout.names if name)
    pieces = [piece for file, layout in used.items() for piece in split_file(file, layout, files[file])]
    schema = note_texts(dict.fromkeys([*own, *folders]), folders)
    line = " or ".join(dict.fromkeys(layout.line for layout in used.values()))
    size = sum(map(measure_text, used))
    return TablePieces(tuple(pieces), schema, 0, line, size)


def _read_layout(file: str, given: Fields | Layout) -> Fields:
    if isinstance(given, Fields):
        return given
    if given.names is not None:
        return Fields(given.names, given.separator, encoding=given.encoding)
    names = read_names(head_lines(read_head(file)), given.separator, file)
    return Fields(tuple(names), given.separator, header=True, quotes=RFC_4180)


# ------------------------------------------------------------------------------------------ Parquet


def _open_parquet(path: str, files: Mapping[str, Folders], wanted: Collection[str]) -> TablePieces:
    require_files(files, path)
    footers = read_footers([*files], path)
    schemas = [spark_schema(footer.schema) for footer in footers]
    for schema in schemas:
        refuse_case(schema.names, path)
    fields = _unite(path, dict(zip(files, schemas, strict=True)), wanted)
    folders = dict.fromkeys(name for values in files.values() for name in values)
    fields |= {name: pa.field(name, pa.string(), metadata=FOLDER_NOTES) for name in folders}
    union = pa.schema(list(fields.values()))
    own = dict(zip(files, (frozenset(schema.names) & {*union.names} for schema in schemas), strict=True))
    groups = list_row_groups([*files], footers)
    pieces = [RowGroupPiece(one, own[one.path], union, files[one.path]) for one in groups]
    notes = schemas[0].metadata or {}
    return TablePieces(tuple(pieces), union, sum(one.rows for one in groups), notes=notes)


def _unite(path: str, schemas: Mapping[str, pa.Schema], wanted: Collection[str]) -> dict[str, pa.Field]:
    """Return the columns of all files in common types; those without one are left out.

    Raises:
        SchemaError: such a column is wanted, or names of two files differ only in case.
    """
    fields: dict[str, pa.Field] = {}
    first: dict[str, tuple[str, pa.Field]] = {}
    clashes = set()
    for file, schema in schemas.items():
        for one in schema:
            place, known = first.setdefault(one.name.lower(), (file, one))
            if known.name != one.name and {known.name, one.name} & {*wanted}:
                names = f"column {known.name} in {cut_name(place)} and {one.name} in {cut_name(file)}"
                raise SchemaError(f"{path}: {names} differ in case alone", "one spelling in all files")
            before = fields.setdefault(one.name, one.with_type(_in_micros(one.type)))
            kind = _common_type(before.type, _in_micros(one.type))
            if kind is None and one.name in wanted:
                names = f"{known.type} in {cut_name(place)}, {one.type} in {cut_name(file)}"
                raise SchemaError(
                    f"{path}: column {one.name} is of type {names}", "write files of one type"
                )
            clashes |= {one.name} if kind is None else set()
            fields[one.name] = before if kind is None else before.with_type(kind)
            if pa.types.is_null(known.type):
                first[one.name.lower()] = (file, one)
    return {name: one for name, one in fields.items() if name not in clashes}


def cut_name(file: str) -> str:
    """Return the last part of a path or URI."""
    return file.rsplit("/", 1)[-1]


def _in_micros(kind: pa.DataType) -> pa.DataType:
    """Return a type with times in microseconds."""
    is_finer = pa.types.is_timestamp(kind) and kind.unit == "ns"
    return pa.timestamp("us", kind.tz) if is_finer else kind


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return one type for all in which files hold the same values."""
    if pa.types.is_dictionary(kind):
        return plain_type(kind.value_type)
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", None if kind.tz is None else "UTC")
    return pa.list_(plain_type(kind.value_type)) if is_list(kind) else kind


def _common_type(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return a type for values of both; None where there is none."""
    if one == other or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    one, other = plain_type(one), plain_type(other)
    if one == other:
        return one
    if is_list(one) and is_list(other):
        inner = _common_type(one.value_type, other.value_type)
        return None if inner is None else pa.list_(inner)
    is_number = partial(_fits_any, tests=(pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal))
    if not (is_number(one) and is_number(other)):
        return None
    is_whole = all(pa.types.is_integer(kind) and kind != pa.uint64() for kind in (one, other))
    return pa.int64() if is_whole else pa.float64()


def _fits_any(kind: pa.DataType, tests: Sequence[Callable[[pa.DataType], bool]]) -> bool:
    return any(test(kind) for test in tests)
