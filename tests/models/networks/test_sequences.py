"""Networks that read histories: plain loops in float64, gradients, padding, and fits that go on."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from recbench_spark.errors import ConfigError
from recbench_spark.models.networks.fitting import Step, fit
from recbench_spark.models.networks.sequence_networks import (
    AttentionBlock,
    Sequences,
    TokenWindows,
    add_empty_places,
    cut_newest,
    make_network,
    make_sequences,
    set_last_aside,
)
from recbench_spark.models.networks.sequence_tasks import (
    SequenceTask,
    check_score_bytes,
    compare_drops,
    embed_history,
    explain_history,
    sum_losses,
)
from recbench_spark.models.networks.settings import TrainingPlan
from recbench_spark.models.settings import make_model

ITEMS = 11
LISTS = [[3, 1, 4], [5], [9, 2, 6, 5, 3, 8, 7], [0, 10], [2, 7, 1, 8]]
KINDS: dict[str, dict[str, Any]] = {
    "sasrec": {"blocks": 2, "heads": 2},
    "gru4rec": {"layers": 2},
    "memn2n": {"hops": 2, "noise": 0.3},
    "adjacent": {"hops": 3, "tying": "adjacent"},
}


def make_settings(name: str, **more: Any) -> Any:
    kind = name if name in ("sasrec", "gru4rec") else "memn2n"
    own = {"name": name, "kind": kind, "dims": 4, "memory": 4, **KINDS[name], **more}
    return make_model(own, "models")


def randomise(module: nn.Module, seed: int = 5) -> nn.Module:
    """All weights anew, so that none is 0 or 1 by luck."""
    draw = np.random.default_rng(seed)
    with torch.no_grad():
        for weight in module.parameters():
            weight.copy_(torch.from_numpy(draw.normal(0, 0.5, tuple(weight.shape))))
    return module.to(torch.float64).eval()


def weights(module: nn.Module) -> dict[str, np.ndarray]:
    return {name: w.detach().numpy() for name, w in module.named_parameters()}


def softmax(x: np.ndarray) -> np.ndarray:
    return np.exp(x - x.max()) / np.exp(x - x.max()).sum()


def normalise(x: np.ndarray, scale: np.ndarray, shift: np.ndarray) -> np.ndarray:
    return (x - x.mean()) / math.sqrt(x.var() + 1e-5) * scale + shift


def attend_by_loops(module: Any, items: list[int], heads: int) -> np.ndarray:
    """The state of SASRec after all items, place by place and head by head."""
    w, memory = weights(module), module.memory
    dims = w["item"].shape[1]
    own = items[-memory:]
    x = [w["item"][i + 1] * math.sqrt(dims) + w["place"][len(own) - 1 - t] for t, i in enumerate(own)]
    for block in range(len(module.blocks)):
        part = {name.split(".", 2)[2]: v for name, v in w.items() if name.startswith(f"blocks.{block}.")}
        normed = [normalise(row, part["norm.weight"], part["norm.bias"]) for row in x]
        q, k, v = ([part[f"{n}.weight"] @ row for row in normed] for n in ("query", "key", "value"))
        size, after = dims // heads, []
        for t in range(len(x)):
            seen = np.zeros(dims)
            for cut in (slice(h * size, (h + 1) * size) for h in range(heads)):
                p = softmax(np.array([q[t][cut] @ k[s][cut] / math.sqrt(size) for s in range(t + 1)]))
                seen[cut] = sum(p[s] * v[s][cut] for s in range(t + 1))
            row = x[t] + seen
            inner = part["inner.weight"] @ normalise(
                row, part["dense_norm.weight"], part["dense_norm.bias"]
            )
            inner = np.maximum(inner + part["inner.bias"], 0)
            after.append(row + part["outer.weight"] @ inner + part["outer.bias"])
        x = after
    return normalise(x[-1], w["norm.weight"], w["norm.bias"])


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def recur_by_loops(module: Any, items: list[int]) -> np.ndarray:
    """The state of GRU4Rec: Cho et al. 2014 with torch's place of the reset gate."""
    w = weights(module)
    rows = [w["item"][i + 1] for i in items]
    for layer in range(module.units.num_layers):
        ends = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        wi, wh, bi, bh = (w[f"units.{name}_l{layer}"] for name in ends)
        h, out, d = np.zeros(wh.shape[1]), [], wh.shape[1]
        for x in rows:
            a, b = wi @ x + bi, wh @ h + bh
            reset, update = sigmoid(a[:d] + b[:d]), sigmoid(a[d : 2 * d] + b[d : 2 * d])
            new = np.tanh(a[2 * d :] + reset * b[2 * d :])
            h = (1 - update) * new + update * h
            out.append(h)
        rows = out
    return rows[-1]


