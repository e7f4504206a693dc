"""Indexes: flat equals exact lists, blocks of users change nothing, files are read back."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter

from recbench_spark.errors import ConfigError, DataError
from recbench_spark.ranking.kernels.products import exact_scores, make_pairing, make_products
from recbench_spark.retrieval import search
from recbench_spark.retrieval.interface import count_bytes
from recbench_spark.retrieval.kernels.candidates import ItemSets, RetrievedLists, measure_recall
from recbench_spark.retrieval.search import make_builder, search_lists, write_parts
from recbench_spark.retrieval.settings import AnyIndexSettings

KINDS: list[dict[str, Any]] = [
    {"kind": "flat"},
    {"kind": "ivf", "cells": 12, "probes": 5},
    {"kind": "hnsw", "candidates": 30},
    {"kind": "lsh", "bits": 4, "bands": 8},
]
FAISS = pytest.mark.skipif(
    "not __import__('importlib').util.find_spec('faiss')", reason="faiss is not installed"
)
SETTINGS = TypeAdapter(AnyIndexSettings)


def make_settings(**settings: Any) -> AnyIndexSettings:
    return SETTINGS.validate_python({"name": "x", **settings})


def make_world(seed: int = 1, *, items: int = 400, users: int = 70, dims: int = 8, kind: str = "dot"):
    rng = np.random.default_rng(seed)
    vectors = (rng.normal(size=(items, dims)) * rng.gamma(2.0, size=(items, 1))).astype(np.float32)
    vectors[items // 2 : items // 2 + 9] = vectors[3]  # copies tie
    scored = rng.random(items) < 0.9
    products = make_products(vectors, rng.normal(size=items), scored, kind=kind)
    rows = [np.flatnonzero(rng.random(items) < 0.05 * (u % 3)) for u in range(users)]
    masked = ItemSets(np.cumsum([0] + [len(r) for r in rows]), np.concatenate(rows).astype(np.int32))
    return products, rng.normal(size=(users, dims)).astype(np.float32), masked


def make_exact_lists(products, vectors, masked, top_k) -> RetrievedLists:
    """Sort all scores, user by user."""
    pairing = make_pairing(products, vectors)
    items_uk, scores_uk = np.full((len(vectors), top_k), -1), np.full((len(vectors), top_k), np.nan)
    for u in range(len(vectors)):
        hidden = masked.items_p[masked.offsets_u[u] : masked.offsets_u[u + 1]]
        left = np.setdiff1d(np.flatnonzero(products.scored_i), hidden)
        scores = exact_scores(pairing, np.full(len(left), u), left)
        order = np.argsort(-scores, kind="stable")[:top_k]
        items_uk[u, : len(order)], scores_uk[u, : len(order)] = left[order], scores[order]
    return RetrievedLists(items_uk, scores_uk)


def open_index(settings: AnyIndexSettings, products, folder: Path):
    return [make_builder(settings).read(part) for part in write_parts(settings, products, folder)]


@FAISS
@pytest.mark.parametrize("kind", ["dot", "cosine"])
@pytest.mark.parametrize("parts", [1, 3])
def test_flat_equals_exact_lists(tmp_path, kind, parts) -> None:
    products, vectors, masked = make_world(kind=kind)
    readers = open_index(make_settings(kind="flat", index_parts=parts), products, tmp_path)
    lists = search_lists(readers, products, vectors, masked, 10)
    wanted = make_exact_lists(products, vectors, masked, 10)
    np.testing.assert_array_equal(lists.items_uk, wanted.items_uk)
    np.testing.assert_array_equal(lists.scores_uk, wanted.scores_uk)


@FAISS
def test_flat_is_exact_where_float32_is_not(tmp_path) -> None:
    """Scores that differ beyond the digits of float32: a first search does not hold the best items."""
    rng = np.random.default_rng(3)
    vectors = (1e4 + rng.normal(size=(500, 8)) * 1e-3).astype(np.float32)
    products = make_products(vectors)
    queries = (1.0 + rng.random((20, 8))).astype(np.float32)
    nobody = ItemSets(np.zeros(21, np.int64), np.zeros(0, np.int32))
    lists = search_lists(
        open_index(make_settings(kind="flat"), products, tmp_path), products, queries, nobody, 5
    )
    np.testing.assert_array_equal(lists.items_uk, make_exact_lists(products, queries, nobody, 5).items_uk)


@FAISS
@pytest.mark.parametrize("settings", KINDS, ids=lambda one: one["kind"])
def test_blocks_of_users_change_nothing(tmp_path, settings) -> None:
    """Another cut of the users, an index read twice, one built twice: the same lists."""
    products, vectors, masked = make_world(users=67)
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
    readers, again = (open_index(make_settings(**settings), products, folder) for folder in folders)
    whole = search_lists(readers, products, vectors, masked, 10)
    for size in (1, 17, 40):
        for start in range(0, 67, size):
            users = np.arange(start, min(start + size, 67))
            rows = [masked.items_p[masked.offsets_u[u] : masked.offsets_u[u + 1]] for u in users]
            hidden = ItemSets(np.cumsum([0] + [len(r) for r in rows]), np.concatenate(rows))
            lists = search_lists(again, products, vectors[users], hidden, 10)
            np.testing.assert_array_equal(lists.items_uk, whole.items_uk[users])
    recall = measure_recall(whole.scores_uk, make_exact_lists(products, vectors, masked, 10).scores_uk, 10)
    assert 0.5 < recall.mean() <= 1.0
    files = [
        {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()} for folder in folders
    ]
    assert files[0] == files[1]
    assert count_bytes(folders[0]) == sum(map(len, files[0].values()))


@FAISS
def test_wider_searches_find_more(tmp_path) -> None:
    products, vectors, masked = make_world(items=2000, users=200)
    exact = make_exact_lists(products, vectors, masked, 10)
    for name, values in {"probes": (1, 4, 10**6), "theta": (3.0, 2.0, 1.0)}.items():
        recalls = []
        for value in values:
            kind = {"probes": "ivf", "theta": "lsh"}[name]
            folder = tmp_path / f"{name}{value}"
            folder.mkdir()
            readers = open_index(make_settings(kind=kind, **{name: value}), products, folder)
            lists = search_lists(readers, products, vectors, masked, 10)
            recalls.append(np.mean(measure_recall(lists.scores_uk, exact.scores_uk, 10)))
        assert recalls == sorted(recalls) and recalls[0] < recalls[-1]
    assert recalls[-1] <= 1.0


def test_lists_are_short_where_an_index_returns_few(tmp_path) -> None:
    products, vectors, masked = make_world()
    settings = make_settings(kind="lsh", bits=20, bands=2, always=0.0)
    lists = search_lists(open_index(settings, products, tmp_path), products, vectors, masked, 10)
    assert (lists.items_uk[:, -1] == -1).any()
    np.testing.assert_array_equal(lists.items_uk == -1, np.isnan(lists.scores_uk))


@FAISS
def test_catalogues_of_one_item(tmp_path) -> None:
    products = make_products(np.ones((1, 4), np.float32))
    nobody = ItemSets(np.zeros(3, np.int64), np.zeros(0, np.int32))
    for kind in ("flat", "ivf", "hnsw", "lsh"):
        folder = tmp_path / kind
        folder.mkdir()
        readers = open_index(make_settings(kind=kind), products, folder)
        lists = search_lists(readers, products, np.ones((2, 4), np.float32), nobody, 3)
        assert lists.items_uk.tolist() == [[0, -1, -1]] * 2


@FAISS
def test_more_cells_or_parts_than_items_are_refused(tmp_path) -> None:
    products = make_products(np.ones((3, 4), np.float32))
    with pytest.raises(ConfigError, match="4 cells for 3 items"):
        write_parts(make_settings(kind="ivf", cells=4), products, tmp_path)
    (tmp_path / "b").mkdir()
    with pytest.raises(DataError, match="5 parts of an index for 3 items"):
        write_parts(make_settings(kind="flat", index_parts=5), products, tmp_path / "b")


@pytest.mark.parametrize(
    "settings",
    [
        {"kind": "lsh", "bands": 4, "theta": 5.0},
        {"kind": "lsh", "bits": 64},
        {"kind": "ivf", "cells": 0},
        {"kind": "ivf", "probe": 3},
        {"kind": "hnsw", "links": 1},
        {"kind": "annoy"},
    ],
)
def test_settings_that_cannot_be(settings) -> None:
    with pytest.raises(ValueError, match=r"theta|bits|cells|probe|links|annoy"):
        make_settings(**settings)


# ------------------------------------------------------------------------------- odd vectors


@FAISS
def test_queries_without_length_are_searched_in_small_groups(tmp_path, monkeypatch) -> None:
    """All products of a zero query tie: all items are candidates, of few users at a time."""
    products, vectors, masked = make_world(items=300, users=70)
    vectors[::2] = 0.0
    monkeypatch.setattr(search, "CELLS", 1000)
    monkeypatch.setattr(search, "LEAST_USERS", 3)
    groups = []
    monkeypatch.setattr(search, "join_sets", lambda sets: groups.append(len(sets[0].offsets_u)) or sets[0])
    readers = open_index(make_settings(kind="flat"), products, tmp_path)
    lists = search_lists(readers, products, vectors, masked, 10)
    np.testing.assert_array_equal(lists.items_uk, make_exact_lists(products, vectors, masked, 10).items_uk)
    assert max(groups) <= 3 + 1


@FAISS
def test_flat_is_exact_where_float32_overflows(tmp_path) -> None:
    """Products beyond float32 are infinite or no numbers for faiss; the exact scores are numbers."""
    rng = np.random.default_rng(3)
    products = make_products((rng.normal(size=(300, 8)) * 1e20).astype(np.float32))
    vectors = (rng.normal(size=(6, 8)) * 1e20).astype(np.float32)
    nobody = ItemSets(np.zeros(7, np.int64), np.zeros(0, np.int32))
    lists = search_lists(
        open_index(make_settings(kind="flat"), products, tmp_path), products, vectors, nobody, 10
    )
    np.testing.assert_array_equal(lists.items_uk, make_exact_lists(products, vectors, nobody, 10).items_uk)


@FAISS
@pytest.mark.parametrize("settings", KINDS, ids=lambda one: one["kind"])
def test_proposed_items_of_a_user_do_not_depend_on_the_block(tmp_path, settings) -> None:
    """One user with many masked items makes no other user's search deeper."""
    products, vectors, _ = make_world(users=40)
    rows = [np.arange(150) if u == 7 else np.arange(u % 5) for u in range(40)]
    masked = ItemSets(np.cumsum([0] + [len(r) for r in rows]), np.concatenate(rows).astype(np.int32))
    readers = open_index(make_settings(**settings), products, tmp_path)
    whole = search_lists(readers, products, vectors, masked, 10).proposed_u
    for u in range(40):
        alone = ItemSets(np.array([0, len(rows[u])]), rows[u].astype(np.int32))
        assert search_lists(readers, products, vectors[u : u + 1], alone, 10).proposed_u == whole[u]


