"""Nights on a real HDFS by spark-submit: the bits of a folder, also after a kill."""

from __future__ import annotations

import re
import sys
from contextlib import AbstractContextManager
from datetime import date
from pathlib import Path

import pytest
import yaml

from recbench_spark.config import Benchmark, parse
from recbench_spark.night.night_status import find_finished_night
from recbench_spark.storage.objects import list_objects
from tests.cluster.processes import ROOT, SPARK_HOME, Process, start_process
from tests.jobs.test_object_storage_night import (
    DAY,
    GRAPH_SUITES,
    IN_PASS,
    ON_THIS_MACHINE,
    SUITES,
    delete_unpublished,
)
from tools import compare_warehouses

pytestmark = [pytest.mark.usefixtures("own_jvm"), pytest.mark.slow]

CONFIGS = ROOT / "conf" / "benchmarks"


def start_job(folder: Path, name: str, job: str, *flags: str) -> AbstractContextManager[Process]:
    """Start a job by spark-submit on this machine, with the settings of conf/spark/cluster.conf."""
    command = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", "local[2]"]
    command += ["--properties-file", str(ROOT / "conf" / "spark" / "cluster.conf")]
    for key, value in {**ON_THIS_MACHINE, "spark.eventLog.enabled": "false"}.items():
        command += ["--conf", f"{key}={value}"]
    own = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_DIRS": str(folder / f"disk-{name}")}
    own["PYTHONPATH"] = ":".join([str(ROOT), *(path for path in sys.path if "hdfs" in path)])
    return start_process(
        [*command, str(ROOT / "jobs" / "recbench.py"), job, *flags], folder / f"{name}.log", folder, **own
    )


def start_night(folder: Path, warehouse: str, suite: str, name: str) -> AbstractContextManager[Process]:
    """Start a night of a suite."""
    config = folder / f"{suite}.yaml"
    config.write_text(yaml.safe_dump({**SUITES, **GRAPH_SUITES}[suite]))
    flags = ("--config", str(config), "--warehouse", warehouse, "--logical-date", DAY)
    return start_job(folder, f"{name}-{suite}", "nightly", *flags)


def run_night(folder: Path, warehouse: str, suite: str, name: str) -> str:
    """Run a night to its end; return what it printed."""
    with start_night(folder, warehouse, suite, name) as job:
        assert job.popen.wait(550) == 0, job.remarks[-4000:]
        return job.remarks


def test_a_night_on_hdfs_after_a_kill_gives_the_bits_of_a_folder(hdfs_place: str, tmp_path: Path) -> None:
    warehouse, folder = f"{hdfs_place}/team/w", str(tmp_path / "w")
    with start_night(tmp_path, warehouse, "tiny", "killed") as killed:
        killed.wait_for(lambda: any(map(IN_PASS, list_objects(warehouse))))
        killed.kill()
    run_night(tmp_path, folder, "tiny", "folder")
    run_night(tmp_path, warehouse, "tiny", "hdfs")
    delete_unpublished(warehouse)
    assert compare_warehouses.main([folder, warehouse]) == 0
    names = set(list_objects(warehouse))
    assert {f"reports/tiny-{DAY}.html", f"results/night-tiny-{DAY}.json"} <= names
    assert any(name.startswith(f"logs/tiny-{DAY}-") for name in names)
    benchmark = parse(Benchmark, SUITES["tiny"], "tiny")
    assert find_finished_night(warehouse, benchmark, date.fromisoformat(DAY)) is not None
    flags = ("--warehouse", warehouse, "--migrate", "--optimize", "--vacuum-hours", "24")
    with start_job(tmp_path, "maintain", "maintain", *flags) as maintain:
        assert maintain.popen.wait(300) == 0, maintain.remarks[-4000:]
    assert compare_warehouses.main([folder, warehouse]) == 0


def test_graphs_fits_and_indexes_on_hdfs_give_the_bits_of_a_folder_also_after_a_kill(
    hdfs_place: str, tmp_path: Path
) -> None:
    warehouse, folder = f"{hdfs_place}/team/w", str(tmp_path / "w")
    disk = tmp_path / "disk-killed-fitted"
    with start_night(tmp_path, warehouse, "fitted", "killed") as killed:
        killed.wait_for(lambda: any(disk.rglob("weights.safetensors")))
        killed.kill()
    run_night(tmp_path, folder, "fitted", "folder")
    remarks = run_night(tmp_path, warehouse, "fitted", "hdfs")
    assert re.search(r"rank .*lightgcn", remarks)
    delete_unpublished(warehouse)
    assert compare_warehouses.main([folder, warehouse]) == 0
    names = list(list_objects(warehouse))
    assert sum(name.endswith("weights.safetensors") for name in names) == 2
