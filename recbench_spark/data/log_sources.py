"""Open a log of this machine, in any format, as pieces that tasks read. Without Spark."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from functools import partial
from pathlib import Path

import pyarrow as pa

from recbench_spark.config import Dataset
from recbench_spark.data import columnar
from recbench_spark.data.columnar import COLUMNAR_READERS
from recbench_spark.data.json_objects import (
    MOST_HEADS,
    Objects,
    check_head,
    find_bad_object,
    list_keys,
)
from recbench_spark.data.paths import check_path, find_entry
from recbench_spark.data.text_layouts import (
    LAYOUTS,
    MOVIELENS,
    SOURCE_COLUMNS,
    Layout,
    name_layout,
    read_options,
    require_known,
)
from recbench_spark.data.text_lines import cut_quoted
from recbench_spark.data.text_pieces import (
    FILE,
    Fields,
    ItemLines,
    LinePiece,
    Matrix,
    MovieBlocks,
    TextLayout,
    cut_text,
    measure_text,
    name_file,
    read_pieces,
    split_file,
)
from recbench_spark.data.times import CHECKED
from recbench_spark.errors import ConfigError, FallbackToSpark, RecbenchError, SchemaError
from recbench_spark.storage.blocks import Engine, OpenPieces, PieceRows, Rows
from recbench_spark.storage.local_files import (
    head_lines,
    list_folder,
    read_head,
    refuse_case,
    refuse_packed_text,
    refuse_strange_names,
    separator,
    text_separator,
)
from recbench_spark.storage.packed_blocks import MIN_BUFFER_ROWS
from recbench_spark.storage.table_scans import Piece, read_row_group
from recbench_spark.storage.text_forms import BLANKS

PartFiles = Sequence[tuple[str | None, str, TextLayout]]
"""Files of a log: the part of their rows, the path, the layout."""


@dataclass(frozen=True)
class RawLog:
    """Rows as they are stored, and rules for reading them.

    Attributes:
        open: returns the rows, with the columns of a file, FILE, and for text BAD_LINE.
        names: the columns of the files.
        where: the name of the path or table in messages.
        n: number of rows, about; 0 where nobody knows.
        line: the layout of a line ("4 fields separated by ','"); empty where rows have types.
        source_names: canonical column names to the log's own names, where they differ.
        nullable: canonical names of columns that may be NULL in some rows.
        time_unit: the unit of times that are numbers, or `timestamp`.
        folders: columns that are names of folders.
        checked: columns of times that came from a log that was read before.
        find_line: returns in words where the first bad line stands; empty where the format cannot tell.
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
    """Files of a log in text, as `RawLog` without a way to read them."""

    files: PartFiles
    where: str
    source_names: Mapping[str, str] = field(default_factory=dict)
    nullable: tuple[str, ...] = ("part",)
    time_unit: str = "s"

    @property
    def names(self) -> tuple[str, ...]:
        """The columns of all files."""
        parts = ["part"] if any(part for part, _, _ in self.files) else []
        return tuple(dict.fromkeys([name for _, _, one in self.files for name in one.columns] + parts))

    @property
    def line(self) -> str:
        """The layouts of a line."""
        return " or ".join(dict.fromkeys(layout.line for _, _, layout in self.files))

    def make_raw(self, open_rows: Callable[[Engine], Rows], n: int = 0) -> RawLog:
        """Return the log with a way to read it."""
        return RawLog(
            open_rows,
            self.names,
            self.where,
            n,
            self.line,
            self.source_names,
            self.nullable,
            self.time_unit,
        )


@dataclass(frozen=True)
class Finder:
    """Finds the files of a log where they are: on this machine, or by Spark elsewhere.

    Attributes:
        is_folder: says whether a path is a folder.
        list_names: returns the names in a folder.
        read_head: returns the first bytes of a file, unpacked.
    """

    is_folder: Callable[[str], bool]
    list_names: Callable[[str], list[str]]
    read_head: Callable[[str], bytes]

    def find(self, folder: str, patterns: Sequence[str]) -> str:
        """Find the path of an entry by the first pattern that fits any; `.gz` or `.bz2` may follow.

        Raises:
            ConfigError: nothing fits, or the path is not a folder; the hint has the nearest name.
        """
        names = self.list_names(folder) if self.is_folder(folder) else None
        return find_entry(folder, names, patterns)


def _is_folder(path: str) -> bool:
    check_path(path)
    return Path(path).is_dir()


def _list_names(folder: str) -> list[str]:
    return sorted(entry.name for entry in Path(folder).iterdir())


HERE = Finder(_is_folder, _list_names, read_head)
"""Finds files of this machine."""


