"""Nights on a real S3 server by the command of docs/how_to/cluster.md: bits, a kill, two jobs at once.

All objects of the bucket, and all that the jobs print and log, are searched for the secret key.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
import yaml

from recbench_spark.config import Benchmark, parse
from recbench_spark.night.night_status import find_finished_night
from recbench_spark.storage import delta_files
from recbench_spark.storage.delta_tables import read_dataset
from recbench_spark.storage.objects import list_objects
from tests.cluster.processes import ROOT, SPARK_HOME, Process, start_process
from tests.faulty_storage import Faults, disturb
from tests.nights import TINY, models
from tests.object_storage import S3Server
from tools import compare_warehouses

pytestmark = [pytest.mark.usefixtures("own_jvm"), pytest.mark.slow]

DAY = "2026-01-01"
IN_PASS = re.compile(r"rankings/run_id=.*parquet").fullmatch
MORE = {"comparisons": {"baseline": "popular", "replicates": 50}}
SUITES: dict[str, dict[str, Any]] = {
    "tiny": {**TINY, **MORE},
    "other": {**TINY, **MORE, "name": "other", "models": [*TINY["models"], *models("random")]},
}
"""Two suites of one split: jobs that run at once write the same tables, and some of the same rows."""

FIT = {"epochs": 2, "batch": 64, "rate": 0.02, "validation": 0.2}
HASHED = {"features": {"kind": "hashed", "dims": 6}}
FITTED: list[dict[str, Any]] = [
    {"kind": "pinsage", **FIT, **HASHED, "width": 5, "hidden": 5, "top": 5, "walks": 20, "negatives": 20},
    {"kind": "graphsage", **FIT, **HASHED, "width": 5, "samples": [4, 3]},
    {"kind": "lightgcn", **FIT, "dims": 4, "layers": 2},
    {"kind": "mf_bpr", **FIT, "dims": 4},
    {"kind": "graph", **HASHED, "layers": [{"form": "sage", "aggregator": "mean", "width": 4}] * 2},
]
INDEX = {"name": "hash", "kind": "lsh", "bits": 2, "bands": 6, "index_parts": 2}
GRAPH_SUITES: dict[str, dict[str, Any]] = {
    "fitted": {
        **TINY,
        "name": "fitted",
        "models": [*TINY["models"], *({"name": model["kind"], **model} for model in FITTED)],
        "evaluation": {**TINY["evaluation"], "uncut": False},
        "retrieval": {"models": ["mf_bpr", "graphsage"], "length": 10, "indexes": [INDEX]},
    }
}
"""Models over graphs, fits with checkpoints, and indexes: their files are objects."""

ON_THIS_MACHINE = {
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": 2,
    "spark.databricks.delta.snapshotPartitions": 1,
    "spark.sql.adaptive.enabled": "false",
    # As in tests/conftest.py: compiling takes longer than the few rows of these nights.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m",
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "false",
}
"""Otherwise the settings are those of conf/spark/s3.conf."""

TRY_TASKS_AGAIN = {"MASTER": "local[2,4]"}
"""A task may fail three times, as on a cluster; by default not once where all is one process."""


@contextmanager
def start_job(folder: Path, name: str, job: str, *flags: str, **variables: str) -> Iterator[Process]:
    """Start a job as docs/how_to/cluster.md says; its output and its event log are in the folder."""
    events = folder / "events"
    events.mkdir(exist_ok=True)
    command = [str(SPARK_HOME / "bin" / "spark-submit")]
    command += ["--properties-file", str(ROOT / "conf" / "spark" / "s3.conf")]
    for key, value in {**ON_THIS_MACHINE, "spark.eventLog.dir": events.as_uri()}.items():
        command += ["--conf", f"{key}={value}"]
    command += [str(ROOT / "jobs" / "recbench.py"), job, *flags]
    own = {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable, **variables}
    with start_process(command, folder / f"{name}.log", folder, **own) as process:
        yield process


def start_night(folder: Path, warehouse: str, suite: str, name: str, **variables: str) -> Any:
    """Start a night of a suite."""
    config = folder / f"{suite}.yaml"
    config.write_text(yaml.safe_dump({**SUITES, **GRAPH_SUITES}[suite]))
    flags = ("--config", str(config), "--warehouse", warehouse, "--logical-date", DAY)
    return start_job(folder, f"{name}-{suite}", "nightly", *flags, **variables)


def run_at_once(folder: Path, warehouse: str, name: str, profile: Path) -> None:
    """Run the nights of all suites at the same time, to their end.

    The last one has its keys from a profile, the others from the environment.
    """
    by_profile = {
        "AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_SHARED_CREDENTIALS_FILE": str(profile)
    }  # fmt: skip
    with ExitStack() as stack:
        jobs = []
        for n, suite in enumerate(SUITES, start=1):
            variables = by_profile if n == len(SUITES) else {}
            jobs.append(stack.enter_context(start_night(folder, warehouse, suite, name, **variables)))
        for job in jobs:
            assert job.popen.wait(300) == 0, job.remarks[-4000:]


def delete_unpublished(warehouse: str) -> None:
    """Delete rows of runs that ended before their row in `runs`, as a night does a day later.

    Checks of graphs and of neighbourhoods stand under their names, which begin with that of the split.
    """
    splits = tuple(pc.unique(read_dataset(f"{warehouse}/splits").to_table()["split_id"]).to_pylist())
    published = set(read_dataset(f"{warehouse}/runs").to_table()["run_id"].to_pylist())
    for name in ("rankings", "user_metrics", "metrics", "checks"):
        known = set(pc.unique(read_dataset(f"{warehouse}/{name}").to_table()["run_id"]).to_pylist())
        lost = sorted(name for name in known - published if not name.startswith(splits))
        if lost:
            delta_files.delete_rows(f"{warehouse}/{name}", "run_id", lost)


def list_holders(secret: str, *folders: Path) -> list[Path]:
    """Return the files that hold a text."""
    files = (file for folder in folders for file in folder.rglob("*") if file.is_file())
    return [file for file in files if secret.encode() in file.read_bytes()]


def test_nights_on_s3_at_once_and_after_a_kill_give_the_bits_of_a_folder(
    s3_server: S3Server, bucket: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    profile = tmp_path_factory.mktemp("home") / "credentials"
    keys = f"aws_access_key_id = {s3_server.key}\naws_secret_access_key = {s3_server.secret}\n"
    profile.write_text(f"[default]\n{keys}")
    warehouse, folder = f"{bucket}/team/w", str(tmp_path / "w")
    with start_night(tmp_path, warehouse, "tiny", "killed") as killed:
        killed.wait_for(lambda: any(map(IN_PASS, list_objects(warehouse))))
        killed.kill()
    run_at_once(tmp_path, folder, "folder", profile)
    run_at_once(tmp_path, warehouse, "s3", profile)
    delete_unpublished(warehouse)
    assert compare_warehouses.main([folder, warehouse]) == 0
    names = set(list_objects(warehouse))
    for suite, settings in SUITES.items():
        assert {f"reports/{suite}-{DAY}.html", f"results/night-{suite}-{DAY}.json"} <= names
        assert any(name.startswith(f"logs/{suite}-{DAY}-") for name in names)
        benchmark = parse(Benchmark, settings, suite)
        assert find_finished_night(warehouse, benchmark, date.fromisoformat(DAY)) is not None
    flags = ("--warehouse", warehouse, "--migrate", "--optimize", "--vacuum-hours", "24")
    with start_job(tmp_path, "maintain", "maintain", *flags) as maintain:
        assert maintain.popen.wait(300) == 0, maintain.remarks[-4000:]
    assert compare_warehouses.main([folder, warehouse]) == 0
    assert list_holders(s3_server.endpoint, tmp_path), "the jobs name the address nowhere"
    assert not list_holders(s3_server.secret, tmp_path, s3_server.folder)


def test_a_night_over_a_bad_network_gives_the_bits_of_a_folder(
    s3_server: S3Server, bucket: str, tmp_path: Path
) -> None:
    """30 ms a request, one of a hundred refused, answers cut and lost: nothing is lost or doubled."""
    warehouse, folder = f"{bucket}/team/w", str(tmp_path / "w")
    with start_night(tmp_path, folder, "tiny", "folder") as job:
        assert job.popen.wait(300) == 0, job.remarks[-4000:]
    network = Faults(delay=0.03, refuse=100, cut=100, lose=20)
    with disturb(s3_server, network) as proxy:
        variables = proxy.server.environment
        with start_night(tmp_path, warehouse, "tiny", "s3", **variables, **TRY_TASKS_AGAIN) as job:
            assert job.popen.wait(500) == 0, job.remarks[-4000:]
    assert min(proxy.done[fault] for fault in ("refuse", "cut", "lose")) > 0
    assert compare_warehouses.main([folder, warehouse]) == 0


def run_alone(folder: Path, warehouse: str, suite: str, name: str) -> str:
    """Run a night to its end, with a local directory of its own; return what it printed."""
    disk = str(folder / f"disk-{name}")
    with start_night(folder, warehouse, suite, name, SPARK_LOCAL_DIRS=disk) as job:
        assert job.popen.wait(550) == 0, job.remarks[-4000:]
        return job.remarks


def test_graphs_fits_and_indexes_on_s3_give_the_bits_of_a_folder_also_after_a_kill(
    bucket: str, tmp_path: Path
) -> None:
    """The killed night has fitted PinSage, whose weights lie on the driver's host."""
    warehouse, folder, disk = f"{bucket}/team/w", str(tmp_path / "w"), tmp_path / "disk-s3"
    with start_night(tmp_path, warehouse, "fitted", "killed", SPARK_LOCAL_DIRS=str(disk)) as killed:
        killed.wait_for(lambda: any(disk.rglob("weights.safetensors")))
        killed.kill()
    run_alone(tmp_path, folder, "fitted", "folder")
    remarks = run_alone(tmp_path, warehouse, "fitted", "s3")
    assert not re.search(r"model pinsage: [\d,]+ pairs", remarks), "it is not fitted again"
    delete_unpublished(warehouse)
    assert compare_warehouses.main([folder, warehouse]) == 0
    names = list(list_objects(warehouse))
    assert sum(name.endswith("weights.safetensors") for name in names) == 2
    assert sum("-index-" in name and name.endswith("seal.json") for name in names) == 2 * 2
    scratch = {name.split("/")[1] for name in names if name.startswith("_scratch")}
    assert len(scratch) <= 1, "only the killed night leaves scratch, which a rule of the bucket removes"
    assert not list(disk.rglob("checkpoints")), "complete fits leave nothing on the driver's host"
