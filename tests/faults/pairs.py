"""Run two jobs at once in one warehouse: the result equals that of each job alone.

A case is one job twice or two different jobs, 0, .3 or 2 seconds apart, in a new warehouse or in one in
which the first of them was killed before. One of the two runs in its own process with a warm session, the
other in the campaign's process; every seventh case starts both as a scheduler would.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from tests.faults import warehouses
from tests.faults.campaign import Case, Verdict
from tests.faults.in_process import job as job_here
from tests.faults.inputs import prepare_inputs
from tests.faults.jobs import NAMED, READERS, Job
from tests.faults.starting import find_bad_end, run_job, start_job
from tests.faults.undisturbed import list_folders, run_alone
from tests.faults.warm import PATIENCE, End, Warm

DELAYS = (0.0, 0.3, 2.0)
KNOWN = {**NAMED, **{job.title: job for job in READERS}}
DIFFERENT = (
    ("benchmark", "tune"), ("embed", "embed-other"), ("nightly-graphs", "tune-nights"),
    ("nightly", "split"), ("maintain", "evaluate-local"), ("nightly", "evaluate-local"),
    ("embed", "neighbourhoods"), ("maintain", "query"), ("nightly", "benchmark"), ("split", "benchmark"),
    ("evaluate-local", "evaluate-spark"), ("nightly-graphs", "embed"), ("maintain", "embed"),
    ("propensity", "estimate"), ("nightly", "nightly-graphs"), ("bundle", "tune"),
    ("maintain", "report"), ("multiverse", "nightly"), ("benchmark", "board"), ("maintain", "split"),
)  # fmt: skip
TWICE = ("benchmark", "evaluate-local", "embed", "tune", "nightly-graphs", "nightly", "neighbourhoods",
         "tune-nights", "split", "maintain", "evaluate-spark", "multiverse", "propensity", "estimate",
         "embed-other", "maintain-graphs")  # fmt: skip
PAIRS = tuple(
    pair
    for n in range(max(len(TWICE), len(DIFFERENT)))
    for pair in (*((job, job) for job in TWICE[n : n + 1]), *DIFFERENT[n : n + 1])
)


def run(case: Case) -> Verdict:
    """Run both, run a job again where it asks for that, and compare the warehouse with those of single
    runs.
    """
    inputs, turn = prepare_inputs(case), case.number // len(PAIRS)
    pair = [KNOWN[name] for name in PAIRS[case.number % len(PAIRS)]]
    delay, half = DELAYS[(case.number + turn) % 3], (case.number // 3 + turn) % 2 == 1
    half = half and pair[1].before in (
        pair[0].before,
        Job.before,
    )  # only where both jobs start from the same warehouse
    folder = case.place / "warehouse"
    case_text = f"{pair[0].title} and {pair[1].title}, {delay} s apart, {'half-made' if half else 'fresh'}"
    for job in pair:
        run_alone(job, inputs)
    prepare(inputs, folder, pair, turn if half else None)
    ends = (
        run_apart(inputs, folder, pair, delay)
        if case.number % 7 == 6
        else run_warm(inputs, folder, pair, delay)
    )
    wrong = ends_wrong(pair, ends) or again_wrong(inputs, folder, pair, ends)
    wrong = wrong or find_differences(inputs, folder, pair, ends)
    if wrong:
        shutil.copytree(folder, case.place / f"case{case.number}", dirs_exist_ok=True)
        return Verdict.fail(
            f"{case_text}: {wrong} [{case.place / f'case{case.number}'}]", *codes(pair, ends)
        )
    return Verdict(about=codes(pair, ends))


def codes(pair: list[Job], ends: list[End]) -> list[str]:
    """Return exit codes for the tallies."""
    return [f"{' and '.join(job.title for job in pair)}: exit codes {sorted(end.code for end in ends)}"]


# ------------------------------------------------------------------------------- the warehouse before


def prepare(inputs: Path, folder: Path, pair: list[Job], turn: int | None) -> None:
    """Prepare a warehouse as both jobs expect it, or one in which the first of them was killed."""
    clear(folder)
    if turn is None:
        prepare_ground(inputs, folder, pair)
        return
    saved = inputs / "half-made" / f"{pair[0].title}-{turn % 3}"
    if not saved.exists():
        prepare_ground(inputs, folder, pair[:1])
        kill_within(inputs, folder, pair[0], 0.1 + 0.3 * (turn % 3))
        folder.mkdir(exist_ok=True)
        saved.parent.mkdir(exist_ok=True)
        subprocess.run(["cp", "-a", folder, saved], check=True)
    clear(folder)
    subprocess.run(["cp", "-a", saved, folder], check=True)


def clear(folder: Path) -> None:
    for place in (folder, folder.with_name(f"{folder.name}-bundle")):
        shutil.rmtree(place, ignore_errors=True)


def prepare_ground(inputs: Path, folder: Path, pair: list[Job]) -> None:
    """Prepare the warehouse for the jobs; a function that copies one comes first."""
    befores = {job.before for job in pair if job.before is not Job.before}
    for before in sorted(befores, key=lambda before: before.__name__, reverse=True):
        before(inputs, folder)


def kill_within(inputs: Path, folder: Path, job: Job, share: float) -> None:
    """Start the job, and end its process after this share of the time that it takes alone."""
    server = warm_process(inputs)
    number = server.begin(job.name, job.flags(inputs, folder))
    until = time.monotonic() + share * run_alone(job, inputs).seconds
    while time.monotonic() < until and not (server.folder / f"{number}.end").exists():
        time.sleep(0.01)
    server.kill()


@cache
def warm_process(inputs: Path) -> Warm:
    return Warm(inputs, "pairs")


# ------------------------------------------------------------------------------------------- both at once


def run_warm(inputs: Path, folder: Path, pair: list[Job], delay: float) -> list[End]:
    """Run the first in a process with a warm session, and the second in this one."""
    server = warm_process(inputs)
    number = server.begin(pair[0].name, pair[0].flags(inputs, folder))
    time.sleep(delay)
    start = time.monotonic()
    try:
        with patience(PATIENCE):
            code, output = job_here(pair[1].name, pair[1].flags(inputs, folder))
    except TimeoutError:
        code, output = -9, "hangs"
    second = End(code or 0, output, time.monotonic() - start)
    return [server.wait(number), second]


def run_apart(inputs: Path, folder: Path, pair: list[Job], delay: float) -> list[End]:
    """Run both in their own processes."""
    with ExitStack() as stack:
        started = []
        for n, job in enumerate(pair):
            flags = job.flags(inputs, folder)
            started.append(stack.enter_context(start_job(job.name, flags, inputs, f"pair{n}")))
            time.sleep(delay if n == 0 else 0)
        return [End(one.popen.wait(2 * PATIENCE), one.remarks, 0.0) for one in started]


@contextmanager
def patience(seconds: int) -> Iterator[None]:
    """Raise TimeoutError in this thread where something takes longer."""

    def stop(number: int, frame: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


# ---------------------------------------------------------------------------------------- what is right


def ends_wrong(pair: list[Job], ends: list[End]) -> str | None:
    """Check that a job ends well, or asks only to be run again."""
    for job, end in zip(pair, ends, strict=True):
        if wrong := find_bad_end(end.code, end.remarks):
            return f"{job.title}: {wrong}"
        if end.code and "again" not in end.remarks.rpartition("hint: ")[2]:
            return f"{job.title} asks for more than to be run again: {end.remarks[-500:]!r}"
    return None


def again_wrong(inputs: Path, folder: Path, pair: list[Job], ends: list[End]) -> str | None:
    """Check that a job that did not end well does so when it runs alone."""
    for job, end in zip(pair, ends, strict=True):
        if end.code:
            code, output = job_here(job.name, job.flags(inputs, folder))
            if code:
                return f"{job.title} run again: exit code {code}: {output[-500:]!r}"
    return None


def find_differences(inputs: Path, folder: Path, pair: list[Job], ends: list[End]) -> list[str]:
    """Find rows that are lost, wrong or doubled, compared with both jobs alone, else with one after the
    other.
    """
    varying = set().union(*(run_alone(job, inputs).varying for job in pair))
    rows_found, runs = warehouses.read_rows(folder, varying), warehouses.count_runs(folder)
    rows = [warehouses.read_rows(list_folders(job, inputs)[0], varying) for job in pair]
    wanted = {name: rows[0].get(name, Counter()) | rows[1].get(name, Counter())
              for name in {*rows[0], *rows[1]}}  # fmt: skip
    wrong = warehouses.compare_repeated(wanted, rows_found, runs)
    if wrong and pair[0] is not pair[1]:
        wrong = warehouses.compare_repeated(
            warehouses.read_rows(run_in_turn(inputs, pair), varying), rows_found, runs
        )
    return wrong + too_few(pair, ends, runs)


def too_few(pair: list[Job], ends: list[End], runs: Counter[str]) -> list[str]:
    """Report a job that adds a run every time, where fewer runs are there than ended well."""
    if pair[0] is pair[1] and pair[0].again and (least := min(runs.values(), default=0)) < len(ends):
        return [f"{len(ends)} runs ended well, and {least} were published"]
    return []


def run_in_turn(inputs: Path, pair: list[Job]) -> Path:
    """Return a warehouse in which the first ran alone, and then the second."""
    folder: Any = inputs / "in-turn" / "-then-".join(job.title for job in pair)
    if not folder.exists():
        folder.parent.mkdir(exist_ok=True)
        prepare_ground(inputs, folder, pair)
        for job in pair:
            run_job(job.name, job.flags(inputs, folder))
    return Path(folder)
