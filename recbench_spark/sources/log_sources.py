"""Open any log as pieces for tasks, without Spark."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from functools import partial
from itertools import chain
from pathlib import Path

import pyarrow as pa
from pyarrow import fs

from recbench_spark.config import Dataset
from recbench_spark.errors import ConfigError, MissingError, RecbenchError, SchemaError, nearest
from recbench_spark.sources import columnar, text_pieces
from recbench_spark.sources.formats import FilePiece, Folders, TablePiece, TablePieces, require_files
from recbench_spark.sources.json_objects import MOST_HEADS, Objects, check_head, find_bad_object, list_keys
from recbench_spark.sources.paths import check_path, strip_scheme
from recbench_spark.sources.table_pieces import find_place, list_files
from recbench_spark.sources.text_layouts import (
    LAYOUTS,
    MOVIELENS,
    SOURCE_COLUMNS,
    is_folder,
    name_layout,
    read_options,
)
from recbench_spark.sources.text_lines import RFC_4180, Quotes, head_rows, read_names
from recbench_spark.sources.times import CHECKED
from recbench_spark.storage.blocks import Engine, PieceRows, Rows
from recbench_spark.storage.local_files import (
    bare_name,
    head_lines,
    read_head,
    refuse_packed_text,
    refuse_strange_names,
    separator,
    text_separator,
)
from recbench_spark.storage.object_access import explain_arrow, open_filesystem
from recbench_spark.storage.text_forms import BLANKS, is_wide
from recbench_spark.storage.uris import is_remote

LogFiles = Sequence[tuple[Mapping[str, str | None], str, text_pieces.TextLayout]]
"""Files in a log: columns with one value in all rows, the path, the layout."""


@dataclass(frozen=True)
class RawLog:
    """Rows as they are stored, and rules for reading them.

    Attributes:
        open: returns the rows, with a file's columns, FILE, and for text BAD_LINE.
        names: the columns in the files.
        where: the path's or table's name in messages.
        n: number of rows, about; 0 if nobody knows.
        line: the layout of a line ("4 fields separated by ','"); empty if rows have types.
        source_names: canonical column names to the log's own names, where they differ.
        nullable: canonical names of columns that may be NULL in some rows.
        time_unit: the unit of numeric times, or `timestamp`.
        folders: columns which come from folder names.
        checked: time columns from a log that was read before.
        find_line: says in words where the first bad line stands; empty if the format cannot tell.
    """

    open: Callable[[Engine], Rows]
    names: tuple[str, ...]
    where: str
    n: int = 0
    line: str = ""
    source_names: Mapping[str, str] = field(default_factory=dict)
    nullable: tuple[str, ...] = ("part",)
    time_unit: str = "s"
    folders: frozenset[str] = frozenset()
    checked: frozenset[str] = frozenset()
    find_line: Callable[[], str] = str


@dataclass(frozen=True)
class TextLog:
    """Text files in a log, not yet opened for tasks."""

    files: LogFiles
    where: str
    source_names: Mapping[str, str] = field(default_factory=dict)
    nullable: tuple[str, ...] = ("part",)
    time_unit: str = "s"

    @property
    def names(self) -> tuple[str, ...]:
        """The columns of all files."""
        own = [name for _, _, one in self.files for name in one.columns]
        return tuple(dict.fromkeys([*own, *(name for given, _, _ in self.files for name in given)]))

    @property
    def line(self) -> str:
        """The layouts of a line."""
        return " or ".join(dict.fromkeys(layout.line for _, _, layout in self.files))

    def make_raw(self, open_rows: Callable[[Engine], Rows], n: int = 0) -> RawLog:
        """Return the log with a way to read it."""
        settings = (self.line, self.source_names, self.nullable, self.time_unit)
        folders = frozenset(name for given, _, _ in self.files for name in given)
        return RawLog(open_rows, self.names, self.where, n, *settings, folders)


@dataclass(frozen=True)
class Finder:
    """Ways to find a log's files, here or by Spark.

    Attributes:
        is_folder: says whether a path is a folder.
        list_names: returns the names in a folder.
        read_head: returns a file's first bytes, unpacked.
        list_files: returns a path's files, and the columns from their folders.
    """

    is_folder: Callable[[str], bool]
    list_names: Callable[[str], list[str]]
    read_head: Callable[[str], bytes]
    list_files: Callable[[str, str | None], Mapping[str, Folders]]

    def find(self, folder: str, patterns: Sequence[str]) -> str:
        """Find an entry by the first pattern which fits any.

        `.gz` or the like may follow.

        Raises:
            ConfigError: nothing fits, or the path is not a folder; the hint has the nearest name.
        """
        if not self.is_folder(folder):
            raise ConfigError(f"{folder} is a file", f"expected a folder with {' or '.join(patterns)}")
        names = self.list_names(folder)
        for pattern in patterns:
            for name in names:
                if fnmatch(bare_name(name), pattern):
                    return f"{folder.rstrip('/')}/{name}"
        hint = nearest(patterns[0], names[:50]) if names else "the folder is empty"
        raise ConfigError(f"{folder}: no {' or '.join(patterns)} (.gz or not)", hint)


def _is_folder(path: str) -> bool:
    check_path(path)
    if not is_remote(path):
        return Path(strip_scheme(path)).is_dir()
    with explain_arrow(path):
        system, name = open_filesystem(path)
        kind = system.get_file_info(name).type
    if kind == fs.FileType.NotFound:
        raise MissingError(f"no such file or folder: {path}")
    return bool(kind == fs.FileType.Directory)


def _list_names(folder: str) -> list[str]:
    if not is_remote(folder):
        return sorted(entry.name for entry in Path(strip_scheme(folder)).iterdir())
    with explain_arrow(folder):
        system, name = open_filesystem(folder)
        return sorted(entry.base_name for entry in system.get_file_info(fs.FileSelector(name)))


HERE = Finder(
    _is_folder,
    _list_names,
    lambda path: read_head(strip_scheme(path)),
    lambda path, pattern: list_files(find_place(path), pattern),
)
"""Finds files on this machine, and on storage that Arrow reads."""


def open_raw_log(dataset: Dataset) -> RawLog:
    """Open a log.

    Raises:
        FallbackToSpark: only Spark reads it. ConfigError, SchemaError, DataError: it cannot be read.
    """
    if dataset.is_typed:
        return _open_columnar(dataset)
    path = str(dataset.path)
    check_path(path)
    find_place(path)
    log = find_text_files(dataset, HERE)
    raw = open_text_files(log)
    if dataset.reader != "json":
        return raw
    find = partial(find_bad_object, [file for _, file, _ in log.files], [*dataset.source_names.values()])
    return replace(raw, find_line=find)


def open_text_files(log: TextLog) -> RawLog:
    """Open text files in pieces."""
    given, files, layouts = zip(*log.files, strict=True)
    places = [*map(find_place, files)]  # workers may have another directory
    with ThreadPoolExecutor(max_workers=16) as pool:
        divided = pool.map(lambda *file: [*text_pieces.split_file(*file)], places, layouts, given)
        n = sum(pool.map(_estimate_rows, places, layouts))
    return log.make_raw(partial(PieceRows, pieces=tuple(chain(*divided)), read=text_pieces.read_pieces), n)


def _estimate_rows(path: str, layout: text_pieces.TextLayout) -> int:
    """Estimate a file's rows by its first lines."""
    with suppress(RecbenchError):
        head = read_head(path)
        whole = head[: head.rfind(b"\n") + 1] or head
        rows = whole.count(b"\n")
        if not (isinstance(layout, text_pieces.Fields) and layout.is_multiline):
            piece = text_pieces.LinePiece(path, 0, -1, layout)
            rows = len(text_pieces.cut_text(whole, piece, [text_pieces.FILE]))
        return round(rows * max(text_pieces.measure_text(path) / len(whole), 1)) if whole else 0
    return 0


