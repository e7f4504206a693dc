"""Models trained here: popularity counts, ALS shapes, item-kNN against numpy."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from pyspark.sql import functions as F

from recbench_spark.config import ItemKnnModel, MllibAlsModel
from recbench_spark.errors import DataError
from recbench_spark.evaluation.ranking.known_items import KnownItems
from recbench_spark.models.item_knn import COLUMNS, count_item_users, cut_histories
from recbench_spark.storage.frame_blocks import FrameBlocks, shuffle_blocks
from recbench_spark.storage.scratch import scratch_folder
from recbench_spark.storage.shared_rows import share_rows
from recbench_spark.training import baselines, item_knn, mllib_als, model_adapter

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


def test_popularity_is_the_count_as_a_bias(items) -> None:
    trained = baselines.train_popular(items)
    assert trained.users is None and trained.similarities is None
    result = {row.item_id: (row.vector, row.bias) for row in trained.items.collect()}
    assert result == {row.item_id: ([], float(row.n_train)) for row in items.collect()}
    assert result[f"i{N_ITEMS - 1:02}"][1] == 0


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


def open_training(train, change, schema) -> FrameBlocks:
    """All rows of a user in one of three tasks."""
    rows = train.withColumn("part", F.lit("train"))
    packed = shuffle_blocks(rows, F.xxhash64("user_id"), 3)
    return FrameBlocks(packed, change, tuple(schema.names), schema=schema)


@pytest.mark.parametrize(
    ("k", "block", "scores", "threshold"),
    [(5, 512, "sum", 3.0), (4, 7, "centred_mean", 3.0), (4, 512, "centred_mean", 99.0)],
)
def test_item_knn_equals_numpy(
    train, items, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, k: int, block: int, scores, threshold
) -> None:
    """Also with no relevant row."""
    monkeypatch.setattr(item_knn, "ITEMS_A_TASK", block)
    model = ItemKnnModel(name="m", kind="item_knn", neighbours=k, scores=scores)
    known = KnownItems(share_rows(str(tmp_path), items), N_ITEMS)
    cut = partial(cut_histories, find=known.find, threshold=threshold, longest=1000)
    histories = open_training(train, cut, item_knn.HISTORIES).rows()
    trained = item_knn.train_item_knn(histories, known, model, scratch_folder(str(tmp_path)))
    result = {(r.item_id, r.neighbour_id): r.weight for r in trained.similarities.collect()}
    relevant = [(user, item) for user, item, rating in ratings() if rating >= threshold]
    users = sorted({user for user, _ in relevant})
    matrix = np.zeros((len(users), N_ITEMS))
    for user, item in relevant:
        matrix[users.index(user), int(item[1:])] = 1
    weights = cosine(matrix, k)
    if scores == "centred_mean":
        count = partial(count_item_users, threshold=threshold)
        rows = item_knn.item_means(open_training(train, count, item_knn.COUNTS)).collect()
        counts = matrix.sum(axis=0)
        means = {f"i{i:02}": n / len(users) for i, n in enumerate(counts) if n}
        assert {row.item_id: row.mean for row in rows} == means
        sums = [sum(w for (i, _), w in weights.items() if i == item) for item in range(N_ITEMS)]
        weights = {(i, j): w / sums[i] for (i, j), w in weights.items()}
    wanted = {(f"i{i:02}", f"i{j:02}"): w for (i, j), w in weights.items()}
    assert result.keys() == wanted.keys()
    assert result == pytest.approx(wanted, rel=1e-12)


def test_files_and_a_shuffle_give_the_same_histories(small_night, monkeypatch) -> None:
    """Files are opened where they are whole by user; others are shuffled."""
    data, lists = small_night.night.data, []
    cut = partial(cut_histories, find=data.training_catalogue.find, threshold=4.0, longest=5)
    for whole in (True, False):
        if not whole:
            monkeypatch.setattr(model_adapter, "are_whole", lambda files, key: False)
        blocks = data.open_by_user(COLUMNS, cut, item_knn.HISTORIES)
        assert ("task" not in blocks.packed.columns) == whole
        lists.append(sorted(row["items"] for row in blocks.rows().collect()))
    assert lists[0] == lists[1] and max(map(len, lists[0])) == 5
