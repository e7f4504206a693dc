"""Adapters of all kinds and learning curves: who has them, by which fold-in, and who is refused."""

from __future__ import annotations

import pickle
from typing import Any, cast

import numpy as np
import pytest

from recbench_spark.config import Benchmark, WorldSettings, make_benchmark
from recbench_spark.core.definitions import Definition
from recbench_spark.errors import ConfigError
from recbench_spark.models.adapters.model_adapter import ModelAdapter, SplitData, make_adapter
from recbench_spark.models.prefix_vectors import (
    ConfidenceFoldIn,
    FoldInSettings,
    PairFoldIn,
    RidgeFoldIn,
)
from recbench_spark.models.rating.interface import FOLDING_KINDS
from recbench_spark.models.rating.kinds import learner_settings
from recbench_spark.models.settings import MODELS, list_kinds, make_model
from recbench_spark.storage.store import Store

LIKES = {"unobserved_weight": 0.2, "regulariser": 0.03}
VECTORS = {"users": "u.parquet", "items": "i.parquet"}
SPLIT = SplitData(cast("Store", None), "split", Definition(threshold=4.0), WorldSettings())

FOLD_INS: dict[str, tuple[dict[str, Any], FoldInSettings | None]] = {
    "popular": ({}, None),
    "random": ({}, None),
    "means": ({}, None),
    "item_knn": ({}, None),
    "als": ({}, ConfidenceFoldIn(0.05, 1.0, 4.0)),
    "mllib_als": ({}, ConfidenceFoldIn(0.05, 1.0, 4.0)),
    "mf_bpr": ({"fold_in": LIKES}, PairFoldIn(0.2, 0.03, threshold=4.0)),
    "lightgcn": ({"fold_in": {**LIKES, "frequency": 0.5}}, PairFoldIn(0.2, 0.03, 0.5, threshold=4.0)),
    "embeddings": ({**VECTORS, "fold_in": {"targets": "ratings", "regulariser": 0.3}}, RidgeFoldIn(0.3)),
    "als_wr": ({}, RidgeFoldIn(0.05, 0.05)),
    "sgd_mf": ({}, RidgeFoldIn(0.04, 0.04)),
    "implicit_als": ({}, PairFoldIn(0.1, 0.003, 1.0, 17, 4.0)),
}
"""Settings of each kind that has learning curves, and its fold-in."""

READERS = {"sasrec", "gru4rec", "memn2n"}
"""Kinds whose fold-in is a forward pass (test_sequence_fold_in.py)."""

REFUSED = {
    "bayesian_mf", "cornac", "gmf", "graph", "graphsage", "item_neighbours", "lists", "logistic_mf", "mlp",
    "neumf", "nsvd1", "pinsage", "rbm", "scores", "truth", "wmf",
}  # fmt: skip
"""Kinds of which no user is ranked by zeros."""

ELSEWHERE = {"published", "retrieved", "switch"}
"""Figures that nobody measures here, and systems made of other models."""

EXTRA = {"scores": {"path": "s.parquet"}, "lists": {"path": "l.parquet"}, "cornac": {"model": "BPR"}}


def adapter(kind: str, **settings: Any) -> ModelAdapter[Any]:
    return make_adapter(make_model({"name": "m", "kind": kind, **settings}, "models"))


def test_each_kind_has_curves_or_is_refused() -> None:
    ours = {kind for kind in list_kinds() if MODELS[kind].__module__.startswith("recbench_spark.")}
    built_in = ours - ELSEWHERE
    assert set(FOLD_INS) | READERS <= built_in <= set(FOLD_INS) | READERS | REFUSED


@pytest.mark.parametrize("kind", [*FOLD_INS, *sorted(READERS)])
def test_kinds_with_curves_pass(kind: str) -> None:
    chosen = adapter(kind, **FOLD_INS.get(kind, ({}, None))[0])
    assert chosen.folds_prefixes
    chosen.check_prefixes()


@pytest.mark.parametrize("kind", FOLD_INS)
def test_the_fold_in_has_the_settings_of_the_model(kind: str) -> None:
    settings, expected = FOLD_INS[kind]
    chosen = adapter(kind, **settings)
    if kind in FOLDING_KINDS:  # the adapter counts the items of the log, for which it needs Spark
        made: FoldInSettings | None = learner_settings(chosen.settings).make_fold_in(17, 4.0)
    else:
        made = chosen.make_fold_in(SPLIT)
    assert made == expected == pickle.loads(pickle.dumps(made))
    assert hash(made) == hash(expected)


