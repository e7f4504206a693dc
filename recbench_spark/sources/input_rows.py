"""Check other systems' tables, and type their rows, without Spark.

One pass checks a table, on any runner. A table in memory is typed once, where it is. Tasks type all other
rows whenever they read them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from operator import add
from os import fspath
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.core.ids import WrongIds, find_wrong_ids
from recbench_spark.engine.versions import arrow_schema, is_frame
from recbench_spark.errors import DataError, FallbackToSpark
from recbench_spark.schemas import ID_KIND, ID_NAMES, ID_TYPE, IDS, require_names
from recbench_spark.sources import arrow_files, arrow_rows
from recbench_spark.sources.arrow_files import Problems
from recbench_spark.sources.column_names import ColumnNames
from recbench_spark.sources.dealt_ids import deal_ids
from recbench_spark.sources.formats import encode_texts
from recbench_spark.sources.input_rules import check_width, refuse_unusable
from recbench_spark.sources.list_columns import is_list, may_hold_texts
from recbench_spark.sources.table_pieces import open_pieces, read_rows, read_unfolded
from recbench_spark.sources.text_lines import StoredTable
from recbench_spark.sources.text_tables import TextRules, read_text
from recbench_spark.storage.blocks import ChangedRows, Engine, PieceRows, Rows, StoredRows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class InputRows:
    """Another system's table as stored, under our column names.

    Attributes:
        rows: its rows.
        schema: names and types; metadata on ids say how they were stored.
        table: the table itself, if it is in memory.
        where: the table's name in messages about values spelled in a file; empty: it is no file.
        own: our names -> those in files with typed columns; without others.
    """

    rows: StoredRows
    schema: pa.Schema
    table: pa.Table | None = None
    where: str = ""
    own: Mapping[str, str] = field(default_factory=dict)

    @property
    def columns(self) -> list[str]:
        """Names of the columns, as in a frame."""
        return list(self.schema.names)

    def select(self, names: Mapping[str, str]) -> InputRows:
        """Return some columns under other names (new -> old)."""
        schema = pa.schema([self.schema.field(old).with_name(new) for new, old in names.items()])
        if self.table is None:
            own = {new: self.own[old] for new, old in names.items() if old in self.own}
            return replace(self, rows=self.rows.rename(names), schema=schema, own=own)
        columns = [self.table.column(old) for old in names.values()]
        return open_table(_require_engine(self.rows), pa.table(columns, schema=schema))


@dataclass(frozen=True)
class CheckedInput:
    """Usable rows: ids as text, and values as numbers.

    Attributes:
        rows: the typed rows.
        names: their columns.
        n: number of rows.
        ranges: each column's smallest and largest value over rows with an item; missing if there is none.
        kinds: kind (ID_KIND) and stored type (ID_TYPE) of each id column.
        table: the typed table, if it is in memory.
        dims: length of all vectors; 0 if there are none.
    """

    rows: Rows
    names: tuple[str, ...]
    n: int
    ranges: Mapping[str, tuple[float, float]]
    kinds: Mapping[str, tuple[str, str]]
    table: pa.Table | None = None
    dims: int = 0


# ------------------------------------------------------------------------------------------ opening


def open_input(
    engine: Engine, table: Any, needed: Sequence[str], what: str, columns: ColumnNames | None = None
) -> InputRows:
    """Open a Spark frame, a table, or a path.

    Tasks open row groups, and the lines of large text files. Small ones, and lists in a text cell, are read
    here. Spark reads tables in a catalog, Delta beyond `deltalake`, and storage known to Hadoop alone.

    Args:
        engine: the runner.
        table: a frame, anything for `arrow_rows.as_table`, or a path.
        needed: required columns in a table at a path.
        what: its name in messages.
        columns: the caller's column names; None: they are ours.

    Raises:
        FallbackToSpark: only Spark reads the path, and the runner has none. SchemaError, DataError,
            MissingError: as `arrow_files.read_table`.
    """
    if isinstance(table, InputRows):
        return table
    if is_frame(table):
        return _open_frame(table if columns is None else columns.rename_frame(table, what))
    if not hasattr(table, "__fspath__") and not isinstance(table, str):
        rows = arrow_rows.as_table(table, what)
        return open_table(engine, rows if columns is None else columns.rename(rows, what))
    return _open_path(engine, fspath(table), needed, what, columns or ColumnNames())


def open_table(engine: Engine, table: pa.Table) -> InputRows:
    """Open a table in memory."""
    return InputRows(PieceRows(engine, [table], _select_tables), table.schema, table)


def _open_frame(frame: DataFrame, where: str = "") -> InputRows:
    from recbench_spark.storage.frame_blocks import FrameRows  # noqa: PLC0415

    def note(one: Any, kind: pa.Field) -> pa.Field:
        notes = {ID_TYPE: one.dataType.simpleString(), **{k: str(v) for k, v in one.metadata.items()}}
        return kind.with_metadata(notes)

    fields = [note(*pair) for pair in zip(frame.schema, arrow_schema(frame), strict=True)]
    return InputRows(FrameRows(frame), pa.schema(fields), where=where)


TEXT_HERE = 1 << 24
"""Bytes of text up to which this process reads a file whole."""


def _open_path(
    engine: Engine, path: str, needed: Sequence[str], what: str, columns: ColumnNames
) -> InputRows:
    spark, where, keeps = getattr(engine, "spark", None), f"{what} {path}", False
    if spark is not None:
        from recbench_spark.sources.readers import logs  # noqa: PLC0415

        keeps = logs.prepare_session(spark, path)
    try:
        stored = open_pieces(path, needed)
    except FallbackToSpark:
        if spark is None:
            raise
        frame = columns.rename_frame(logs.open_table(spark, path), what)
        arrow_files.check_names(frame.columns, needed, what, path)
        return _open_frame(frame, where)
    source, own = ColumnNames(columns.given), dict[str, str]()
    taken = source.take(stored.schema.names, what)
    schema = pa.schema([stored.schema.field(own).with_name(name) for name, own in taken.items()])
    item = schema.get_field_index("item_id")
    if may_hold_texts(schema.names, what) or (stored.line and stored.size <= TEXT_HERE):
        whole = arrow_files.read_whole(stored)
        rows_here = arrow_files.check_table(whole, needed, what, path, columns=columns, keeps=keeps)
        return open_table(engine, rows_here)
    columns.notes.extend(source.notes)
    if item >= 0 and is_list(schema.field(item).type):
        rename = partial(source.rename, what=what)
        unfold = partial(read_unfolded, names=stored.schema.names, rename=rename)
        schema = rename(stored.schema.empty_table()).schema
        rows: StoredRows = PieceRows(engine, stored.pieces, unfold)
    elif stored.line:
        arrow_files.check_names(schema.names, needed, what, path)
        rules = TextRules(where, path, tuple(needed), keeps=keeps).check(stored.pieces, engine, taken)
        rows = PieceRows(engine, stored.pieces, partial(read_text, taken=taken, rules=rules))
        return InputRows(rows, rules.name_types(taken))
    else:
        rows, own = PieceRows(engine, stored.pieces, read_rows).rename(taken), taken
    arrow_files.check_names(schema.names, needed, what, path)
    noted = [arrow_files.note_id_type(one) if one.name in ID_NAMES else one for one in schema]
    return InputRows(rows, pa.schema(noted), where=where, own=own)


def _select_tables(pieces: Iterable[pa.Table], columns: Sequence[str]) -> Iterator[pa.Table]:
    for table in pieces:
        yield table.select(list(columns))


# ----------------------------------------------------------------------------------------- checking


@dataclass(frozen=True)
class InputFacts:
    """Counts over some rows; those from several pieces add up.

    Attributes:
        n: number of rows.
        wrong: rows with an unusable value, by column, in the order in which they are refused.
        ranges: as in `CheckedInput`.
        ids: values which are no ids, by column.
        whole: whether a column's ids are whole numbers.
        problems: what a file spells wrong.
        lengths: the shortest and the longest vector.
        present: rows with a vector.
    """

    n: int = 0
    wrong: Mapping[str, int] = field(default_factory=dict)
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    ids: Mapping[str, WrongIds] = field(default_factory=dict)
    whole: Mapping[str, bool] = field(default_factory=dict)
    problems: Problems | None = None
    lengths: tuple[int, int] | None = None
    present: int = 0

    def __add__(self, other: InputFacts) -> InputFacts:
        """Return the facts from both pieces."""
        return InputFacts(
            self.n + other.n,
            _merge(self.wrong, other.wrong, add),
            _merge(self.ranges, other.ranges, _span),
            _merge(self.ids, other.ids, add),
            _merge(self.whole, other.whole, min),
            _join(self.problems, other.problems, add),
            _join(self.lengths, other.lengths, _span),
            self.present + other.present,
        )

    def refuse(self, what: str) -> None:
        """Refuse unusable values.

        Raises:
            DataError: for the first column with one.
        """
        if self.problems is not None:
            self.problems.refuse()
        for wrong in self.ids.values():
            raise wrong.make_error()
        refuse_unusable(self.wrong, what)


def _merge(
    one: Mapping[str, Any], other: Mapping[str, Any], join: Callable[[Any, Any], Any]
) -> dict[str, Any]:
    return {name: _join(one.get(name), other.get(name), join) for name in dict.fromkeys((*one, *other))}


def _join(one: Any, other: Any, join: Callable[[Any, Any], Any]) -> Any:
    return other if one is None else one if other is None else join(one, other)


def _span(one: tuple[Any, Any], other: tuple[Any, Any]) -> tuple[Any, Any]:
    return min(one[0], other[0]), max(one[1], other[1])


@dataclass(frozen=True)
class Typing:
    """Columns to read from some rows, and their types.

    Attributes:
        ids: id columns.
        values: value columns and their types, `long` or `double`.
        what: the rows' name in messages.
        where: as in `InputRows`.
        empty_items: whether a NULL item_id is allowed (a user with an empty truth).
        vectors: rows have a vector, and a bias if this is a column.
        others: columns which stay as they are.
    """

    ids: tuple[str, ...]
    values: Mapping[str, str]
    what: str
    where: str = ""
    empty_items: bool = False
    vectors: bool = False
    bias: bool = False
    others: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns to read."""
        more = ["vector"] * self.vectors + ["bias"] * self.bias
        return (*self.ids, *self.values, *more, *self.others)

    @property
    def names(self) -> tuple[str, ...]:
        """Columns in typed rows."""
        return (*self.ids, *self.values, *(["vector", "bias"] * self.vectors), *self.others)


