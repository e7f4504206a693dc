"""Read tables of lists, scores, ground truth, embeddings and attributes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import and_

from pyspark.sql import DataFrame, SparkSession

from recbench_spark.data.column_names import ColumnNames
from recbench_spark.data.paths import check_path, exists
from recbench_spark.data.readers.files import column, open_reader, read_blanks, read_fields
from recbench_spark.data.readers.parquet import read_parquet
from recbench_spark.data.readers.paths import explain_errors, is_table, reach_storage
from recbench_spark.data.readers.values import Checks, Value
from recbench_spark.data.text_layouts import LAYOUTS, NUMBER_COLUMNS, OPTIONAL_COLUMNS, Layout
from recbench_spark.data.text_pieces import FILE, HIDDEN
from recbench_spark.data.trec_files import FIELDS, describe_line, find_format
from recbench_spark.inputs import normalise_path
from recbench_spark.storage.catalogs import is_delta
from recbench_spark.storage.local_files import (
    bare_name,
    refuse_misspelt,
    require_columns,
    text_separator,
)
from recbench_spark.storage.partitions import find_partition


def read_table(
    spark: SparkSession,
    path: str,
    columns_required: Sequence[str],
    what: str,
    columns: ColumnNames | None = None,
) -> DataFrame:
    """Read a table at a path, or `catalog.schema.table` where the path does not exist.

    A folder with `_delta_log` is Delta; `.csv`, `.tsv` (`.gz`, `.bz2`), or a folder of them, is CSV with a
    header; MovieLens' user and item files are recognised by name, and runs and judgements of TREC on this
    machine by their first lines; everything else is Parquet. Ids become text, the columns of NUMBERS
    float64, `rank` int64, `vector` an array of float32 (in CSV a JSON array); other columns stay as they
    are. NULL stays NULL. With `columns` the table may have the caller's
    names of columns, or the usual ones of other libraries.

    Raises:
        ConfigError: there is no such path or table.
        SchemaError: a required column is missing, or has a type that cannot be read.
        DataError: a value is not a number, or a line has too many or too few fields.
    """
    reach_storage(spark, path)
    frame, line = _open_table(
        spark, path, [*columns_required, *NUMBER_COLUMNS, "user_id", "item_id", "rank", "vector"]
    )
    where = f"{what} {path}"
    if columns is not None:
        frame = columns.rename_frame(frame, what)
    visible = frame.drop(*HIDDEN)
    require_columns(visible.columns, columns_required, where, path)
    refuse_misspelt(visible.columns, OPTIONAL_COLUMNS.get(what.partition(" of ")[0], ()), where)
    values = {name: _convert_column(frame, name, where, text_file=bool(line)) for name in visible.columns}
    if line:
        plain = [name for name in columns_required if not values[name].expected]
        values |= {name: Value.field(frame, name) for name in plain}
    checks = Checks(frame, [*([Value.line(line)] if line else []), *values.values()], where)
    if checks.values:
        checks.refuse(checks.count())
    return frame.select(
        *(value.column.alias(name, metadata=dict(value.notes)) for name, value in values.items())
    )


def _open_table(spark: SparkSession, path: str, wanted: Sequence[str]) -> tuple[DataFrame, str]:
    """Open the table as it is stored; for text, return also the expected layout of its lines."""
    if not exists(path) and is_table(spark, path):
        return open_reader(spark, path).table(path), ""
    check_path(path)
    kind = find_format(path)
    if kind:
        return read_blanks(spark, path, FIELDS[kind]), describe_line(kind)
    layout = _find_layout(path)
    if layout:
        text = read_fields(spark, path, layout)
        return text.frame, text.line
    with explain_errors(path):
        if (partition := find_partition(path)) is not None:
            frame = open_reader(spark, path).format("delta").load(normalise_path(partition.table))
            tests = [column(name).cast("string") == value for name, value in partition.values.items()]
            return frame.where(reduce(and_, tests)), ""
        if is_delta(spark, path):
            return open_reader(spark, path).format("delta").load(path), ""
    return read_parquet(spark, path, wanted).drop(FILE), ""


def _find_layout(path: str) -> Layout | None:
    """Return the layout of a text file or of a folder of them; None for everything else."""
    name = bare_name(path)
    if name in LAYOUTS:
        return LAYOUTS[name]
    sep = text_separator(path)
    return Layout(sep) if sep else None


def _convert_column(frame: DataFrame, name: str, where: str, *, text_file: bool) -> Value:
    """Convert a column by the meaning of its name."""
    if name in ("user_id", "item_id"):
        return Value.ids(frame, name, where, text_file=text_file, floats=True)
    if name in NUMBER_COLUMNS:
        return Value.number(frame, name, where, exact=True)
    if name == "rank":
        return Value.whole(frame, name, where)
    if name == "vector":
        return Value.vector(frame, name, where)
    return Value(name, column(name))
