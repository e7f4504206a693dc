"""Look at the file of a log before anything is configured: format, separator, header, values of columns.

It needs no Spark, and reads the file once. What the first lines leave open is refused, with the flag that
says it.
"""

from __future__ import annotations

import codecs
import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from recbench_spark.data.arrow_files import open_dataset
from recbench_spark.data.column_names import LOG_NAMES, strip_name
from recbench_spark.data.paths import check_path
from recbench_spark.data.text_layouts import LAYOUTS, MOVIELENS
from recbench_spark.errors import ConfigError, DataError, FallbackToSpark, show_value
from recbench_spark.storage.local_files import (
    BLANKS,
    HEAD_BYTES,
    TO_UTF8,
    WIDE,
    WIDE_MARKS,
    bare_name,
    describe_content,
    describe_undecoded,
    has_delta_log,
    head_lines,
    read_chunks,
    read_head,
    split_line,
)
from recbench_spark.storage.table_scans import query_delta

if TYPE_CHECKING:
    import duckdb
    import pyarrow.dataset as ds

SEPARATORS = ("::", "\t", ",", ";", "|")
TYPED = re.compile(r".+:(token|float)(_seq)?")
"""A name in the header of RecBole."""

DATE = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}"
OFFSET = "(Z|[+-][0-9]{2}:?[0-9]{2})$"
"""The end of a time that names its zone."""

MATRIX_WIDTH = 20
"""Numbers in each line from which a file without names is a matrix and no log."""

SAMPLE = 20_000
"""Objects of JSON whose keys are the columns."""

SPLITS = {
    "coat": ("train.ascii", "test.ascii"),
    "lightgcn": ("train.txt", "test.txt"),
    "ncf": ("*.train.rating", "*.test.rating"),
    "yahoo_r3": ("ydata-ymusic-rating-study-*-train.txt", "ydata-ymusic-rating-study-*-test.txt"),
}
"""Readers of folders that are divided already, and the files of each part."""


@dataclass(frozen=True)
class LogFile:
    """A log as a benchmark file describes it.

    Attributes:
        path: the absolute path.
        reader: value of `dataset.reader`.
        names: the columns, as the reader calls them; none for a reader with a layout of its own.
        options: `dataset.options`.
        roles: our name -> the column, where the name of the file says it.
        note: a sentence about its encoding, where it is not UTF-8.
    """

    path: str
    reader: str
    names: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    roles: Mapping[str, str] = field(default_factory=dict)
    note: str = ""

    @property
    def has_names(self) -> bool:
        """True where the columns have names of their own."""
        return self.options.get("header") != "false"


@dataclass(frozen=True)
class ColumnFacts:
    """Facts about the values of a column.

    Attributes:
        name: the name.
        stored: type in the file; empty for text.
        present, distinct: numbers of values, and of different ones (of a large file within some percent).
        whole, numbers, days: values that are whole numbers, numbers, and begin with a date.
        lowest, highest: of the numbers; None where there are none.
        first, last: of the times.
        offsets: times that are text and name their zone.
        hundredths: numbers with two decimals at most, as ratings have.
        dates: texts that look like a date, in another order than 2026-01-31.
        formats: patterns of Spark by which all these dates are read.
        samples: some values.
    """

    name: str
    stored: str
    present: int
    distinct: int
    whole: int
    numbers: int
    days: int
    lowest: float | None
    highest: float | None
    first: str | None
    last: str | None
    offsets: int = 0
    hundredths: int = 0
    dates: int = 0
    formats: tuple[str, ...] = ()
    samples: tuple[str, ...] = ()

    @property
    def is_numeric(self) -> bool:
        """True where all values are numbers."""
        return self.present > 0 and self.numbers == self.present and not self.is_stored_time

    @property
    def is_stored_time(self) -> bool:
        """True for timestamps and dates that the file stores as such."""
        return self.stored.startswith(("TIMESTAMP", "DATE"))

    @property
    def is_time_text(self) -> bool:
        """True where all values are ISO dates or times."""
        return self.present > 0 and self.days == self.present and not self.is_stored_time

    @property
    def is_other_date(self) -> bool:
        """True where all values are dates in another form than ISO."""
        return self.present > 0 and self.dates == self.present and not self.days


# ------------------------------------------------------------------------------------------ format


