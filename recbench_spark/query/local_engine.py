"""Queries of the results by DuckDB, in this process.

DuckDB can access only tables read by `deltalake`: no file, no network, no extension, no variable of
this process, and no setting can be changed. A query is one SELECT.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from graphlib import TopologicalSorter
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from recbench_spark.errors import ConfigError, DataError, FallbackToSpark, StoreError, nearest
from recbench_spark.schemas import METRICS, RUNS, TABLES
from recbench_spark.storage.arrow_store import ArrowStore
from recbench_spark.storage.file_tables import FileTables
from recbench_spark.storage.sql_quotes import quote_sql
from recbench_spark.storage.table_sql import view_files
from recbench_spark.storage.table_upkeep import HINT as LOST_HINT
from recbench_spark.storage.table_upkeep import lost_error

if TYPE_CHECKING:
    import duckdb


MAX_LOCAL_ROWS = 20_000_000
"""Most rows in all tables of a query here; DuckDB reads only the columns it needs."""

SETTINGS = {
    "enable_external_access": "false",
    "python_enable_replacements": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "max_temp_directory_size": "0KB",
    # Spark's order: NULL is smaller than anything.
    "default_null_order": "nulls_first_on_asc_last_on_desc",
}
"""A connection's permissions, and its order of NULL."""

HINT = "write one SELECT over the tables and views that --list names"

SPARK_ONLY = ("GET_JSON_OBJECT", "ARRAY()")
"""Parts of the stored SQL files that DuckDB reads otherwise, or not at all."""

TRANSLATIONS = (
    # Lists, and their places, begin at 0 in Spark and at 1 in DuckDB.
    (
        re.compile(r"LATERAL VIEW POSEXPLODE\((\w+)\) (\w+) AS (\w+), (\w+)"),
        r", LATERAL (SELECT UNNEST(\1) AS \4, UNNEST(RANGE(1, LEN(\1) + 1)) AS \3) AS \2",
    ),
    (re.compile(r"\bPERCENTILE\("), "QUANTILE_CONT("),
)
"""Parts of the stored SQL files in Spark's words, and in DuckDB's."""

INEXACT_QUESTIONS = frozenset(
    ("do_few_users_lead_the_mean", "how_hard_is_each_split", "how_much_is_the_protocols_doing")
)
"""Queries whose sums and quotients have another last digit or another type in DuckDB."""


TABLE_FUNCTIONS = frozenset(("range", "generate_series", "unnest"))
"""Functions that make a table and read none."""

REFUSED_FUNCTIONS = frozenset(
    (
        *("query", "query_table", "json_execute_serialized_sql", "write_log", "getvariable"),
        *("arrow_scan", "pandas_scan", "current_setting", "getenv", "nextval", "currval"),
    )
)
"""Functions that run SQL, read addresses in memory, or reveal facts of the process."""


def is_portable(name: str, sql: str) -> bool:
    """Check whether a named query returns the same rows here.

    The order of rows is the same, too: `tests/jobs/test_query.py`.
    """
    return name not in INEXACT_QUESTIONS and not any(words in sql for words in SPARK_ONLY)


def translate_question(name: str, sql: str) -> str:
    """Return a stored file's SQL in DuckDB's words.

    Raises:
        ConfigError: the SQL needs a function which DuckDB does not have.
    """
    missing = next((words for words in SPARK_ONLY if words in sql), None)
    if missing:
        raise ConfigError(f"{name} needs Spark: DuckDB does not read {missing}", "use --engine spark")
    for pattern, words in TRANSLATIONS:
        sql = pattern.sub(words, sql)
    return sql


def run_query(store: ArrowStore, sql: str, limit: int | None = None) -> pa.Table:
    """Return the first rows of a query.

    Args:
        store: the warehouse.
        sql: one SELECT over tables and views.
        limit: largest number of rows; None: all.

    Raises:
        ConfigError: no SQL, no SELECT, or one that reads something else.
        DataError: the query fails on these rows.
        FallbackToSpark: `deltalake` does not read a table, or there are more than MAX_LOCAL_ROWS rows.
    """
    import duckdb  # noqa: PLC0415

    query = replace_backticks(sql)
    check_query(query, (*TABLES, *view_files()))
    with _open_database().cursor() as connection:
        _register_tables(connection, store, query)
        try:
            rows = connection.sql(query)
            return (rows if limit is None else rows.limit(limit)).to_arrow_table()
        except (duckdb.CatalogException, duckdb.ParserException, duckdb.PermissionException) as error:
            raise ConfigError(_first_line(error), HINT) from None
        except duckdb.Error as error:
            raise DataError(_first_line(error)) from None


@cache
def _open_database() -> duckdb.DuckDBPyConnection:
    """Open this process's empty database.

    A query has a cursor, and its names end with it.
    """
    import duckdb  # noqa: PLC0415

    database = duckdb.connect(":memory:", config=dict(SETTINGS))
    database.execute("SET lock_configuration = true")
    return database


def count_query_rows(store: ArrowStore, sql: str) -> int:
    """Count a query's rows; errors as in `run_query`."""
    counted = f"SELECT COUNT(*) AS n FROM ({sql.strip().rstrip(';')}\n)"
    return int(run_query(store, counted).column("n")[0].as_py())


QUOTED_TEXT = re.compile(
    r"""[eE]'(?:[^'\\]|\\.|'')*'|'(?:[^']|'')*'|"(?:[^"]|"")*"|\$(\w*)\$.*?\$\1\$"""
    r"""|--[^\n]*|/\*.*?\*/|`((?:[^`]|``)*)`""",
    re.DOTALL,
)
"""Literals, names and comments in DuckDB's SQL, and Spark's names in backticks."""


