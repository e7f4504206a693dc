"""Faults of the machine and of files, one scenario per case: disks, paths, clocks, torn files, other users.

A scenario that needs rights which this machine does not give (root, mounts) is skipped, never passed.
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

from tests.cluster.processes import cluster, properties, start_process
from tests.faults import jobs, nights, starting, times, undisturbed, warehouses
from tests.faults.campaign import ROOT, Case, Verdict
from tests.faults.disks import remount, small_disk
from tests.faults.frames import find_difference
from tests.faults.in_process import job
from tests.faults.input_tables import Column, InputTables, Refused, compute_expected
from tests.faults.inputs import TINY, prepare_inputs
from tests.faults.names import odd_paths
from tests.faults.spark import read_metrics
from tests.faults.starting import find_bad_end

Scenario = Callable[[Case, random.Random, Path], Verdict]
NIGHTLY = jobs.JOBS[0]


def run(case: Case) -> Verdict:
    """Run the scenario whose turn it is, in its own folder."""
    scenario = SCENARIOS[case.number % len(SCENARIOS)]
    folder = case.place / f"case{case.number}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    verdict = scenario(case, case.draw(), folder)
    verdict.about.append(f"{scenario.__name__}: {verdict.status}")
    if verdict.status == "failed":
        verdict.message = f"{scenario.__name__}: {verdict.message} [{folder}]"
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return verdict


# ---------------------------------------------------------------------------------------------- disks


def full_warehouse(case: Case, chance: random.Random, folder: Path) -> Verdict:
    """The warehouse's disk is full in the middle of a night; with more space the next run completes."""
    size, disk = chance.randrange(60, 1400), folder / "disk"
    with small_disk(disk, f"{size}k") as mounted:
        if not mounted:
            return Verdict.skip("no tmpfs can be mounted here")
        room = partial(remount, disk, "size=500m")
        return run_crowded(case, f"a warehouse of {size} KiB", disk / "warehouse", room)


def full_scratch(case: Case, chance: random.Random, folder: Path) -> Verdict:
    """Spark's local folders, and the temporary one, are on a full disk."""
    size, disk = chance.randrange(1, 300), folder / "disk"
    with small_disk(disk, f"{size}k") as mounted:
        if not mounted:
            return Verdict.skip("no tmpfs can be mounted here")
        scratch = {"SPARK_LOCAL_DIRS": str(disk), "TMPDIR": str(disk)}
        return run_crowded(case, f"scratch of {size} KiB", folder / "warehouse", lambda: None, **scratch)


def run_crowded(
    case: Case, case_text: str, warehouse: Path, room: Callable[[], None], **env: str
) -> Verdict:
    """Run a night, which may end with a sentence; once there is space, the next run completes."""
    inputs = prepare_inputs(case)
    reference = undisturbed.reference(NIGHTLY, inputs)
    code, output = run_night(case, inputs, warehouse, **env)
    wrong: Any = find_bad_end(code, output) or undisturbed.find_odd_rows(NIGHTLY, reference, {}, warehouse)
    if wrong:
        return Verdict.fail(f"{case_text}: {wrong}")
    room()
    starting.run_job("nightly", jobs.night(inputs, warehouse))
    return Verdict.judge(
        undisturbed.find_differences(NIGHTLY, reference, warehouse),
        case_text,
        f"a full disk: exit code {code}",
    )


def run_night(case: Case, inputs: Path, warehouse: Path, **env: str) -> tuple[int, str]:
    """Return the exit code and the output of a night in its own process; `env` adds to its environment."""
    argv = jobs.night(inputs, warehouse)
    with starting.start_job("nightly", argv, inputs, f"{case.number}", **env) as process:
        return process.popen.wait(starting.PATIENCE), process.remarks