def split_tables(table: np.ndarray, dims: int) -> list[np.ndarray]:
    """Tables of a memory network stand side by side in one array."""
    return np.split(table, table.shape[1] // dims, axis=1)


def read_by_loops(module: Any, items: list[int]) -> np.ndarray:
    """The state of MemN2N after all hops, entry by entry."""
    net, w = module.network, weights(module)
    adjacent = net.H is None
    query, *past = [i + 1 for i in reversed(items)]
    past = past[: net.shape.memory]
    tables, times = (split_tables(w[f"network.{name}"], net.shape.dims) for name in ("table", "times"))
    u = (tables[0] if adjacent else w["network.query_table"])[query]
    for hop in range(net.shape.hops):
        a, c = (hop, hop + 1) if adjacent else (0, 1)
        m, o = ([tables[t][i] + times[t][n] for n, i in enumerate(past)] for t in (a, c))
        p = softmax(np.array([u @ row for row in m])) if past else []
        total = sum((p[n] * row for n, row in enumerate(o)), np.zeros(len(u)))
        u = total + (u if adjacent else w["network.H"] @ u)
    return u


@pytest.mark.parametrize("name", KINDS)
def test_states_are_those_of_plain_loops(name: str) -> None:
    settings = make_settings(name)
    module: Any = randomise(make_network(settings, ITEMS))
    sequences = make_sequences(LISTS, ITEMS)
    length = 4 + (settings.kind == "memn2n")
    state = module.read_last(cut_newest(sequences, np.arange(5), length)).detach().numpy()
    for items, row in zip(LISTS, state, strict=True):
        newest = items[-length:]
        if name == "sasrec":
            expected = attend_by_loops(module, newest, settings.heads)
        else:
            expected = (
                recur_by_loops(module, newest) if name == "gru4rec" else read_by_loops(module, newest)
            )
        np.testing.assert_allclose(row, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", KINDS)
def test_padding_and_other_users_change_nothing(name: str) -> None:
    """Beside longer histories a state is the one alone; a state of GRU4Rec is that of its prefix."""
    module: Any = randomise(make_network(make_settings(name), ITEMS))
    token, length = cut_newest(make_sequences(LISTS, ITEMS), np.arange(5), 4)
    together = module.read_last(
        TokenWindows(torch.cat([token, torch.zeros(5, 1, dtype=torch.int64)], 1), length)
    )
    for row, size, state in zip(token, length.tolist(), together, strict=True):
        np.testing.assert_allclose(state.detach(), embed_history(module, row[:size]), rtol=0, atol=1e-12)
    if module.every_place and name != "sasrec":  # SASRec's places are counted from the newest
        prefix = module.read_all(TokenWindows(token, length))[0, 1]
        np.testing.assert_allclose(prefix.detach(), embed_history(module, token[0, :2]), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", KINDS)
def test_no_state_sees_a_later_item(name: str) -> None:
    module: Any = randomise(make_network(make_settings(name), ITEMS))
    if not module.every_place:
        pytest.skip("reads for one query")
    token, length = cut_newest(make_sequences(LISTS, ITEMS), np.arange(5), 4)
    changed = token.clone()
    changed[2, 3] = 1
    one, two = (module.read_all(TokenWindows(t, length))[2] for t in (token, changed))
    assert torch.equal(one[:3], two[:3]) and not torch.equal(one[3], two[3])


def test_the_last_item_is_set_aside() -> None:
    train, last = set_last_aside(make_sequences(LISTS, ITEMS))
    assert last.tolist() == [4, -1, 7, 10, 8]
    assert train.indptr.tolist() == [0, 2, 3, 9, 10, 13]
    assert train.item.tolist() == [3, 1, 5, 9, 2, 6, 5, 3, 8, 0, 2, 7, 1]


def test_noise_adds_empty_places_before_items_and_forgets_the_oldest() -> None:
    histories = cut_newest(make_sequences([list(range(11))] * 200, ITEMS), np.arange(200), 5)
    token, length = add_empty_places(histories, 0.3, 4, seed=1)
    assert token.shape == (200, 5) and (length == 5).all()
    assert (token[:, -1] == 11).all()  # the newest item is the query
    assert 0.15 < float((token[:, :-1] == 0).double().mean()) < 0.3
    for row in token.numpy():
        kept = row[row > 0]
        assert kept.tolist() == list(range(12 - len(kept), 12))


def test_targets_follow_their_histories() -> None:
    """A user of seven items: the last is set aside, and five of the others follow at most four."""
    task = SequenceTask(make_sequences(LISTS, ITEMS), make_settings("sasrec"))
    batch = task.batch(Step(1, 0), np.arange(task.examples), 3)
    assert task.examples == 3 and task.scale == 3 / (1 + 4 + 2)
    assert batch.histories.token.tolist() == [[4, 0, 0, 0], [3, 7, 6, 4], [3, 8, 0, 0]]
    assert batch.target.tolist() == [[1, -1, -1, -1], [6, 5, 3, 8], [7, 1, -1, -1]]
    single = SequenceTask(make_sequences(LISTS, ITEMS), make_settings("adjacent", noise=0))
    batch = single.batch(Step(1, 0), np.arange(single.examples), 3)
    assert batch.target.tolist() == [1, 2, 6, 5, 3, 8, 7, 1] and single.scale == 1
    assert batch.histories.token[5].tolist() == [10, 3, 7, 6, 4]


def losses_by_loops(loss: str, state: Any, target: Any, answers: Any, negative: Any) -> float:
    total, (vectors, biases) = 0.0, answers
    for n, (row, item) in enumerate(zip(state, target, strict=True)):
        score = [float(row @ v + b) for v, b in zip(vectors, biases, strict=True)]
        if loss == "one_negative":
            total += math.log1p(math.exp(-score[item])) + math.log1p(math.exp(score[negative[n]]))
            continue
        others = range(len(score)) if loss == "softmax" else [item, *(i for i in negative if i != item)]
        total += math.log(sum(math.exp(score[i]) for i in others)) - score[item]
    return total


@pytest.mark.parametrize("loss", ["softmax", "shared_negatives", "one_negative"])
def test_losses_by_loops_and_by_gradcheck(loss: str) -> None:
    draw = torch.Generator().manual_seed(1)
    state, vectors, biases = (
        torch.randn(*s, generator=draw, dtype=torch.float64) for s in ((4, 3), (6, 3), (6,))
    )
    target = torch.tensor([1, 5, 0, 1])
    negative = torch.tensor([2, 3, 3, 4] if loss == "one_negative" else [1, 4, 4, 0, 2])

    def compute(*parts: torch.Tensor) -> torch.Tensor:
        return sum_losses(loss, parts[0], target, (parts[1], parts[2]), negative)

    arguments = (state, target.tolist(), (vectors, biases), negative.tolist())
    assert float(compute(state, vectors, biases)) == pytest.approx(losses_by_loops(loss, *arguments), 1e-12)
    parts = tuple(part.requires_grad_() for part in (state, vectors, biases))
    assert torch.autograd.gradcheck(compute, parts)
    without = sum_losses(loss, state, target, (vectors, None), negative).detach()
    assert float(without) == pytest.approx(
        float(compute(state, vectors, torch.zeros_like(biases)).detach()), 1e-12
    )


def test_gradients_of_a_block() -> None:
    block = randomise(AttentionBlock(4, 2, 0.0))
    x = torch.randn(2, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    assert torch.autograd.gradcheck(block, (x.requires_grad_(),))


def circles(users: int = 40, size: int = 7) -> Sequences:
    """Users on a circle of items: the next item follows from the last one."""
    first = np.random.default_rng(0).integers(0, ITEMS, users)
    return make_sequences([[(f + n) % ITEMS for n in range(size)] for f in first], ITEMS)


LEARNT = [
    ("sasrec", "softmax"),
    ("sasrec", "shared_negatives"),
    ("sasrec", "one_negative"),
    ("gru4rec", "softmax"),
    ("memn2n", "softmax"),
]


@pytest.mark.parametrize(("name", "loss"), LEARNT)
def test_a_circle_is_learnt(name: str, loss: str, one_thread: None) -> None:
    settings = make_settings(name, loss=loss, negatives=6, dims=8, dropout=0.0)
    task = SequenceTask(circles(), settings)
    plan = TrainingPlan(epochs=30, batch=10 if task.examples < 100 else 40, rate=0.05)
    assert task.worth() < 0.8
    result = fit(task, plan, None, lambda _: None)
    assert result.worth > 0.9, result.worth


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Small products are quicker so, and other processes of the machine are not waited for."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_the_score_is_that_of_a_sorted_list() -> None:
    """NDCG@10 of the item set aside, among items that the user does not have."""
    task = SequenceTask(make_sequences(LISTS, ITEMS), make_settings("gru4rec"))
    randomise(task.module)
    gains = []
    for items in LISTS:
        if len(items) > 1:
            vector = embed_history(task.module, np.array(items[:-1][-4:]) + 1)
            biases: Any = task.network.item_biases()
            score = task.network.item_vectors().detach().numpy() @ vector + biases.detach().numpy()
            rank = sum(score[i] > score[items[-1]] for i in range(ITEMS) if i not in items[:-1])
            gains.append(1 / math.log2(rank + 2) if rank < 10 else 0.0)
    assert task.worth() == pytest.approx(float(np.mean(gains)), abs=1e-12)


@pytest.mark.parametrize("name", ["sasrec", "memn2n"])
def test_ties_go_to_the_smaller_item(name: str) -> None:
    """With equal scores of all items, an item comes after the smaller ones that its user does not have."""
    task = SequenceTask(make_sequences(LISTS, ITEMS), make_settings(name))
    with torch.no_grad():
        for weight in task.module.parameters():
            weight.zero_()
    before = [sum(i not in own[:-1] for i in range(own[-1])) for own in LISTS if len(own) > 1]
    assert min(before) > 0
    assert task.worth() == pytest.approx(np.mean([1 / math.log2(n + 2) for n in before]), abs=1e-12)


def test_scores_that_need_too_much_memory_are_refused() -> None:
    """Seven targets of SASRec, or 128 of MemN2N, each with the scores of a billion items."""
    sequences = make_sequences(LISTS, 10**9)
    with pytest.raises(ConfigError, match=r"makes 7 x 1,000,000,000 scores in a minibatch") as error:
        SequenceTask(sequences, make_settings("sasrec"))
    assert "loss: shared_negatives" in error.value.hint
    with pytest.raises(ConfigError, match=r"makes 128 x 1,000,000,000 scores"):
        SequenceTask(sequences, make_settings("memn2n"))
    check_score_bytes(sequences, make_settings("sasrec", loss="shared_negatives"))


def test_a_linear_start_ends(tmp_path: Any) -> None:
    """The flag is part of the weights, and a linear epoch is never the best one."""
    task = SequenceTask(circles(), make_settings("memn2n", linear_epochs=1))
    plan = TrainingPlan(epochs=2, batch=20, rate=0.01)
    seen = []
    plain = task.worth
    task.worth = lambda: seen.append(int(task.module.linear)) or plain()  # type: ignore
    result = fit(task, plan, tmp_path, lambda _: None)
    assert seen == [1, 0] and int(task.module.linear) == 0 and result.best == 2  # type: ignore


@pytest.mark.parametrize("name", KINDS)
def test_threads_change_no_bit_of_a_vector(name: str) -> None:
    module = make_network(make_settings(name, dims=64), ITEMS).eval()
    threads, token = torch.get_num_threads(), np.array([3, 9, 1, 4])
    vectors = []
    for number in (1, 2):
        torch.set_num_threads(number)
        vectors.append(embed_history(module, token).tobytes())
    torch.set_num_threads(threads)
    assert vectors[0] == vectors[1]


def test_an_item_is_explained_by_the_memory_without_it() -> None:
    """Weights of all hops sum to 1; the score falls by what the plain loop says."""
    module: Any = randomise(make_network(make_settings("memn2n"), ITEMS))
    items = [9, 2, 6, 5, 3]
    explained = explain_history(module, np.array(items) + 1)
    np.testing.assert_allclose(explained.weight.sum(axis=1), 1, atol=1e-12)
    vectors = module.item_vectors().detach().numpy()
    scores = vectors @ read_by_loops(module, items)
    others = [i for i in range(ITEMS) if i not in items]
    assert explained.best == max(others, key=lambda i: scores[i])
    gap = vectors[explained.best] @ read_with_gap(module, items, 3) - scores[explained.best]
    assert explained.score_change[0] == pytest.approx(gap, abs=1e-12) != 0
    second = explain_history(module, np.array(items) + 1, [explained.best]).best
    assert second == max(set(others) - {explained.best}, key=lambda i: scores[i])
    assert len(explain_history(module, np.array([4])).score_change) == 0
    top, other = compare_drops([explained])
    largest = explained.weight[0].argmax()
    assert top == explained.score_change[largest]
    assert other == pytest.approx((explained.score_change.sum() - top) / 3)


def read_with_gap(module: Any, items: list[int], gap: int) -> np.ndarray:
    """The state when the item at a place is left out, and the older ones keep their places."""
    net, w = module.network, weights(module)
    tables, times = (split_tables(w[f"network.{name}"], net.shape.dims) for name in ("table", "times"))
    u = w["network.query_table"][items[-1] + 1]
    past = [(n, i + 1) for n, i in enumerate(reversed(items[:-1])) if len(items) - 2 - n != gap]
    for _ in range(net.shape.hops):
        m, o = ([tables[t][i] + times[t][n] for n, i in past] for t in (0, 1))
        p = softmax(np.array([u @ row for row in m]))
        u = w["network.H"] @ u + sum(p[n] * row for n, row in enumerate(o))
    return u
