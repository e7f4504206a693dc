"""Frames of Spark in blocks with a thousand rows.

Spark writes, sorts, compresses and reads every row of a shuffle by itself. Where Python processes the rows
anyway, it partitions them into blocks before the shuffle and unpacks them after it.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any, cast

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from recbench_spark.core.streams import Batches, chunks
from recbench_spark.engine.measures import Measures
from recbench_spark.engine.sessions import Py4JError, SparkEngine, open_hadoop
from recbench_spark.engine.tasks import Tasks
from recbench_spark.engine.versions import arrow_schema, read_setting, send_to_tasks, union_rows
from recbench_spark.errors import ConfigError
from recbench_spark.storage import scratch, shared_arrays
from recbench_spark.storage.blocks import (
    Blocks,
    Deal,
    DealFrom,
    DealtSide,
    PieceRows,
    Rows,
    TaskRows,
    cut_pieces,
    flatten_changes,
    read_sides,
    reduce_rows,
    return_rows,
)
from recbench_spark.storage.packed_blocks import (
    BLOCK_SCHEMA,
    Block,
    Change,
    Read,
    Result,
    deal_tables,
    finish_tables,
    read_block_batches,
    select_batches,
)
from recbench_spark.storage.scratch import SCRATCH
from recbench_spark.storage.shared_arrays import SharedRows
from recbench_spark.storage.sql_quotes import quote_sql
from recbench_spark.storage.uris import is_object_storage, join_uri

RESULT_SCHEMA = "found BINARY"
"""A task's pickled result."""

BATCHES = 1
"""Value of `FrameRows.most`: tasks get Spark's own batches."""

ROWS_PER_PIECE = 1 << 22
"""Rows of a partition in a task at once, 200 MB."""


@dataclass(frozen=True)
class FrameBlocks:
    """Rows dealt by a frame's shuffle, and their function.

    Attributes:
        packed: blocks (BLOCK_SCHEMA), with one task's in one partition; or whatever `read` takes.
        change, names, whole: as in `Blocks`.
        read: function from a task's batches to tables.
    """

    packed: DataFrame
    change: Change
    names: tuple[str, ...] = ()
    whole: str = ""
    read: Read = read_block_batches

    def rows(self, schema: T.StructType) -> DataFrame:
        """Return all tasks' results as rows of Spark.

        A dictionary becomes its values.
        """
        work = partial(_change_batches, read=self.read, change=self.change, names=self.names)
        return self.packed.mapInArrow(work, schema)

    def then(self, change: Change, names: tuple[str, ...]) -> FrameBlocks:
        """Return the same rows with another function."""
        return replace(self, change=change, names=names)

    def deal(self, deal: Deal, tasks: int) -> FrameBlocks:
        """Send blocks of the results to tasks: another shuffle."""
        run = partial(deal_tables, read=self.read, change=self.change, deal=deal)
        packed = self.packed.mapInArrow(partial(_pack_blocks, work=run), BLOCK_SCHEMA)
        return FrameBlocks(send_to_tasks(packed, tasks, F.col("task")), return_rows)

    def deal_from(self, deal: DealFrom, tasks: int) -> FrameBlocks:
        """Send blocks as `deal`; the function also takes its task's number."""
        run = partial(_deal_own, read=self.read, change=self.change, deal=deal)
        packed = self.packed.mapInArrow(partial(_pack_blocks, work=run), BLOCK_SCHEMA)
        return FrameBlocks(send_to_tasks(packed, tasks, F.col("task")), return_rows)

    def beside(self, others: Sequence[TaskRows], tasks: int) -> FrameBlocks:
        """Bring blocks of other shuffles to the same tasks, which read `Sides`."""
        sides = union_rows([self.packed, *(cast(FrameBlocks, one).packed for one in others)])
        packed = send_to_tasks(sides, tasks, F.col("task")) if others else self.packed
        return replace(self, packed=packed, change=return_rows, read=_read_side_batches)

    @contextmanager
    def keep(self) -> Iterator[FrameBlocks]:
        """Keep the rows of tasks, for several readings."""
        packed = self.packed.cache()
        try:
            yield replace(self, packed=packed)
        finally:
            packed.unpersist()

    def each(self, finish: Callable[[pa.Table], Result]) -> list[Result]:
        """Apply `finish` to each task's result.

        Results must be small: the driver holds them.
        """
        work = partial(_finish_batches, read=self.read, change=self.change, finish=finish)
        return _collect_results(self.packed.mapInArrow(work, RESULT_SCHEMA))


