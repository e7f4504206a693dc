"""Read the Netflix prize's text (Bennett and Lanning, KDD Cup 2007): a movie's ratings follow its number.

    1:
    1488844,3,2005-09-06
    822109,5,2005-05-13
    2:
    ...

The input is four files `combined_data_N.txt` of many movies, or a folder of `mv_NNNNNNN.txt`, one a movie.
"""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatch
from functools import partial
from itertools import groupby, pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from recbench_spark.config import Dataset
from recbench_spark.data.readers.files import BAD_LINE, FILE, read_lines
from recbench_spark.data.readers.paths import explain_errors, find_file, is_folder, list_names
from recbench_spark.data.readers.raw import RawLog
from recbench_spark.kernels.streams import Batches

FIELDS = ("user_id", "rating", "event_time")
LINE = "'user,rating,date' under a line 'movie:'"
HEADER = "^[0-9]+:$"
FILE_PATTERNS = ("combined_data_*.txt", "mv_*.txt")

BlockStart = tuple[str, int]
"""A file and the byte at which a block of it starts."""


def read_netflix(spark: SparkSession, dataset: Dataset) -> RawLog:
    """Read ratings with the day as time, from a file or a folder of files (or its `training_set`).

    A task holds a batch of lines. `probe.txt` and `qualifying.txt` are not read.
    """
    path, singles, names = _find_files(spark, str(dataset.path))
    lines = read_lines(spark, path, names=names)
    rows = _label_single_movies(lines) if singles else _label_combined(lines, path)
    return RawLog(_split_fields(rows), path, LINE, time_unit="timestamp")


def _find_files(spark: SparkSession, path: str) -> tuple[str, bool, str]:
    """Find the folder of the files, whether each has a single movie, and a pattern of their names."""
    if not is_folder(spark, path):
        return path, fnmatch(path.rsplit("/", 1)[-1], "mv_*"), "*"
    if "training_set" in list_names(spark, path):
        path = f"{path.rstrip('/')}/training_set"
    singles = find_file(spark, path, FILE_PATTERNS).rsplit("/", 1)[-1].startswith("mv_")
    return path, singles, f"{'mv_*' if singles else 'combined_data_*'}.txt*"


def _split_fields(rows: DataFrame) -> DataFrame:
    """Split rows (item_id, line, FILE) into columns; a line without a movie or with other fields is bad."""
    fields = F.split("line", ",")
    good = F.col("item_id").isNotNull() & (F.size(fields) == len(FIELDS))
    named = [F.when(good, fields[n]).alias(name) for n, name in enumerate(FIELDS)]
    return rows.select("item_id", *named, F.when(~good, F.col("line")).alias(BAD_LINE), FILE)


def _label_single_movies(lines: DataFrame) -> DataFrame:
    """Take the movie from the name of the file; the first line must have the same number. No shuffle."""
    movie = F.regexp_extract(FILE, r"mv_0*([0-9]+)\.txt", 1)
    header = F.col("line").rlike(HEADER)
    same = F.col("line") == F.concat(movie, F.lit(":"))
    item: Column = F.when(header, F.lit(None)).otherwise(movie)
    return lines.where(~(header & same)).select(item.alias("item_id"), "line", FILE)


def _label_combined(lines: DataFrame, path: str) -> DataFrame:
    """Take the movie from the last header before a line, carried on within a block of a file.

    A block may begin in the middle of a movie. So a first pass over the lines gives the driver the last
    header of each block (one row for each 128 MB), and with it the movie in which the next block begins.
    """
    start = F.col("_metadata.file_block_start").alias("start")
    placed = lines.select("line", FILE, start)
    with explain_errors(path):
        openings = _find_openings(placed)
    return placed.mapInArrow(
        partial(_carry_movies, openings), f"item_id STRING, line STRING, {FILE} STRING"
    )


def _find_openings(placed: DataFrame) -> dict[BlockStart, str | None]:
    """Return the movie in which each block begins."""
    numbered = placed.withColumn("n", F.monotonically_increasing_id())
    header = F.when(F.col("line").rlike(HEADER), F.col("n"))
    last = F.max_by(F.regexp_replace("line", ":", ""), header).alias("last")
    blocks = numbered.groupBy(FILE, "start").agg(last).orderBy(FILE, "start").collect()
    movies: dict[BlockStart, str | None] = {}
    for file, file_blocks in groupby(blocks, key=lambda block: block[FILE]):
        movie = None
        for block in file_blocks:
            movies[file, block["start"]] = movie
            movie = block["last"] or movie
    return movies


def _carry_movies(openings: dict[BlockStart, str | None], batches: Batches) -> Batches:
    place, movie = None, None
    for batch in batches:
        for here, rows in _split_by_block(batch):
            if here != place:
                place, movie = here, openings[here]
            lines = rows.column("line")
            header = pc.match_substring_regex(lines, HEADER)
            names = pc.if_else(header, pc.utf8_rtrim(lines, ":"), pa.scalar(None, pa.string()))
            opened = pa.concat_arrays([pa.array([movie], pa.string()), names])
            movies = pc.fill_null_forward(opened).slice(1)
            movie = movies[-1].as_py()
            columns = [movies, lines, rows.column(FILE)]
            named = pa.RecordBatch.from_arrays(columns, ["item_id", "line", FILE])
            yield named.filter(pc.invert(header))


def _split_by_block(batch: pa.RecordBatch) -> Iterator[tuple[BlockStart, pa.RecordBatch]]:
    """Split the rows of a batch by block; the lines of a block follow each other."""
    if not batch.num_rows:
        return
    files = batch.column(FILE).dictionary_encode().indices.to_numpy()
    starts = batch.column("start").to_numpy()
    changes = np.flatnonzero((np.diff(files) != 0) | (np.diff(starts) != 0)) + 1
    for begin, end in pairwise([0, *changes.tolist(), batch.num_rows]):
        rows = batch.slice(begin, end - begin)
        yield (rows.column(FILE)[0].as_py(), rows.column("start")[0].as_py()), rows
