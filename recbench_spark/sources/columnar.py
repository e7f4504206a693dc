"""Read a clean Parquet or Delta log without Java.

Python tasks read it, and partition it in blocks. A log is clean if its ids are whole numbers or text, its
ratings are finite, and each row has a time. Everything else (a missing value, another type) is left to
`opened_logs`, which reads all logs in two passes and reports what is wrong.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.core.ids import drop_empty
from recbench_spark.core.streams import chunks
from recbench_spark.errors import ConfigError, DataError, FallbackToSpark, RecbenchError
from recbench_spark.schemas import IDS
from recbench_spark.sources.arrow_rows import combine_column, is_text
from recbench_spark.sources.conditions import Condition, make_conditions, select_rows
from recbench_spark.sources.events import EVENT, EventNames, name_events
from recbench_spark.sources.formats import TablePiece, TablePieces, encode_texts
from recbench_spark.sources.list_columns import is_list, unfold_arrays
from recbench_spark.sources.paths import check_path
from recbench_spark.sources.table_pieces import open_typed
from recbench_spark.sources.text_layouts import is_folder
from recbench_spark.sources.text_lines import StoredTable
from recbench_spark.sources.times import LATEST, MICROS_PER_UNIT, coarser_unit, describe_misread_times
from recbench_spark.storage.packed_blocks import Block, buffer_rows, partition_rows

if TYPE_CHECKING:  # workers import this module and need no settings
    from recbench_spark.config import Dataset

COLUMNS = ("user_id", "item_id", "rating", "event_time")

INSTANTS = (pa.timestamp("us", "UTC"), pa.timestamp("ms", "UTC"))


@dataclass(frozen=True)
class ColumnarLog:
    """A log's row groups, and rules for converting their columns.

    Attributes:
        groups: the row groups; the driver sends them to all tasks.
        theirs: canonical column names to the log's own names, for the columns present.
        micros: microseconds per unit of time.
        whole: names of id columns with whole numbers.
        n: number of rows.
        conditions: conditions that rows hold to count.
        events: names of the rows' events; None: rows have none.
    """

    groups: tuple[TablePiece, ...]
    theirs: Mapping[str, str]
    micros: int
    whole: frozenset[str]
    n: int
    conditions: tuple[Condition, ...] = ()
    events: EventNames | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of converted rows."""
        return (*COLUMNS, *([EVENT] if self.events else []))


def open_columnar_log(dataset: Dataset) -> ColumnarLog | None:
    """Find a clean log's row groups, or return None.

    Only file footers are read. None: the log takes two passes.
    """
    source_names = {name: dataset.columns.get(name, name) for name in COLUMNS}
    if not dataset.is_typed or list_attributes(dataset) or dataset.until or dataset.bad_rows == "reject":
        return None
    try:
        opened = open_groups(dataset)
    except RecbenchError:  # the other way says why
        return None
    if any(isinstance(piece, UnfoldedPiece) for piece in opened.pieces):
        return None
    types = _find_types(opened.schema, source_names)
    if not set(dataset.columns) <= types.keys() or not _is_plain(types, dataset.time_unit):
        return None
    present = {name: source_names[name] for name in types}
    micros = MICROS_PER_UNIT.get(dataset.time_unit, 1)
    whole = frozenset(name for name in IDS if pa.types.is_integer(types[name]))
    conditions = make_conditions(dataset, dataset.time_unit, present.get("event_time"))
    if not opened.n or not {*dataset.value_columns} <= {*opened.schema.names}:
        return None
    events = name_events(dataset)
    texts = [name for name in dataset.value_columns if is_text(opened.schema.field(name).type)]
    encoded = tuple(name for name in dict.fromkeys(texts) if name not in present.values())
    pieces = tuple(encode_texts(piece, encoded) for piece in opened.pieces) if encoded else opened.pieces
    return ColumnarLog(pieces, present, micros, whole, opened.n, conditions, events)


def open_groups(dataset: Dataset) -> TablePieces:
    """Open a log's row groups; errors as `table_pieces.open_typed`.

    Where a row holds the items of a user or session in an array, each of them is a row, with its entries in
    the other arrays. Fields in an array of structs are columns, such as `events.item`.
    """
    path, wanted = str(dataset.path), {*dataset.source_names.values(), *list_attributes(dataset)}
    wanted |= {*dataset.value_columns}
    if dataset.reader != "delta":
        check_path(path)
    within = {name.rpartition(".")[0] for name in wanted if "." in name}
    opened = open_typed(path, dataset.reader, wanted | within, dataset.options)
    return _unfold_pieces(opened, dataset.source_names.get("item_id", ""), wanted, path)


def list_attributes(dataset: Dataset) -> tuple[str, ...]:
    """Return the columns kept of a log's rows: attributes, and that of queries."""
    return tuple(dict.fromkeys((*dataset.attributes, *([dataset.query] if dataset.query else []))))


