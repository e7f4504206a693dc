"""Fits of answers: gradients are torch's, empty entries keep the order, and stories are learnt."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch.nn import functional

from jobs.studies.answers import (
    AnswerPlan,
    AnswerSteps,
    Questions,
    add_empty_entries,
    fit_answers,
    measure_error,
)
from jobs.studies.question_worlds import QuestionSet, number_stories, write_stories
from recbench_spark.errors import ConfigError
from recbench_spark.models.networks.memory import TYINGS, MemoryNetwork, MemoryShape, WordBags


def make_questions(task: int, count: int) -> QuestionSet:
    return number_stories(write_stories(task, count, 5))


def make_network(world: QuestionSet, tying: str, hops: int, temporal: bool = True) -> MemoryNetwork:
    longest = world.memory.shape[1] + 2
    return MemoryNetwork(MemoryShape(len(world.words), 7, longest, hops, tying, temporal), 1, 0.5)


@pytest.mark.full  # compiles for ten seconds
@pytest.mark.parametrize("tying", TYINGS)
@pytest.mark.parametrize("linear", [False, True])
@pytest.mark.parametrize("temporal", [False, True])
def test_gradients_are_those_of_torch_in_float64(tying: str, linear: bool, temporal: bool) -> None:
    world = make_questions(2, 9)
    noisy = add_empty_entries(world.memory, 0.2, world.memory.shape[1] + 2, np.random.default_rng(2))
    noisy[4] = 0  # a story without sentences
    fitted = make_network(world, tying, 2, temporal)
    network, steps = copy.deepcopy(fitted).double(), AnswerSteps(fitted, world.entries)
    for _ in range(2):  # gradients are set, not added up
        loss = steps.compute_gradients(Questions(noisy, world.query, world.answer), linear)
    bags = WordBags(world.entries, len(world.words))
    state = network(torch.from_numpy(world.query), torch.from_numpy(noisy), bags, linear).state
    answer = torch.from_numpy(world.answer)
    expected = functional.cross_entropy(network.score(state), answer, reduction="sum")
    assert loss == pytest.approx(expected.item(), rel=1e-5)
    expected.backward()
    length = torch.sqrt(sum((w.grad**2).sum() for w in network.parameters())).item()
    named = {"table": "table", "times": "times", "queries": "query_table", "answers": "answer_table"}
    for field, name in (named | {"map": "H"}).items():
        weight = getattr(network, name)
        if weight is not None:
            own = getattr(steps.gradients, field)
            assert np.abs(own - weight.grad.numpy()).max() < 1e-5 * length
    before = {name: w.detach().clone() for name, w in network.named_parameters()}
    steps.descend(0.1, length / 4)  # a gradient of four times the limit
    for (name, w), new in zip(network.named_parameters(), fitted.parameters(), strict=True):
        assert torch.allclose(new.double(), before[name] - 0.1 / 4 * w.grad, atol=1e-5)


def test_empty_entries_keep_the_order() -> None:
    memory = np.array([[5, 6, 7, 8], [9, 4, 0, 0]] * 500)
    noisy = add_empty_entries(memory, 0.1, 99, np.random.default_rng(1))
    assert [row[row > 0].tolist() for row in noisy] == [row[row > 0].tolist() for row in memory]
    gaps = [np.flatnonzero(row)[-1] + 1 - (row > 0).sum() for row in noisy]
    assert np.sum(gaps) / (memory > 0).sum() == pytest.approx(0.1, abs=0.02)
    assert add_empty_entries(memory, 0.5, 4, np.random.default_rng(1)).shape == (1000, 4)
    assert np.array_equal(add_empty_entries(memory, 0, 99, np.random.default_rng(1)), memory)


def test_the_plan_of_the_authors() -> None:
    epochs = list(AnswerPlan().list_epochs())
    assert epochs[:20] == [(0.005, True)] * 20
    assert [rate for rate, _ in epochs[20:]] == [0.01] * 25 + [0.005] * 25 + [0.0025] * 25 + [0.00125] * 25
    assert not any(linear for _, linear in epochs[20:])
    for wrong in ({"epochs": 0}, {"rate": 0.0}, {"noise": 1.0}, {"batch": 0}):
        with pytest.raises(ConfigError):
            AnswerPlan(**wrong)  # type: ignore[arg-type]


@pytest.mark.full
@pytest.mark.parametrize("tying", TYINGS)
def test_one_fact_is_learnt_to_equal_bits_again(tying: str) -> None:
    world = make_questions(1, 1300)
    bags = WordBags(world.entries, len(world.words))
    plan = AnswerPlan(epochs=30, linear_start=5, halving=10)
    train, test = (Questions(*world.select(rows)[2:]) for rows in (slice(1000), slice(1000, None)))
    networks = [make_network(world, tying, 1) for _ in range(2)]
    for network in networks:
        fit_answers(network, world.entries, train, plan)
    assert all(torch.equal(*pair) for pair in zip(*(n.parameters() for n in networks), strict=True))
    assert measure_error(networks[0], bags, test) < 0.05
    untrained = measure_error(make_network(world, tying, 1), bags, test)
    assert untrained > 0.5
