#!/usr/bin/env python3
"""Compare two warehouses bit by bit, after a change that must not move any number.

    python tools/compare_warehouses.py BEFORE AFTER [--other-code]

Tables are compared as multisets of rows, floats bit for bit, and columns by name and type. Values that
differ between any two nights are left out or replaced: timestamps (`..._at`), measured times and hashes of
run ids are dropped; a run id becomes suite, night, model and attempt, and the folder of the warehouse
becomes `WAREHOUSE`, also within longer texts. Other paths are compared and are part of the hashes of
settings, so both nights need the same inputs at the same paths. A warehouse may be a URI of object
storage. --other-code also leaves out the version
of the code and the keys that contain it. The tool prints a line for each table and the first rows that are
missing on a side. Exit code 1: some differ. The tool is meant for small nights: it holds both warehouses
in memory as text.
"""

from __future__ import annotations

import argparse
import datetime
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow.dataset import Dataset

from recbench_spark.storage.delta_tables import read_dataset
from recbench_spark.storage.objects import list_objects
from recbench_spark.storage.uris import is_object_storage, join_uri

MEASURED_COLUMNS = {
    "queries_per_second",
    "single_queries_per_second",
    "build_seconds",
    "seconds",
    "users_per_second",
    "of_product",
    "cpu_seconds",
    "peak_bytes",
    "predicted_seconds",
    "amounts_json",  # scaled by measured speeds
}
RUN_ID_COLUMNS = {"comparison_id", "change_id", "crossing_id", "paradox_id"}
CODE_COLUMNS = {"code_version", "run_key"}
RUN_ID = re.compile(r"\d{8}T\d{6}-\d{8}-[\w.-]+?-[0-9a-f]{8}(?![0-9a-f])")
MAX_SHOWN = 3


def main(argv: list[str] | None = None) -> int:
    """Compare and print; return 0 if all tables agree."""
    args = parser().parse_args(argv)
    left_out = MEASURED_COLUMNS | RUN_ID_COLUMNS | (CODE_COLUMNS if args.other_code else set())
    before, after = (Warehouse.open(folder) for folder in (args.before, args.after))
    names = sorted({*before.tables, *after.tables})
    differences = [
        print_difference(name, before.read(name, left_out), after.read(name, left_out)) for name in names
    ]
    return int(any(differences))


def parser() -> argparse.ArgumentParser:
    """Make the parser: two folders, and what to leave out."""
    words = argparse.RawDescriptionHelpFormatter
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=words)
    flags.add_argument("before")
    flags.add_argument("after")
    flags.add_argument("--other-code", action="store_true", help="the code's version differs")
    return flags


@dataclass(frozen=True)
class TableContent:
    """Columns of a table with their types, and each row as text with its count."""

    columns: frozenset[str]
    rows: Counter[str]


@dataclass(frozen=True)
class Warehouse:
    """A folder of Delta tables; `runs` identifies each run without its time."""

    folder: re.Pattern[str]
    tables: Mapping[str, Dataset]
    runs: Mapping[str, str]

    @classmethod
    def open(cls, folder: str) -> Warehouse:
        """Open all tables of a warehouse."""
        tables = {name: read_dataset(join_uri(folder, name)) for name in list_tables(folder)}
        if not tables:
            sys.exit(f"error: no table in {folder}\n  hint: give the folder of a warehouse")
        facts = ["run_id", "suite", "logical_date", "model", "attempt"]
        rows = tables["runs"].to_table(columns=facts).to_pylist() if "runs" in tables else []
        names = {row.pop("run_id"): "/".join(map(str, row.values())) for row in rows}
        return cls(find_folder(folder), tables, names)

    def read(self, name: str, left_out: set[str]) -> TableContent:
        """Return a table in a form that two nights share; empty if there is none."""
        if name not in self.tables:
            return TableContent(frozenset(), Counter())
        table = self.tables[name].to_table()
        columns = frozenset(f"{field.name} {field.type}" for field in table.schema)
        names = sorted(f.name for f in table.schema if f.name not in left_out and not is_timestamp(f))
        return TableContent(columns, Counter(repr(self.exact(row)) for row in iterate_rows(table, names)))

    def exact(self, value: Any) -> Any:
        """Return a value as text with every bit of its floats, without what is specific to a night."""
        if isinstance(value, float):
            return value.hex()
        if isinstance(value, str):
            placed = self.folder.sub("WAREHOUSE", value)
            return RUN_ID.sub(lambda match: self.runs.get(match[0], match[0]), placed)
        if isinstance(value, list | tuple):  # a map is a list of pairs in any order
            inner = [self.exact(entry) for entry in value]
            return sorted(inner, key=repr) if value and isinstance(value[0], tuple) else inner
        if isinstance(value, dict):
            return {key: self.exact(entry) for key, entry in sorted(value.items())}
        return str(value) if isinstance(value, datetime.date) else value


def list_tables(folder: str) -> list[str]:
    """Return the names of the tables in a folder, or below a URI of object storage."""
    if not is_object_storage(folder):
        return sorted(path.parent.name for path in Path(folder).glob("*/_delta_log"))
    logs = (re.fullmatch(r"([^/]+)/_delta_log/.+", name) for name in list_objects(folder))
    return sorted({log[1] for log in logs if log})


def find_folder(folder: str) -> re.Pattern[str]:
    """Return a pattern of the folder's name in texts; Hadoop and others write `s3` in their own ways."""
    if not is_object_storage(folder):
        return re.compile(re.escape(str(Path(folder).resolve())))
    rest = folder.rstrip("/").partition("://")[2]
    return re.compile(r"(s3[an]?|hdfs)://" + re.escape(rest))


def is_timestamp(field: pa.Field) -> bool:
    """Return whether a column says when something was computed; times of a log are data."""
    return field.name.endswith("_at") and pa.types.is_timestamp(field.type)


def iterate_rows(table: pa.Table, names: list[str]) -> Iterator[dict[str, Any]]:
    """Iterate over the rows."""
    for batch in table.select(names).to_batches(max_chunksize=10_000):
        yield from batch.to_pylist()


def print_difference(name: str, before: TableContent, after: TableContent) -> bool:
    """Print a line for a table and the first columns and rows that differ; return whether any do."""
    lost, new = before.rows - after.rows, after.rows - before.rows
    verdicts = [f"{lost.total()} rows lost, {new.total()} new"] if lost or new else []
    verdicts += ["other columns"] if before.columns != after.columns else []
    print(f"{name:24} {before.rows.total():9} rows  {'; '.join(verdicts) or 'same'}")
    for sign, one, other in (("-", before, after), ("+", after, before)):
        for column in sorted(one.columns - other.columns):
            print(f"  {sign} column {column}")
        for row in sorted(one.rows - other.rows)[:MAX_SHOWN]:
            print(f"  {sign} {row[:1000]}")
    return bool(verdicts)


if __name__ == "__main__":
    sys.exit(main())