def open_log_file(
    path: str, separator: str | None = None, *, header: bool | None = None, encoding: str | None = None
) -> LogFile:
    """Find out how a file or folder of this machine is read.

    Args:
        path: the file; or a folder of MovieLens, of Parquet or Delta, or of one of SPLITS.
        separator: the separator of fields, where the caller knows it.
        header: whether the first line has the names.
        encoding: the encoding of its text, where the caller knows it.

    Raises:
        MissingError: nothing is there. ConfigError: the first lines leave open how it is read.
        DataError: it is no log, or in a format that is not read.
    """
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/", path):
        raise ConfigError(
            f"{path} is not on this machine", "look at a part of it: head -n 100000 > part.csv"
        )
    check_path(path)
    place = Path(path).absolute()
    if place.is_dir():
        return _open_folder(place, _TextSettings(separator, header, encoding))
    kind = describe_content(str(place))[0]
    if "UTF-16" in kind:
        raise DataError(f"{path} is {kind}", TO_UTF8)
    if kind == "Parquet":
        return _open_stored(place, "parquet")
    if kind not in ("text", "compressed with gzip") and "TREC" not in kind:
        raise DataError(f"{path} is {kind or 'not text'}", "write it as CSV or Parquet")
    return _open_text(place, _TextSettings(separator, header, encoding))


class _TextSettings(NamedTuple):
    """What the caller knows of a text file; None: it is to be found out."""

    separator: str | None
    header: bool | None
    encoding: str | None


def _open_folder(place: Path, given: _TextSettings) -> LogFile:
    if has_delta_log(place):
        return _open_stored(place, "delta")
    for reader, patterns in SPLITS.items():
        if all(any(place.glob(pattern)) for pattern in patterns):
            return LogFile(str(place), reader)
    known = dict.fromkeys(name for names in MOVIELENS.values() for name in names)
    files = [file for file in sorted(place.iterdir()) if bare_name(file.name) in known]
    if files:
        return _open_text(files[0], given)
    if any(place.rglob("*.parquet")):
        return _open_stored(place, "parquet")
    names = ", ".join(file.name for file in sorted(place.iterdir())[:10])
    raise ConfigError(f"{place} is a folder with {names or 'nothing in it'}", "name the file of the log")


def _open_stored(place: Path, reader: str) -> LogFile:
    return LogFile(str(place), reader, tuple(_open_rows(str(place), reader).schema.names))


def _open_rows(path: str, reader: str) -> ds.Dataset | pa.RecordBatchReader:
    """Open Parquet or Delta; a table of Delta whose files alone are not its rows can be read once."""
    try:
        return open_dataset(path, reader)
    except FallbackToSpark:
        if reader != "delta":
            raise
    return query_delta(path)


def _open_text(place: Path, given: _TextSettings) -> LogFile:
    encoding, note = _find_encoding(place, given.encoding)
    lines = _read_first_lines(place, encoding)
    if lines[0].lstrip().startswith("{"):
        if encoding:
            raise DataError(f"{place}: {note}", f"JSON is UTF-8: iconv -f {encoding} -t UTF-8 FILE")
        return LogFile(str(place), "json")
    if lines[0].lstrip().startswith("["):
        raise DataError(f"{place} is one array of JSON", "write an object in each line: jq -c '.[]'")
    log = _open_known(place) or _open_fields(place, lines, given)
    return replace(log, options={**log.options, "encoding": encoding}, note=note) if encoding else log


def _open_known(place: Path) -> LogFile | None:
    """Return the log of a file whose name says its layout."""
    layout = LAYOUTS.get(bare_name(place.name))
    if not layout or not layout.names or "rating" not in layout.names:
        return None
    places = {name: f"_c{n}" for n, name in enumerate(layout.names)}
    options = {"sep": layout.separator, "header": "false", "quote": ""}
    return LogFile(str(place), "csv", tuple(places.values()), options, places)


def _open_fields(place: Path, lines: Sequence[str], given: _TextSettings) -> LogFile:
    sep = given.separator or find_separator(lines, place)
    fields = [split_line(line, sep) for line in lines]
    if len(fields[0]) < 2:
        raise ConfigError(
            f"{place}: one field in a line separated by {sep!r}", "add --separator, such as ';' or blanks"
        )
    has_names = has_header(fields, place) if given.header is None else given.header
    usual = "\t" if bare_name(place.name).endswith(".tsv") else ","
    options = {} if sep == usual else {"sep": sep}
    if has_names:
        names = _name_columns(fields[0])
        _refuse_equal_names(names, place)
        return LogFile(str(place), "csv", names, options)
    if len(fields[0]) >= MATRIX_WIDTH:
        raise _make_matrix_error(place)
    names = tuple(f"_c{n}" for n in range(len(fields[0])))
    return LogFile(str(place), "csv", names, {**options, "header": "false"})


