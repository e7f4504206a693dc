"""The same bits whatever dies: workers in every task, the whole job between and within layers, an executor;
and where tasks are run twice at once (speculation)."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from deltalake import DeltaTable

from tests.cluster.processes import PATIENCE, ROOT, Process, cluster, properties, start_process
from tests.graphs import oracle

pytestmark = [pytest.mark.usefixtures("own_jvm"), pytest.mark.slow]

JOB = """
import os, signal, sys
from pathlib import Path
from pyspark import TaskContext
from recbench_spark.commands import embed
from recbench_spark import cli
from recbench_spark.graphs import build, build_nodes, features, runner

marks = Path(sys.argv[1])


def dying(name, run, late):
    # kill -9 of the worker at a task's first attempt: before its work, or with its files written (late).
    def task(*args, **settings):
        context = TaskContext.get()
        done = None
        if late:
            done = run(*args, **settings)
            done = done if done is None or isinstance(done, (int, tuple)) else iter(list(done))
        if context.attemptNumber() == 0:
            (marks / f"{name}-{context.stageId()}-{context.partitionId()}").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return done if late else run(*args, **settings)
    return task


for module, name, late in (
    (build_nodes, "_partition_nodes", False), (build_nodes, "_write_nodes", True),
    (build, "_partition_edges", True), (build, "_write_block", True),
    (features, "_send_rows", False), (features, "_write_rows", True),
    (runner, "project_messages", True), (runner, "aggregate_replicated", True),
    (runner, "send_messages", True), (runner, "aggregate_messages", True),
    (runner, "send_sums", False), (runner, "aggregate_sums", True),
):
    setattr(module, name, dying(name, getattr(module, name), late))
cli.run(embed.main, embed.parser(), sys.argv[2:])
"""


@pytest.fixture(scope="module")
def flags(tmp_path_factory) -> list[str]:
    """A model of two layers over four blocks, committed block by block."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder, drawn = tmp_path_factory.mktemp("faults"), oracle.multigraph()
    edges, nodes = drawn.write(folder)
    h = np.random.default_rng(3).standard_normal((len(drawn.ids), 6)).astype(np.float32)
    pq.write_table(pa.table({"id": drawn.ids, "vector": list(h)}), folder / "h.parquet", row_group_size=20)
    layer = {"form": "convolve", "aggregator": "importance", "width": 5}
    (folder / "m.yaml").write_text(yaml.safe_dump({"layers": [layer, layer], "groups": 1, "blocks": 4}))
    given = [
        "--engine",
        "spark",
        "--edges",
        edges,
        "--weighted",
        "--node-table",
        nodes,
        "--features",
        str(folder / "h.parquet"),
    ]
    return [*given, "--model", str(folder / "m.yaml")]


def job(folder: Path, command: list[str]) -> tuple[list[str], dict[str, str]]:
    conf = properties(folder / "spark.conf", spark_master="local[2,4]")
    return [sys.executable, *command], {"RECBENCH_SPARK_PROPERTIES": str(conf), "PYTHONPATH": str(ROOT)}


def vectors(warehouse: Path) -> dict[str, bytes]:
    rows = DeltaTable(warehouse / "embeddings").to_pandas()
    assert rows["id"].is_unique and rows["model_id"].nunique() == 1
    return {i: np.array(v, np.float32).tobytes() for i, v in zip(rows["id"], rows["vector"], strict=True)}


@pytest.fixture(scope="module")
def plain_run(flags, tmp_path_factory):
    """Vectors of a run that nothing happens to; R and G give the same, S sums of blocks."""
    done: dict[bool, dict[str, bytes]] = {}

    def under(plan: str) -> dict[str, bytes]:
        if (plan == "S") not in done:
            folder = tmp_path_factory.mktemp("untroubled")
            more = ["--warehouse", str(folder / "w"), "--plan", "S" if plan == "S" else "R"]
            command, env = job(folder, [str(ROOT / "jobs" / "recbench.py"), "embed", *flags, *more])
            with start_process(command, folder / "job.log", folder, **env) as process:
                assert process.popen.wait(300) == 0, process.remarks[-4000:]
            done[plan == "S"] = vectors(folder / "w")
        return done[plan == "S"]

    return under


@pytest.mark.parametrize("plan", ["R", "G", "S"], ids=lambda plan: f"dies_under_{plan}")
def test_every_task_dies_once(plan, flags, plain_run, tmp_path) -> None:
    (tmp_path / "marks").mkdir()
    more = ["--warehouse", str(tmp_path / "w"), "--plan", plan]
    command, env = job(tmp_path, ["-c", JOB, str(tmp_path / "marks"), *flags, *more])
    with start_process(command, tmp_path / "job.log", tmp_path, **env) as process:
        assert process.popen.wait(420) == 0, process.remarks[-4000:]
    killed = [path.name.partition("-")[0] for path in (tmp_path / "marks").iterdir()]
    tasks = {
        "R": ("project_messages", "aggregate_replicated"),
        "G": ("send_messages", "aggregate_messages"),
        "S": ("send_sums", "aggregate_sums"),
    }
    for name in (
        "_partition_nodes",
        "_write_nodes",
        "_partition_edges",
        "_write_block",
        "_send_rows",
        "_write_rows",
        *tasks[plan],
    ):
        assert name in killed, (name, killed)
    assert vectors(tmp_path / "w") == plain_run(plan)


