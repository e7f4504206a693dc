"""A night in a Hive metastore on Derby: tasks write, the driver commits, later sessions read by name."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import yaml

from recbench_spark.schemas import RUNS
from tests.cluster.processes import PATIENCE, ROOT, SPARK_HOME, start_process
from tests.nights import TINY
from tools import compare_warehouses

pytestmark = [pytest.mark.usefixtures("own_jvm"), pytest.mark.slow]

SCHEMA = "spark_catalog.default"

READER = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
runs = spark.sql("SELECT model FROM spark_catalog.default.runs WHERE status = 'succeeded' ORDER BY model")
print("rows", runs.collect())
print("comment", spark.sql("DESCRIBE spark_catalog.default.runs run_id").collect())
"""


def name_metastore(folder: Path) -> dict[str, str]:
    """Return the settings of a metastore on Derby whose schema `SCHEMA` lies below a folder."""
    derby = f"jdbc:derby:;databaseName={folder / 'metastore'};create=true"
    return {
        "spark.sql.catalogImplementation": "hive",
        "spark.hadoop.javax.jdo.option.ConnectionURL": derby,
        "spark.sql.warehouse.dir": str(folder / "tables"),
    }


def submit(folder: Path, name: str, script: Path, *flags: str) -> str:
    """Run a script by spark-submit with a metastore in a folder; return what it printed."""
    settings = {**name_metastore(folder), "spark.master": "local[2]", "spark.sql.shuffle.partitions": "2"}
    command = [str(SPARK_HOME / "bin" / "spark-submit")]
    command += ["--properties-file", str(ROOT / "conf" / "spark" / "local.conf")]
    for key, value in settings.items():
        command += ["--conf", f"{key}={value}"]
    own = {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
    with start_process([*command, str(script), *flags], folder / f"{name}.log", folder, **own) as process:
        assert process.popen.wait(PATIENCE) == 0, process.remarks[-4000:]
        return (folder / f"{name}.log").read_text()


def test_a_night_in_a_metastore_has_the_bits_of_a_folder(tmp_path: Path) -> None:
    config = tmp_path / "tiny.yaml"
    config.write_text(yaml.safe_dump(TINY))
    flags = ("--config", str(config), "--logical-date", "2026-01-01", "--warehouse")
    night = ROOT / "jobs" / "nightly.py"
    submit(tmp_path, "catalog", night, *flags, SCHEMA)
    submit(tmp_path, "folder", night, *flags, str(tmp_path / "folder"))
    assert compare_warehouses.main([str(tmp_path / "folder"), str(tmp_path / "tables")]) == 0
    assert list((tmp_path / "tables" / "reports").glob("tiny-*.html"))
    reader = tmp_path / "reader.py"
    reader.write_text(READER)
    printed = submit(tmp_path, "reader", reader)
    assert "rows [Row(model='item_knn'), Row(model='popular')]" in printed
    (run_id,) = [column for column in RUNS.columns if column.name == "run_id"]
    assert run_id.comment in printed.partition("comment")[2]
