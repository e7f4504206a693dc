"""A night with lists through indexes: runs of their own, exact through `flat`, lossy through others."""

from __future__ import annotations

import sys
from typing import Any

import pyarrow.parquet as pq
import pytest

from recbench_spark.config import Benchmark, parse
from recbench_spark.errors import ConfigError, MissingError
from recbench_spark.night.benchmark_checks import check_benchmark
from recbench_spark.night.run_keys import identify_model_inputs, list_unkeyed
from recbench_spark.retrieval import faiss_indexes
from recbench_spark.schemas import CEILINGS, METRICS, RETRIEVAL_RUNS, RUNS
from recbench_spark.storage.arrow_store import ArrowStore
from tests.nights import read_rows, run

DOCUMENT: dict[str, Any] = {
    "name": "retrieved",
    "dataset": {
        "name": "world",
        "reader": "world",
        "world": {"users": 60, "items": 80, "interactions": 1500, "open_loop": 300},
    },
    "models": [
        {"name": "als", "kind": "als", "rank": 4, "iterations": 2},
        {"name": "popular", "kind": "popular"},
    ],
    "retrieval": {
        "models": ["als"],
        "length": 20,
        "indexes": [
            {"name": "exact", "kind": "flat", "index_parts": 2},
            {"name": "ivf_1", "kind": "ivf", "cells": 8, "probes": 1},
            {"name": "hash", "kind": "lsh", "bits": 3, "bands": 4, "theta": 2, "always": 0.1},
        ],
    },
    "evaluation": {"parts": ["test"], "metrics": ["ndcg", "recall"], "k": [5, 10], "uncut": False},
}


RETRIEVED = {
    "name": "x",
    "kind": "retrieved",
    "base": {"name": "als", "kind": "als"},
    "index": {"name": "h", "kind": "lsh"},
    "length": 20,
}


@pytest.mark.full
def test_a_night_measures_lists_through_indexes(tmp_path) -> None:
    pytest.importorskip("faiss")
    store = ArrowStore(str(tmp_path))
    ran = run(store, parse(Benchmark, DOCUMENT, "test"))
    assert not ran.outcome.failed
    names = {row.run_id: row.model for row in read_rows(store, RUNS)}
    assert set(names.values()) == {"als", "popular", "als.exact", "als.ivf_1", "als.hash"}
    rows = [row for row in read_rows(store, METRICS) if row.slice_key is None]
    values = {(names[row.run_id], row.metric, row.k): row.value for row in rows}
    for metric in ("ndcg", "recall"):
        for k in (5, 10):
            assert values["als.exact", metric, k] == values["als", metric, k]
            assert 0 < values["als.ivf_1", metric, k] < values["als", metric, k]
    best = {
        names[row.run_id]: row for row in read_rows(store, CEILINGS) if (row.metric, row.k) == ("ndcg", 10)
    }
    assert best.keys() == set(names.values())
    assert best["als"].ceiling >= best["als.exact"].ceiling > best["als.ivf_1"].ceiling > 0
    assert best["als"].reach > best["als.exact"].reach > best["als.ivf_1"].reach > 0
    costs = {(names[row.run_id], row.k): row for row in read_rows(store, RETRIEVAL_RUNS)}
    assert costs.keys() == {(f"als.{index}", 10) for index in ("exact", "ivf_1", "hash")}
    exact, lossy = costs["als.exact", 10], costs["als.ivf_1", 10]
    assert exact.recall == 1.0 and exact.stderr == 0.0 and exact.n == lossy.n > 0
    assert 0.1 < lossy.recall < 1.0 and lossy.stderr > 0 and lossy.items == exact.items
    folders = sorted(path for path in (tmp_path / "fit_files").iterdir() if "-index-" in path.name)
    assert len(folders) == 2 + 1 + 1, "one for each part of each index"
    ids = {
        id for folder in folders for id in pq.read_table(folder / "items.parquet")["item_id"].to_pylist()
    }
    assert len(ids) == exact.items
    assert lossy.candidates < exact.items and lossy.bytes > 0 and lossy.queries_per_second > 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"retrieval": {"models": ["asl"], "indexes": [{"name": "x", "kind": "flat"}]}}, "no model 'asl'"),
        ({"evaluation": {"k": [10]}}, "uncut: false"),
        ({"retrieval": DOCUMENT["retrieval"] | {"recall": 0.9}}, "chosen on the part valid"),
        (
            {"models": [*DOCUMENT["models"], {"name": "als.hash", "kind": "popular"}]},
            "under a name of its own",
        ),
        (
            {"retrieval": None, "models": [RETRIEVED], "evaluation": {"k": [10]}},
            "uncut: false",
        ),
        (
            {"retrieval": None, "models": [RETRIEVED | {"length": 5}]},
            "shorter than the largest cut-off, 10",
        ),
        (
            {"models": [{"name": "als", "kind": "item_knn"}]},
            "scores of 'als' are no products",
        ),
        ({"evaluation": {"k": [30], "uncut": False}}, "shorter than the largest cut-off, 30"),
    ],
)
def test_sections_that_cannot_be(changes, message) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(Benchmark, DOCUMENT | changes, "test")


