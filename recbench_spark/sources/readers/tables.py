"""Read tables which Spark alone reads.

They are in a catalog, have some Delta features, or lie on Hadoop's storage.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as F

from recbench_spark.core.inputs import Options, find_version, time_travel_options
from recbench_spark.engine.versions import read_setting
from recbench_spark.sources.paths import check_path, exists
from recbench_spark.sources.readers.paths import explain_errors, is_table, reach_storage
from recbench_spark.sources.text_layouts import REPLACEMENT
from recbench_spark.sources.text_pieces import FILE
from recbench_spark.storage.shared_arrays import escape_path
from recbench_spark.storage.spark_places import is_delta, share_access
from recbench_spark.storage.uris import is_object_storage


def prepare_session(spark: SparkSession, path: str) -> bool:
    """Let a session reach a path's storage.

    The result says whether U+FFFD is a letter in its text.
    """
    if is_object_storage(path):
        share_access(spark, path)
    return read_setting(spark, REPLACEMENT) == "keep"


def open_table(spark: SparkSession, path: str, options: Options | None = None) -> DataFrame:
    """Open a catalog's table, Delta, or Parquet.

    With options, each row names its file (FILE).

    Raises:
        MissingError: there is no such path or table. DataError: it cannot be read.
    """
    reach_storage(spark, path)
    reader = open_reader(spark, path, options)
    if not exists(path) and is_table(spark, path):
        return reader.table(path)
    check_path(path)
    with explain_errors(path):
        if is_delta(spark, path):
            frame = reader.format("delta").load(path)
        else:
            frame = reader.option("mergeSchema", "true").parquet(escape_path(path))
        return frame if options is None else frame.select("*", F.col("_metadata.file_path").alias(FILE))


def open_reader(spark: SparkSession, path: str, options: Options | None = None) -> DataFrameReader:
    """Return a reader with options.

    A Delta table is read in the version whose identity was recorded.
    """
    settings, version = dict(options or {}), find_version(path, options)
    if version is not None:
        settings = {
            name: value for name, value in settings.items() if name not in time_travel_options(settings)
        }
        settings["versionAsOf"] = str(version)
    return spark.read.options(**settings)
