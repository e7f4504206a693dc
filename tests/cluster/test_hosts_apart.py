"""Graphs and a night on hosts that share no folder, over a real S3 server: the bits of a folder.

Driver and workers are in file systems of their own (`tests.cluster.hosts`). Edges and features are Delta
tables on the server.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import deltalake
import numpy as np
import pyarrow as pa
import pytest
import yaml

from recbench_spark.storage.block_arrays import PAGE
from recbench_spark.storage.delta_tables import read_dataset
from recbench_spark.storage.object_access import delta_options
from tests.cluster.hosts import Host, make_hosts
from tests.cluster.processes import PATIENCE, ROOT, SPARK_HOME, Cluster, Process, cluster, start_process
from tests.cluster.test_standalone import ON_THIS_MACHINE, TINY
from tools import compare_warehouses

pytestmark = [pytest.mark.usefixtures("own_jvm"), pytest.mark.slow]

NODES, EDGES, DIMS, BLOCKS = 3000, 12_000, 24, 4
PLANS = ("R", "G", "S")

LAYER = {"form": "convolve", "aggregator": "importance"}
SUITE: dict[str, Any] = {
    "name": "apart",
    "dataset": TINY["dataset"],
    "split": {"protocol": "RO_RS", "ratio": [0.8, 0.0, 0.2], "seed": 5},
    "models": [
        {"name": "popular", "kind": "popular"},
        {
            "name": "pins", "kind": "graph", "plan": "R", "blocks": 2, "wire": "float16",
            "features": {"kind": "hashed", "dims": 8}, "layers": [{"aggregator": "mean", "width": 6}] * 2,
        },
        {
            "name": "both_sides", "kind": "graph", "plan": "G", "blocks": 2, "mode": "projected",
            "features": {"kind": "hashed", "dims": 8}, "layers": [{**LAYER, "width": 6, "hidden": 5}] * 2,
        },
        {
            "name": "lightgcn", "kind": "lightgcn", "dims": 4, "layers": 2,
            "epochs": 2, "batch": 64, "rate": 0.02, "validation": 0.2,
        },
    ],
    "evaluation": {"metrics": ["ndcg"], "k": [5], "parts": ["test", "open_loop"]},
}  # fmt: skip
"""Models of conf/benchmarks/graph.yaml over a smaller world, and LightGCN. Plans are not left to the costs,
which differ between one host and two."""

JOB = """
import json, os, sys, time
from importlib import import_module
from pathlib import Path

from pyspark import TaskContext

from recbench_spark.graphs import build, runner

WATCHED = ((build, "_write_block"), (runner, "project_messages"), (runner, "aggregate_replicated"),
           (runner, "send_messages"), (runner, "aggregate_messages"))


def lingering(name, run):
    # A task leaves a mark on its host. First attempts of aggregates then wait: an executor is killed.
    def task(*args, **settings):
        context, marks = TaskContext.get(), Path("/tmp/marks")
        done = run(*args, **settings)
        done = done if done is None or isinstance(done, (int, tuple)) else iter(list(done))
        marks.mkdir(exist_ok=True)
        (marks / f"{name}-{context.stageId()}-{context.partitionId()}-{context.attemptNumber()}").touch()
        if name.startswith("aggregate") and context.attemptNumber() == 0:
            time.sleep(1)
        return done
    return task


if os.environ.get("LINGER"):
    for module, name in WATCHED:
        setattr(module, name, lingering(name, getattr(module, name)))
for name, *flags in json.loads(sys.argv[1]):
    module = import_module(f"recbench_spark.commands.{name}")
    assert module.main(module.parser().parse_args(flags)) == 0