def open_raw_log(dataset: Dataset) -> RawLog:
    """Open a log of this machine.

    Raises:
        FallbackToSpark: only Spark reads it. ConfigError, SchemaError, DataError: it cannot be read.
    """
    path = str(dataset.path)
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/", path):
        raise FallbackToSpark(f"{path} is no path of this machine")
    if dataset.reader in COLUMNAR_READERS:
        return _open_columnar(dataset)
    check_path(path)
    find = {"csv": _find_table_files, "json": _find_object_files}.get(dataset.reader)
    log = find_text_files(dataset, HERE) if find is None else find(dataset)
    raw = open_text_files(log)
    if dataset.reader != "json":
        return raw
    files, names = [file for _, file, _ in log.files], tuple(dataset.source_names.values())
    return replace(raw, find_line=partial(find_bad_object, files, names))


def open_text_files(log: TextLog) -> RawLog:
    """Open text files of this machine in pieces."""
    pieces = [piece for part, file, layout in log.files for piece in split_file(_place(file), layout, part)]
    n = sum(_estimate_rows(layout, file) for _, file, layout in log.files)
    return log.make_raw(partial(_open_pieces, pieces=tuple(pieces), read=read_pieces), n)


def _place(path: str) -> str:
    return str(Path(path).absolute())  # workers may have another directory


def _open_pieces(engine: Engine, pieces: Sequence[LinePiece | Piece], read: OpenPieces) -> PieceRows:
    return PieceRows(engine, pieces, read)


def _estimate_rows(layout: TextLayout, path: str) -> int:
    """Estimate the rows of a file by its first lines."""
    with suppress(RecbenchError):
        head = read_head(path)
        whole = head[: head.rfind(b"\n") + 1] or head
        rows = len(cut_text(whole, LinePiece(path, 0, -1, layout), [FILE]))
        return round(rows * max(measure_text(path) / len(whole), 1)) if whole else 0
    return 0


# ----------------------------------------------------------------------------- layouts of data sets


def find_text_files(dataset: Dataset, finder: Finder) -> TextLog:
    """Find the files of a data set whose layout is known by its name.

    Raises:
        ConfigError: a file is missing. SchemaError: a file has another layout.
    """
    path = str(dataset.path)
    if dataset.reader in MOVIELENS:
        return _find_movielens(dataset, finder)
    find: dict[str, Callable[[Dataset, Finder], PartFiles]] = {
        "coat": _find_coat, "yahoo_r3": _find_yahoo, "lightgcn": _find_lightgcn, "netflix": _find_netflix
    }  # fmt: skip
    if dataset.reader == "ncf":
        return _find_ncf(dataset, finder)
    unit = "timestamp" if dataset.reader == "netflix" else "s"
    return TextLog(find[dataset.reader](dataset, finder), path, time_unit=unit)


def make_fields(layout: Layout, names: Sequence[str]) -> Fields:
    """Return the layout of a known file; files with given names are not quoted."""
    headed = layout.names is None
    return Fields(tuple(names), layout.separator, headed, headed, encoding=layout.encoding)


def _find_movielens(dataset: Dataset, finder: Finder) -> TextLog:
    """Find the ratings file at or under the path: `u.data`, `ratings.dat` (`::`) or `ratings.csv`."""
    path, names = str(dataset.path), MOVIELENS[dataset.reader]
    file = finder.find(path, names) if finder.is_folder(path) else path
    if "://" not in file:
        refuse_packed_text(file)
    name = name_layout(Path(file), names)
    layout = LAYOUTS[name]
    fields = make_fields(layout, layout.names or _read_names(finder, file, layout.separator))
    nullable, sources = ("event_time",), SOURCE_COLUMNS.get(name, {})
    return TextLog([(None, file, fields)], file, sources, nullable, dataset.time_unit)


def _read_names(
    finder: Finder, file: str, sep: str, encoding: str = "utf-8", comment: str = ""
) -> list[str]:
    """Return the names in the first line of a file; none for a file without lines.

    Raises:
        FallbackToSpark: names that are empty or stand there twice.
    """
    lines = head_lines(finder.read_head(file), encoding, comment)
    if not lines:
        return []
    names = lines[0].split() if sep == BLANKS else cut_quoted(lines[0], sep, file, None)
    if not all(names) or len({str(name).lower() for name in names}) < len(names):
        raise FallbackToSpark(f"{file}: column names that are empty or stand there twice")
    return [str(name) for name in names]


def _name_closed_part(dataset: Dataset) -> str | None:
    """Return the part of the closed loop; None where the split divides it."""
    return None if dataset.closed_loop == "split" else "train"