def _find_encoding(place: Path, given: str | None) -> tuple[str, str]:
    """Return the encoding of a text that is not UTF-8, and a sentence about it; else two empty texts.

    Raises:
        ConfigError: the caller's encoding is not known here. DataError: it is UTF-16 or UTF-32.
    """
    if read_head(str(place)).startswith(WIDE_MARKS) or (given or "").lower().startswith(WIDE):
        raise DataError(f"{place} is text in UTF-16 or UTF-32", TO_UTF8)
    if given is not None:
        try:
            name = codecs.lookup(given).name
        except LookupError:
            raise ConfigError(f"--encoding {given} is not known", "such as cp1252 or ISO-8859-1") from None
        return ("", "") if name == "utf-8" else (given, f"read as {given}, as --encoding says")
    found = describe_undecoded(str(place))
    if not found:
        return "", ""
    rest = any(set(chunk) & NOT_CP1252 for chunk in read_chunks(str(place)))
    encoding = "ISO-8859-1" if rest else "cp1252"
    return encoding, f"{found[0]}: read as {encoding}; --encoding names another"


NOT_CP1252 = frozenset({0x81, 0x8D, 0x8F, 0x90, 0x9D})
"""Bytes that mean nothing in cp1252, the usual encoding of Windows."""


def _name_columns(fields: Sequence[str]) -> tuple[str, ...]:
    """Return the names of a header; one without a name, as of an index of pandas, is named as by Spark."""
    return tuple(name or f"_c{n}" for n, name in enumerate(fields))


def _refuse_equal_names(names: Sequence[str], place: Path) -> None:
    """Refuse names that are one name where case does not count, as in SQL."""
    counts = Counter(name.lower() for name in names)
    equal = [name for name in names if counts[name.lower()] > 1]
    if equal:
        message = f"{place}: columns have one name, or differ only in case: {', '.join(equal)}"
        raise ConfigError(message, "rename them in the file")


def _make_matrix_error(place: Path) -> DataError:
    hint = "Coat: give the folder that holds train.ascii and test.ascii; else write a row for each rating"
    return DataError(f"{place} is a matrix with a row for each user, and no log", hint)


def _read_first_lines(place: Path, encoding: str) -> list[str]:
    if place.name.endswith(".bz2"):
        raise DataError(f"{place}: files compressed with bzip2 are not looked at", "unpack it, or use gzip")
    head = read_head(str(place))
    lines = head_lines(head, encoding or "utf-8")
    if not lines:
        raise DataError(f"{place}: no lines", "check the path")
    whole = lines[:-1] if len(head) == HEAD_BYTES else lines  # the last one is cut off
    return whole[:100] or lines


def find_separator(lines: Sequence[str], place: Path) -> str:
    """Return the separator that cuts all lines into as many fields, two or more.

    Raises:
        ConfigError: there is none, or there are several. DataError: the lines are a matrix.
    """
    widths = {sep: {len(split_line(line, sep)) for line in lines} for sep in SEPARATORS}
    fits = [sep for sep, counts in widths.items() if len(counts) == 1 and counts != {1}]
    if not fits and all(len(line.split()) >= MATRIX_WIDTH for line in lines):
        raise _make_matrix_error(place)
    blanks = {len(split_line(line, BLANKS)) for line in lines}
    if len(blanks) == 1 and blanks != {1} and (not fits or _are_padded(fits, lines)):
        return BLANKS
    usual = {".csv": ",", ".tsv": "\t", ".inter": "\t"}.get(Path(bare_name(place.name)).suffix)
    if usual in fits or len(fits) == 1:
        return str(usual if usual in fits else fits[0])
    shown = " and ".join(map(repr, fits))
    what = (
        f"{shown} could both separate the fields" if fits else "no separator gives all lines as many fields"
    )
    raise ConfigError(f"{place}: {what}: {lines[0][:120]!r}", "add --separator, such as ';' or blanks")


