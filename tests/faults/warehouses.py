"""Read the visible rows of a warehouse, and compare two: rows of published runs, table by table.

Rows are read as in `tools/compare_warehouses.py`: floats bit for bit, without instants and measured times.
Rows that a killed run left (their run is not in `runs`) are not visible and are left out; all others must
be the same, row for row and equally often.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from tools.compare_warehouses import (
    MEASURED_COLUMNS,
    RUN_ID_COLUMNS,
    Warehouse,
    find_folder,
    is_timestamp,
)

LEFT_OUT = MEASURED_COLUMNS | RUN_ID_COLUMNS | {"run_key", "code_version", "attempt"}
Rows = Counter[str]
RUN_ID = re.compile(r"\d{8}T\d{6}")
"""Pattern of the start of a run's name: the moment at which it began."""


def open_warehouse(folder: Path) -> Warehouse:
    """Open all committed tables; a run is identified by suite, night and model, for any attempt."""
    tables = {path.parent.name: DeltaTable(path.parent) for path in sorted(folder.glob("*/_delta_log"))
             if any(path.glob("*.json"))}  # fmt: skip
    names: dict[str, str] = {}
    if "runs" in tables:
        facts = ["run_id", "suite", "logical_date", "model", "status"]
        for row in tables["runs"].to_pyarrow_table(columns=facts).to_pylist():
            if row["status"] == "succeeded":
                names[row["run_id"]] = f"{row['suite']}/{row['logical_date']}/{row['model']}"
    return Warehouse(find_folder(str(folder)), tables, names)


def read_rows(folder: Path, left_out: Iterable[str] = ()) -> dict[str, Rows]:
    """Return the published rows of each table, as text."""
    warehouse = open_warehouse(folder)
    excluded = LEFT_OUT | set(left_out)
    return {name: Counter(list_rows(warehouse, name, excluded)) for name in warehouse.tables}


def list_rows(warehouse: Warehouse, name: str, excluded: set[str]) -> list[str]:
    table = warehouse.tables[name].to_pyarrow_table()
    columns = [
        f.name
        for f in table.schema
        if f"{name}.{f.name}" not in excluded and f.name not in excluded and not is_timestamp(f)
    ]
    ids = [key for key in ("run_id", "other_run_id") if key in table.column_names]
    rows = []
    for row in table.to_pylist():
        if not any(is_unpublished(row[key], warehouse) for key in ids):
            rows.append(repr({key: warehouse.exact(row[key]) for key in sorted(columns)}))
    return rows


def is_unpublished(run_id: str | None, warehouse: Warehouse) -> bool:
    """Check for a run that is not in `runs`; checks of splits, graphs and models have other names."""
    return run_id is not None and bool(RUN_ID.match(run_id)) and run_id not in warehouse.runs


def find_differences(wanted: dict[str, Rows], actual: dict[str, Rows]) -> list[str]:
    """Return a line for each table that differs: rows lost, new rows, and rows that are doubled."""
    lines = []
    for name in sorted({*wanted, *actual}):
        lost = wanted.get(name, Counter()) - actual.get(name, Counter())
        new = actual.get(name, Counter()) - wanted.get(name, Counter())
        if lost or new:
            doubled = sum(
                (Counter({row: n for row, n in new.items() if row in wanted.get(name, ())})).values()
            )
            example = next(iter([*lost, *new]))[:200]
            lines.append(
                f"{name}: {lost.total()} rows lost, {new.total()} new ({doubled} doubled), e.g. {example}"
            )
    return lines


def find_varying_columns(one: Path, other: Path) -> set[str]:
    """Return `table.column` for columns that differ between two undisturbed runs; they show no fault."""
    columns: set[str] = set()
    for name in open_warehouse(one).tables:
        left, right = (open_warehouse(folder) for folder in (one, other))
        if name not in right.tables:
            continue
        for column in left.tables[name].to_pyarrow_table().column_names:
            values = [count_values(side, name, column) for side in (left, right)]
            if values[0] != values[1]:
                columns.add(f"{name}.{column}")
    return columns


def count_values(warehouse: Warehouse, name: str, column: str) -> Counter[str]:
    values: list[Any] = warehouse.tables[name].to_pyarrow_table(columns=[column])[column].to_pylist()
    return Counter(repr(warehouse.exact(value)) for value in values)


def count_runs(folder: Path) -> Counter[str]:
    """Count the publications of each run (suite, night and model)."""
    return Counter(open_warehouse(folder).runs.values())


def compare_repeated(wanted: dict[str, Rows], actual: dict[str, Rows], runs: Counter[str]) -> list[str]:
    """Find problems where a run may have been published several times.

    Each of its rows must then be there as often, and rows without a run as often as after a single one.
    """
    lines = []
    for name in sorted({*wanted, *actual}):
        mine, right = actual.get(name, Counter()), wanted.get(name, Counter())
        strange = [row for row in mine if row not in right]
        odd = [row for row, count in right.items() if not fits(mine[row], count, row, runs)]
        if strange or odd:
            lost = sum(mine[row] < right[row] for row in odd)
            lines.append(
                f"{name}: {len(strange)} rows that no single run shows, {lost} lost, {len(odd) - lost} "
                f"doubled, e.g. {(strange + odd)[0][:300]}"
            )
    return lines


def fits(times: int, once: int, row: str, runs: Counter[str]) -> bool:
    """Check that a row that a single run shows `once` may be there this many times."""
    published = [n for run, n in runs.items() if f"'{run}'" in row]
    if len(published) <= 1:
        return times == once * max([1, *published])
    return once <= times <= once * math.prod(published)
