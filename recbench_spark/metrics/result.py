"""Result of one evaluation, of one model or of several, before it is written to a warehouse."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import wraps
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from recbench_spark import __version__
from recbench_spark.core.checks import Check
from recbench_spark.engine.versions import collect_arrow, union_rows
from recbench_spark.metrics import result_views

if TYPE_CHECKING:  # results of this process need neither
    from matplotlib.figure import Figure
    from pyspark.sql import DataFrame

PART = "test"
"""Name of the held-out part of evaluations without a split."""

MODEL = "model"
"""Column of the name of a model, where a result has several."""

COLUMNS = ("metric", "k", "value", "stderr", "ci_low", "ci_high", "n", "definition")
"""Columns of the numbers of a result as it is shown."""


@dataclass(frozen=True, repr=False)
class Result:
    """Result of an evaluation by either engine.

    Spark's frames are lazy, and Spark caches rankings until `release`; this process gives Arrow tables. The
    methods below do the same with both.

    Attributes:
        metrics, user_metrics: rows of the tables of these names without a run, as frames of Spark or
            `ShownTable`, both with `show`. With several models a column `model` comes first.
        rankings: one row per user (`schemas.RANKINGS`), as a frame of Spark or a table of Arrow; None for
            predictions.
        checks: checks of the inputs and rankings.
        kept: frames that Spark caches.
        truth: for predictions, a hash of the outcomes.
        limits: the tables that decide candidates or popularity, by name (`EvaluationPlan.name_limits`).
    """

    metrics: Any
    user_metrics: Any
    rankings: Any
    checks: list[Check]
    kept: tuple[DataFrame, ...] = ()
    truth: str | None = None
    limits: Mapping[str, Any] = field(default_factory=dict)

    def release(self) -> None:
        """Drop the frames that Spark caches."""
        for frame in self.kept:
            frame.unpersist()

    def to_pandas(self, *, slices: bool = False) -> pd.DataFrame:
        """Return the numbers, one row each: metric, k, value, stderr, interval, n, definition.

        Args:
            slices: also those of slices, with their key and value.
        """
        rows = to_arrow(self.metrics)
        more = [name for name in (MODEL,) if name in rows.column_names]
        if slices:
            more += ["slice_key", "slice_value"]
        else:
            rows = rows.filter(pc.is_null(rows.column("slice_key")))
        frame: pd.DataFrame = rows.select([*more, *COLUMNS]).to_pandas().astype({"k": "Int64"})
        return frame

    def pivot(self) -> pd.DataFrame:
        """Return one row for each model and one column for each number, such as `ndcg@10`."""
        return result_views.pivot(self.to_pandas())

    def to_latex(self, path: str | PathLike[str] | None = None, digits: int = 4) -> str:
        """Return a table of the values with their intervals for a paper, which needs booktabs.

        Args:
            path: file that the text is also written to.
            digits: digits behind the point.
        """
        return result_views.write_text(result_views.to_latex(self.to_pandas(), digits), path)

    def plot(self, path: str | PathLike[str] | None = None) -> Figure:
        """Draw the values with their intervals, one panel for each metric.

        Args:
            path: file that the picture is also written to; its ending decides the format.
        """
        return result_views.save_figure(result_views.plot(self.to_pandas()), path)

    def save(self, folder: str | PathLike[str]) -> list[Path]:
        """Write the tables as Parquet, and numbers, checks and version as JSON; return the files.

        Args:
            folder: it is made where it does not exist; files of these names are replaced.
        """
        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        tables = {"metrics": self.metrics, "user_metrics": self.user_metrics, "rankings": self.rankings}
        files = []
        for name, rows in tables.items():
            if rows is not None:
                pq.write_table(to_arrow(rows), place / f"{name}.parquet")
                files.append(place / f"{name}.parquet")
        record = {
            "version": __version__,
            "metrics": json.loads(
                self.to_pandas(slices=True).to_json(orient="records", double_precision=15)
            ),
            "checks": [{**asdict(check), "passed": check.passed} for check in self.checks],
        }
        files.append(place / "result.json")
        files[-1].write_text(json.dumps(record, indent=2), encoding="utf-8")
        return files

    def __repr__(self) -> str:
        """Return the numbers of this process as text; Spark computes nothing for it."""
        failed = [check for check in self.checks if not check.passed]
        state = f"{len(self.checks)} checks, {len(failed)} did not pass"
        warnings = "".join(f"\n{line}" for line in list_warnings(self.checks))
        if not isinstance(self.metrics, ShownTable):
            return f"Result of Spark ({state}); to_pandas() computes it{warnings}"
        return f"{self.to_pandas().to_string(index=False, na_rep='')}\n{state}{warnings}"

    def _repr_html_(self) -> str:
        """Return the numbers and the checks that did not pass, as a notebook shows them."""
        return result_views.to_html(self.to_pandas(), self.checks)


class ShownTable:
    """An Arrow table with the method `show` of Spark frames; all other attributes are those of the table.

    Functions that accept only a `pyarrow.Table` need the attribute `table`, or `pyarrow.table(this)`.
    """

    def __init__(self, table: pa.Table, notes: Sequence[str] = ()) -> None:
        self.table, self.notes = table, notes

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
        print("".join(f"{note}\n" for note in self.notes), end="")

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


def list_warnings(checks: Sequence[Check]) -> list[str]:
    """Return a line for each check that did not pass."""
    return [f"warning: {check.summary_line()}" for check in checks if not check.passed]


def add_warnings(result: Result) -> Result:
    """Return a result whose numbers are shown with the checks that did not pass."""
    notes = list_warnings(result.checks)
    if isinstance(result.metrics, ShownTable):
        return replace(result, metrics=ShownTable(result.metrics.table, notes))
    metrics, show = result.metrics, result.metrics.show

    @wraps(show)
    def show_all(*args: Any, **options: Any) -> None:
        show(*args, **options)
        print("".join(f"{note}\n" for note in notes), end="")

    if notes:
        metrics.show = show_all
    return result


def to_arrow(rows: DataFrame | ShownTable | pa.Table) -> pa.Table:
    """Return the rows of an engine's table as Arrow; Spark computes its frames for it."""
    return rows if isinstance(rows, pa.Table) else collect_arrow(rows)


def combine_results(results: Mapping[str, Result]) -> Result:
    """Combine the results of several models, by one engine, into one with a column `model`."""
    names = ("metrics", "user_metrics", "rankings")
    tables = {name: _stack({model: getattr(one, name) for model, one in results.items()}) for name in names}
    checks = [
        replace(check, check=f"{model}: {check.check}")
        for model, one in results.items()
        for check in one.checks
    ]
    kept = tuple(frame for one in results.values() for frame in one.kept)
    return Result(**tables, checks=checks, kept=kept)


def _stack(parts: Mapping[str, Any]) -> Any:
    """Stack tables below one another, with the name of each in the first column; None where one is None."""
    if any(part is None for part in parts.values()):
        return None
    first = next(iter(parts.values()))
    if isinstance(first, pa.Table | ShownTable):
        tables = [
            to_arrow(part).add_column(0, MODEL, pa.repeat(model, len(part)))
            for model, part in parts.items()
        ]
        return (
            type(first)(pa.concat_tables(tables))
            if isinstance(first, ShownTable)
            else pa.concat_tables(tables)
        )
    from pyspark.sql import functions as F  # noqa: PLC0415

    frames = [part.select(F.lit(model).alias(MODEL), "*") for model, part in parts.items()]
    return union_rows(frames, by_name=True)
