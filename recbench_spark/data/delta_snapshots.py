"""Identity of a Delta table: its id, its active files and how they are read, all from its log.

Two tables at one path, or two versions, have different files; a copy that nobody wrote to is the same
table. A version number alone says nothing: each table begins at 0, and two copies go on with equal
numbers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from recbench_spark.errors import FallbackToSpark
from recbench_spark.inputs import Options, time_travel_options
from recbench_spark.storage.delta_tables import open_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MAPPING = "delta.columnMapping.mode"

READING_PREFIXES = ("delta.columnMapping.", "__CHAR_VARCHAR_TYPE_STRING")
"""Beginnings of the metadata of a column that change how files are read; comments do not."""


class ActiveFile(NamedTuple):
    """A file of a version.

    Attributes:
        path: as the log has it.
        size: bytes.
        deleted: its deletion vector as the log has it, in JSON; empty: no row is deleted.
    """

    path: str
    size: int
    deleted: str = ""


class Snapshot(NamedTuple):
    """A version of a table, and its identity."""

    version: int
    identity: str


def read_snapshot(path: str, version: int | None = None, options: Options | None = None) -> Snapshot:
    """Return the snapshot of a table on a disk of this machine, read from its log in this process.

    Args:
        path: of the table's folder.
        version: to look at; None: what `options` choose, else the latest.
        options: of a Delta reader.

    Raises:
        FallbackToSpark: the table has features, or the options choose a version, that only Spark knows.
    """
    from deltalake.exceptions import DeltaError  # noqa: PLC0415

    try:
        table = open_table(path, _select_version(options or {}) if version is None else version)
        metadata, features = table.metadata(), table.protocol().reader_features or ()
        if metadata.configuration.get(MAPPING, "none") != "none" or "deletionVectors" in features:
            raise FallbackToSpark(f"{path} has features of Delta that are Spark's")
        actions = pa.table(table.get_add_actions()).select(["path", "size_bytes"]).to_pylist()
        schema = table.schema().to_json()
        found = table.version()
    except (DeltaError, OSError, ValueError) as error:
        raise FallbackToSpark(f"{path}: {str(error).splitlines()[0][:200]}") from None
    files = [ActiveFile(row["path"], row["size_bytes"]) for row in actions]
    return Snapshot(
        found, table_identity(str(metadata.id), schema, metadata.partition_columns, "none", files)
    )


def _select_version(options: Options) -> int | None:
    """Return the version that options name. Raises FallbackToSpark for a time."""
    travel = {name.lower(): value for name, value in time_travel_options(options).items()}
    if "timestampasof" in travel or not travel.get("versionasof", "0").isdigit():
        raise FallbackToSpark("a version is chosen by its time")
    return int(travel["versionasof"]) if travel else None


def read_frame_snapshot(frame: DataFrame) -> Snapshot:
    """Return the snapshot that a frame reads, whatever path, name, version or time chose it.

    The table's files are listed by Spark, and the driver holds path and size of each.
    """
    from pyspark.sql import DataFrame as Frame  # noqa: PLC0415

    plan: Any = frame._jdf.queryExecution().analyzed()
    snapshot = plan.collectLeaves().head().relation().location().getSnapshot()
    metadata = snapshot.metadata()
    listed = Frame(snapshot.allFiles().toDF(), frame.sparkSession)
    rows = listed.selectExpr("path", "size", "to_json(deletionVector) AS deleted").collect()
    files = [ActiveFile(row.path, row.size, row.deleted or "") for row in rows]
    partitions = (
        json.loads(metadata.partitionColumns().mkString('["', '","', '"]'))
        if (metadata.partitionColumns().nonEmpty())
        else []
    )
    modes = metadata.configuration()
    mapping = modes.apply(MAPPING) if modes.contains(MAPPING) else "none"
    text = table_identity(metadata.id(), metadata.schemaString(), partitions, mapping, files)
    return Snapshot(int(snapshot.version()), text)


def table_identity(
    table_id: str, schema: str, partitions: Iterable[str], mapping: str, files: Iterable[ActiveFile]
) -> str:
    """Return the text: the table's id, and a digest over its files and over how they are read.

    Args:
        table_id: as the log has it.
        schema: in Delta's JSON.
        partitions: names of the columns that folders hold.
        mapping: mode of column mapping.
        files: those of the version, in any order.
    """
    lines = [json.dumps([_strip_schema(json.loads(schema)), list(partitions), mapping], sort_keys=True)]
    lines += sorted(json.dumps(list(file)) for file in files)
    found = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    return f"delta:{table_id}:{found[:32]}"


def _strip_schema(schema: Any) -> Any:
    """Return a schema without what changes no value that is read: comments, and whether NULL may stand."""
    if isinstance(schema, list):
        return [_strip_schema(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {
        key: value
        for key, value in schema.items()
        if not key.lower().endswith(("nullable", "containsnull"))
    }
    notes = {
        key: value for key, value in schema.get("metadata", {}).items() if key.startswith(READING_PREFIXES)
    }
    return {key: notes if key == "metadata" else _strip_schema(value) for key, value in kept.items()}
