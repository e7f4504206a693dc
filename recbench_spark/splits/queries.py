"""Queries of a log's rows, kept as an attribute.

Tasks import this module: the column's name arrives as a text, without the settings.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.core.arrays import Ints
from recbench_spark.sources.arrow_rows import combine_column

QUERY_LABEL = "dataset.query"
"""Key among a block's slices: the query of each truth item."""


def number_queries(rows: pa.Table, query: str) -> Ints:
    """Return a number for each row's query, (r,); -1: the row has none.

    Args:
        rows: rows with attributes.
        query: the log's own name of the column with queries.
    """
    texts = pc.map_lookup(combine_column(rows.column("attributes")), pa.scalar(query), "first")
    codes = texts.cast(pa.string()).dictionary_encode().indices
    numbers: Ints = pc.fill_null(codes, -1).to_numpy().astype(np.int64)
    return numbers
