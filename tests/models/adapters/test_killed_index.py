"""A process that builds an index is killed in the midst: the next one completes the same files."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import TypeAdapter

from recbench_spark.errors import StoreError
from recbench_spark.models.adapters import retrieved
from recbench_spark.models.adapters.retrieved import SECONDS_FILE, RetrievedScorer, RetrievedSource
from recbench_spark.ranking.kernels.positives import ItemLists
from recbench_spark.ranking.kernels.scorers import UserBlock
from recbench_spark.ranking.sources import DotSource
from recbench_spark.retrieval.settings import AnyIndexSettings
from recbench_spark.storage.objects import list_folders, list_objects, read_bytes, write_bytes
from recbench_spark.storage.shared_arrays import SharedRows

SETTINGS = TypeAdapter(AnyIndexSettings)
DIMS, ITEMS = 8, 300
SMALL_INDEX = {"name": "x", "kind": "lsh", "bits": 3, "bands": 6}
MEASURED = {SECONDS_FILE, "seal.json"}
"""Files of measured seconds, and of their digest."""

KILLED = """
import os, signal, sys
from pathlib import Path
from tests.models.adapters import test_killed_index as test
from recbench_spark.models.adapters import retrieved

def die_after(name):
    whole = getattr(retrieved, name)
    def die(*given, **more):
        whole(*given, **more)
        os.kill(os.getpid(), signal.SIGKILL)
    setattr(retrieved, name, die)

class Dying:
    def __init__(self, builder):
        self.builder = builder
    def build(self, items, folder):
        self.builder.build(items, folder)
        os.kill(os.getpid(), signal.SIGKILL)

rows, place, settings, moment = sys.argv[1:]
if moment == "files":
    make = retrieved.make_builder
    retrieved.make_builder = lambda settings: Dying(make(settings))
else:
    die_after(moment)
test.open_scorer(rows, place, test.SETTINGS.validate_json(settings))
"""


def write_rows(folder: Path) -> str:
    rng = np.random.default_rng(4)
    columns = {
        "item_index": pa.array(np.arange(ITEMS), pa.int32()),
        "item_id": [f"i{n}" for n in range(ITEMS)],
        "vector": pa.array(list(rng.normal(size=(ITEMS, DIMS)).astype(np.float32)), pa.list_(pa.float32())),
        "bias": rng.normal(size=ITEMS),
    }
    pq.write_table(pa.table(columns), folder / "rows.parquet")
    return str(folder / "rows.parquet")


def open_scorer(rows: str, place: str, settings: AnyIndexSettings) -> RetrievedScorer:
    """Open the model behind its index, as a task of a new process does."""
    retrieved._open_scorer.cache_clear()
    source = RetrievedSource(DotSource(SharedRows("rows", (rows,)), ITEMS, DIMS), settings, 10, place)
    scorer = source.scorer()
    assert isinstance(scorer, RetrievedScorer)
    return scorer


def read_files(folder: Path) -> dict[str, bytes]:
    """Bytes of the files of all indexes in a folder, by name; no file of anything else."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths if path.name not in MEASURED}


def search(scorer: RetrievedScorer) -> list[list[int]]:
    vectors = np.random.default_rng(5).normal(size=(20, DIMS)).astype(np.float32)
    return scorer.retrieve(UserBlock(np.arange(20), vectors), ItemLists.empty(20)).items_uk.tolist()


KINDS = {
    "ivf": {"kind": "ivf", "cells": 9, "probes": 2, "index_parts": 2},
    "hnsw": {"kind": "hnsw", "candidates": 20},
    "lsh": {"kind": "lsh", "bits": 3, "bands": 6},
}
ENDS = [("files", "warehouse"), ("write_seal", "host"), ("files", "host"), ("write_seal", "warehouse")]
"""Moments at which the build ends, and its places: all for one kind, for the others each once."""


