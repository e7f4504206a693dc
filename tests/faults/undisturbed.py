"""What an undisturbed warehouse shows, and how another one differs from it."""

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
from tests.faults.starting import PATIENCE, finished


def timed(job: Job, inputs: Path, warehouse: Path) -> tuple[float, str]:
    """Seconds of a job that is let through in a process of its own, and what it said."""
    start = time.monotonic()
    with job.begun(inputs, warehouse) as process:
        if code := process.popen.wait(PATIENCE):
            raise RuntimeError(f"{job.told} ended with {code}: {process.remarks[-1500:]}")
    return time.monotonic() - start, process.remarks


@dataclass(frozen=True)
class Alone:
    """What a job shows in a warehouse of its own, which columns no two runs share, and its seconds."""

    rows: dict[str, Counter[str]]
    varying: set[str]
    seconds: float


@dataclass(frozen=True)
class Reference(Alone):
    """Also how many commits, files and lines a job makes in a process of its own, which takes so long."""

    events: dict[str, int]


def folders_of(job: Job, inputs: Path) -> list[Path]:
    """Two warehouses in each of which this job ran alone."""
    return [inputs / f"undisturbed-{job.told}-{n}" for n in range(2)]


def alone(job: Job, inputs: Path) -> Alone:
    """Of two undisturbed runs in this process, made once for this code."""
    folders, note = folders_of(job, inputs), inputs / f"undisturbed-{job.told}.seconds"
    if not note.exists():
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
            job.before(inputs, folder)
            start = time.monotonic()
            finished(job.name, job.flags(inputs, folder))
            seconds = time.monotonic() - start
            if wrong := job.rule(inputs, folder):
                raise RuntimeError(f"{job.told} undisturbed: {wrong}")
        note.write_text(str(seconds))
    gone = warehouses.varying(*folders)
    return Alone(warehouses.shown(folders[0], gone), gone, float(note.read_text()))


def reference(job: Job, inputs: Path) -> Reference:
    """Of a third run, in a process of its own: it must show the same."""
    known, note = alone(job, inputs), inputs / f"undisturbed-{job.told}.json"
    folder = inputs / f"undisturbed-{job.told}-apart"
    if not note.exists():
        keep_classes(inputs)
        shutil.rmtree(folder, ignore_errors=True)
        job.before(inputs, folder)
        before = files_of(folder)
        seconds, said = timed(job, inputs, folder)
        if wrong := warehouses.differences(known.rows, warehouses.shown(folder, known.varying)):
            raise RuntimeError(f"{job.told} in a process of its own: {wrong}")
        note.write_text(json.dumps({"seconds": seconds, "events": counted(before, files_of(folder), said)}))
    return Reference(known.rows, known.varying, **json.loads(note.read_text()))


def files_of(warehouse: Path) -> set[str]:
    """All files of a warehouse that may be at work."""
    return {f"{place}/{name}" for place, _, names in os.walk(warehouse) for name in names}


def counted(before: set[str], now: set[str], said: str) -> dict[str, int]:
    """What a job did so far: commits and other files, made or removed, and lines."""
    moved = before ^ now
    commits = sum("_delta_log" in name and name.endswith(".json") for name in moved)
    return {"commit": commits, "file": len(moved) - commits, "line": said.count("\n")}


def differs(job: Job, known: Alone, warehouse: Path) -> list[str]:
    """How a completed warehouse differs from the undisturbed one."""
    found = warehouses.shown(warehouse, known.varying)
    if job.again:  # as many whole runs as were published, each with the same rows
        n = found.get("runs", Counter()).total()
        return warehouses.differences(times(known.rows, n), found) if n else ["nothing was published"]
    return warehouses.differences(known.rows, found)


def odd_rows(job: Job, known: Alone, before: dict[str, Counter[str]], warehouse: Path) -> list[str]:
    """After a kill: rows that show, and that neither an undisturbed run nor the warehouse before shows."""
    if not warehouse.exists():
        return []
    found = warehouses.shown(warehouse, known.varying)
    if job.again:
        n = found.get("runs", Counter()).total()
        return warehouses.differences(times(known.rows, n), found) if n else published(found)
    told = []
    for name, rows in found.items():
        most = known.rows.get(name, Counter()) | before.get(name, Counter())
        new = rows - most
        if new:
            told.append(f"{name}: {new.total()} rows that no whole run shows, e.g. {next(iter(new))[:200]}")
    return told


def published(found: dict[str, Counter[str]]) -> list[str]:
    return [f"{name} shows rows without a run" for name, rows in found.items() if rows]


def times(rows: dict[str, Counter[str]], n: int) -> dict[str, Counter[str]]:
    return {name: Counter({row: count * n for row, count in found.items()}) for name, found in rows.items()}
