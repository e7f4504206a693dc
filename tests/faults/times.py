"""Clocks that are wrong, dates out of order, and files that are removed or locked under a reader."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.faults import jobs, warehouses
from tests.faults.campaign import ROOT, Case, Verdict
from tests.faults.in_process import job_and_output
from tests.faults.inputs import inputs_of
from tests.faults.jobs import NAMED
from tests.faults.starting import bad_end, begun, finished
from tests.faults.undisturbed import alone, folders_of
from tests.faults.warm import PATIENCE

# --------------------------------------------------------------------------------------------- clocks

SHIFTED = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
static long shift(void) {
    const char *text = getenv("FAULTS_SHIFT");
    return text ? atol(text) : 0;
}
int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int code = real(clock, now);
    if (!code && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += shift();
    return code;
}
int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    now->tv_sec = found.tv_sec;
    now->tv_usec = found.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *now) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    if (now) *now = found.tv_sec;
    return found.tv_sec;
}
"""
"""A library that is loaded before all others and moves the clock of a process, not that of the files."""


def shifted_clock(inputs: Path) -> Path | None:
    """The library, compiled once; None where there is no compiler."""
    library = inputs / "shifted.so"
    if library.exists():
        return library
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    source = inputs / "shifted.c"
    source.write_text(SHIFTED)
    command = [compiler, "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"]
    return library if subprocess.run(command, capture_output=True, check=False).returncode == 0 else None


SHIFTS = (3_600, -3_600, 3 * 86_400, -3 * 86_400, 400 * 86_400)


def wrong_clock(case: Case, chance: random.Random, folder: Path) -> Verdict:
    """A host whose clock is ahead or behind runs a job beside another host's, in one warehouse: Python and
    Java have the wrong time, the files have the right one."""
    inputs = inputs_of(case)
    library = shifted_clock(inputs)
    if library is None:
        return Verdict.skipped("no compiler for a library that moves the clock")
    shift, job = chance.choice(SHIFTS), NAMED[chance.choice(("evaluate-local", "embed", "nightly"))]
    other, known = NAMED["maintain"], alone(job, inputs)
    warehouse = folder / "warehouse"
    flags = other.flags(inputs, warehouse)
    env = {"LD_PRELOAD": str(library), "FAULTS_SHIFT": str(shift)}
    with begun(job.name, job.flags(inputs, warehouse), inputs, f"clock{case.number}") as right:
        right.wait_for(lambda: warehouse.exists() or right.popen.poll() is not None)
        with begun(other.name, flags, inputs, f"shifted{case.number}", **env) as wrong_one:
            codes = [one.popen.wait(2 * PATIENCE) for one in (right, wrong_one)]
            said = [one.remarks for one in (right, wrong_one)]
    told = f"maintain {shift} s off beside {job.told}: exit codes {codes}"
    if codes[0] or bad_end(codes[1], said[1]):
        return Verdict.failed(f"{told}: {[text[-500:] for text in said]}")
    gone = known.varying
    found, runs = warehouses.shown(warehouse, gone), warehouses.names_of_runs(warehouse)
    wanted = {name: rows for name, rows in known.rows.items() if name not in jobs.LARGE}
    mine = {name: rows for name, rows in found.items() if name not in jobs.LARGE}
    return Verdict.of(warehouses.not_of(wanted, mine, runs), told, f"a clock {shift} s off")


def shuffled_days(case: Case, chance: random.Random, folder: Path) -> Verdict:
    """Nights whose logical dates come in any order, one of them twice: each is as if it were alone."""
    from tests.faults.machine import days_wrong

    inputs, night = inputs_of(case), NAMED["nightly"]
    known, warehouse = alone(night, inputs), folder / "warehouse"
    days = [f"2026-0{month}-{day:02}" for month in (1, 2) for day in (1, 28)]
    order = chance.sample(days, 3)
    for day in [*order, chance.choice(order)]:
        finished("nightly", jobs.night(inputs, warehouse, day))
    wrong = days_wrong(known, warehouse, set(order))
    return Verdict.of(wrong, f"nights in the order {order}", "dates out of order")


# --------------------------------------------------------------------------------- readers and removers


