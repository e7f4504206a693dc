"""Read logs and tables which Spark alone reads.

They are tables in a catalog, Delta with some features, or files on Hadoop's storage. Rows come as stored;
`opened_logs` converts and checks them like those from other logs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from recbench_spark.config import Dataset
from recbench_spark.core.inputs import Options, find_version, time_travel_options
from recbench_spark.engine.sessions import SparkEngine
from recbench_spark.engine.versions import add_columns, read_setting
from recbench_spark.errors import FallbackToSpark
from recbench_spark.runtime.indexing import add_row_index
from recbench_spark.sources import columnar
from recbench_spark.sources.log_checks import PLACE
from recbench_spark.sources.log_sources import Finder, RawLog, TextLog, find_text_files, open_raw_log
from recbench_spark.sources.opened_logs import OpenedLog, check_log
from recbench_spark.sources.paths import check_path, exists
from recbench_spark.sources.readers import paths
from recbench_spark.sources.readers.paths import explain_errors, strip_host
from recbench_spark.sources.text_layouts import REPLACEMENT
from recbench_spark.sources.text_pieces import BAD_LINE, FILE, HIDDEN, LinePiece, cut_text
from recbench_spark.sources.times import CHECKED
from recbench_spark.storage.blocks import ChangedRows, Engine, Rows
from recbench_spark.storage.frame_blocks import FrameRows
from recbench_spark.storage.shared_arrays import escape_path
from recbench_spark.storage.spark_places import is_delta, share_access
from recbench_spark.storage.sql_quotes import quote_sql


def open_log(spark: SparkSession, dataset: Dataset, *, placed: bool = False) -> OpenedLog:
    """Open and check a log, in tasks or with Spark.

    Spark reads only what tasks cannot reach.

    Args:
        spark: the session.
        dataset: the log.
        placed: whether rows in a frame know their place.

    Raises:
        ConfigError, SchemaError, DataError: as `check_log`.
    """
    keeps = prepare_session(spark, dataset.path or "")
    try:
        return check_log(open_raw_log(dataset), dataset, SparkEngine(spark), keeps_replacements=keeps)
    except FallbackToSpark:
        raw = open_frames(spark, dataset, placed=placed)
    with explain_errors(raw.where):
        return check_log(raw, dataset, SparkEngine(spark), keeps_replacements=keeps)


def open_frames(spark: SparkSession, dataset: Dataset, *, placed: bool = False) -> RawLog:
    """Open a log as Spark reads it; arguments as `open_log`."""
    if dataset.is_typed:
        raw = _make_raw(open_table(spark, str(dataset.path), dataset.options), dataset)
    else:
        raw = read_text_files(spark, partial(find_text_files, dataset))
    return replace(raw, open=partial(_number_rows, open_rows=raw.open)) if placed else raw


def _number_rows(engine: Engine, open_rows: Callable[[Engine], Rows]) -> Rows:
    rows = open_rows(engine)
    return replace(rows, frame=add_row_index(rows.frame, PLACE)) if isinstance(rows, FrameRows) else rows


# --------------------------------------------------------------------------------------- text


def read_text_files(spark: SparkSession, find: Callable[[Finder], TextLog]) -> RawLog:
    """Read files in a known layout, one task per file."""
    names_of, head_of = partial(paths.list_names, spark), partial(paths.read_file_head, spark)
    log = find(Finder(partial(paths.is_folder, spark), names_of, head_of, partial(paths.list_files, spark)))
    pieces = {strip_host(file): LinePiece(file, 0, -1, layout, given) for given, file, layout in log.files}
    names = (*log.names, BAD_LINE, FILE)
    return log.make_raw(partial(_open_contents, spark=spark, pieces=pieces, names=names))


def _open_contents(
    engine: Engine, spark: SparkSession, pieces: Mapping[str, LinePiece], names: tuple[str, ...]
) -> Rows:
    files = [escape_path(piece.path) for piece in pieces.values()]
    frame = spark.read.format("binaryFile").load(files).select("path", "content")
    change = partial(_cut_contents, pieces=pieces, names=names)
    return ChangedRows(FrameRows(frame), ("path", "content"), change, names)


def _cut_contents(rows: pa.Table, pieces: Mapping[str, LinePiece], names: Sequence[str]) -> pa.Table:
    tables = [pa.table({name: pa.array([], pa.string()) for name in names})]
    for path, content in zip(rows["path"].to_pylist(), rows["content"].to_pylist(), strict=True):
        piece = pieces[strip_host(path)]
        tables.append(cut_text(paths.unpack(content, path), piece._replace(path=path), names))
    return pa.concat_tables(tables)


# -------------------------------------------------------------------------------------- tables


def prepare_session(spark: SparkSession, path: str) -> bool:
    """Let a session reach a path's storage.

    The result says whether U+FFFD is a letter in its text.
    """
    share_access(spark, path)
    return read_setting(spark, REPLACEMENT) == "keep"


def open_table(spark: SparkSession, path: str, options: Options | None = None) -> DataFrame:
    """Open a catalog's table, Delta, or Parquet.

    With options, each row names its file (FILE).

    Raises:
        MissingError: there is no such path or table. DataError: it cannot be read.
    """
    paths.reach_storage(spark, path)
    settings, version = dict(options or {}), find_version(path, options)
    if version is not None:  # Delta in the version whose identity was recorded
        travel = time_travel_options(settings)
        settings = {name: value for name, value in settings.items() if name not in travel}
        settings["versionAsOf"] = str(version)
    reader = spark.read.options(**settings)
    if not exists(path) and paths.is_table(spark, path):
        return reader.table(path)
    check_path(path)
    with explain_errors(path):
        if is_delta(spark, path):
            frame = reader.format("delta").load(path)
        else:
            frame = reader.option("mergeSchema", "true").parquet(escape_path(path))
        return frame if options is None else frame.select("*", F.col("_metadata.file_path").alias(FILE))


def _make_raw(frame: DataFrame, dataset: Dataset) -> RawLog:
    """Return a frame as a log, with attributes as text."""
    names = tuple(name for name in frame.columns if name not in HIDDEN)
    kept = (name for name in columnar.list_attributes(dataset) if name in names)
    texts = {name: F.col(quote_sql(name, "`")).cast("string") for name in kept}
    if FILE not in frame.columns:
        texts[FILE] = F.lit(None).cast("string")
    rows = _open_columns(add_columns(frame, texts))
    return RawLog(
        lambda _: rows,
        names,
        str(dataset.path),
        source_names=dataset.columns,
        time_unit=dataset.time_unit,
        checked=frozenset(field.name for field in frame.schema if CHECKED in field.metadata),
    )


def _open_columns(frame: DataFrame) -> Rows:
    """Return a frame as rows, with dots in column names.

    PySpark sends no such column to tasks.
    """
    names = tuple(frame.columns)
    if not any("." in name for name in names):
        return FrameRows(frame)
    plain = tuple(f"c{n}" for n in range(len(names)))
    change = partial(pa.Table.rename_columns, names=list(names))
    return ChangedRows(FrameRows(frame.toDF(*plain)), plain, change, names)