def replace_backticks(sql: str) -> str:
    """Replace backticks around names by double quotes.

    Literals and comments do not change.

    >>> print(replace_backticks("SELECT `a b`, 'a `b`'"))
    SELECT "a b", 'a `b`'
    """

    def replace(match: re.Match[str]) -> str:
        name = match[2]
        return match[0] if name is None else quote_sql(name.replace("``", "`"), '"')

    return QUOTED_TEXT.sub(replace, sql)


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0][:300]


def check_query(sql: str, names: Iterable[str]) -> None:
    """Refuse SQL other than one SELECT over known tables.

    Views count as tables. DuckDB's own parser decides.

    Raises:
        ConfigError: no SQL, no query, or one that reads or runs something else.
    """
    import duckdb  # noqa: PLC0415

    try:
        statements = duckdb.extract_statements(sql)
        kinds = [str(one.type).rpartition(".")[2] for one in statements]
        if kinds != ["SELECT"]:
            message = f"this is not a query: DuckDB reads it as {', '.join(kinds) or 'nothing'}"
            raise ConfigError(message, HINT)
        with _open_database().cursor() as connection:
            (text,) = connection.execute("SELECT json_serialize_sql(?)", [sql]).fetchone() or ("{}",)
    except duckdb.Error as error:
        raise ConfigError(f"not valid SQL: {_first_line(error)}", HINT) from None
    parsed = json.loads(text)
    if parsed["error"]:
        raise ConfigError(f"this SQL cannot be checked: {parsed['error_message']}", HINT)
    nodes = list(_walk_nodes(parsed))
    clauses = [node["cte_map"] for node in nodes if node.get("cte_map")]  # WITH
    query_names = {entry["key"].lower() for clause in clauses for entry in clause["map"]}
    for node in nodes:
        _check_node(node, frozenset(map(str.lower, names)) | query_names)


def _walk_nodes(value: Any) -> Iterator[dict[str, Any]]:
    """Yield every object in a parsed statement."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            yield one
        waiting += one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()


def _check_node(node: Mapping[str, Any], names: frozenset[str]) -> None:
    kind = node.get("type")
    if kind == "SHOW_REF":
        raise ConfigError("this is not a query: DuckDB reads it as SHOW or DESCRIBE", HINT)
    if kind == "BASE_TABLE":
        path = [part.lower() for part in node["qualified_name"]["path"]]
        if len(path) != 1 or path[0] not in names:
            raise ConfigError(f"no table or view '{'.'.join(path)[:200]}'", nearest(path[-1], names))
    if kind in ("FUNCTION", "WINDOW_AGGREGATE", "TABLE_FUNCTION"):
        function = node["function"] if kind == "TABLE_FUNCTION" else node
        name = str(function["function_name"]).lower()
        makes_table = kind != "TABLE_FUNCTION" or name in TABLE_FUNCTIONS
        if name in REFUSED_FUNCTIONS or function.get("schema") or not makes_table:
            message = f"function {name} is not allowed: it reads or runs more than its arguments"
            raise ConfigError(message, HINT)


def _register_tables(connection: duckdb.DuckDBPyConnection, store: ArrowStore, sql: str) -> None:
    """Register the tables and views needed by a query.

    Some need others.
    """
    views, needed = view_files(), find_names(sql)
    require_whole(store, filter(TABLES.__contains__, needed))
    total = 0
    for name, rows in store.open_datasets(filter(TABLES.__contains__, needed)).items():
        total += 0 if rows is None else rows.count_rows()
        connection.register(name, TABLES[name].arrow_schema.empty_table() if rows is None else rows)
    if total > MAX_LOCAL_ROWS:
        raise FallbackToSpark(f"{total:,} rows, up to {MAX_LOCAL_ROWS:,} are read without it")
    for name in filter(views.__contains__, needed):
        connection.execute(f"CREATE TEMP VIEW {name} AS {replace_backticks(views[name])}")


def require_whole(store: FileTables, names: Iterable[str]) -> None:
    """Refuse tables without all files, and a lost `metrics`.

    `metrics` is lost if it is missing although models were measured. In a catalog where Spark writes, only
    `metrics` is checked.

    Raises:
        StoreError: a table lacks a file named in its log, or is not there.
    """
    for name in names:
        if lost := store.list_lost_files(TABLES[name]):
            raise lost_error(name, [one.path for one in lost])
        is_gone = name == METRICS.name and not store.exists(name)
        if is_gone and store.rows(RUNS, [("status", "=", "succeeded")], ["status"]):
            raise StoreError(f"table {name} is not there, and runs of `runs` have its rows", LOST_HINT)


def find_tables(sql: str) -> list[str]:
    """Return the tables behind a statement and its views."""
    return [name for name in find_names(sql) if name in TABLES]


def find_names(sql: str) -> list[str]:
    """Return a statement's tables and views, needed ones first."""
    views, graph = view_files(), dict[str, set[str]]()
    names = {*TABLES, *views}

    def find(text: str) -> set[str]:  # a name too many does no harm
        return names.intersection(map(str.lower, re.findall(r"\w+", text)))

    waiting = find(sql)
    while waiting:
        name = waiting.pop()
        graph[name] = find(views.get(name, "")) - {name}
        waiting |= graph[name] - graph.keys()
    return list(TopologicalSorter({name: sorted(graph[name]) for name in sorted(graph)}).static_order())
