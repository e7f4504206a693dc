"""An evaluation's result, before it is written to a warehouse.

It may hold one model or several.
"""

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
from recbench_spark.metrics.group_gaps import describe_gaps

if TYPE_CHECKING:  # results in this process need neither
    from matplotlib.figure import Figure
    from pyspark.sql import DataFrame

PART = "test"
"""Held-out part in evaluations without a split."""

MODEL = "model"
"""Column with the model's name, where a result has several."""

COLUMNS = ("metric", "k", "value", "stderr", "ci_low", "ci_high", "n", "definition")
"""Columns in a result's numbers as they are shown."""


@dataclass(frozen=True, repr=False)
class Result:
    """Numbers, rankings and checks from one evaluation, by either engine.

    Spark's frames are lazy, and Spark caches rankings until `release`; this process gives Arrow tables. The
    methods below do the same with both.

    Attributes:
        metrics, user_metrics: rows of the tables with these names, without run columns, as Spark frames or
            `ShownTable`, both with `show`. With several models a column `model` comes first.
        rankings: one row per user (`schemas.RANKINGS`), as a Spark frame or an Arrow table; None for
            predictions.
        checks: checks on inputs and rankings.
        kept: frames cached by Spark.
        truth: for predictions, a hash of the outcomes.
        limits: the tables deciding candidates or popularity, by name (`EvaluationPlan.name_limits`).
    """

    metrics: Any
    user_metrics: Any
    rankings: Any
    checks: list[Check]
    kept: tuple[DataFrame, ...] = ()
    truth: str | None = None
    limits: Mapping[str, Any] = field(default_factory=dict)

    def release(self) -> None:
        """Drop the frames cached by Spark."""
        for frame in self.kept:
            frame.unpersist()

    def to_pandas(self, *, slices: bool = False) -> pd.DataFrame:
        """Return the numbers, one row each.

        Columns: metric, k, value, stderr, interval, n, definition.

        Args:
            slices: add numbers for slices, with key and value.
        """
        rows = to_arrow(self.metrics)
        more = [name for name in (MODEL,) if name in rows.column_names]
        if slices:
            more += ["slice_key", "slice_value"]
        else:
            rows = rows.filter(pc.is_null(rows.column("slice_key")))
        frame: pd.DataFrame = rows.select([*more, *COLUMNS]).to_pandas().astype({"k": "Int64"})
        return frame

    def find_gaps(self, slice_key: str, level: float = 0.95) -> pd.DataFrame:
        """Return how far the means of groups of users lie apart, one row for each number.

        Columns: metric, k, definition, and those of the table `group_gaps` that need no baseline.

        Args:
            slice_key: a column of `user_groups`.
            level: chance that all bounds of a number hold together.
        """
        rows = [row for row in to_arrow(self.metrics).to_pylist() if row["slice_key"] == slice_key]
        key = [name for name in (MODEL, "metric", "k", "definition") if rows and name in rows[0]]
        numbers: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
        for row in rows:
            if row["value"] is not None:
                numbers.setdefault(tuple(row[name] for name in key), []).append(row)
        facts = [
            dict(zip(key, number, strict=True)) | describe_gaps(groups, groups[0]["metric"], level)
            for number, groups in numbers.items()
        ]
        return pd.DataFrame(facts).astype({"k": "Int64"} if facts else {})

    def pivot(self) -> pd.DataFrame:
        """Return a row per model and a column per number.

        A column is called `ndcg@10`, for instance.
        """
        return result_views.pivot(self.to_pandas())

    def to_latex(self, path: str | PathLike[str] | None = None, digits: int = 4) -> str:
        """Return a LaTeX table with values and intervals.

        The table needs the package booktabs.

        Args:
            path: file to write the text to.
            digits: digits behind the point.
        """
        return result_views.write_text(result_views.to_latex(self.to_pandas(), digits), path)

    def plot(self, path: str | PathLike[str] | None = None) -> Figure:
        """Draw the values with their intervals, one panel per metric.

        Args:
            path: file to write the picture to; its ending decides the format.
        """
        return result_views.save_figure(result_views.plot(self.to_pandas()), path)

    def save(self, folder: str | PathLike[str]) -> list[Path]:
        """Write tables as Parquet, and the rest as JSON.

        The rest is numbers, checks and version. Returns the files.

        Args:
            folder: created if absent; files with these names are replaced.
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
        """Return this process's numbers as text; Spark computes nothing here."""
        failed = [check for check in self.checks if not check.passed]
        state = f"{len(self.checks)} checks, {len(failed)} did not pass"
        warnings = "".join(f"\n{line}" for line in list_warnings(self.checks))
        if not isinstance(self.metrics, ShownTable):
            return f"Result of Spark ({state}); to_pandas() computes it{warnings}"
        return f"{self.to_pandas().to_string(index=False, na_rep='')}\n{state}{warnings}"

    def _repr_html_(self) -> str:
        """Return numbers and failed checks for a notebook."""
        return result_views.to_html(self.to_pandas(), self.checks)


