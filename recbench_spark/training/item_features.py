"""Feature vectors of items as files that workers map; metrics of lists such as diversity use them."""

from __future__ import annotations

from pyspark.sql import DataFrame

from recbench_spark.data.external_inputs import check_common_ids, convert_features, count_dimensions
from recbench_spark.evaluation.ranking.source_rows import vector_rows
from recbench_spark.evaluation.ranking.sources import DotSource
from recbench_spark.storage.shared_rows import share_rows


def share_features(base: str, items: DataFrame, rows: DataFrame, what: str) -> DotSource:
    """Share the vectors of the items (item_id, vector) for `diversity`; items without one get zeros."""
    typed = convert_features(rows, what)
    check_common_ids(typed, items, "item_id", (what, "catalogue"))
    return DotSource(
        share_rows(base, vector_rows(items, typed)), items.count(), count_dimensions(typed, what)
    )
