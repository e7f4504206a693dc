"""LightGCN's vectors by dense algebra, negatives by their rule, the cut for validation."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from recbench_spark.errors import ConfigError
from recbench_spark.graphs.kernels.samples import Band
from recbench_spark.models.networks import factors, sampling
from recbench_spark.models.networks.fitting import Step, make_optimiser
from recbench_spark.models.networks.settings import TrainingPlan


def drawn(users: int = 15, items: int = 20) -> factors.UserItemPairs:
    draw = np.random.default_rng(0)
    return factors.make_pairs(draw.integers(0, users, 90), draw.integers(0, items - 1, 90), users, items)


@pytest.mark.parametrize("layers", [0, 1, 3])
def test_vectors_and_gradients_are_those_of_dense_algebra(layers) -> None:
    pairs = drawn()
    module = factors.FactorNetwork(pairs, 4, layers, 1).double()
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
    result = module.final()
    assert torch.allclose(result, expected, atol=1e-7)
    weights = torch.randn(n, 4, dtype=torch.float64)
    (one,) = torch.autograd.grad((result * weights).sum(), module.vectors)
    (other,) = torch.autograd.grad((expected * weights).sum(), module.vectors)
    assert torch.allclose(one, other, atol=1e-7)


def test_negatives_are_even_over_what_a_user_has_not() -> None:
    pairs = drawn()
    rows = np.arange(20_000)
    result = sampling.draw_unseen(pairs.indptr, pairs.item, np.zeros_like(rows), rows, pairs.items, seed=5)
    own = set(pairs.item[pairs.indptr[0] : pairs.indptr[1]].tolist())
    others = [i for i in range(pairs.items) if i not in own]
    assert set(result.tolist()) == set(others)
    assert stats.chisquare(np.bincount(result, minlength=pairs.items)[others]).pvalue > 1e-3
    part = sampling.draw_unseen(
        pairs.indptr, pairs.item, np.zeros(5, np.int64), rows[100:105], pairs.items, seed=5
    )
    assert part.tolist() == result[100:105].tolist()  # of the example, not of the minibatch
    shared = sampling.draw_shared_negatives(7, 27, 20_000, 3)
    assert stats.chisquare(np.bincount(shared - 7, minlength=20)).pvalue > 1e-3


def test_hard_negatives_are_of_the_querys_band_or_of_all_where_it_is_empty() -> None:
    band = Band(np.array([0, 3, 3]), np.array([4, 8, 9], np.uint32), np.array([False, True]))
    result = sampling.draw_hard_negatives(
        band, np.array([0, 1] * 500), np.arange(1000), 3, np.array([20, 30]), seed=1
    )
    assert set(result[::2].flatten().tolist()) == {4, 8, 9}
    assert set(result[1::2].flatten().tolist()) == set(range(20, 30))


def test_the_cut_leaves_every_user_a_row_and_hangs_on_pairs_alone() -> None:
    pairs = drawn()
    train, held = factors.split_pairs(pairs, 0.3, 1)
    whole = set(zip(pairs.user.tolist(), pairs.item.tolist(), strict=True))
    parts = [set(zip(p.user.tolist(), p.item.tolist(), strict=True)) for p in (train, held)]
    assert parts[0] | parts[1] == whole and not parts[0] & parts[1] and len(parts[1]) > 10
    assert (np.diff(train.indptr)[np.diff(pairs.indptr) > 0] > 0).all()
    assert not len(factors.split_pairs(pairs, 0.0, 1)[1].item)
    _, all_but_one = factors.split_pairs(pairs, 1.0, 1)
    assert (np.diff(pairs.indptr) - np.diff(all_but_one.indptr) == (np.diff(pairs.indptr) > 0)).all()


def test_recall_by_hand() -> None:
    final = np.array([[1.0], [1.0], [3.0], [2.0], [1.0], [0.5]], np.float32)  # two users, four items
    train = factors.make_pairs(np.array([0]), np.array([0]), 2, 4)
    held = factors.make_pairs(np.array([0, 0, 1]), np.array([1, 3, 1]), 2, 4)
    assert factors.mean_recall(final, train, held, np.array([0, 1]), 2) == (1 / 2 + 1) / 2
    with pytest.raises(ConfigError, match="layers"):
        factors.FactorNetwork(train, 2, -1, 0)


@pytest.mark.parametrize("layers", [0, 2])
@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize("negatives", [1, 3])
def test_the_loss_is_that_of_a_plain_loop(layers, sparse, negatives) -> None:
    """Each pair against the mean over its negatives, lengths before any layer; and its gradient."""
    pairs = drawn()
    module = factors.FactorNetwork(pairs, 4, layers, 1, sparse=sparse).double()
    task = factors.FactorTask(pairs, pairs, module, 0.3, negatives)
    rows = np.array([3, 7, 7, 20])
    batch = task.batch(Step(1, 0), rows, 9)
    assert batch[2].shape == (4, negatives)
    own = {(u, i) for u, i in zip(pairs.user.tolist(), pairs.item.tolist(), strict=True)}
    final, total = module.final(), torch.zeros((), dtype=torch.float64)
    for user, item, others in zip(*(x.tolist() for x in batch[:3]), strict=True):
        assert (user, item - pairs.users) in own
        first = module.vectors[user] @ module.vectors[user] + module.vectors[item] @ module.vectors[item]
        for other in others:
            assert (user, other - pairs.users) not in own
            apart = final[user] @ final[item] - final[user] @ final[other]
            length = first + module.vectors[other] @ module.vectors[other]
            total = total + (torch.log1p(torch.exp(-apart)) + 0.15 * length) / negatives
    assert torch.allclose(task.loss(batch), total)
    ours, plain = (torch.autograd.grad(x, module.vectors)[0].to_dense() for x in (task.loss(batch), total))
    assert torch.allclose(ours, plain)


@pytest.mark.full
@pytest.mark.parametrize("layers", [0, 2])
@pytest.mark.parametrize(("negatives", "groups"), [(1, 1), (7, 1), (7, 3), (60, 2)])
def test_shared_negatives_leave_out_what_a_user_has(layers, negatives, groups) -> None:
    """Sum in a plain loop over pairs of user and drawn item; a pair that is drawn twice counts twice."""
    pairs = drawn()
    module = factors.FactorNetwork(pairs, 4, layers, 1, sparse=False).double()
    task = factors.FactorTask(pairs, pairs, module, 0.3, negatives, groups=groups)
    rows = np.array([3, 7, 7, 20, 41, 60])
    batch = task.batch(Step(1, 0), rows, 9)
    parts = [task.batch(Step(1, 0), some, 9) for some in (rows[:2], rows[2:])]
    assert all(torch.equal(batch.other, part.other) for part in parts)  # of the whole minibatch
    assert batch.other.shape == (groups, negatives) and sum(batch.sizes) == len(rows)
    assert torch.allclose(task.loss(batch), sum(task.loss(part) for part in parts))
    group = np.repeat(np.arange(groups), batch.sizes)
    assert groups == 1 or len(set(group.tolist())) > 1
    own = {(u, i) for u, i in zip(pairs.user.tolist(), pairs.item.tolist(), strict=True)}
    final, total = module.final(), torch.zeros((), dtype=torch.float64)
    lengths = (module.vectors**2).sum(dim=1)
    for user, item, g in zip(batch.user.tolist(), batch.item.tolist(), group, strict=True):
        others = [o for o in batch.other[g].tolist() if (user, o - pairs.users) not in own]
        apart = [final[user] @ final[item] - final[user] @ final[o] for o in others]
        total = total + sum(torch.log1p(torch.exp(-x)) for x in apart) / max(len(others), 1)
        total = total + 0.15 * (lengths[user] + lengths[item] + lengths[batch.other].mean())
    assert torch.allclose(task.loss(batch), total)
    ours, plain = (torch.autograd.grad(x, module.vectors)[0] for x in (task.loss(batch), total))
    assert torch.allclose(ours, plain)


def test_sums_over_the_graph_are_the_same_by_any_number_of_threads() -> None:
    pairs = drawn()
    matrix = factors.normalise_adjacency(pairs)
    h = torch.randn(pairs.users + pairs.items, 5)
    result = [factors._multiply(matrix.csr, h.numpy(), threads) for threads in (1, 2, 3, 50)]
    assert all(np.array_equal(result[0], other) for other in result)
    assert np.allclose(result[0], matrix.times(h.double()).numpy(), atol=1e-6)
    assert np.array_equal(matrix.times(h).numpy(), result[0])


def test_weight_decay_moves_every_row_and_a_sparse_step_its_own() -> None:
    """The first step of Adam is the rate, against the sign of the gradient."""
    pairs = drawn()
    moved = {}
    for decay in (0.0, 1e-6):
        module = factors.FactorNetwork(pairs, 4, 0, 1, sparse=not decay)
        task, before = factors.FactorTask(pairs, pairs, module, 0.0), module.vectors.detach().clone()
        optimiser = make_optimiser(module, TrainingPlan(rate=0.01, weight_decay=decay))
        task.loss(task.batch(Step(1, 0), np.arange(2), 9)).backward()
        optimiser.step()
        moved[decay] = (module.vectors.detach() != before).any(dim=1).sum().item()
    assert moved[0.0] < 7 and moved[1e-6] == pairs.users + pairs.items