@FAISS
@pytest.mark.parametrize("settings", KINDS, ids=lambda one: one["kind"])
@pytest.mark.parametrize("kind", ["dot", "cosine"])
def test_vectors_of_zeros_have_places_like_others(tmp_path, settings, kind) -> None:
    """Items and queries of zeros are indexed and searched; what a list holds has its exact score."""
    products, vectors, masked = make_world(items=200, users=30)
    rows = products.vectors_id.copy()
    rows[::3] = 0.0
    products = make_products(rows, kind=kind)
    vectors[::4] = 0.0
    lists = search_lists(
        open_index(make_settings(**settings), products, tmp_path), products, vectors, masked, 10
    )
    pairing = make_pairing(products, vectors)
    for u in range(30):
        listed = lists.items_uk[u][lists.items_uk[u] >= 0]
        hidden = masked.items_p[masked.offsets_u[u] : masked.offsets_u[u + 1]]
        assert len(set(listed)) == len(listed) and not set(listed) & set(hidden)
        scores = exact_scores(pairing, np.full(len(listed), u), listed)
        assert lists.scores_uk[u, : len(listed)].tolist() == scores.tolist()
        assert sorted(scores, reverse=True) == scores.tolist() and not np.isnan(scores).any()
    if settings["kind"] == "flat":
        wanted = make_exact_lists(products, vectors, masked, 10)
        np.testing.assert_array_equal(lists.items_uk, wanted.items_uk)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_vectors_that_are_not_finite_are_refused_with_their_number(tmp_path, wrong) -> None:
    products, vectors, masked = make_world()
    rows = products.vectors_id.copy()
    rows[[3, 5]] = wrong
    with pytest.raises(DataError, match="2 item vectors hold NaN or infinite numbers"):
        make_products(rows)
    readers = open_index(make_settings(kind="lsh"), products, tmp_path)
    vectors[7] = wrong
    with pytest.raises(DataError, match="1 user vectors hold NaN or infinite numbers"):
        search_lists(readers, products, vectors, masked, 10)


