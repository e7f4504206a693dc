"""Weights of trained models: a model without them, or with others, is not taken as it is."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from recbench_spark.errors import StoreError
from recbench_spark.models.adapters.fit_files import WEIGHTS_FILE, keep_weights
from recbench_spark.models.adapters.trained_graphs import TrainedGraphModels
from recbench_spark.models.fits.tasks import FIT_FILES
from recbench_spark.storage.leases import hold_lease


class Trained(TrainedGraphModels):
    """A model whose vectors are in the table."""

    def key(self, data: Any) -> str:
        return "m-1"


def test_a_graph_model_is_saved_with_its_own_weights_alone(tmp_path: Path) -> None:
    store = SimpleNamespace(files_root=str(tmp_path), folder=tmp_path, has=lambda *_: True)
    data: Any = SimpleNamespace(store=store, lease=None)
    model = Trained(None)
    assert not model.is_saved(data), "a run was killed between vectors and weights"
    folder = tmp_path / FIT_FILES / "m-1"
    folder.parent.mkdir()
    with hold_lease(folder, lambda: False) as lease:
        assert lease is not None
        for name in (WEIGHTS_FILE, "checkpoint"):
            (lease.work / name).write_text("weights")
        data.lease = lease
        keep_weights(data, "m-1", lambda: None)
    assert model.is_saved(data) and not (folder / "checkpoint").exists()
    status = (folder / WEIGHTS_FILE).stat()
    (folder / WEIGHTS_FILE).write_text("weightz")
    os.utime(folder / WEIGHTS_FILE, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert model.is_saved(data), "a file of this size and time is read once a process"
    os.utime(folder / WEIGHTS_FILE)
    with pytest.raises(StoreError, match="other bytes than were written") as error:
        model.is_saved(data)
    assert error.value.hint == f"remove {folder}: the next run fits the model again"
    (folder / "seal.json").unlink()
    assert model.is_saved(data), "of an older version"
