"""Read tables of other systems in this process, as `readers.read_table` does with Spark.

Supported are Parquet, Delta and text files of this machine. For everything that only Spark can read
(a catalog, remote storage, MovieLens' own formats, text with quotes within fields, Delta features that
`deltalake` does not know) the functions raise `FallbackToSpark`.
"""

from __future__ import annotations

import json
import re
import sys
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from recbench_spark.data import arrow_rows
from recbench_spark.data.arrow_rows import SPARK_NAMES, as_double, combine_column, encode_ids, read_column
from recbench_spark.data.arrow_times import OPENERS
from recbench_spark.data.column_names import ColumnNames
from recbench_spark.data.delta_snapshots import read_snapshot
from recbench_spark.data.digests import content_identity
from recbench_spark.data.paths import check_path, exists, may_be_table
from recbench_spark.data.text_layouts import (
    BELOW_2_53,
    FINITE_TEXT,
    IN_UTF8,
    LAYOUTS,
    NUMBER_COLUMNS,
    OPTIONAL_COLUMNS,
    TEXT_FILE,
    TEXT_NOTES,
)
from recbench_spark.data.text_lines import StoredTable, open_bytes, read_text, split_header
from recbench_spark.data.trec_files import cut_trec, find_format
from recbench_spark.errors import DataError, FallbackToSpark, SchemaError
from recbench_spark.inputs import Options, PinnedInput, look_once
from recbench_spark.kernels.ids import WHOLE_FLOAT, as_ids, drop_empty
from recbench_spark.schemas import ID_KIND, ID_TYPE
from recbench_spark.storage.local_files import (
    COMPRESSED,
    DAMAGED,
    HEAD_BYTES,
    bare_name,
    describe_undecoded,
    has_delta_log,
    is_text,
    list_folder,
    refuse_misspelt,
    refuse_packed_text,
    require_columns,
)
from recbench_spark.storage.partitions import find_partition
from recbench_spark.storage.table_scans import open_delta, open_parquet

Bools = npt.NDArray[np.bool_]

TREC_FILE = "trec"
"""Kind of runs and judgements of TREC."""


def read_table(
    path: str, columns_required: Sequence[str], what: str, columns: ColumnNames | None = None
) -> pa.Table:
    """Read a table at a path by the rules of `readers.read_table`.

    The metadata of id columns say how the ids were stored.

    Raises:
        FallbackToSpark: only Spark reads it. ConfigError, SchemaError, DataError: as there.
    """
    stored, where = open_path(path), f"{what} {path}"
    if columns is not None:
        stored = replace(stored, table=columns.rename(stored.table, what))
    names = stored.table.column_names
    require_columns(names, columns_required, where, path)
    refuse_misspelt(names, list_optional(what), where)
    problems = Problems(where, path)
    problems.add_lines(stored.bad_lines, stored.line)
    table = convert_columns(stored, names, where, problems, plain=columns_required)
    problems.refuse()
    return table


def list_optional(what: str) -> Sequence[str]:
    """Return columns that a table may lack, and that change results where it has them."""
    return OPTIONAL_COLUMNS.get(what.partition(" of ")[0], ())


def convert_columns(
    stored: StoredTable, names: Sequence[str], where: str, problems: Problems, plain: Sequence[str] = ()
) -> pa.Table:
    """Convert columns by the meaning of their names, and collect what is wrong.

    plain: columns of a text file whose bytes are checked.
    """
    fields, arrays = [], []
    for name in dict.fromkeys(names):
        field, column = _convert_column(stored, name, where, problems, plain=name in plain)
        fields.append(field)
        arrays.append(column)
    return pa.table(arrays, schema=pa.schema(fields))


def read_column_names(path: str) -> list[str]:
    """Read the column names of a table at a path, without reading a row of Parquet or Delta.

    Of a text file of more than COUNTED_BYTES bytes only the header is read.
    """
    kind = detect_kind(path)
    if kind == TREC_FILE:
        return list(open_path(path).table.schema.names)
    if kind != "text":
        return list(open_dataset(path, kind).schema.names)
    if Path(path).stat().st_size <= COUNTED_BYTES:
        return list(open_path(path).table.schema.names)
    with open_bytes(path) as stream:
        return split_header(stream, path)[0]


def read_vector_width(path: str) -> int | None:
    """Read the length of a table's first vector; None where it has no rows or the vector is NULL."""
    kind = detect_kind(path)
    if kind in ("text", TREC_FILE):
        vector = open_path(path).table.column("vector")
        values = _parse_json_vector(vector[0].as_py()) if len(vector) else None
    else:
        head = open_dataset(path, kind).head(1, columns=["vector"])
        values = head.column(0)[0].as_py() if head.num_rows else None
    return None if values is None else len(values)


