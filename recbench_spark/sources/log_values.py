"""Look at a log's values: facts, time patterns, placeholders.

A database in this process reads the file, once for each question.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pyarrow as pa

from recbench_spark.errors import DataError
from recbench_spark.sources.log_files import DATE, LogFile, LogStream, open_rows
from recbench_spark.sources.table_pieces import list_files
from recbench_spark.sources.times import TIME_FORMATS
from recbench_spark.storage.objects import measure_files
from recbench_spark.storage.sql_quotes import quote_sql

if TYPE_CHECKING:
    import duckdb

OFFSET = "(Z|[+-][0-9]{2}:?[0-9]{2})$"
"""The end of a time that names its zone."""


@dataclass(frozen=True)
class ColumnFacts:
    """Facts about a column's values.

    Attributes:
        name: the name.
        stored: type in the file; empty for text.
        present, distinct: numbers of values, and of different ones (in a large file within some percent).
        whole, numbers, days: values that are whole numbers, numbers, and begin with a date.
        lowest, highest: among the numbers; None if there are none.
        first, last: among the times.
        offsets: times in text that name their zone.
        hundredths: numbers with two decimals at most, as ratings have.
        dates: texts that look like a date, in another order than 2026-01-31.
        formats: Spark's patterns which read all these dates.
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
        """True if all values are numbers."""
        return self.present > 0 and self.numbers == self.present and not self.is_stored_time

    @property
    def is_stored_time(self) -> bool:
        """True for timestamps and dates stored as such."""
        return self.stored.startswith(("TIMESTAMP", "DATE"))

    @property
    def is_time_text(self) -> bool:
        """True if all values are ISO dates or times."""
        return self.present > 0 and self.days == self.present and not self.is_stored_time

    @property
    def is_other_date(self) -> bool:
        """True if all values are dates, but not in ISO."""
        return self.present > 0 and self.dates == self.present and not self.days


def profile_columns(log: LogFile) -> tuple[int, int, list[ColumnFacts]]:
    """Return row and broken-line counts, and column facts.

    Raises:
        DataError: the file cannot be read.
    """
    with _connect(log) as (connection, stream):
        types = {row[0]: str(row[1]) for row in connection.sql("DESCRIBE log").fetchall()}
        size = sum(one or 0 for one in measure_files([*list_files(log.path)]))
        distinct = "approx_count_distinct(" if size > EXACT_BYTES else "count(DISTINCT "
        parts = ", ".join(_write_aggregates(name, distinct) for name in types)
        row = connection.sql(f"SELECT count(*), {parts} FROM log").fetchall()[0]
        broken = stream.broken if isinstance(stream, LogStream) and log.reader == "csv" else 0
        samples = connection.sql("SELECT * FROM log LIMIT 1000").fetchall()
        dated = [name for n, name in enumerate(types) if row[1 + n * FACTS] == row[n * FACTS + FACTS] != 0]
        formats = {name: _find_formats(connection, name) for name in dated}
    columns = []
    for n, (name, stored) in enumerate(types.items()):
        facts = row[1 + n * FACTS : 1 + (n + 1) * FACTS]
        values = dict.fromkeys(str(one[n]) for one in samples if one[n] not in (None, ""))
        kind = "" if stored == "VARCHAR" else stored
        own = ColumnFacts(name, kind, *facts)
        columns.append(replace(own, formats=formats.get(name, ()), samples=tuple(values)[:3]))
    return int(row[0]), broken, columns


FACTS = 12
EXACT_BYTES = 1 << 26
"""Bytes in a file up to which different values are counted; beyond it they are estimated."""


def find_no_ratings(log: LogFile, name: str) -> tuple[float, int] | None:
    """Find a rating that usually means "no rating", and its rows.

    The rating is 0, -1, 99 or the like, the lowest or highest value, with a gap to all others. None: there
    is no such rating.
    """
    query = f"""
        WITH rows AS (SELECT try_cast({quote_sql(name, '"')} AS DOUBLE) AS r FROM log),
        ends AS (SELECT min(r) AS low, max(r) AS high FROM rows)
        SELECT low, min(r) FILTER (r > low), count(*) FILTER (r = low), high, max(r) FILTER (r < high),
        count(*) FILTER (r = high) FROM rows, ends WHERE isfinite(r) GROUP BY low, high"""
    with _connect(log, [name]) as (connection, _):
        rows = connection.sql(query).fetchall()
    if not rows or rows[0][1] in (None, rows[0][3]):  # two values at most: a label
        return None
    low, second, lows, high, before, highs = rows[0]
    if low in (0, -1, -99, -999) and second - low >= 1 and high > 1:
        return low, lows
    return (high, highs) if high in (99, 999, 9999) and high - before >= 10 else None