"""

BOTH_FIRST = {
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "240s",
}
"""No task begins before both executors are there: on a busy machine the first one would do all."""

ONE_COPY = {"spark.speculation": "false"}
"""Tasks are not run twice at once, so that what is made again was lost."""

Command = list[str]


def write_inputs(root: str, nodes: int = NODES, edges: int = EDGES) -> Command:
    """Write edges with a hub, and features, to tables of Delta; return the flags of a model over them."""
    draw = np.random.default_rng(3)
    ends = np.concatenate([draw.integers(0, nodes, (edges, 2)), [[n, 7] for n in range(0, nodes, 3)]])
    h = draw.standard_normal((nodes, DIMS)).astype(np.float32)
    tables = {
        "edges": pa.table({"src": ends[:, 0], "dst": ends[:, 1]}),
        "h": pa.table({"id": np.arange(nodes), "vector": list(h)}),
    }
    for name, table in tables.items():
        place = f"{root}/{name}"
        deltalake.write_deltalake(place, table, storage_options=delta_options(place))
    flags = ["--edges", f"{root}/edges", "--node-table", f"{root}/h", "--features", f"{root}/h"]
    form = ["--form", "convolve", "--aggregator", "importance", "--widths", "20,12", "--hidden", "16"]
    return [*flags, *form, "--wire", "float16", "--blocks", str(BLOCKS)]


def read_vectors(root: str) -> dict[str, bytes]:
    """Bits of the vector of each node."""
    rows = read_dataset(f"{root}/embeddings").to_table(columns=["id", "vector"]).to_pylist()
    vectors = {row["id"]: np.array(row["vector"], np.float32).tobytes() for row in rows}
    assert len(vectors) == len(rows) == NODES
    return vectors


@contextmanager
def start_jobs(
    folder: Path,
    name: str,
    master: str,
    commands: list[Command],
    host: Host | None = None,
    *,
    settings: Mapping[str, str] | None = None,
    **env: str,
) -> Iterator[Process]:
    """Start commands in one session by spark-submit, on a host or without one; more settings of Spark."""
    own = host.folder if host else folder
    (own / "job.py").write_text(JOB)
    (own / "suite.yaml").write_text(yaml.safe_dump(SUITE))
    values = {**ON_THIS_MACHINE, **BOTH_FIRST, "spark.master": master}
    values["spark.executorEnv.PYTHONPATH"] = str(ROOT)
    values |= settings or {}
    command = [str(SPARK_HOME / "bin" / "spark-submit")]
    command += ["--properties-file", str(ROOT / "conf" / "spark" / "s3.conf")]
    command += [part for key, value in values.items() for part in ("--conf", f"{key}={value}")]
    command += [str(Path("/tmp" if host else own) / "job.py"), json.dumps(commands)]
    variables = {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable, **env}
    prefix = host.prefix if host else []
    with start_process([*prefix, *command], folder / f"{name}.log", folder, **variables) as process:
        yield process


def list_models(flags: Command, root: str) -> list[Command]:
    """Return the commands of embeddings under each plan."""
    return [["embed", *flags, "--warehouse", f"{root}/{plan}", "--plan", plan] for plan in PLANS]


def list_night(config: str, root: str) -> list[Command]:
    """Return the command of the night."""
    return [
        [
            "nightly",
            "--engine",
            "spark",
            "--config",
            config,
            "--warehouse",
            root,
            "--logical-date",
            "2026-01-01",
        ]
    ]


def list_view(pid: int) -> set[str]:
    """Return the names in /tmp as a process sees it."""
    return {path.name for path in Path(f"/proc/{pid}/root/tmp").iterdir()}


def require_apart(place: Cluster, hosts: dict[str, Host], tmp_path: Path) -> None:
    """Check that executors on different hosts see different folders, and none of this test's."""
    views = [list_view(pid) for pid in place.executors()]
    assert len(views) == 2 and all("work" in view for view in views)
    for pid in place.executors():
        assert not Path(f"/proc/{pid}/root{tmp_path}").exists()
    for name, other in (("one", "two"), ("two", "one")):
        (hosts[name].folder / f"only-{name}").touch()
        seen = [list_view(pid) for pid in place.executors()]
        assert sum(f"only-{name}" in view for view in seen) == 1
        assert not (hosts[other].folder / f"only-{name}").exists()


