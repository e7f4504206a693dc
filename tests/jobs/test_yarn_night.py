"""Nights on a real YARN by the command of docs/how_to/cluster.md, as the page prints it.

Only a warehouse's folder and the numbers of cores and of memory are others. The node has no settings of
Hadoop's, and no package of ours: all comes with the command.
"""

from __future__ import annotations

import json
import os
import pwd
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from recbench_spark.storage.delta_tables import read_dataset
from recbench_spark.storage.objects import list_objects, read_bytes, write_bytes
from tests.cluster.processes import ROOT, bare_python, package_zip, start_process
from tests.cluster.test_standalone import environment_archive
from tests.hadoop_cluster import Hadoop
from tests.jobs.test_hdfs_night import start_job
from tests.nights import TINY
from tools import compare_warehouses

pytestmark = [pytest.mark.usefixtures("own_jvm"), pytest.mark.slow]

DAY = "2026-01-31"
FAILING: dict[str, Any] = {**TINY, "name": "stopped", "gates": [{"fact": "users", "below": 1000}]}

SMALL = {
    "spark.driver.memory": "800m",
    "spark.executor.memory": "700m",
    "spark.executor.cores": 1,
    "spark.sql.shuffle.partitions": 2,
    "spark.databricks.delta.snapshotPartitions": 1,
    "spark.yarn.maxAppAttempts": 1,
    # As in tests/conftest.py: compiling takes longer than the few rows of these nights.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1",
}
"""Numbers that one node of 4 GiB and a few rows need. YARN would start a failed night again."""


def read_command(page: Path, heading: str) -> list[str]:
    """Return the words of the first command of spark-submit below a heading of a page."""
    section = page.read_text().split(f"\n## {heading}\n")[1]
    command = re.findall(r"^\.venv/bin/spark-submit (?:.*\\\n)*.*", section, re.MULTILINE)[0]
    return shlex.split(command.replace("\\\n", " "))


def make_project(folder: Path, hadoop: Hadoop) -> Path:
    """Make what the command names in a folder, as in a checkout, and put the environment on HDFS."""
    (folder / "dist").mkdir(parents=True)
    package_zip(folder / "dist")
    archive = environment_archive(folder / "dist", bare_python(folder / "bare"))
    write_bytes(f"{hadoop.root}/envs/env.tar.gz", archive.read_bytes())
    for name, target in {".venv": Path(sys.prefix), "conf": ROOT / "conf", "jobs": ROOT / "jobs"}.items():
        (folder / name).symlink_to(target)
    return folder


@pytest.fixture(scope="module")
def project(yarn_server: Hadoop, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder in which the command is typed."""
    return make_project(tmp_path_factory.mktemp("project"), yarn_server)


def submit(project: Path, hadoop: Hadoop, night: dict[str, Any]) -> tuple[int, str]:
    """Type the command for a night; return its exit code and what it printed."""
    (project / "my.yaml").write_text(yaml.safe_dump(night))
    words = read_command(ROOT / "docs" / "how_to" / "cluster.md", "YARN")
    at = words.index("jobs/recbench.py")
    numbers = [word for key, value in SMALL.items() for word in ("--conf", f"{key}={value}")]
    words[at:at] = ["--num-executors", "1", *numbers]
    # The two interpreters are those of a shell in which the command for a standalone cluster was typed.
    variables = {
        "HADOOP_CONF_DIR": str(hadoop.settings),
        "PYSPARK_PYTHON": "./env/bin/python",
        "PYSPARK_DRIVER_PYTHON": ".venv/bin/python",
    }
    with start_process(words, project / f"{night['name']}.log", project, **variables) as job:
        return job.popen.wait(900), job.remarks


def run_in_folder(tmp_path: Path, night: dict[str, Any]) -> str:
    """Run a night in a folder of this machine; return the folder."""
    (tmp_path / "my.yaml").write_text(yaml.safe_dump(night))
    flags = ("--config", "my.yaml", "--warehouse", str(tmp_path / "w"), "--logical-date", DAY)
    with start_job(tmp_path, "folder", "nightly", *flags) as job:
        assert job.popen.wait(500) == 0, job.remarks[-4000:]
    return str(tmp_path / "w")


def test_a_night_on_yarn_as_the_page_prints_it_gives_the_bits_of_a_folder(
    project: Path, yarn_server: Hadoop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("USER", "LOGNAME"):  # YARN sets them in containers; `runs.ran_by` has the name
        monkeypatch.setenv(name, pwd.getpwuid(os.getuid()).pw_name)
    code, printed = submit(project, yarn_server, TINY)
    assert code == 0 and "final status: SUCCEEDED" in printed, printed[-6000:]
    warehouse = f"{yarn_server.root}/recbench"
    assert compare_warehouses.main([run_in_folder(tmp_path, TINY), warehouse]) == 0
    assert {f"reports/tiny-{DAY}.html", f"results/night-tiny-{DAY}.json"} <= set(list_objects(warehouse))


def test_a_night_that_a_gate_stops_is_a_failed_application_and_says_why(
    project: Path, yarn_server: Hadoop
) -> None:
    code, printed = submit(project, yarn_server, FAILING)
    assert code == 1 and "final status: FAILED" in printed, printed[-6000:]
    warehouse = f"{yarn_server.root}/recbench"
    runs = read_dataset(f"{warehouse}/runs").to_table(columns=["suite", "status", "error"]).to_pylist()
    errors = [run["error"] for run in runs if run["suite"] == "stopped"]
    assert errors and all("users" in (error or "") for error in errors), runs
    result = json.loads(read_bytes(f"{warehouse}/results/night-stopped-{DAY}.json") or b"{}")
    assert result["exit_code"] == 3
