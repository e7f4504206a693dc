"""Schemas in Spark's own catalog, with tables as plain files.

The files lie in a folder or an object storage. A metastore (Hive, Glue) keeps names and places of tables;
Delta's log alone tells their content. So tasks write files and the driver commits them at the place, as in
a warehouse without a catalog, and the name in the catalog shows the new version. Another catalog may commit
itself: there Spark writes.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession

from recbench_spark.core.inputs import normalise_path
from recbench_spark.engine.sessions import is_connect, read_hadoop
from recbench_spark.errors import StoreError
from recbench_spark.schemas import RUNS
from recbench_spark.storage.object_access import HADOOP_ADDRESS, read_access
from recbench_spark.storage.retries import first_line
from recbench_spark.storage.table_folders import may_have_folder
from recbench_spark.storage.table_scans import find_partition, is_delta_table
from recbench_spark.storage.table_sql import quote_text
from recbench_spark.storage.uris import arrow_uri, decode_uri, is_object_storage

HINT_ROOT = "two names and a dot are catalog.schema: write ./NAME for a folder of such a name"


def is_delta(spark: SparkSession, place: str) -> bool:
    """Check whether a place holds a Delta table or partition.

    Delta itself answers where it can.
    """
    if is_connect(spark):  # the server may lack Delta's part of the protocol
        folder = normalise_path(place)
        return is_delta_table(folder) or find_partition(folder) is not None
    from delta.tables import DeltaTable  # noqa: PLC0415

    return bool(DeltaTable.isDeltaTable(spark, place))


def find_schema_place(spark: SparkSession, schema: str) -> str | None:
    """Return a schema's folder or URI; None: Spark must write.

    Otherwise tasks may write its tables.

    Args:
        spark: the session.
        schema: `catalog.schema`.

    Raises:
        StoreError: there is no such catalog or schema, or its table `runs` cannot be read.
    """
    try:
        if not spark.catalog.databaseExists(schema):
            raise StoreError(f"no schema {schema}", f"CREATE SCHEMA {schema}; {HINT_ROOT}")
        if not may_have_folder(schema):
            return None
        place = resolve_location(spark.catalog.getDatabase(schema).locationUri)
    except PySparkException as error:
        raise StoreError(f"cannot open warehouse {schema}: {first_line(error)}", HINT_ROOT) from None
    if place is None:
        return None
    runs = find_table(spark, f"{schema}.{RUNS.name}")
    return place if runs in {None, f"{place}/{RUNS.name}"} else None


def require_address(spark: SparkSession, schema: str, place: str) -> None:
    """Check that a schema's metastore has the S3 server's address.

    The server is the one to which the job writes. A metastore copies Hadoop's settings when the session
    begins, and reads no address from the environment.

    Raises:
        StoreError: the metastore lacks the address; the hint has the settings.
    """
    hadoop, options = read_hadoop(spark), read_access(place).options
    if "AWS_ENDPOINT_URL" not in options:
        return
    missing = [key for key in HADOOP_ADDRESS if not hadoop.get(key)]
    if missing:
        settings = " ".join(f"--conf spark.hadoop.{key}={options[HADOOP_ADDRESS[key]]}" for key in missing)
        raise StoreError(
            f"schema {schema} lies at {place}, and its metastore has no address of that server", settings
        )


def resolve_location(location: str | None) -> str | None:
    """Return one name for a place that Spark encodes.

    By this name places can be compared: a folder's links are followed, and `s3a://` is `s3://`. None: the
    place is neither a folder of this machine nor in an object storage.
    """
    if location is None:
        return None
    if is_object_storage(location):
        return arrow_uri(unquote(location)).rstrip("/")
    path = decode_uri(location)
    return str(Path(path).resolve()) if path.startswith("/") else None


def register_table(spark: SparkSession, schema: str, name: str, place: str) -> None:
    """Enter an existing table into the catalog, once.

    A name that is there stays. Another job may enter it at the same moment.

    Raises:
        StoreError: as `is_registered`, or the catalog refuses.
    """
    if is_registered(spark, schema, name, place):
        return
    table = f"{schema}.{name}"
    try:
        spark.sql(f"CREATE TABLE IF NOT EXISTS {table} USING delta LOCATION {quote_text(place)}")
    except PySparkException as error:
        with suppress(PySparkException):
            if is_registered(spark, schema, name, place):
                return
        raise StoreError(f"cannot enter {table} at {place}: {first_line(error)}", "run again") from None


def is_registered(spark: SparkSession, schema: str, name: str, place: str) -> bool:
    """Check whether the catalog has a table under this name.

    Raises:
        StoreError: a table elsewhere has the name.
    """
    table = f"{schema}.{name}"
    registered = find_table(spark, table)
    if registered not in {None, resolve_location(place)}:
        raise StoreError(
            f"{table} lies at {registered or 'no place'}, and the schema at {place.rpartition('/')[0]}",
            f"ALTER TABLE {table} RENAME TO another name, or give another schema",
        )
    return registered is not None


def find_table(spark: SparkSession, table: str) -> str | None:
    """Return a catalog table's place; None: no such table.

    The place is empty where the table is none of ours.

    Raises:
        StoreError: the table exists, and Delta cannot describe it.
    """
    if not spark.catalog.tableExists(table):
        return None
    try:
        row = spark.sql(f"DESCRIBE DETAIL {table}").select("location").first()
    except AnalysisException as error:
        raise StoreError(
            f"{table} is in the catalog, and cannot be read: {first_line(error)}",
            f"restore its files, or DROP TABLE {table}",
        ) from None
    return "" if row is None else resolve_location(row["location"]) or ""