@contextmanager
def run_apart(
    tmp_path: Path, hosts: dict[str, Host], name: str, commands: list[Command]
) -> Iterator[Process]:
    """Run commands with driver and two workers apart; the block looks on while they run."""
    with (
        cluster(tmp_path, 2, {}, apart=True, hosts=[hosts["one"], hosts["two"]]) as place,
        start_jobs(tmp_path, name, place.url, commands, hosts["driver"]) as job,
    ):
        job.wait_for(lambda: len(place.executors()) == 2)
        require_apart(place, hosts, tmp_path)
        yield job
        assert job.popen.wait(PATIENCE) == 0, job.remarks[-4000:]


def run_here(tmp_path: Path, commands: list[Command]) -> None:
    """Run commands on this machine alone, with a folder."""
    disk = str(tmp_path / "disk")
    with start_jobs(tmp_path, "folder", "local[2]", commands, SPARK_LOCAL_DIRS=disk) as job:
        assert job.popen.wait(PATIENCE) == 0, job.remarks[-4000:]


@pytest.fixture
def hosts(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Host]:
    """Hosts of a driver and of two workers."""
    return make_hosts(tmp_path / "hosts", tmp_path_factory.getbasetemp(), ("driver", "one", "two"))


def test_embeddings_of_hosts_apart_have_the_bits_of_a_folder(
    bucket: str, tmp_path: Path, hosts: dict[str, Host]
) -> None:
    here = str(tmp_path / "w")
    run_here(tmp_path, list_models(write_inputs(str(tmp_path / "inputs")), here))
    with run_apart(tmp_path, hosts, "apart", list_models(write_inputs(bucket), bucket)):
        pass
    for plan in PLANS:
        assert read_vectors(f"{bucket}/{plan}") == read_vectors(f"{here}/{plan}"), plan


def test_a_night_of_hosts_apart_has_the_bits_of_a_folder(
    bucket: str, tmp_path: Path, hosts: dict[str, Host]
) -> None:
    here = str(tmp_path / "w")
    run_here(tmp_path, list_night(str(tmp_path / "suite.yaml"), here))
    with run_apart(tmp_path, hosts, "apart", list_night("/tmp/suite.yaml", f"{bucket}/w")):
        pass
    assert compare_warehouses.main([here, f"{bucket}/w"]) == 0


@dataclass
class Disk:
    """The most bytes of copies that were in a folder at once, and the files that they were then."""

    size: int = 0
    files: int = 0
    largest: int = 0


def watch_disk(job: Process, hosts: Iterable[Host]) -> dict[Path, Disk]:
    """Wait for a job to end; return what its executors had on disk. A new executor has a new folder."""
    disks: dict[Path, Disk] = {}
    began = time.monotonic()
    while job.popen.poll() is None:
        assert time.monotonic() - began < PATIENCE, job.remarks[-4000:]
        sizes: dict[Path, list[int]] = {}
        for path in (path for host in hosts for path in host.list_copies()):
            with suppress(FileNotFoundError):  # Spark removes the folder of an executor that has ended
                sizes.setdefault(path.parent, []).append(path.stat().st_size)
        for folder, present in sizes.items():
            disk = disks.setdefault(folder, Disk())
            if sum(present) > disk.size:
                disks[folder] = Disk(sum(present), len(present), max(present))
        time.sleep(0.02)
    assert job.popen.returncode == 0, job.remarks[-4000:]
    return disks


SAID = r"each of 2 hosts fetches (\S+ \S+) at .*needs (\S+ \S+) at once and (\S+ \S+) if no copy"
"""Line of `--explain` with the bytes that a host fetches, and those that its disk needs."""


def parse_bytes(text: str) -> float:
    """Return a number of bytes as `estimates.format_bytes` writes it."""
    number, unit = text.split()
    return float(number) * 1000 ** ("B", "kB", "MB", "GB").index(unit)


