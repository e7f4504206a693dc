"""Read files with one object of JSON in each line."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from recbench_spark.data.readers.files import BAD_LINE, FILE, TextFrame
from recbench_spark.data.readers.paths import explain_errors
from recbench_spark.inputs import Options
from recbench_spark.storage.shared_arrays import escape_path

LINE = "an object of JSON"


def read_objects(
    spark: SparkSession, path: str, wanted: Sequence[str], options: Options | None = None
) -> TextFrame:
    """Read keys of the objects as text, as it is written; other lines are stored in BAD_LINE.

    A key that no object has is no column. To know the keys takes one pass over the text.

    Args:
        spark: the session.
        path: a file, or a folder of them.
        wanted: the keys that are read.
        options: of Spark's reader.
    """
    reader = spark.read.options(**{**(options or {}), "primitivesAsString": "true", "mode": "PERMISSIVE"})
    with explain_errors(path):
        known = reader.option("columnNameOfCorruptRecord", BAD_LINE).json(escape_path(path)).columns
        names = [name for name in dict.fromkeys(wanted) if name in known]
        # A column that is not wanted is named too: the reader of logs lists the columns that are there.
        others = [name for name in known if name not in (*names, BAD_LINE)]
        schema = T.StructType([T.StructField(name, T.StringType()) for name in (*names, *others, BAD_LINE)])
        frame = reader.option("columnNameOfCorruptRecord", BAD_LINE).schema(schema).json(escape_path(path))
    return TextFrame(frame.select("*", F.col("_metadata.file_path").alias(FILE)), LINE)
