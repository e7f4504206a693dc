"""Faults of the machine and of files, one scenario a case: disks, paths, clocks, torn files, other users.

A scenario that needs what this machine does not allow (root, mounts) is told as skipped, never as passed.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from tests.cluster.processes import cluster, properties, started
from tests.faults import jobs, nights, starting, times, undisturbed, warehouses
from tests.faults.campaign import ROOT, Case, Verdict
from tests.faults.disks import remounted, small_disk
from tests.faults.frames import differs
from tests.faults.handed import Column, Handed, Refused, expected
from tests.faults.in_process import job
from tests.faults.inputs import TINY, inputs_of
from tests.faults.names import odd_paths
from tests.faults.spark import metrics_of
from tests.faults.starting import bad_end

Scenario = Callable[[Case, random.Random, Path], Verdict]
NIGHTLY = jobs.JOBS[0]


def run(case: Case) -> Verdict:
    """The scenario whose turn it is, in a folder of its own."""
    scenario = SCENARIOS[case.number % len(SCENARIOS)]
    folder = case.place / f"case{case.number}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    verdict = scenario(case, case.draw(), folder)
    verdict.about.append(f"{scenario.__name__}: {verdict.status}")
    if verdict.status == "failed":
        verdict.told = f"{scenario.__name__}: {verdict.told} [{folder}]"
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return verdict


# ---------------------------------------------------------------------------------------------- disks


def full_warehouse(case: Case, chance: random.Random, folder: Path) -> Verdict:
    """The warehouse's disk is full in the middle of a night; with more space the next run completes."""
    size, disk = chance.randrange(60, 1400), folder / "disk"
    with small_disk(disk, f"{size}k") as mounted:
        if not mounted:
            return Verdict.skipped("no tmpfs can be mounted here")
        room = partial(remounted, disk, "size=500m")
        return crowded(case, f"a warehouse of {size} KiB", disk / "warehouse", room)


def full_scratch(case: Case, chance: random.Random, folder: Path) -> Verdict:
    """Spark's local folders, and the temporary one, on a full disk."""
    size, disk = chance.randrange(1, 300), folder / "disk"
    with small_disk(disk, f"{size}k") as mounted:
        if not mounted:
            return Verdict.skipped("no tmpfs can be mounted here")
        scratch = {"SPARK_LOCAL_DIRS": str(disk), "TMPDIR": str(disk)}
        return crowded(case, f"scratch of {size} KiB", folder / "warehouse", lambda: None, **scratch)


def crowded(case: Case, told: str, warehouse: Path, room: Callable[[], None], **env: str) -> Verdict:
    """A night that may end with a sentence; once there is room, the next run completes."""
    inputs = inputs_of(case)
    known = undisturbed.reference(NIGHTLY, inputs)
    code, said = ended(case, inputs, warehouse, **env)
    wrong: Any = bad_end(code, said) or undisturbed.odd_rows(NIGHTLY, known, {}, warehouse)
    if wrong:
        return Verdict.failed(f"{told}: {wrong}")
    room()
    starting.finished("nightly", jobs.night(inputs, warehouse))
    return Verdict.of(
        undisturbed.differs(NIGHTLY, known, warehouse), told, f"a full disk: exit code {code}"
    )


def ended(case: Case, inputs: Path, warehouse: Path, **env: str) -> tuple[int, str]:
    """Exit code of a night in a process of its own, and what it said; `env`: of its environment."""
    argv = jobs.night(inputs, warehouse)
    with starting.begun("nightly", argv, inputs, f"{case.number}", **env) as process:
        return process.popen.wait(starting.PATIENCE), process.remarks


def read_only(case: Case, chance: random.Random, folder: Path) -> Verdict:
    """A warehouse that cannot be written: a sentence, and every table as it was."""
    inputs = inputs_of(case)
    undisturbed.reference(NIGHTLY, inputs)
    with small_disk(folder / "disk", "100m") as mounted:
        if not mounted:
            return Verdict.skipped("no tmpfs can be mounted here")
        warehouse = folder / "disk" / "warehouse"
        shutil.copytree(inputs / "undisturbed-nightly-0", warehouse)
        remounted(folder / "disk", "ro")
        before = warehouses.shown(warehouse)
        name = chance.choice(
            ["nightly", "split", "evaluate", "maintain", "embed", "nightly --force", "query"]
        )
        code, err = any_job(name, inputs, warehouse)
        if code not in (1, 2) and name != "query":
            return Verdict.failed(f"{name} on a read-only disk: exit code {code}: {err[-300:]!r}")
        wrong = bad_end(code, err) or warehouses.differences(before, warehouses.shown(warehouse))
    return Verdict.of(wrong, f"{name} on a read-only disk", f"read-only {name}")


