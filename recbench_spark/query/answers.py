"""Questions in SQL that steps of a night ask of its warehouse: tables and views, by the quickest engine."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd

from recbench_spark.errors import FallbackToSpark
from recbench_spark.query.local_engine import MAX_LOCAL_ROWS, run_query
from recbench_spark.storage.arrow_store import ArrowStore, is_local_folder
from recbench_spark.storage.store import Store


def make_query_runner(store: Store) -> Callable[[str], pd.DataFrame]:
    """Return a function from SQL to rows, answered in this process where it reaches the warehouse."""

    def by_spark(sql: str) -> pd.DataFrame:
        store.install_views()
        return store.spark.sql(sql).toPandas()

    def here(sql: str) -> pd.DataFrame:
        try:
            found = run_query(ArrowStore(store.root, read_only=True), sql, MAX_LOCAL_ROWS)
        except FallbackToSpark:
            return by_spark(sql)
        # Dates and times as Spark hands them over.
        frame: pd.DataFrame = found.to_pandas(date_as_object=True, timestamp_as_object=False)
        return frame

    return here if store.folder is not None and is_local_folder(store.root) else by_spark
