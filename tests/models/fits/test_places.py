"""Folders of fits are stored relative to their root, and found in today's place alone."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from recbench_spark.models.fits.table import find_place
from recbench_spark.models.fits.tasks import FitTask, read_earlier_row
from recbench_spark.storage.uris import read_tail


def write_fit(root: Path, files: str) -> None:
    folder = root / "fit_files" / "ab"
    folder.mkdir(parents=True)
    (folder / "fit.json").write_text(json.dumps({"status": "succeeded", "files": files}))


@pytest.mark.parametrize(
    "stored",
    ["fit_files/ab", "scratch:fit_files/ab", "/o/fit_files/x/fit_files/ab", "s3a://b/fit_files/ab"],
)
def test_only_the_end_of_a_stored_path_counts(stored) -> None:
    assert read_tail(stored, "fit_files") == "fit_files/ab"
    with pytest.raises(ValueError, match="not below"):
        read_tail("/elsewhere/ab", "fit_files")


def test_the_old_place_is_never_read(tmp_path) -> None:
    old, new, scratch = tmp_path / "old", tmp_path / "new", tmp_path / "scratch"
    stored = f"{old}/fit_files/ab"
    write_fit(old, stored)
    store = SimpleNamespace(files_root=str(new), scratch=str(scratch))
    assert find_place(store, stored) == f"{new}/fit_files/ab"  # which is gone: never the old one
    write_fit(scratch, stored)
    assert find_place(store, stored) == f"{scratch}/fit_files/ab"
    write_fit(new, stored)
    assert find_place(store, stored) == f"{new}/fit_files/ab"
    task = FitTask("ab", "m", {"kind": "means"}, 0, None, ("train",), ("test",), folder=f"{new}/fit_files")
    row = read_earlier_row(task)
    assert row is not None and row["files"] == "fit_files/ab"