def check_input(
    table: InputRows,
    values: Mapping[str, str],
    what: str,
    *,
    ids: Sequence[str] = IDS,
    empty_items: bool = False,
    others: Sequence[str] = (),
) -> CheckedInput:
    """Check ids and values in one pass; return typed rows.

    Args:
        table: the rows.
        values: column -> `long` or `double`.
        what: the rows' name in messages.
        ids: id columns.
        empty_items: whether a NULL item_id is allowed.
        others: further columns, which stay as they are.

    Raises:
        SchemaError: a column is missing, or has a type that cannot be read.
        DataError: NULL ids, or values that are NULL, NaN, infinite, not a number, or ranks below 1.
    """
    require_names(table.schema.names, [*ids, *values], what)
    rules = Typing(tuple(ids), values, what, table.where, empty_items, others=tuple(others))
    return _check(table, rules)


def check_vectors(table: InputRows, name: str, what: str, *, biased: bool = True) -> CheckedInput:
    """Check ids, vectors and biases in one pass.

    See `check_input`. Without a column, biases are 0. `refuse_twice` finds repeated ids.

    Raises:
        SchemaError: a column is missing, or holds no vectors.
        DataError: NULL ids, NaN or infinite numbers, no vectors, vectors of several lengths.
    """
    require_names(table.schema.names, [name, "vector"], what)
    bias = biased and "bias" in table.schema.names
    return _check(table, Typing((name,), {}, what, table.where, vectors=True, bias=bias))


