"""Query the result tables in SQL.

    recbench query --warehouse warehouse/demo leaderboard
    recbench query --warehouse warehouse/demo "SELECT model, value FROM leaderboard WHERE k = 10"
    recbench query --warehouse warehouse/demo --export results.duckdb
    recbench query --list

A name means a view, a table, or one of the ready-made questions of recbench_spark/sql/queries. Nothing is
changed: a statement that is not a query over these tables and views is refused (`query.sql_guard`).

Names are answered in this process where the warehouse is a folder of this machine, or a URI of object
storage (s3://, gs://, abfss://, hdfs://), and its tables are small enough, with the rows and the order of
Spark. A SELECT of your own is in Spark's SQL, or in DuckDB's with --engine local and where pyspark is
missing.

--export copies all tables and views to one DuckDB file, for its shell and for BI tools, without Java. The
file appears whole or not at all, and an existing one stays as it is without --replace.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Callable, Sequence
from typing import Any

from recbench_spark import cli
from recbench_spark.core.extras import has_module
from recbench_spark.errors import OK, USAGE, ConfigError, FallbackToSpark, nearest

if __name__ != "flags":
    import pyarrow as pa

    from recbench_spark.commands.warehouses import require_warehouse
    from recbench_spark.engine.versions import collect_arrow
    from recbench_spark.query import local_engine
    from recbench_spark.query.command_lines import command_line
    from recbench_spark.query.export import export_warehouse
    from recbench_spark.schemas import COMPARISONS, RUNS, TABLES
    from recbench_spark.storage.arrow_store import ArrowStore, needs_no_java
    from recbench_spark.storage.file_tables import RowReader
    from recbench_spark.storage.publish import local_path
    from recbench_spark.storage.table_sql import query_files, view_files


def parser() -> cli.Parser:
    """Make the command's parser."""
    flags = cli.Parser(__doc__ or "")
    add = flags.add_argument
    add("sql", nargs="?", help="a SELECT, or the name of a view, table or question")
    cli.add_flags(flags, "warehouse", required=False)
    add("--list", action="store_true", help="list tables, views and questions")
    add("--limit", type=cli.parse_count, help="most rows (default 50 in a table, all of them in csv)")
    add("--format", choices=["table", "csv"], default="table", help="form of the rows")
    add("--export", metavar="FILE", help="copy all tables and views to this DuckDB file")
    add("--replace", action="store_true", help="with --export: replace an existing file")
    cli.add_flags(flags, "engine", help="DuckDB (local), Spark, or DuckDB for names and Spark for SELECTs")
    return flags


def main(args: argparse.Namespace) -> int:
    """List the queries, run one, or export the warehouse.

    A query's rows are printed.
    """
    if args.export is not None:
        return export(args)
    if args.replace:
        raise ConfigError("--replace goes with --export alone", "leave it out")
    if args.list or not args.sql:
        print(list_queries())
        return OK if args.list else USAGE
    sql = read_statement(args.sql)
    _require_named_warehouse(args)
    try:
        if not _is_local(args, sql):
            return _answer_on_spark(args, sql)
        return _answer_locally(args, sql)
    except FallbackToSpark as error:
        if args.engine == "local":
            raise ConfigError(f"--engine local: {error.message}", "use --engine spark") from None
        print(f"starting Spark: {error.message}", file=sys.stderr)
        return _answer_on_spark(args, sql)


def _require_named_warehouse(args: argparse.Namespace) -> None:
    if args.warehouse is None:
        raise ConfigError("the following arguments are required: --warehouse", "--list needs none")
    require_warehouse(args.warehouse)


