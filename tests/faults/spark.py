"""Mutated tables as files through `jobs/evaluate.py` on Spark, against the slow answer of `handed`."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from tests.faults import handed
from tests.faults.campaign import Case, Verdict
from tests.faults.frames import CLOSE, Values, answer, as_arrow, differs, overall
from tests.faults.in_process import job

UNREAD = ("halffloat", "time64[us]", "null", "string_view")
"""Types of Parquet files that Spark does not read; a sentence is due, and no values."""


def run(case: Case) -> Verdict:
    return through_the_job(case, ["--engine", "spark"], as_parquet_says)


def as_parquet_says(given: handed.Handed) -> None:
    """Parquet has no type of durations: they are whole numbers, and Arrow alone notes what it wrote."""
    for column in (*given.truth, *given.lists):
        if pa.types.is_duration(column.kind):
            column.kind, column.values = pa.int64(), column.arrow().cast(pa.int64()).to_pylist()


def as_arrow_says(given: handed.Handed) -> None:
    """The columns as they were written."""


def through_the_job(
    case: Case,
    flags: list[str],
    read: Callable[[handed.Handed], None] = as_arrow_says,
    unread: tuple[str, ...] = UNREAD,
) -> Verdict:
    """Write the tables, run the job in this process, and hold its rows of `metrics` against the answer."""
    given = handed.mutated(case)
    about = [change.partition(" holds ")[0] for change in given.changes]
    told = "; ".join(given.changes) or "nothing changed"
    folder = case.place / f"case{case.number}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        paths = written(given, folder)
        if paths is None:
            return Verdict.skipped("Arrow does not write such a file", *about)
        read(given)
        wrong = judged(given, unread, *job("evaluate", [*arguments(given, folder, paths), *flags]), folder)
        end = "right" if (folder / "warehouse" / "runs").exists() else "refused"
        return Verdict.failed(f"{told}: {wrong}", *about) if wrong else Verdict(about=[*about, end])
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def written(given: handed.Handed, folder: Path) -> list[Path] | None:
    """Both tables as Parquet files of several row groups."""
    paths = [folder / "truth.parquet", folder / "lists.parquet"]
    try:
        for path, columns in zip(paths, (given.truth, given.lists), strict=True):
            pq.write_table(as_arrow(columns), path, row_group_size=3)
    except (pa.ArrowException, NotImplementedError):
        return None
    return paths


def arguments(given: handed.Handed, folder: Path, paths: list[Path]) -> list[str]:
    found = ["--warehouse", str(folder / "warehouse"), "--model", "m", "--bootstrap", "0"]
    found += ["--truth", str(paths[0]), "--lists", str(paths[1]), "--metrics", ",".join(given.metrics)]
    found += ["--k", ",".join(map(str, given.k)), "--logical-date", "2026-01-01"]
    found += ["--preset", given.preset] if given.preset else []
    return [*found, *(f"--set=definition.{axis}={value}" for axis, value in given.axes.items())]


def judged(given: handed.Handed, unread: tuple[str, ...], code: Any, err: str, folder: Path) -> str | None:
    """What is wrong with how the job ended, and with what it wrote."""
    columns = [*given.truth, *given.lists]
    odd = {str(column.stored) for column in columns} & set(unread)
    wrong = wrong_of(given, odd, code, err, folder)
    if wrong and any(column.name != column.name.lower() for column in columns):
        for column in columns:  # Spark also knows columns by their names in lower case
            column.name = column.name.lower()
        wrong = wrong_of(given, {*odd, "upper case"}, code, err, folder)
    return wrong


def wrong_of(given: handed.Handed, odd: set[str], code: Any, err: str, folder: Path) -> str | None:
    """By one reading of the columns' names."""
    wanted, why = answer(given)
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
    found = metrics_of(folder / "warehouse")
    return differs(wanted, found) or users_differ(found, folder / "warehouse")


def metrics_of(warehouse: Path) -> Values:
    """The overall values of the one run."""
    return overall(DeltaTable(str(warehouse / "metrics")).to_pyarrow_table().to_pylist())


def users_differ(found: Values, warehouse: Path) -> str | None:
    """Rows of `user_metrics` that do not make the mean of `metrics`; NULL: a user who is left out."""
    values: dict[tuple[str, int | None], list[float]] = {}
    for row in DeltaTable(str(warehouse / "user_metrics")).to_pyarrow_table().to_pylist():
        for k, value in zip(row["ks"], row["values"], strict=True):
            values.setdefault((row["metric"], k), []).extend([] if value is None else [value])
    for key, mine in values.items():
        value, n = found[key]
        mean = math.fsum(mine) / len(mine) if mine else math.nan
        same = (math.isnan(mean) and math.isnan(value)) or abs(mean - value) <= CLOSE * max(1.0, abs(value))
        if len(mine) != n or not same:
            return (
                f"SILENTLY WRONG: users' {key}: {mean} over {len(mine)}, and `metrics` has {value} over {n}"
            )
    return None
