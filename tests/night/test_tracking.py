"""The link to MLflow: what is logged where it is installed, and a warning where it is not."""

from __future__ import annotations

import io
import json
import os
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pydantic
import pytest

from recbench_spark.night.tracking import (
    TrackedRun,
    log_night,
    make_tracked_run,
    mlflow_metric_name,
    read_tracked_runs,
)
from recbench_spark.runtime.journal import Journal
from recbench_spark.schemas import METRICS
from tests.nights import Ran, small

ROOT = Path(__file__).resolve().parents[2]
ROW = {"run_id": "r1", "model": "popular", "logical_date": "2026-01-01"}
NUMBERS = [
    {"part": "test", "metric": "ndcg", "k": 10, "definition": "v1;ideal=k", "value": 0.25, "ci_low": 0.125,
     "ci_high": 0.5, "n": 8},
    {"part": "test", "metric": "coverage", "k": None, "definition": "v1", "value": 0.75, "ci_low": None,
     "ci_high": None, "n": 8},
]  # fmt: skip


def make_run(numbers: list[dict[str, Any]]) -> TrackedRun:
    names = [*ROW, *("suite", "model_kind", "model_version", "dataset", "split", "config_hash")]
    names += ["run_key", "split_id", "code_version", "attempt"]
    return make_tracked_run({**dict.fromkeys(names), **ROW}, numbers)


def test_beside_each_metric_stand_its_interval_users_and_definition() -> None:
    run = make_run(NUMBERS)
    assert run.metrics == {
        "test/ndcg_at_10": 0.25,
        "test/ndcg_at_10_ci_low": 0.125,
        "test/ndcg_at_10_ci_high": 0.5,
        "test/ndcg_at_10_n": 8.0,
        "test/coverage": 0.75,
        "test/coverage_n": 8.0,
    }
    assert run.tags["recbench.definition.test/ndcg_at_10"] == "v1;ideal=k"
    assert run.tags["recbench.run_id"] == "r1" and run.params["model"] == "popular"


def test_a_night_is_logged_whole(small_night: Ran) -> None:
    runs = read_tracked_runs(small_night.store.rows, small_night.outcome.run_ids, (10,))
    (popular,) = [run for run in runs if run.params["model"] == "popular"]
    filters = [("run_id", "=", small_night.outcome.run_ids["popular"]), ("estimator", "=", "holdout")]
    rows = [row for row in small_night.store.rows(METRICS, filters) if row["slice_key"] is None]
    (ndcg,) = [row for row in rows if (row["part"], row["metric"], row["k"]) == ("test", "ndcg", 10)]
    for suffix, name in (("", "value"), ("_ci_low", "ci_low"), ("_ci_high", "ci_high"), ("_n", "n")):
        assert popular.metrics[f"test/ndcg_at_10{suffix}"] == ndcg[name]
    assert popular.tags["recbench.definition.test/ndcg_at_10"] == ndcg["definition"]
    kept = [row for row in rows if row["k"] in (10, None)]
    assert sum(name.endswith("_n") for name in popular.metrics) == len(kept) < len(rows)


@pytest.mark.parametrize(
    ("key", "name"), [(("test", "ndcg", 10), "test/ndcg_at_10"), (("test", "auc", None), "test/auc")]
)
def test_names_of_metrics(key: tuple[str, str, int | None], name: str) -> None:
    assert mlflow_metric_name(*key) == name


@pytest.mark.skipif(find_spec("mlflow") is not None, reason="mlflow is installed here")
def test_without_mlflow_a_night_is_warned_and_goes_on(small_night: Ran) -> None:
    said = io.StringIO()
    done = log_night(
        "file:///nowhere", small_night.store.rows, small(), small_night.outcome.run_ids, Journal(said)
    )
    assert not done
    assert "warning: cannot log to MLflow at file:///nowhere: ModuleNotFoundError" in said.getvalue()


@pytest.mark.skipif(
    "RECBENCH_MLFLOW_PYTHON" not in os.environ, reason="no environment with mlflow-skinny named"
)
def test_with_mlflow_runs_stand_in_its_store(tmp_path: Path) -> None:
    """In an environment of its own, since mlflow is not a requirement: RECBENCH_MLFLOW_PYTHON names it.

    400 numbers are more than one request takes.
    """
    many = [{**NUMBERS[0], "k": k, "value": k / 512} for k in range(1, 401)]
    run = make_run([*many, NUMBERS[1]])
    site = Path(pydantic.__file__).parents[1]
    uri = f"file://{tmp_path}/mlruns"
    code = [
        "import json, sys",
        f"sys.path += {[str(ROOT), str(site)]!r}",
        "from recbench_spark.night.tracking import TrackedRun, log_runs",
        f"log_runs({uri!r}, 'demo', [{run!r}])",
        "import mlflow",
        "(found,) = mlflow.search_runs(experiment_names=['demo'], output_format='list')",
        "data = found.data",
        "print(json.dumps([data.metrics, data.params, data.tags]))",
    ]
    command = [os.environ["RECBENCH_MLFLOW_PYTHON"], "-c", "\n".join(code)]
    # MLflow 3 needs a setting that allows a folder.
    env = {**os.environ, "MLFLOW_ALLOW_FILE_STORE": "true"}
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr
    metrics, params, tags = json.loads(done.stdout.splitlines()[-1])
    assert metrics == run.metrics and len(metrics) == 4 * 400 + 2
    assert params["model"] == "popular"
    assert {name: tags[name] for name in run.tags} == run.tags
