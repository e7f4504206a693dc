"""Logs and labelled rows as frames of Spark, for tests that look at them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType

from recbench_spark.config import Dataset, Split, WorldSettings
from recbench_spark.core.ids import CANONICAL_INTEGER
from recbench_spark.engine.local import LocalEngine
from recbench_spark.engine.sessions import SparkEngine
from recbench_spark.engine.versions import collect_arrow, make_frame
from recbench_spark.errors import FallbackToSpark
from recbench_spark.schemas import ID_KIND, IDS, INTERACTIONS, REJECTS, SPLITS
from recbench_spark.sources import arrow_files
from recbench_spark.sources.log_survey import RowFacts
from recbench_spark.sources.opened_logs import OpenedLog, fill_columns
from recbench_spark.sources.readers import logs
from recbench_spark.sources.readers.logs import open_table
from recbench_spark.sources.text_lines import StoredTable
from recbench_spark.splits import rules
from recbench_spark.splits.labels import read_dropped
from recbench_spark.splits.rules import open_world
from recbench_spark.storage.blocks import PieceRows, TaskRows, return_rows
from recbench_spark.storage.frame_blocks import FrameRows, make_frame_rows, open_frame
from recbench_spark.storage.spark_types import spark_columns, spark_schema


def open_log(spark: SparkSession, dataset: Dataset) -> SimpleNamespace:
    """Open a log as a night does, and return its rows as frames; the columns of ids know their order."""
    opened = logs.open_log(spark, dataset)
    rows = make_log_frame(spark, opened)
    for name in IDS:
        rows = rows.withMetadata(name, {ID_KIND: "integer" if name in opened.numeric else "string"})
    rejects = None
    if opened.rejects is not None:
        rejects = make_frame_rows(spark, opened.rejects, spark_schema(REJECTS))
    return SimpleNamespace(
        rows=rows, n=opened.n, rejects=rejects, rejected=opened.rejected, reasons=opened.reasons
    )


def read_table(spark: SparkSession, path: str, needed: Sequence[str], what: str) -> DataFrame:
    """Return a table at a path, or of the catalog; the columns of ids know how they were stored."""
    try:
        rows = arrow_files.read_table(path, needed, what)
    except FallbackToSpark:
        stored = StoredTable(collect_arrow(open_table(spark, path)))
        rows = arrow_files.check_table(stored, needed, what, path)
    plain = [pa.string() if pa.types.is_dictionary(kind) else kind for kind in rows.schema.types]
    frame = make_frame(spark, rows.cast(pa.schema(list(zip(rows.schema.names, plain, strict=True)))))
    for name in {*IDS} & {*rows.schema.names}:
        notes = {key.decode(): value.decode() for key, value in rows.schema.field(name).metadata.items()}
        frame = frame.withMetadata(name, notes)
    return frame


def read_log(spark: SparkSession, dataset: Dataset) -> DataFrame:
    """Return the rows of `open_log`, or of a world."""
    if dataset.reader != "world":
        return open_log(spark, dataset).rows
    return make_log_frame(spark, open_world(SparkEngine(spark), dataset, None))


def read_world(spark: SparkSession, world: WorldSettings) -> DataFrame:
    """Return the rows of a world."""
    return read_log(spark, Dataset(name="world", reader="world", world=world))


def make_log_frame(spark: SparkSession, log: OpenedLog) -> DataFrame:
    """Return the rows of a log as a frame in `INTERACTIONS`."""
    return open_frame(spark, fill_columns(log), spark_columns(INTERACTIONS))


def id_order(frames: Iterable[DataFrame], name: str = "item_id") -> str:
    """Return `numeric` where the ids of all frames are ordered as numbers, else `bytes`."""
    return "numeric" if all(_are_numbers(frame, name) for frame in frames) else "bytes"


def _are_numbers(frame: DataFrame, name: str) -> bool:
    field = frame.schema[name]
    kind = field.metadata.get(ID_KIND, "string" if field.dataType == StringType() else "integer")
    if kind == "text":
        return frame.where(~F.col(name).rlike(CANONICAL_INTEGER)).isEmpty()
    return bool(kind == "integer")


@dataclass(frozen=True)
class Labelled:
    spark: SparkSession
    blocks: TaskRows

    def rows(self) -> DataFrame:
        return make_frame_rows(self.spark, self.blocks, spark_schema(SPLITS))


def label_blocks(
    log: DataFrame,
    split: Split,
    duplicates: Any = None,
    n: int | None = None,
    numeric: bool = False,
    *,
    every_fold: bool = False,
) -> Labelled:
    """Label the rows of a frame."""
    spark = log.sparkSession
    if "part" not in log.columns:
        log = log.withColumn("part", F.lit(None).cast("string"))
    (counts,) = log.agg(
        F.count("*").alias("n"),
        F.count_if(F.expr("part IS NULL")).alias("unparted"),
        F.count_if(F.expr("part IS NULL AND event_time IS NULL")).alias("undated"),
    ).collect()
    facts = RowFacts(unparted=counts.unparted, undated_unparted=counts.undated)
    n = counts.n if n is None else n
    opened = OpenedLog(
        FrameRows(log), tuple(log.columns), n, frozenset(IDS) if numeric else frozenset(), facts=facts
    )
    dataset = Dataset(name="log", reader="parquet", path="log", duplicates=duplicates or "keep_last")
    return Labelled(
        spark, rules.label_log(opened, dataset, split, SparkEngine(spark), every_fold=every_fold)
    )


def label_rows(
    rows: Sequence[Sequence[Any]], split: Split, duplicates: Any = None, pieces: int = 1
) -> list[SimpleNamespace]:
    """Label rows in the order of `INTERACTIONS` on this machine, cut into pieces."""
    columns = zip(*rows, strict=True) if rows else ([] for _ in INTERACTIONS)
    arrays = [
        pa.array([list(one.items()) if isinstance(one, dict) else one for one in column], field.type)
        for column, field in zip(columns, INTERACTIONS, strict=True)
    ]
    table = pa.Table.from_arrays(arrays, schema=INTERACTIONS)
    unparted = [row for row in rows if row[4] is None]
    undated = sum(row[3] is None for row in unparted)
    facts = RowFacts(unparted=len(unparted), undated_unparted=undated)
    engine, step = LocalEngine(""), -(-max(len(rows), 1) // pieces)
    cut = [table.slice(start, step) for start in range(0, len(table), step)]
    opened = OpenedLog(
        PieceRows(engine, cut, open_pieces), tuple(INTERACTIONS.names), len(rows), frozenset(), facts=facts
    )
    dataset = Dataset(name="log", reader="parquet", path="log", duplicates=duplicates or "keep_last")
    made = rules.label_log(opened, dataset, split, engine).each(return_rows)
    return [SimpleNamespace(**row) for one in made for row in one.to_pylist()]


def open_pieces(pieces: Sequence[pa.Table], columns: Sequence[str]) -> Iterable[pa.Table]:
    return (piece.select(columns) for piece in pieces)


def count_dropped_rows(labelled: Labelled) -> Counter[tuple[str, str]]:
    return sum(labelled.blocks.each(read_dropped), start=Counter())
