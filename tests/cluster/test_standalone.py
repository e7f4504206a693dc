"""A night on a standalone cluster, shipped as a team would ship it, that loses an executor half-way."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
import yaml
from deltalake import DeltaTable

from recbench_spark.config import Benchmark, parse
from recbench_spark.storage.store import Store
from tests.cluster.processes import (
    PATIENCE,
    ROOT,
    SPARK_HOME,
    Cluster,
    bare_python,
    cluster,
    package_zip,
    start_process,
)
from tests.nights import models, run

pytestmark = [pytest.mark.usefixtures("own_jvm"), pytest.mark.slow]

TINY: dict[str, Any] = {
    "name": "tiny",
    "dataset": {
        "name": "tiny",
        "reader": "world",
        "world": {"users": 200, "items": 60, "interactions": 4000, "open_loop": 500, "seed": 3},
    },
    "split": {"protocol": "RO_RS", "seed": 5},
    # Not ALS: MLlib's sums depend on how many blocks it makes, and so on the cluster.
    "models": models("popular", "item_knn", "truth"),
    "evaluation": {
        "metrics": ["ndcg", "auc", "coverage"],
        "k": [5, 10],
        "parts": ["test", "open_loop"],
        "slices": [{"key": "popularity", "of": "popularity"}],
        "bootstrap": {"replicates": 50},
    },
}
KEY = ["model", "part", "metric", "definition", "k", "slice_key", "slice_value"]
VALUES = ["value", "stderr", "ci_low", "ci_high", "n"]

ON_THIS_MACHINE = {
    "spark.executor.cores": 1,
    "spark.task.cpus": 1,
    "spark.executor.memory": "700m",
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": 4,
    "spark.databricks.delta.snapshotPartitions": 1,
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": 64,
    # As in tests/conftest.py: compiling takes longer than the few rows of this night.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
}
"""Otherwise the settings are those of conf/spark/cluster.conf and gpu.conf."""


def visible_metrics(warehouse: Path) -> pd.DataFrame:
    """Rows of succeeded runs, read without Spark."""
    runs, metrics = (DeltaTable(str(warehouse / name)).to_pandas() for name in ("runs", "metrics"))
    good = runs[runs.status == "succeeded"][["run_id", "model"]]
    return metrics.merge(good, on="run_id").sort_values(KEY).reset_index(drop=True)[KEY + VALUES]


def pretend_gpu(folder: Path) -> Path:
    script = folder / "gpus.sh"
    script.write_text("""#!/bin/sh\necho '{"name": "gpu", "addresses": ["0"]}'\n""")
    script.chmod(0o755)
    return script


def environment_archive(folder: Path, python: Path) -> Path:
    """An archive with bin/python in it, as venv-pack and conda-pack make them."""
    launcher = folder / "python"
    launcher.write_text(f'#!/bin/sh\nexec {python} "$@"\n')
    launcher.chmod(0o755)
    path = folder / "env.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        archive.add(launcher, "bin/python")
    return path


def submit(
    place: Cluster, folder: Path, python: Path, night: dict[str, Any], confs: tuple[str, ...]
) -> list[str]:
    """The command of docs/how_to/cluster.md, for a night and with some of our files of Spark's settings."""
    conf = folder / "night.conf"
    conf.write_text("".join((ROOT / "conf" / "spark" / f"{name}.conf").read_text() for name in confs))
    config = folder / f"{night['name']}.yaml"
    config.write_text(yaml.safe_dump(night))
    settings = [part for key, value in ON_THIS_MACHINE.items() for part in ("--conf", f"{key}={value}")]
    return [
        *(str(SPARK_HOME / "bin" / "spark-submit"), "--master", place.url, "--properties-file", str(conf)),
        *settings,
        *("--py-files", str(package_zip(folder))),
        *("--archives", f"{environment_archive(folder, python)}#env"),
        *(str(ROOT / "jobs" / "recbench.py"), "nightly", "--config", str(config)),
        *("--warehouse", str(folder / "warehouse"), "--logical-date", "2026-01-01"),
    ]


def test_a_night_that_loses_an_executor_gives_the_numbers_of_a_local_one(spark, tmp_path: Path) -> None:
    python = bare_python(tmp_path / "bare")
    alone = [str(python), "-c", "import recbench_spark"]
    without = subprocess.run(alone, cwd=tmp_path, env={}, capture_output=True, check=False)
    assert b"No module named 'recbench_spark'" in without.stderr
    gpus = {
        "spark.worker.resource.gpu.amount": "1",
        "spark.worker.resource.gpu.discoveryScript": str(pretend_gpu(tmp_path)),
    }
    python_of = {"PYSPARK_PYTHON": "./env/bin/python", "PYSPARK_DRIVER_PYTHON": str(python)}
    with cluster(tmp_path, workers=2, settings=gpus) as place:
        command = submit(place, tmp_path, python, TINY, ("cluster", "gpu"))
        with start_process(command, tmp_path / "driver.log", tmp_path, **python_of) as driver:
            driver.wait_for("rank popular, item_knn, truth")
            first = place.executors()
            assert len(first) == 2
            subprocess.run(["kill", "-9", str(first[0])], check=True)
            driver.wait_for(lambda: len(place.executors()) == 2 and place.executors() != first)
            assert driver.popen.wait(PATIENCE) == 0, driver.remarks[-4000:]
        logs = place.executor_logs()
    assert len(logs) == 3
    if not torch.cuda.is_available():
        assert any("Spark gave GPU 0 to this task, torch sees none: counting on CPU" in log for log in logs)

    here = Store(spark, str(tmp_path / "here"))
    assert run(here, parse(Benchmark, TINY, "test")).outcome.failed == {}
    metrics, wanted = visible_metrics(tmp_path / "warehouse"), visible_metrics(Path(here.root))
    assert not metrics.duplicated(KEY).any() and len(metrics) > 50
    pd.testing.assert_frame_equal(metrics, wanted, check_exact=True)
    for table in (
        "splits",
        "items",
        "user_blocks",
        "manifests",
        "embeddings",
        "similarities",
        "rankings",
        "user_metrics",
    ):
        rows = [
            len(DeltaTable(str(root / table)).to_pandas())
            for root in (tmp_path / "warehouse", Path(here.root))
        ]
        assert rows[0] == rows[1] > 0, table
    runs = DeltaTable(str(tmp_path / "warehouse" / "runs")).to_pandas()
    assert sorted(runs.model) == ["item_knn", "popular", "truth"]
    assert set(runs.status) == {"succeeded"}


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    """The helper ends all processes it starts, also children that left the process group."""
    own_group = "subprocess.Popen(['sleep', '600'], preexec_fn=lambda: os.setpgid(0, 0))"
    code = f"import os, subprocess, time; {own_group}; time.sleep(600)"
    with start_process([sys.executable, "-c", code], tmp_path / "log", tmp_path) as process:
        process.wait_for(lambda: len(process.children("sleep")) == 2)  # python names it too
    assert process.children() == []