def read_only(case: Case, chance: random.Random, folder: Path) -> Verdict:
    """A warehouse that cannot be written to: a sentence, and every table unchanged."""
    inputs = prepare_inputs(case)
    undisturbed.reference(NIGHTLY, inputs)
    with small_disk(folder / "disk", "100m") as mounted:
        if not mounted:
            return Verdict.skip("no tmpfs can be mounted here")
        warehouse = folder / "disk" / "warehouse"
        shutil.copytree(inputs / "undisturbed-nightly-0", warehouse)
        remount(folder / "disk", "ro")
        before = warehouses.read_rows(warehouse)
        name = chance.choice(
            ["nightly", "split", "evaluate", "maintain", "embed", "nightly --force", "query"]
        )
        code, err = any_job(name, inputs, warehouse)
        if code not in (1, 2) and name != "query":
            return Verdict.fail(f"{name} on a read-only disk: exit code {code}: {err[-300:]!r}")
        wrong = find_bad_end(code, err) or warehouses.find_differences(
            before, warehouses.read_rows(warehouse)
        )
    return Verdict.judge(wrong, f"{name} on a read-only disk", f"read-only {name}")


def any_job(name: str, inputs: Path, warehouse: Path) -> tuple[Any, str]:
    """Run a job in this process."""
    if name == "query":
        return job("query", ["--warehouse", str(warehouse), "SELECT count(*) FROM leaderboard"])
    argv = {one.name: one.argv for one in jobs.JOBS}[name.split(maxsplit=1)[0]](inputs, warehouse)
    if name.startswith("nightly"):
        argv = [*argv[:-1], "2026-01-05"] if "--force" not in name else [*argv, "--force"]
    return job(name.split(maxsplit=1)[0], argv)


def unreadable(case: Case, chance: random.Random, folder: Path) -> Verdict:
    """Another user of the host meets files and folders without rights to read them."""
    if os.getuid() or not shutil.which("setpriv"):
        return Verdict.skip("another user needs root and setpriv")
    home = Path(tempfile.mkdtemp(prefix="recbench-nobody-"))
    home.chmod(0o755)
    config = home / "night.yaml"
    config.write_text(yaml.safe_dump(TINY))
    kind = chance.choice(["config", "folder of the config"])
    (config if kind == "config" else home).chmod(0o000)
    command = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", sys.executable]
    command += [str(ROOT / "jobs" / "recbench.py"), "nightly", "--config", str(config), "--dry-run"]
    command += ["--warehouse", str(home / "w"), "--logical-date", "2026-01-01"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "NUMBA_CACHE_DIR": str(folder), "HOME": "/nonexistent"}
    ran = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    home.chmod(0o755)
    shutil.rmtree(home)
    if "No module named" in ran.stderr or "can't open file" in ran.stderr:
        return Verdict.skip("another user cannot read the repository here")
    wrong = find_bad_end(ran.returncode, ran.stderr) or (
        None if ran.returncode == 2 else f"exit code {ran.returncode}"
    )
    return (
        Verdict.fail(f"{kind}: {wrong}: {ran.stderr[-300:]}")
        if wrong
        else Verdict(about=[f"unreadable {kind}"])
    )


# ---------------------------------------------------------------------------------------- torn files


def damage(raw: bytes, chance: random.Random) -> tuple[bytes, str]:
    way = chance.choice(["truncated", "empty", "a byte flipped", "a hole", "twice", "another file"])
    at = chance.randrange(len(raw))
    flipped = bytearray(raw)
    flipped[at] ^= 1 << chance.randrange(8)
    results = {
        "truncated": raw[:at],
        "empty": b"",
        "a byte flipped": bytes(flipped),
        "a hole": raw[:at] + bytes(min(64, len(raw) - at)) + raw[at + 64 :],
        "twice": raw + raw,
        "another file": b"PK\x03\x04" + raw[:40],
    }
    return results[way], way


def torn_inputs(case: Case, chance: random.Random, folder: Path) -> Verdict:
    """A damaged Parquet file as input: an error, or the values that another reader reads."""
    inputs = prepare_inputs(case)
    side = chance.choice(["truth", "lists"])
    for name in ("truth", "lists"):
        shutil.copy(inputs / f"{name}.parquet", folder)
    file = folder / f"{side}.parquet"
    raw, way = damage(file.read_bytes(), chance)
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
    wrong = nights.find_bad_exit(code, err)
    if not wrong and code == 0:
        wrong = find_difference_to_pyarrow(folder)
    return Verdict.judge(wrong, f"{side}: {way}", f"{way}: exit code {code}")