def _check(table: InputRows, rules: Typing) -> CheckedInput:
    arrow_rows.refuse_repeated(table.schema.names, rules.columns, rules.what)
    if table.table is not None:
        typed, facts = type_table(table.table.select(list(dict.fromkeys(rules.columns))), rules)
        rows: Rows = PieceRows(_require_engine(table.rows), [typed], _select_tables)
    else:
        # Unreadable types are refused here: a task's error would have its runner's words.
        type_table(table.schema.empty_table().select(list(rules.columns)), rules)
        stored = _encode_ids(table, rules.ids)
        typed, parts = None, stored.each(rules.columns, partial(_find_facts, rules=rules))
        facts = reduce(add, parts, InputFacts())
        rows = ChangedRows(stored, rules.columns, partial(type_rows, rules=rules), rules.names)
    facts.refuse(rules.what)
    dims = 0
    if rules.vectors:
        ends = facts.lengths or (0, 0)
        dims = check_width(*ends, facts.n, facts.present, facts.n, what=rules.what)
    kinds = {name: _name_kind(table.schema.field(name), facts.whole.get(name, True)) for name in rules.ids}
    return CheckedInput(rows, rules.names, facts.n, facts.ranges, kinds, typed, dims)


def _encode_ids(table: InputRows, names: Iterable[str]) -> StoredRows:
    """Let tasks read text ids as dictionaries, where files can."""
    types = {name: table.schema.field(name).type for name in names if name in table.own}
    texts = [table.own[name] for name, kind in types.items() if arrow_rows.is_text(kind)]
    if not texts or not isinstance(table.rows, PieceRows):
        return table.rows
    return replace(table.rows, pieces=[encode_texts(piece, texts) for piece in table.rows.pieces])


def _require_engine(rows: StoredRows) -> Engine:
    assert isinstance(rows, PieceRows)
    return rows.engine


def _name_kind(column: pa.Field, whole: bool) -> tuple[str, str]:
    notes = column.metadata or {}
    kind = notes.get(ID_KIND.encode(), b"integer" if whole else b"string").decode()
    return kind, notes.get(ID_TYPE.encode(), str(column.type).encode()).decode()