# ----------------------------------------------------------------------------- layouts of data sets


def find_text_files(dataset: Dataset, finder: Finder) -> TextLog:
    """Find files in a data set's known layout.

    Raises:
        ConfigError: a file is missing. SchemaError: a file has another layout.
    """
    path = str(dataset.path)
    if dataset.is_table:
        return (_find_object_files if dataset.reader == "json" else _find_table_files)(dataset, finder)
    if dataset.reader in MOVIELENS:
        return _find_movielens(dataset, finder)
    if dataset.reader == "ncf":
        return _find_ncf(dataset, finder)
    if dataset.reader == "netflix":
        return TextLog(_find_netflix(path, finder), path, time_unit="timestamp")
    if dataset.reader == "lightgcn":
        return TextLog(_find_lightgcn(path, finder), path)
    # The closed loop's part, unless the split divides it, and that of the open loop.
    closed: dict[str, str | None] = {} if dataset.closed_loop == "split" else {"part": "train"}
    layout, pattern = LOOPS[dataset.reader]
    parts = ((closed, "train"), ({"part": "open_loop"}, "test"))
    files = [(part, finder.find(path, [pattern.format(name)]), layout) for part, name in parts]
    return TextLog(files, path)


def _find_movielens(dataset: Dataset, finder: Finder) -> TextLog:
    """Find the ratings: `u.data`, `ratings.dat` (`::`) or `ratings.csv`."""
    path, known = str(dataset.path), MOVIELENS[dataset.reader]
    file = finder.find(path, known) if finder.is_folder(path) else path
    refuse_packed_text(file)
    name = name_layout(Path(file), known)
    layout = LAYOUTS[name]
    names = layout.names or read_names(head_lines(finder.read_head(file)), layout.separator, file)
    # Only files below a header have quotes.
    quotes, headed = (RFC_4180, True) if layout.names is None else (None, False)
    fields = text_pieces.Fields(tuple(names), layout.separator, headed, quotes, encoding=layout.encoding)
    sources = SOURCE_COLUMNS.get(name, {})
    return TextLog([({}, file, fields)], file, sources, ("event_time",), dataset.time_unit)


