"""Read logs that only Spark reads: remote files, tables of a catalog, folders of partitions, rare options.

Rows come as they are stored; `opened_logs` converts and checks them as it does those of local files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from recbench_spark.config import Dataset
from recbench_spark.data.json_objects import find_bad_object
from recbench_spark.data.log_checks import PLACE
from recbench_spark.data.log_sources import Finder, RawLog, TextLog, find_text_files, open_raw_log
from recbench_spark.data.log_times import READ_MARK
from recbench_spark.data.opened_logs import OpenedLog, check_log
from recbench_spark.data.paths import check_path, exists
from recbench_spark.data.readers.files import (
    allow_encodings,
    column,
    input_files,
    keeps_replacements,
    open_reader,
    read_fields,
    read_file_head,
)
from recbench_spark.data.readers.json_lines import read_objects
from recbench_spark.data.readers.parquet import read_parquet
from recbench_spark.data.readers.paths import (
    explain_errors,
    is_folder,
    is_table,
    list_names,
    local_path,
    reach_storage,
)
from recbench_spark.data.text_layouts import Layout, read_options
from recbench_spark.data.text_pieces import BAD_LINE, FILE, HIDDEN, LinePiece, cut_text
from recbench_spark.data.times import CHECKED, TIME_FORMATS
from recbench_spark.engine.sessions import SparkEngine
from recbench_spark.engine.versions import add_columns
from recbench_spark.errors import FallbackToSpark
from recbench_spark.indexing import add_row_index
from recbench_spark.schemas import ID_TYPE
from recbench_spark.storage.blocks import ChangedRows, Engine, Rows
from recbench_spark.storage.frame_blocks import FrameRows
from recbench_spark.storage.local_files import separator, text_separator
from recbench_spark.storage.shared_arrays import escape_path


def open_log(spark: SparkSession, dataset: Dataset, *, placed: bool = False) -> OpenedLog:
    """Open and check a log: by tasks where it is in files of this machine, else by Spark.

    Args:
        spark: the session.
        dataset: the log.
        placed: whether rows of a frame know their place.

    Raises:
        ConfigError, SchemaError, DataError: as `check_log`.
    """
    keeps = keeps_replacements(spark)
    try:
        return check_log(open_raw_log(dataset), dataset, SparkEngine(spark), keeps_replacements=keeps)
    except FallbackToSpark:
        raw = open_frames(spark, dataset, placed=placed)
    with explain_errors(raw.where):
        return check_log(raw, dataset, SparkEngine(spark), keeps_replacements=keeps)


def open_frames(spark: SparkSession, dataset: Dataset, *, placed: bool = False) -> RawLog:
    """Open a log as Spark reads it; arguments as `open_log`."""
    reach_storage(spark, dataset.path or "")
    readers: dict[str, Callable[[SparkSession, Dataset], RawLog]] = {
        "csv": _read_csv, "json": _read_json, "parquet": _read_stored, "delta": _read_stored
    }  # fmt: skip
    raw = readers.get(dataset.reader, _read_text_files)(spark, dataset)
    return replace(raw, open=partial(_number_rows, open_rows=raw.open)) if placed else raw


def _number_rows(engine: Engine, open_rows: Callable[[Engine], Rows]) -> Rows:
    rows = open_rows(engine)
    return replace(rows, frame=add_row_index(rows.frame, PLACE)) if isinstance(rows, FrameRows) else rows


# ------------------------------------------------------------------------- texts of data sets


def _read_text_files(spark: SparkSession, dataset: Dataset) -> RawLog:
    return read_text_files(spark, partial(find_text_files, dataset))


def read_text_files(spark: SparkSession, find: Callable[[Finder], TextLog]) -> RawLog:
    """Read files of a known layout as a whole; a task cuts a file."""
    finder = Finder(partial(is_folder, spark), partial(list_names, spark), partial(read_file_head, spark))
    log = find(finder)
    pieces = {bare_uri(file): LinePiece(file, 0, -1, layout, part) for part, file, layout in log.files}
    names = (*log.names, BAD_LINE, FILE)
    return log.make_raw(partial(_open_contents, spark=spark, pieces=pieces, names=names))


def _open_contents(
    engine: Engine, spark: SparkSession, pieces: dict[str, LinePiece], names: tuple[str, ...]
) -> Rows:
    files = [escape_path(piece.path) for piece in pieces.values()]
    frame = spark.read.format("binaryFile").load(files).select("path", "content")
    change = partial(_cut_contents, pieces=pieces, names=names)
    return ChangedRows(FrameRows(frame), ("path", "content"), change, names)


def bare_uri(path: str) -> str:
    """Return the last two names of a path, which tell the files of a log apart."""
    return "/".join(path.rstrip("/").split("/")[-2:])


def _cut_contents(rows: pa.Table, pieces: dict[str, LinePiece], names: Sequence[str]) -> pa.Table:
    tables = [pa.table({name: pa.array([], pa.string()) for name in names})]
    for path, content in zip(rows["path"].to_pylist(), rows["content"].to_pylist(), strict=True):
        piece = pieces[bare_uri(path)]
        tables.append(cut_text(unpack(content, path), piece._replace(path=path), names))
    return pa.concat_tables(tables)


def unpack(content: bytes, path: str) -> bytes:
    """Return the text of a file."""
    ending = {".gz": "gzip", ".bz2": "bz2"}.get(path[path.rfind(".") :])
    if ending is None:
        return content
    with pa.input_stream(pa.BufferReader(content), compression=ending) as stream:
        return bytes(stream.read())


# -------------------------------------------------------------------------------------- tables


def _make_raw(frame: DataFrame, dataset: Dataset, line: str = "") -> RawLog:
    """Return a frame as a log; what Spark alone writes or reads as text is text."""
    names = tuple(name for name in frame.columns if name not in HIDDEN)
    texts = {name: column(name).cast("string") for name in dataset.attributes if name in names}
    time = dataset.source_names.get("event_time", "")
    if dataset.time_format and dataset.time_format not in TIME_FORMATS and time in names:
        read = read_pattern(column(time), dataset.time_format, dataset.time_zone)
        texts[time] = F.coalesce(F.concat(F.lit(READ_MARK), read.cast("string")), column(time))
    if FILE not in frame.columns:
        texts[FILE] = F.lit(None).cast("string")
    folders, checked = (
        frozenset(field.name for field in frame.schema if key in field.metadata)
        for key in (ID_TYPE, CHECKED)
    )
    rows = _open_columns(add_columns(frame, texts))
    return RawLog(
        lambda _: rows,
        names,
        str(dataset.path),
        0,
        line,
        dataset.columns,
        time_unit=dataset.time_unit,
        folders=folders,
        checked=checked,
    )


def read_pattern(raw: Column, pattern: str, zone: str) -> Column:
    """Return microseconds of texts by a pattern of Spark; one without an offset is of the zone."""
    parsed = F.try_to_timestamp(raw, F.lit(pattern))
    if not re.search("[XxZzVO]", re.sub("'[^']*'", "", pattern)):
        parsed = F.to_utc_timestamp(F.from_utc_timestamp(parsed, F.current_timezone()), zone)
    return F.unix_micros(parsed)


def _open_columns(frame: DataFrame) -> Rows:
    """Return a frame as rows; PySpark sends no column to tasks whose name has a point."""
    names = tuple(frame.columns)
    if not any("." in name for name in names):
        return FrameRows(frame)
    plain = tuple(f"c{n}" for n in range(len(names)))
    return ChangedRows(FrameRows(frame.toDF(*plain)), plain, partial(_rename, names=names), names)


def _rename(rows: pa.Table, names: Sequence[str]) -> pa.Table:
    return rows.rename_columns(list(names))


def _read_csv(spark: SparkSession, dataset: Dataset) -> RawLog:
    path = str(dataset.path)
    check_path(path)
    text = read_fields(spark, path, Layout(text_separator(path) or separator(path)), dataset.options)
    return _make_raw(text.frame, dataset, text.line)


def _read_json(spark: SparkSession, dataset: Dataset) -> RawLog:
    path = str(dataset.path)
    check_path(path)
    options = read_options(dataset.options)
    allow_encodings(spark, options)
    # Spark finds the ends of lines in another encoding only where it is told what ends them.
    ends = {"lineSep": "\n"} if "linesep" not in options and "encoding" in options else {}
    names, strict = list(dataset.source_names.values()), dataset.bad_rows == "error"
    text = read_objects(spark, path, names, dataset.attributes, {**ends, **dataset.options}, strict=strict)
    find = partial(_find_bad_object, spark, dataset, names)
    return replace(_make_raw(text.frame, dataset, text.line), find_line=find)


def _find_bad_object(spark: SparkSession, dataset: Dataset, names: Sequence[str]) -> str:
    places = map(local_path, input_files(spark, str(dataset.path), dataset.options))
    return find_bad_object([place for place in places if place is not None], names)


def _read_stored(spark: SparkSession, dataset: Dataset) -> RawLog:
    path = str(dataset.path)
    if dataset.reader == "delta" and not exists(path) and is_table(spark, path):
        frame = open_reader(spark, path, dataset.options).table(path)
    elif dataset.reader == "parquet":
        check_path(path)
        names = list(dataset.source_names.values())
        frame = read_parquet(spark, path, [*names, *dataset.attributes], dataset.options)
    else:
        check_path(path)
        with explain_errors(path):
            frame = open_reader(spark, path, dataset.options).format("delta").load(path)
            frame = frame.select("*", F.col("_metadata.file_path").alias(FILE))
    return _make_raw(frame, dataset)
