"""Result of one evaluation, before it is written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa

from recbench_spark.checks import Check

if TYPE_CHECKING:  # results of this process need no Spark
    from pyspark.sql import DataFrame

PART = "test"
"""Name of the held-out part of evaluations without a split."""


@dataclass(frozen=True)
class Result:
    """Result of an evaluation on Spark. Frames are lazy; Spark caches rankings until `release`.

    Attributes:
        metrics, user_metrics: rows of the tables of these names.
        rankings: one row per user (`schemas.RANKINGS`), None for predictions.
        checks: checks of the inputs and rankings.
        kept: frames that Spark caches.
        truth: for predictions, a hash of the outcomes.
    """

    metrics: DataFrame
    user_metrics: DataFrame
    rankings: DataFrame | None
    checks: list[Check]
    kept: tuple[DataFrame, ...] = ()
    truth: str | None = None

    def release(self) -> None:
        """Drop the frames that Spark caches."""
        for frame in self.kept:
            frame.unpersist()


class ShownTable:
    """An Arrow table with the method `show` of Spark frames; all other attributes are those of the table.

    Functions that accept only a `pyarrow.Table` need the attribute `table`, or `pyarrow.table(this)`.
    """

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def show(self, n: int = 20, truncate: bool | int = True) -> None:
        """Print the first rows.

        Args:
            n: number of rows.
            truncate: largest number of characters of a cell; True: 20, False: all.
        """
        rows = self.table.slice(0, n).to_pandas()
        width = 20 if truncate is True else truncate or None
        with pd.option_context("display.max_colwidth", width):
            print(rows.to_string(index=False, na_rep="NULL"))
        if len(self.table) > n:
            print(f"only the first {n} of {len(self.table):,} rows")

    def toArrow(self) -> pa.Table:  # noqa: N802 (as Spark calls it)
        """Return the table, like a Spark frame."""
        return self.table

    def toPandas(self) -> pd.DataFrame:  # noqa: N802 (as Spark calls it)
        """Return the rows as a pandas frame, like a Spark frame; `to_pandas` is the method of the table."""
        frame: pd.DataFrame = self.table.to_pandas()
        return frame

    def equals(self, other: ShownTable | pa.Table, **how: Any) -> bool:
        """Return whether the other table has the same columns and values."""
        return bool(self.table.equals(getattr(other, "table", other), **how))

    def __getattr__(self, name: str) -> Any:
        """Return the attribute of the table."""
        if name == "table":  # copy and pickle ask for attributes before `table` exists
            raise AttributeError(name)
        return getattr(self.table, name)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Export the table to polars, DuckDB, pandas and other libraries that read Arrow."""
        return self.table.__arrow_c_stream__(requested_schema)

    def __len__(self) -> int:
        """Count the rows."""
        return len(self.table)

    def __getitem__(self, key: Any) -> Any:
        """Return a column, or some rows."""
        return self.table[key]

    def __eq__(self, other: object) -> bool:
        """Return whether the other is an equal table."""
        return isinstance(other, ShownTable | pa.Table) and self.equals(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        """Return the representation of the table."""
        return repr(self.table)


def to_arrow(rows: DataFrame | ShownTable | pa.Table) -> pa.Table:
    """Return the rows of an engine's table as Arrow; Spark computes its frames for it."""
    return rows if isinstance(rows, pa.Table) else rows.toArrow()


@dataclass(frozen=True)
class LocalResult:
    """Result of an evaluation in this process, as Arrow tables (`to_pandas()` converts them).

    Attributes:
        metrics, user_metrics: rows of the tables of these names, without a run; they have `show`.
        rankings: one row per user, None for predictions.
        checks: checks of the inputs and rankings.
        truth: for predictions, a hash of the outcomes.
    """

    metrics: ShownTable
    user_metrics: ShownTable
    rankings: pa.Table | None
    checks: list[Check]
    truth: str | None = None

    def release(self) -> None:
        """Do nothing: this result caches no frames."""
