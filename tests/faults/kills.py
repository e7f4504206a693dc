"""kill -9 of every job at random moments: what shows after each kill is right, the next run completes.

A case is one job on one warehouse: some kills, then the job once more to its end. A kill comes so many
seconds into the job, or so long after it made a commit, wrote a file or said a line, as it was drawn. After
each the rows that show must be rows of an undisturbed warehouse, at most as often; at the end all of them.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import yaml
from deltalake import DeltaTable, write_deltalake

from tests.cluster.processes import Process, properties, started
from tests.faults import warehouses
from tests.faults.campaign import PRODUCT, ROOT, Case, Verdict, digest_of_code
from tests.faults.in_process import SETTINGS
from tests.faults.in_process import job as job_here
from tests.faults.nights import table
from tests.nights import TINY as NIGHT

KILLS = 4
"""Kills that a case makes before its job is let through."""

PATIENCE = 1200
"""Seconds: a shared machine may stop a campaign for minutes."""

TINY: dict[str, Any] = {
    **NIGHT,
    "evaluation": {
        **NIGHT["evaluation"],
        "metrics": ["ndcg", "recall"],
        "slices": [{"key": "popularity", "of": "popularity"}],
        "exposure": {"propensities": {"method": "relative_frequency"}, "estimators": ["ips"]},
    },
    "comparisons": {"replicates": 10},
    "paradoxes": {"replicates": 10, "by": ["popularity"], "metrics": ["ndcg"], "k": [5]},
}
"""The smallest night that writes every kind of rows that this small work can have."""


@dataclass(frozen=True)
class Job:
    """A job to kill. `argv`: its flags, for a folder of inputs and a warehouse. `before`: what this
    warehouse holds when it starts. `again`: whether a second run adds rows, each time the same ones.
    `rule`: what is wrong with a warehouse that it completed, whatever an undisturbed one shows."""

    name: str
    argv: Callable[[Path, Path], list[str]]
    before: Callable[[Path, Path], None] = lambda inputs, warehouse: None
    again: bool = False
    engine: str = ""
    rule: Callable[[Path, Path], list[str]] = lambda inputs, warehouse: []

    @property
    def told(self) -> str:
        """Its name, with the engine where it has two."""
        return f"{self.name}{'-' if self.engine else ''}{self.engine}"

    def begun(self, inputs: Path, warehouse: Path) -> AbstractContextManager[Process]:
        return begun(self.name, self.flags(inputs, warehouse), inputs)

    def flags(self, inputs: Path, warehouse: Path) -> list[str]:
        more = ["--engine", self.engine] if self.engine else []
        return [*self.argv(inputs, warehouse), *more]


def nights(inputs: Path, warehouse: Path) -> None:
    """Three nights, two of them old, as the job made them once, and what two killed runs left."""
    kept = inputs / "three_nights"
    if not (kept / "done").exists():
        shutil.rmtree(kept, ignore_errors=True)
        for day in ("2026-01-01", "2026-01-02", LATE):
            finished("nightly", night(inputs, kept / "w", day))
        for name in RESULTS:
            add_orphans(kept / "w" / name)
        (kept / "done").touch()
    shutil.copytree(kept / "w", warehouse)


LATE, ORPHANS = "2026-03-01", ("20200101T000000-killed", "29991231T000000-at-work")
"""The night that is kept; runs that are not in `runs`: one of long ago, one that has only begun."""
GRAPH = "0a1b2c3d4e5f6071"
"""No run: `checks` has rows of graphs too."""
RESULTS, LARGE = ("metrics", "checks", "rankings", "user_metrics"), ("rankings", "user_metrics")


def add_orphans(folder: Path) -> None:
    """The rows of a run once more, under the names of runs that were never published."""
    rows = DeltaTable(folder).to_pyarrow_table()
    mine = rows.filter(pc.equal(rows["run_id"], rows["run_id"][0]))
    at = rows.schema.get_field_index("run_id")
    for name in (*ORPHANS, GRAPH) if folder.name == "checks" else ORPHANS:
        names = pa.array([name] * mine.num_rows, rows.schema.field(at).type)
        write_deltalake(folder, mine.set_column(at, rows.schema.field(at), names), mode="append")


def retained(inputs: Path, warehouse: Path) -> list[str]:
    """What retention promises, read from the tables: rows per user of old nights are gone, and those of
    runs that were killed long ago; all others are there, each as often as before."""
    before = inputs / "three_nights" / "w"
    old = {row["run_id"] for row in table(before, "runs") if str(row["logical_date"]) < LATE}

    def kept(name: str, row: dict[str, Any]) -> bool:
        run = row.get("run_id")
        return run != ORPHANS[0] and not (name in LARGE and run in old)

    names = [name for name in (*RESULTS, "runs", "splits", "comparisons") if (before / name).exists()]
    wanted = {name: Counter(repr(row) for row in table(before, name) if kept(name, row)) for name in names}
    found = {name: Counter(map(repr, table(warehouse, name))) for name in names}
    return warehouses.differences(wanted, found)


def night(inputs: Path, warehouse: Path, day: str = "2026-01-01") -> list[str]:
    return ["--config", str(inputs / "tiny.yaml"), "--warehouse", str(warehouse), "--logical-date", day]


def split(inputs: Path, warehouse: Path) -> list[str]:
    return ["--config", str(inputs / "tiny.yaml"), "--warehouse", str(warehouse), "--set", "split.seed=8"]


def evaluate(inputs: Path, warehouse: Path) -> list[str]:
    found = ["--warehouse", str(warehouse), "--model", "m", "--lists", str(inputs / "lists.parquet")]
    return [
        *found,
        "--truth",
        str(inputs / "truth.parquet"),
        "--bootstrap",
        "10",
        "--logical-date",
        "2026-01-01",
    ]


def maintain(inputs: Path, warehouse: Path) -> list[str]:
    found = ["--warehouse", str(warehouse), "--keep-days", "20", "--logical-date", "2026-03-02"]
    return [*found, "--optimize", "--vacuum-hours", "24"]


def embed(inputs: Path, warehouse: Path) -> list[str]:
    found = ["--warehouse", str(warehouse), "--edges", str(inputs / "edges.csv"), "--features", "hashed:6"]
    return [*found, "--form", "sage", "--widths", "5,4", "--blocks", "3", "--name", "g", "--undirected"]


JOBS = (
    Job("nightly", night),
    Job("split", split),
    Job("evaluate", evaluate, again=True, engine="spark"),
    Job("maintain", maintain, nights, rule=retained),
    Job("evaluate", evaluate, again=True, engine="local"),
    Job("embed", embed),
)


def write_inputs(inputs: Path) -> None:
    inputs.mkdir(parents=True, exist_ok=True)
    (inputs / "tiny.yaml").write_text(yaml.safe_dump(TINY))
    write_settings(inputs)
    users, items = range(60), range(25)
    wanted = [(u, i) for u in users for i in items if (u * 7 + i * 5) % 11 == 0]
    listed = [(u, i, float((u * 3 + i * 13) % 17)) for u in users for i in items if (u + i) % 3]
    table = {"user_id": [r[0] for r in wanted], "item_id": [r[1] for r in wanted]}
    pq.write_table(pa.table(table), inputs / "truth.parquet")
    rows = {name: [row[n] for row in listed] for n, name in enumerate(("user_id", "item_id", "score"))}
    pq.write_table(pa.table(rows), inputs / "lists.parquet")
    edges = "".join(f"{n},{(n * 7 + j * 3) % 90}\n" for n in range(90) for j in range(1, 5))
    (inputs / "edges.csv").write_text("src,dst\n" + edges)


def write_settings(inputs: Path) -> None:
    """Those of the tests. A hundred kills start a hundred JVMs: where Delta lies where Ivy keeps its jars,
    these stand on its class path, with an archive of the classes that a night loads, kept for later."""
    conf, archive = inputs / "spark.conf", inputs.parent / "classes.jsa"
    settings = properties(conf, spark_driver_memory="1g", **SETTINGS).read_text()
    jars = sorted(map(str, Path.home().glob(".ivy2*/jars/*.jar")))
    if not any("delta-spark" in jar for jar in jars):
        return
    if not archive.exists():
        conf.write_text(with_java(settings, jars, f"-XX:ArchiveClassesAtExit={archive}"))
        with begun("nightly", night(inputs, inputs / "archived"), inputs) as process:
            process.popen.wait(PATIENCE)
            until = time.monotonic() + PATIENCE  # Java writes it once the job is gone
            while process.children("java") and time.monotonic() < until:
                time.sleep(0.1)
    conf.write_text(with_java(settings, jars, f"-XX:SharedArchiveFile={archive} -Xshare:auto"))


def with_java(settings: str, jars: list[str], flag: str) -> str:
    """The settings with these jars on the class path, and a further flag of Java."""
    kept = [line for line in settings.splitlines() if not line.startswith("spark.jars.")]
    more = f" -XX:+UseSerialGC -Xlog:disable {flag}"
    kept = [line + more if line.startswith("spark.driver.extraJavaOptions") else line for line in kept]
    return "\n".join([*kept, f"spark.driver.extraClassPath {os.pathsep.join(jars)}", ""])


@contextmanager
def begun(
    name: str, argv: list[str], inputs: Path, log: str = "job", conf: str = "spark.conf", **more: str
) -> Iterator[Process]:
    """A job in a session of processes of its own; `more`: of its environment."""
    command = [sys.executable, str(ROOT / "jobs" / f"{name}.py"), *argv]
    env = {"RECBENCH_SPARK_PROPERTIES": str(inputs / conf), "PYTHONPATH": str(ROOT)}
    env |= {"PYSPARK_PYTHON": sys.executable, **more}
    with started(command, inputs / f"{log}.log", inputs, **env) as process:
        yield process


def finished(name: str, argv: list[str]) -> None:
    """A job that is let through, in this process: what is killed needs one of its own, this does not."""
    code, said = job_here(name, argv)
    if code:
        raise RuntimeError(f"{name} ended with {code}: {said[-1500:]}")


def timed(job: Job, inputs: Path, warehouse: Path) -> tuple[float, str]:
    """Seconds of a job that is let through in a process of its own, and what it said."""
    start = time.monotonic()
    with job.begun(inputs, warehouse) as process:
        if code := process.popen.wait(PATIENCE):
            raise RuntimeError(f"{job.told} ended with {code}: {process.said[-1500:]}")
    return time.monotonic() - start, process.said


@dataclass(frozen=True)
class Reference:
    """An undisturbed warehouse: what it shows, which columns no two runs share, how long the job takes, and
    how many commits, files and lines it makes."""

    rows: dict[str, Counter[str]]
    varying: set[str]
    seconds: float
    events: dict[str, int]


def reference(job: Job, inputs: Path) -> Reference:
    """Of two undisturbed runs, made once for this code: in a process of its own, and in this one."""
    alone, here = folders = [inputs / f"undisturbed-{job.told}-{n}" for n in range(2)]
    note = inputs / f"undisturbed-{job.told}.json"
    if not note.exists():
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
            job.before(inputs, folder)
        before = files_of(alone)
        seconds, said = timed(job, inputs, alone)
        found = {"seconds": seconds, "events": counted(before, files_of(alone), said)}
        finished(job.name, job.flags(inputs, here))
        if wrong := job.rule(inputs, alone) + job.rule(inputs, here):
            raise RuntimeError(f"{job.told} undisturbed: {wrong}")
        note.write_text(json.dumps(found))
    gone = warehouses.varying(*folders)
    return Reference(warehouses.shown(folders[0], gone), gone, **json.loads(note.read_text()))


def files_of(warehouse: Path) -> set[str]:
    """All files of a warehouse that may be at work."""
    return {f"{place}/{name}" for place, _, names in os.walk(warehouse) for name in names}


def counted(before: set[str], now: set[str], said: str) -> dict[str, int]:
    """What a job did so far: commits and other files, made or removed, and lines."""
    moved = before ^ now
    commits = sum("_delta_log" in name and name.endswith(".json") for name in moved)
    return {"commit": commits, "file": len(moved) - commits, "line": said.count("\n")}


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
        if counted(before, files_of(warehouse), process.said)[moment.kind] >= moment.nth:
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
    chance, job = case.draw(), JOBS[case.number % len(JOBS)]
    inputs = case.place / digest_of_code(PRODUCT)
    if not (inputs / "edges.csv").exists():
        write_inputs(inputs)
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
            return f"{job.told} killed {moment} ({code}): {wrong or process.said[-600:]!r}"
        if not alive and not job.again:
            self.prepare()
        return None


def differs(job: Job, known: Reference, warehouse: Path) -> list[str]:
    """How a completed warehouse differs from the undisturbed one."""
    found = warehouses.shown(warehouse, known.varying)
    if job.again:  # as many whole runs as were published, each with the same rows
        n = found.get("runs", Counter()).total()
        return warehouses.differences(times(known.rows, n), found) if n else ["nothing was published"]
    return warehouses.differences(known.rows, found)


def odd_rows(job: Job, known: Reference, before: dict[str, Counter[str]], warehouse: Path) -> list[str]:
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
