"""Fit a memory network to questions with one-word answers.

It follows the authors (Sukhbaatar et al. 2015, 4.2): plain gradient steps on a minibatch's summed loss,
gradients cut to a length, a rate halved every so many epochs, and random empty entries in training. A
linear start comes first: epochs at half the rate without the softmax of attention. Draws are a function of
seed and epoch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from jobs.studies.answer_gradients import HopPlaces, MemoryWeights, add_gradients, list_words
from recbench_spark.errors import ConfigError
from recbench_spark.models.networks.memory import MemoryNetwork, WordBags

Entries = npt.NDArray[np.int64]


class Questions(NamedTuple):
    """A batch of questions about memories, with their one-word answers.

    `memory`: (q, n) entries, the newest first. `query`: (q,) entries. `answer`: (q,) tokens.
    """

    memory: Entries
    query: Entries
    answer: Entries


@dataclass(frozen=True)
class AnswerPlan:
    """Settings for training on questions; defaults are the authors'.

    Attributes:
        epochs: epochs with the softmax of attention.
        linear_start: epochs without it, before these.
        batch: questions in a minibatch.
        rate: learning rate in the first epochs; a linear start has half of it.
        halving: epochs after which the rate is halved.
        gradient_length: largest length of all weights' joint gradient.
        noise: probability of an empty entry before each entry.
        seed: seed of all draws.
    """

    epochs: int = 100
    linear_start: int = 20
    batch: int = 32
    rate: float = 0.01
    halving: int = 25
    gradient_length: float = 40.0
    noise: float = 0.1
    seed: int = 1

    def __post_init__(self) -> None:
        """Raise ConfigError for numbers out of range."""
        for name, least in {"epochs": 1, "linear_start": 0, "batch": 1, "halving": 1}.items():
            if getattr(self, name) < least:
                raise ConfigError(f"{name}: {getattr(self, name)} is less than {least}")
        if not (self.rate > 0 and self.gradient_length > 0 and 0 <= self.noise < 1):
            raise ConfigError("rate and gradient_length are above 0, and noise is in [0, 1)")

    def list_epochs(self) -> Iterator[tuple[float, bool]]:
        """Yield each epoch's rate, and true for epochs without softmax."""
        yield from ((self.rate / 2, True) for _ in range(self.linear_start))
        yield from ((self.rate * 0.5 ** (epoch // self.halving), False) for epoch in range(self.epochs))


def add_empty_entries(memory: Entries, noise: float, longest: int, draw: np.random.Generator) -> Entries:
    """Put an empty entry before each entry with a probability.

    Args:
        memory: (q, n) entries, the newest first.
        noise: probability.
        longest: most columns in the result; later entries are left out.
        draw: source of the draws.
    """
    places = np.arange(memory.shape[1]) + np.cumsum(draw.random(memory.shape) < noise, axis=1)
    wide = np.zeros((len(memory), int(places.max()) + 1), np.int64)
    np.put_along_axis(wide, places, memory, axis=1)
    return wide[:, :longest]


def fit_answers(
    network: MemoryNetwork, entries: Sequence[Sequence[int]], questions: Questions, plan: AnswerPlan
) -> None:
    """Fit a network to questions, in place."""
    steps = AnswerSteps(network, entries)
    for epoch, (rate, linear) in enumerate(plan.list_epochs(), 1):
        draw = np.random.default_rng((plan.seed, epoch))
        order = draw.permutation(len(questions.query))
        noisy = add_empty_entries(questions.memory, plan.noise, network.shape.memory, draw)
        shuffled = Questions(noisy[order], questions.query[order], questions.answer[order])
        for start in range(0, len(order), plan.batch):
            batch = Questions(*(part[start : start + plan.batch] for part in shuffled))
            steps.compute_gradients(batch, linear)
            steps.descend(rate, plan.gradient_length)


class AnswerSteps:
    """Makes gradient steps on a network's weights, in place.

    Attributes:
        gradients: the last minibatch's gradients.
    """

    def __init__(self, network: MemoryNetwork, entries: Sequence[Sequence[int]]) -> None:
        shape, table = network.shape, network.table.detach().numpy()
        none = np.zeros((0, shape.dims), table.dtype)
        optional = (network.times, network.query_table, network.answer_table, network.H)
        times, queries, answers, between = (
            None if part is None else part.detach().numpy() for part in optional
        )
        self.weights = [part for part in (table, times, queries, answers, between) if part is not None]
        no_times = np.zeros((shape.memory, table.shape[1]), table.dtype)
        self.named = MemoryWeights(
            table,
            no_times if times is None else times,
            table if queries is None else queries,
            table if answers is None else answers,
            none if between is None else between,
        )
        self.words = list_words(entries, shape.dims, table.shape[1], table.dtype)
        self.hops = np.array(network.hop_tables) * shape.dims
        self.answer = shape.hops * shape.dims if answers is None else 0
        gradient_of = {id(part): np.zeros_like(part) for part in self.named}
        self.gradients = MemoryWeights(*(gradient_of[id(part)] for part in self.named))
        self.by_weight = [gradient_of[id(part)] for part in self.weights]

    def compute_gradients(self, batch: Questions, linear: bool) -> float:
        """Set the gradients of a minibatch's summed loss; return it."""
        for gradient in self.by_weight:
            gradient[:] = 0
        places = HopPlaces(self.hops, self.answer, linear)
        return float(add_gradients(self.named, self.words, places, *batch, self.gradients))

    def descend(self, rate: float, longest: float) -> None:
        """Subtract the gradient times the rate.

        A longer gradient than `longest` is cut to it.
        """
        length = np.sqrt(sum(float(np.vdot(part, part)) for part in self.by_weight))
        scale = rate * min(1.0, longest / max(length, 1e-12))
        for weight, gradient in zip(self.weights, self.by_weight, strict=True):
            np.subtract(weight, weight.dtype.type(scale) * gradient, out=weight)


def measure_error(network: MemoryNetwork, bags: WordBags, questions: Questions, block: int = 1000) -> float:
    """Return the share of questions whose best token is wrong."""
    wrong = 0
    with torch.no_grad():
        for start in range(0, len(questions.query), block):
            memory, query, answer = (torch.from_numpy(part[start : start + block]) for part in questions)
            state = network(query, memory[:, : network.shape.memory], bags).state
            wrong += int((network.score(state).argmax(dim=1) != answer).sum())
    return wrong / len(questions.query)
