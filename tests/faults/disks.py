"""Run every job on a small file system in memory; with more space the same command must end well."""

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
from tests.faults.inputs import prepare_inputs
from tests.faults.jobs import NAMED, Job
from tests.faults.starting import find_bad_end
from tests.faults.undisturbed import Alone, find_odd_rows, list_folders, run_alone

JOBS = ("benchmark", "evaluate-local", "embed", "nightly", "nightly-graphs", "tune", "maintain", "split",
        "evaluate-spark", "neighbourhoods", "tune-nights", "propensity", "estimate", "embed-other",
        "bundle", "multiverse", "maintain-graphs")  # fmt: skip
"""The order in which a campaign runs the jobs."""


def run(case: Case) -> Verdict:
    """Run the job on a disk of random size, and again on a larger disk."""
    inputs, chance, job = prepare_inputs(case), case.draw(), NAMED[JOBS[case.number % len(JOBS)]]
    reference, disk = run_alone(job, inputs), case.place / "disk"
    shutil.rmtree(case.place / f"case{case.number}", ignore_errors=True)
    with small_disk(disk, "500m") as mounted:
        if not mounted:
            return Verdict.skip("no tmpfs can be mounted here")
        warehouse = disk / "warehouse"
        job.before(inputs, warehouse)
        job_kib = count_folder_kib(list_folders(job, inputs)[0]) - count_folder_kib(warehouse)
        size = count_used_kib(disk) + int(chance.random() * 1.05 * max(job_kib, 40)) + 8
        remount(disk, f"size={size}k")
        wrong, code = run_crowded(job, reference, inputs, warehouse)
        remount(disk, "size=500m")
        wrong = wrong or complete_job(job, reference, inputs, warehouse, again=code != 0)
        if wrong:
            shutil.copytree(warehouse, case.place / f"case{case.number}", dirs_exist_ok=True)
    case_text = f"{job.title} on a disk of {size} KiB (alone it writes {job_kib}), exit code {code}"
    folder_text = f" [{case.place / f'case{case.number}'}]" if wrong else ""
    return Verdict.judge(
        f"{wrong}{folder_text}" if wrong else None, case_text, f"{job.title}: exit code {code}"
    )


def run_crowded(job: Job, reference: Alone, inputs: Path, warehouse: Path) -> tuple[Any, int]:
    """Run the job on the small disk: it ends with a sentence, and no part of an unfinished run shows."""
    before = warehouses.read_rows(warehouse, reference.varying) if warehouse.exists() else {}
    code, output = job_here(job.name, job.flags(inputs, warehouse))
    return find_bad_end(code or 0, output) or find_odd_rows_or_error(
        job, reference, before, warehouse
    ), code or 0


def find_odd_rows_or_error(job: Job, reference: Alone, before: Any, warehouse: Path) -> Any:
    try:
        return find_odd_rows(job, reference, before, warehouse)
    except Exception as error:  # a full disk left a table that another reader cannot open
        return f"the warehouse cannot be read: {type(error).__name__}: {str(error)[:300]}"


def complete_job(job: Job, reference: Alone, inputs: Path, warehouse: Path, again: bool) -> Any:
    """Run the same command again with space, where it did not end well; then all rows must be there."""
    code, output = job_here(job.name, job.flags(inputs, warehouse)) if again else (0, "")
    if code:
        return f"with space again: exit code {code}: {output[-600:]!r}"
    rows, runs = warehouses.read_rows(warehouse, reference.varying), warehouses.count_runs(warehouse)
    return warehouses.compare_repeated(reference.rows, rows, runs) or job.rule(inputs, warehouse)


def count_used_kib(disk: Path) -> int:
    """Return the KiB in use, as the file system counts them."""
    stats = os.statvfs(disk)
    return (stats.f_blocks - stats.f_bfree) * stats.f_frsize // 1024


def count_folder_kib(folder: Path) -> int:
    """Return the KiB of a folder in whole pages of 4 KiB, as a file system in memory stores files."""
    if not folder.exists():
        return 0
    kib = 0
    for place, _, files in os.walk(folder):
        kib += sum(-(-(Path(place) / name).stat().st_size // 4096) * 4 for name in files)
    return kib


@contextmanager
def small_disk(place: Path, size: str) -> Iterator[bool]:
    """Mount a tmpfs; yield False where this machine cannot mount one."""
    place.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(place)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        yield False
        return
    try:
        yield True
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def remount(place: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", str(place)], check=True)