def any_job(name: str, inputs: Path, warehouse: Path) -> tuple[Any, str]:
    """A job in this process."""
    if name == "query":
        return job("query", ["--warehouse", str(warehouse), "SELECT count(*) FROM leaderboard"])
    argv = {one.name: one.argv for one in jobs.JOBS}[name.split(maxsplit=1)[0]](inputs, warehouse)
    if name.startswith("nightly"):
        argv = [*argv[:-1], "2026-01-05"] if "--force" not in name else [*argv, "--force"]
    return job(name.split(maxsplit=1)[0], argv)


def unreadable(case: Case, chance: random.Random, folder: Path) -> Verdict:
    """Files and folders of somebody else, as another user of the host meets them."""
    if os.getuid() or not shutil.which("setpriv"):
        return Verdict.skipped("another user needs root and setpriv")
    home = Path(tempfile.mkdtemp(prefix="recbench-nobody-"))
    home.chmod(0o755)
    config = home / "night.yaml"
    config.write_text(yaml.safe_dump(TINY))
    kind = chance.choice(["config", "folder of the config"])
    (config if kind == "config" else home).chmod(0o000)
    command = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", sys.executable]
    command += [str(ROOT / "jobs" / "nightly.py"), "--config", str(config), "--dry-run"]
    command += ["--warehouse", str(home / "w"), "--logical-date", "2026-01-01"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "NUMBA_CACHE_DIR": str(folder), "HOME": "/nonexistent"}
    ran = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    home.chmod(0o755)
    shutil.rmtree(home)
    if "No module named" in ran.stderr or "can't open file" in ran.stderr:
        return Verdict.skipped("another user cannot read the repository here")
    wrong = bad_end(ran.returncode, ran.stderr) or (
        None if ran.returncode == 2 else f"exit code {ran.returncode}"
    )
    return (
        Verdict.failed(f"{kind}: {wrong}: {ran.stderr[-300:]}")
        if wrong
        else Verdict(about=[f"unreadable {kind}"])
    )


# ---------------------------------------------------------------------------------------- torn files


def damaged(raw: bytes, chance: random.Random) -> tuple[bytes, str]:
    way = chance.choice(["truncated", "empty", "a byte flipped", "a hole", "twice", "another file"])
    at = chance.randrange(len(raw))
    flipped = bytearray(raw)
    flipped[at] ^= 1 << chance.randrange(8)
    found = {
        "truncated": raw[:at],
        "empty": b"",
        "a byte flipped": bytes(flipped),
        "a hole": raw[:at] + bytes(min(64, len(raw) - at)) + raw[at + 64 :],
        "twice": raw + raw,
        "another file": b"PK\x03\x04" + raw[:40],
    }
    return found[way], way


def torn_inputs(case: Case, chance: random.Random, folder: Path) -> Verdict:
    """A damaged Parquet file handed over: an error, or what another reader reads of it."""
    inputs = inputs_of(case)
    side = chance.choice(["truth", "lists"])
    for name in ("truth", "lists"):
        shutil.copy(inputs / f"{name}.parquet", folder)
    file = folder / f"{side}.parquet"
    raw, way = damaged(file.read_bytes(), chance)
    file.write_bytes(raw)
    argv = [
        "--warehouse",
        str(folder / "w"),
        "--model",
        "m",
        "--bootstrap",
        "0",
        "--k",
        "2",
        "--metrics",
        "ndcg",
    ]
    argv += ["--lists", str(folder / "lists.parquet"), "--truth", str(folder / "truth.parquet")]
    code, err = job("evaluate", argv)
    wrong = nights.ended_badly(code, err)
    if not wrong and code == 0:
        wrong = not_as_read(folder)
    return Verdict.of(wrong, f"{side}: {way}", f"{way}: exit code {code}")


def not_as_read(folder: Path) -> str | None:
    """Whether the numbers are not those of what pyarrow reads."""
    held = []
    for name in ("truth", "lists"):
        try:
            table = pq.read_table(folder / f"{name}.parquet")
        except Exception as error:
            return f"taken, and {name} cannot be read: {error}"
        held.append(
            [
                Column(n, c.type, c.to_pylist())
                for n, c in zip(table.column_names, table.columns, strict=True)
            ]
        )
    try:
        wanted = expected(Handed(held[0], held[1], [2], ["ndcg"], None, {}))
    except Refused as refused:
        return f"taken, and {refused}"
    return differs(wanted, metrics_of(folder / "w"))


