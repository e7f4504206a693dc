"""LightGCN's vectors by dense algebra, negatives by their rule, the cut for validation."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from recbench_spark.errors import ConfigError
from recbench_spark.kernels.graph.samples import Band
from recbench_spark.models.networks import drawing, factors


def drawn(users: int = 15, items: int = 20) -> factors.Pairs:
    draw = np.random.default_rng(0)
    return factors.pairs_of(draw.integers(0, users, 90), draw.integers(0, items - 1, 90), users, items)


@pytest.mark.parametrize("layers", [0, 1, 3])
def test_vectors_and_gradients_are_those_of_dense_algebra(layers) -> None:
    pairs = drawn()
    module = factors.Factors(pairs, 4, layers, 1).double()
    n = pairs.users + pairs.items
    a = np.zeros((n, n))
    a[pairs.user, pairs.users + pairs.item] = 1
    a += a.T
    degree = a.sum(axis=1)
    scale = np.divide(1, np.sqrt(degree), out=np.zeros(n), where=degree > 0)
    matrix = torch.from_numpy(scale[:, None] * a * scale)
    expected = sum(torch.linalg.matrix_power(matrix, k) @ module.vectors for k in range(layers + 1)) / (
        layers + 1
    )
    found = module.final()
    assert torch.allclose(found, expected, atol=1e-7)
    weights = torch.randn(n, 4, dtype=torch.float64)
    (one,) = torch.autograd.grad((found * weights).sum(), module.vectors)
    (other,) = torch.autograd.grad((expected * weights).sum(), module.vectors)
    assert torch.allclose(one, other, atol=1e-7)


def test_negatives_are_even_over_what_a_user_has_not() -> None:
    pairs = drawn()
    rows = np.arange(20_000)
    found = drawing.unseen(pairs.indptr, pairs.item, np.zeros_like(rows), rows, pairs.items, 5)
    own = set(pairs.item[pairs.indptr[0] : pairs.indptr[1]].tolist())
    others = [i for i in range(pairs.items) if i not in own]
    assert set(found.tolist()) == set(others)
    assert stats.chisquare(np.bincount(found, minlength=pairs.items)[others]).pvalue > 1e-3
    part = drawing.unseen(pairs.indptr, pairs.item, np.zeros(5, np.int64), rows[100:105], pairs.items, 5)
    assert part.tolist() == found[100:105].tolist()  # of the example, not of the minibatch
    shared = drawing.shared_negatives(7, 27, 20_000, 3)
    assert stats.chisquare(np.bincount(shared - 7, minlength=20)).pvalue > 1e-3


def test_hard_negatives_are_of_the_querys_band_or_of_all_where_it_is_empty() -> None:
    band = Band(np.array([0, 3, 3]), np.array([4, 8, 9], np.uint32), np.array([False, True]))
    found = drawing.hard_negatives(band, np.array([0, 1] * 500), np.arange(1000), 3, np.array([20, 30]), 1)
    assert set(found[::2].flatten().tolist()) == {4, 8, 9}
    assert set(found[1::2].flatten().tolist()) == set(range(20, 30))


def test_the_cut_leaves_every_user_a_row_and_hangs_on_pairs_alone() -> None:
    pairs = drawn()
    train, held = factors.cut(pairs, 0.3, 1)
    whole = set(zip(pairs.user.tolist(), pairs.item.tolist(), strict=True))
    parts = [set(zip(p.user.tolist(), p.item.tolist(), strict=True)) for p in (train, held)]
    assert parts[0] | parts[1] == whole and not parts[0] & parts[1] and len(parts[1]) > 10
    assert (np.diff(train.indptr)[np.diff(pairs.indptr) > 0] > 0).all()
    assert not len(factors.cut(pairs, 0.0, 1)[1].item)
    _, all_but_one = factors.cut(pairs, 1.0, 1)
    assert (np.diff(pairs.indptr) - np.diff(all_but_one.indptr) == (np.diff(pairs.indptr) > 0)).all()


def test_recall_by_hand() -> None:
    final = np.array([[1.0], [1.0], [3.0], [2.0], [1.0], [0.5]], np.float32)  # two users, four items
    train = factors.pairs_of(np.array([0]), np.array([0]), 2, 4)
    held = factors.pairs_of(np.array([0, 0, 1]), np.array([1, 3, 1]), 2, 4)
    assert factors.recall(final, train, held, np.array([0, 1]), 2) == (1 / 2 + 1) / 2
    with pytest.raises(ConfigError, match="layers"):
        factors.Factors(train, 2, -1, 0)
