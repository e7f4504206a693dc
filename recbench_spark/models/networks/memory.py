"""Define an end-to-end memory network for items and sentences, in torch.

A query reads a memory in several hops. In a hop, entry i of the memory has an input vector m_i and an
output vector c_i, and the state is u: p = softmax(u . m), o = sum of p_i c_i, and the next state is u + o
(adjacent tying) or H u + o (layer-wise tying). Entries are numbers: of single tokens (items), or of word
bags (`WordBags`). Number 0 is an empty entry, which gets no attention. Column 0 in a memory is its newest
entry, and temporal encoding adds a row T(i) to the vectors in column i. Source: Sukhbaatar et al. 2015.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from recbench_spark.errors import ConfigError
from recbench_spark.models.networks.factors import random_normals

ADJACENT, LAYER_WISE = "adjacent", "layer_wise"
TYINGS = (ADJACENT, LAYER_WISE)


class MemoryShape(NamedTuple):
    """Sizes of a memory network, and which tables it shares.

    Attributes:
        tokens: number of tokens, with the empty token 0.
        dims: length of all vectors.
        memory: most entries in a memory.
        hops: number of hops.
        tying: which tables hops share. `adjacent`: a hop's output table is the next hop's input table, the
            query has the first input table, and answers have the last output table. `layer_wise`: all hops
            share both tables, and query and answers have tables of their own.
        temporal: True adds temporal encoding.
    """

    tokens: int
    dims: int
    memory: int
    hops: int = 3
    tying: str = ADJACENT
    temporal: bool = True

    def check(self) -> None:
        """Raise ConfigError for sizes out of range."""
        for name, least in {"tokens": 2, "dims": 1, "memory": 1, "hops": 1}.items():
            if getattr(self, name) < least:
                raise ConfigError(f"{name}: {getattr(self, name)} is less than {least}")
        if self.tying not in TYINGS:
            raise ConfigError(f"tying: no '{self.tying}'", f"known: {', '.join(TYINGS)}")


class MemoryReading(NamedTuple):
    """Result of all hops over a memory.

    Attributes:
        state: (b, d) last state u, whose products with the rows of `MemoryNetwork.answers` are scores.
        attention: (b, hops, n) each entry's weight in each hop; 0 for empty entries.
    """

    state: torch.Tensor
    attention: torch.Tensor


def attend(
    state: torch.Tensor, inputs: torch.Tensor, outputs: torch.Tensor, filled: torch.Tensor, linear: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Read a memory once.

    Args:
        state: (b, d) u.
        inputs: (b, n, d) m.
        outputs: (b, n, d) c.
        filled: (b, n) false for empty entries, which get no attention.
        linear: True leaves out the softmax, as in a linear start: p = u . m.

    Returns:
        (b, d) o = sum of p_i c_i, and (b, n) p. Both are 0 where all entries are empty.
    """
    weight = (inputs @ state[:, :, None]).squeeze(2)
    if not linear:
        lowest = torch.finfo(weight.dtype).min
        weight = functional.softmax(weight.masked_fill(~filled, lowest), dim=1)
    weight = weight * filled
    return (weight[:, None, :] @ outputs).squeeze(1), weight