class ShownTable:
    """Wraps an Arrow table and adds `show` from Spark frames.

    All other attributes are those of the table. A function for a `pyarrow.Table` alone needs the attribute
    `table`, or `pyarrow.table(this)`.
    """

    def __init__(self, table: pa.Table, notes: Sequence[str] = ()) -> None:
        self.table, self.notes = table, notes

    def show(self, n: int = 20, truncate: bool | int = True) -> None:
        """Print the first rows.

        Args:
            n: number of rows.
            truncate: most characters in a cell; True: 20, False: all.
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
        """Return a pandas frame, like a Spark frame.

        `to_pandas` is the table's own method.
        """
        frame: pd.DataFrame = self.table.to_pandas()
        return frame

    def equals(self, other: ShownTable | pa.Table, **how: Any) -> bool:
        """Tell whether the other table has equal columns and values."""
        return bool(self.table.equals(getattr(other, "table", other), **how))

    def __getattr__(self, name: str) -> Any:
        """Return the table's attribute."""
        if name == "table":  # copy and pickle ask for attributes before `table` exists
            raise AttributeError(name)
        return getattr(self.table, name)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Export the table to polars, DuckDB and other Arrow readers."""
        return self.table.__arrow_c_stream__(requested_schema)

    def __len__(self) -> int:
        """Count the rows."""
        return len(self.table)

    def __getitem__(self, key: Any) -> Any:
        """Return a column, or some rows."""
        return self.table[key]

    def __eq__(self, other: object) -> bool:
        """Tell whether the other is an equal table."""
        return isinstance(other, ShownTable | pa.Table) and self.equals(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        """Return the table's representation."""
        return repr(self.table)


def list_warnings(checks: Sequence[Check]) -> list[str]:
    """Return a line for each failed check."""
    return [f"warning: {check.summary_line()}" for check in checks if not check.passed]


def add_warnings(result: Result) -> Result:
    """Show failed checks beside the numbers."""
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
    """Return an engine's rows as Arrow; Spark computes them now."""
    return rows if isinstance(rows, pa.Table) else collect_arrow(rows)


def combine_results(results: Mapping[str, Result]) -> Result:
    """Combine several models' results, by one engine, into one.

    A column `model` names each model.
    """
    names = ("metrics", "user_metrics", "rankings")
    tables = {name: _stack({model: getattr(one, name) for model, one in results.items()}) for name in names}
    named = [(model, check) for model, one in results.items() for check in one.checks]
    checks = [replace(check, check=f"{model}: {check.check}") for model, check in named]
    kept = tuple(frame for one in results.values() for frame in one.kept)
    return Result(**tables, checks=checks, kept=kept)


def _stack(parts: Mapping[str, Any]) -> Any:
    """Stack tables, with their names in the first column.

    None if one is None.
    """
    if any(part is None for part in parts.values()):
        return None
    first = next(iter(parts.values()))
    if isinstance(first, pa.Table | ShownTable):
        models = [pa.repeat(model, len(part)) for model, part in parts.items()]
        tables = [to_arrow(part) for part in parts.values()]
        named = [table.add_column(0, MODEL, model) for table, model in zip(tables, models, strict=True)]
        stacked = pa.concat_tables(named)
        return ShownTable(stacked) if isinstance(first, ShownTable) else stacked
    from pyspark.sql import functions as F  # noqa: PLC0415

    frames = [part.select(F.lit(model).alias(MODEL), "*") for model, part in parts.items()]
    return union_rows(frames, by_name=True)
