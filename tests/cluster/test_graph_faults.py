"""kill -9 of workers in every task and of the whole job between and within layers: the same bits."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from deltalake import DeltaTable

from tests.cluster.processes import ROOT, Process, properties, started
from tests.graph import oracle

pytestmark = [pytest.mark.spark, pytest.mark.slow]

JOB = """
import os, signal, sys
from pathlib import Path
from pyspark import TaskContext
from recbench_spark.commands import embed
from recbench_spark import cli
from recbench_spark.graph import features, layout, passes, runner

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
    (layout, "_deal_nodes", False), (layout, "_write_nodes", True), (layout, "_deal_edges", True),
    (layout, "_write_block", True), (features, "_fill", True), (runner, "project", True),
    (runner, "replicated", True), (runner, "gathered_from", True), (runner, "gathered_to", True),
    (runner, "scattered_from", False), (runner, "scattered_to", True),
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
    given = ["--edges", edges, "--weighted", "--node-table", nodes, "--features", str(folder / "h.parquet")]
    return [*given, "--model", str(folder / "m.yaml")]


def job(folder: Path, command: list[str]) -> tuple[list[str], dict[str, str]]:
    conf = properties(folder / "spark.conf", spark_master="local[2,4]")
    return [sys.executable, *command], {"RECBENCH_SPARK_PROPERTIES": str(conf), "PYTHONPATH": str(ROOT)}


def vectors(warehouse: Path) -> dict[str, bytes]:
    rows = DeltaTable(warehouse / "embeddings").to_pandas()
    assert rows["id"].is_unique and rows["model_id"].nunique() == 1
    return {i: np.array(v, np.float32).tobytes() for i, v in zip(rows["id"], rows["vector"], strict=True)}


@pytest.fixture(scope="module")
def untroubled(flags, tmp_path_factory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("untroubled")
    command, env = job(folder, [str(ROOT / "jobs" / "embed.py"), *flags, "--warehouse", str(folder / "w")])
    with started(command, folder / "job.log", folder, **env) as process:
        assert process.popen.wait(300) == 0, process.said[-4000:]
    return vectors(folder / "w")


@pytest.mark.parametrize("plan", ["R", "G"])
def test_every_task_dies_once(plan, flags, untroubled, tmp_path) -> None:
    (tmp_path / "marks").mkdir()
    more = ["--warehouse", str(tmp_path / "w"), "--plan", plan]
    command, env = job(tmp_path, ["-c", JOB, str(tmp_path / "marks"), *flags, *more])
    with started(command, tmp_path / "job.log", tmp_path, **env) as process:
        assert process.popen.wait(420) == 0, process.said[-4000:]
    killed = [path.name.partition("-")[0] for path in (tmp_path / "marks").iterdir()]
    tasks = {"R": ("project", "replicated"), "G": ("gathered_from", "gathered_to")}[plan]
    for name in ("_deal_nodes", "_write_nodes", "_deal_edges", "_write_block", "_fill", *tasks):
        assert name in killed, (name, killed)
    assert vectors(tmp_path / "w") == untroubled


def test_a_job_killed_between_and_within_layers_goes_on(flags, untroubled, tmp_path) -> None:
    warehouse = tmp_path / "w"
    command, env = job(tmp_path, [str(ROOT / "jobs" / "embed.py"), *flags, "--warehouse", str(warehouse)])

    def commits(name: str) -> int:
        return len(list((warehouse / name / "_delta_log").glob("*.json")))

    moments = (
        lambda: any((warehouse / "graph_files").glob("*/blocks/*")),
        lambda: commits("graph_vectors") >= 3,
        lambda: commits("graph_vectors") >= 5,
        lambda: commits("embeddings") >= 3,
    )
    for n, moment in enumerate(moments):
        with started(command, tmp_path / f"{n}.log", tmp_path, **env) as process:
            killed_at(process, moment)
    with started(command, tmp_path / "last.log", tmp_path, **env) as process:
        assert process.popen.wait(300) == 0, process.said[-4000:]
        assert "laid out before" in process.said and "layer 1 layer" not in process.said
    assert vectors(warehouse) == untroubled


def killed_at(process: Process, moment) -> None:
    process.wait_for(moment)
    process.kill()