LOOPS: Mapping[str, tuple[text_pieces.TextLayout, str]] = {
    "coat": (text_pieces.Matrix(), "{}.ascii"),
    "yahoo_r3": (
        text_pieces.Fields(("user_id", "item_id", "rating"), "\t"),
        "ydata-ymusic-rating-study-*-{}.txt",
    ),
}
"""Layouts of data sets with a closed loop, `train`, and an open one, `test`.

Sources: Coat Shopping, Schnabel et al., ICML 2016; Yahoo! R3, Marlin and Zemel, RecSys 2009, where test
ratings are on songs drawn at random.
"""


def _find_lightgcn(folder: str, finder: Finder) -> LogFiles:
    """Find the NGCF and LightGCN splits: `train.txt`, `test.txt`.

    Source: He et al., SIGIR 2020. A `valid.txt` beside them, which later papers add, is the part valid. An
    item twice in a line gives two rows, and `dataset.duplicates` decides between them.
    """
    files = {part: finder.find(folder, [f"{part}.txt"]) for part in ("train", "test")}
    with suppress(ConfigError):  # most have none
        files["valid"] = finder.find(folder, ["valid.txt"])
    return [({"part": part}, file, text_pieces.ItemLines()) for part, file in files.items()]


def _find_netflix(path: str, finder: Finder) -> LogFiles:
    """Find the Netflix prize's ratings: a file, or a folder.

    Source: Bennett and Lanning, KDD Cup 2007. The folder (or its `training_set`) has `combined_data_N.txt`
    with many movies, or one `mv_NNNNNNN.txt` per movie. `probe.txt` and `qualifying.txt` are not read.
    """
    if not finder.is_folder(path):
        return [({}, path, text_pieces.MovieBlocks(fnmatch(path.rsplit("/", 1)[-1], "mv_*")))]
    if "training_set" in finder.list_names(path):
        path = f"{path.rstrip('/')}/training_set"
    first = finder.find(path, ("combined_data_*.txt", "mv_*.txt")).rsplit("/", 1)[-1]
    single = first.startswith("mv_")
    pattern = f"{'mv_*' if single else 'combined_data_*'}.txt*"
    names = [name for name in finder.list_names(path) if fnmatch(name, pattern)]
    return [({}, f"{path.rstrip('/')}/{name}", text_pieces.MovieBlocks(single)) for name in names]