def find_difference_to_pyarrow(folder: Path) -> str | None:
    """Find a difference between the numbers and those of the tables that pyarrow reads."""
    sides = []
    for name in ("truth", "lists"):
        try:
            table = pq.read_table(folder / f"{name}.parquet")
        except Exception as error:
            return f"taken, and {name} cannot be read: {error}"
        sides.append(
            [
                Column(n, c.type, c.to_pylist())
                for n, c in zip(table.column_names, table.columns, strict=True)
            ]
        )
    try:
        wanted = compute_expected(InputTables(sides[0], sides[1], [2], ["ndcg"], None, {}))
    except Refused as refused:
        return f"taken, and {refused}"
    return find_difference(wanted, read_metrics(folder / "w"))


def torn_log(case: Case, chance: random.Random, folder: Path) -> Verdict:
    """A damaged log of text (cut off in a line, with NULs, not in UTF-8): an error, or the rows of the
    file.
    """
    rows, log = nights.draw_log(chance), folder / "log.csv"
    nights.write_log(rows, log)
    raw, way = damage(log.read_bytes(), chance)
    log.write_bytes(raw)
    argv = ["--log", str(log), "--warehouse", str(folder / "w"), "--protocol", "RO_RS"]
    code, err = job("split", argv)
    wrong = nights.find_bad_exit(code, err)
    if not wrong and code == 0:
        wrong = find_wrong_lines(raw, nights.table(folder / "w", "splits"))
    return Verdict.judge(wrong, f"{way}", f"log {way}: exit code {code}")


def find_wrong_lines(raw: bytes, splits: list[dict[str, Any]]) -> str | None:
    """Check that every row of a split is a line of the file, and every line is a row."""
    lines = {tuple(line.split(",")[:2]) for line in raw.decode(errors="replace").splitlines() if line}
    pairs = {(row["user_id"], row["item_id"]) for row in splits}
    strange, lost = pairs - lines, lines - pairs - {("user_id", "item_id")}
    return (
        f"{len(strange)} rows of no line, {len(lost)} lines lost: {[*strange, *lost][:3]}"
        if strange or lost
        else None
    )


def torn_table(case: Case, chance: random.Random, folder: Path) -> Verdict:
    """A damaged file of the warehouse (data, log, checkpoint): a sentence, and all rows after the
    repair.
    """
    inputs = prepare_inputs(case)
    reference = undisturbed.reference(NIGHTLY, inputs)
    warehouse = folder / "warehouse"
    shutil.copytree(inputs / "undisturbed-nightly-0", warehouse)
    files = sorted(path for path in warehouse.glob("*/**/*") if path.suffix in (".json", ".parquet"))
    file = chance.choice(
        [path for path in files if "results" not in path.parts and "logs" not in path.parts]
    )
    raw = file.read_bytes()
    bad, way = damage(raw, chance)
    bad, way = (bad, way) if chance.random() < 0.8 else (None, "missing")  # type: ignore[assignment]
    file.unlink() if bad is None else file.write_bytes(bad)
    name = chance.choice(["nightly --force", "maintain", "query", "nightly"])
    code, err = any_job(name, inputs, warehouse)
    case_text = f"{name} with {file.relative_to(warehouse)} {way}"
    wrong = nights.find_bad_exit(code, err)
    if wrong:
        return Verdict.fail(f"{case_text}: {wrong}")
    if bad is not None or not file.exists():
        file.write_bytes(raw)
    after = warehouses.read_rows(warehouse, reference.varying)
    lost = [
        f"{table}: {(rows - after.get(table, Counter())).total()} rows lost"
        for table, rows in reference.rows.items()
        if name != "maintain" and rows - after.get(table, Counter())
    ]
    return (
        Verdict.fail(f"{case_text}: {lost}")
        if lost
        else Verdict(about=[f"{name}, {way}: exit code {code}"])
    )


# ------------------------------------------------------------------------------------------ odd logs


