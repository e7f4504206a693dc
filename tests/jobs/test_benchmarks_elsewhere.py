"""Files of conf/benchmarks on a real S3 server, on HDFS and in a Hive metastore have the bits of a folder.

`pytest -m slow tests/jobs/test_benchmarks_elsewhere.py -s -k NAME` prints the seconds of each job.
"""

from __future__ import annotations

import gzip
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.cluster.processes import ROOT, SPARK_HOME, start_process
from tests.jobs.test_hive_catalog import SCHEMA, name_metastore
from tests.jobs.test_object_storage_night import ON_THIS_MACHINE
from tools import compare_warehouses

pytestmark = [pytest.mark.usefixtures("own_jvm"), pytest.mark.slow]

LONGEST = 2400
"""Seconds after which a job is given up."""

NIGHT = ("nightly", "--logical-date", "2026-01-01")
LITTLE: dict[str, object] = {
    "als_64.iterations": 2,
    "mf_bpr.epochs": 1,
    "lightgcn.epochs": 1,
    "pinsage.epochs": 1,
    "pinsage.width": 8,
    "pinsage.hidden": 8,
    "pinsage.top": 5,
    "graphsage.epochs": 1,
    "graphsage.width": 8,
    "graphsage.samples": [3, 2],
}
"""Settings of the models of MovieLens 1M with little work."""

FEWER = tuple(word for key, value in LITTLE.items() for word in ("--set", f"models.{key}={value}"))

JOBS: dict[str, tuple[str, ...]] = {
    "demo": NIGHT,
    "graph": NIGHT,
    "movielens_1m_graph": (*NIGHT, *FEWER),
    "movielens_100k_rating": ("benchmark", "--seeds", "1", "--folds", "0"),
}
"""The job of each file, and its flags."""

USERS = 500
"""Users of MovieLens 1M that its night has, since it runs four times."""

DATA = {"movielens_1m_graph": "ml-1m", "movielens_100k_rating": "ml-100k"}
"""Folders of real data; the tests of these files are skipped where it is absent."""

SETTINGS = {
    **ON_THIS_MACHINE,
    "spark.master": "local[2]",
    "spark.driver.memory": "2g",
    "spark.eventLog.enabled": "false",
}


@dataclass(frozen=True)
class Place:
    """A warehouse: its name, where its tables lie, and the file and the settings of Spark that reach it."""

    warehouse: str
    tables: str
    properties: str = "cluster.conf"
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class FolderRun:
    """A job that ran into a folder: its flags without the warehouse, and the warehouse."""

    flags: tuple[str, ...]
    warehouse: str


def run_job(folder: Path, place: Place, flags: tuple[str, ...]) -> None:
    """Run a job by spark-submit to its end, and print its seconds.

    The job sees the packages that this process was started with, such as the client of HDFS.
    """
    file = ROOT / "conf" / "spark" / place.properties
    command = [str(SPARK_HOME / "bin" / "spark-submit"), "--properties-file", str(file)]
    for key, value in {**SETTINGS, **place.settings}.items():
        command += ["--conf", f"{key}={value}"]
    job, *rest = flags
    command += [str(ROOT / "jobs" / "recbench.py"), job, *rest, "--warehouse", place.warehouse]
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    disk = str(folder / "disk")
    own = {"PYTHONPATH": paths, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_DIRS": disk}
    started = time.monotonic()
    with start_process(command, folder / "job.log", folder, **own) as process:
        assert process.popen.wait(LONGEST) == 0, process.remarks[-4000:]
    print(f"{time.monotonic() - started:.0f} s: {job} {' '.join(rest)} into {place.warehouse}", flush=True)


def shorten_log(data: Path, folder: Path) -> Path:
    """Write the ratings of the first users of MovieLens 1M into a folder."""
    (log,) = data.glob("ratings.tsv.gz")
    with gzip.open(log, "rt") as rows, (folder / "ratings.tsv").open("w") as few:
        few.write(next(rows))  # names of the columns
        few.writelines(row for row in rows if int(row.split("\t")[0]) <= USERS)
    return folder


@pytest.fixture(scope="module", params=list(JOBS))
def in_folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> FolderRun:
    """A job that has run into a folder, once for all places that are compared with it."""
    name = request.param
    data = request.getfixturevalue("shared_data") / DATA[name] if name in DATA else None
    if data and name == "movielens_1m_graph":
        data = shorten_log(data, tmp_path_factory.mktemp("log"))
    flags = (*JOBS[name], "--config", name, *(("--set", f"dataset.path={data}") if data else ()))
    folder = tmp_path_factory.mktemp(name)
    run_job(folder, Place(str(folder / "w"), str(folder / "w")), flags)
    return FolderRun(flags, str(folder / "w"))


def compare_run(folder: Path, wanted: FolderRun, place: Place) -> None:
    """Run the job into another place and compare all tables."""
    run_job(folder, place, wanted.flags)
    assert compare_warehouses.main([wanted.warehouse, place.tables]) == 0


def test_s3_has_the_bits_of_a_folder(in_folder: FolderRun, bucket: str, tmp_path: Path) -> None:
    compare_run(tmp_path, in_folder, Place(f"{bucket}/w", f"{bucket}/w", "s3.conf"))


def test_hdfs_has_the_bits_of_a_folder(in_folder: FolderRun, hdfs_place: str, tmp_path: Path) -> None:
    compare_run(tmp_path, in_folder, Place(f"{hdfs_place}/w", f"{hdfs_place}/w"))


def test_a_metastore_has_the_bits_of_a_folder(in_folder: FolderRun, tmp_path: Path) -> None:
    settings = name_metastore(tmp_path)
    place = Place(SCHEMA, settings["spark.sql.warehouse.dir"], settings=settings)
    compare_run(tmp_path, in_folder, place)
