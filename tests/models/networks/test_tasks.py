"""Pairs of items of one user, ranks of pairs, labels; a whole unseen graph embedded by trained layers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from recbench_spark.graphs.kernels.forms import LayerForm
from recbench_spark.models.networks import tasks
from recbench_spark.models.networks.fitting import fit
from recbench_spark.models.networks.layers import GraphNetwork
from recbench_spark.models.networks.settings import TrainingPlan
from tests.graphs import oracle
from tests.models.networks.worlds import adjacency


def test_pairs_are_of_one_user_and_never_of_an_item_with_itself() -> None:
    indptr, item = np.array([0, 3, 4, 4, 9]), np.array([5, 7, -1, 1, 0, 2, 3, 4, 6])
    user, query, other = tasks.pair_liked_items(indptr, item, 2, 1)
    own = [{5, 7}, {1}, set(), {0, 2, 3, 4, 6}]
    assert all({q, i} <= own[u] and q != i for u, q, i in zip(user, query, other, strict=True))
    assert np.bincount(user, minlength=4).tolist() == [2, 0, 0, 10]
    assert len(set(zip(user.tolist(), query.tolist(), other.tolist(), strict=True))) == 12
    again = tasks.pair_liked_items(indptr, np.array([7, 5, -1, 1, 6, 4, 3, 2, 0]), 2, 1)
    assert sorted(zip(*again, strict=True)) == sorted(zip(user, query, other, strict=True))


def test_ranks_and_scaled_mrr_by_hand() -> None:
    vectors = np.array([[1.0], [4.0], [3.0], [2.0], [9.0]], np.float32)
    assert tasks.rank_items(vectors, np.array([0, 4]), np.array([3, 0])).tolist() == [4, 4]
    known = np.array([True, True, True, True, False])
    assert tasks.rank_items(vectors, np.array([0, 4]), np.array([3, 0]), known).tolist() == [3, 4]
    assert tasks.mean_scaled_rank(np.array([1, 100, 101, 250])) == (1 + 1 + 1 / 2 + 1 / 3) / 4
    assert tasks.mean_scaled_rank(np.empty(0)) == 0.0


NODES = 200


def blobs(seed: int) -> tuple[tasks.GraphInput, np.ndarray]:
    """Two classes; edges within a class; features that alone say little."""
    draw = np.random.default_rng(seed)
    label = draw.integers(0, 2, NODES)
    ends = [
        (a, b) for a, b in draw.integers(0, NODES, (4000, 2)).tolist() if label[a] == label[b] and a != b
    ]
    drawn = oracle.Drawn(list(range(NODES)), [(a, b, 1.0) for a, b in ends])
    x = (0.7 * label[:, None] + draw.standard_normal((NODES, 6))).astype(np.float32)
    return tasks.GraphInput(adjacency(drawn), x, (5, 5)), label


@pytest.mark.parametrize(
    "kind", ["mean", *(pytest.param(kind, marks=pytest.mark.full) for kind in ("max", "gcn", "lstm"))]
)
def test_labels_are_learnt_and_a_whole_unseen_graph_is_embedded(kind) -> None:
    form = LayerForm("sage", kind, 8, 8, most=5)
    given, label = blobs(1)
    net = GraphNetwork((form, form), (2,), 6)
    net.initialise(1)
    fit(
        tasks.LabelTask(net, given, np.arange(NODES), label),
        TrainingPlan(epochs=20, batch=50, rate=0.01),
        None,
        str,
    )
    unseen, truth = blobs(2)
    result = tasks.embed_by_minibatch(net, unseen, np.arange(NODES)).argmax(axis=1)
    assert (result == truth).mean() > 0.9
    alone = (unseen.features.mean(axis=1) > 0.35) == truth
    assert alone.mean() < 0.88  # without neighbours it is not that easy
    with torch.no_grad():
        assert tasks.embed_by_minibatch(net, unseen, np.empty(0, np.int64)).size == 0