def a_million_rows(case: Case, chance: random.Random, folder: Path) -> Verdict:
    """One user has a million rows, and one item is in every history."""
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
        return Verdict.fail(f"exit code {code}: {err[-300:]!r}")
    from deltalake import DeltaTable

    rows = DeltaTable(str(folder / "w" / "splits")).to_pandas()
    tested = rows[rows.part == "test"]
    last = tested[tested.user_id == "0"].item_id.tolist()
    if len(rows) != n + 39 * 3 or len(tested) != 40 or last != [str(n - 1)]:
        return Verdict.fail(f"{len(rows)} rows, {len(tested)} tested, of the large user {last}")
    return Verdict()


def no_test_users(case: Case, chance: random.Random, folder: Path) -> Verdict:
    """Users with one row each: nothing can be held out, and a sentence reports it."""
    log = folder / "log.csv"
    log.write_text(
        "user_id,item_id,rating,event_time\n" + "".join(f"{u},{u % 5},1,{u}\n" for u in range(30))
    )
    protocol = chance.choice(["RO_RS", "TO_RS", "RO_LS", "TO_LS"])
    code, err = job("split", ["--log", str(log), "--warehouse", str(folder / "w"), "--protocol", protocol])
    if code != 1 or nights.find_bad_exit(code, err):
        return Verdict.fail(f"{protocol}: exit code {code}: {err[-300:]!r}")
    return Verdict()


# ------------------------------------------------------------------------------- others at the same time


def two_nights(case: Case, chance: random.Random, folder: Path) -> Verdict:
    """The same night twice at once on an empty warehouse: no row is lost or doubled."""
    return run_at_once(case, folder, ["2026-01-01"] * 2)


def eight_nights(case: Case, chance: random.Random, folder: Path) -> Verdict:
    """Eight nights at once on one warehouse."""
    return run_at_once(case, folder, [f"2026-01-{day:02}" for day in range(1, 9)])


def map_at_once(case: Case, chance: random.Random, folder: Path) -> Verdict:
    """Workers of a host ask for the same arrays at once, and sometimes the one that makes them is killed.

    The arrays are made once, or once more, and all workers see all of them.
    """
    n, dies = chance.randint(2, 6), chance.random() < 0.5
    file, local, numbers = folder / "rows.parquet", folder / "local", range(chance.randrange(1, 20_000))
    pq.write_table(pa.table({"value": list(numbers)}), file)
    (folder / "ask.py").write_text(ASK.format(root=str(ROOT), folder=str(folder), file=str(file)))
    env = {"SPARK_LOCAL_DIRS": str(local), "DIES": str(int(dies))}
    with ExitStack() as stack:
        workers = [stack.enter_context(start_process([sys.executable, str(folder / "ask.py")],
                                             folder / f"{each}.log", folder, **env))
                 for each in range(n)]  # fmt: skip
        while len(list(folder.glob("*.ready"))) < n and not any(one.popen.poll() for one in workers):
            time.sleep(0.01)
        (folder / "go").touch()
        codes = sorted(one.popen.wait(60) for one in workers)
        outputs = [one.remarks.strip() for one in workers if one.popen.returncode != -9]
    n_made, right = len((folder / "made").read_text()), [-9] * dies + [0] * (n - dies)
    if codes == right and n_made == 1 + dies and set(outputs) == {f"{len(numbers)} {sum(numbers)}"}:
        return Verdict(about=[f"{n} at once{', the first is killed' if dies else ''}"])
    return Verdict.fail(
        f"{n} at once, {int(dies)} killed: made {n_made} times, exit codes {codes}: {outputs}"
    )


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


def run_at_once(case: Case, folder: Path, days: list[str]) -> Verdict:
    inputs = prepare_inputs(case)
    reference = undisturbed.reference(NIGHTLY, inputs)
    warehouse = folder / "warehouse"
    with ExitStack() as stack:
        at_work = [
            stack.enter_context(
                starting.start_job("nightly", jobs.night(inputs, warehouse, day), inputs, f"at{n}")
            )
            for n, day in enumerate(days)
        ]
        codes = [one.popen.wait(2 * starting.PATIENCE) for one in at_work]
        outputs = [one.remarks for one in at_work]
    if any(codes):
        n = next(n for n, code in enumerate(codes) if code)
        return Verdict.fail(f"{len(days)} nights at once: exit codes {codes}: {outputs[n][-600:]!r}")
    wrong = find_wrong_days(reference, warehouse, set(days))
    return Verdict.judge(wrong, f"{len(days)} nights at once")


