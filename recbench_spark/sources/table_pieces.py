"""Open any table in pieces: Parquet, Delta or text.

Tables are here or on object storage. A piece is a row group, or the lines of a text file that begin in a
range of bytes. The rows of all pieces, in order, are the table's rows. A task holds MOST_ROWS rows, or some
lines of text.

A table has all columns of all its files. A column missing in a file is NULL in its rows. Whole numbers in
one file and floats in another are float64, and infinite where that is not exact. A folder NAME=VALUE is a
text column, as it is written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.dataset as ds

from recbench_spark.core.inputs import Options, find_version, normalise_path
from recbench_spark.errors import ConfigError, DataError, FallbackToSpark
from recbench_spark.schemas import ID_NAMES
from recbench_spark.sources import formats
from recbench_spark.sources.delta_snapshots import select_version
from recbench_spark.sources.paths import check_path, exists, may_be_table
from recbench_spark.sources.text_layouts import LAYOUTS, NUMBER_COLUMNS, Layout, note_texts, read_options
from recbench_spark.sources.text_lines import RFC_4180, StoredTable, read_names
from recbench_spark.sources.text_pieces import Fields, measure_text, split_file
from recbench_spark.storage import local_files, table_scans
from recbench_spark.storage.objects import stat_visible
from recbench_spark.storage.packed_blocks import Change
from recbench_spark.storage.text_forms import BLANKS
from recbench_spark.storage.uris import arrow_uri, has_driver, is_remote

READ_COLUMNS = frozenset({*ID_NAMES, *NUMBER_COLUMNS, "rank", "vector"})
"""Columns that must have a common type in all files of a table."""


@dataclass(frozen=True)
class FragmentPiece:
    """A row group of Delta, with its folder columns."""

    fragment: ds.Fragment
    schema: pa.Schema
    path: str

    @property
    def file(self) -> str:
        """The fragment's file."""
        return f"{self.path.rstrip('/')}/{self.fragment.path}"

    def read(self, columns: Sequence[str]) -> Iterator[StoredTable]:
        """Yield the rows in batches."""
        scanner = self.fragment.scanner(
            schema=self.schema, columns=list(columns), batch_size=formats.MOST_ROWS, use_threads=False
        )
        try:
            for batch in scanner.to_batches():
                yield StoredTable(pa.Table.from_batches([batch]))
        except (pa.ArrowException, OSError) as error:
            message = str(error).strip().splitlines()[0]
            raise DataError(f"{self.path}: cannot be read: {message[:300]}", local_files.DAMAGED) from None


# ------------------------------------------------------------------------------------------ opening


def find_place(path: str) -> str:
    """Return the name by which tasks read a path.

    Raises:
        MissingError: nothing is there. DataError: nobody reads a file with this name, or it is empty.
        FallbackToSpark: it is in a catalog, or on a storage that Hadoop alone reads.
    """
    place = arrow_uri(normalise_path(path))
    if has_driver(place):
        return place
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/", place):
        raise FallbackToSpark(f"{path} is on a storage that Spark reads")
    if not exists(place) and may_be_table(path):
        raise FallbackToSpark(f"{path} may be a table of a catalog")
    check_path(path if exists(path) else place)
    return place


def is_delta(path: str) -> bool:
    """Return whether a path is a Delta table or partition.

    Errors are those of `find_place`.
    """
    place = find_place(path)
    return table_scans.is_delta_table(place) or table_scans.find_partition(place) is not None


def detect_kind(path: str) -> str:
    """Return delta, text or parquet; errors as `find_place`."""
    return "delta" if is_delta(path) else "text" if find_layout(path) else "parquet"


def find_layout(path: str) -> Fields | Layout | None:
    """Return a text file's or folder's layout, else None."""
    if (name := local_files.bare_name(path)) in LAYOUTS:
        return LAYOUTS[name]
    head = local_files.read_head(path) if Path(path).is_file() else b""
    if kind := local_files.trec_kind(local_files.head_lines(head)):
        return Fields(TREC_FIELDS[kind], BLANKS)
    place = find_place(path)
    sep = local_files.text_separator(path, list_files(place) if is_remote(place) else None)
    return Layout(sep) if sep else None


TREC_FIELDS = {
    "run": ("user_id", None, "item_id", None, "score", None),
    "qrels": ("user_id", None, "item_id", "relevance"),
}
"""Our names for fields in TREC's runs and judgements, which have no header; None: a field not read.

Scores order a run, as in trec_eval.
"""


def open_pieces(path: str, wanted: Iterable[str] = ()) -> formats.TablePieces:
    """Open a table in pieces.

    Only footers, and the first lines of text files, are read.

    Args:
        path: file, folder, Delta table or partition, here or on object storage.
        wanted: columns that must have a common type in all files, beside READ_COLUMNS.

    Raises:
        MissingError: nothing is there. DataError: a file cannot be read. SchemaError: columns in two files
            do not fit. FallbackToSpark: as `find_place`, or Delta has a feature that only Spark knows.
    """
    if is_delta(path):
        return _open_delta(path)
    files = list_files(find_place(path))
    if layout := find_layout(path):
        return open_texts(path, files, lambda file: (_read_layout(file, layout), 0))
    return formats.open_files(path, files, formats.choose_reader(path, files), READ_COLUMNS | {*wanted})