class MemoryNetwork(nn.Module):
    """Reads a memory in K hops and scores all answers.

    Memory tables stand side by side, so one lookup per entry serves all hops.

    Attributes:
        shape: its sizes.
        table: (tokens, T d) T tables side by side; `adjacent`: hops + 1, `layer_wise`: input and output.
        times: (memory, T d) rows of temporal encoding, tied as the tables are.
        query_table: (tokens, d) with layer-wise tying; else None.
        answer_table: (tokens, d) with layer-wise tying; else None.
        H: (d, d) map between hops with layer-wise tying; else None.
    """

    def __init__(self, shape: MemoryShape, seed: int, spread: float = 0.1) -> None:
        """Make the network with normal weights around 0.

        Args:
            shape: its sizes.
            seed: seed of the weights.
            spread: standard deviation of the weights.

        Raises:
            ConfigError: a size is out of range.
        """
        super().__init__()
        shape.check()
        self.shape, adjacent = shape, shape.tying == ADJACENT
        self.hop_tables = [(hop, hop + 1) if adjacent else (0, 1) for hop in range(shape.hops)]
        tables = shape.hops + 1 if adjacent else 2
        rows = [shape.tokens] * (tables if adjacent else 4) + [shape.memory] * tables + [shape.dims]
        drawn = torch.from_numpy(random_normals(sum(rows), shape.dims, seed) * np.float32(spread))
        parts = torch.split(drawn, rows)
        self.table = nn.Parameter(torch.cat(parts[:tables], dim=1))
        times = torch.cat(parts[-1 - tables : -1], dim=1)
        self.times = nn.Parameter(times) if shape.temporal else None
        self.query_table = None if adjacent else nn.Parameter(parts[2])
        self.answer_table = None if adjacent else nn.Parameter(parts[3])
        self.H = None if adjacent else nn.Parameter(parts[-1])

    @property
    def answers(self) -> torch.Tensor:
        """Return (tokens, d) W; row 0 belongs to the empty token."""
        last = self.shape.hops * self.shape.dims
        return self.table[:, last:] if self.answer_table is None else self.answer_table

    def forward(
        self, query: torch.Tensor, memory: torch.Tensor, bags: WordBags | None = None, linear: bool = False
    ) -> MemoryReading:
        """Read a memory in all hops.

        The map H is one product for all queries, whose last bits may depend on their number: callers in
        need of equal bits pass equal blocks.

        Args:
            query: (b,) an entry each.
            memory: (b, n) entries, the newest first, 0 where there is none; n is at most `shape.memory`.
            bags: words of the entries; None: an entry is a token.
            linear: True leaves out the softmax of attention.

        Raises:
            ConfigError: the memory has more columns than the network has places.
        """
        if memory.shape[1] > self.shape.memory:
            raise ConfigError(f"{memory.shape[1]} entries, and memory: {self.shape.memory}")
        rows = self._encode(self.table, bags)
        vectors = functional.embedding(memory, rows)
        if self.times is not None:
            vectors = vectors + self.times[: memory.shape[1]]
        by_table = torch.split(vectors, self.shape.dims, dim=2)
        queries = rows if self.query_table is None else self._encode(self.query_table, bags)
        state = functional.embedding(query, queries)[:, : self.shape.dims]
        filled, weights = memory > 0, []
        for entry, output in self.hop_tables:
            o, weight = attend(state, by_table[entry], by_table[output], filled, linear)
            state = o + (state if self.H is None else state @ self.H.T)
            weights.append(weight)
        return MemoryReading(state, torch.stack(weights, dim=1))

    def _encode(self, table: torch.Tensor, bags: WordBags | None) -> torch.Tensor:
        return table if bags is None else bags.encode(table, self.shape.dims)

    def score(self, state: torch.Tensor) -> torch.Tensor:
        """Return the states' products with W, (b, tokens)."""
        return state @ self.answers.T


class WordBags(nn.Module):
    """Encodes entries with several words as weighted word sums.

    With position encoding, word j of J (from 1) has the weight l_k = (1 - j/J) - (k/d)(1 - 2j/J) in
    dimension k (from 1). This is a_j - (k/d) b_j, so an entry is a row in two products with the table.
    Entry 0 has no words.
    """

    def __init__(self, words: Sequence[Sequence[int]], tokens: int, position: bool = True) -> None:
        """Store each entry's word weights.

        Args:
            words: each entry's tokens in order; the first entry has none.
            tokens: number of tokens, with the empty token 0.
            position: True: position encoding; False: the sum of the words.

        Raises:
            ConfigError: the first entry has words.
        """
        super().__init__()
        if len(words[0]):
            raise ConfigError("entry 0 has words", "entry 0 is the empty entry")
        even, slope = np.zeros((2, len(words), tokens))
        for entry, sentence in enumerate(words):
            place = np.arange(1, len(sentence) + 1) / max(len(sentence), 1)
            np.add.at(even[entry], list(sentence), 1 - place if position else 1)
            np.add.at(slope[entry], list(sentence), 1 - 2 * place if position else 0)
        self.register_buffer("weights", torch.from_numpy(np.concatenate([even, slope])))

    def encode(self, table: torch.Tensor, dims: int) -> torch.Tensor:
        """Return all entries' vectors, (entries, T d).

        Args:
            table: (tokens, T d) word vectors in T tables side by side.
            dims: d.
        """
        even, slope = (self.get_buffer("weights").to(table.dtype) @ table).chunk(2)
        share = torch.arange(1, dims + 1, dtype=table.dtype, device=table.device) / dims
        return even - share.repeat(table.shape[1] // dims) * slope