def vacuum_beside(case: Case, chance: random.Random, folder: Path) -> Verdict:
    """Retention, compaction and VACUUM in another process, while tables are asked again and again."""
    inputs, warehouse = inputs_of(case), folder / "warehouse"
    jobs.nights(inputs, warehouse)
    question = ["--engine", "local", "--format", "csv", "--warehouse", str(warehouse),
                "SELECT count(*) AS n FROM current_metrics"]  # fmt: skip
    flags = jobs.maintain(inputs, warehouse)
    answers, asked = set(), 0
    with begun("maintain", flags, inputs, f"vacuum{case.number}") as remover:
        while remover.popen.poll() is None and asked < 2_000:
            code, out, err = job_and_output("query", question)
            asked += 1
            answers.add((code or 0, out))
            if code:
                return Verdict.failed(f"question {asked} beside {flags}: exit code {code}: {err[-600:]!r}")
        code = remover.popen.wait(PATIENCE)
        said = remover.remarks
    if len(answers) != 1 or bad_end(code, said):
        return Verdict.failed(f"{asked} questions, exit code {code}, answers {answers}: {said[-500:]!r}")
    return Verdict(about=[f"VACUUM of {flags[-1]} hours beside a reader: exit code {code}"])


def locked(case: Case, chance: random.Random, folder: Path) -> Verdict:
    """A warehouse without rights to write (`chmod -R a-w`), as a user who is not root meets it: what reads
    it answers, what writes says so, and nothing is changed."""
    inputs, home = inputs_of(case), Path(tempfile.mkdtemp(prefix="recbench-locked-"))
    night = NAMED["nightly"]
    alone(night, inputs)
    try:
        return read_and_write(case, chance, inputs, home, folders_of(night, inputs)[0])
    finally:
        subprocess.run(["chmod", "-R", "u+w", home], check=False)
        shutil.rmtree(home)


def read_and_write(case: Case, chance: random.Random, inputs: Path, home: Path, whole: Path) -> Verdict:
    if os.getuid() or not shutil.which("setpriv"):
        return Verdict.skipped("another user needs root and setpriv")
    warehouse, files = home / "warehouse", home / "in"
    shutil.copytree(whole, warehouse)
    files.mkdir()
    for file in inputs.iterdir():
        if file.suffix in (".parquet", ".csv"):
            shutil.copy(file, files)
    subprocess.run(["chmod", "-R", "a+rX,a-w", home], check=True)
    before = warehouses.shown(warehouse)
    name, flags = chance.choice(QUESTIONS)(files, warehouse)
    ran = as_nobody(name, flags, home)
    told = f"{name} on a locked warehouse: exit code {ran.returncode}"
    if "No module named" in ran.stderr or "can't open file" in ran.stderr:
        return Verdict.skipped("another user cannot read the repository here")
    wrong: Any = bad_end(ran.returncode, ran.stderr)
    if not wrong and (ran.returncode == 0) != (name == "query"):
        wrong = ran.stderr[-500:]
    wrong = wrong or warehouses.differences(before, warehouses.shown(warehouse))
    return Verdict.of(wrong, told, f"locked: {name}")


def as_nobody(name: str, flags: list[str], home: Path) -> subprocess.CompletedProcess[str]:
    """A job of a user who owns nothing here and has no home."""
    command = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", sys.executable]
    command += [str(ROOT / "jobs" / f"{name}.py"), *flags]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "HOME": "/nonexistent", "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, capture_output=True, text=True, env=env, check=False, cwd="/",
                          timeout=PATIENCE)  # fmt: skip


def a_question(files: Path, warehouse: Path) -> tuple[str, list[str]]:
    flags = ["--engine", "local", "--warehouse", str(warehouse), "SELECT count(*) FROM leaderboard"]
    return "query", flags


def an_evaluation(files: Path, warehouse: Path) -> tuple[str, list[str]]:
    return "evaluate", [*jobs.evaluate(files, warehouse), "--engine", "local"]


QUESTIONS: tuple[Callable[[Path, Path], tuple[str, list[str]]], ...] = (a_question, an_evaluation)
SCENARIOS = (wrong_clock, shuffled_days, vacuum_beside, locked)