def _are_padded(fits: Sequence[str], lines: Sequence[str]) -> bool:
    """Return whether tabs alone would separate fields, and leave blanks at their ends."""
    return list(fits) == ["\t"] and any(
        field != field.strip() for line in lines for field in line.split("\t")
    )


def has_header(fields: Sequence[Sequence[str]], place: Path) -> bool:
    """Return whether the first line has names instead of values.

    Raises:
        ConfigError: names and values look alike.
    """
    first, rest = fields[0], fields[1:]
    usual = {name for names in LOG_NAMES.values() for name in names}
    if any(TYPED.fullmatch(name) or strip_name(name) in usual for name in first):
        return True
    if any(map(_is_value, first)):
        return False
    if rest and any(all(map(_is_value, column)) for column in zip(*rest, strict=False)):
        return True
    message = f"{place}: names and values look alike, the first line is {show_value(','.join(first))}"
    raise ConfigError(message, "add --header yes or --header no")


def _is_value(text: str) -> bool:
    return bool(re.fullmatch(r"\s*[-+]?[0-9.]+([eE][-+]?[0-9]+)?\s*", text) or re.match(DATE, text))


# ------------------------------------------------------------------------------------------ values


def profile_columns(log: LogFile) -> tuple[int, int, list[ColumnFacts]]:
    """Return the numbers of rows and of broken lines of CSV, and what the values of each column are.

    Raises:
        DataError: the file cannot be read.
    """
    with _connect(log) as connection:
        types = {row[0]: str(row[1]) for row in connection.sql("DESCRIBE log").fetchall()}
        distinct = "approx_count_distinct(" if _count_bytes(log.path) > EXACT_BYTES else "count(DISTINCT "
        parts = ", ".join(_write_aggregates(name, distinct) for name in types)
        row = connection.sql(f"SELECT count(*), {parts} FROM log").fetchall()[0]
        broken = _count_broken_lines(connection, log) if log.reader == "csv" else 0
        samples = connection.sql("SELECT * FROM log LIMIT 1000").fetchall()
        dated = [name for n, name in enumerate(types) if row[1 + n * FACTS] == row[n * FACTS + FACTS] != 0]
        formats = {name: _find_formats(connection, name) for name in dated}
    columns = []
    for n, (name, stored) in enumerate(types.items()):
        facts = row[1 + n * FACTS : 1 + (n + 1) * FACTS]
        values = dict.fromkeys(str(one[n]) for one in samples if one[n] not in (None, ""))
        kind = "" if stored == "VARCHAR" else stored
        columns.append(replace(ColumnFacts(name, kind, *facts), samples=tuple(values)[:3]))
        columns[-1] = replace(columns[-1], formats=formats.get(name, ()))
    return int(row[0]), broken, columns


FACTS = 12
EXACT_BYTES = 1 << 26
"""Bytes of a file up to which different values are counted; beyond it they are estimated."""


def find_no_ratings(log: LogFile, name: str) -> tuple[float, int] | None:
    """Return a value of ratings that usually means "no rating", and its rows; None where there is none.

    It is 0, -1, 99 or the like, the lowest or highest value, with a gap to all others.
    """
    query = f"""
        WITH rows AS (SELECT try_cast({_quote(name)} AS DOUBLE) AS r FROM log),
        ends AS (SELECT min(r) AS low, max(r) AS high FROM rows)
        SELECT low, min(r) FILTER (r > low), count(*) FILTER (r = low), high, max(r) FILTER (r < high),
        count(*) FILTER (r = high) FROM rows, ends WHERE isfinite(r) GROUP BY low, high"""
    with _connect(log) as connection:
        found = connection.sql(query).fetchall()
    if not found or found[0][1] in (None, found[0][3]):  # two values at most: a label
        return None
    low, second, lows, high, before, highs = found[0]
    if low in (0, -1, -99, -999) and second - low >= 1 and high > 1:
        return low, lows
    return (high, highs) if high in (99, 999, 9999) and high - before >= 10 else None


def _find_formats(connection: duckdb.DuckDBPyConnection, name: str) -> tuple[str, ...]:
    """Return the patterns of Spark by which all dates of a column are read."""
    text = f"nullif({_quote(name)}, '')"
    counts = ", ".join(f"count(try_strptime({text}, {_quote_text(one)}))" for one in TIME_FORMATS.values())
    present, *read = connection.sql(f"SELECT count({text}), {counts} FROM log").fetchall()[0]
    return tuple(java for java, n in zip(TIME_FORMATS, read, strict=True) if n == present)


