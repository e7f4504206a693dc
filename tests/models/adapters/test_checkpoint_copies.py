"""A fit whose driver's host is lost goes on elsewhere from copies on a real S3 server, to the same bits."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recbench_spark.errors import StoreError
from recbench_spark.models.adapters import fit_files
from recbench_spark.models.adapters.factor_models import fit_factors
from recbench_spark.models.adapters.fit_files import (
    copy_checkpoints,
    fetch_checkpoints,
    keep_copies,
)
from recbench_spark.models.adapters.model_adapter import ModelAdapter
from recbench_spark.models.fits.tasks import FIT_FILES
from recbench_spark.models.networks.factors import make_pairs
from recbench_spark.models.networks.settings import LightGcnModel
from recbench_spark.models.settings import ModelConfig
from recbench_spark.night.model_fits import hold_fit
from recbench_spark.storage.arrow_store import ArrowStore
from recbench_spark.storage.leases import Lease, hold_lease
from recbench_spark.storage.objects import list_objects, put_if_absent, write_bytes
from recbench_spark.storage.publish import replace_text
from tests.waiting import wait_until


def write_weights(folder: Path, text: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("best", "last"):
        replace_text(folder / f"{name}.safetensors", f"{name} {text}")


def test_the_newest_copy_counts_and_the_host_that_made_it_keeps_it(bucket: str, tmp_path: Path) -> None:
    place, here, there = f"{bucket}/fit", tmp_path / "here" / "c", tmp_path / "there" / "c"
    with hold_lease(place, lambda: False) as lease:
        assert lease is not None
        here.mkdir(parents=True)
        assert not fetch_checkpoints(place, here) and not copy_checkpoints(lease, here)
        write_weights(here, "one")
        assert copy_checkpoints(lease, here) and not fetch_checkpoints(place, here)
        write_weights(here, "two")
        assert copy_checkpoints(lease, here)
        assert len({name.split("/")[0] for name in list_objects(place) if "/" in name}) == 1
    assert fetch_checkpoints(place, there) and (there / "last.safetensors").read_text() == "last two"
    assert not fetch_checkpoints(place, there)
    write_weights(there, "three")
    later = Lease(place, lease.epoch + 1, b"{}")
    put_if_absent(later.file, later.content)
    with pytest.raises(StoreError, match="another run has taken over"):
        copy_checkpoints(lease, there)
    assert copy_checkpoints(later, there) and fetch_checkpoints(place, here)
    assert (here / "best.safetensors").read_text() == "best three"


def test_a_damaged_copy_is_said_and_passed_over(bucket: str, tmp_path: Path) -> None:
    place, here, there = f"{bucket}/fit", tmp_path / "here" / "c", tmp_path / "there" / "c"
    lines: list[str] = []
    with hold_lease(place, lambda: False) as lease:
        assert lease is not None
        write_weights(here, "one")
        assert copy_checkpoints(lease, here)
    name = next(name for name in list_objects(place) if name.endswith("best.safetensors"))
    write_bytes(f"{place}/{name}", b"else one")
    assert not fetch_checkpoints(place, there, lines.append) and not there.exists()
    write_weights(there, "two")
    with hold_lease(place, lambda: False) as lease:
        assert lease is not None
        with keep_copies(lease, there, lines.append):
            pass
    assert (there / "last.safetensors").read_text() == "last two"
    pattern = r"a copy of checkpoints cannot be used, so the fit goes on from ([a-z ]+): .*best.safetensors"
    begins = [match[1] for line in lines if (match := re.match(pattern, line))]
    assert begins == ["the beginning", "what this host has"], lines


@dataclass(frozen=True)
class Split:
    """The part of a split that a lease reads."""

    store: Any
    journal: None = None
    lease: Any = None


class Fitted(ModelAdapter[ModelConfig]):
    """A model that is saved when a list says so."""

    keeps_checkpoints = True
    done: list[bool]

    def key(self, data: Any) -> str:
        return "fit-1"

    def is_saved(self, data: Any) -> bool:
        return bool(self.done)


def test_a_fit_goes_on_on_another_host(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fit_files, "LOOK_SECONDS", 0.05)
    draw = np.random.default_rng(1)
    pairs = make_pairs(draw.integers(0, 40, 600), draw.integers(0, 30, 600), 40, 30)
    settings = LightGcnModel(
        name="m", kind="lightgcn", dims=4, layers=2, epochs=4, batch=64, rate=0.02, validation=0.2
    )
    whole = fit_factors(pairs, settings, tmp_path / "whole", lambda _: None)
    store = ArrowStore(bucket)
    data: Any = Split(store)
    adapter, said, work = Fitted(settings), list[str](), f"{bucket}/{FIT_FILES}/fit-1/work"
    adapter.done = []

    def stop_when_copied(text: str) -> None:
        if "epoch 2:" in text:
            wait_until(lambda: "current.txt" in list(list_objects(work)))
            raise OSError("the host is gone")

    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "one"))
    with pytest.raises(OSError, match="gone"), hold_fit(adapter, data) as fit:
        assert fit is not None
        fit_factors(pairs, settings, fit.lease.work, stop_when_copied)
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "two"))
    with hold_fit(adapter, data) as fit:
        assert fit is not None
        again = fit_factors(pairs, settings, fit.lease.work, said.append)
        adapter.done.append(True)
    assert any("resuming at epoch" in line for line in said), said
    assert again.tobytes() == whole.tobytes()
    assert not list(list_objects(work)), "a fit that is done leaves no lease"
