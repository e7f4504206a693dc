#!/usr/bin/env python3
"""Compare two warehouses bit by bit, after a change that must not move any number.

    python tools/compare_warehouses.py BEFORE AFTER [--other-code]

Tables are compared as multisets of rows, floats bit for bit, and columns by name and type. Values that
differ between any two nights are left out or replaced: timestamps (`..._at`), measured times and hashes of
run ids are dropped; a run id becomes suite, night, model and attempt, and the folder of the warehouse
becomes `WAREHOUSE`, also within longer texts. Other paths are compared and are part of the hashes of
settings, so both nights need the same inputs at the same paths. A warehouse may be a URI of object
storage, or a schema of a catalog (`spark_catalog.NAME`), which Spark opens. --other-code also leaves out
the version of the code and the keys that contain it. The tool prints a line for each table and a few of the
rows that are missing on a side. Exit code 1: some differ. Rows pass in batches, and DuckDB sums their
digests; those of a table that differs lie on the disk.
"""

from __future__ import annotations

import argparse
import datetime
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from recbench_spark.schemas import TABLES
from recbench_spark.storage.delta_tables import read_dataset
from recbench_spark.storage.objects import list_objects
from recbench_spark.storage.table_folders import is_catalog_schema
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
RUN_ID_START = r"\d{8}T\d{6}-\d{8}-"
MAX_SHOWN = 3
MAX_SORTED = 1000
"""Rows of a side among which the first ones are shown."""

ROWS_AT_ONCE = 1 << 15
MEMORY = "1GB"
"""Memory of DuckDB; beyond it rows lie on the disk."""


def main(argv: list[str] | None = None) -> int:
    """Compare and print; return 0 if all tables agree."""
    args = parser().parse_args(argv)
    left_out = MEASURED_COLUMNS | RUN_ID_COLUMNS | (CODE_COLUMNS if args.other_code else set())
    with tempfile.TemporaryDirectory() as folder:
        settings = {"memory_limit": MEMORY, "temp_directory": folder, "preserve_insertion_order": False}
        with duckdb.connect(str(Path(folder, "digests.duckdb")), config=settings) as connection:
            sides = [
                Warehouse.open(place, Path(folder, str(n)))
                for n, place in enumerate((args.before, args.after))
            ]
            names = sorted({*sides[0].tables, *sides[1].tables})
            differences = [
                print_difference(name, [side.read(name, left_out) for side in sides], connection)
                for name in names
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
class Warehouse:
    """A folder of Delta tables; `runs` identifies each run without its time."""

    folder: re.Pattern[str]
    tables: Mapping[str, ds.Dataset]
    runs: Mapping[str, str]

    @classmethod
    def open(cls, place: str, scratch: Path) -> Warehouse:
        """Open all tables of a warehouse; `scratch`: a folder for rows that Spark alone reads."""
        if is_catalog_schema(place):
            place, tables = open_schema(place, scratch)
        else:
            tables = {name: read_dataset(join_uri(place, name)) for name in list_tables(place)}
        if not tables:
            sys.exit(f"error: no table in {place}\n  hint: give the folder of a warehouse")
        facts = ["run_id", "suite", "logical_date", "model", "attempt"]
        rows = tables["runs"].to_table(columns=facts).to_pylist() if "runs" in tables else []
        names = {row.pop("run_id"): "/".join(map(str, row.values())) for row in rows}
        return cls(find_folder(place), tables, names)

    def read(self, name: str, left_out: set[str]) -> TableContent:
        """Return a table in a form that two nights share; empty if there is none."""
        rows = self.tables.get(name, ds.dataset(pa.table({})))
        names = sorted(
            one.name for one in rows.schema if one.name not in left_out and not is_timestamp(one)
        )
        return TableContent(self, rows, names)

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

    def share(self, array: pa.Array) -> pa.Array:
        """Return values as `exact` does, in columns: floats as the numbers of their bits."""
        kind = array.type
        if pa.types.is_dictionary(kind):
            return self.share(array.dictionary_decode())
        if pa.types.is_nested(kind):
            return self._share_nested(array)
        if pa.types.is_floating(kind):
            bits = pa.int64() if kind.bit_width == 64 else pa.int32()
            return pc.if_else(pc.is_nan(array), pa.scalar(np.nan, kind), array).view(bits)
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            return self._share_texts(array.dictionary_encode())
        return array.cast(pa.int64()) if pa.types.is_timestamp(kind) else array

    def _share_nested(self, array: pa.Array) -> pa.Array:
        kind, missing = array.type, array.is_null()
        if pa.types.is_struct(kind):
            names = sorted(field.name for field in kind)
            parts = [self.share(pc.struct_field(array, name)) for name in names]
            return pa.StructArray.from_arrays(parts, names, mask=missing)
        if pa.types.is_map(kind):
            array = array.cast(pa.list_(pa.struct([kind.key_field, kind.item_field])))
        ends = np.cumsum(pc.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False))
        inner = pc.list_flatten(array)
        shared = self.share(inner)
        if pa.types.is_map(kind):  # pairs in any order
            key = pc.struct_field(shared, kind.key_field.name)
            keys = pa.table({"list": pc.list_parent_indices(array), "key": key})
            shared = shared.take(pc.sort_indices(keys, [("list", "ascending"), ("key", "ascending")]))
        offsets = pa.array([0, *ends], pa.int64())
        return pa.LargeListArray.from_arrays(offsets, shared, mask=missing)

    def _share_texts(self, texts: pa.DictionaryArray) -> pa.Array:
        """Return texts as `exact` does; each is changed once."""
        words = texts.dictionary
        odd = pc.or_(
            pc.match_substring_regex(words, RUN_ID_START),
            pc.match_substring_regex(words, self.folder.pattern),
        )
        if pc.any(odd).as_py():
            words = pa.array(
                [
                    self.exact(word) if is_odd else word
                    for word, is_odd in zip(words.to_pylist(), odd.to_pylist(), strict=True)
                ],
                words.type,
            )
        return words.take(texts.indices)