def read_first_values(path: str, name: str, n: int) -> pa.Array:
    """Read the first n values of a column, or all of them; values of text files are text."""
    kind = detect_kind(path)
    if kind in ("text", TREC_FILE):
        return combine_column(open_path(path).table.column(name).slice(0, n))
    return combine_column(open_dataset(path, kind).head(n, columns=[name]).column(name))


def read_common_width(users: tuple[str, str], items: tuple[str, str]) -> int | None:
    """Read the length of a model's vectors from the first row of each table; None where a table is empty.

    Args:
        users, items: the name of each table in messages, and its path.

    Raises:
        SchemaError: users and items have vectors of different lengths.
    """
    dims = [read_vector_width(path) for _, path in (users, items)]
    if None not in dims and dims[0] != dims[1]:
        raise SchemaError(
            f"{users[0]} has {dims[0]} dimensions, {items[0]} has {dims[1]}", "both must be of one model"
        )
    return dims[0]


def _convert_column(
    stored: StoredTable, name: str, where: str, problems: Problems, *, plain: bool
) -> tuple[pa.Field, pa.Array]:
    """Convert a column by the meaning of its name, and collect its problems."""
    text_file = bool(stored.line)
    raw = read_column(stored.table, name, where)
    if name in ("user_id", "item_id"):
        return (
            _convert_field_ids(raw, name, where, problems)
            if text_file
            else _convert_ids(stored.table, name, where)
        )
    if text_file and plain and name not in (*NUMBER_COLUMNS, "rank", "vector"):
        problems.add_undecoded(name, raw)
    if name in NUMBER_COLUMNS or name == "rank":
        return _convert_number(raw, name, where, problems)
    if name == "vector":
        return pa.field(name, arrow_rows.FLOAT32), _convert_vectors(raw, where, problems)
    return pa.field(name, raw.type), raw


# ------------------------------------------------------------------------------------- paths


def is_delta(path: str) -> bool:
    """Check whether a path of this machine is a Delta table.

    Raises:
        MissingError: nothing is there. FallbackToSpark: only Spark can say.
    """
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/", path):
        raise FallbackToSpark(f"{path} is not a path of this machine")
    if not exists(path) and may_be_table(path):
        raise FallbackToSpark(f"{path} may be a table of a catalog")
    check_path(path)
    return has_delta_log(path) or find_partition(path) is not None


def detect_kind(path: str) -> str:
    """Return the kind of a table at a path: delta, text, trec or parquet.

    Raises:
        MissingError: nothing is there. FallbackToSpark: only Spark can say.
    """
    if is_delta(path):
        return "delta"
    place, name = Path(path), bare_name(path)
    if name in LAYOUTS:
        raise FallbackToSpark(f"{path} is of MovieLens")
    if place.is_file() and find_format(path):
        return TREC_FILE
    if is_text(name) and place.is_file():
        refuse_packed_text(path)
        return "text"
    if place.is_dir():
        _refuse_mixed_folder(place)
    return "parquet"


def _refuse_mixed_folder(place: Path) -> None:
    """Refuse folders that only Spark reads.

    A folder within a folder may be a partition, and text files of one folder may have different columns.
    """
    files, folders = list_folder(place)
    for entry in (*folders, *(file for file in files if is_text(file.name))):
        raise FallbackToSpark(f"{place} is a folder with {entry.name} in it")


def open_path(path: str) -> StoredTable:
    """Open a table as it is stored.

    Raises:
        DataError: a file that cannot be read.
    """
    kind = detect_kind(path)
    if kind == "text":
        return read_text(path)
    if kind == TREC_FILE:
        return cut_trec(path)
    try:
        return StoredTable(open_dataset(path, kind).to_table())
    except (pa.ArrowException, OSError) as error:
        message = str(error).strip().splitlines()[0]
        raise DataError(f"{path}: cannot be read: {message[:300]}", DAMAGED) from None


def open_dataset(path: str, kind: str) -> ds.Dataset:
    """Open a table of kind `delta` or `parquet`, without reading a row; errors as `open_path`."""
    return open_delta(path) if kind == "delta" else open_parquet(path)


def estimate_rows(path: str) -> int:
    """Estimate the rows of a table from its metadata, without reading it.

    The lines of a text file are counted, of a large one in its first COUNTED_BYTES bytes alone, of a
    compressed one in the first UNPACKED_BYTES of its text.
    """
    kind = detect_kind(path)
    if kind not in ("text", TREC_FILE):
        return int(open_dataset(path, kind).count_rows())
    head, scale = _read_text_head(path)
    lines = head.count(b"\n")
    return lines if scale == 1 else round(scale * max(lines, 1))