@pytest.mark.parametrize("kind", sorted(REFUSED & set(list_kinds())))
def test_kinds_without_curves_are_named(kind: str) -> None:
    with pytest.raises(ConfigError, match=f"model m: kind '{kind}' cannot fold users in"):
        adapter(kind, **EXTRA.get(kind, {})).check_prefixes()


@pytest.mark.parametrize(("kind", "settings"), [("mf_bpr", {}), ("lightgcn", {}), ("embeddings", VECTORS)])
def test_a_missing_ridge_is_named(kind: str, settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="model m: learning curves need the ridge regression") as error:
        adapter(kind, **settings).check_prefixes()
    assert "fold_in: {unobserved_weight" in error.value.hint


def test_a_ridge_of_zero_is_named() -> None:
    with pytest.raises(ConfigError, match="model m: sgd_mf: a regulariser of 0"):
        adapter("sgd_mf", regularisers=0.0).check_prefixes()


def test_models_that_differ_in_fold_in_alone_share_a_fit() -> None:
    """The search of weight and regulariser on validation users fits once."""
    one, other = (
        make_model({"name": n, "kind": "mf_bpr", "fold_in": {**LIKES, "regulariser": r}}, "models")
        for n, r in (("a", 0.01), ("b", 0.1))
    )
    plain = make_model({"name": "c", "kind": "mf_bpr"}, "models")
    assert SPLIT.key(one) == SPLIT.key(other) == SPLIT.key(plain)
    assert one.model_dump() != other.model_dump() and "fold_in" not in plain.model_dump()


def test_a_model_of_another_package_brings_its_own_fold_in() -> None:
    """Items 12 and 30 have the digits (2, 1) and (0, 3); the second row counts three times as much."""
    outside = adapter("tests.outside_fold_in:MeanVectorModel", growth=3.0)
    outside.check_prefixes()
    fold_in = outside.make_fold_in(SPLIT)
    assert fold_in is not None
    vectors_id = np.array([[n % 10, n // 10] for n in range(40)], np.float32)
    folder = fold_in.make_folder(vectors_id, np.zeros(40), np.ones(40, bool))
    folded = folder.fold(np.array([0, 2]), np.array([12, 30]), np.array([5.0, 1.0]))
    assert folded.vectors_pd.tolist() == [[2.0, 1.0], [0.5, 2.5]]


def benchmark(split: dict[str, Any], **model: Any) -> Benchmark:
    models = [{"name": "theirs", "kind": "embeddings", "items": "i.parquet", **model}]
    document = {"name": "b", "dataset": {"name": "d", "reader": "world"}, "split": split, "models": models}
    return make_benchmark(document, [], "b.yaml")


HELD_OUT = {"holdout": "n_given", "n": 3, "held_out": {"of": "users", "test": 0.2}}


def test_item_vectors_alone_need_held_out_users() -> None:
    assert benchmark(HELD_OUT, fold_in=LIKES).models[0].model_dump()["users"] is None
    for split in ({}, {**HELD_OUT, "held_out": {"of": "items", "test": 0.2}}):
        with pytest.raises(ConfigError, match="model theirs: without users it ranks only users of"):
            benchmark(split, fold_in=LIKES)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "users: a path is missing"),
        ({"fold_in": {"regulariser": 0.1}}, "targets: likes needs unobserved_weight"),
        ({"fold_in": {**LIKES, "bias_regulariser": 1.0}}, "bias_regulariser belongs to targets: ratings"),
        ({"fold_in": {**LIKES, "targets": "ratings"}}, "unobserved_weight belongs to targets: likes"),
        (
            {"fold_in": {"targets": "ratings", "regulariser": 1, "frequency": 0.5}},
            "frequency belongs to targets: likes",
        ),
        ({"fold_in": {**LIKES, "regulariser": 0}}, "greater than 0"),
        ({"fold_in": LIKES, "similarity": "cosine"}, "scale the item vectors to length 1"),
    ],
)
def test_wrong_ridges_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        benchmark(HELD_OUT, **settings)


def test_models_of_likes_know_no_ratings() -> None:
    with pytest.raises(ConfigError, match=r"fold_in\.targets: likes"):
        adapter("mf_bpr", fold_in={"targets": "ratings", "regulariser": 1.0})
