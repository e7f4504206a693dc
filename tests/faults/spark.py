"""Evaluate mutated tables as files by `recbench evaluate` on Spark, against the slow answer."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from tests.faults import input_tables
from tests.faults.campaign import Case, Verdict
from tests.faults.frames import CLOSE, Values, as_arrow, find_difference, overall, slow_answer
from tests.faults.in_process import job

UNREAD = ("halffloat", "time64[us]", "null", "string_view")
"""Types of Parquet files that Spark does not read; the job must end with a sentence, and no values."""


def run(case: Case) -> Verdict:
    return run_case(case, ["--engine", "spark"], read_as_parquet)


def read_as_parquet(tables: input_tables.InputTables) -> None:
    """Replace durations by whole numbers, because Parquet has no such type and only Arrow notes it."""
    for column in (*tables.truth, *tables.lists):
        if pa.types.is_duration(column.kind):
            column.kind, column.values = pa.int64(), column.arrow().cast(pa.int64()).to_pylist()


def read_as_arrow(tables: input_tables.InputTables) -> None:
    """Leave the columns as they were written."""


def run_case(
    case: Case,
    flags: list[str],
    read: Callable[[input_tables.InputTables], None] = read_as_arrow,
    unread: tuple[str, ...] = UNREAD,
) -> Verdict:
    """Write the tables, run the job in this process, and compare its rows of `metrics` with the answer."""
    tables = input_tables.mutate_tables(case)
    about = [change.partition(" holds ")[0] for change in tables.changes]
    case_text = "; ".join(tables.changes) or "nothing changed"
    folder = case.place / f"case{case.number}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        paths = write_tables(tables, folder)
        if paths is None:
            return Verdict.skip("Arrow does not write such a file", *about)
        read(tables)
        wrong = judge(tables, unread, *job("evaluate", [*arguments(tables, folder, paths), *flags]), folder)
        end = "right" if (folder / "warehouse" / "runs").exists() else "refused"
        return Verdict.fail(f"{case_text}: {wrong}", *about) if wrong else Verdict(about=[*about, end])
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def write_tables(tables: input_tables.InputTables, folder: Path) -> list[Path] | None:
    """Write both tables as Parquet files of several row groups."""
    paths = [folder / "truth.parquet", folder / "lists.parquet"]
    try:
        for path, columns in zip(paths, (tables.truth, tables.lists), strict=True):
            pq.write_table(as_arrow(columns), path, row_group_size=3)
    except (pa.ArrowException, NotImplementedError):
        return None
    return paths


def arguments(tables: input_tables.InputTables, folder: Path, paths: list[Path]) -> list[str]:
    flags = ["--warehouse", str(folder / "warehouse"), "--model", "m", "--bootstrap", "0"]
    flags += ["--truth", str(paths[0]), "--lists", str(paths[1]), "--metrics", ",".join(tables.metrics)]
    flags += ["--k", ",".join(map(str, tables.k)), "--logical-date", "2026-01-01"]
    flags += ["--preset", tables.preset] if tables.preset else []
    return [*flags, *(f"--set=definition.{axis}={value}" for axis, value in tables.axes.items())]


def judge(
    tables: input_tables.InputTables, unread: tuple[str, ...], code: Any, err: str, folder: Path
) -> str | None:
    """Find the problem of the job's end, or of its results."""
    columns = [*tables.truth, *tables.lists]
    odd = {str(column.stored) for column in columns} & set(unread)
    wrong = find_problem(tables, odd, code, err, folder)
    if wrong and any(column.name != column.name.lower() for column in columns):
        for column in columns:  # Spark also knows columns by their names in lower case
            column.name = column.name.lower()
        wrong = find_problem(tables, {*odd, "upper case"}, code, err, folder)
    return wrong


def find_problem(
    tables: input_tables.InputTables, odd: set[str], code: Any, err: str, folder: Path
) -> str | None:
    """Find the problem with one spelling of the columns' names."""
    wanted, why = slow_answer(tables)
    if "Traceback" in err or "internal error" in err or code not in (0, 1, 2):
        return f"a trace, exit code {code}: {err[-600:]!r}"
    if code:
        if "\n  hint: " not in err or "error: " not in err:
            return f"not a sentence and a hint: {err[-400:]!r}"
        return (
            None
            if wanted is None or wanted.grey or odd
            else f"refused, and nothing is wrong: {err[-400:]!r}"
        )
    if wanted is None:
        return f"taken, and {why}"
    values = read_metrics(folder / "warehouse")
    return find_difference(wanted, values) or users_differ(values, folder / "warehouse")


def read_metrics(warehouse: Path) -> Values:
    """Read the overall values of the one run."""
    return overall(DeltaTable(str(warehouse / "metrics")).to_pyarrow_table().to_pylist())


def users_differ(overall_values: Values, warehouse: Path) -> str | None:
    """Find rows of `user_metrics` that do not give the mean of `metrics`; NULL is a user who is left
    out.
    """
    values: dict[tuple[str, int | None], list[float]] = {}
    for row in DeltaTable(str(warehouse / "user_metrics")).to_pyarrow_table().to_pylist():
        for k, value in zip(row["ks"], row["values"], strict=True):
            values.setdefault((row["metric"], k), []).extend([] if value is None else [value])
    for key, mine in values.items():
        value, n = overall_values[key]
        mean = math.fsum(mine) / len(mine) if mine else math.nan
        same = (math.isnan(mean) and math.isnan(value)) or abs(mean - value) <= CLOSE * max(1.0, abs(value))
        if len(mine) != n or not same:
            return (
                f"SILENTLY WRONG: users' {key}: {mean} over {len(mine)}, and `metrics` has {value} over {n}"
            )
    return None
