"""kill -9 of every job at random moments: what shows after each kill is right, the next run completes.

A case is one job on one warehouse: some kills, then the job once more to its end. A kill comes so many
seconds into the job, or so long after it made a commit, wrote a file or said a line, as it was drawn. After
each the rows that show must be rows of an undisturbed warehouse, at most as often; at the end all of them.
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
from tests.faults.inputs import inputs_of
from tests.faults.jobs import GRAPH_NIGHT, JOBS, Job
from tests.faults.starting import finished
from tests.faults.undisturbed import Reference, counted, differs, files_of, odd_rows, reference

KILLS = 4
"""Kills that a case makes before its job is let through."""

KILLED = tuple(job for n, one in enumerate(JOBS) for job in ((one, GRAPH_NIGHT) if n >= 6 else (one,)))
"""The jobs in turn; a night that trains models over graphs has the most to resume, and comes most often."""


@dataclass(frozen=True)
class Moment:
    """So many seconds into a job, or `delay` after it did `kind` for the nth time."""

    kind: str
    nth: int
    delay: float

    def __str__(self) -> str:
        after = f" after {self.kind} {self.nth}" if self.nth else ""
        return f"{self.delay:.2f} s{after}"


def drawn(chance: random.Random, known: Reference, done: dict[str, int]) -> Moment:
    """Any time of the job's life, or something that is still to be done, and a delay after it."""
    kind = chance.choice(["seconds", "commit", "file", "line"])
    share, delay = chance.random(), chance.choice([0.0, 0.02, 0.2, 1.0]) * chance.random()
    if kind == "seconds":
        return Moment(kind, 0, known.seconds * (0.02 + 0.98 * share))
    ahead = known.events[kind] - done[kind]
    return Moment(kind, 1 + int(share * max(1, ahead)), delay)


def killed(process: Process, moment: Moment, warehouse: Path, before: set[str]) -> bool:
    """At the moment SIGKILL to the job's group, and to those that left it; False if it was done before."""
    while moment.nth and process.popen.poll() is None:
        if counted(before, files_of(warehouse), process.remarks)[moment.kind] >= moment.nth:
            break
        time.sleep(0.01)
    with suppress(subprocess.TimeoutExpired):
        process.popen.wait(moment.delay)
    alive = process.popen.poll() is None
    if alive:
        os.killpg(process.popen.pid, signal.SIGKILL)
    process.kill()
    return alive


def run(case: Case) -> Verdict:
    """Kills of one job on one warehouse, and its completion."""
    chance, job = case.draw(), KILLED[case.number % len(KILLED)]
    inputs = inputs_of(case)
    trial = Trial(job, inputs, case.place / f"case{case.number}", reference(job, inputs))
    trial.prepare()
    while trial.kills < KILLS:
        if wrong := trial.once(chance):
            return Verdict.failed(wrong, *trial.about)
    finished(job.name, job.flags(inputs, trial.warehouse))
    if wrong := differs(job, trial.known, trial.warehouse) + job.rule(inputs, trial.warehouse):
        return Verdict.failed(f"{job.told} completed after kills {trial.about}: {wrong}", *trial.about)
    shutil.rmtree(trial.warehouse)
    return Verdict(about=trial.about)


class Trial:
    """A warehouse on which a job is killed again and again; one on which it was done is begun anew."""

    def __init__(self, job: Job, inputs: Path, warehouse: Path, known: Reference) -> None:
        self.job, self.inputs, self.warehouse, self.known = job, inputs, warehouse, known
        self.kills, self.about = 0, list[str]()

    def prepare(self) -> None:
        """The warehouse as the job finds it."""
        shutil.rmtree(self.warehouse, ignore_errors=True)
        self.job.before(self.inputs, self.warehouse)
        known = self.known.varying
        self.before = warehouses.shown(self.warehouse, known) if self.warehouse.exists() else {}
        self.files = files_of(self.warehouse)

    def once(self, chance: random.Random) -> str | None:
        """A kill, and what is wrong then."""
        job, warehouse, files = self.job, self.warehouse, files_of(self.warehouse)
        # Of a warehouse that was worked on before, less is left to do; rows of `again` come every time.
        moment = drawn(chance, self.known, counted(files if job.again else self.files, files, ""))
        with job.begun(self.inputs, warehouse) as process:
            alive = killed(process, moment, warehouse, files)
        code = process.popen.returncode
        self.kills += alive
        self.about.append(f"{job.told}: {f'killed by {moment.kind}' if alive else 'done before the kill'}")
        wrong = odd_rows(job, self.known, self.before, warehouse)
        if wrong or (not alive and code):
            return f"{job.told} killed {moment} ({code}): {wrong or process.remarks[-600:]!r}"
        if not alive and not job.again:
            self.prepare()
        return None