@pytest.mark.full
@pytest.mark.parametrize(
    ("kind", "moment", "where"),
    [(kind, *end) for kind in KINDS for end in (ENDS if kind == "lsh" else ENDS[:2])],
)
def test_a_killed_build_is_completed_by_the_next_process(
    tmp_path, monkeypatch, kind, moment, where
) -> None:
    index = KINDS[kind]
    if kind != "lsh":
        pytest.importorskip("faiss")
    rows, settings = write_rows(tmp_path), {"name": "x", **index}
    places = {}
    for name in ("killed", "whole"):
        (tmp_path / name / "host").mkdir(parents=True)
        places[name] = "" if where == "host" else str(tmp_path / name / "index-")
    begun = start_and_kill(tmp_path / "killed" / "host", rows, places["killed"], settings, moment)
    assert begun, "files lie there, and no index"
    results = []
    for name in ("killed", "whole"):
        monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / name / "host"))
        started = time.monotonic()
        results.append(search(open_scorer(rows, places[name], SETTINGS.validate_python(settings))))
        assert time.monotonic() - started < 50, "nobody waits for a process that has ended"
    assert results[0] == results[1]
    made = [find_indexes(tmp_path / name) for name in ("killed", "whole")]
    assert [path.name for path in made[0]] == [path.name for path in made[1]]
    assert len(made[0]) == index.get("index_parts", 1)
    assert list(map(read_files, made[0])) == list(map(read_files, made[1]))
    if where == "warehouse":
        left = sorted(path.name for path in (tmp_path / "killed").iterdir())
        assert left == ["host", *(path.name for path in made[0])], "no lease and no work is left"


def find_indexes(place: Path) -> list[Path]:
    """Folders of complete indexes, by name; one of an attempt has a dot in its name."""
    marks = [*place.rglob("whole"), *place.glob("host/*/index-*/seal.json")]
    return sorted({path.parent for path in marks if "." not in path.parent.name})


def start_and_kill(host: Path, rows: str, place: str, settings: dict[str, Any], moment: str) -> bool:
    """Run a process that is killed in the midst of its build; return whether it has left anything."""
    more = {"SPARK_LOCAL_DIRS": str(host), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", KILLED, rows, place, json.dumps(settings), moment]
    ended = subprocess.run(
        command, env=os.environ | more, capture_output=True, text=True, check=False, timeout=120
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert not find_indexes(host.parent)
    return any("index" in str(path.relative_to(host.parent)) for path in host.parent.rglob("*"))


def fail_to_build(*_: object) -> None:
    raise AssertionError("this host builds")


def test_an_index_on_object_storage_is_built_by_one_host_and_fetched_by_the_next(
    tmp_path, monkeypatch, bucket
) -> None:
    settings = SETTINGS.validate_python(
        {"name": "x", "kind": "lsh", "bits": 3, "bands": 6, "index_parts": 2}
    )
    rows, place, results = write_rows(tmp_path), f"{bucket}/fit_files/s-index-", []
    for host in ("one", "two", "three"):
        monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / host))
        results.append(search(open_scorer(rows, place, settings)))
        monkeypatch.setattr(retrieved, "_build_part", fail_to_build)
    assert results[0] == results[1] == results[2]
    folders = list_folders(f"{bucket}/fit_files")
    assert len(folders) == 2 and all("-index-" in name for name in folders)
    file = next(name for name in list_objects(place.rpartition("/")[0]) if name.endswith("items.parquet"))
    content = read_bytes(f"{bucket}/fit_files/{file}")
    assert content is not None
    write_bytes(f"{bucket}/fit_files/{file}", content[:-1] + b"x")
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "four"))
    with pytest.raises(StoreError, match="other bytes than were written"):
        open_scorer(rows, place, settings)


def test_a_build_for_object_storage_is_killed_and_the_next_host_builds(
    tmp_path, monkeypatch, bucket
) -> None:
    rows, place = write_rows(tmp_path), f"{bucket}/fit_files/s-index-"
    settings = SMALL_INDEX
    (tmp_path / "killed" / "host").mkdir(parents=True)
    assert start_and_kill(tmp_path / "killed" / "host", rows, place, settings, "write_seal")
    assert not any(name.endswith("current.txt") for name in list_objects(bucket))
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "next"))
    result = search(open_scorer(rows, place, SETTINGS.validate_python(settings)))
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "own"))
    assert result == search(open_scorer(rows, "", SETTINGS.validate_python(settings)))
