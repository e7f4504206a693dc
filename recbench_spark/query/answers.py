"""SQL queries that steps of a night run on its warehouse, by the fastest engine."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pandas as pd

from recbench_spark.errors import FallbackToSpark
from recbench_spark.query.local_engine import MAX_LOCAL_ROWS, run_query
from recbench_spark.storage.arrow_store import ArrowStore, needs_no_java
from recbench_spark.storage.store import Store


def make_query_runner(store: Store) -> Callable[[str], pd.DataFrame]:
    """Return a function from SQL to rows, which runs in this process if possible, else in Spark."""

    def run_by_spark(sql: str) -> pd.DataFrame:
        store.install_views()
        return store.spark.sql(sql).toPandas()

    @cache
    def open_store() -> ArrowStore:
        return ArrowStore(store.root, read_only=True)

    def run_here(sql: str) -> pd.DataFrame:
        try:
            table = run_query(open_store(), sql, MAX_LOCAL_ROWS)
        except FallbackToSpark:
            return run_by_spark(sql)
        # Dates and times have the types that Spark returns.
        frame: pd.DataFrame = table.to_pandas(date_as_object=True, timestamp_as_object=False)
        return frame

    return run_here if needs_no_java(store.root) else run_by_spark
