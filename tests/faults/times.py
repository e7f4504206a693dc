"""Wrong clocks, dates out of order, and files that are removed or locked while they are read."""

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
from tests.faults.inputs import prepare_inputs
from tests.faults.jobs import NAMED
from tests.faults.starting import find_bad_end, run_job, start_job
from tests.faults.undisturbed import list_folders, run_alone
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
"""A library that is loaded before all others and moves the clock of a process, but not that of the
files."""


def build_clock_library(inputs: Path) -> Path | None:
    """Compile the library once; None where there is no compiler."""
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
    """A host with a wrong clock runs a job beside another host's, in one warehouse.

    Python and Java have the wrong time, the files have the right one.
    """
    inputs = prepare_inputs(case)
    library = build_clock_library(inputs)
    if library is None:
        return Verdict.skip("no compiler for a library that moves the clock")
    shift, job = chance.choice(SHIFTS), NAMED[chance.choice(("evaluate-local", "embed", "nightly"))]
    other, reference = NAMED["maintain"], run_alone(job, inputs)
    warehouse = folder / "warehouse"
    flags = other.flags(inputs, warehouse)
    env = {"LD_PRELOAD": str(library), "FAULTS_SHIFT": str(shift)}
    with start_job(job.name, job.flags(inputs, warehouse), inputs, f"clock{case.number}") as right:
        right.wait_for(lambda: warehouse.exists() or right.popen.poll() is not None)
        with start_job(other.name, flags, inputs, f"shifted{case.number}", **env) as wrong_one:
            codes = [one.popen.wait(2 * PATIENCE) for one in (right, wrong_one)]
            outputs = [one.remarks for one in (right, wrong_one)]
    case_text = f"maintain {shift} s off beside {job.title}: exit codes {codes}"
    if codes[0] or find_bad_end(codes[1], outputs[1]):
        return Verdict.fail(f"{case_text}: {[text[-500:] for text in outputs]}")
    varying = reference.varying
    shown, runs = warehouses.read_rows(warehouse, varying), warehouses.count_runs(warehouse)
    wanted = {name: rows for name, rows in reference.rows.items() if name not in jobs.LARGE}
    mine = {name: rows for name, rows in shown.items() if name not in jobs.LARGE}
    return Verdict.judge(
        warehouses.compare_repeated(wanted, mine, runs), case_text, f"a clock {shift} s off"
    )


def shuffle_days(case: Case, chance: random.Random, folder: Path) -> Verdict:
    """Nights with logical dates in any order, one of them twice: each equals a night alone."""
    from tests.faults.machine import find_wrong_days

    inputs, night = prepare_inputs(case), NAMED["nightly"]
    reference, warehouse = run_alone(night, inputs), folder / "warehouse"
    days = [f"2026-0{month}-{day:02}" for month in (1, 2) for day in (1, 28)]
    order = chance.sample(days, 3)
    for day in [*order, chance.choice(order)]:
        run_job("nightly", jobs.night(inputs, warehouse, day))
    wrong = find_wrong_days(reference, warehouse, set(order))
    return Verdict.judge(wrong, f"nights in the order {order}", "dates out of order")


# --------------------------------------------------------------------------------- readers and removers


def vacuum_beside(case: Case, chance: random.Random, folder: Path) -> Verdict:
    """Retention, compaction and VACUUM run in another process, while tables are queried repeatedly."""
    inputs, warehouse = prepare_inputs(case), folder / "warehouse"
    jobs.prepare_nights(inputs, warehouse)
    question = ["--engine", "local", "--format", "csv", "--warehouse", str(warehouse),
                "SELECT count(*) AS n FROM current_metrics"]  # fmt: skip
    flags = jobs.maintain(inputs, warehouse)
    answers, n_queries = set(), 0
    with start_job("maintain", flags, inputs, f"vacuum{case.number}") as remover:
        while remover.popen.poll() is None and n_queries < 2_000:
            code, out, err = job_and_output("query", question)
            n_queries += 1
            answers.add((code or 0, out))
            if code:
                return Verdict.fail(
                    f"question {n_queries} beside {flags}: exit code {code}: {err[-600:]!r}"
                )
        code = remover.popen.wait(PATIENCE)
        output = remover.remarks
    if len(answers) != 1 or find_bad_end(code, output):
        return Verdict.fail(
            f"{n_queries} questions, exit code {code}, answers {answers}: {output[-500:]!r}"
        )
    return Verdict(about=[f"VACUUM of {flags[-1]} hours beside a reader: exit code {code}"])


def lock_warehouse(case: Case, chance: random.Random, folder: Path) -> Verdict:
    """A warehouse without rights to write (`chmod -R a-w`), for a user who is not root.

    Jobs that read it answer, jobs that write report it, and nothing is changed.
    """
    inputs, home = prepare_inputs(case), Path(tempfile.mkdtemp(prefix="recbench-locked-"))
    night = NAMED["nightly"]
    run_alone(night, inputs)
    try:
        return read_and_write(case, chance, inputs, home, list_folders(night, inputs)[0])
    finally:
        subprocess.run(["chmod", "-R", "u+w", home], check=False)
        shutil.rmtree(home)


def read_and_write(case: Case, chance: random.Random, inputs: Path, home: Path, whole: Path) -> Verdict:
    if os.getuid() or not shutil.which("setpriv"):
        return Verdict.skip("another user needs root and setpriv")
    warehouse, files = home / "warehouse", home / "in"
    shutil.copytree(whole, warehouse)
    files.mkdir()
    for file in inputs.iterdir():
        if file.suffix in (".parquet", ".csv"):
            shutil.copy(file, files)
    subprocess.run(["chmod", "-R", "a+rX,a-w", home], check=True)
    before = warehouses.read_rows(warehouse)
    name, flags = chance.choice(QUESTIONS)(files, warehouse)
    ran = as_nobody(name, flags, home)
    case_text = f"{name} on a locked warehouse: exit code {ran.returncode}"
    if "No module named" in ran.stderr or "can't open file" in ran.stderr:
        return Verdict.skip("another user cannot read the repository here")
    wrong: Any = find_bad_end(ran.returncode, ran.stderr)
    if not wrong and (ran.returncode == 0) != (name == "query"):
        wrong = ran.stderr[-500:]
    wrong = wrong or warehouses.find_differences(before, warehouses.read_rows(warehouse))
    return Verdict.judge(wrong, case_text, f"locked: {name}")


def as_nobody(name: str, flags: list[str], home: Path) -> subprocess.CompletedProcess[str]:
    """Run a job as a user who owns nothing here and has no home."""
    command = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", sys.executable]
    command += [str(ROOT / "jobs" / "recbench.py"), name, *flags]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "HOME": "/nonexistent", "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, capture_output=True, text=True, env=env, check=False, cwd="/",
                          timeout=PATIENCE)  # fmt: skip


def a_question(files: Path, warehouse: Path) -> tuple[str, list[str]]:
    flags = ["--engine", "local", "--warehouse", str(warehouse), "SELECT count(*) FROM leaderboard"]
    return "query", flags


def an_evaluation(files: Path, warehouse: Path) -> tuple[str, list[str]]:
    return "evaluate", [*jobs.evaluate(files, warehouse), "--engine", "local"]


QUESTIONS: tuple[Callable[[Path, Path], tuple[str, list[str]]], ...] = (a_question, an_evaluation)
SCENARIOS = (wrong_clock, shuffle_days, vacuum_beside, lock_warehouse)