def torn_log(case: Case, chance: random.Random, folder: Path) -> Verdict:
    """A log of text cut off in a line, with NULs, not in UTF-8: an error, or rows as they stand there."""
    rows, log = nights.the_log(chance), folder / "log.csv"
    nights.write_log(rows, log)
    raw, way = damaged(log.read_bytes(), chance)
    log.write_bytes(raw)
    argv = ["--log", str(log), "--warehouse", str(folder / "w"), "--protocol", "RO_RS"]
    code, err = job("split", argv)
    wrong = nights.ended_badly(code, err)
    if not wrong and code == 0:
        wrong = lines_are_wrong(raw, nights.table(folder / "w", "splits"))
    return Verdict.of(wrong, f"{way}", f"log {way}: exit code {code}")


def lines_are_wrong(raw: bytes, splits: list[dict[str, Any]]) -> str | None:
    """Every row of a split is a line of the file, as it stands there, and every line is a row."""
    lines = {tuple(line.split(",")[:2]) for line in raw.decode(errors="replace").splitlines() if line}
    found = {(row["user_id"], row["item_id"]) for row in splits}
    strange, lost = found - lines, lines - found - {("user_id", "item_id")}
    return (
        f"{len(strange)} rows of no line, {len(lost)} lines lost: {[*strange, *lost][:3]}"
        if strange or lost
        else None
    )


def torn_table(case: Case, chance: random.Random, folder: Path) -> Verdict:
    """A damaged file of the warehouse (data, log, checkpoint): a sentence, and all there once mended."""
    inputs = inputs_of(case)
    known = undisturbed.reference(NIGHTLY, inputs)
    warehouse = folder / "warehouse"
    shutil.copytree(inputs / "undisturbed-nightly-0", warehouse)
    files = sorted(path for path in warehouse.glob("*/**/*") if path.suffix in (".json", ".parquet"))
    file = chance.choice(
        [path for path in files if "results" not in path.parts and "logs" not in path.parts]
    )
    raw = file.read_bytes()
    bad, way = damaged(raw, chance)
    bad, way = (bad, way) if chance.random() < 0.8 else (None, "missing")  # type: ignore[assignment]
    file.unlink() if bad is None else file.write_bytes(bad)
    name = chance.choice(["nightly --force", "maintain", "query", "nightly"])
    code, err = any_job(name, inputs, warehouse)
    told = f"{name} with {file.relative_to(warehouse)} {way}"
    wrong = nights.ended_badly(code, err)
    if wrong:
        return Verdict.failed(f"{told}: {wrong}")
    if bad is not None or not file.exists():
        file.write_bytes(raw)
    after = warehouses.shown(warehouse, known.varying)
    lost = [
        f"{table}: {(rows - after.get(table, Counter())).total()} rows lost"
        for table, rows in known.rows.items()
        if name != "maintain" and rows - after.get(table, Counter())
    ]
    return (
        Verdict.failed(f"{told}: {lost}") if lost else Verdict(about=[f"{name}, {way}: exit code {code}"])
    )


# ------------------------------------------------------------------------------------------ odd logs


def a_million_rows(case: Case, chance: random.Random, folder: Path) -> Verdict:
    """One user of a million rows, and one item in every history."""
    n = 1_000_000
    log = folder / "log.csv"
    lines = [f"0,{item},1,{1_700_000_000 + item}\n" for item in range(n)]
    lines += [
        f"{user},{item},1,{1_700_000_000 + item}\n" for user in range(1, 40) for item in (0, user, 2 * user)
    ]
    chance.shuffle(lines)
    log.write_text("user_id,item_id,rating,event_time\n" + "".join(lines))
    code, err = job("split", ["--log", str(log), "--warehouse", str(folder / "w"), "--protocol", "TO_LS"])
    if code:
        return Verdict.failed(f"exit code {code}: {err[-300:]!r}")
    from deltalake import DeltaTable

    rows = DeltaTable(str(folder / "w" / "splits")).to_pandas()
    tested = rows[rows.part == "test"]
    last = tested[tested.user_id == "0"].item_id.tolist()
    if len(rows) != n + 39 * 3 or len(tested) != 40 or last != [str(n - 1)]:
        return Verdict.failed(f"{len(rows)} rows, {len(tested)} tested, of the large user {last}")
    return Verdict()