def find_wrong_days(reference: undisturbed.Alone, warehouse: Path, days: set[str]) -> list[str]:
    """Find differences between the nights of these days and an undisturbed night, with other nights beside
    them.
    """
    rows = warehouses.read_rows(warehouse, reference.varying)
    once = ("splits", "items", "user_blocks", "manifests", "similarities", "embeddings")
    wrong = warehouses.find_differences(
        {name: reference.rows[name] for name in once if name in reference.rows},
        {name: rows[name] for name in once if name in rows},
    )
    return wrong + warehouses.find_differences(*rows_by_run(reference.rows, warehouse, rows, days))


def rows_by_run(known: Rows, warehouse: Path, rows_found: Rows, days: set[str]) -> tuple[Rows, Rows]:
    """Return the expected rows of the published runs, from the undisturbed night, and their actual rows."""
    runs = Counter(
        (str(row["logical_date"]), row["model"])
        for row in nights.table(warehouse, "runs")
        if row["status"] == "succeeded"
    )
    models = {row["model"] for row in nights.table(warehouse, "runs")}
    for day, model in ((day, model) for day in days for model in models):
        runs[day, model] += 0 if runs[day, model] else 1  # a night without this run is one that lost it
    wanted: Rows = {}
    for name in RUN_TABLES:
        rows: Counter[str] = Counter()
        for (day, model), n in runs.items():
            for row, count in known.get(name, Counter()).items():
                if f"/2026-01-01/{model}'" in row:
                    rows[row.replace("/2026-01-01/", f"/{day}/")] += n * count
        wanted[name] = rows
    return wanted, {name: rows_found.get(name, Counter()) for name in RUN_TABLES}


RUN_TABLES = ("metrics", "user_metrics", "rankings")
Rows = dict[str, Counter[str]]


def kill_workers(case: Case, chance: random.Random, folder: Path) -> Verdict:
    """Kill executors at random moments of a night under speculation, on a cluster of two workers."""
    inputs = prepare_inputs(case)
    reference = undisturbed.reference(NIGHTLY, inputs)
    with cluster(folder, 2, {}) as machines:
        conf = f"cluster{case.number}.conf"
        properties(inputs / conf, spark_master=machines.url, spark_speculation="true",
                   spark_speculation_multiplier="1.1",
                   spark_speculation_interval="50ms", spark_speculation_quantile="0.1",
                   spark_task_maxFailures="8",
                   spark_executor_memory="600m", spark_driver_memory="1g", spark_driver_host="127.0.0.1",
                   spark_executorEnv_PYTHONPATH=ROOT, spark_pyspark_python=sys.executable)  # fmt: skip
        warehouse = folder / "warehouse"
        with starting.start_job(
            "nightly", jobs.night(inputs, warehouse), inputs, f"{case.number}", conf
        ) as process:
            process.wait_for("split|read")
            n_killed = 0
            while process.popen.poll() is None and n_killed < 3:
                until = chance.random() * 6
                try:
                    process.popen.wait(2 + until)
                except subprocess.TimeoutExpired:
                    for pid in machines.executors()[:1]:
                        os.kill(pid, 9)
                        n_killed += 1
            code = process.popen.wait(starting.PATIENCE)
            output = process.remarks
        shutil.rmtree(folder / "work0", ignore_errors=True)
    wrong = (
        [f"exit code {code}: {output[-500:]!r}"]
        if code
        else undisturbed.find_differences(NIGHTLY, reference, warehouse)
    )
    return Verdict.judge(wrong, f"{n_killed} executors killed", *["executor killed"] * n_killed)