def make_frame_rows(spark: SparkSession, blocks: TaskRows, schema: T.StructType) -> DataFrame:
    """Return all tasks' results as rows of Spark.

    Warehouses need this where Spark writes.
    """
    fields = {field.name: field for field in schema}
    inside = T.StructType([fields[name] for name in blocks.names])
    if isinstance(blocks, FrameBlocks):
        return blocks.rows(inside)
    assert isinstance(blocks, Blocks)
    packed = blocks.pack()
    frame = packed.blocks() if isinstance(packed, Tasks) else spark.createDataFrame(packed, BLOCK_SCHEMA)
    return FrameBlocks(frame, return_rows, blocks.names).rows(inside)


@dataclass(frozen=True)
class FrameRows:
    """A frame's rows as pieces, which are Spark's partitions.

    `most`: rows in a task at once.
    """

    frame: DataFrame
    most: int = ROWS_PER_PIECE

    @property
    def names(self) -> tuple[str, ...]:
        """The columns."""
        return tuple(self.frame.columns)

    def each(self, columns: Sequence[str], sums: Callable[[Iterable[pa.Table]], Result]) -> list[Result]:
        """Return `sums` of each task's tables; the driver holds them."""
        rows = _select(self.frame, columns)
        return _collect_results(
            rows.mapInArrow(partial(_sum_batches, sums=sums, most=self.most), RESULT_SCHEMA)
        )

    def deal(self, columns: Sequence[str], deal: Deal, tasks: int) -> FrameBlocks:
        """Send blocks to tasks: the only shuffle."""
        blocks = self._pack(columns, deal)
        return FrameBlocks(send_to_tasks(blocks, tasks, F.col("task")), return_rows)

    def open(self, columns: Sequence[str], change: Change, names: tuple[str, ...]) -> FrameBlocks:
        """Let tasks change rows by slices, without a shuffle."""
        read = partial(chunks, rows=self.most)
        return FrameBlocks(_select(self.frame, columns), change, names, read=read)

    def rename(self, names: Mapping[str, str]) -> FrameRows:
        """Return the rows with new column names (new -> old)."""
        return replace(self, frame=self.frame.withColumnsRenamed({old: new for new, old in names.items()}))

    def unite(self, other: PieceRows, columns: Sequence[str]) -> FrameRows:
        """Return some columns of these rows and others."""
        mine = _select(self.frame, columns)
        spark, names = self.frame.sparkSession, tuple(columns)
        theirs = make_frame_rows(spark, other.open(columns, return_rows, names), mine.schema)
        return replace(self, frame=mine.unionByName(theirs))

    def deal_sides(self, sides: Sequence[DealtSide], tasks: int) -> FrameBlocks:
        """Deal several sides in one shuffle (`blocks.deal_sides`).

        The shuffled rows are the union of the sides' blocks.
        """
        spark = self.frame.sparkSession
        packed = [
            _pack_pieces(spark, side.rows.pieces, cut_pieces(side))
            if isinstance(side.rows, PieceRows)
            else cast("FrameRows", side.rows)._pack(side.columns, side.deal)
            for side in sides
        ]
        sent = send_to_tasks(union_rows(packed), tasks, F.col("task"))
        return FrameBlocks(sent, return_rows, read=_read_side_batches)

    def _pack(self, columns: Sequence[str], deal: Deal) -> DataFrame:
        work = partial(_deal_chunks, deal=deal, most=self.most)
        return _select(self.frame, columns).mapInArrow(partial(_pack_blocks, work=work), BLOCK_SCHEMA)


def _select(frame: DataFrame, columns: Sequence[str]) -> DataFrame:
    """Select columns of exactly these names, with any characters."""
    return frame.select(*(F.col(quote_sql(name, "`")) for name in columns))


def open_frame(spark: SparkSession, rows: Rows, schema: T.StructType) -> DataFrame:
    """Return rows as a frame, for work only Spark does.

    Tasks open pieces by themselves.
    """
    work = partial(_list_batches, names=tuple(schema.names))
    side = flatten_changes(rows, schema.names, work)
    if isinstance(side.rows, PieceRows):
        numbers = _number_pieces(spark, side.rows.pieces)
        run = partial(_deal_numbered, pieces=side.rows.pieces, deal=cut_pieces(side))
        return numbers.mapInArrow(run, schema)
    stored = cast("FrameRows", side.rows)
    run = partial(_deal_chunks, deal=side.deal, most=stored.most)
    return _select(stored.frame, side.columns).mapInArrow(run, schema)


def _number_pieces(spark: SparkSession, pieces: Sequence[Any]) -> DataFrame:
    return spark.range(0, len(pieces), 1, max(len(pieces), 1))


def _pack_pieces(spark: SparkSession, pieces: Sequence[Any], deal: Callable[[Any], Any]) -> DataFrame:
    work = partial(_deal_numbered, pieces=pieces, deal=deal)
    return _number_pieces(spark, pieces).mapInArrow(partial(_pack_blocks, work=work), BLOCK_SCHEMA)