def export(args: argparse.Namespace) -> int:
    """Copy all tables and views to a DuckDB file.

    The job then prints the file's content and how to open it.
    """
    if args.sql or args.list:
        raise ConfigError("--export takes no query", "it copies all tables and views; query the file then")
    _require_named_warehouse(args)
    if not needs_no_java(args.warehouse):
        message = f"--export: warehouse {args.warehouse} is no folder and no object storage"
        raise ConfigError(message, "query it with --engine spark, or copy the warehouse to a folder")
    store = ArrowStore(args.warehouse, read_only=True)
    _refuse_empty(args.warehouse, store.exists)
    local_engine.require_whole(store, TABLES)
    target = local_path(args.export)
    try:
        made = export_warehouse(store, target, replace=args.replace)
    except FallbackToSpark as error:
        raise ConfigError(f"--export: {error.message}", "query it with --engine spark") from None
    print(f"{target}: {made.describe()}")
    print(f"open it: {shlex.join(['duckdb', '-readonly', str(target)])}")
    return OK


def _is_local(args: argparse.Namespace, sql: str) -> bool:
    """Return whether this process answers the query without Spark."""
    if args.engine == "auto":
        name = args.sql.strip()
        in_process = len(name.split()) == 1 and local_engine.is_portable(name, sql)
        if not in_process and not has_module("pyspark"):
            print("engine local: pyspark is not installed, so this is SQL of DuckDB", file=sys.stderr)
            in_process = True
        return in_process and needs_no_java(args.warehouse)
    if args.engine == "local" and not needs_no_java(args.warehouse):
        raise FallbackToSpark(f"warehouse {args.warehouse} is no folder and no object storage")
    return bool(args.engine == "local")


def _answer_locally(args: argparse.Namespace, sql: str) -> int:
    store = ArrowStore(args.warehouse, read_only=True)
    _refuse_empty(args.warehouse, store.exists)
    if sql != args.sql.strip():
        sql = local_engine.translate_question(args.sql.strip(), sql)
    rows = local_engine.run_query(store, sql, choose_limit(args))
    print_rows(rows, args.format)
    if rows.num_rows == choose_limit(args):
        report_hidden_rows(rows, local_engine.count_query_rows(store, sql))
    if not rows.num_rows:
        report_empty_tables(
            sql, lambda name: not store.exists(name) or not store.dataset(TABLES[name]).count_rows()
        )
    suggest_comparisons(args, store.rows)
    return OK


def _answer_on_spark(args: argparse.Namespace, sql: str) -> int:
    from recbench_spark.query.sql_guard import check_query  # noqa: PLC0415
    from recbench_spark.runtime.session import get_session  # noqa: PLC0415
    from recbench_spark.storage.store import Store  # noqa: PLC0415

    if needs_no_java(args.warehouse):
        local_engine.require_whole(
            ArrowStore(args.warehouse, read_only=True), local_engine.find_tables(sql)
        )
    store = Store(get_session("recbench-spark query"), args.warehouse, read_only=True)
    _refuse_empty(args.warehouse, store.exists)
    if not needs_no_java(args.warehouse):
        local_engine.require_whole(store, local_engine.find_tables(sql))
    store.install_views(local_engine.find_names(sql))
    if sql == args.sql.strip():  # ready-made questions need no guard
        check_query(store.spark, sql, (*TABLES, *view_files()))
    answer, limit = store.spark.sql(sql), choose_limit(args)
    rows = collect_arrow(answer if limit is None else answer.limit(limit))
    print_rows(rows, args.format)
    if rows.num_rows == limit:
        report_hidden_rows(rows, answer.count())
    if not rows.num_rows:
        report_empty_tables(sql, lambda name: store.read(TABLES[name]).isEmpty())
    suggest_comparisons(args, store.rows)
    return OK


TABLE_ROWS = 50
"""Rows in a printed table, unless --limit says otherwise.

Tables are for people; CSV has no such limit.
"""


def choose_limit(args: argparse.Namespace) -> int | None:
    """Return the largest number of rows to print.

    None prints all rows, as programs expect from CSV.
    """
    default = TABLE_ROWS if args.format == "table" else None
    return default if args.limit is None else int(args.limit)


