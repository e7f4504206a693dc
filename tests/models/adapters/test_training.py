"""Models trained here: popularity counts, ALS shapes, item-kNN against numpy."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from functools import partial
from pathlib import Path
from unittest.mock import Mock
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recbench_spark.config import ItemKnnModel, MllibAlsModel
from recbench_spark.engine.local import LocalEngine
from recbench_spark.errors import DataError
from recbench_spark.models.adapters import baselines, item_knn, mllib_als
from recbench_spark.models.adapters.item_knn import COLUMNS, SIMILARITIES, count_item_users, cut_histories
from recbench_spark.ranking.kernels.positives import ItemLists
from recbench_spark.ranking.kernels.scorers import UserBlock
from recbench_spark.ranking.known_items import KnownItems, share_rows
from recbench_spark.ranking.sources import NeighbourSource
from recbench_spark.splits.audit import read_labelled
from recbench_spark.splits.labelled_rows import open_by_user
from recbench_spark.storage.blocks import PieceRows
from recbench_spark.storage.packed_blocks import read_partition_files
from recbench_spark.storage.scratch import keep_results, share_results
from recbench_spark.storage.shared_arrays import host_folder
from tests.rows import read_rows

N_ITEMS = 30


def ratings() -> list[tuple[str, str, float]]:
    draw = random.Random(4)
    return [
        (f"u{u}", f"i{i:02}", float(draw.randint(1, 5)))
        for u in range(50)
        for i in sorted({min(int(draw.expovariate(0.15)), N_ITEMS - 2) for _ in range(12)})
    ]


@pytest.fixture(scope="module")
def train(spark):
    return spark.createDataFrame(ratings(), "user_id string, item_id string, rating double").cache()


@pytest.fixture(scope="module")
def items(spark):
    """The catalogue; its last item is in no training row."""
    counts = {f"i{i:02}": 0 for i in range(N_ITEMS)}
    for _, item, _ in ratings():
        counts[item] += 1
    rows = [(item, n, count) for n, (item, count) in enumerate(counts.items())]
    return spark.createDataFrame(rows, "item_id string, item_index int, n_train long").cache()


def engine(workers: int = 1) -> LocalEngine:
    return LocalEngine(str(host_folder()), workers)


def keep(rows: pa.Table, folder: Path, pieces: int = 3) -> PieceRows:
    """Write rows to some files, and open them."""
    places = [(str(folder / f"{uuid4().hex}.parquet"), {}) for _ in range(pieces)]
    for n, (place, _) in enumerate(places):
        pq.write_table(rows.take(pa.array(range(n, len(rows), pieces))), place)
    return PieceRows(engine(), places, read_partition_files)


@pytest.fixture
def catalogue(tmp_path: Path) -> PieceRows:
    """The catalogue; its last item is in no training row."""
    counts = Counter(item for _, item, _ in ratings())
    ids = [f"i{i:02}" for i in range(N_ITEMS)]
    rows = {"item_id": ids, "item_index": range(N_ITEMS), "n_train": [counts[item] for item in ids]}
    return keep(pa.table(rows), tmp_path, 1)


def test_popularity_is_the_count_as_a_bias(catalogue: PieceRows) -> None:
    """An item without training rows has no row."""
    trained = baselines.train_popular(catalogue)
    assert trained.users is None and trained.similarities is None
    rows = [row for part in trained.items.each(pa.Table.to_pylist) for row in part]
    counts = Counter(item for _, item, _ in ratings())
    assert {row["item_id"]: (row["vector"], row["bias"]) for row in rows} == {
        item: ([], float(n)) for item, n in counts.items()
    }
    assert f"i{N_ITEMS - 1:02}" not in counts and len(rows) == len(counts)


@pytest.mark.parametrize("implicit", [True, False])
def test_als_gives_a_vector_to_each_user_and_item_it_saw(
    train, items, tmp_path: Path, implicit: bool
) -> None:
    model = MllibAlsModel(name="m", kind="mllib_als", rank=3, iterations=2, implicit=implicit)
    trained = mllib_als.train_als(train, items, model, 4.0, str(tmp_path))
    rows = [row for row in ratings() if row[2] >= 4 or not implicit]
    for side, place in (("user", 0), ("item", 1)):
        result = getattr(trained, f"{side}s").collect()
        assert sorted(row[f"{side}_id"] for row in result) == sorted({row[place] for row in rows})
        assert {len(row.vector) for row in result} == {3}
        assert np.isfinite([row.vector for row in result]).all()
        assert {row.bias for row in result} == {0.0}


def test_explicit_als_learns_the_ratings(spark, items, tmp_path: Path) -> None:
    """Ratings of rank one are found again, up to regularisation; many iterations overflow no stack."""
    rows = [(f"u{u}", f"i{i:02}", (1 + u % 3) * (1 + i % 2) * 0.5) for u in range(12) for i in range(8)]
    frame = spark.createDataFrame(rows, "user_id string, item_id string, rating double")
    model = MllibAlsModel(
        name="m", kind="mllib_als", rank=2, iterations=20, regularization=0.001, implicit=False
    )
    trained = mllib_als.train_als(frame, items, model, None, str(tmp_path))
    users = {row.user_id: np.array(row.vector) for row in trained.users.collect()}
    vectors = {row.item_id: np.array(row.vector) for row in trained.items.collect()}
    assert max(abs(users[u] @ vectors[i] - r) for u, i, r in rows) < 0.05


def test_als_without_relevant_rows_is_refused(train, items, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="model m: no training rows"):
        mllib_als.train_als(train, items, MllibAlsModel(name="m", kind="mllib_als"), 99.0, str(tmp_path))


def cosine(matrix_ui: np.ndarray, k: int) -> dict[tuple[int, int], float]:
    together = matrix_ui.T @ matrix_ui
    n_i = together.diagonal()
    result = {}
    for i in range(len(n_i)):
        others = [j for j in range(len(n_i)) if j != i and together[i, j]]
        weight = {j: together[i, j] / np.sqrt(n_i[i] * n_i[j]) for j in others}
        result |= {(i, j): weight[j] for j in sorted(others, key=lambda j: (-weight[j], j))[:k]}
    return result


def open_training(folder: Path) -> PieceRows:
    """All rows of a user in one of three files."""
    rows = pa.table(list(zip(*ratings(), strict=True)), ["user_id", "item_id", "rating"])
    rows = rows.append_column("part", pa.repeat("train", len(rows)))
    users = [int(user[1:]) % 3 for user in rows.column("user_id").to_pylist()]
    places = [(str(folder / f"train{n}.parquet"), {}) for n in range(3)]
    for n, (place, _) in enumerate(places):
        pq.write_table(rows.filter(pa.array([user == n for user in users])), place)
    return PieceRows(engine(), places, read_partition_files)


@pytest.mark.parametrize(
    ("k", "block", "scores", "threshold"),
    [(5, 512, "sum", 3.0), (4, 7, "centred_mean", 3.0), (4, 512, "centred_mean", 99.0)],
)
def test_item_knn_equals_numpy(
    catalogue: PieceRows, tmp_path: Path, monkeypatch, k: int, block: int, scores: str, threshold: float
) -> None:
    """Also with no relevant row, and the scores of a user who is new."""
    monkeypatch.setattr(item_knn, "ITEMS_A_BLOCK", block)
    model = ItemKnnModel(name="m", kind="item_knn", neighbours=k, scores=scores)
    known = KnownItems(share_rows(catalogue, (), ""), N_ITEMS)
    cut = partial(cut_histories, find=known.find, threshold=threshold, longest=1000)
    train = open_training(tmp_path)
    histories = share_results(str(tmp_path), train.open(COLUMNS, cut, ("items",)))
    trained = item_knn.train_item_knn(histories, known, model, engine())
    fitted = keep_results(str(tmp_path), trained.similarities, engine())
    result = {(r["item_id"], r["neighbour_id"]): r["weight"] for r in read_rows(fitted, SIMILARITIES)}
    relevant = [(user, item) for user, item, rating in ratings() if rating >= threshold]
    users = sorted({user for user, _ in relevant})
    matrix = np.zeros((len(users), N_ITEMS))
    for user, item in relevant:
        matrix[users.index(user), int(item[1:])] = 1
    weights = cosine(matrix, k)
    means, counts = np.zeros(N_ITEMS), None
    if scores == "centred_mean":
        counted = train.open(COLUMNS, partial(count_item_users, threshold=threshold), ("item_id", "users"))
        counts = share_results(str(tmp_path), counted)
        means = matrix.sum(axis=0) / max(len(users), 1)
        sums = [sum(w for (i, _), w in weights.items() if i == item) for item in range(N_ITEMS)]
        weights = {(i, j): w / sums[i] for (i, j), w in weights.items()}
    wanted = {(f"i{i:02}", f"i{j:02}"): w for (i, j), w in weights.items()}
    assert result.keys() == wanted.keys()
    assert result == pytest.approx(wanted, rel=1e-12)
    source = NeighbourSource(share_rows(fitted, (), ""), N_ITEMS, known, counts)
    history = [2, 5, 11]
    user = UserBlock(np.zeros(1, np.int64), histories=ItemLists(np.array([0, 3]), np.array(history)))
    expected = [
        means[i] + sum(weights.get((i, j), 0.0) * ((j in history) - means[j]) for j in range(N_ITEMS))
        for i in range(N_ITEMS)
    ]
    assert source.scorer().score_rows(user, 0, 1)[0] == pytest.approx(expected, rel=1e-9, abs=1e-12)
    assert source.item_ids().tolist() == [f"i{i:02}".encode() for i in range(N_ITEMS)]


@pytest.mark.parametrize("typed", [False, True])
def test_trained_items_are_numbered_among_themselves(tmp_path: Path, typed: bool) -> None:
    """Places by value where all are whole numbers, whatever item without training rows there is."""
    ids = ["10", "9", "b"]  # with b, the catalogue is in the order of bytes
    rows = pa.table({"item_id": ids, "item_index": [0, 1, 2], "n_train": [4, 2, 0]})
    shared = share_rows(keep(rows, tmp_path, 1), (), "")
    known = KnownItems(shared, 2, None if typed else True, trained=True)
    index, counts = known.find(pa.array(["9", "10", "b"]))
    assert index.tolist() == ([1, 0, -1] if typed else [0, 1, -1])
    assert counts.tolist() == [2, 4, 0] and known.counts().tolist() == ([4, 2] if typed else [2, 4])


def test_files_and_a_shuffle_give_the_same_histories(catalogue: PieceRows, tmp_path: Path) -> None:
    """Files are opened where they are whole by user; others are shuffled."""
    rows, known = open_training(tmp_path), KnownItems(share_rows(catalogue, (), ""), N_ITEMS)
    named = [str(tmp_path / f"by-user_id-{n}.parquet") for n in range(3)]
    for old, new in zip(rows.files, named, strict=True):
        shutil.copyfile(old, new)
    cut = partial(cut_histories, find=known.find, threshold=4.0, longest=5)
    tasks, lists = Mock(return_value=2), []
    for files in (named, rows.files):
        made = open_by_user(PieceRows(engine(), files, read_labelled), COLUMNS, cut, ("items",), tasks)
        parts = made.each(lambda rows: rows.column("items").to_pylist())
        lists.append(sorted(items for part in parts for items in part))
        assert tasks.called == (files is not named)
    assert lists[0] == lists[1] and max(map(len, lists[0])) == 5