def _find_facts(tables: Iterable[pa.Table], rules: Typing) -> InputFacts:
    return reduce(add, (type_table(table, rules, keep_errors=True)[1] for table in tables), InputFacts())


def type_rows(rows: pa.Table, rules: Typing) -> pa.Table:
    """Type some rows. Raises DataError for values spelled wrong."""
    typed, facts = type_table(rows, rules)
    if facts.problems is not None:
        facts.problems.refuse()
    return typed


def type_table(table: pa.Table, rules: Typing, *, keep_errors: bool = False) -> tuple[pa.Table, InputFacts]:
    """Type some rows, and count unusable values.

    keep_errors: count values which are no ids; else they raise DataError.
    """
    problems = None
    if rules.where:
        problems = Problems(rules.where, "")
        names = [name for name in rules.columns if name not in rules.ids]
        read = arrow_files.convert_columns(StoredTable(table), names, rules.where, problems)
        ids = table.select(list(rules.ids))
        table = pa.table([*ids.columns, *read.columns], [*ids.column_names, *read.column_names])
    columns: dict[str, pa.Array] = {}
    whole = {}
    for name in rules.ids:
        try:
            noted, columns[name] = arrow_rows.encode_ids(table, name, rules.what)
            whole[name] = noted.metadata[ID_KIND.encode()] == b"integer"
        except DataError:
            wrong = find_wrong_ids(table.column(name), f"{rules.what}: {name}")
            if wrong is None or not keep_errors:
                raise
            return table, InputFacts(len(table), ids={name: wrong}, problems=problems)
    values = {name: _convert(table, name, kind, rules.what) for name, kind in rules.values.items()}
    if rules.vectors:
        vectors = arrow_rows.read_column(table, "vector", rules.what)
        values["vector"] = arrow_rows.as_vectors(vectors, rules.what)
        values["bias"] = pa.array(np.zeros(len(table)))
        if rules.bias:
            values["bias"] = arrow_rows.as_double(arrow_rows.read_column(table, "bias", rules.what), "bias")
    columns |= values | {name: arrow_rows.combine_column(table.column(name)) for name in rules.others}
    facts = _count_unusable(columns, rules)
    return pa.table(columns), replace(facts, whole=whole, problems=problems)


def _convert(table: pa.Table, name: str, kind: str, what: str) -> pa.Array:
    """Convert a column, with NULL for values float64 cannot represent.

    NULL also replaces values which do not fit the type.
    """
    column = arrow_rows.read_column(table, name, what)
    return (
        arrow_rows.as_long(column, name)
        if kind == "long"
        else arrow_rows.as_double(column, name, exact=True)
    )


def _count_unusable(columns: Mapping[str, pa.Array], rules: Typing) -> InputFacts:
    valid = {name: np.asarray(columns[name].is_valid()) for name in rules.ids}
    if rules.vectors:
        vectors, (name, *_) = columns["vector"], rules.ids
        wrong = {name: int((~valid[name]).sum()), **arrow_rows.find_wrong_vectors(vectors, columns["bias"])}
        lengths = _find_ends(pc.list_value_length(vectors))
        return InputFacts(len(vectors), wrong, lengths=lengths, present=len(vectors) - vectors.null_count)
    has_item = valid.get("item_id", np.ones(len(next(iter(columns.values()))), bool))
    bad_values = {name: arrow_rows.mask_unusable(name, columns[name]) for name in rules.values}
    if rules.empty_items:
        bad_values = {name: bad & has_item for name, bad in bad_values.items()}
    needed = [name for name in rules.ids if not (rules.empty_items and name == "item_id")]
    bad_values |= {name: ~valid[name] for name in sorted(needed, key="user_id".__eq__)}
    ranges = {name: _find_ends(columns[name].filter(pa.array(has_item))) for name in rules.values}
    return InputFacts(
        len(has_item),
        {name: int(bad.sum()) for name, bad in bad_values.items()},
        {name: ends for name, ends in ranges.items() if ends is not None},
    )


def _find_ends(column: pa.Array) -> tuple[Any, Any] | None:
    """Return the smallest and the largest value, if there is any."""
    low, high = pc.min_max(column).as_py().values()
    return None if low is None else (low, high)


def count_distinct(engine: Engine, rows: CheckedInput, name: str) -> int:
    """Count the distinct ids in a column."""
    if rows.table is not None:
        return len(arrow_rows.distinct_ids([rows.table.column(name)]))
    dealt = deal_ids(engine, ((rows.rows, name),), engine.count_tasks(rows.n))
    return sum(dealt.each(len))


def refuse_twice(engine: Engine, rows: CheckedInput, name: str, what: str) -> None:
    """Refuse vectors if two have the same id.

    Raises:
        DataError: there are such vectors.
    """
    check_width(rows.dims, rows.dims, rows.n, rows.n, count_distinct(engine, rows, name), what=what)
