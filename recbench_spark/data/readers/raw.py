"""Rows of a log as a format's reader returns them, and rules for reading them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pyspark.sql import DataFrame


@dataclass(frozen=True)
class RawLog:
    """Rows as they are stored; `logs` does the steps that all formats have in common.

    Attributes:
        frame: the columns as stored, and for text also FILE and BAD_LINE.
        where: the name of the path or table in messages.
        line: the layout of a line ("4 fields separated by ','"); empty where rows have a schema.
        source_names: canonical column names to the log's own names, where they differ.
        optional: columns of `source_names` that may be missing.
        nullable: canonical names of columns that may be NULL in some rows.
        time_unit: the unit of times that are numbers, or `timestamp`.
        find_line: returns in words where the first bad line stands; empty where the format cannot tell.
    """

    frame: DataFrame
    where: str
    line: str = ""
    source_names: Mapping[str, str] = field(default_factory=dict)
    optional: tuple[str, ...] = ()
    nullable: tuple[str, ...] = ("part",)
    time_unit: str = "s"
    find_line: Callable[[], str] = str
