"""Send kill -9 to every job at random moments: the rows after each kill are right, and the next run
completes.

A case is one job on one warehouse: some kills, then the job again to its end. A kill comes after a random
number of seconds, or a random delay after the job made a commit, wrote a file or printed a line. After each
kill the visible rows must be rows of an undisturbed warehouse, at most as often; at the end all of them
must be there.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.processes import Process
from tests.faults import warehouses
from tests.faults.campaign import Case, Verdict
from tests.faults.inputs import prepare_inputs
from tests.faults.jobs import GRAPH_NIGHT, JOBS, Job
from tests.faults.starting import PATIENCE, run_job
from tests.faults.undisturbed import (
    Reference,
    count_events,
    find_differences,
    find_odd_rows,
    list_files,
    reference,
)

KILLS = 4
"""Kills of a case before its job may complete."""

MOST_STARTS = 5 * KILLS
"""Starts of a case's job. A job that ends before the moment of its kill counts as no kill, so a case could
start it for ever.
"""

KILLED_JOBS = tuple(job for n, one in enumerate(JOBS) for job in ((one, GRAPH_NIGHT) if n >= 6 else (one,)))
"""The jobs in turn; a night that trains models over graphs comes most often, since it has the most to
resume."""


@dataclass(frozen=True)
class Moment:
    """A moment in a job: `delay` seconds after its start, or after its nth event of a kind."""

    kind: str
    nth: int
    delay: float

    def __str__(self) -> str:
        after = f" after {self.kind} {self.nth}" if self.nth else ""
        return f"{self.delay:.2f} s{after}"


def draw_moment(chance: random.Random, reference: Reference, done: dict[str, int]) -> Moment:
    """Draw any time of the job's life, or a delay after an event that is still to come."""
    kind = chance.choice(["seconds", "commit", "file", "line"])
    share, delay = chance.random(), chance.choice([0.0, 0.02, 0.2, 1.0]) * chance.random()
    if kind == "seconds":
        return Moment(kind, 0, reference.seconds * (0.02 + 0.98 * share))
    ahead = reference.events[kind] - done[kind]
    return Moment(kind, 1 + int(share * max(1, ahead)), delay)


def kill_at(process: Process, moment: Moment, warehouse: Path, before: set[str]) -> bool:
    """Send SIGKILL to the job's group, and to processes that left it, at the moment; False if the job ended
    before. A job that neither ends nor gets there within PATIENCE raises TimeoutError.
    """
    until = time.monotonic() + PATIENCE
    while moment.nth and process.popen.poll() is None:
        if count_events(before, list_files(warehouse), process.remarks)[moment.kind] >= moment.nth:
            break
        if time.monotonic() > until:
            raise TimeoutError(f"no {moment} within {PATIENCE} s: {process.remarks[-600:]!r}")
        time.sleep(0.01)
    with suppress(subprocess.TimeoutExpired):
        process.popen.wait(moment.delay)
    alive = process.popen.poll() is None
    if alive:
        os.killpg(process.popen.pid, signal.SIGKILL)
    process.kill()
    return alive


def run(case: Case) -> Verdict:
    """Kill one job on one warehouse several times, and complete it."""
    chance, job = case.draw(), KILLED_JOBS[case.number % len(KILLED_JOBS)]
    inputs = prepare_inputs(case)
    trial = Trial(job, inputs, case.place / f"case{case.number}", reference(job, inputs))
    trial.prepare()
    if failed := trial.kill_repeatedly(chance):
        return failed
    run_job(job.name, job.flags(inputs, trial.warehouse))
    if wrong := find_differences(job, trial.known, trial.warehouse) + job.rule(inputs, trial.warehouse):
        return Verdict.fail(f"{job.title} completed after kills {trial.about}: {wrong}", *trial.about)
    shutil.rmtree(trial.warehouse)
    return Verdict(about=trial.about)


class Trial:
    """A warehouse on which a job is killed several times; it is prepared again after the job has
    completed.
    """

    def __init__(self, job: Job, inputs: Path, warehouse: Path, known: Reference) -> None:
        self.job, self.inputs, self.warehouse, self.known = job, inputs, warehouse, known
        self.kills, self.starts, self.about = 0, 0, list[str]()

    def prepare(self) -> None:
        """Prepare the warehouse as the job expects it."""
        shutil.rmtree(self.warehouse, ignore_errors=True)
        self.job.before(self.inputs, self.warehouse)
        known = self.known.varying
        self.before = warehouses.read_rows(self.warehouse, known) if self.warehouse.exists() else {}
        self.files = list_files(self.warehouse)

    def kill_repeatedly(self, chance: random.Random) -> Verdict | None:
        """Kill the job KILLS times; return a failure, if any."""
        while self.kills < KILLS:
            if self.starts == MOST_STARTS:
                message = f"{self.kills} kills in {MOST_STARTS} starts of {self.job.title}"
                return Verdict.fail(message, *self.about)
            if wrong := self.kill_once(chance):
                return Verdict.fail(wrong, *self.about)
        return None

    def kill_once(self, chance: random.Random) -> str | None:
        """Kill the job once, and return the problem, if any."""
        job, warehouse, files = self.job, self.warehouse, list_files(self.warehouse)
        # A resumed job has less left to do; a job with `again` adds its rows every time.
        moment = draw_moment(
            chance, self.known, count_events(files if job.again else self.files, files, "")
        )
        with job.start(self.inputs, warehouse) as process:
            alive = kill_at(process, moment, warehouse, files)
        code = process.popen.returncode
        self.kills, self.starts = self.kills + alive, self.starts + 1
        self.about.append(f"{job.title}: {f'killed by {moment.kind}' if alive else 'done before the kill'}")
        wrong = find_odd_rows(job, self.known, self.before, warehouse)
        if wrong or (not alive and code):
            return f"{job.title} killed {moment} ({code}): {wrong or process.remarks[-600:]!r}"
        if not alive and not job.again:
            self.prepare()
        return None
