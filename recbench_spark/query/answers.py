"""SQL queries of a night's steps, by the fastest engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache

import pandas as pd

from recbench_spark.errors import FallbackToSpark
from recbench_spark.query.local_engine import MAX_LOCAL_ROWS, find_names, run_query
from recbench_spark.storage.arrow_store import ArrowStore, needs_no_java, require_session
from recbench_spark.storage.file_tables import FileTables
from recbench_spark.storage.sql_quotes import quote_sql

Ask = Callable[[str], pd.DataFrame]
"""Returns a query's rows."""


def make_query_runner(store: FileTables) -> Ask:
    """Return a function from SQL to rows.

    The function runs in this process if possible, else in Spark. Without Spark it raises FallbackToSpark
    where only Spark reads a table.
    """

    @cache
    def open_store() -> ArrowStore:
        return store if isinstance(store, ArrowStore) else ArrowStore(store.root, read_only=True)

    def run_by_spark(sql: str) -> pd.DataFrame:
        by_spark = require_session(store, "a query of the night")
        by_spark.install_views(find_names(sql))
        return by_spark.spark.sql(sql).toPandas()

    def run_here(sql: str) -> pd.DataFrame:
        try:
            table = run_query(open_store(), sql, MAX_LOCAL_ROWS)
        except FallbackToSpark:
            if store.spark is None:
                raise
            return run_by_spark(sql)
        # Dates and times have the same types as from Spark.
        frame: pd.DataFrame = table.to_pandas(date_as_object=True, timestamp_as_object=False)
        return frame

    return run_here if needs_no_java(store.root) else run_by_spark


def list_texts(texts: Iterable[str]) -> str:
    """Return SQL literals with commas between; NULL for none.

    >>> list_texts(["a", "b's"])
    "'a', 'b''s'"
    """
    return ", ".join(map(quote_sql, texts)) or "NULL"