def no_test_users(case: Case, chance: random.Random, folder: Path) -> Verdict:
    """Users of one row each: nothing can be held out, and a sentence says so."""
    log = folder / "log.csv"
    log.write_text(
        "user_id,item_id,rating,event_time\n" + "".join(f"{u},{u % 5},1,{u}\n" for u in range(30))
    )
    protocol = chance.choice(["RO_RS", "TO_RS", "RO_LS", "TO_LS"])
    code, err = job("split", ["--log", str(log), "--warehouse", str(folder / "w"), "--protocol", protocol])
    if code != 1 or nights.ended_badly(code, err):
        return Verdict.failed(f"{protocol}: exit code {code}: {err[-300:]!r}")
    return Verdict()


# ------------------------------------------------------------------------------- others at the same time


def two_nights(case: Case, chance: random.Random, folder: Path) -> Verdict:
    """The same night twice at once on an empty warehouse: nothing lost, nothing doubled."""
    return at_once(case, folder, ["2026-01-01"] * 2)


def eight_nights(case: Case, chance: random.Random, folder: Path) -> Verdict:
    """Eight nights at once on one warehouse."""
    return at_once(case, folder, [f"2026-01-{day:02}" for day in range(1, 9)])


def mapped_at_once(case: Case, chance: random.Random, folder: Path) -> Verdict:
    """Workers of a host that ask for the same arrays at once, and now and then one is killed while it
    makes them: they are made once, or once more, and all see all of them."""
    n, dies = chance.randint(2, 6), chance.random() < 0.5
    file, local, numbers = folder / "rows.parquet", folder / "local", range(chance.randrange(1, 20_000))
    pq.write_table(pa.table({"value": list(numbers)}), file)
    (folder / "ask.py").write_text(ASK.format(root=str(ROOT), folder=str(folder), file=str(file)))
    env = {"SPARK_LOCAL_DIRS": str(local), "DIES": str(int(dies))}
    with ExitStack() as stack:
        asked = [stack.enter_context(started([sys.executable, str(folder / "ask.py")],
                                             folder / f"{each}.log", folder, **env))
                 for each in range(n)]  # fmt: skip
        while len(list(folder.glob("*.ready"))) < n and not any(one.popen.poll() for one in asked):
            time.sleep(0.01)
        (folder / "go").touch()
        codes = sorted(one.popen.wait(60) for one in asked)
        said = [one.remarks.strip() for one in asked if one.popen.returncode != -9]
    made, right = len((folder / "made").read_text()), [-9] * dies + [0] * (n - dies)
    if codes == right and made == 1 + dies and set(said) == {f"{len(numbers)} {sum(numbers)}"}:
        return Verdict(about=[f"{n} at once{', the first is killed' if dies else ''}"])
    return Verdict.failed(f"{n} at once, {int(dies)} killed: made {made} times, exit codes {codes}: {said}")


ASK = """
import os, sys, time
from pathlib import Path
sys.path.insert(0, {root!r})
import numpy as np
from recbench_spark.storage.shared_arrays import SharedRows
folder = Path({folder!r})
def build(rows, place):
    with (folder / "made").open("a") as out:
        out.write("x")
    time.sleep(0.2)
    if os.environ["DIES"] == "1" and len((folder / "made").read_text()) == 1:
        os.kill(os.getpid(), 9)
    np.save(place / "value.npy", rows.to_table()["value"].to_numpy())
Path(folder, f"{{os.getpid()}}.ready").touch()
while not (folder / "go").exists():
    time.sleep(0.001)
values = SharedRows("rows", ({file!r},)).arrays(build)["value"]
print(len(values), values.sum())
"""


def at_once(case: Case, folder: Path, days: list[str]) -> Verdict:
    inputs = inputs_of(case)
    known = undisturbed.reference(NIGHTLY, inputs)
    warehouse = folder / "warehouse"
    with ExitStack() as stack:
        at_work = [
            stack.enter_context(
                starting.begun("nightly", jobs.night(inputs, warehouse, day), inputs, f"at{n}")
            )
            for n, day in enumerate(days)
        ]
        codes = [one.popen.wait(2 * starting.PATIENCE) for one in at_work]
        said = [one.remarks for one in at_work]
    if any(codes):
        n = next(n for n, code in enumerate(codes) if code)
        return Verdict.failed(f"{len(days)} nights at once: exit codes {codes}: {said[n][-600:]!r}")
    wrong = days_wrong(known, warehouse, set(days))
    return Verdict.of(wrong, f"{len(days)} nights at once")