@dataclass(frozen=True)
class UnfoldedPiece:
    """Rows with arrays, of which each entry is a row.

    Attributes:
        piece: the rows as they are stored.
        lists: names of the array columns, the items' first; `events.item` is a field of `events`.
        stored: columns of the rows as they are stored.
        where: the log's name in messages.
    """

    piece: TablePiece
    lists: tuple[str, ...]
    stored: frozenset[str]
    where: str

    @property
    def file(self) -> str:
        """The file with these rows."""
        return self.piece.file

    def read(self, columns: Sequence[str]) -> Iterator[StoredTable]:
        """Yield some columns of the unfolded rows."""
        lists = [name for name in self.lists if name in columns or name == self.lists[0]]
        own = [self._find_stored(name) for name in (*columns, *lists)]
        for stored in self.piece.read(list(dict.fromkeys(own))):
            table = stored.table
            for name in [name for name in lists if name not in self.stored]:
                table = table.append_column(
                    name, _select_field(table.column(self._find_stored(name)), name)
                )
            rest = [name for name in columns if name not in lists]
            unfolded, _ = unfold_arrays(table.select([*rest, *lists]), lists, self.where)
            yield StoredTable(pa.table(unfolded).select(list(columns)))

    def _find_stored(self, name: str) -> str:
        return name if name in self.stored else name.rpartition(".")[0]


def _select_field(column: pa.ChunkedArray, name: str) -> pa.Array:
    """Return arrays of one field from arrays of structs."""
    rows = combine_column(column)
    ends = np.cumsum(pc.fill_null(pc.list_value_length(rows), 0).to_numpy(), dtype=np.int64)
    field = pc.struct_field(rows.flatten(), name.rpartition(".")[2])
    return pa.LargeListArray.from_arrays(pa.array(np.append(0, ends)), field)


def _unfold_pieces(opened: TablePieces, item: str, wanted: Collection[str], path: str) -> TablePieces:
    """Return a log's rows, one for each entry where items are in arrays."""
    fields = {one.name: one.type for one in opened.schema}
    lists = {name: kind.value_type for name, kind in fields.items() if name in wanted and is_list(kind)}
    for name in wanted - fields.keys():
        column, _, field = name.rpartition(".")
        kind = fields.get(column, pa.null())
        if is_list(kind) and pa.types.is_struct(kind.value_type):
            place = kind.value_type.get_field_index(field)
            lists |= {} if place < 0 else {name: kind.value_type.field(place).type}
    if item not in lists:
        return opened
    order = (item, *sorted(lists.keys() - {item}))
    kept = [one for one in opened.schema if one.name not in lists]
    schema = pa.schema([*kept, *(pa.field(name, lists[name]) for name in order)])
    stored = frozenset(fields)
    pieces = tuple(UnfoldedPiece(piece, order, stored, path) for piece in opened.pieces)
    return replace(opened, pieces=pieces, schema=schema)


def _find_types(schema: pa.Schema, source_names: Mapping[str, str]) -> dict[str, pa.DataType]:
    """Return the types in the log's columns.

    The result is empty if a name is ambiguous, or rows have a part.
    """
    lower = [name.lower() for name in schema.names]
    if len(set(lower)) < len(lower) or "part" in lower:
        return {}
    present = {name: source for name, source in source_names.items() if source.lower() in lower}
    if any(name not in schema.names or is_folder(schema.field(name)) for name in present.values()):
        return {}
    return {name: schema.field(source).type for name, source in present.items()}


def _is_plain(types: Mapping[str, pa.DataType], unit: str) -> bool:
    """Return whether both ids exist, in types which Spark shares."""
    other = {"rating": (pa.float32(), pa.float64()), "event_time": INSTANTS}
    whole = {name for name, kind in types.items() if pa.types.is_integer(kind) and kind != pa.uint64()}
    if not {*IDS} <= types.keys() or ("event_time" in whole and unit not in MICROS_PER_UNIT):
        return False
    rest = types.keys() - whole
    return all(types[name] in other[name] if name in other else is_text(types[name]) for name in rest)


# --------------------------------------------------------------------------------- in a task


def read_log(
    numbers: Iterable[int], columns: Sequence[str], files: ColumnarLog, readers: int
) -> Iterator[pa.Table]:
    """Yield each `readers`th row group, from each number on.

    Raises:
        FallbackToSpark: a value needs a second look.
    """
    wanted = replace(files, theirs={name: own for name, own in files.theirs.items() if name in columns})
    names = list(dict.fromkeys(wanted.theirs.values())) or [files.theirs["user_id"]]
    if EVENT not in columns:
        wanted = replace(wanted, events=None)
    compared = [condition.column for condition in files.conditions]
    compared += [wanted.events.column] if wanted.events else []
    names = list(dict.fromkeys((*names, *compared)))
    for number in numbers:
        for rows in _read_batches(files.groups[number::readers], names):
            yield pa.Table.from_batches([_convert_batch(_drop_unselected(rows, files.conditions), wanted)])


