"""Read files with one object of JSON in each line."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import or_

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from recbench_spark.data.json_objects import MOST_HEADS, Objects, check_head
from recbench_spark.data.readers.files import TextFrame, column, input_files
from recbench_spark.data.readers.paths import explain_errors, local_path
from recbench_spark.data.text_pieces import BAD_LINE, FILE
from recbench_spark.inputs import Options
from recbench_spark.storage.shared_arrays import escape_path


def read_objects(
    spark: SparkSession,
    path: str,
    plain: Sequence[str],
    others: Sequence[str] = (),
    options: Options | None = None,
    *,
    strict: bool = True,
) -> TextFrame:
    """Read keys of the objects as text, as it is written; other lines are stored in BAD_LINE.

    A key that no object has is no column. To know the keys takes one pass over the text. Single quotes are
    those of Python, and no JSON, unless the option `allowSingleQuotes` says otherwise.

    Args:
        spark: the session.
        path: a file, or a folder of them.
        plain: keys whose values are text or numbers; an object whose value is another one is a bad line.
        others: further keys that are read.
        options: of Spark's reader.
        strict: true where a bad line is an error, so that the first lines can tell.

    Raises:
        DataError: a file is one array, or, where `strict`, its first lines are no objects.
    """
    chosen = {"allowsinglequotes": "false", **{key.lower(): text for key, text in (options or {}).items()}}
    reader = spark.read.options(**{**chosen, "primitivesAsString": "true", "mode": "PERMISSIVE"})
    with explain_errors(path):
        # Python's parser, which says what a line is, knows none of the texts that these options allow.
        widened = any(key.startswith("allow") for key in options or {}) or "linesep" in chosen
        files = [] if widened else input_files(spark, path, chosen)
    for place in filter(None, map(local_path, files[:MOST_HEADS])):
        check_head(place, plain, strict=strict)
    with explain_errors(path):
        known = reader.option("columnNameOfCorruptRecord", BAD_LINE).json(escape_path(path)).columns
        names = [name for name in dict.fromkeys([*plain, *others]) if name in known]
        # A column that is not wanted is named too: the reader of logs lists the columns that are there.
        rest = [name for name in known if name not in (*names, BAD_LINE)]
        schema = T.StructType([T.StructField(name, T.StringType()) for name in (*names, *rest, BAD_LINE)])
        frame = reader.option("columnNameOfCorruptRecord", BAD_LINE).schema(schema).json(escape_path(path))
    kept = [column(name) for name in (*names, *rest)]
    bad = _mark_nested([name for name in plain if name in known], names).alias(BAD_LINE)
    return TextFrame(frame.select(*kept, bad, F.col("_metadata.file_path").alias(FILE)), Objects.line)


def _mark_nested(plain: Sequence[str], names: Sequence[str]) -> Column:
    """Return the text of a bad line, and of an object whose value of a plain key is an object or array."""
    if not plain:
        return F.col(BAD_LINE)
    nested = [F.trim(column(name)).rlike(r"^[\[{]") & _is_json(column(name)) for name in plain]
    row = F.to_json(F.struct(*(column(name).alias(name) for name in names)))
    return F.coalesce(F.col(BAD_LINE), F.when(reduce(or_, nested), row))


def _is_json(text: Column) -> Column:
    return F.coalesce(F.get_json_object(text, "$").isNotNull(), F.lit(False))