def reduce_frame(measures: Measures, rows: DataFrame) -> dict[str, pa.Table]:
    """Reduce a frame by all measures, as `blocks.reduce_rows`."""
    return reduce_rows(measures, FrameRows(rows, BATCHES), SparkEngine(rows.sparkSession).count_tasks(0))


# ------------------------------------------------------------------------- what tasks do


def _deal_own(batches: Batches, read: Read, change: Change, deal: DealFrom) -> Iterator[Block]:
    """Deal blocks by a function that takes the number of the task that holds them."""
    for first in batches:
        yield from deal_tables(
            chain([first], batches), read, change, partial(deal, first.column("task")[0].as_py())
        )


def _change_batches(batches: Batches, read: Read, change: Change, names: Sequence[str]) -> Batches:
    return chain.from_iterable(finish_tables(batches, read, change, partial(select_batches, names=names)))


def _finish_batches(
    batches: Batches, read: Read, change: Change, finish: Callable[[pa.Table], Any]
) -> Batches:
    return map(_pickle_result, finish_tables(batches, read, change, finish))


def _sum_batches(batches: Batches, sums: Callable[[Iterable[pa.Table]], Any], most: int) -> Batches:
    yield _pickle_result(sums(chunks(batches, most)))


def _list_batches(tables: Iterable[pa.Table], names: Sequence[str]) -> Batches:
    return chain.from_iterable(select_batches(table, names) for table in tables)


def _deal_chunks(batches: Batches, deal: Callable[..., Iterator[Any]], most: int) -> Iterator[Any]:
    return deal(chunks(batches, most))


def _deal_numbered(
    batches: Batches, pieces: Sequence[Any], deal: Callable[[Any], Iterator[Any]]
) -> Iterator[Any]:
    numbers = (number for batch in batches for number in batch.column(0).to_pylist())
    return chain.from_iterable(deal(pieces[number]) for number in numbers)


def _pack_blocks(batches: Batches, work: Callable[[Batches], Iterator[Block]]) -> Batches:
    for task, rows in work(batches):
        columns = [pa.array([task], pa.int32()), pa.array([rows], pa.binary())]
        yield pa.RecordBatch.from_arrays(columns, ["task", "rows"])


def _read_side_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[Any]:
    return read_sides(block.as_buffer() for batch in batches for block in batch.column("rows"))


def _pickle_result(result: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([pickle.dumps(result)], pa.binary())], ["found"])


def _collect_results(frame: DataFrame) -> list[Any]:
    return [pickle.loads(row["found"]) for row in frame.collect()]


# ------------------------------------------------------------------------- rows that workers map

SETTING = "spark.recbench.scratch"
"""Spark's setting for the place of scratch (`--conf`, or a line in a properties file)."""


def base_folder(spark: SparkSession, root: str | None = None) -> str:
    """Return the place of scratch.

    The place is `spark.recbench.scratch`, else a warehouse's root, else this host's disk.

    Args:
        spark: the session.
        root: a folder of the warehouse; None: it has none (a catalog where Spark writes), or there is no
            warehouse.

    Raises:
        ConfigError: there is no root and no setting, and workers are on other hosts.
    """
    return (
        (read_setting(spark, SETTING) or "").rstrip("/")
        or root
        or local_scratch(read_setting(spark, "spark.master") or "unknown")
    )


def local_scratch(master: str) -> str:
    """Return a host's folder, for a local master's workers.

    Raises:
        ConfigError: the master is not local.
    """
    if not master.startswith("local"):
        raise ConfigError(
            f"workers of master {master} cannot read this host's disk, and {SETTING} is not set",
            f"--conf {SETTING}=FOLDER that all hosts reach: s3a://..., hdfs://... or a shared mount",
        )
    return str(shared_arrays.host_folder())


def drop_scratch(spark: SparkSession, base: str) -> None:
    """Remove this process's scratch on any storage."""
    if "://" not in base or is_object_storage(base):
        scratch.drop_scratch(base)
        return
    with suppress(Py4JError):  # a folder left behind costs only space
        files, path = open_hadoop(spark, join_uri(base, SCRATCH))
        files.delete(path, True)


def load_parquet(spark: SparkSession, *places: str) -> DataFrame:
    """Return the rows of Parquet files or folders.

    A path is a name, even with `[` or `*` in it.
    """
    reader = spark.read
    return reader.parquet(*map(shared_arrays.escape_path, places))


def share_rows(base: str, rows: DataFrame) -> SharedRows:
    """Let tasks write rows to a folder all workers read.

    The folder is new, under the base.
    """
    shared = scratch.share_rows(base, FrameRows(rows, BATCHES), rows.columns)
    return shared if shared.files else scratch.share_table(base, arrow_schema(rows).empty_table())
