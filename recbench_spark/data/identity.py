"""What input a number was computed from: a Delta version, else names, sizes and times of files."""

from __future__ import annotations

import re

from delta.tables import DeltaTable
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from recbench_spark.errors import DataError
from recbench_spark.shared_files import escape_path


def identity(spark: SparkSession, path: str) -> str:
    """A short text that changes whenever the data at a path change. No content is read.

    Raises:
        DataError: nothing is there.
    """
    try:
        if DeltaTable.isDeltaTable(spark, path):
            return _version(DeltaTable.forPath(spark, path))
        if _is_table(spark, path):
            return _version(DeltaTable.forName(spark, path))
        return _files(spark, path)
    except AnalysisException:
        raise DataError(
            f"nothing to read at {path}", "check the path, or the name of a Delta table"
        ) from None


def _is_table(spark: SparkSession, name: str) -> bool:
    """`schema.table` or `catalog.schema.table`, as `readers.read_table` takes them."""
    return bool(re.fullmatch(r"\w+\.\w+(\.\w+)?", name)) and spark.catalog.tableExists(name)


def _version(table: DeltaTable) -> str:
    latest = table.history(1).select("version").first()
    return f"delta:{latest.version}" if latest else "delta:empty"


def _files(spark: SparkSession, path: str) -> str:
    """Count, bytes and a hash of names, sizes and times that no order of files changes."""
    listed: DataFrame = (
        spark.read.format("binaryFile").option("recursiveFileLookup", "true").load(escape_path(path))
    )
    one = F.xxhash64("path", "length", "modificationTime").cast("decimal(38,0)")
    row = listed.agg(F.count("*").alias("n"), F.sum("length").alias("size"), F.sum(one).alias("h")).first()
    if row is None or not row.n:
        raise DataError(f"no files at {path}", "check the path")
    return f"files:{row.n}:{row['size']}:{int(row.h) % 16**12:012x}"