@dataclass(frozen=True)
class TableContent:
    """Rows of a table, and the names of the columns that are compared."""

    warehouse: Warehouse
    rows: ds.Dataset
    names: Sequence[str]

    @property
    def columns(self) -> frozenset[str]:
        """Columns with their types."""
        return frozenset(f"{field.name} {field.type}" for field in self.rows.schema)

    def open(self, plain: set[str]) -> pa.RecordBatchReader:
        """Read batches of `number`, the row's, and `content`, all that is compared.

        `plain`: columns of another type in the other warehouse, which are compared as texts.
        """
        batches = self._share_batches(plain)
        first = next(batches, None)
        if first is None:
            first = pa.record_batch(
                {"number": pa.array([], pa.int64()), "content": pa.array([], pa.int64())}
            )
        return pa.RecordBatchReader.from_batches(first.schema, chain([first], batches))

    def _share_batches(self, plain: set[str]) -> Iterator[pa.RecordBatch]:
        done = 0
        ahead = {"batch_size": ROWS_AT_ONCE, "batch_readahead": 2, "fragment_readahead": 1}
        for batch in self.rows.to_batches(columns=list(self.names), **ahead):
            parts = [
                pa.array(
                    [
                        None if value is None else str(self.warehouse.exact(value))
                        for value in batch.column(name).to_pylist()
                    ],
                    pa.string(),
                )
                if name in plain
                else self.warehouse.share(batch.column(name))
                for name in self.names
            ]
            numbers = pa.array(np.arange(done, done + batch.num_rows))
            content = pa.StructArray.from_arrays(parts, list(self.names)) if parts else numbers
            yield pa.record_batch({"number": numbers, "content": content})
            done += batch.num_rows

    def list_texts(self, numbers: Sequence[int]) -> list[str]:
        """Return rows as texts in order, each once."""
        rows = self.rows.take(sorted(numbers), columns=list(self.names))
        return sorted({repr(self.warehouse.exact(row)) for row in rows.to_pylist()})


