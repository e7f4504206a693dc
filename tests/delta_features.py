"""Delta tables of newer features, written by hand: commits of JSON beside a file of pyarrow."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

NAMES = {"user_id": "item_id", "item_id": "user_id", "rating": "col-7f"}
"""Our name -> the name in the file: users and items were exchanged by renaming."""

ROWS = {"user_id": [1, 1, 2], "item_id": [7, 8, 7], "rating": [5, 4, 3]}


def write_mapped(folder: Path, mode: str = "name", protocol: Mapping[str, Any] | None = None) -> Path:
    """Write a table whose columns were renamed: its files have other names, found by name or by id."""
    fields, columns = [], []
    for number, (name, values) in enumerate(ROWS.items(), 1):
        stored = NAMES[name] if mode == "name" else f"old-{number}"
        notes = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": NAMES[name]}
        fields.append({"name": name, "type": "long", "nullable": True, "metadata": notes})
        columns.append((pa.field(stored, pa.int64(), metadata={"PARQUET:field_id": str(number)}), values))
    table = pa.table([values for _, values in columns], pa.schema([field for field, _ in columns]))
    settings = {"delta.columnMapping.mode": mode, "delta.columnMapping.maxColumnId": "3"}
    return write_table(
        folder, table, fields, protocol or {"minReaderVersion": 2, "minWriterVersion": 5}, settings
    )


def write_plain(folder: Path, features: Sequence[str], deleted: Mapping[str, Any] | None = None) -> Path:
    """Write a table of reader version 3 with some features; `deleted`: its deletion vector."""
    fields = [{"name": name, "type": "long", "nullable": True, "metadata": {}} for name in ROWS]
    protocol = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": list(features),
        "writerFeatures": list(features),
    }
    return write_table(folder, pa.table(ROWS), fields, protocol, {}, deleted)


def write_table(
    folder: Path,
    table: pa.Table,
    fields: Sequence[Mapping[str, Any]],
    protocol: Mapping[str, Any],
    settings: Mapping[str, str],
    deleted: Mapping[str, Any] | None = None,
) -> Path:
    """Write one file and the first commit of its log."""
    (folder / "_delta_log").mkdir(parents=True)
    pq.write_table(table, folder / "part-0.parquet")
    add = {
        "path": "part-0.parquet",
        "partitionValues": {},
        "size": (folder / "part-0.parquet").stat().st_size,
        "modificationTime": 1_700_000_000_000,
        "dataChange": True,
        "stats": json.dumps({"numRecords": len(table)}),
    }
    add |= {"deletionVector": dict(deleted)} if deleted else {}
    metadata = {
        "id": "5d5c1f0e-0000-4000-8000-000000000001",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": list(fields)}),
        "partitionColumns": [],
        "configuration": dict(settings),
        "createdTime": 1_700_000_000_000,
    }
    actions = [{"protocol": dict(protocol)}, {"metaData": metadata}, {"add": add}]
    log = folder / "_delta_log" / f"{0:020}.json"
    log.write_text("\n".join(map(json.dumps, actions)) + "\n")
    return folder
