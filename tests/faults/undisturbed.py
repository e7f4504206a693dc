"""Rows of an undisturbed warehouse, and the differences of another one."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tests.faults import warehouses
from tests.faults.inputs import keep_classes
from tests.faults.jobs import Job
from tests.faults.starting import PATIENCE, run_job


def time_job(job: Job, inputs: Path, warehouse: Path) -> tuple[float, str]:
    """Return the seconds and the output of a job in its own process."""
    start = time.monotonic()
    with job.start(inputs, warehouse) as process:
        if code := process.popen.wait(PATIENCE):
            raise RuntimeError(f"{job.title} ended with {code}: {process.remarks[-1500:]}")
    return time.monotonic() - start, process.remarks


@dataclass(frozen=True)
class Alone:
    """The rows of a job in its own warehouse, the columns that differ between any two runs, and its
    seconds.
    """

    rows: dict[str, Counter[str]]
    varying: set[str]
    seconds: float


@dataclass(frozen=True)
class Reference(Alone):
    """The same with the numbers of commits, files and lines of a job in its own process, and its seconds
    there.
    """

    events: dict[str, int]


def list_folders(job: Job, inputs: Path) -> list[Path]:
    """Return two warehouses in each of which this job ran alone."""
    return [inputs / f"undisturbed-{job.title}-{n}" for n in range(2)]


def run_alone(job: Job, inputs: Path) -> Alone:
    """Run the job twice undisturbed in this process, once for this code."""
    folders, note = list_folders(job, inputs), inputs / f"undisturbed-{job.title}.seconds"
    if not note.exists():
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
            job.before(inputs, folder)
            start = time.monotonic()
            run_job(job.name, job.flags(inputs, folder))
            seconds = time.monotonic() - start
            if wrong := job.rule(inputs, folder):
                raise RuntimeError(f"{job.title} undisturbed: {wrong}")
        note.write_text(str(seconds))
    varying = warehouses.find_varying_columns(*folders)
    return Alone(warehouses.read_rows(folders[0], varying), varying, float(note.read_text()))


def reference(job: Job, inputs: Path) -> Reference:
    """Run the job a third time, in its own process: it must show the same."""
    alone, note = run_alone(job, inputs), inputs / f"undisturbed-{job.title}.json"
    folder = inputs / f"undisturbed-{job.title}-apart"
    if not note.exists():
        keep_classes(inputs)
        shutil.rmtree(folder, ignore_errors=True)
        job.before(inputs, folder)
        before = list_files(folder)
        seconds, output = time_job(job, inputs, folder)
        if wrong := warehouses.find_differences(alone.rows, warehouses.read_rows(folder, alone.varying)):
            raise RuntimeError(f"{job.title} in a process of its own: {wrong}")
        note.write_text(
            json.dumps({"seconds": seconds, "events": count_events(before, list_files(folder), output)})
        )
    return Reference(alone.rows, alone.varying, **json.loads(note.read_text()))


def list_files(warehouse: Path) -> set[str]:
    """List all files of a warehouse on which a job may be working."""
    return {f"{place}/{name}" for place, _, names in os.walk(warehouse) for name in names}


def count_events(before: set[str], now: set[str], output: str) -> dict[str, int]:
    """Count the events of a job so far: commits and other files, made or removed, and lines."""
    moved = before ^ now
    commits = sum("_delta_log" in name and name.endswith(".json") for name in moved)
    return {"commit": commits, "file": len(moved) - commits, "line": output.count("\n")}


def find_differences(job: Job, reference: Alone, warehouse: Path) -> list[str]:
    """Find the differences between a completed warehouse and the undisturbed one."""
    rows = warehouses.read_rows(warehouse, reference.varying)
    if job.again:  # as many whole runs as were published, each with the same rows
        n = rows.get("runs", Counter()).total()
        return (
            warehouses.find_differences(multiply_rows(reference.rows, n), rows)
            if n
            else ["nothing was published"]
        )
    return warehouses.find_differences(reference.rows, rows)


def find_odd_rows(
    job: Job, reference: Alone, before: dict[str, Counter[str]], warehouse: Path
) -> list[str]:
    """Find visible rows after a kill that neither an undisturbed run nor the warehouse before shows."""
    if not warehouse.exists():
        return []
    shown = warehouses.read_rows(warehouse, reference.varying)
    if job.again:
        n = shown.get("runs", Counter()).total()
        return (
            warehouses.find_differences(multiply_rows(reference.rows, n), shown)
            if n
            else find_rows_without_run(shown)
        )
    problems = []
    for name, rows in shown.items():
        most = reference.rows.get(name, Counter()) | before.get(name, Counter())
        new = rows - most
        if new:
            problems.append(
                f"{name}: {new.total()} rows that no whole run shows, e.g. {next(iter(new))[:200]}"
            )
    return problems


def find_rows_without_run(tables: dict[str, Counter[str]]) -> list[str]:
    return [f"{name} shows rows without a run" for name, rows in tables.items() if rows]


def multiply_rows(rows: dict[str, Counter[str]], n: int) -> dict[str, Counter[str]]:
    return {
        name: Counter({row: count * n for row, count in counts.items()}) for name, counts in rows.items()
    }