def count_values(log: LogFile, name: str) -> tuple[tuple[str, int], ...]:
    """Return a column's values as text with their rows, the most frequent first.

    Raises:
        DataError: the file cannot be read.
    """
    query = f"""
        SELECT nullif(CAST({quote_sql(name, '"')} AS VARCHAR), '') AS v, count(*) AS n FROM log
        GROUP BY v HAVING v IS NOT NULL ORDER BY n DESC, v"""
    with _connect(log, [name]) as (connection, _):
        return tuple(connection.sql(query).fetchall())


def _find_formats(connection: duckdb.DuckDBPyConnection, name: str) -> tuple[str, ...]:
    """Return Spark's patterns which read all dates in a column.

    No year has two digits.
    """
    text = f"""nullif({quote_sql(name, '"')}, '')"""
    times = (f"try_strptime({text}, {quote_sql(one)})" for one in TIME_FORMATS.values())
    counts = ", ".join(f"count(*) FILTER (year({time}) > 99)" for time in times)
    present, *read = connection.sql(f"SELECT count({text}), {counts} FROM log").fetchall()[0]
    return tuple(java for java, n in zip(TIME_FORMATS, read, strict=True) if n == present)


OTHER_DATE = (
    "^[0-9]{1,2}[/.-][0-9]{1,2}[/.-][0-9]{2,4}([ T,]|$)|^[0-9]{4}[/.][0-9]{1,2}[/.][0-9]{1,2}|"
    "^([A-Za-z]{3,9},? )?([0-9]{1,2}[ -])?"
    "(?i:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*[ ,.-]+[0-9]"
)
"""Pattern for a date in another form than 2026-01-31."""


def _write_aggregates(name: str, distinct: str) -> str:
    """Return SQL for a column's facts, ordered as in `ColumnFacts`."""
    text = f"""nullif(CAST({quote_sql(name, '"')} AS VARCHAR), '')"""
    number = f"try_cast({text} AS DOUBLE)"
    is_time = f"regexp_matches({text}, '{DATE}')"
    time = f"CASE WHEN {is_time} THEN try_cast({text} AS TIMESTAMP) END"
    facts = (
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
    )
    return ", ".join(facts)


def share_known_users(log: LogFile, user: str, time: str, pattern: str = "") -> float:
    """Return the share of late users with earlier rows, too.

    Late users have one of the last fifth of rows, by time. The share is 0 if no row is later than the
    others. `pattern`: Spark's pattern for the times.

    Raises:
        DataError: the file cannot be read.
    """
    text = f"""CAST({quote_sql(time, '"')} AS VARCHAR)"""
    moment = f"coalesce(try_cast({text} AS DOUBLE), epoch(try_cast({text} AS TIMESTAMP)))"
    if pattern:
        moment = f"epoch(try_strptime({text}, {quote_sql(TIME_FORMATS[pattern])}))"
    query = f"""
        WITH rows AS (SELECT {quote_sql(user, '"')} AS u, {moment} AS t FROM log),
        users AS (SELECT min(t) AS first, max(t) AS last FROM rows GROUP BY u),
        cut AS (SELECT quantile_disc(t, 0.8) AS t FROM rows)
        SELECT count(*) FILTER (first <= cut.t) / nullif(count(*), 0) FROM users, cut WHERE last > cut.t"""
    with _connect(log, [user, time]) as (connection, _):
        share = connection.sql(query).fetchall()[0][0]
    return float(share or 0.0)


@contextmanager
def _connect(
    log: LogFile, names: Sequence[str] = ()
) -> Iterator[tuple[duckdb.DuckDBPyConnection, LogStream | pa.RecordBatchReader]]:
    """Connect to a new database with the log's columns.

    The table `log` has some of them, or all. Connection and rows are yielded. Errors from the database
    become DataErrors.
    """
    import duckdb  # noqa: PLC0415

    with (
        TemporaryDirectory(prefix="recbench-init-") as folder,
        duckdb.connect(":memory:", config={"threads": "2", "temp_directory": folder}) as connection,
    ):
        rows = open_rows(log, names)
        again = isinstance(rows, LogStream) and log.reader != "json"  # to parse objects takes long
        try:
            connection.register("rows", rows)
            connection.execute(f"CREATE {'VIEW' if again else 'TEMP TABLE'} log AS SELECT * FROM rows")
            yield connection, rows
        except duckdb.Error as error:
            if isinstance(rows, LogStream) and rows.error is not None:
                raise rows.error from None
            message = f"{log.path}: cannot be read: {str(error).splitlines()[0][:300]}"
            raise DataError(message, "write it as Parquet, or as CSV in UTF-8") from None
