"""What a warehouse shows, and whether two show the same: rows of runs that were published, table by table.

Uses the reading of `tools/compare_warehouses.py`: floats bit for bit, without moments and measured times.
What a killed run left (rows whose run is not in `runs`) shows nowhere and is left out; anything else must
be the same, row for row and as often.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from tools.compare_warehouses import MEASURED_COLUMNS, RUN_ID_COLUMNS, Warehouse, is_timestamp

LEFT_OUT = MEASURED_COLUMNS | RUN_ID_COLUMNS | {"run_key", "code_version", "attempt"}
Rows = Counter[str]
OF_A_RUN = re.compile(r"\d{8}T\d{6}")
"""How the name of a run begins: the moment of its start."""


def opened(folder: Path) -> Warehouse:
    """All committed tables; a run is known by suite, night and model, whatever its attempt."""
    found = {path.parent.name: DeltaTable(path.parent) for path in sorted(folder.glob("*/_delta_log"))
             if any(path.glob("*.json"))}  # fmt: skip
    names: dict[str, str] = {}
    if "runs" in found:
        facts = ["run_id", "suite", "logical_date", "model", "status"]
        for row in found["runs"].to_pyarrow_table(columns=facts).to_pylist():
            if row["status"] == "succeeded":
                names[row["run_id"]] = f"{row['suite']}/{row['logical_date']}/{row['model']}"
    return Warehouse(folder.resolve(), found, names)


def shown(folder: Path, left_out: Iterable[str] = ()) -> dict[str, Rows]:
    """By table: the rows that are published, as text."""
    warehouse = opened(folder)
    gone = LEFT_OUT | set(left_out)
    return {name: Counter(rows_of(warehouse, name, gone)) for name in warehouse.tables}


def rows_of(warehouse: Warehouse, name: str, gone: set[str]) -> list[str]:
    table = warehouse.tables[name].to_pyarrow_table()
    kept = [
        f.name
        for f in table.schema
        if f"{name}.{f.name}" not in gone and f.name not in gone and not is_timestamp(f)
    ]
    ids = [key for key in ("run_id", "other_run_id") if key in table.column_names]
    found = []
    for row in table.to_pylist():
        if not any(is_unpublished(row[key], warehouse) for key in ids):
            found.append(repr({key: warehouse.exact(row[key]) for key in sorted(kept)}))
    return found


def is_unpublished(run_id: str | None, warehouse: Warehouse) -> bool:
    """Whether this is a run that is not in `runs`; checks of splits, graphs and models bear their names."""
    return run_id is not None and bool(OF_A_RUN.match(run_id)) and run_id not in warehouse.runs


def differences(wanted: dict[str, Rows], found: dict[str, Rows]) -> list[str]:
    """A line a table that differs: rows lost, rows that nobody wrote or that stand there twice."""
    told = []
    for name in sorted({*wanted, *found}):
        lost = wanted.get(name, Counter()) - found.get(name, Counter())
        new = found.get(name, Counter()) - wanted.get(name, Counter())
        if lost or new:
            doubled = sum(
                (Counter({row: n for row, n in new.items() if row in wanted.get(name, ())})).values()
            )
            example = next(iter([*lost, *new]))[:200]
            told.append(
                f"{name}: {lost.total()} rows lost, {new.total()} new ({doubled} doubled), e.g. {example}"
            )
    return told


def varying(one: Path, other: Path) -> set[str]:
    """`table.column` for what differs between two undisturbed runs: it says nothing of a fault."""
    found: set[str] = set()
    for name in opened(one).tables:
        left, right = (opened(folder) for folder in (one, other))
        if name not in right.tables:
            continue
        for column in left.tables[name].to_pyarrow_table().column_names:
            values = [column_of(side, name, column) for side in (left, right)]
            if values[0] != values[1]:
                found.add(f"{name}.{column}")
    return found


def column_of(warehouse: Warehouse, name: str, column: str) -> Counter[str]:
    values: list[Any] = warehouse.tables[name].to_pyarrow_table(columns=[column])[column].to_pylist()
    return Counter(repr(warehouse.exact(value)) for value in values)


def names_of_runs(folder: Path) -> Counter[str]:
    """How often each run (suite, night and model) was published."""
    return Counter(opened(folder).runs.values())


def not_of(wanted: dict[str, Rows], found: dict[str, Rows], runs: Counter[str]) -> list[str]:
    """What is wrong where a run may have been published more than once: each of its rows then stands
    there as often, and what belongs to no run stands there as in a single one."""
    told = []
    for name in sorted({*wanted, *found}):
        mine, right = found.get(name, Counter()), wanted.get(name, Counter())
        strange = [row for row in mine if row not in right]
        odd = [row for row, count in right.items() if not fits(mine[row], count, row, runs)]
        if strange or odd:
            lost = sum(mine[row] < right[row] for row in odd)
            told.append(
                f"{name}: {len(strange)} rows that no single run shows, {lost} lost, {len(odd) - lost} "
                f"doubled, e.g. {(strange + odd)[0][:300]}"
            )
    return told


def fits(times: int, once: int, row: str, runs: Counter[str]) -> bool:
    """Whether a row that a single run shows `once` may stand there so often."""
    published = [n for run, n in runs.items() if f"'{run}'" in row]
    if len(published) <= 1:
        return times == once * max([1, *published])
    return once <= times <= once * math.prod(published)
