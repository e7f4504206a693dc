"""What items are like: vectors that lists are measured against, mapped by workers."""

from __future__ import annotations

from pyspark.sql import DataFrame

from recbench_spark.data.external_inputs import dimensions, meet, typed_features
from recbench_spark.evaluation.ranking.source_rows import vector_rows
from recbench_spark.evaluation.ranking.sources import DotSource
from recbench_spark.storage.shared_rows import share


def share_features(base: str, items: DataFrame, rows: DataFrame, what: str) -> DotSource:
    """Vectors of the items (item_id, vector), for `diversity`; items without one have all zeros."""
    typed = typed_features(rows, what)
    meet(typed, items, "item_id", (what, "catalogue"))
    return DotSource(share(base, vector_rows(items, typed)), items.count(), dimensions(typed, what))