def test_an_index_without_postings_proposes_what_is_always_in(tmp_path) -> None:
    """All items are always candidates: no bucket has one, and the lists are exact. Or no item is one."""
    products, vectors, masked = make_world(users=20)
    wanted = make_exact_lists(products, vectors, masked, 10)
    for share, first_level in ((1.0, "counting"), (1.0, "pivots"), (0.0, "counting"), (0.0, "pivots")):
        folder = tmp_path / f"{share}{first_level}"
        folder.mkdir()
        settings = make_settings(
            kind="lsh", always=share, bits=63, bands=1, theta=1, first_level=first_level
        )
        (reader,) = open_index(settings, products, folder)
        lists = search_lists([reader], products, vectors, masked, 10)
        if share:
            assert not len(reader.postings.items_p)
            np.testing.assert_array_equal(lists.items_uk, wanted.items_uk)
        else:
            assert (lists.items_uk == -1).all() and not lists.proposed_u.any()


@FAISS
def test_a_search_of_cells_starts_no_thread(tmp_path) -> None:
    """The default of faiss is 32 threads for each search of a mapped file."""
    faiss = importlib.import_module("faiss")
    products, _, _ = make_world()
    (reader,) = open_index(make_settings(kind="ivf"), products, tmp_path)
    assert faiss.downcast_InvertedLists(reader.index.invlists).prefetch_nthread == 0
    assert faiss.omp_get_max_threads() == 1