@pytest.mark.parametrize("plan", PLANS)
def test_local_disk_is_what_was_said_before_and_no_more_than_the_limit(
    plan: str, bucket: str, tmp_path: Path, hosts: dict[str, Host]
) -> None:
    """The graph is built by a job before, so executors begin without copies."""
    apart = [hosts["one"], hosts["two"]]
    embed = ["embed", *write_inputs(bucket), "--plan", plan, "--warehouse", f"{bucket}/w"]
    with cluster(tmp_path, 2, {}, apart=True, hosts=apart) as place:
        with start_jobs(tmp_path, "explain", place.url, [[*embed, "--explain"]], hosts["driver"]) as job:
            assert job.popen.wait(PATIENCE) == 0, job.remarks[-4000:]
        said = re.search(SAID, job.remarks)
        assert said, job.remarks[-4000:]
        _, least, most = map(parse_bytes, said.groups())
        with start_jobs(tmp_path, "free", place.url, [embed], hosts["driver"], settings=ONE_COPY) as job:
            free = watch_disk(job, apart)
        few, again = int(least / 2), [*embed[:-1], f"{bucket}/again"]
        limit = {**ONE_COPY, "spark.executorEnv.RECBENCH_SPARK_CACHE_BYTES": str(few)}
        with start_jobs(tmp_path, "few", place.url, [again], hosts["driver"], settings=limit) as job:
            limited = watch_disk(job, apart)
    assert len(free) == len(limited) == 2
    for disk in free.values():
        rows = disk.size - disk.files * PAGE  # headers of the files are no part of the estimate
        assert 0.3 * least < rows and disk.size <= most + disk.files * PAGE, (least, most, disk)
    for disk in limited.values():
        assert disk.size <= few + 2 * disk.largest, (few, disk)
    assert read_vectors(f"{bucket}/again") == read_vectors(f"{bucket}/w")


MANY_NODES, MANY_EDGES = 60_000, 480_000
WIDE = ["--form", "convolve", "--aggregator", "importance", "--widths", "128,128", "--hidden", "128"]
"""A model whose messages are large beside what a process of Python takes anyhow."""

SLACK = 8e6
"""Bytes above an estimate that a process may take: what Python and Arrow have freed, and keep."""

WORKER = re.compile(r"^\d \w+ \w+ +[RGS] +\d+ +\S+ \w+ +(\S+ \w+)", re.MULTILINE)
"""Line of `--explain` for a pass, with the bytes of a worker."""


def watch_memory(job: Process, place: Cluster) -> float:
    """Wait for a job to end; return the most bytes of a Python worker, without mapped files."""
    most = 0
    began = time.monotonic()
    while job.popen.poll() is None:
        assert time.monotonic() - began < PATIENCE, job.remarks[-4000:]
        for pid in (pid for worker in place.workers for pid in worker.children("pyspark.daemon")):
            most = max(most, read_anonymous_bytes(pid))
        time.sleep(0.02)
    assert job.popen.returncode == 0, job.remarks[-4000:]
    return most