def read_compared(
    numbers: Iterable[int], columns: Sequence[str], files: ColumnarLog, readers: int
) -> Iterator[pa.Table]:
    """Yield each `readers`th row group as it is stored, from each number on."""
    for number in numbers:
        for rows in _read_batches(files.groups[number::readers], list(columns)):
            yield pa.Table.from_batches([rows])


def _drop_unselected(rows: pa.RecordBatch, conditions: Sequence[Condition]) -> pa.RecordBatch:
    if not conditions:
        return rows
    return rows.filter(pa.array(select_rows(pa.Table.from_batches([rows]), conditions).kept_r))


def deal_owners(tables: Iterable[pa.Table], owner: str, tasks: int) -> Iterator[Block]:
    """Partition rows in blocks by a hash of the owner.

    A task writes `buffer_rows` rows at a time.
    """
    batches = (batch for table in tables for batch in table.to_batches())
    for log in chunks(batches, buffer_rows(tasks)):
        yield from partition_rows(log, _assign_tasks(log.column(owner), tasks))


def _read_batches(groups: Sequence[TablePiece], columns: list[str]) -> Iterator[pa.RecordBatch]:
    for group in groups:
        try:
            for stored in group.read(columns):
                yield from stored.table.to_batches()
        except DataError as error:
            raise FallbackToSpark(error.message) from None


def _convert_batch(rows: pa.RecordBatch, files: ColumnarLog) -> pa.RecordBatch:
    if any(column.null_count for column in rows.columns):
        raise FallbackToSpark("a value is missing")
    columns = {name: rows.column(source) for name, source in files.theirs.items()}
    ids = {name: _convert_ids(columns[name]) for name in IDS if name in columns}
    ratings = columns.get("rating", pa.array(np.ones(rows.num_rows))).cast(pa.float64(), safe=False)
    if not np.isfinite(ratings.to_numpy()).all():
        raise FallbackToSpark("a rating is not finite")
    times = pa.nulls(rows.num_rows, pa.int64())
    if "event_time" in columns:
        times = _convert_times(columns["event_time"], files.micros)
    events = {EVENT: _encode_events(rows, files.events)} if files.events else {}
    return pa.RecordBatch.from_pydict({**ids, "rating": ratings, "event_time": times, **events})


def _encode_events(rows: pa.RecordBatch, events: EventNames) -> pa.Array:
    try:
        codes = events.encode(rows.column(events.column))
    except ConfigError as error:
        raise FallbackToSpark(error.message) from None
    if codes.null_count:
        raise FallbackToSpark("a row has no event")
    return codes


def _convert_ids(column: pa.Array) -> pa.Array:
    if pa.types.is_integer(column.type):
        return column.cast(pa.int64())
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        raise FallbackToSpark("an id is not UTF-8") from None
    if drop_empty(column).null_count:
        raise FallbackToSpark("a text without a letter is no id")
    return column.cast(pa.string())


def _convert_times(column: pa.Array, micros: int) -> pa.Array:
    """Convert times to microseconds since 1970."""
    try:
        if pa.types.is_timestamp(column.type):
            times = column.cast(pa.timestamp("us", "UTC")).cast(pa.int64())
        else:
            times = pc.multiply_checked(column.cast(pa.int64()), micros)
    except pa.ArrowInvalid:
        raise FallbackToSpark("a time is out of range") from None
    if not len(times):
        return times
    low, high = pc.min_max(times).as_py().values()
    # Two passes check all rows of a log whose times may be of another unit.
    if pa.types.is_timestamp(column.type):
        if describe_misread_times("", "", (low, high)):
            raise FallbackToSpark("the times may have been made in another unit")
    elif coarser_unit(low // micros, high // micros, UNIT_NAMES[micros]):
        raise FallbackToSpark("the times may be of another unit")
    if high >= LATEST:
        raise FallbackToSpark("a time is beyond the years that a log can have")
    return times


UNIT_NAMES = {factor: name for name, factor in MICROS_PER_UNIT.items()}


def _assign_tasks(owners: pa.ChunkedArray, tasks: int) -> npt.NDArray[np.int32]:
    """Assign rows to tasks, each owner's to one, by hash."""
    if pa.types.is_integer(owners.type):
        # Multiplicative hashing (Knuth, The Art of Computer Programming 3, 6.4), high bits folded in.
        id_r = owners.to_numpy().view(np.uint64)
        mixed = ((id_r ^ (id_r >> np.uint64(32))) * np.uint64(2654435761)) >> np.uint64(16)
        return np.asarray(mixed % np.uint64(tasks), np.int32)
    encoded = owners.combine_chunks().dictionary_encode()
    hashes = [crc32(owner) % tasks for owner in encoded.dictionary.cast(pa.binary()).to_pylist()]
    return np.asarray(np.array(hashes, np.int32)[encoded.indices.to_numpy()], np.int32)
