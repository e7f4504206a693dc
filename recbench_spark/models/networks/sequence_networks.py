"""Define networks over histories: SASRec, GRU4Rec and MemN2N.

They read by attention, recurrent units and a memory. Each turns a history into a state; its products with
item vectors (plus item biases) are scores. So a user is a vector. SASRec and GRU4Rec give the states after
all items at once. A minibatch's histories are tokens: an item's number plus 1, the oldest first. Token 0 is
an empty place, behind the newest item in a history or, as noise, before an item.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from recbench_spark.core.arrays import Ints, Ints32
from recbench_spark.errors import ConfigError
from recbench_spark.graphs.kernels.ids import hash_numbers
from recbench_spark.models.networks.factors import random_normals
from recbench_spark.models.networks.memory import MemoryNetwork, MemoryReading, MemoryShape
from recbench_spark.models.networks.settings import (
    Gru4RecModel,
    MemN2NModel,
    SasRecModel,
    SequenceModelConfig,
)


class SequenceNetwork(Protocol):
    """A module which turns histories into states.

    Attributes:
        every_place: True if `read_all` gives a state after each item; else only `read_last` works.
    """

    every_place: bool

    def read_all(self, histories: TokenWindows) -> torch.Tensor:
        """Return the states after each item, (b, l, d)."""

    def read_last(self, histories: TokenWindows) -> torch.Tensor:
        """Return the states after the newest item, (b, d)."""

    def item_vectors(self) -> torch.Tensor:
        """Return the (items, d) vectors for scoring."""

    def item_biases(self) -> torch.Tensor | None:
        """Return the (items,) biases for scoring; None: none."""


def take_last(state: torch.Tensor, length: torch.Tensor) -> torch.Tensor:
    """Return the newest items' states, (b, d) from (b, l, d)."""
    return state[torch.arange(len(state), device=state.device), length - 1]


def score_items(state: torch.Tensor, vectors: torch.Tensor, biases: torch.Tensor | None) -> torch.Tensor:
    """Return the states' scores, (b, items).

    Scores are products with vectors, plus biases.
    """
    return state @ vectors.T if biases is None else torch.addmm(biases, state, vectors.T)