def _find_coat(dataset: Dataset, finder: Finder) -> PartFiles:
    """Find Coat Shopping (Schnabel et al., ICML 2016): `train.ascii`, and the open loop `test.ascii`."""
    parts = ((_name_closed_part(dataset), "train.ascii"), ("open_loop", "test.ascii"))
    return [(part, finder.find(str(dataset.path), [name]), Matrix()) for part, name in parts]


def _find_yahoo(dataset: Dataset, finder: Finder) -> PartFiles:
    """Find Yahoo! R3 (Marlin and Zemel, RecSys 2009): `...-train.txt`, and the open loop `...-test.txt`.

    A line has user, song and rating, separated by tabs; the test ratings are of songs drawn at random.
    """
    fields = Fields(("user_id", "item_id", "rating"), "\t")
    parts = ((_name_closed_part(dataset), "train"), ("open_loop", "test"))
    return [
        (part, finder.find(str(dataset.path), [f"ydata-ymusic-rating-study-*-{name}.txt"]), fields)
        for part, name in parts
    ]


def _find_lightgcn(dataset: Dataset, finder: Finder) -> PartFiles:
    """Find the NGCF and LightGCN splits (He et al., SIGIR 2020): `train.txt`, `test.txt`.

    A `valid.txt` beside them, which later papers add, is the part valid. An item twice in a line gives two
    rows, which `dataset.duplicates` decides on.
    """
    folder = str(dataset.path)
    files = {part: finder.find(folder, [f"{part}.txt"]) for part in ("train", "test")}
    with suppress(ConfigError):  # most have none
        files["valid"] = finder.find(folder, ["valid.txt"])
    return [(part, file, ItemLines()) for part, file in files.items()]


def _find_netflix(dataset: Dataset, finder: Finder) -> PartFiles:
    """Find the Netflix prize's ratings (Bennett and Lanning, KDD Cup 2007): a file, or a folder of files.

    The folder (or its `training_set`) has `combined_data_N.txt` of many movies, or `mv_NNNNNNN.txt`, one a
    movie. `probe.txt` and `qualifying.txt` are not read.
    """
    path = str(dataset.path)
    if not finder.is_folder(path):
        return [(None, path, MovieBlocks(fnmatch(path.rsplit("/", 1)[-1], "mv_*")))]
    if "training_set" in finder.list_names(path):
        path = f"{path.rstrip('/')}/training_set"
    first = finder.find(path, ("combined_data_*.txt", "mv_*.txt")).rsplit("/", 1)[-1]
    single = first.startswith("mv_")
    pattern = f"{'mv_*' if single else 'combined_data_*'}.txt*"
    names = [name for name in finder.list_names(path) if fnmatch(name, pattern)]
    return [(None, f"{path.rstrip('/')}/{name}", MovieBlocks(single)) for name in names]


TRAIN_FILES, TEST_FILES = ("*.train.rating", "*.train.tsv"), ("*.test.rating", "*.test.tsv")
NCF_FIELDS = ("user_id", "item_id", "rating", "event_time")


def _find_ncf(dataset: Dataset, finder: Finder) -> TextLog:
    """Find the NCF paper's leave-one-out split (He et al., WWW 2017): `*.train.rating`, `*.test.rating`.

    A line has user, item, rating and in some files a time, separated by tabs. The time is in seconds since
    1970, unless `dataset.time_unit` names another unit.
    """
    folder = str(dataset.path)
    files = []
    for part, patterns in (("train", TRAIN_FILES), ("test", TEST_FILES)):
        file = finder.find(folder, patterns)
        lines = head_lines(finder.read_head(file))
        width = lines[0].count("\t") + 1 if lines else 0
        if width not in (3, 4):
            raise SchemaError(
                f"{file}: its first line has {width} fields separated by tabs",
                f"expected 3 or 4: {', '.join(NCF_FIELDS)}",
            )
        files.append((part, file, Fields(NCF_FIELDS[:width], "\t")))
    timed = {"event_time" in layout.columns for _, _, layout in files}
    nullable = ("part",) if len(timed) == 1 else ("part", "event_time")
    return TextLog(files, folder, nullable=nullable, time_unit=dataset.time_unit)


# ------------------------------------------------------------------------------------------- tables


def _find_table_files(dataset: Dataset) -> TextLog:
    """Find the files of a log in CSV; each is read by its own header.

    Raises:
        FallbackToSpark: the options, names or folders are Spark's.
    """
    path = str(dataset.path)
    options = read_options(dataset.options)
    require_known(dataset.options, options)
    refuse_packed_text(path)
    sep = options.get("sep", text_separator(path) or separator(path))
    sep = BLANKS if sep.lower() == BLANKS else sep
    headed = options.get("header", "true").lower() == "true"
    encoding, comment = options.get("encoding", "utf-8"), options.get("comment", "")
    quoted = sep != BLANKS and options.get("quote") != ""
    heads = {
        file: _read_names(HERE, file, sep, encoding, comment)
        if headed
        else _count_names(file, sep, encoding, comment)
        for file in _list_text_files(path)
    }
    heads = {file: names for file, names in heads.items() if names}
    if headed:
        _refuse_other_names(heads, sep, path)
    files = [
        (None, file, Fields(tuple(names), sep, headed, quoted, comment, encoding))
        for file, names in heads.items()
    ]
    return TextLog(files, path, dataset.columns, time_unit=dataset.time_unit)


