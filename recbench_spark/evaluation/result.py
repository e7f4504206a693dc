"""What one evaluation found, before it is written anywhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame

from recbench_spark.checks import Check

PART = "test"
"""The part that what is handed over without a split is evaluated on."""


@dataclass(frozen=True)
class Result:
    """What an evaluation found. Frames are lazy; rankings are kept by Spark until `release`.

    rankings: one row per user (`schemas.RANKINGS`), None for predictions; truth: of predictions, a hash
    of what is predicted.
    """

    metrics: DataFrame
    user_metrics: DataFrame
    rankings: DataFrame | None
    checks: list[Check]
    kept: tuple[DataFrame, ...] = ()
    truth: str | None = None

    def release(self) -> None:
        """Let Spark forget what it kept for these frames."""
        for frame in self.kept:
            frame.unpersist()


class ShownTable:
    """A table of Arrow with the method `show` of Spark's frames; all else is the table's own.

    Functions that take nothing but a `pyarrow.Table` get the attribute `table`, or `pyarrow.table(this)`.
    """

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def show(self, n: int = 20, truncate: bool | int = True) -> None:
        """Print the first rows.

        Args:
            n: how many.
            truncate: characters of a cell at most; True: 20, False: all.
        """
        rows = self.table.slice(0, n).to_pandas()
        width = 20 if truncate is True else truncate or None
        with pd.option_context("display.max_colwidth", width):
            print(rows.to_string(index=False, na_rep="NULL"))
        if len(self.table) > n:
            print(f"only the first {n} of {len(self.table):,} rows")

    def toArrow(self) -> pa.Table:  # noqa: N802 (as Spark calls it)
        """Return the table, as a frame of Spark does."""
        return self.table

    def toPandas(self) -> pd.DataFrame:  # noqa: N802 (as Spark calls it)
        """Return the rows in pandas, as a frame of Spark does; `to_pandas` is the table's own."""
        frame: pd.DataFrame = self.table.to_pandas()
        return frame

    def equals(self, other: ShownTable | pa.Table, **how: Any) -> bool:
        """Whether the other table has the same columns and values."""
        return bool(self.table.equals(getattr(other, "table", other), **how))

    def __getattr__(self, name: str) -> Any:
        """Return what the table has by this name."""
        if name == "table":  # while a copy is made there is none yet
            raise AttributeError(name)
        return getattr(self.table, name)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Hand the table over to polars, DuckDB, pandas and whoever speaks Arrow."""
        return self.table.__arrow_c_stream__(requested_schema)

    def __len__(self) -> int:
        """Count the rows."""
        return len(self.table)

    def __getitem__(self, key: Any) -> Any:
        """Return a column, or some rows."""
        return self.table[key]

    def __eq__(self, other: object) -> bool:
        """Whether the other is an equal table."""
        return isinstance(other, ShownTable | pa.Table) and self.equals(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        """Return the table's own words."""
        return repr(self.table)


@dataclass(frozen=True)
class LocalResult:
    """What an evaluation in this process found, as Arrow tables (`to_pandas()`, or any frame of yours).

    metrics, user_metrics: rows of the tables of these names, without a run; they have `show`.
    rankings: one row per user, None for predictions; truth: of predictions, a hash of what is predicted.
    """

    metrics: ShownTable
    user_metrics: ShownTable
    rankings: pa.Table | None
    checks: list[Check]
    truth: str | None = None

    def release(self) -> None:
        """Nothing is kept elsewhere."""