def read_anonymous_bytes(pid: int) -> int:
    """Return the bytes of memory of a process that are no pages of files; 0 where it has ended."""
    with suppress(OSError):
        line = re.search(r"RssAnon:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
        return int(line[1]) * 1024 if line else 0
    return 0


def test_memory_of_workers_is_what_was_said_before(
    bucket: str, tmp_path: Path, hosts: dict[str, Host]
) -> None:
    """Memory that a worker takes for a small graph is no part of the estimate."""
    models = {
        name: [
            ["embed", *inputs[:6], *WIDE, "--blocks", str(BLOCKS), "--warehouse", f"{bucket}/{name}",
             "--plan", plan, "--seed", str(seed)]
            for seed, plan in enumerate(PLANS)
        ]
        for name, inputs in (
            ("small", write_inputs(f"{bucket}/few")),
            ("large", write_inputs(f"{bucket}/many", MANY_NODES, MANY_EDGES)),
        )
    }  # fmt: skip
    with cluster(tmp_path, 2, {}, apart=True, hosts=[hosts["one"], hosts["two"]]) as place:

        def watch(name: str, commands: list[Command]) -> tuple[float, str]:
            with start_jobs(tmp_path, name, place.url, commands, hosts["driver"], settings=ONE_COPY) as job:
                return watch_memory(job, place), job.remarks

        graphs = [[*command, "--explain"] for name in models for command in models[name]]
        _, remarks = watch("explain", graphs)  # it builds the graphs, too
        said = list(map(parse_bytes, WORKER.findall(remarks)))
        bare, _ = watch("small", models["small"])
        seen = [watch(f"large{n}", [command])[0] - bare for n, command in enumerate(models["large"])]
    print(f"bytes of a worker for a small graph {bare:.0f}, above them {seen}, said before {said}")
    assert len(said) == 4 * len(PLANS)
    for plan, passes, taken in zip(PLANS, (said[6:8], said[8:10], said[10:]), seen, strict=True):
        assert 0.3 * max(passes) < taken < max(passes) + SLACK, (plan, passes, taken)


@pytest.mark.parametrize("plan", ["R", "G"])
def test_a_lost_executor_costs_its_blocks_and_moves_no_bit(
    plan: str, bucket: str, tmp_path: Path, hosts: dict[str, Host]
) -> None:
    flags = [*write_inputs(bucket), "--plan", plan]
    aggregate = "aggregate_replicated" if plan == "R" else "aggregate_messages"
    with cluster(tmp_path, 2, {}, apart=True, hosts=[hosts["one"], hosts["two"]]) as place:
        lost = [["embed", *flags, "--warehouse", f"{bucket}/lost"]]
        more: dict[str, Any] = {"settings": ONE_COPY, "LINGER": "1"}
        with start_jobs(tmp_path, "lost", place.url, lost, hosts["driver"], **more) as job:
            marks = {name: hosts[name].folder / "marks" for name in ("one", "two")}
            job.wait_for(lambda: any(any(folder.glob(f"{aggregate}-*")) for folder in marks.values()))
            lost_name = next(name for name, folder in marks.items() if any(folder.glob(f"{aggregate}-*")))
            worker = place.workers[list(marks).index(lost_name)]
            (first,) = worker.children("CoarseGrainedExecutorBackend")
            os.kill(first, signal.SIGKILL)
            assert job.popen.wait(PATIENCE) == 0, job.remarks[-4000:]
        whole = [["embed", *flags, "--warehouse", f"{bucket}/whole"]]
        with start_jobs(tmp_path, "whole", place.url, whole, hosts["driver"]) as job:
            assert job.popen.wait(PATIENCE) == 0, job.remarks[-4000:]
    assert read_vectors(f"{bucket}/lost") == read_vectors(f"{bucket}/whole")
    (kept_name,) = marks.keys() - {lost_name}
    check_marks(plan, marks[lost_name], marks[kept_name])


def check_marks(plan: str, lost: Path, kept: Path) -> None:
    """Check that no block that was complete was made again. Under plan G what the lost host had sent is
    sent again.

    An executor has one core, so the task that it ran at its end left the only mark of work that was lost.
    """
    done = {folder: [path.name.rsplit("-", 1)[0] for path in folder.iterdir()] for folder in (lost, kept)}
    assert all(done.values()), "one host did all the work"
    again = Counter(done[kept])
    assert max(again.values()) == 1, again
    repeated = {name for name in done[lost] if name in again}
    whole = [name for name in repeated if name.startswith(("project", "_write"))]
    assert not whole and len([name for name in repeated if name.startswith("aggregate")]) <= 1, repeated
    assert plan == "G" or not [name for name in repeated if name.startswith("send")], repeated