_DAYS = {
    "M/d/yyyy": "%m/%d/%Y",
    "d/M/yyyy": "%d/%m/%Y",
    "M-d-yyyy": "%m-%d-%Y",
    "d-M-yyyy": "%d-%m-%Y",
    "d.M.yyyy": "%d.%m.%Y",
    "yyyy/M/d": "%Y/%m/%d",
}
_HOURS = {
    "": "",
    " H:mm": " %H:%M",
    " H:mm:ss": " %H:%M:%S",
    " h:mm a": " %I:%M %p",
    " h:mm:ss a": " %I:%M:%S %p",
}
TIME_FORMATS = {java + hour: own + _HOURS[hour] for java, own in _DAYS.items() for hour in _HOURS}
"""Patterns of times by Spark (`timestampFormat`), and the same ones by DuckDB."""

OTHER_DATE = (
    "^[0-9]{1,2}[/.-][0-9]{1,2}[/.-][0-9]{2,4}([ T,]|$)|^[0-9]{4}[/.][0-9]{1,2}[/.][0-9]{1,2}|"
    "^([A-Za-z]{3,9},? )?([0-9]{1,2} )?(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]* .*[0-9]{4}$"
)
"""Pattern of a date in another form than 2026-01-31."""


def _count_broken_lines(connection: duckdb.DuckDBPyConnection, log: LogFile) -> int:
    """Return the number of lines that the pass over all rows, the only one before, left out."""
    if log.options.get("sep") == BLANKS:
        return int(
            connection.sql(f"SELECT count(*) FROM fields WHERE len(x) <> {len(log.names)}").fetchall()[0][0]
        )
    return int(connection.sql("SELECT count(DISTINCT line) FROM reject_errors").fetchall()[0][0])


def _count_bytes(path: str) -> int:
    place = Path(path)
    return sum(file.stat().st_size for file in (place.rglob("*") if place.is_dir() else [place]))


def _write_aggregates(name: str, distinct: str) -> str:
    """Return the SQL of the facts of a column, in the order of `ColumnFacts`."""
    text = f"nullif(CAST({_quote(name)} AS VARCHAR), '')"
    number = f"try_cast({text} AS DOUBLE)"
    is_time = f"regexp_matches({text}, '{DATE}')"
    time = f"CASE WHEN {is_time} THEN try_cast({text} AS TIMESTAMP) END"
    return ", ".join(
        [
            f"count({text})",
            f"{distinct}{text})",
            f"count(*) FILTER (regexp_full_match({text}, '-?[0-9]+'))",
            f"count({number}) FILTER (isfinite({number}))",
            f"count({time})",
            f"min({number}) FILTER (isfinite({number}))",
            f"max({number}) FILTER (isfinite({number}))",
            f"CAST(min({time}) AS VARCHAR)",
            f"CAST(max({time}) AS VARCHAR)",
            f"count({time}) FILTER (regexp_matches({text}, '{OFFSET}'))",
            f"count({number}) FILTER (regexp_full_match({text}, '-?[0-9]+([.][0-9]{{1,2}}0*)?'))",
            f"count({text}) FILTER (regexp_matches({text}, '{OTHER_DATE}'))",
        ]
    )


def share_known_users(log: LogFile, user: str, time: str, pattern: str = "") -> float:
    """Return the share of the users of the last fifth of the rows, by time, who have earlier rows too.

    It is 0 where no row is later than the others. `pattern`: that of Spark by which times are read.

    Raises:
        DataError: the file cannot be read.
    """
    text = f"CAST({_quote(time)} AS VARCHAR)"
    moment = f"coalesce(try_cast({text} AS DOUBLE), epoch(try_cast({text} AS TIMESTAMP)))"
    if pattern:
        moment = f"epoch(try_strptime({text}, {_quote_text(TIME_FORMATS[pattern])}))"
    query = f"""
        WITH rows AS (SELECT {_quote(user)} AS u, {moment} AS t FROM log),
        users AS (SELECT min(t) AS first, max(t) AS last FROM rows GROUP BY u),
        cut AS (SELECT quantile_disc(t, 0.8) AS t FROM rows)
        SELECT count(*) FILTER (first <= cut.t) / nullif(count(*), 0) FROM users, cut WHERE last > cut.t"""
    with _connect(log) as connection:
        share = connection.sql(query).fetchall()[0][0]
    return float(share or 0.0)


