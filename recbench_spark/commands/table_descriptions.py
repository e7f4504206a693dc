"""Lines of a dry run about tables."""

from __future__ import annotations

from collections.abc import Sequence

from recbench_spark.errors import FallbackToSpark
from recbench_spark.sources import arrow_files
from recbench_spark.sources.table_pieces import detect_kind
from recbench_spark.storage.local_files import COMPRESSED, require_columns

KNOWN_LATER = "known when Spark starts"
"""Size for a table which only Spark can read."""


def describe_table(name: str, path: str, columns: Sequence[str], *, rows: bool = True) -> str:
    """Return a line with the row count for a table.

    The table must have these columns.

    Raises:
        MissingError: it does not exist. SchemaError: it lacks a column.
    """
    try:
        unit = "lines" if detect_kind(path) == "text" else "rows"
        if columns:
            require_columns(arrow_files.read_column_names(path), columns, f"{name} {path}", path)
        # The number of lines of compressed text is not known.
        is_counted = rows and not path.endswith(COMPRESSED)
        size = f"{arrow_files.estimate_rows(path):,} {unit}" if is_counted else "is there"
    except FallbackToSpark:
        size = KNOWN_LATER
    return f"{name:<11} {path}: {size}"