def report_hidden_rows(rows: pa.Table, total: int) -> None:
    """Print on stderr how many rows are hidden, if any."""
    if total > rows.num_rows:
        hidden = f"{rows.num_rows:,} of {total:,} rows: {total - rows.num_rows:,} more with --limit {total}"
        print(f"{hidden}; --format csv has all", file=sys.stderr)


TABLE_SOURCES = {
    "comparisons": "the benchmark file has the line 'comparisons: {baseline: popular}' (a model of yours) "
    "or a section regressions: [{metric: ndcg, k: 10, drop: 0.01}]",
    "slice_comparisons": "the benchmark file has a section "
    "regressions: [{metric: ndcg, k: 10, drop: 0.01, slice: country}] (a slice of users)",
    **dict.fromkeys(
        ("user_spreads", "group_gaps", "preferences"),
        "the benchmark file has the line 'comparisons: {users: true}'; gaps are between slices of users",
    ),
    "fronts": "the benchmark file has the line 'comparisons: {fronts: [[ndcg@10, entropy@10]]}'",
    "changes": "the benchmark file has the line 'comparisons: {baseline: popular}' (a model of yours), "
    "from the second night on",
    "paradoxes": "the benchmark file has the line 'paradoxes: {}'",
    "flips": "the benchmark file has the line 'paradoxes: {}'",
    "multiverse": "the benchmark file has 'multiverse: true' in its section evaluation, "
    "as recbench multiverse sets it",
    "ceilings": "the benchmark file has candidates: given in its definition, or a model of kind lists "
    "or retrieved",
    "user_metrics": "the benchmark file has 'user_metrics: true' in its section evaluation",
    **dict.fromkeys(
        ("learning_curves", "curve_values", "curve_crossings"),
        "the benchmark file has 'learning_curve: {given: 20}' in its section evaluation, and users are "
        "held out",
    ),
    "curve_rankings": "the benchmark file has 'learning_curve: {given: 20, rankings: true}' in its section "
    "evaluation",
    "graph_runs": "a model of the benchmark file is of kind graph, or recbench embed has run",
    "replays": "recbench replay has run",
    "fits": "recbench benchmark has run",
    "trials": "recbench tune has run",
    "boards": "recbench board has run",
    "verdicts": "recbench board has run",
    "submissions": "recbench bundle has scored a bundle",
}
"""Tables which some nights leave empty, and when they fill."""


def report_empty_tables(sql: str, is_empty: Callable[[str], bool]) -> None:
    """Print on stderr which tables in a query are empty.

    The text also says which job fills them.
    """
    for name in local_engine.find_tables(sql):
        if name in TABLE_SOURCES and is_empty(name):
            reason = f"no rows: the table {name} is empty; it is filled where {TABLE_SOURCES[name]}"
            print(reason, file=sys.stderr)


COMPARING = "which_differences_hold"
"""The question whose rows only suites with comparisons have."""


def suggest_comparisons(args: argparse.Namespace, read: RowReader) -> None:
    """Print on stderr how each suite without comparisons gets them.

    The text has lines to add, and a command for comparing now.

    Args:
        args: the flags; nothing is printed for another question than COMPARING.
        read: reads rows in the warehouse.
    """
    if args.sql.strip() != COMPARING:
        return
    compared = {row["suite"] for row in read(COMPARISONS, [], ["suite"])}
    models: dict[str, set[str]] = {}
    for row in read(RUNS, [("status", "=", "succeeded")], ["suite", "model", "model_kind"]):
        if row["suite"] not in compared and row["model_kind"] != "published":
            models.setdefault(row["suite"], set()).add(row["model"])
    for suite, names in sorted(models.items()):
        if len(names) > 1:
            print(describe_missing(suite, sorted(names), args.warehouse), file=sys.stderr)


