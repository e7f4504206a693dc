"""Full disks: every job in a small file system in memory; with more space the same command ends well."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.faults import warehouses
from tests.faults.campaign import Case, Verdict
from tests.faults.in_process import job as job_here
from tests.faults.inputs import inputs_of
from tests.faults.jobs import NAMED, Job
from tests.faults.starting import bad_end
from tests.faults.undisturbed import Alone, alone, folders_of, odd_rows

JOBS = ("benchmark", "evaluate-local", "embed", "nightly", "nightly-graphs", "tune", "maintain", "split",
        "evaluate-spark", "neighbourhoods", "tune-nights", "propensity", "estimate", "embed-other",
        "bundle", "multiverse", "maintain-graphs")  # fmt: skip
"""The order in which a campaign takes them."""


def run(case: Case) -> Verdict:
    """A disk of a drawn size, the job, a larger disk, the job again."""
    inputs, chance, job = inputs_of(case), case.draw(), NAMED[JOBS[case.number % len(JOBS)]]
    known, disk = alone(job, inputs), case.place / "disk"
    shutil.rmtree(case.place / f"case{case.number}", ignore_errors=True)
    with small_disk(disk, "500m") as mounted:
        if not mounted:
            return Verdict.skipped("no tmpfs can be mounted here")
        warehouse = disk / "warehouse"
        job.before(inputs, warehouse)
        grown = used(folders_of(job, inputs)[0]) - used(warehouse)
        size = taken(disk) + int(chance.random() * 1.05 * max(grown, 40)) + 8
        remounted(disk, f"size={size}k")
        wrong, code = crowded(job, known, inputs, warehouse)
        remounted(disk, "size=500m")
        wrong = wrong or completed(job, known, inputs, warehouse, again=code != 0)
        if wrong:
            shutil.copytree(warehouse, case.place / f"case{case.number}", dirs_exist_ok=True)
    told = f"{job.told} on a disk of {size} KiB (alone it writes {grown}), exit code {code}"
    kept = f" [{case.place / f'case{case.number}'}]" if wrong else ""
    return Verdict.of(f"{wrong}{kept}" if wrong else None, told, f"{job.told}: exit code {code}")


def crowded(job: Job, known: Alone, inputs: Path, warehouse: Path) -> tuple[Any, int]:
    """The job on the small disk: it ends with a sentence, and half a run shows nowhere."""
    before = warehouses.shown(warehouse, known.varying) if warehouse.exists() else {}
    code, said = job_here(job.name, job.flags(inputs, warehouse))
    return bad_end(code or 0, said) or shows_odd(job, known, before, warehouse), code or 0


def shows_odd(job: Job, known: Alone, before: Any, warehouse: Path) -> Any:
    try:
        return odd_rows(job, known, before, warehouse)
    except Exception as error:  # what a full disk left is a table that another reader cannot open
        return f"the warehouse cannot be read: {type(error).__name__}: {str(error)[:300]}"


def completed(job: Job, known: Alone, inputs: Path, warehouse: Path, again: bool) -> Any:
    """The same command once more, with space, where it did not end well; all of it is there then."""
    code, said = job_here(job.name, job.flags(inputs, warehouse)) if again else (0, "")
    if code:
        return f"with space again: exit code {code}: {said[-600:]!r}"
    found, runs = warehouses.shown(warehouse, known.varying), warehouses.names_of_runs(warehouse)
    return warehouses.not_of(known.rows, found, runs) or job.rule(inputs, warehouse)


def taken(disk: Path) -> int:
    """KiB in use, as the file system counts them."""
    found = os.statvfs(disk)
    return (found.f_blocks - found.f_bfree) * found.f_frsize // 1024


def used(folder: Path) -> int:
    """KiB in pages of a file system in memory, of which each file takes whole ones."""
    if not folder.exists():
        return 0
    found = 0
    for place, _, files in os.walk(folder):
        found += sum(-(-(Path(place) / name).stat().st_size // 4096) * 4 for name in files)
    return found


@contextmanager
def small_disk(place: Path, size: str) -> Iterator[bool]:
    """A tmpfs; False where this machine does not mount one."""
    place.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(place)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        yield False
        return
    try:
        yield True
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def remounted(place: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", str(place)], check=True)
