"""Schemas of Spark's own catalog whose tables lie in a folder or an object storage.

A metastore (Hive, Glue) keeps names and places of tables; Delta's log alone says what they hold. So tasks
write files and the driver commits them at the place, as in a warehouse without a catalog, and the name in
the catalog shows the new version. Another catalog may commit itself: there Spark writes.
"""

from __future__ import annotations

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession

from recbench_spark.errors import StoreError
from recbench_spark.schemas import RUNS
from recbench_spark.storage.paths import decode_uri
from recbench_spark.storage.retries import first_line
from recbench_spark.storage.table_folders import may_have_folder
from recbench_spark.storage.table_sql import quote_text
from recbench_spark.storage.uris import is_object_storage, is_remote

HINT_ROOT = "two names and a dot are catalog.schema: write ./NAME for a folder of such a name"


def find_schema_place(spark: SparkSession, schema: str) -> str | None:
    """Return the folder or URI of a schema whose tables tasks may write; None: Spark must write them.

    Args:
        spark: the session.
        schema: `catalog.schema`.

    Raises:
        StoreError: there is no such catalog or schema.
    """
    try:
        if not spark.catalog.databaseExists(schema):
            raise StoreError(f"no schema {schema}", f"CREATE SCHEMA {schema}; {HINT_ROOT}")
        if not may_have_folder(schema):
            return None
        place = decode_uri(spark.catalog.getDatabase(schema).locationUri).rstrip("/")
    except PySparkException as error:
        raise StoreError(f"cannot open warehouse {schema}: {first_line(error)}", HINT_ROOT) from None
    if is_remote(place) and not is_object_storage(place):
        return None
    return place if _find_table(spark, f"{schema}.{RUNS.name}") in {None, f"{place}/{RUNS.name}"} else None


def register_table(spark: SparkSession, schema: str, name: str, place: str) -> None:
    """Enter a table that exists at a place into the catalog, unless its name is there.

    Raises:
        StoreError: as `is_registered`.
    """
    if not is_registered(spark, schema, name, place):
        table = f"{schema}.{name}"
        spark.sql(f"CREATE TABLE IF NOT EXISTS {table} USING delta LOCATION {quote_text(place)}")


def is_registered(spark: SparkSession, schema: str, name: str, place: str) -> bool:
    """Return whether the catalog has a table of this name.

    Raises:
        StoreError: the name is that of a table elsewhere.
    """
    table = f"{schema}.{name}"
    registered = _find_table(spark, table)
    if registered not in {None, place}:
        raise StoreError(
            f"{table} lies at {registered}, and the schema at {place.rpartition('/')[0]}",
            f"ALTER TABLE {table} RENAME TO another name, or give another schema",
        )
    return registered is not None


def _find_table(spark: SparkSession, table: str) -> str | None:
    """Return the folder or URI of a table of the catalog; None: there is no such table."""
    try:
        row = spark.sql(f"DESCRIBE DETAIL {table}").select("location").first()
    except AnalysisException:
        return None
    return None if row is None else decode_uri(row["location"]).rstrip("/")