@pytest.mark.parametrize(
    ("axis", "value"),
    [
        ("candidates", "uniform"),
        ("ties", "expected"),
        ("ndcg_ties", "expected"),
        ("ap_ties", "last_rank"),
    ],
)
def test_definitions_that_a_list_cannot_have_are_refused(axis, value) -> None:
    pytest.importorskip("faiss")
    evaluation = DOCUMENT["evaluation"] | {"definition": {axis: value}}
    with pytest.raises(ConfigError, match=f"definition.{axis} is '{value}'"):
        check_benchmark(parse(Benchmark, DOCUMENT | {"evaluation": evaluation}, "test"))


def test_an_index_without_its_library_is_refused_before_spark(monkeypatch) -> None:
    """Only kinds of faiss need it."""
    monkeypatch.setitem(sys.modules, "faiss", None)
    faiss_indexes._import_faiss.cache_clear()
    with pytest.raises(MissingError, match="needs the library faiss") as caught:
        check_benchmark(parse(Benchmark, DOCUMENT, "test"))
    assert "pip install 'faiss-cpu>=1.12'" in caught.value.hint
    hashes = {**DOCUMENT["retrieval"], "indexes": DOCUMENT["retrieval"]["indexes"][2:]}
    check_benchmark(parse(Benchmark, DOCUMENT | {"retrieval": hashes}, "test"))


def test_a_document_written_from_a_benchmark_gives_the_same_models() -> None:
    benchmark = parse(Benchmark, DOCUMENT, "test")
    again = parse(Benchmark, benchmark.model_dump(mode="json"), "test")
    assert again.models == benchmark.models and len(again.models) == 5


def test_the_base_counts_in_the_settings_of_a_run() -> None:
    """Settings of the base enter the key of a run, and so do paths of a base that is read from files."""
    other = [DOCUMENT["models"][0] | {"rank": 5}]
    keys = {
        str(parse(Benchmark, DOCUMENT | {"models": models}, "test").models[-1].model_dump())
        for models in (DOCUMENT["models"], other)
    }
    assert len(keys) == 2
    later = [DOCUMENT["models"][0] | {"provenance": {"year": 2026}}]
    (left_out,) = {
        str(one.model_dump(exclude=list_unkeyed(one)))
        for models in (DOCUMENT["models"], later)
        for one in parse(Benchmark, DOCUMENT | {"models": models}, "test").models[-1:]
    }
    assert "provenance" not in left_out
    files = [{"name": "als", "kind": "embeddings", "users": "u.parquet", "items": "i.parquet"}]
    retrieved = parse(Benchmark, DOCUMENT | {"models": files}, "test").models[-1]
    assert identify_model_inputs(lambda path, **_: f"content of {path}", retrieved) == {
        "model base.users": "content of u.parquet",
        "model base.items": "content of i.parquet",
    }
