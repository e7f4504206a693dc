"""Query the result tables in SQL.

    python jobs/query.py --warehouse warehouse/demo leaderboard
    python jobs/query.py --warehouse warehouse/demo "SELECT model, value FROM leaderboard WHERE k = 10"
    python jobs/query.py --warehouse warehouse/demo --export results.duckdb
    python jobs/query.py --list

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

from recbench_spark import cli


def parser() -> cli.Parser:
    """Make the parser of the flags."""
    flags = cli.Parser(__doc__ or "")
    flags.add_argument("sql", nargs="?", help="a SELECT, or the name of a view, table or question")
    flags.add_argument("--warehouse", help="directory or catalog.schema of the tables; --list needs none")
    flags.add_argument("--list", action="store_true", help="list tables, views and questions")
    flags.add_argument(
        "--limit", type=cli.parse_count, help="most rows (default 50 in a table, all of them in csv)"
    )
    flags.add_argument("--format", choices=["table", "csv"], default="table", help="form of the rows")
    flags.add_argument("--export", metavar="FILE", help="copy all tables and views to this DuckDB file")
    flags.add_argument("--replace", action="store_true", help="with --export: replace an existing file")
    flags.add_argument(
        "--engine",
        choices=["auto", "local", "spark"],
        default="auto",
        help="engine: this process (DuckDB), Spark, or DuckDB for names and Spark for SELECTs (default)",
    )
    return flags


def main(args: argparse.Namespace) -> int:
    """List the queries, run one and print its rows, or export the warehouse."""
    # Imported here, so that --help and wrong flags are answered before anything is loaded.
    from recbench_spark.commands.actions import query  # noqa: PLC0415

    return query.run(args)
