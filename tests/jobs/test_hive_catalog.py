"""A night in a Hive metastore on Derby: tasks write, the driver commits, later sessions read by name."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import yaml

from recbench_spark.schemas import RUNS
from recbench_spark.storage.objects import holds_files
from tests.cluster.processes import PATIENCE, ROOT, SPARK_HOME, start_process
from tests.jobs.test_object_embed import LAYERS, inputs, read_vectors  # noqa: F401 (a fixture)
from tests.jobs.test_object_storage_night import GRAPH_SUITES
from tests.nights import TINY
from tools import compare_warehouses

pytestmark = [pytest.mark.usefixtures("own_jvm"), pytest.mark.slow]

SCHEMA = "spark_catalog.default"

SMALL = {"spark.master": "local[2]", "spark.sql.shuffle.partitions": "2", "spark.driver.memory": "1g"}

READER = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
runs = spark.sql("SELECT model FROM spark_catalog.default.runs WHERE status = 'succeeded' ORDER BY model")
print("rows", runs.collect())
print("comment", spark.sql("DESCRIBE spark_catalog.default.runs run_id").collect())
"""


def name_metastore(folder: Path, tables: str | None = None) -> dict[str, str]:
    """Return the settings of a metastore on Derby in a folder, whose schema `SCHEMA` lies at `tables`.

    By default the tables lie below the folder.
    """
    derby = f"jdbc:derby:;databaseName={folder / 'metastore'};create=true"
    return {
        "spark.sql.catalogImplementation": "hive",
        "spark.hadoop.javax.jdo.option.ConnectionURL": derby,
        "spark.sql.warehouse.dir": (tables or str(folder / "tables")).replace("s3://", "s3a://"),
    }


def submit(folder: Path, name: str, script: str, *flags: str, tables: str | None = None) -> str:
    """Run a script, or a command, by spark-submit with a metastore in a folder; return what it printed."""
    settings, file = {**name_metastore(folder, tables), **SMALL}, "local.conf"
    if tables and tables.startswith("s3"):
        file = "s3.conf"
        settings["spark.hadoop.fs.s3a.endpoint"] = os.environ["AWS_ENDPOINT_URL"]
        settings["spark.hadoop.fs.s3a.endpoint.region"] = os.environ["AWS_REGION"]
    command = [str(SPARK_HOME / "bin" / "spark-submit")]
    command += ["--properties-file", str(ROOT / "conf" / "spark" / file)]
    for key, value in settings.items():
        command += ["--conf", f"{key}={value}"]
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    own = {"PYTHONPATH": paths, "PYSPARK_PYTHON": sys.executable}
    words = [script] if script.endswith(".py") else [str(ROOT / "jobs" / "recbench.py"), script]
    with start_process([*command, *words, *flags], folder / f"{name}.log", folder, **own) as process:
        assert process.popen.wait(PATIENCE) == 0, process.remarks[-4000:]
        return (folder / f"{name}.log").read_text()


@pytest.fixture(params=["folder", "s3", "hdfs"])
def tables(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Place of the tables of a schema: a folder, or an address of a server on this machine."""
    if request.param == "folder":
        return str(tmp_path / "tables")
    root = request.getfixturevalue("bucket" if request.param == "s3" else "hdfs_place")
    return f"{root}/tables"


def test_a_night_in_a_metastore_has_the_bits_of_a_folder(tables: str, tmp_path: Path) -> None:
    config = tmp_path / "tiny.yaml"
    config.write_text(yaml.safe_dump(TINY))
    flags = ("--config", str(config), "--logical-date", "2026-01-01", "--warehouse")
    night = "nightly"
    submit(tmp_path, "catalog", night, *flags, SCHEMA, tables=tables)
    submit(tmp_path, "folder", night, *flags, str(tmp_path / "folder"))
    assert compare_warehouses.main([str(tmp_path / "folder"), tables]) == 0
    assert holds_files(f"{tables}/reports")
    reader = tmp_path / "reader.py"
    reader.write_text(READER)
    printed = submit(tmp_path, "reader", str(reader), tables=tables)
    assert "rows [Row(model='item_knn'), Row(model='popular')]" in printed
    (run_id,) = [column for column in RUNS.columns if column.name == "run_id"]
    assert run_id.comment in printed.partition("comment")[2]


def test_graphs_in_a_metastore_have_the_bits_of_a_folder(tmp_path: Path, inputs: Path) -> None:  # noqa: F811
    """Embeddings under each plan, the next night, walks, trained graph models and indexes."""
    config = tmp_path / "fitted.yaml"
    config.write_text(yaml.safe_dump(GRAPH_SUITES["fitted"]))
    embed = "embed"
    first, again = (str(inputs / f"{name}.parquet") for name in ("first", "again"))
    for warehouse, tables in ((SCHEMA, tmp_path / "tables"), (str(tmp_path / "w"), tmp_path / "w")):
        place, name = ("--warehouse", warehouse), tables.name
        submit(tmp_path, f"{name}-G", embed, *place, "--edges", first, *LAYERS, "--plan", "G")
        (model_id,) = read_vectors(str(tables))
        other = ("--edges", first, *LAYERS, "--plan", "S", "--seed", "3")
        submit(tmp_path, f"{name}-S", embed, *place, *other)
        night = ("--edges", again, *LAYERS, "--plan", "R", "--previous", model_id)
        submit(tmp_path, f"{name}-R", embed, *place, *night)
        walks = ("--edges", first, "--undirected", "--walks", "20", "--top", "3")
        submit(tmp_path, f"{name}-walks", "neighbourhoods", *place, *walks)
        fitted = ("--config", str(config), "--logical-date", "2026-01-01")
        submit(tmp_path, f"{name}-fitted", "nightly", *place, *fitted)
        assert len(read_vectors(str(tables))) >= 3
    assert compare_warehouses.main([str(tmp_path / "w"), str(tmp_path / "tables")]) == 0
