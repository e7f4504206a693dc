"""What a format hands on: rows as they are stored, and how to read them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark.sql import DataFrame


@dataclass(frozen=True)
class RawLog:
    """Rows as they are stored; what is true of a log of any format is done in `logs`.

    Attributes:
        frame: the columns as stored, and for text FILE and BAD_LINE.
        where: the path or table, as errors name it.
        line: what a line should be ("4 fields separated by ','"); empty where rows have a schema.
        renamed: our names of columns to theirs, where they differ.
        optional: renamed columns that need not be there.
        nullable: our names of columns that may be NULL in some rows.
        time_unit: of a time that is a number, or `timestamp`.
    """

    frame: DataFrame
    where: str
    line: str = ""
    source_names: Mapping[str, str] = field(default_factory=dict)
    optional: tuple[str, ...] = ()
    nullable: tuple[str, ...] = ("part",)
    time_unit: str = "s"
