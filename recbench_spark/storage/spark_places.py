"""Places that Spark reaches: object storage, and schemas in its own catalog.

Such a schema's tables are plain files in a folder or an object storage. A metastore (Hive, Glue) keeps
names and places of tables; Delta's log alone tells their content. So tasks write files and the driver
commits them at the place, as in a warehouse without a catalog, and the name in the catalog shows the new
version. Another catalog may commit itself: there Spark writes.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession

from recbench_spark.core.inputs import normalise_path
from recbench_spark.engine import sessions
from recbench_spark.engine.versions import read_setting
from recbench_spark.errors import StoreError, first_line
from recbench_spark.schemas import RUNS
from recbench_spark.storage import object_access
from recbench_spark.storage.objects import require_conditional_writes, require_storage
from recbench_spark.storage.table_folders import may_have_folder
from recbench_spark.storage.table_scans import find_partition, is_delta_table
from recbench_spark.storage.table_sql import quote_text
from recbench_spark.storage.uris import HDFS, arrow_uri, decode_uri, is_object_storage, read_scheme

HINT_ROOT = "two names and a dot are catalog.schema: write ./NAME for a folder of such a name"


def is_delta(spark: SparkSession, place: str) -> bool:
    """Check whether a place holds a Delta table or partition.

    Delta itself answers where it can.
    """
    if sessions.is_connect(spark):  # the server may lack Delta's part of the protocol
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
    hadoop, options = sessions.read_hadoop(spark), object_access.read_access(place).options
    if "AWS_ENDPOINT_URL" not in options:
        return
    missing = [key for key in object_access.HADOOP_ADDRESS if not hadoop.get(key)]
    if missing:
        settings = " ".join(
            f"--conf spark.hadoop.{key}={options[object_access.HADOOP_ADDRESS[key]]}" for key in missing
        )
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


# ---------------------------------------- object storage


def hadoop_uri(spark: SparkSession, uri: str) -> str:
    """Return a URI as this session's Hadoop names it.

    Hadoop's `s3a` is the `s3` of all others. Where Hadoop has its own file system for `s3`, as on EMR, the
    URI stays. A URI of HDFS gets its host if it lacks one, since workers may have no configuration of
    Hadoop.
    """
    scheme, _, rest = uri.partition("://")
    hadoop = sessions.read_hadoop(spark)
    if scheme == HDFS and rest.startswith("/"):
        root = hadoop.get("fs.defaultFS") or ""
        return f"{root.rstrip('/')}{rest}" if root.startswith(f"{HDFS}://") else arrow_uri(uri)
    stays = read_scheme(uri) != "s3" or (scheme == "s3" and hadoop.get("fs.s3.impl"))
    return uri if stays else f"s3a://{rest}"


def share_access(spark: SparkSession, root: str) -> None:
    """Give Python workers the keys to an object storage.

    The keys go with each task, and stand in no setting: Spark shows its settings in its page, event log and
    plans, but not the workers' environment. The driver too uses keys from Hadoop's configuration
    (`fs.s3a.access.key`). A later call gives renewed keys to the tasks of later jobs, and removes the
    earlier ones. Hadoop itself looks for keys in the environment, but not for address and region, so it
    gets these from here. Other storages need nothing.
    """
    if not is_object_storage(root):
        return
    hadoop = sessions.read_hadoop(spark)
    object_access.adopt_hadoop(root, hadoop.get)
    options = object_access.read_access(root).options
    object_access.renew_variables(sessions.open_task_environment(spark), options)
    for setting, name in object_access.HADOOP_ADDRESS.items():
        if name in options and not hadoop.get(setting):
            hadoop.set(setting, options[name])


JARS = {
    "s3": "org.apache.hadoop:hadoop-aws:{hadoop}",
    "abfs": "org.apache.hadoop:hadoop-azure:{hadoop}",
    "abfss": "org.apache.hadoop:hadoop-azure:{hadoop}",
    "gs": "com.google.cloud.bigdataoss:gcs-connector:hadoop3-2.2.32",
}
"""Packages for Hadoop, and so for Spark, to read an object storage."""


def require_jars(spark: SparkSession, place: str) -> None:
    """Check that this session's Hadoop can read an object storage.

    By Connect, its server knows.

    Raises:
        StoreError: a jar is missing; the hint has the line to add.
    """
    if not is_object_storage(place) or sessions.is_connect(spark):
        return
    hadoop, scheme = sessions.open_java(spark).org.apache.hadoop, place.partition("://")[0]
    try:
        hadoop.fs.FileSystem.getFileSystemClass(scheme, sessions.read_hadoop(spark))
    except sessions.Py4JJavaError:
        package = JARS[read_scheme(place)].format(hadoop=hadoop.util.VersionInfo.getVersion())
        message = f"this session of Spark cannot read {scheme}://: the jar of {package} is missing"
        if read_scheme(place) == "s3":
            hint = (
                "spark-submit --properties-file conf/spark/s3.conf, or set RECBENCH_SPARK_PROPERTIES to it"
            )
        else:
            hint = f"add {package} to spark.jars.packages"
        raise StoreError(message, hint) from None


def check_storage(spark: SparkSession, root: str, read_only: bool) -> None:
    """Check that object storage can be read, or also written.

    Writing tables needs a conditional write.

    Raises:
        StoreError: it does not answer, refuses, or has no such write; or this session commits in another
            way.
    """
    require_storage(root)
    if read_only:
        return
    for key in (f"spark.delta.logStore.{scheme}.impl" for scheme in ("s3", "s3a", "s3n")):
        if "DynamoDB" in (read_setting(spark, key) or ""):
            raise StoreError(
                f"{key} keeps locks in DynamoDB, and tables of {root} have conditional writes",
                "remove this setting, and let no job with it write to the warehouse",
            )
    require_conditional_writes(root)
