"""The memory network: a loop over entries in float64, gradients, empty entries, and position encoding."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from recbench_spark.errors import ConfigError
from recbench_spark.models.networks.memory import TYINGS, MemoryNetwork, MemoryShape, WordBags

SENTENCES = ((), (1, 2, 3), (4, 2), (5, 5, 6, 7), (3,), (7, 1, 6))
MEMORY = torch.tensor([[3, 1, 0, 4, 2], [2, 0, 0, 0, 0], [0, 0, 0, 0, 0], [5, 5, 1, 1, 3]])
QUERY = torch.tensor([1, 5, 2, 4])
BAGS = WordBags(SENTENCES, 8)


def make_network(tying: str, hops: int = 3, temporal: bool = True, dims: int = 4) -> MemoryNetwork:
    return MemoryNetwork(MemoryShape(8, dims, 5, hops, tying, temporal), 3, 0.7).double()


def split_tables(table: torch.Tensor | None, dims: int) -> list[np.ndarray]:
    assert table is not None
    return np.split(table.detach().numpy(), table.shape[1] // dims, axis=1)


def read_slowly(
    network: MemoryNetwork, query: int, memory: list[int], in_bags: bool, linear: bool
) -> tuple[np.ndarray, np.ndarray]:
    """The equations of the paper, number by number: state and attention of one query."""
    hops, d = network.shape.hops, network.shape.dims
    adjacent = network.shape.tying == "adjacent"
    tables, times = (split_tables(part, d) for part in (network.table, network.times))
    tables += [] if adjacent else [network.query_table.detach().numpy()]

    def encode(table: np.ndarray, entry: int) -> list[float]:
        words = SENTENCES[entry] if in_bags else (entry,)
        size, vector = len(words), [0.0] * d
        for k in range(1, d + 1):
            for j, word in enumerate(words, 1):
                weight = (1 - j / size) - (k / d) * (1 - 2 * j / size) if in_bags else 1
                vector[k - 1] += weight * table[word, k - 1]
        return vector

    u, weights = encode(tables[0 if adjacent else 2], query), []
    for hop in range(hops):
        a, c = (hop, hop + 1) if adjacent else (0, 1)
        filled = [i for i, entry in enumerate(memory) if entry]
        p = dict.fromkeys(range(len(memory)), 0.0)
        for i in filled:
            m = encode(tables[a], memory[i])
            p[i] = sum(u[k] * (m[k] + times[a][i, k]) for k in range(d))
        if not linear:
            total = sum(math.exp(p[i]) for i in filled)
            p |= {i: math.exp(p[i]) / total for i in filled}
        o = [
            sum(p[i] * (encode(tables[c], memory[i])[k] + times[c][i, k]) for i in filled) for k in range(d)
        ]
        if network.H is not None:
            u = [sum(row[n] * u[n] for n in range(d)) for row in network.H.tolist()]
        u = [u[k] + o[k] for k in range(d)]
        weights.append([p[i] for i in range(len(memory))])
    return np.array(u), np.array(weights)


@pytest.mark.parametrize("tying", TYINGS)
@pytest.mark.parametrize("in_bags", [False, True])
@pytest.mark.parametrize("linear", [False, True])
def test_reading_is_a_loop_over_entries(tying: str, in_bags: bool, linear: bool) -> None:
    network = make_network(tying)
    state, attention = network(QUERY, MEMORY, BAGS if in_bags else None, linear)
    for row in range(len(QUERY)):
        u, p = read_slowly(network, int(QUERY[row]), MEMORY[row].tolist(), in_bags, linear)
        assert np.abs(state[row].detach().numpy() - u).max() < 1e-11
        assert np.abs(attention[row].detach().numpy() - p).max() < 1e-11
    scores = network.score(state)
    own = network.answer_table
    table = split_tables(network.table, 4)[3] if own is None else own.detach().numpy()  # C of hop 3, or W
    assert np.allclose(scores.detach().numpy(), state.detach().numpy() @ table.T, atol=1e-12)


@pytest.mark.parametrize("tying", TYINGS)
def test_a_table_stands_once_however_many_hops_read_it(tying: str) -> None:
    numbers = {hops: sum(w.numel() for w in make_network(tying, hops).parameters()) for hops in (1, 2, 3)}
    tokens, dims, memory = 8, 4, 5
    if tying == "adjacent":
        assert numbers == {hops: (hops + 1) * (tokens + memory) * dims for hops in (1, 2, 3)}
    else:
        assert set(numbers.values()) == {(4 * tokens + 2 * memory + dims) * dims}


@pytest.mark.parametrize("tying", TYINGS)
@pytest.mark.parametrize("linear", [False, True])
def test_gradients_are_differences(tying: str, linear: bool) -> None:
    network = make_network(tying, hops=2, dims=2)
    names, weights = zip(*network.named_parameters(), strict=True)

    def compute(*values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        named = dict(zip(names, values, strict=True))
        reading = torch.func.functional_call(network, named, (QUERY[:2], MEMORY[:2], BAGS, linear))
        answers = named.get("answer_table", named["table"][:, -2:])
        return reading.attention, torch.log_softmax(reading.state @ answers.T, dim=1)

    assert torch.autograd.gradcheck(compute, weights, fast_mode=True)


@pytest.mark.parametrize("tying", TYINGS)
@pytest.mark.parametrize("linear", [False, True])
def test_empty_entries_and_other_rows_change_nothing(tying: str, linear: bool) -> None:
    network = make_network(tying)
    state, attention = network(QUERY, MEMORY, linear=linear)
    assert bool((attention[MEMORY[:, None, :].expand_as(attention) == 0] == 0).all())
    if not linear:
        assert torch.allclose(attention.sum(2), torch.tensor([[1.0], [1], [0], [1]]).double())
    alone = network(QUERY[1:2], MEMORY[1:2, :1], linear=linear)
    assert torch.allclose(alone.state, state[1:2], atol=1e-12)
    others = network(QUERY[[3, 0]], MEMORY[[3, 0]], linear=linear)
    assert torch.allclose(others.state, state[[3, 0]], atol=1e-12)
    with torch.no_grad():  # what the empty token holds has no effect on a memory
        network.table[0] = 1e6
    assert torch.equal(network(QUERY, MEMORY, linear=linear).state, state)


def test_an_empty_entry_makes_older_ones_older() -> None:
    network = make_network("adjacent", hops=1)
    near, far, gap = torch.tensor([[2, 3]]), torch.tensor([[3, 2]]), torch.tensor([[2, 0, 3]])
    states = [network(QUERY[:1], memory).state for memory in (near, far, gap)]
    assert not torch.allclose(states[0], states[1]) and not torch.allclose(states[0], states[2])
    plain = make_network("adjacent", hops=1, temporal=False)
    states = [plain(QUERY[:1], memory).state for memory in (near, far, gap)]
    assert torch.allclose(states[0], states[1]) and torch.allclose(states[0], states[2])


def test_linear_start_leaves_out_the_softmax_alone() -> None:
    network = make_network("adjacent", hops=1)
    linear, soft = (network(QUERY, MEMORY, linear=one).attention for one in (True, False))
    filled = MEMORY[:, None, :] > 0
    expected = torch.softmax(linear.masked_fill(~filled, -math.inf), dim=2)
    assert torch.allclose(soft[[0, 1, 3]], expected[[0, 1, 3]])


def test_position_encoding_by_hand() -> None:
    table = torch.eye(8)[:, :2] * 0 + torch.arange(8.0)[:, None]  # word w is (w, w)
    # (4, 2), d = 2: j = 1: (1 - 1/2) - k/2 * 0 = 1/2; j = 2: 0 + k/2 = 1/2, 1
    assert WordBags(SENTENCES, 8).encode(table, 2)[2].tolist() == [2 + 1, 2 + 2]
    assert WordBags(SENTENCES, 8, position=False).encode(table, 2)[2].tolist() == [6, 6]
    assert WordBags(SENTENCES, 8).encode(table, 2)[0].tolist() == [0, 0]


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (MemoryShape(8, 4, 5, 0), "hops"),
        (MemoryShape(8, 4, 0), "memory"),
        (MemoryShape(1, 4, 5), "tokens"),
        (MemoryShape(8, 4, 5, 1, "none"), "tying"),
    ],
)
def test_sizes_out_of_range_are_named(shape: MemoryShape, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        MemoryNetwork(shape, 1)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match="6 entries"):
        make_network("adjacent")(QUERY[:1], torch.ones(1, 6, dtype=torch.long))
    with pytest.raises(ConfigError, match="entry 0"):
        WordBags(((1,), (2,)), 3)
