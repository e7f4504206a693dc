"""Tables that Spark alone reads: of a catalog, of some features of Delta, and on Hadoop's storage."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from recbench_spark.data.paths import check_path, exists
from recbench_spark.data.readers.files import keeps_replacements, open_reader
from recbench_spark.data.readers.paths import explain_errors, is_table, reach_storage
from recbench_spark.storage.catalogs import is_delta
from recbench_spark.storage.shared_arrays import escape_path
from recbench_spark.storage.uris import is_object_storage
from recbench_spark.storage.warehouse import share_access


def prepare_session(spark: SparkSession, path: str) -> bool:
    """Let a session reach the storage of a path, and return whether U+FFFD is a letter in its text."""
    if is_object_storage(path):
        share_access(spark, path)
    return keeps_replacements(spark)


def open_table(spark: SparkSession, path: str) -> DataFrame:
    """Open a table of the catalog, Delta, or Parquet.

    Raises:
        MissingError: there is no such path or table. DataError: it cannot be read.
    """
    reach_storage(spark, path)
    reader = open_reader(spark, path)
    if not exists(path) and is_table(spark, path):
        return reader.table(path)
    check_path(path)
    with explain_errors(path):
        if is_delta(spark, path):
            return reader.format("delta").load(path)
        return reader.option("mergeSchema", "true").parquet(escape_path(path))