def describe_missing(suite: str, models: Sequence[str], warehouse: str) -> str:
    """Return how a suite gets comparisons.

    The text has lines for its benchmark file, and a command for two models.
    """
    baseline = "popular" if "popular" in models else models[0]
    other = next(name for name in models if name != baseline)
    return (
        f"suite {suite} has no comparisons. Add these lines to its benchmark file:\n"
        f"  comparisons: {{baseline: {baseline}}}\n"
        "or compare two of its models now:\n"
        f"  {command_line('compare', '--warehouse', warehouse, '--suite', suite, other, baseline)}"
    )


def _refuse_empty(warehouse: str, exists: Callable[[str], bool]) -> None:
    if not any(map(exists, TABLES)):
        raise ConfigError(f"no results in warehouse {warehouse}", "run recbench nightly first")


def read_statement(text: str) -> str:
    """Return the SQL for a name or a statement.

    A view's rows are sorted; a table's rows are not.
    """
    text = text.strip()
    if len(text.split()) > 1:
        return text
    questions, views = query_files(), view_files()
    known = [*TABLES, *views, *questions]
    if text not in known:
        raise ConfigError(f"no view, table or question '{text}'", nearest(text, known))
    order = f" ORDER BY {ORDERS.get(text, 'ALL')}" if text in views else ""
    return questions.get(text, f"SELECT * FROM {text}{order}")


ORDERS = dict.fromkeys(("board_entries", "standing_entries"), "board, entry_id")
"""Sort columns for views with a map.

A map itself has no order.
"""


def print_rows(rows: pa.Table, style: str) -> None:
    """Print rows as a table or as CSV.

    Lists and maps are JSON in CSV.
    """
    rows = convert_to_utc(rows)
    if style == "csv":  # as objects, whole numbers beside NULL keep their digits
        frame = write_nested_cells(rows).to_pandas(integer_object_nulls=True)
        print(frame.to_csv(index=False).rstrip("\n"))
    else:
        print(rows.to_pandas().to_string(index=False, na_rep=""))


def write_nested_cells(rows: pa.Table) -> pa.Table:
    """Return the rows with lists, structs and maps as JSON.

    The JSON is complete, and has one line.
    """
    for at, field in enumerate(rows.schema):
        if pa.types.is_nested(field.type):
            cells = (make_plain(cell, field.type) for cell in rows.column(at).to_pylist())
            texts = [None if c is None else json.dumps(c, ensure_ascii=False, default=str) for c in cells]
            rows = rows.set_column(at, field.name, pa.array(texts, pa.string()))
    return rows


def make_plain(cell: Any, kind: pa.DataType) -> Any:
    """Return an Arrow value with maps as objects.

    >>> make_plain([("a", 1)], pa.map_(pa.string(), pa.int64()))
    {'a': 1}
    """
    if cell is None or not pa.types.is_nested(kind):
        return cell
    if pa.types.is_map(kind):
        return {str(key): make_plain(value, kind.item_type) for key, value in cell}
    if pa.types.is_struct(kind):
        return {field.name: make_plain(cell[field.name], field.type) for field in kind}
    return [make_plain(one, kind.value_type) for one in cell]


def convert_to_utc(rows: pa.Table) -> pa.Table:
    """Return the rows with all timestamps in UTC.

    Both engines then print the same.
    """
    kinds = [
        pa.field(field.name, pa.timestamp("us", "UTC"))
        if pa.types.is_timestamp(field.type) and field.type.tz
        else field
        for field in rows.schema
    ]
    return rows.cast(pa.schema(kinds))


def list_queries() -> str:
    """List the names of tables, views and queries."""
    lines = ["tables:", *(f"  {table.name:15} {table.comment}" for table in TABLES.values()), "views:"]
    lines += [f"  {name:24} {_read_purpose(text)}" for name, text in view_files().items()]
    lines += ["questions:", *(f"  {name:24} {_read_purpose(text)}" for name, text in query_files().items())]
    return "\n".join(lines)


def _read_purpose(text: str) -> str:
    return text.splitlines()[0].lstrip("- ")