def _read_text_head(path: str) -> tuple[bytes, float]:
    """Return the first bytes of a file's text, and how many times as long the whole text is about."""
    size = Path(path).stat().st_size
    opener = next((OPENERS[end] for end in COMPRESSED if path.endswith(end)), None)
    with Path(path).open("rb") as stream:
        if opener is None:
            head = stream.read(COUNTED_BYTES)
            return head, max(1.0, size / len(head)) if head else 1.0
        head = _unpack_head(opener(stream))
        return head, max(1.0, size / stream.tell())


def _unpack_head(text: BinaryIO) -> bytes:
    """Return the first bytes of a compressed text.

    A damaged file ends where it is damaged; the reader says so.
    """
    head = bytearray()
    with suppress(OSError, EOFError, zlib.error):
        while len(head) < UNPACKED_BYTES and (chunk := text.read(min(UNPACKED_BYTES, HEAD_BYTES))):
            head += chunk
    return bytes(head)


def count_large_text(path: str) -> int:
    """Return the bytes of a text file of more than COUNTED_BYTES, which a process reads whole; else 0.

    Of a compressed file these are the bytes of its text, as `estimate_rows` estimates them.
    """
    size = Path(path).stat().st_size if detect_kind(path) == "text" else 0
    if size and path.endswith(COMPRESSED):
        head, scale = _read_text_head(path)
        size = round(len(head) * scale)
    return size if size > COUNTED_BYTES else 0


COUNTED_BYTES = 1 << 28
"""Bytes of a text file whose lines are counted; those beyond have as many lines for each byte."""

UNPACKED_BYTES = 1 << 24
"""Bytes of a compressed file's text whose lines are counted: a tenth of a second."""


# ------------------------------------------------------------------------------------------ columns


class Problems:
    """Problems of a table's values, in the words of `readers.values.Checks`; those of pieces are added."""

    def __init__(self, where: str, path: str) -> None:
        self.where, self.path, self.hint = where, path, ""
        self.found: dict[str, tuple[int, str | None]] = {}

    def __add__(self, other: Problems) -> Problems:
        """Return the problems of both pieces."""
        both = Problems(self.where, self.path)
        both.hint = self.hint or other.hint
        for text, (n, example) in (*self.found.items(), *other.found.items()):
            before = both.found.get(text, (0, None))
            both.found[text] = (before[0] + n, min(filter(None, (before[1], example)), default=None))
        return both

    def add_lines(self, bad: Sequence[str], expected: str) -> None:
        """Add lines with another number of fields."""
        if bad:
            self.found[f"lines that are not {expected}"] = (len(bad), min(bad))

    def add_values(self, name: str, raw: pa.Array, bad: Bools, expected: str, hint: str = "") -> None:
        """Add values that do not fit their column."""
        if bad.any():
            shown = map(str, raw.filter(pa.array(bad)).drop_null().to_pylist())
            self.found[f"rows whose '{name}' is not {expected}"] = (
                int(bad.sum()),
                min(shown, default=None),
            )
            self.hint = self.hint or hint

    def add_undecoded(self, name: str, raw: pa.Array) -> None:
        """Add fields of a text file whose bytes are not UTF-8."""
        undecoded = pc.fill_null(pc.match_substring(raw, "\ufffd"), False).to_numpy(zero_copy_only=False)
        self.add_values(name, raw, undecoded, "text in UTF-8", IN_UTF8)

    def refuse(self) -> None:
        """Raise DataError where a problem was added."""
        if self.found:
            lines = [
                f"{n} {text}, e.g. {'a missing value' if example is None else repr(example[:120])}"
                for text, (n, example) in self.found.items()
            ]
            lines += describe_undecoded(self.path) if self.hint == IN_UTF8 else []
            hint = self.hint or "correct or remove these rows"
            raise DataError(f"{self.where}: " + "; ".join(lines), hint)


def _convert_ids(table: pa.Table, name: str, where: str) -> tuple[pa.Field, pa.Array]:
    """Convert an id column of a table that has types."""
    field, ids = encode_ids(table, name, where)
    notes = {**field.metadata, **(note_id_type(table.schema.field(name)).metadata or {})}
    return field.with_metadata(notes), ids


def note_id_type(column: pa.Field) -> pa.Field:
    """Return a column of ids with Spark's name of its type, for messages."""
    kind = str(column.type)
    return column.with_metadata({ID_TYPE.encode(): SPARK_NAMES.get(kind, kind).encode()})