def kill_java(case: Case, chance: random.Random, folder: Path) -> Verdict:
    """Kill only Java under a night, as where memory is short: a sentence; the next run completes."""
    inputs = prepare_inputs(case)
    reference = undisturbed.reference(NIGHTLY, inputs)
    warehouse = folder / "warehouse"
    with starting.start_job("nightly", jobs.night(inputs, warehouse), inputs, f"{case.number}") as process:
        process.wait_for("Spark .* started")
        with suppress(subprocess.TimeoutExpired):
            process.popen.wait(chance.random() * reference.seconds)
        for java in process.children("java"):
            os.kill(java, 9)
        code, output = process.popen.wait(starting.PATIENCE), process.remarks
    wrong: Any = find_bad_end(code, output) or undisturbed.find_odd_rows(NIGHTLY, reference, {}, warehouse)
    wrong = wrong or ("a trace" if "Traceback" in output else None)
    if wrong:
        return Verdict.fail(f"exit code {code}: {wrong}: {output[-600:]!r}")
    starting.run_job("nightly", jobs.night(inputs, warehouse))
    return Verdict.judge(
        undisturbed.find_differences(NIGHTLY, reference, warehouse),
        "completed",
        f"Java killed: exit code {code}",
    )


def clock_backwards(case: Case, chance: random.Random, folder: Path) -> Verdict:
    """Run a night under a clock that is ahead, then again under the right one: the second attempt is
    shown.
    """
    inputs = prepare_inputs(case)
    reference = undisturbed.reference(NIGHTLY, inputs)
    warehouse, ahead = folder / "warehouse", chance.choice([3_600, 86_400 * 3, 86_400 * 400])
    script = folder / "ahead.py"
    script.write_text(AHEAD.format(seconds=ahead, root=str(ROOT)))
    env = {"RECBENCH_SPARK_PROPERTIES": str(inputs / "spark.conf"), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(script), *jobs.night(inputs, warehouse)]
    ran = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **env}, check=False)
    if ran.returncode:
        return Verdict.fail(f"{ahead} s ahead: {ran.stderr[-500:]!r}")
    starting.run_job("nightly", [*jobs.night(inputs, warehouse), "--force"])
    code, out = query(
        warehouse, "SELECT DISTINCT attempt FROM runs WHERE run_id IN (SELECT run_id FROM leaderboard)"
    )
    wrong = warehouses.find_differences(
        {"splits": reference.rows["splits"]},
        {"splits": warehouses.read_rows(warehouse, reference.varying)["splits"]},
    )
    if code or "2" not in out.split() or "1" in out.split():
        wrong.append(f"the leaderboard shows another attempt than the second: {out!r}")
    return Verdict.judge(wrong, f"a clock {ahead} s ahead")


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


def query(warehouse: Path, sql: str) -> tuple[Any, str]:
    ran = subprocess.run(
        [sys.executable, str(ROOT / "jobs" / "recbench.py"), "query", "--warehouse", str(warehouse), sql],
        capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    return ran.returncode, ran.stdout


def occupy_folder(case: Case, chance: random.Random, folder: Path) -> Verdict:
    """Another user of the host owns the folder of mapped files, as a link or with rights for everybody."""
    inputs = prepare_inputs(case)
    reference = undisturbed.reference(NIGHTLY, inputs)
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
                return Verdict.skip("a folder of another user needs root")
            os.chown(local / name, 65534, 65534)
    warehouse = folder / "warehouse"
    code, output = run_night(case, inputs, warehouse, SPARK_LOCAL_DIRS=str(local))
    touched = [path.name for path in (folder / "theirs").glob("*")] if way == "link" else []
    wrong = find_bad_end(code, output) or (f"wrote into another's folder: {touched}" if touched else None)
    if not wrong and not code:
        wrong = "; ".join(undisturbed.find_differences(NIGHTLY, reference, warehouse))
    return Verdict.judge(wrong, f"{way}", f"taken folder, {way}: exit code {code}")


SCENARIOS: tuple[Scenario, ...] = (
    odd_paths, torn_inputs, torn_table, torn_log, no_test_users, read_only, unreadable, full_warehouse,
    full_scratch, two_nights, clock_backwards, occupy_folder, kill_workers, eight_nights, a_million_rows,
    map_at_once, kill_java, *times.SCENARIOS,
)  # fmt: skip