@pytest.mark.parametrize("plan", ["R", "G", "S"])
def test_a_job_killed_between_and_within_layers_goes_on(plan, flags, plain_run, tmp_path) -> None:
    warehouse = tmp_path / "w"
    more = ["--warehouse", str(warehouse), "--plan", plan]
    command, env = job(tmp_path, [str(ROOT / "jobs" / "recbench.py"), "embed", *flags, *more])

    def commits(name: str) -> int:
        return len(list((warehouse / name / "_delta_log").glob("*.json")))

    moments = (
        lambda: any((warehouse / "graph_files").glob("*/indptr/*")),
        lambda: commits("graph_vectors") >= 3,
        lambda: commits("graph_vectors") >= 5,
        lambda: commits("embeddings") >= 3,
    )
    for n, moment in enumerate(moments):
        with start_process(command, tmp_path / f"{n}.log", tmp_path, **env) as process:
            kill_at(process, moment)
    with start_process(command, tmp_path / "last.log", tmp_path, **env) as process:
        assert process.popen.wait(300) == 0, process.remarks[-4000:]
        assert "already built" in process.remarks and "layer 1 layer" not in process.remarks
    assert vectors(warehouse) == plain_run(plan)


def kill_at(process: Process, moment) -> None:
    process.wait_for(moment)
    process.kill()


SLOW_JOB = """
import sys, time
from pathlib import Path
from pyspark import TaskContext
from recbench_spark.commands import embed
from recbench_spark import cli
from recbench_spark.graphs import build, runner

marks, way = Path(sys.argv[1]), sys.argv[2]


def lingering(name, run):
    # A first attempt has done all its work, and does not come back: until a second one has (copied), or
    # for some seconds, in which the executor is killed.
    def task(*args, **settings):
        context = TaskContext.get()
        done = run(*args, **settings)
        done = done if done is None or isinstance(done, (int, tuple)) else iter(list(done))
        mark = f"{name}-{context.stageId()}-{context.partitionId()}-"
        (marks / f"{mark}{context.attemptNumber()}").touch()
        until = time.monotonic() + (60 if way == "copied" else 2)
        while context.attemptNumber() == 0 and context.partitionId() == 0 and time.monotonic() < until:
            if way == "copied" and len(list(marks.glob(f"{mark}*"))) > 1:
                break
            time.sleep(0.02)
        return done
    return task


for module, name in (
    (build, "_write_block"), (runner, "aggregate_replicated"), (runner, "send_messages"),
    (runner, "aggregate_messages"),
):
    setattr(module, name, lingering(name, getattr(module, name)))
cli.run(embed.main, embed.parser(), sys.argv[3:])
"""

ON_A_CLUSTER = {
    "spark_executor_cores": 1,
    "spark_executor_memory": "600m",
    "spark_driver_host": "127.0.0.1",
    "spark_executorEnv_PYTHONPATH": str(ROOT),
    "spark_speculation_interval": "50ms",
    "spark_speculation_quantile": 0.5,
    "spark_speculation_minTaskRuntime": "500ms",
    "spark_speculation_task_duration_threshold": "1s",  # of stages of one task
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Two workers with addresses of their own: Spark copies no task to the host that it runs on."""
    with cluster(tmp_path_factory.mktemp("cluster"), workers=2, settings={}, apart=True) as running:
        yield running


def on_cluster(place, folder: Path, way: str, more: list[str]) -> tuple[list[str], dict[str, str]]:
    (folder / "marks").mkdir()
    settings = {
        **ON_A_CLUSTER,
        "spark_master": place.url,
        "spark_speculation": str(way == "copied").lower(),
    }
    conf = properties(folder / "spark.conf", **settings)
    command = [sys.executable, "-c", SLOW_JOB, str(folder / "marks"), way, *more]
    env = {
        "RECBENCH_SPARK_PROPERTIES": str(conf),
        "PYTHONPATH": str(ROOT),
        "PYSPARK_PYTHON": sys.executable,
    }
    return command, env


@pytest.mark.parametrize("plan", ["R", "G"])
def test_tasks_that_are_run_twice_at_once_leave_one_result(plan, flags, plain_run, place, tmp_path) -> None:
    more = [*flags, "--warehouse", str(tmp_path / "w"), "--plan", plan]
    command, env = on_cluster(place, tmp_path, "copied", more)
    with start_process(command, tmp_path / "job.log", tmp_path, **env) as process:
        assert process.popen.wait(PATIENCE) == 0, process.remarks[-4000:]
    marks = {path.name for path in (tmp_path / "marks").iterdir()}
    twice = {name.partition("-")[0] for name in marks if name.endswith("-1")}
    assert {"_write_block", "aggregate_replicated" if plan == "R" else "aggregate_messages"} <= twice, marks
    assert vectors(tmp_path / "w") == plain_run(plan)


@pytest.mark.parametrize("plan", ["R", "G"])
def test_a_layer_that_loses_an_executor_has_the_same_bits(plan, flags, plain_run, place, tmp_path) -> None:
    more = [*flags, "--warehouse", str(tmp_path / "w"), "--plan", plan]
    command, env = on_cluster(place, tmp_path, "killed", more)
    name = "aggregate_replicated" if plan == "R" else "aggregate_messages"
    with start_process(command, tmp_path / "job.log", tmp_path, **env) as process:
        process.wait_for(lambda: any((tmp_path / "marks").glob(f"{name}-*")))
        first = place.executors()
        os.kill(first[0], signal.SIGKILL)
        assert process.popen.wait(PATIENCE) == 0, process.remarks[-4000:]
    assert len(first) == 2
    assert vectors(tmp_path / "w") == plain_run(plan)