def _find_object_files(dataset: Dataset) -> TextLog:
    """Find the files of a log of objects; all have the keys of any.

    Raises:
        FallbackToSpark: the options or folders are Spark's. DataError: a file begins with no objects.
    """
    path = str(dataset.path)
    options = read_options(dataset.options)
    require_known(dataset.options, options)
    refuse_packed_text(path)
    files, plain = _list_text_files(path), tuple(dataset.source_names.values())
    for file in files[:MOST_HEADS]:
        check_head(file, plain, strict=dataset.bad_rows == "error")
    encoding = options.get("encoding", "utf-8")
    layout = Objects(list_keys(files, [*plain, *dataset.attributes], encoding), plain, encoding)
    return TextLog(
        [(None, file, layout) for file in files], path, dataset.columns, time_unit=dataset.time_unit
    )


def _list_text_files(path: str) -> list[str]:
    if Path(path).is_file():
        return [path]
    files, folders = list_folder(Path(path))
    if folders:
        raise FallbackToSpark(f"{path} has folders in it")
    return [str(file) for file in files if file.stat().st_size]


def _count_names(file: str, sep: str, encoding: str, comment: str) -> list[str]:
    """Return the columns of a file without names by their places, as Spark does."""
    lines = head_lines(read_head(file), encoding, comment)[:1]
    fields = [line.split() if sep == BLANKS else cut_quoted(line, sep, file, None) for line in lines]
    return [f"_c{place}" for line in fields for place in range(len(line))]


def _refuse_other_names(heads: Mapping[str, Sequence[str]], sep: str, path: str) -> None:
    groups: dict[str, list[str]] = {}
    for file, names in heads.items():
        groups.setdefault((" " if sep == BLANKS else sep).join(names), []).append(file)
    if sep == BLANKS and len(groups) > 1:
        raise SchemaError(f"{path}: files begin with different names", "the same line in every file")
    refuse_strange_names(groups, sep, path)


# ---------------------------------------------------------------------------------- columnar files


def _open_columnar(dataset: Dataset) -> RawLog:
    """Open the row groups of Parquet or Delta whose files have one schema.

    Raises:
        FallbackToSpark: only Spark reads them.
    """
    groups, schema = columnar.list_groups(dataset)
    refuse_case(schema.names, str(dataset.path))
    _refuse_types(dataset, schema)
    n = sum(group.rows for group in groups)
    open_rows = partial(_open_pieces, pieces=groups, read=_read_groups)
    return RawLog(
        open_rows,
        tuple(schema.names),
        str(dataset.path),
        n,
        "",
        dataset.columns,
        time_unit=dataset.time_unit,
        checked=_find_checked(schema),
    )


def _find_checked(schema: pa.Schema) -> frozenset[str]:
    """Return the columns that Spark has marked as times of a log that was read before."""
    described = (schema.metadata or {}).get(b"org.apache.spark.sql.parquet.row.metadata")
    fields = json.loads(described)["fields"] if described else []
    return frozenset(one["name"] for one in fields if one["metadata"].get(CHECKED))


def _refuse_types(dataset: Dataset, schema: pa.Schema) -> None:
    """Leave types to Spark that it writes or reads in a way of its own. Raises FallbackToSpark."""
    for name in dataset.attributes:
        kind = schema.field(name).type if name in schema.names else pa.string()
        if not (pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_boolean(kind)):
            raise FallbackToSpark(f"column {name} is {kind}, which Spark writes as text")
    time = dataset.source_names.get("event_time", "")
    kind = schema.field(time).type if time in schema.names else pa.null()
    if kind == pa.timestamp("ns") or pa.types.is_time(kind):
        raise FallbackToSpark(f"column {time} is {kind}, and Spark knows whether it has a zone")


def _read_groups(groups: Iterable[Piece], columns: Sequence[str]) -> Iterator[pa.Table]:
    names = [name for name in columns if name != FILE]
    for group in groups:
        for batch in read_row_group(group, names, MIN_BUFFER_ROWS):
            table = pa.Table.from_batches([batch])
            yield table.append_column(FILE, pa.repeat(name_file(group.path), len(table)))