@contextmanager
def _connect(log: LogFile) -> Iterator[duckdb.DuckDBPyConnection]:
    """Connect to a new database with the log as the view `log`; its errors become DataErrors."""
    import duckdb  # noqa: PLC0415

    with (
        duckdb.connect(":memory:", config={"threads": "2"}) as connection,
        tempfile.TemporaryDirectory(prefix="recbench-init-") as folder,
    ):
        try:
            _register(connection, _write_utf8(log, Path(folder, bare_name(log.path))))
            yield connection
        except duckdb.Error as error:
            message = f"{log.path}: cannot be read: {str(error).splitlines()[0][:300]}"
            raise DataError(message, "write it as Parquet, or as CSV in UTF-8") from None


def _write_utf8(log: LogFile, copy: Path) -> LogFile:
    """Return a log whose text is UTF-8: itself, or a copy of it."""
    if "encoding" not in log.options:
        return log
    decoder = codecs.getincrementaldecoder(log.options["encoding"])(errors="replace")
    with copy.open("w", encoding="utf-8", newline="") as stream:
        for chunk in read_chunks(log.path):
            stream.write(decoder.decode(chunk))
        stream.write(decoder.decode(b"", final=True))
    return replace(log, path=str(copy))


def _register_blanks(connection: duckdb.DuckDBPyConnection, log: LogFile) -> None:
    """Give a connection a log whose fields are separated by blanks, as the view `log`."""
    call = (
        f"read_csv({_quote_path(log.path)}, delim = '\x01', quote = '', escape = '', auto_detect = false, "
        f"columns = {{'line': 'VARCHAR'}}, header = {log.options.get('header', 'true')})"
    )
    bare = r"regexp_replace(line, '^\s+|\s+$', '', 'g')"
    split = rf"SELECT regexp_split_to_array({bare}, '\s+') AS x FROM {call} WHERE {bare} <> ''"
    connection.execute(f"CREATE VIEW fields AS {split}")
    names = ", ".join(f"x[{n}] AS {_quote(name)}" for n, name in enumerate(log.names, 1))
    connection.execute(f"CREATE VIEW log AS SELECT {names} FROM fields WHERE len(x) = {len(log.names)}")


def _register(connection: duckdb.DuckDBPyConnection, log: LogFile) -> None:
    """Give a connection the log as the view `log`; fields of text files are text."""
    if log.reader in ("parquet", "delta"):
        rows = _open_rows(log.path, log.reader)
        once = isinstance(rows, pa.RecordBatchReader)
        connection.register("rows" if once else "log", rows)
        if once:
            connection.execute("CREATE TABLE log AS SELECT * FROM rows")
        return
    if log.options.get("sep") == BLANKS:
        _register_blanks(connection, log)
        return
    path = _quote_path(log.path)
    if log.reader == "json":
        call = f"read_json({path}, format = 'newline_delimited', records = true, ignore_errors = true"
        keys = [
            row[0]
            for row in connection.sql(f"DESCRIBE SELECT * FROM {call}, sample_size = {SAMPLE})").fetchall()
        ]
        texts = ", ".join(f"{_quote_text(key)}: 'VARCHAR'" for key in keys)
        call += f", columns = {{{texts}}})"
    else:
        sep = log.options.get("sep") or ("\t" if bare_name(log.path).endswith(".tsv") else ",")
        quote = log.options.get("quote", '"')
        names = "{" + ", ".join(f"{_quote_text(name)}: 'VARCHAR'" for name in log.names) + "}"
        header = log.options.get("header", "true")
        call = (
            f"read_csv({path}, delim = {_quote_text(sep)}, header = {header}, auto_detect = false, "
            f"quote = '{quote}', escape = '{quote}', columns = {names}, store_rejects = true)"
        )
    connection.execute(f"CREATE VIEW log AS SELECT * FROM {call}")


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _quote_path(path: str) -> str:
    """Return SQL of the path of one file: DuckDB takes `*`, `?` and `[` for wildcards elsewhere."""
    return _quote_text(re.sub(r"([*?[])", r"[\1]", path))


def _quote_text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