def open_typed(
    path: str,
    reader: str,
    wanted: Collection[str],
    options: Options,
    partitions: Mapping[str, str] | None = None,
) -> formats.TablePieces:
    """Open typed rows, of Parquet or Delta; errors as `open_pieces`.

    Args:
        path: as for `open_pieces`.
        reader: `parquet` or `delta`.
        wanted: columns that must have a common type in all files.
        options: those in `dataset.options`.
        partitions: values of Delta's partition columns.

    Raises:
        DataError: the path has the other kind, or no such partition.
    """
    place = find_place(path)
    if is_delta(path) != (reader == "delta"):
        kind, other = ("no table", "parquet") if reader == "delta" else ("a table", "delta")
        raise DataError(f"{path}: cannot be read: it is {kind} of Delta", f"its reader is {other}")
    if reader == "delta":
        return _open_delta(path, options, partitions)
    files = list_files(place, read_options(options).get("pathglobfilter"))
    return formats.open_files(path, files, formats.get_reader(reader), wanted)


def _open_delta(
    path: str, options: Options | None = None, partitions: Mapping[str, str] | None = None
) -> formats.TablePieces:
    pinned = find_version(path, options)
    version = select_version(options or {}) if pinned is None else pinned
    dataset = table_scans.open_delta(path, version, partitions)
    place, schema = find_place(path), dataset.schema
    pieces = tuple(FragmentPiece(group, schema, place) for group in table_scans.split_groups(dataset))
    return formats.TablePieces(pieces, schema, int(dataset.count_rows()))


def list_files(
    place: str, pattern: str | None = None, *, strict: bool = False
) -> dict[str, formats.Folders]:
    """Return a place's files in order, with their folders' values.

    Hidden and empty files are left out, and so are files in folders with other names than NAME=VALUE.
    `pattern`: for the file names in a folder.

    Raises:
        DataError: `strict`, and there is a folder with another name.
    """
    if is_remote(place):
        root = place.rstrip("/")
        names = [name for name, one in stat_visible(place).items() if one.size]
    else:
        root = str(Path(place))
        paths = local_files.data_files(Path(place)) if Path(place).is_dir() else [Path(place)]
        names = [str(path) for path in paths if path.stat().st_size]
    if pattern:
        glob = compile_glob(pattern)
        names = [name for name in names if glob.fullmatch(formats.cut_name(name))]
    files = read_folders(root, names)
    if lost := [name for name in names if name not in files] if strict else []:
        folder = lost[0].removeprefix(root).strip("/").rpartition("/")[0]
        raise DataError(f"{place} holds a folder, {folder}", "give one folder of files, or a Delta table")
    return files


def compile_glob(pattern: str) -> re.Pattern[str]:
    r"""Compile a pattern for names as Hadoop reads it.

    >>> compile_glob(r"\-[!1]*.{csv,tsv}").pattern
    '\\-[^1].*\\.(?:csv|tsv)'

    Raises:
        ConfigError: it is no pattern.
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
"""Signs in Hadoop's patterns as regular expressions; `re` refuses one without its pair."""


def read_folders(root: str, names: Iterable[str]) -> dict[str, formats.Folders]:
    """Return file names with the values of their folders.

    Folders are called NAME=VALUE. Files in folders with other names are left out.
    """
    values: dict[str, formats.Folders] = {}
    for name in names:
        folders = name.removeprefix(root).strip("/").split("/")[:-1]
        if all("=" in folder for folder in folders):
            pairs = (folder.split("=", 1) for folder in folders)
            values[name] = {
                unquote(key): None if v == table_scans.NULL_FOLDER else unquote(v) for key, v in pairs
            }
    return values


def read_rows(pieces: Iterable[formats.TablePiece], columns: Sequence[str]) -> Iterator[pa.Table]:
    """Yield some columns of the rows in pieces."""
    for piece in pieces:
        for stored in piece.read(columns):
            yield stored.table


def read_unfolded(
    pieces: Iterable[formats.TablePiece], columns: Sequence[str], names: Sequence[str], rename: Change
) -> Iterator[pa.Table]:
    """Yield a row for each item in cells with lists."""
    for table in read_rows(pieces, names):
        yield rename(table).select(list(columns))


# --------------------------------------------------------------------------------------------- text


def open_texts(
    path: str, files: Mapping[str, formats.Folders], look: Callable[[str], tuple[Fields, int]]
) -> formats.TablePieces:
    """Open text files; errors as `open_pieces`.

    Args:
        path: file or folder.
        files: as `list_files` returns them.
        look: function from a file to its layout, and the byte from which on it holds rows.
    """
    local_files.refuse_packed_text(path)
    with ThreadPoolExecutor(max_workers=16) as pool:
        looked = dict(zip(files, pool.map(look, files), strict=True))
    layouts = {file: layout for file, (layout, _) in looked.items()}
    heads: dict[str, list[str]] = {}
    for file, layout in layouts.items():
        if layout.header and layout.names:
            heads.setdefault(layout.sep.join(map(str, layout.names)), []).append(file)
    local_files.refuse_strange_names(heads, next(iter(layouts.values())).sep if heads else ",", path)
    used = {file: layout for file, layout in layouts.items() if layout.names}
    folders = list(dict.fromkeys(name for file in used for name in files[file]))
    own = dict.fromkeys(name for layout in used.values() for name in layout.columns)
    split = (split_file(file, layout, files[file], looked[file][1]) for file, layout in used.items())
    schema = note_texts(dict.fromkeys([*own, *folders]), folders)
    line = " or ".join(dict.fromkeys(layout.line for layout in used.values()))
    return formats.TablePieces(tuple(chain(*split)), schema, 0, line, sum(map(measure_text, used)))


def _read_layout(file: str, given: Fields | Layout) -> Fields:
    if isinstance(given, Fields):
        return given
    if given.names is not None:
        return Fields(given.names, given.separator, encoding=given.encoding)
    names = read_names(local_files.head_lines(local_files.read_head(file)), given.separator, file)
    return Fields(tuple(names), given.separator, header=True, quotes=RFC_4180)
