"""Questions in SQL that steps of a night ask of its warehouse: tables and views, by the quickest engine."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd

from recbench_spark.errors import FallbackToSpark
from recbench_spark.query.local_engine import MOST_ROWS, answer
from recbench_spark.storage.arrow_store import ArrowStore, in_reach
from recbench_spark.storage.store import Store


def answers(store: Store) -> Callable[[str], pd.DataFrame]:
    """Return a function from SQL to rows, answered in this process where it reaches the warehouse."""

    def by_spark(sql: str) -> pd.DataFrame:
        store.install_views()
        return store.spark.sql(sql).toPandas()

    def here(sql: str) -> pd.DataFrame:
        try:
            found = answer(ArrowStore(store.root, read_only=True), sql, MOST_ROWS)
        except FallbackToSpark:
            return by_spark(sql)
        # Dates and times as Spark hands them over.
        frame: pd.DataFrame = found.to_pandas(date_as_object=True, timestamp_as_object=False)
        return frame

    return here if store.folder is not None and in_reach(store.root) else by_spark
