"""Look at the values of a log's columns: facts about each, patterns of times, values for no rating.

A database of this process reads the file, once for each question.
"""

from __future__ import annotations

import codecs
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from recbench_spark.data.json_objects import open_unmarked
from recbench_spark.data.log_files import DATE, LogFile, open_rows
from recbench_spark.data.times import TIME_FORMATS
from recbench_spark.errors import DataError
from recbench_spark.storage.local_files import bare_name, read_chunks
from recbench_spark.storage.text_forms import BLANKS

if TYPE_CHECKING:
    import duckdb

OFFSET = "(Z|[+-][0-9]{2}:?[0-9]{2})$"
"""The end of a time that names its zone."""

SAMPLE = 20_000
"""Objects of JSON whose keys are the columns."""


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
        rows = connection.sql(query).fetchall()
    if not rows or rows[0][1] in (None, rows[0][3]):  # two values at most: a label
        return None
    low, second, lows, high, before, highs = rows[0]
    if low in (0, -1, -99, -999) and second - low >= 1 and high > 1:
        return low, lows
    return (high, highs) if high in (99, 999, 9999) and high - before >= 10 else None


def _find_formats(connection: duckdb.DuckDBPyConnection, name: str) -> tuple[str, ...]:
    """Return the patterns of Spark by which all dates of a column are read; no year has two digits."""
    text = f"nullif({_quote(name)}, '')"
    times = (f"try_strptime({text}, {_quote_text(one)})" for one in TIME_FORMATS.values())
    counts = ", ".join(f"count(*) FILTER (year({time}) > 99)" for time in times)
    present, *read = connection.sql(f"SELECT count({text}), {counts} FROM log").fetchall()[0]
    return tuple(java for java, n in zip(TIME_FORMATS, read, strict=True) if n == present)


OTHER_DATE = (
    "^[0-9]{1,2}[/.-][0-9]{1,2}[/.-][0-9]{2,4}([ T,]|$)|^[0-9]{4}[/.][0-9]{1,2}[/.][0-9]{1,2}|"
    "^([A-Za-z]{3,9},? )?([0-9]{1,2}[ -])?"
    "(?i:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*[ ,.-]+[0-9]"
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
        open_unmarked(log.path) if log.reader == "json" else nullcontext(log.path) as place,
    ):
        try:
            _register(connection, _write_utf8(replace(log, path=place), Path(folder, bare_name(log.path))))
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
        rows = open_rows(log.path, log.reader)
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