class AttentionBlock(nn.Module):
    """Attends to all items so far, then two dense layers.

    x + dropout(attention(norm(x))), and then x + dropout(dense(norm(x))): Kang and McAuley 2018, section
    III B.
    """

    def __init__(self, dims: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, nn.Dropout(dropout)
        self.norm, self.dense_norm = nn.LayerNorm(dims), nn.LayerNorm(dims)
        self.query, self.key, self.value = (nn.Linear(dims, dims, bias=False) for _ in range(3))
        self.inner, self.outer = nn.Linear(dims, dims), nn.Linear(dims, dims)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return new (b, l, d) states; none sees later places."""
        normed = self.norm(x)
        q, k, v = (self._split(part(normed)) for part in (self.query, self.key, self.value))
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.dropout(seen.transpose(1, 2).reshape(x.shape))
        dense = self.outer(self.dropout(torch.relu(self.inner(self.dense_norm(x)))))
        state: torch.Tensor = x + self.dropout(dense)
        return state

    def _split(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)


class AttentionNetwork(nn.Module):
    """SASRec: attention blocks over items and places, newest first."""

    every_place = True

    def __init__(self, settings: SasRecModel, items: int) -> None:
        super().__init__()
        dims, self.memory = settings.dims, settings.memory
        self.item = nn.Parameter(torch.empty(items + 1, dims))
        self.place = nn.Parameter(torch.empty(settings.memory, dims))
        self.dropout = nn.Dropout(settings.dropout)
        self.blocks = nn.ModuleList(
            AttentionBlock(dims, settings.heads, settings.dropout) for _ in range(settings.blocks)
        )
        self.norm = nn.LayerNorm(dims)

    def read_all(self, histories: TokenWindows) -> torch.Tensor:
        """Return the states, as in `SequenceNetwork`."""
        token, length = histories
        columns = torch.arange(token.shape[1], device=token.device)
        place = (length[:, None] - 1 - columns).clamp(min=0)
        x = functional.embedding(token, self.item) * math.sqrt(self.item.shape[1])
        x = self.dropout(x + functional.embedding(place, self.place))
        for block in self.blocks:
            x = block(x)
        state: torch.Tensor = self.norm(x)
        return state

    def read_last(self, histories: TokenWindows) -> torch.Tensor:
        """Return the states, as in `SequenceNetwork`."""
        return take_last(self.read_all(histories), histories.length)

    def item_vectors(self) -> torch.Tensor:
        """Return the item vectors, which are read as well."""
        return self.item[1:]

    def item_biases(self) -> None:
        """Return None: there are no biases."""


class RecurrentNetwork(nn.Module):
    """GRU4Rec: gated recurrent units, from oldest item to newest."""

    every_place = True

    def __init__(self, settings: Gru4RecModel, items: int) -> None:
        super().__init__()
        dims = settings.dims
        self.item = nn.Parameter(torch.empty(items + 1, dims))
        self.units = nn.GRU(dims, dims, settings.layers, batch_first=True)
        self.answer = nn.Parameter(torch.empty(items, dims))
        self.bias = nn.Parameter(torch.zeros(items))
        self.dropout = nn.Dropout(settings.dropout)

    def read_all(self, histories: TokenWindows) -> torch.Tensor:
        """Return the states, as in `SequenceNetwork`."""
        read = self.dropout(functional.embedding(histories.token, self.item))
        state: torch.Tensor = self.dropout(self.units(read)[0])
        return state

    def read_last(self, histories: TokenWindows) -> torch.Tensor:
        """Return the states, as in `SequenceNetwork`."""
        return take_last(self.read_all(histories), histories.length)

    def item_vectors(self) -> torch.Tensor:
        """Return the answers' vectors."""
        return self.answer

    def item_biases(self) -> torch.Tensor:
        """Return the answers' biases."""
        return self.bias


class HistoryMemory(nn.Module):
    """MemN2N: the newest item queries a memory of earlier items.

    `linear` is 1 while attention has no softmax (linear start). Checkpoints hold it: weights from a linear
    epoch are read without the softmax.
    """

    every_place = False
    linear: torch.Tensor

    def __init__(self, settings: MemN2NModel, items: int) -> None:
        super().__init__()
        shape = MemoryShape(items + 1, settings.dims, settings.memory, settings.hops, settings.tying)
        self.network, self.dropout = MemoryNetwork(shape, settings.seed), nn.Dropout(settings.dropout)
        self.register_buffer("linear", torch.zeros((), dtype=torch.uint8))

    def read_memory(self, histories: TokenWindows) -> MemoryReading:
        """Return the last states and all hops' attention."""
        token, length = histories
        query = take_last(token, length)
        places = torch.arange(self.network.shape.memory, device=token.device)
        columns = length[:, None] - 2 - places[: max(token.shape[1] - 1, 1)]
        memory = torch.where(columns >= 0, token.gather(1, columns.clamp(min=0)), 0)
        reading: MemoryReading = self.network(query, memory, linear=bool(self.linear))
        return reading

    def read_all(self, histories: TokenWindows) -> torch.Tensor:
        """Raise an error: a memory answers one query at a time."""
        raise NotImplementedError

    def read_last(self, histories: TokenWindows) -> torch.Tensor:
        """Return the states, as in `SequenceNetwork`."""
        state: torch.Tensor = self.dropout(self.read_memory(histories).state)
        return state

    def item_vectors(self) -> torch.Tensor:
        """Return the answers' vectors."""
        return self.network.answers[1:]

    def item_biases(self) -> None:
        """Return None: there are no biases."""


def make_network(settings: SequenceModelConfig, items: int) -> nn.Module:
    """Return a kind's network with random weights by hash.

    Raises:
        ConfigError: settings of another kind.
    """
    if isinstance(settings, MemN2NModel):
        return HistoryMemory(settings, items)
    if isinstance(settings, SasRecModel):
        network: nn.Module = AttentionNetwork(settings, items)
    elif isinstance(settings, Gru4RecModel):
        network = RecurrentNetwork(settings, items)
    else:
        raise ConfigError(f"kind '{settings.kind}' reads no histories", "sasrec, gru4rec or memn2n")
    fill_weights(network, settings.seed)
    return network


def fill_weights(network: nn.Module, seed: int) -> None:
    """Set matrices to hashed normals with variance 2 / (rows + columns).

    Source: Glorot and Bengio 2010. Vectors keep the value their layer begins with, except those which
    layers draw: biases are 0.
    """
    with torch.no_grad():
        for number, (name, weight) in enumerate(network.named_parameters()):
            if weight.dim() == 2:
                spread = math.sqrt(2 / sum(weight.shape))
                rows, dims = weight.shape
                drawn = torch.from_numpy(random_normals(rows, dims, seed + 1000 * number))
                weight.copy_(drawn * spread)
            elif "bias" in name:
                weight.zero_()


class Sequences(NamedTuple):
    """Each user's items in time order, in compressed rows.

    Attributes:
        items: number of items.
        indptr: (users + 1,) place where each user's items begin.
        item: (e,) the oldest first within a user.
    """

    items: int
    indptr: Ints
    item: Ints32

    @property
    def users(self) -> int:
        """Return the number of users."""
        return len(self.indptr) - 1

    @property
    def sizes(self) -> Ints:
        """Return each user's number of items, (users,)."""
        return np.diff(self.indptr)


class TokenWindows(NamedTuple):
    """Padded windows of histories, in tokens.

    Attributes:
        token: (b, l) the oldest first, 0 behind the newest.
        length: (b,) tokens of each.
    """

    token: torch.Tensor
    length: torch.Tensor


def make_sequences(lists: Any, items: int) -> Sequences:
    """Return sequences from each user's list of items.

    >>> make_sequences([[3, 1], [2]], 5).indptr.tolist()
    [0, 2, 3]
    """
    indptr = np.concatenate([[0], np.cumsum([len(own) for own in lists])]).astype(np.int64)
    flat = [np.asarray(own, np.int32) for own in lists]
    return Sequences(items, indptr, np.concatenate(flat) if flat else np.empty(0, np.int32))


def set_last_aside(sequences: Sequences) -> tuple[Sequences, Ints]:
    """Return the sequences without last items, and the last items, (users,).

    A user with one item keeps it, and -1 stands for the last one.
    """
    last = np.full(sequences.users, -1, np.int64)
    has_last = sequences.sizes >= 2
    ends = sequences.indptr[1:][has_last] - 1
    last[has_last] = sequences.item[ends]
    indptr = np.concatenate([[0], np.cumsum(sequences.sizes - has_last)])
    return Sequences(sequences.items, indptr, np.delete(sequences.item, ends)), last


def sort_within_users(sequences: Sequences) -> Ints32:
    """Return each user's items ascending, (e,), for look-ups."""
    user = np.repeat(np.arange(sequences.users), sequences.sizes)
    return sequences.item[np.lexsort((sequences.item, user))]


def cut_windows(sequences: Sequences, begin_b: Ints, end_b: Ints) -> TokenWindows:
    """Return the items in [begin, end), (b,) each, as padded tokens."""
    length = end_b - begin_b
    columns = np.arange(max(int(length.max(initial=0)), 1))
    place = np.minimum(begin_b[:, None] + columns, max(len(sequences.item) - 1, 0))
    token = np.where(columns < length[:, None], sequences.item[place].astype(np.int64) + 1, 0)
    return TokenWindows(torch.from_numpy(token), torch.from_numpy(length))


def cut_newest(sequences: Sequences, user_b: Ints, memory: int) -> TokenWindows:
    """Return some users' newest `memory` items."""
    end = sequences.indptr[user_b + 1]
    return cut_windows(sequences, np.maximum(sequences.indptr[user_b], end - memory), end)


def add_empty_places(histories: TokenWindows, share: float, memory: int, *, seed: int) -> TokenWindows:
    """Insert an empty place before items with a probability, by hash.

    So they come before the query, which is the newest item, and before the oldest item, too. A history
    longer than `memory` places and a query loses its oldest places.

    Args:
        histories: histories in a minibatch.
        share: probability of an empty place before an item: 0.1 makes 0.1 of 1.1 places empty, about .09.
        memory: places in the memory, without the query.
        seed: seed of the draws.
    """
    if not share:
        return histories
    token, length = histories.token.numpy(), histories.length.numpy()
    hashes = hash_numbers(np.arange(token.size), seed % 2**31) >> np.uint64(11)
    drawn = hashes.reshape(token.shape) < np.uint64(share * 2.0**53)
    out = np.zeros((len(token), memory + 1), np.int64)
    sizes = np.empty(len(token), np.int64)
    for row, (own, size) in enumerate(zip(token, length, strict=True)):
        empty = np.flatnonzero(drawn[row, :size])
        mixed = np.insert(own[:size], empty, 0)[-(memory + 1) :]
        out[row, : len(mixed)], sizes[row] = mixed, len(mixed)
    return TokenWindows(torch.from_numpy(out[:, : sizes.max(initial=1)]), torch.from_numpy(sizes))