def open_schema(schema: str, scratch: Path) -> tuple[str, dict[str, ds.Dataset]]:
    """Open the tables of a catalog's schema by Spark; return their place too."""
    from recbench_spark.runtime.session import get_session  # noqa: PLC0415 (needs Java)
    from recbench_spark.storage.spark_types import spark_type  # noqa: PLC0415
    from recbench_spark.storage.store import Store  # noqa: PLC0415

    store = Store(get_session("compare"), schema, read_only=True, any_version=True)
    tables = {}
    for table in (table for table in TABLES.values() if store.exists(table.name)):
        if store.is_file_storage:
            tables[table.name] = read_dataset(store.location(table.name))
        else:
            files, frame = scratch / table.name, store.read(table)
            frame.write.parquet(files.as_uri())
            rows, names = ds.dataset(files), dict(frame.dtypes)
            same = [
                one
                for one in table.arrow_schema
                if names.get(one.name) == spark_type(one.type).simpleString()
            ]
            known = {field.name: field for field in same}  # Spark's file has other names inside lists
            schema = pa.schema([known.get(field.name, field) for field in rows.schema])
            tables[table.name] = ds.dataset(files, schema=schema)
    return store.root, tables


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


class Missing(NamedTuple):
    """Rows that the other side lacks: their number, and some as texts in order."""

    total: int = 0
    texts: Sequence[str] = ()


DIGEST = "md5_number(to_json(content)::VARCHAR)"


def sum_rows(side: TableContent, plain: set[str], connection: Any) -> tuple[int, ...]:
    """Return the number of rows and the sums of the halves of their digests: equal for equal rows."""
    connection.register("rows", side.open(plain))
    digests = f"(SELECT {DIGEST} AS digest FROM rows)"
    halves = ", ".join(
        f"sum(({part})::HUGEINT)" for part in ("digest >> 64", "digest & 18446744073709551615")
    )
    return connection.execute(f"SELECT count(*), {halves} FROM {digests}").fetchall()[0]


def find_differing(sides: Sequence[TableContent], plain: set[str], connection: Any) -> Iterator[Missing]:
    """Yield the rows of each side that the other one lacks."""
    for name, side in zip(("before", "after"), sides, strict=True):
        connection.register(name, side.open(plain))
    connection.execute(
        f"CREATE OR REPLACE TABLE digests AS SELECT number, {DIGEST} AS digest, 1 AS side FROM before"
        f" UNION ALL SELECT number, {DIGEST}, -1 FROM after"
    )
    connection.execute(
        "CREATE OR REPLACE TABLE odd AS SELECT digest, sum(side) AS more FROM digests"
        " GROUP BY digest HAVING more <> 0"
    )
    for sign, side in zip((1, -1), sides, strict=True):
        rows = f"FROM odd WHERE {sign} * more > 0"
        total = connection.execute(f"SELECT coalesce(sum(abs(more)), 0)::BIGINT {rows}").fetchall()[0][0]
        first = f"SELECT digest {rows} ORDER BY digest LIMIT {MAX_SORTED}"
        numbers = (
            f"SELECT min(number) FROM digests WHERE side = {sign} AND digest IN ({first}) GROUP BY digest"
        )
        yield Missing(total, side.list_texts([n for (n,) in connection.execute(numbers).fetchall()]))


def print_difference(name: str, sides: Sequence[TableContent], connection: Any) -> bool:
    """Print a line for a table and columns and rows that differ; return whether any do."""
    before, after = sides
    plain = {column.partition(" ")[0] for column in before.columns ^ after.columns}
    totals = [sum_rows(side, plain, connection) for side in sides]
    missing = [Missing(), Missing()]
    if totals[0] != totals[1]:
        missing = list(find_differing(sides, plain, connection))
    verdicts = [f"{missing[0].total} rows lost, {missing[1].total} new"] if totals[0] != totals[1] else []
    verdicts += ["other columns"] if before.columns != after.columns else []
    print(f"{name:24} {totals[0][0]:9} rows  {'; '.join(verdicts) or 'same'}")
    for sign, one, other, rows in zip("-+", sides, sides[::-1], missing, strict=True):
        for column in sorted(one.columns - other.columns):
            print(f"  {sign} column {column}")
        for row in rows.texts[:MAX_SHOWN]:
            print(f"  {sign} {row[:1000]}")
    return bool(verdicts)


if __name__ == "__main__":
    sys.exit(main())
