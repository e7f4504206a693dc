"""The link to MLflow: what is logged where it is installed, and a warning where it is not."""

from __future__ import annotations

import io
import os
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pydantic
import pytest

from recbench_spark.nightly.tracking import TrackedRun, log_night, mlflow_metric_name
from recbench_spark.runtime.journal import Journal
from tests.nights import Ran, small

ROOT = Path(__file__).resolve().parents[2]
RUN = TrackedRun(
    "popular 2026-01-01", {"model": "popular"}, {"recbench.run_id": "r1"}, {"test/ndcg_at_10": 0.25}
)


@pytest.mark.parametrize(
    ("key", "name"), [(("test", "ndcg", 10), "test/ndcg_at_10"), (("test", "auc", None), "test/auc")]
)
def test_names_of_metrics(key: tuple[str, str, int | None], name: str) -> None:
    assert mlflow_metric_name(*key) == name


@pytest.mark.skipif(find_spec("mlflow") is not None, reason="mlflow is installed here")
def test_without_mlflow_a_night_is_warned_and_goes_on(small_night: Ran) -> None:
    said = io.StringIO()
    done = log_night(
        "file:///nowhere", small_night.store, small(), small_night.outcome.run_ids, Journal(said)
    )
    assert not done
    assert "warning: cannot log to MLflow at file:///nowhere: ModuleNotFoundError" in said.getvalue()


@pytest.mark.skipif(
    "RECBENCH_MLFLOW_PYTHON" not in os.environ, reason="no environment with mlflow-skinny named"
)
def test_with_mlflow_runs_stand_in_its_folder(tmp_path: Path) -> None:
    """In an environment of its own, since mlflow is not a requirement: RECBENCH_MLFLOW_PYTHON names it."""
    site = Path(pydantic.__file__).parents[1]
    code = [
        "import sys",
        f"sys.path += {[str(ROOT), str(site)]!r}",
        "from recbench_spark.nightly.tracking import TrackedRun, log_runs",
        f"log_runs('file://{tmp_path}/mlruns', 'demo', [{RUN!r}])",
    ]
    command = [os.environ["RECBENCH_MLFLOW_PYTHON"], "-c", "\n".join(code)]
    # MLflow 3 needs a setting that allows a folder.
    env = {**os.environ, "MLFLOW_ALLOW_FILE_STORE": "true"}
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr
    (metric,) = (tmp_path / "mlruns").glob("*/*/metrics/test/ndcg_at_10")
    assert float(metric.read_text().split()[1]) == 0.25
    (param,) = (tmp_path / "mlruns").glob("*/*/params/model")
    assert param.read_text() == "popular"