TRAIN_FILES, TEST_FILES = ("*.train.rating", "*.train.tsv"), ("*.test.rating", "*.test.tsv")
NCF_FIELDS = ("user_id", "item_id", "rating", "event_time")


def _find_ncf(dataset: Dataset, finder: Finder) -> TextLog:
    """Find NCF's leave-one-out split: `*.train.rating`, `*.test.rating`.

    Source: He et al., WWW 2017. A line has user, item, rating and in some files a time, separated by tabs.
    The time is in seconds since 1970, unless `dataset.time_unit` names another unit.
    """
    folder = str(dataset.path)
    files = []
    for part, patterns in (("train", TRAIN_FILES), ("test", TEST_FILES)):
        file = finder.find(folder, patterns)
        lines = head_lines(finder.read_head(file))
        width = lines[0].count("\t") + 1 if lines else 0
        if width not in (3, 4):
            message = f"{file}: its first line has {width} fields separated by tabs"
            raise SchemaError(message, f"expected 3 or 4: {', '.join(NCF_FIELDS)}")
        files.append(({"part": part}, file, text_pieces.Fields(NCF_FIELDS[:width], "\t")))
    timed = {"event_time" in layout.columns for _, _, layout in files}
    nullable = ("part",) if len(timed) == 1 else ("part", "event_time")
    return TextLog(files, folder, nullable=nullable, time_unit=dataset.time_unit)


# ------------------------------------------------------------------------------------------- tables


def _find_table_files(dataset: Dataset, finder: Finder) -> TextLog:
    """Find a CSV log's files, each with its own header.

    Raises:
        ConfigError: an option has no such value. SchemaError: files have no name in common.
    """
    path, options = str(dataset.path), read_options(dataset.options)
    files = finder.list_files(path, options.get("pathglobfilter"))
    sep = options.get("sep") or text_separator(path, files) or separator(next(iter(files), path))
    sep = BLANKS if sep.lower() == BLANKS else sep.replace("\\t", "\t")
    headed = options.get("header", "true").lower() == "true"
    encoding, comment = options.get("encoding", "utf-8"), options.get("comment", "")
    mark, quotes = options.get("quote", '"'), None
    if mark and sep != BLANKS:
        multiline = options.get("multiline", "").lower() == "true"
        quotes = Quotes(mark, options.get("escape") or mark, bool(QUOTING & options.keys()), multiline)
    if not is_wide(encoding):
        refuse_packed_text(path)

    def find_names(file: str) -> list[str]:
        rows = head_rows(finder.read_head(file), sep, quotes, encoding, comment)
        names = read_names(rows, sep, file, quotes)
        return names if headed else [f"_c{place}" for place in range(len(names))]

    with ThreadPoolExecutor(max_workers=16) as pool:
        read = zip(files, pool.map(find_names, files), strict=True)
        heads = {file: names for file, names in read if names}
    require_files(heads, path)
    if headed:
        _refuse_other_names(heads, sep, path)
    null = options.get("nullvalue", "")
    layouts = [
        (
            files[file],
            file,
            text_pieces.Fields(tuple(names), sep, headed, quotes, comment, encoding, null=null),
        )
        for file, names in heads.items()
    ]
    return TextLog(layouts, path, dataset.columns, time_unit=dataset.time_unit)


QUOTING = {"quote", "escape", "multiline", "comment"}
"""Options with which a quote that is not closed is a letter."""