def _convert_field_ids(
    raw: pa.Array, name: str, where: str, problems: Problems
) -> tuple[pa.Field, pa.Array]:
    """Convert an id column of a text file: ids stay text, unless all of them are whole floats."""
    raw = drop_empty(raw)
    present = raw.filter(pc.not_equal(pc.utf8_lower(raw), "nan"))
    floats = len(present) and pc.all(pc.match_substring_regex(present, WHOLE_FLOAT)).as_py()
    if not floats:
        problems.add_undecoded(name, raw)
        return pa.field(name, pa.string(), metadata=TEXT_NOTES), raw
    print(
        f"note: {where}: {name} is whole floats throughout, such as 10.0: read as whole numbers, 10",
        file=sys.stderr,
    )
    ids = combine_column(as_ids(pa.chunked_array([raw.cast(pa.float64())]), f"{where}: {name}"))
    notes = {ID_KIND: "integer", ID_TYPE: f"{TEXT_FILE}, whole floats"}
    return pa.field(name, pa.string(), metadata=notes), ids.cast(pa.string())


def _may_exceed_float64(kind: pa.DataType) -> bool:
    """Check whether a type holds whole numbers that float64 cannot represent exactly."""
    return kind in (pa.int64(), pa.uint64()) or (pa.types.is_decimal(kind) and not kind.scale)


def _convert_number(raw: pa.Array, name: str, where: str, problems: Problems) -> tuple[pa.Field, pa.Array]:
    """Convert a column to finite float64, or `rank` to int64, and collect its bad values."""
    try:
        number = as_double(raw, name)
    except SchemaError:
        raise SchemaError(f"{where}: column '{name}' is {raw.type}, not a number") from None
    values = number.to_numpy(zero_copy_only=False).astype(np.float64)
    present = raw.is_valid().to_numpy(zero_copy_only=False)
    whole = name == "rank"
    good, exact = np.isfinite(values), _may_exceed_float64(raw.type)
    if whole or exact:
        good &= np.abs(values) < 2.0**53
    if whole:
        good &= values == np.floor(values)
    elif arrow_rows.is_text(raw.type):
        inexact = pc.fill_null(arrow_rows.find_inexact(raw, number), False).to_numpy(zero_copy_only=False)
        good &= ~inexact
    bad = present & ~good
    number_text = FINITE_TEXT if arrow_rows.is_text(raw.type) else "a finite number"
    expected = "a whole number" if whole else BELOW_2_53 if exact else number_text
    problems.add_values(name, raw, bad, expected)
    if not whole:
        return pa.field(name, pa.float64()), number
    valid = pc.if_else(pa.array(~bad), number, None)
    return pa.field(name, pa.int64()), valid.cast(pa.int64(), safe=False)


def _convert_vectors(raw: pa.Array, where: str, problems: Problems) -> pa.Array:
    """Convert lists of numbers (JSON arrays in text files) to lists of float32."""
    text = pa.types.is_string(raw.type) or pa.types.is_large_string(raw.type)
    column = (
        pa.array([_parse_json_vector(one) for one in raw.to_pylist()], pa.list_(pa.float64()))
        if text
        else raw
    )
    vectors = arrow_rows.as_vectors(column, where)
    offsets = vectors.offsets.to_numpy()
    holes = vectors.values.is_null().to_numpy(zero_copy_only=False)
    at = np.concatenate([[0], np.cumsum(holes)])
    bad = (at[offsets[1:]] > at[offsets[:-1]]) | (
        (raw.is_valid().to_numpy(zero_copy_only=False)) & ~vectors.is_valid().to_numpy(zero_copy_only=False)
    )
    problems.add_values("vector", raw, bad, "an array of numbers such as [0.1, -2]")
    return vectors


def _parse_json_vector(text: str | None) -> list[float | None] | None:
    if text is None:
        return None
    try:
        values = json.loads(text)
    except ValueError:
        return None
    good = isinstance(values, list) and all(
        one is None or (isinstance(one, int | float) and not isinstance(one, bool)) for one in values
    )
    return [None if one is None else float(one) for one in values] if good else None


# ----------------------------------------------------------------------------------------- identity


def identity(path: str, *, named: bool = False, options: Options | None = None) -> str:
    """Return the same text as `data.identity.identity`, without Spark.

    Args:
        path: of this machine.
        named: whether names of plain files count.
        options: of the reader; `versionAsOf` names the version of a Delta table.

    Raises:
        FallbackToSpark: only Spark can tell. DataError, MissingError: nothing is there.
    """
    return look_once(path, options or {}, named, partial(_identify, path, named, options or {})).identity


def _identify(path: str, named: bool, options: Options) -> PinnedInput:
    if not is_delta(path):
        digest = content_identity(path, named)
        return PinnedInput(path, digest, None, partial(content_identity, path, named), digest)
    snapshot = read_snapshot(path, options=options)
    sign_now = partial(_identity_at, path, snapshot.version)
    return PinnedInput(path, snapshot.identity, snapshot.version, sign_now, snapshot.identity)


def _identity_at(path: str, version: int) -> str:
    return read_snapshot(path, version).identity
