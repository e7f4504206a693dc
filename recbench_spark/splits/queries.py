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


def read_attribute(rows: pa.Table, name: str) -> pa.Array:
    """Return an attribute of each row, (r,) text; NULL: it has none."""
    column = combine_column(rows.column("attributes"))
    if pa.types.is_dictionary(column.type.key_type):
        sides = (one.dictionary_decode() for one in (column.keys, column.items))
        column = pa.MapArray.from_arrays(column.offsets, *sides)
    return pc.map_lookup(column, pa.scalar(name), "first").cast(pa.string())


def number_queries(rows: pa.Table, query: str) -> Ints:
    """Return a number for each row's query, (r,); -1: the row has none.

    Args:
        rows: rows with attributes.
        query: the log's own name of the column with queries.
    """
    codes = read_attribute(rows, query).dictionary_encode().indices
    numbers: Ints = pc.fill_null(codes, -1).to_numpy().astype(np.int64)
    return numbers
