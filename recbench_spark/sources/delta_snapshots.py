"""Compute a Delta table's identity from its log.

The identity covers the table's id, its active files and how they are read. Two versions of a table, or two
tables at one path, have different files. An unchanged copy keeps the original's identity. A version number
alone identifies nothing: each table starts at 0, and two copies continue with equal numbers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from itertools import starmap
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.core.inputs import Options, time_travel_options
from recbench_spark.errors import FallbackToSpark
from recbench_spark.storage.delta_tables import MAPPING, list_features, open_table
from recbench_spark.storage.table_scans import find_partition, read_folder_value

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame

READING_PREFIXES = ("delta.columnMapping.", "__CHAR_VARCHAR_TYPE_STRING")
"""Prefixes in column metadata which change how files are read; comments, for example, do not."""


class ActiveFile(NamedTuple):
    """A data file of a table version, from the log.

    Attributes:
        path: the path in the log.
        size: bytes.
        deleted: its deletion vector in JSON; empty if no row is deleted.
    """

    path: str
    size: int
    deleted: str = ""


class Snapshot(NamedTuple):
    """A table's version and its identity."""

    version: int
    identity: str


def read_snapshot(path: str, version: int | None = None, options: Options | None = None) -> Snapshot:
    """Return the snapshot of a table on this machine's disks.

    The table's log is read in this process.

    Args:
        path: the table's folder, or a partition's, which alone counts then.
        version: the version to read; None for the one `options` name, or the latest.
        options: options for a Delta reader.

    Raises:
        FallbackToSpark: only Spark supports the table's features, or a choice of version by time.
    """
    from deltalake.exceptions import DeltaError  # noqa: PLC0415

    partition = find_partition(path)
    try:
        wanted = select_version(options or {}) if version is None else version
        table = open_table(partition.table if partition else path, wanted)
        metadata, mapping = table.metadata(), table.metadata().configuration.get(MAPPING, "none")
        if mapping != "none" or "deletionVectors" in (table.protocol().reader_features or ()):
            named = ", ".join(list_features(table))
            raise FallbackToSpark(f"{path} has features of Delta that are Spark's: {named}")
        files = _list_files(table, partition.values if partition else {})
        schema, read_version = table.schema().to_json(), table.version()
    except (DeltaError, OSError, ValueError, KeyError) as error:
        raise FallbackToSpark(f"{path}: {str(error).splitlines()[0][:200]}") from None
    identity = table_identity(str(metadata.id), schema, metadata.partition_columns, "none", files)
    return Snapshot(read_version, identity)


def _list_files(table: DeltaTable, values: Mapping[str, str]) -> list[ActiveFile]:
    """Return the files with these partition values."""
    actions = pa.table(table.get_add_actions(flatten=True))
    for name, text in values.items():
        stored = actions.column(f"partition.{name}")
        value = read_folder_value(text, stored.type)
        actions = actions.filter(pc.equal(stored, value) if value.is_valid else pc.is_null(stored))
    columns = (actions.column(name).to_pylist() for name in ("path", "size_bytes"))
    return [*starmap(ActiveFile, zip(*columns, strict=True))]


def select_version(options: Options) -> int | None:
    """Return the version in options. Raises FallbackToSpark for a time."""
    travel = {name.lower(): value for name, value in time_travel_options(options).items()}
    if "timestampasof" in travel or not travel.get("versionasof", "0").isdigit():
        raise FallbackToSpark("a version is chosen by its time")
    return int(travel["versionasof"]) if travel else None


def read_frame_snapshot(frame: DataFrame) -> Snapshot:
    """Return the snapshot which a frame reads.

    Any choice works: by path, name, version or time. Spark lists the table's files, and the driver holds
    path and size of each.
    """
    from recbench_spark.engine.sessions import read_delta_snapshot  # noqa: PLC0415

    snapshot, listed = read_delta_snapshot(frame)
    metadata = snapshot.metadata()
    rows = listed.selectExpr("path", "size", "to_json(deletionVector) AS deleted").collect()
    files = [ActiveFile(row.path, row.size, row.deleted or "") for row in rows]
    names = metadata.partitionColumns()
    partitions = json.loads(names.mkString('["', '","', '"]')) if names.nonEmpty() else []
    modes = metadata.configuration()
    mapping = modes.apply(MAPPING) if modes.contains(MAPPING) else "none"
    text = table_identity(metadata.id(), metadata.schemaString(), partitions, mapping, files)
    return Snapshot(int(snapshot.version()), text)


def table_identity(
    table_id: str, schema: str, partitions: Iterable[str], mapping: str, files: Iterable[ActiveFile]
) -> str:
    """Return the identity: the table's id, and a digest.

    The digest covers its files, and how they are read.

    Args:
        table_id: the id in the log.
        schema: in Delta's JSON.
        partitions: names of the columns in folder names.
        mapping: mode of column mapping.
        files: the version's files, in any order.
    """
    lines = [json.dumps([_strip_schema(json.loads(schema)), list(partitions), mapping], sort_keys=True)]
    lines += sorted(json.dumps(list(file)) for file in files)
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    return f"delta:{table_id}:{digest[:32]}"


def _strip_schema(schema: Any) -> Any:
    """Return a schema without comments, nullability and the like.

    What is left out changes no value.
    """
    if isinstance(schema, list):
        return [_strip_schema(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    stripped = {}
    for key, value in schema.items():
        if key == "metadata":
            stripped[key] = {name: one for name, one in value.items() if name.startswith(READING_PREFIXES)}
        elif not key.lower().endswith(("nullable", "containsnull")):
            stripped[key] = _strip_schema(value)
    return stripped
