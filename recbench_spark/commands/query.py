"""Ask the result tables in SQL.

    python jobs/query.py --warehouse warehouse/demo leaderboard
    python jobs/query.py --warehouse warehouse/demo "SELECT model, value FROM leaderboard WHERE k = 10"
    python jobs/query.py --warehouse warehouse/demo --list

A name means a view, a table, or one of the ready-made questions of recbench_spark/sql/queries. Nothing is
changed: a statement that is not a query over these tables and views is refused (`steps.questions`).
"""

from __future__ import annotations

import argparse

from pyspark.sql import DataFrame

from recbench_spark import cli
from recbench_spark.errors import OK, USAGE, ConfigError, nearest
from recbench_spark.schemas import TABLES
from recbench_spark.session import get_session
from recbench_spark.steps.questions import judge
from recbench_spark.store import Store, query_files, view_files


def parser() -> cli.Parser:
    """The flags of this job."""
    flags = cli.Parser(__doc__ or "")
    flags.add_argument("sql", nargs="?", help="a SELECT, or the name of a view, table or question")
    flags.add_argument("--warehouse", required=True, help="directory or catalog.schema of the tables")
    flags.add_argument("--list", action="store_true", help="list tables, views and questions")
    flags.add_argument("--limit", type=cli.count, default=50, help="rows printed (default 50)")
    flags.add_argument("--format", choices=["table", "csv"], default="table")
    return flags


def main(args: argparse.Namespace) -> int:
    """List, or run one question and print its rows."""
    if args.list or not args.sql:
        print(listing())
        return OK if args.list else USAGE
    store = Store(get_session("recbench-spark query"), args.warehouse, read_only=True)
    if not any(map(store.exists, ("runs", "manifests", "speed"))):
        raise ConfigError(f"no results in warehouse {args.warehouse}", "run jobs/nightly.py first")
    store.install_views()
    sql = statement(args.sql)
    judge(store.spark, sql, (*TABLES, *view_files()))
    show(store.spark.sql(sql), args.limit, args.format)
    return OK


def statement(text: str) -> str:
    """The SQL meant by a name or a statement."""
    text = text.strip()
    if len(text.split()) > 1:
        return text
    questions = query_files()
    known = [*TABLES, *view_files(), *questions]
    if text not in known:
        raise ConfigError(f"no view, table or question '{text}'", nearest(text, known))
    return questions.get(text, f"SELECT * FROM {text}")


def show(frame: DataFrame, limit: int, style: str) -> None:
    """Print the first rows."""
    rows = frame.limit(limit).toArrow().to_pandas()
    text = rows.to_csv(index=False) if style == "csv" else rows.to_string(index=False, na_rep="")
    print(text.rstrip("\n"))


def listing() -> str:
    """Every name that can be asked for."""
    lines = ["tables:", *(f"  {table.name:15} {table.comment}" for table in TABLES.values()), "views:"]
    lines += [f"  {name:24} {_purpose(text)}" for name, text in view_files().items()]
    lines += ["questions:", *(f"  {name:24} {_purpose(text)}" for name, text in query_files().items())]
    return "\n".join(lines)


def _purpose(text: str) -> str:
    return text.splitlines()[0].lstrip("- ")
