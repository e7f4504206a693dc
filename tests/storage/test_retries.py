"""Commits of tasks' files that another writer has overtaken are tried again with a new choice of files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from recbench_spark.errors import StoreError
from recbench_spark.schemas import REJECTS
from recbench_spark.storage import delta_files, retries
from recbench_spark.storage.arrow_store import ArrowStore
from recbench_spark.storage.delta_tables import list_files
from recbench_spark.storage.retries import commit_files

PARTITION = {"split_id": "s"}


def write_file(place: str) -> delta_files.File:
    rows = pa.table({"file": ["a"], "line": ["1"], "reason": ["short"]})
    return delta_files.write_file(rows, place, PARTITION, rows.column_names)


@pytest.fixture
def place(tmp_path: Path) -> str:
    ArrowStore(str(tmp_path)).create(REJECTS)
    return str(tmp_path / "rejects")


def test_files_are_chosen_again_after_another_writer(place: str) -> None:
    file, others = write_file(place), [write_file(place), write_file(place)]
    seen: list[int] = []

    def choose(files: Sequence[delta_files.File], there: Sequence[str]) -> Sequence[delta_files.File]:
        seen.append(len(there))
        if others:  # another run is faster, each time with a file more
            other = others.pop()
            commit_files(place, [other], PARTITION, other.path, lambda new, _: new)
        return files

    assert commit_files(place, [file], PARTITION, "mine", choose)
    assert seen == [0, 1, 2] and len(list_files(place, PARTITION)) == 3
    assert not commit_files(place, [file], PARTITION, "mine", choose)


def test_another_error_is_raised_at_once(place: str) -> None:
    def choose(files: Sequence[delta_files.File], there: Sequence[str]) -> Sequence[delta_files.File]:
        raise KeyError(len(there))

    with pytest.raises(KeyError):
        commit_files(place, [write_file(place)], PARTITION, "mine", choose)


def test_a_writer_that_always_comes_second_is_said(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "ATTEMPTS", 2)

    def choose(files: Sequence[delta_files.File], there: Sequence[str]) -> Sequence[delta_files.File]:
        other = write_file(place)
        commit_files(place, [other], PARTITION, other.path, lambda new, _: new)
        return files

    with pytest.raises(StoreError, match=r"cannot write .*rejects: ") as error:
        commit_files(place, [write_file(place)], PARTITION, "mine", choose)
    assert error.value.hint == "run again"