def _find_object_files(dataset: Dataset, finder: Finder) -> TextLog:
    """Find a JSON log's files, with the keys of all.

    Raises:
        ConfigError: an option has no such value. DataError: a file begins with no objects.
    """
    path, options = str(dataset.path), read_options(dataset.options)
    plain = tuple(dataset.source_names.values())
    refuse_packed_text(path)
    files = finder.list_files(path, options.get("pathglobfilter"))
    require_files(files, path)
    for file in [*files][:MOST_HEADS] if finder is HERE else ():
        check_head(file, plain, strict=dataset.bad_rows == "error")
    encoding = options.get("encoding", "utf-8")
    wanted = {*plain, *columnar.list_attributes(dataset)}.difference(*files.values())
    read = None if finder is HERE else finder.read_head
    layout = Objects(list_keys(files, wanted, encoding, read), plain, encoding)
    layouts = [(given, file, layout) for file, given in files.items()]
    return TextLog(layouts, path, dataset.columns, time_unit=dataset.time_unit)


def _refuse_other_names(heads: Mapping[str, Sequence[str]], sep: str, path: str) -> None:
    groups: dict[str, list[str]] = {}
    for file, names in heads.items():
        groups.setdefault((" " if sep == BLANKS else sep).join(names).replace("\n", " "), []).append(file)
    if sep == BLANKS and len(groups) > 1:
        raise SchemaError(f"{path}: files begin with different names", "the same line in every file")
    refuse_strange_names(groups, sep, path)


# ---------------------------------------------------------------------------------- columnar files


def _open_columnar(dataset: Dataset) -> RawLog:
    """Open row groups in Parquet or Delta."""
    path = str(dataset.path)
    opened = columnar.open_groups(dataset)
    for name in {*columnar.list_attributes(dataset)} & {*opened.schema.names}:
        kind = opened.schema.field(name).type
        if pa.types.is_nested(kind):
            raise SchemaError(f"{path}: column {name} is {kind}, which is no attribute", "write it as text")
    days = _find_days(opened, dataset)
    # Spark marks time columns of a log that was read before.
    described = opened.notes.get(b"org.apache.spark.sql.parquet.row.metadata", b'{"fields": []}')
    checked = {one["name"] for one in json.loads(described)["fields"] if one["metadata"].get(CHECKED)}
    noted = {one.name for one in opened.schema if CHECKED.encode() in (one.metadata or {})}
    return RawLog(
        partial(PieceRows, pieces=opened.pieces, read=partial(_read_groups, days=days)),
        tuple(opened.schema.names),
        path,
        opened.n,
        source_names=dataset.columns,
        time_unit=dataset.time_unit,
        folders=frozenset(one.name for one in opened.schema if is_folder(one)) - days.keys(),
        checked=frozenset(checked | noted),
    )


def _find_days(opened: TablePieces, dataset: Dataset) -> dict[str, pa.DataType]:
    """Return the type of times in folder names, if any."""
    name = dataset.source_names.get("event_time", "")
    if name not in opened.schema.names or not is_folder(opened.schema.field(name)):
        return {}
    pieces = [getattr(one, "piece", one) for one in opened.pieces]
    texts = pa.array({one.folders.get(name) for one in pieces if isinstance(one, FilePiece)})
    for kind in (pa.date32(), pa.timestamp("us")):
        with suppress(pa.ArrowInvalid):
            texts.cast(kind)
            return {name: kind}
    return {}


def _read_groups(
    groups: Iterable[TablePiece], columns: Sequence[str], days: Mapping[str, pa.DataType]
) -> Iterator[pa.Table]:
    names = [name for name in columns if name != text_pieces.FILE]
    for group in groups:
        file = text_pieces.name_file(group.file)
        for stored in group.read(names):
            table = stored.table
            for name, kind in days.items() if days.keys() & {*names} else ():
                times = table.column(name).cast(kind)
                zoned = times if pa.types.is_date(kind) else times.cast(pa.timestamp("us", "UTC"))
                table = table.set_column(names.index(name), name, zoned)
            yield table.append_column(text_pieces.FILE, pa.repeat(file, len(table)))