BUILD = """
import sys
from pathlib import Path
import numpy as np
from recbench_spark.ranking.kernels.products import make_products
from recbench_spark.retrieval.search import write_parts
from tests.retrieval.test_indexes import make_settings

def build(vectors, name):
    products = make_products(vectors)
    (Path(sys.argv[2]) / name).mkdir()
    write_parts(make_settings(kind=sys.argv[3], **({"cells": 64} if sys.argv[3] == "ivf" else {})),
                products, Path(sys.argv[2]) / name)

def measure():
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024

vectors = np.load(sys.argv[1], mmap_mode="r")
build(vectors[:20_000], "small")  # as many as k-means reads: its buffers are no part of the growth
before = measure()
build(vectors, "large")
print((measure() - before) / vectors.nbytes)
"""


@pytest.mark.full
@FAISS
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peaks are read from Linux")
@pytest.mark.parametrize("kind", ["flat", "ivf"])
def test_a_build_holds_the_items_of_a_part_twice_beside_the_mapped_file(tmp_path, kind) -> None:
    """Docstrings of tasks say so. Sums for each item, such as lengths, are a quarter of 32 numbers."""
    np.save(tmp_path / "v.npy", np.random.default_rng(1).normal(size=(400_000, 64)).astype(np.float32))
    command = [sys.executable, "-c", BUILD, str(tmp_path / "v.npy"), str(tmp_path), kind]
    more = {"PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run(command, env=os.environ | more, capture_output=True, text=True, check=True)
    assert 1.0 < float(ended.stdout) < 1 + 2 + 0.5