def days_wrong(known: undisturbed.Alone, warehouse: Path, days: set[str]) -> list[str]:
    """How the nights of these days differ from one of its own, whatever ran beside or before them."""
    found = warehouses.shown(warehouse, known.varying)
    once = ("splits", "items", "user_blocks", "manifests", "similarities", "embeddings")
    wrong = warehouses.differences(
        {name: known.rows[name] for name in once if name in known.rows},
        {name: found[name] for name in once if name in found},
    )
    return wrong + warehouses.differences(*rows_by_run(known.rows, warehouse, found, days))


def rows_by_run(known: Rows, warehouse: Path, found: Rows, days: set[str]) -> tuple[Rows, Rows]:
    """What each published run must show, by the undisturbed night's rows, and what all of them show."""
    runs = Counter(
        (str(row["logical_date"]), row["model"])
        for row in nights.table(warehouse, "runs")
        if row["status"] == "succeeded"
    )
    models = {row["model"] for row in nights.table(warehouse, "runs")}
    for day, model in ((day, model) for day in days for model in models):
        runs[day, model] += 0 if runs[day, model] else 1  # a night without this run is one that lost it
    wanted: Rows = {}
    for name in OF_RUNS:
        rows: Counter[str] = Counter()
        for (day, model), n in runs.items():
            for row, count in known.get(name, Counter()).items():
                if f"/2026-01-01/{model}'" in row:
                    rows[row.replace("/2026-01-01/", f"/{day}/")] += n * count
        wanted[name] = rows
    return wanted, {name: found.get(name, Counter()) for name in OF_RUNS}


OF_RUNS = ("metrics", "user_metrics", "rankings")
Rows = dict[str, Counter[str]]


def killed_workers(case: Case, chance: random.Random, folder: Path) -> Verdict:
    """Executors killed at random moments of a night under speculation, on a cluster of two workers."""
    inputs = inputs_of(case)
    known = undisturbed.reference(NIGHTLY, inputs)
    with cluster(folder, 2, {}) as made:
        conf = f"cluster{case.number}.conf"
        properties(inputs / conf, spark_master=made.url, spark_speculation="true",
                   spark_speculation_multiplier="1.1",
                   spark_speculation_interval="50ms", spark_speculation_quantile="0.1",
                   spark_task_maxFailures="8",
                   spark_executor_memory="600m", spark_driver_memory="1g", spark_driver_host="127.0.0.1",
                   spark_executorEnv_PYTHONPATH=ROOT, spark_pyspark_python=sys.executable)  # fmt: skip
        warehouse = folder / "warehouse"
        with starting.begun(
            "nightly", jobs.night(inputs, warehouse), inputs, f"{case.number}", conf
        ) as process:
            process.wait_for("split|read")
            killed = 0
            while process.popen.poll() is None and killed < 3:
                until = chance.random() * 6
                try:
                    process.popen.wait(2 + until)
                except subprocess.TimeoutExpired:
                    for pid in made.executors()[:1]:
                        os.kill(pid, 9)
                        killed += 1
            code = process.popen.wait(starting.PATIENCE)
            said = process.remarks
        shutil.rmtree(folder / "work0", ignore_errors=True)
    wrong = (
        [f"exit code {code}: {said[-500:]!r}"] if code else undisturbed.differs(NIGHTLY, known, warehouse)
    )
    return Verdict.of(wrong, f"{killed} executors killed", *["executor killed"] * killed)


def killed_java(case: Case, chance: random.Random, folder: Path) -> Verdict:
    """Java alone is killed under a night, as where memory is short: a sentence; the next run completes."""
    inputs = inputs_of(case)
    known = undisturbed.reference(NIGHTLY, inputs)
    warehouse = folder / "warehouse"
    with starting.begun("nightly", jobs.night(inputs, warehouse), inputs, f"{case.number}") as process:
        process.wait_for("Spark .* is there")
        with suppress(subprocess.TimeoutExpired):
            process.popen.wait(chance.random() * known.seconds)
        for java in process.children("java"):
            os.kill(java, 9)
        code, said = process.popen.wait(starting.PATIENCE), process.remarks
    wrong: Any = bad_end(code, said) or undisturbed.odd_rows(NIGHTLY, known, {}, warehouse)
    wrong = wrong or ("a trace" if "Traceback" in said else None)
    if wrong:
        return Verdict.failed(f"exit code {code}: {wrong}: {said[-600:]!r}")
    starting.finished("nightly", jobs.night(inputs, warehouse))
    return Verdict.of(
        undisturbed.differs(NIGHTLY, known, warehouse), "completed", f"Java killed: exit code {code}"
    )


