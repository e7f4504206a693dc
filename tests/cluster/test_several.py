"""A model fitted by two processes of a standalone cluster, a task of Spark each, on two workers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from deltalake import DeltaTable

from tests.cluster.processes import PATIENCE, bare_python, cluster, start_process
from tests.cluster.test_standalone import TINY, submit

pytestmark = [pytest.mark.usefixtures("own_jvm"), pytest.mark.slow]

FITTED = {"kind": "mf_bpr", "dims": 8, "epochs": 3, "batch": 256, "rate": 0.05, "validation": 0.1}
NIGHT: dict[str, Any] = {
    **TINY,
    "name": "several",
    "models": [
        {"name": "alone", **FITTED},
        {"name": "both", "processes": 2, **FITTED},
    ],
    "evaluation": {"metrics": ["ndcg"], "k": [10], "parts": ["test"]},
}


def vectors(warehouse: Path) -> dict[str, dict[tuple[str, str], np.ndarray]]:
    """Read the vectors by model, then by side and id."""
    by_model: dict[str, dict[tuple[str, str], np.ndarray]] = {}
    for row in DeltaTable(str(warehouse / "embeddings")).to_pandas().itertuples():
        by_model.setdefault(row.model_id, {})[row.side, row.id] = np.asarray(row.vector)
    return by_model


def test_two_processes_on_two_workers_fit_what_one_fits(tmp_path: Path) -> None:
    python = bare_python(tmp_path / "bare")
    python_of = {"PYSPARK_PYTHON": "./env/bin/python", "PYSPARK_DRIVER_PYTHON": str(python)}
    with cluster(tmp_path, workers=2, settings={}) as place:
        command = submit(place, tmp_path, python, NIGHT, ("cluster",))
        with start_process(command, tmp_path / "driver.log", tmp_path, **python_of) as driver:
            driver.wait_for("both: train")
            ranks = set()
            while driver.popen.poll() is None:
                ranks |= {n for n, worker in enumerate(place.workers) if worker.children("torch")}
            assert driver.popen.wait(PATIENCE) == 0, driver.remarks[-4000:]
    assert ranks == {0, 1}
    assert len(re.findall(r"epoch 3: loss", driver.remarks)) == 2, driver.remarks[-4000:]
    alone, both = vectors(tmp_path / "warehouse").values()
    assert alone.keys() == both.keys() and len(alone) > 200
    apart = max(np.abs(alone[key] - both[key]).max() for key in alone)
    assert 0 < apart < 1e-5  # of vectors up to 1 long: to rounding, and not the same bits
