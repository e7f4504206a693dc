"""Revisions: a raised one enters the hashes of what follows from it, and no other."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from recbench_spark.config import Benchmark
from recbench_spark.core import revisions
from recbench_spark.core.definitions import Definition
from recbench_spark.models.settings import make_model
from recbench_spark.night import code_provenance
from recbench_spark.night.night import BenchmarkNight, make_run_key
from recbench_spark.night.run_keys import hash_split
from tests.nights import SMALL, small

HELD_OUT = {"holdout": "n_given", "n": 4, "held_out": {"of": "users", "test": 0.3}}
SGD = {"name": "m", "kind": "sgd_mf"}
RIDGE = {"unobserved_weight": 0.1, "regulariser": 0.1}
BPR = {"name": "m", "kind": "mf_bpr"}
UNIFORM = {**SMALL["evaluation"], "definition": {"candidates": "uniform"}}
LOG = {"name": "d", "reader": "world"}


def hashes(benchmark: Benchmark, name: str) -> dict[str, str]:
    """split_id, model_id and run_key of one model."""
    nothing: Any = SimpleNamespace(spark=None)
    split_id, inputs = hash_split(nothing, benchmark)
    night = BenchmarkNight(
        nothing, benchmark, benchmark.evaluation.resolve(), split_id, inputs, date(2026, 1, 1)
    )
    (model,) = (model for model in benchmark.models if model.name == name)
    return {"split": split_id, "model": night.data.key(model), "run": make_run_key(night, model)}


def raise_revision(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(revisions.REVISIONS, name, revisions.REVISIONS.get(name, 1) + 1)


EVERYTHING = {"split", "model", "run"}
FITTED = {"method": "logistic_regression", "item_features": "f.csv"}


@pytest.mark.parametrize(
    ("revised", "benchmark", "model", "moved"),
    [
        ("splits", small(), "popular", EVERYTHING),
        ("ids", small(), "popular", EVERYTHING),
        ("worlds", small(), "popular", EVERYTHING),
        ("propensities", small(), "popular", EVERYTHING),
        ("lightgcn", small(), "popular", set()),
        ("item_knn", small(), "item_knn", {"model", "run"}),
        ("item_knn", small(), "popular", set()),
        ("als", small(), "als_4", {"model", "run"}),
        ("descent", small(), "als_4", set()),
        ("descent", small(models=[{"name": "m", "kind": "mf_bpr"}]), "m", {"model", "run"}),
        ("rankings", small(), "popular", {"run"}),
        ("metrics", small(), "popular", {"run"}),
        ("exposure", small(), "popular", set()),
        ("exposure", small(evaluation={"exposure": {}}), "popular", {"run"}),
        ("logistic_regression", small(evaluation={"exposure": {}}), "popular", set()),
        (
            "logistic_regression",
            small(evaluation={"exposure": {"propensities": FITTED}}),
            "popular",
            {"run"},
        ),
        ("sampled", small(), "popular", set()),
        ("sampled", small(evaluation=UNIFORM), "popular", {"run"}),
        ("held_out_users", small(models=[SGD]), "m", set()),
        ("held_out_users", small(models=[SGD], split=HELD_OUT), "m", {"run"}),
        ("held_out_users", small(models=[{**SGD, "regularisers": 0.0}], split=HELD_OUT), "m", set()),
        ("held_out_users", small(models=[BPR], split=HELD_OUT), "m", set()),
        ("held_out_users", small(models=[{**BPR, "fold_in": RIDGE}], split=HELD_OUT), "m", {"run"}),
        ("held_out_users", small(split=HELD_OUT), "popular", set()),
        ("comparisons", small(), "popular", set()),
        ("a new name", small(), "popular", set()),
    ],
)
def test_a_revision_enters_the_hashes_it_affects(
    revised: str, benchmark: Benchmark, model: str, moved: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = hashes(benchmark, model)
    raise_revision(revised, monkeypatch)
    after = hashes(benchmark, model)
    assert {name for name in before if before[name] != after[name]} == moved


def test_a_model_behind_an_index_depends_on_the_fold_in_of_its_base() -> None:
    index = {"name": "flat", "kind": "flat"}
    name = "held_out_users"
    for base, split, expected in (
        (SGD, HELD_OUT, True),
        (SGD, SMALL["split"], False),
        (BPR, HELD_OUT, False),
    ):
        document = {"name": "i", "kind": "retrieved", "base": base, "index": index, "length": 10}
        benchmark = small(models=[base], split=split)
        revised = code_provenance.run_revisions(benchmark, Definition(), make_model(document, "tests"))
        assert (name in revised) == expected


def test_the_reader_of_a_log_enters_its_split(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = {"name": "d", "reader": "lightgcn", "path": str(tmp_path)}
    before = code_provenance.split_revisions(small(dataset=file).dataset)
    assert before["lightgcn"] == revisions.REVISIONS["lightgcn"] > 1 and "worlds" not in before
    raise_revision("lightgcn", monkeypatch)
    assert code_provenance.split_revisions(small(dataset=file).dataset) != before


def test_events_of_a_log_enter_its_split() -> None:
    log = {"name": "d", "reader": "csv", "path": "log.csv"}
    events = {"column": "event", "weights": {"view": 1, "purchase": 5}, "targets": ["purchase"]}
    plain, weighed = (
        code_provenance.split_revisions(small(dataset=file).dataset)
        for file in (log, log | {"events": events})
    )
    assert weighed == plain | {"events": revisions.REVISIONS["events"]} and "events" not in plain


def test_equal_revisions_are_equal_texts() -> None:
    benchmark = small()
    run = code_provenance.run_revisions(benchmark, Definition(), benchmark.models[0])
    assert code_provenance.format_revisions(run) == code_provenance.format_revisions(
        dict(reversed(run.items()))
    )


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ({}, {}, ()),
        ({"splits": 2}, {"splits": 2}, ()),
        ({}, {"splits": 1}, ()),
        ({}, {"splits": 2, "ids": 3}, ("ids 1 -> 3", "splits 1 -> 2")),
        ({"ids": 3}, {}, ("ids 3 -> 1",)),
    ],
)
def test_what_changed_in_words(
    before: dict[str, int], after: dict[str, int], words: tuple[str, ...]
) -> None:
    assert revisions.describe_changes(before, after) == words


@pytest.mark.parametrize(
    ("before", "after", "same"),
    [
        ({}, {}, True),
        ({"log": "content:1:9:aa"}, {"log": "content:1:9:aa"}, True),
        ({"log": "content:1:9:aa"}, {"log": "content:1:9:bb"}, False),
        ({"log": "delta:3"}, {"log": "delta:5f-7:aa"}, None),
        ({"log": "files:1:123:0123456789ab"}, {"log": "content:1:123:aa"}, None),
        ({"log": "delta:empty"}, {"log": "delta:5f-7:aa"}, None),
        (
            {"log": "delta:3", "slice": "content:1:9:aa"},
            {"log": "delta:5:aa", "slice": "content:1:9:b"},
            False,
        ),
        ({"log": "delta:3"}, {"log": "delta:5:aa", "candidates": "content:1:9:b"}, False),
    ],
)
def test_an_identity_of_older_code_does_not_say_that_the_data_changed(
    before: dict[str, str], after: dict[str, str], same: bool | None
) -> None:
    assert code_provenance.have_same_inputs(before, after) is same


def test_every_revision_says_what_changed() -> None:
    """A comment `N: ...` above each name for every N from 2 on."""
    noted: list[int] = []
    for line in Path(revisions.__file__).read_text().splitlines():
        text = line.strip()
        if text.startswith("# ") and text[2:3].isdigit():
            noted.append(int(text[2 : text.index(":")]))
        elif text.startswith('"') and text.endswith(","):
            name, _, revision = text.rstrip(",").partition(": ")
            assert noted == list(range(2, int(revision) + 1)), name
            noted = []