def clock_backwards(case: Case, chance: random.Random, folder: Path) -> Verdict:
    """A night under a clock that is ahead, then again under the right one: the second attempt is shown."""
    inputs = inputs_of(case)
    known = undisturbed.reference(NIGHTLY, inputs)
    warehouse, ahead = folder / "warehouse", chance.choice([3_600, 86_400 * 3, 86_400 * 400])
    script = folder / "ahead.py"
    script.write_text(AHEAD.format(seconds=ahead, root=str(ROOT)))
    env = {"RECBENCH_SPARK_PROPERTIES": str(inputs / "spark.conf"), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(script), *jobs.night(inputs, warehouse)]
    ran = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **env}, check=False)
    if ran.returncode:
        return Verdict.failed(f"{ahead} s ahead: {ran.stderr[-500:]!r}")
    starting.finished("nightly", [*jobs.night(inputs, warehouse), "--force"])
    code, out = query(
        warehouse, "SELECT DISTINCT attempt FROM runs WHERE run_id IN (SELECT run_id FROM leaderboard)"
    )
    wrong = warehouses.differences(
        {"splits": known.rows["splits"]}, {"splits": warehouses.shown(warehouse, known.varying)["splits"]}
    )
    if code or "2" not in out.split() or "1" in out.split():
        wrong.append(f"the leaderboard shows another attempt than the second: {out!r}")
    return Verdict.of(wrong, f"a clock {ahead} s ahead")


AHEAD = """
import datetime, sys, time
sys.path.insert(0, {root!r})
from recbench_spark import cli
from recbench_spark.commands import nightly
real, ahead = datetime.datetime, {seconds}
class Later(real):
    @classmethod
    def now(cls, tz=None):
        return real.now(tz) + datetime.timedelta(seconds=ahead)
for name, module in list(sys.modules.items()):
    ours = name.startswith("recbench_spark") and ".config" not in name
    if ours and getattr(module, "datetime", None) is real:
        module.datetime = Later
known = time.time
time.time = lambda: known() + ahead
cli.run(nightly.main, nightly.parser(), sys.argv[1:])
"""


def query(warehouse: Path, asked: str) -> tuple[Any, str]:
    ran = subprocess.run(
        [sys.executable, str(ROOT / "jobs" / "query.py"), "--warehouse", str(warehouse), asked],
        capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    return ran.returncode, ran.stdout


def taken_folder(case: Case, chance: random.Random, folder: Path) -> Verdict:
    """Another user of the host holds the folder of mapped files, as a link or with everybody's rights."""
    inputs = inputs_of(case)
    known = undisturbed.reference(NIGHTLY, inputs)
    local, name = folder / "local", f"recbench-spark-{os.getuid()}"
    local.mkdir()
    way = chance.choice(["link", "open", "somebody else's", "file"])
    if way == "link":
        (folder / "theirs").mkdir()
        (local / name).symlink_to(folder / "theirs")
    elif way == "file":
        (local / name).write_text("x")
    else:
        (local / name).mkdir(mode=0o777)
        (local / name).chmod(0o777)
        if way == "somebody else's":
            if os.getuid():
                return Verdict.skipped("a folder of another user needs root")
            os.chown(local / name, 65534, 65534)
    warehouse = folder / "warehouse"
    code, said = ended(case, inputs, warehouse, SPARK_LOCAL_DIRS=str(local))
    touched = [path.name for path in (folder / "theirs").glob("*")] if way == "link" else []
    wrong = bad_end(code, said) or (f"wrote into another's folder: {touched}" if touched else None)
    if not wrong and not code:
        wrong = "; ".join(undisturbed.differs(NIGHTLY, known, warehouse))
    return Verdict.of(wrong, f"{way}", f"taken folder, {way}: exit code {code}")


SCENARIOS: tuple[Scenario, ...] = (
    odd_paths, torn_inputs, torn_table, torn_log, no_test_users, read_only, unreadable, full_warehouse,
    full_scratch, two_nights, clock_backwards, taken_folder, killed_workers, eight_nights, a_million_rows,
    mapped_at_once, killed_java, *times.SCENARIOS,
)  # fmt: skip
