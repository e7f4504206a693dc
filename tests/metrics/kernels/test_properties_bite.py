"""The properties that guard the kernels fail when a kernel is broken on purpose.

Each mutant is a mistake that a published library has made, or that a refactoring could. On the kernels as
they are every property holds; on each mutant at least one does not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from recbench_spark.core.definitions import Definition
from recbench_spark.metrics.kernels import chunk
from recbench_spark.metrics.kernels.accuracy import cutoffs, measure
from recbench_spark.metrics.kernels.chunk import Chunk
from recbench_spark.ranking.kernels import lists
from recbench_spark.ranking.kernels.lists import HeldOutItems, InputLists, UserItems, rank_lists
from recbench_spark.ranking.kernels.rankings import Rankings
from tests import oracles

NAMES = ("hit", "precision", "recall", "f1", "map", "mrr", "ndcg", "rbp")
KS = [1, 2, 3, 5, 9]
DEFINITIONS = (
    Definition(),
    Definition(ties="expected", gain="linear"),
    Definition(ties="pessimistic", ap_by="relevant", empty_users="zero"),
)


def some_users() -> list[Any]:
    """Short, missing and tied lists, users without truth, all and none relevant."""
    rng = np.random.default_rng(4)
    users: list[Any] = [
        ({}, {1: 1.0}),
        ({1: 0.5}, {}),
        ({0: 1.0, 1: 0.5}, {0: 1.0, 1: 1.0}),
        ({3: 1.0}, {4: 2.0}),
    ]
    for _ in range(25):
        listed = rng.choice(9, size=int(rng.integers(1, 6)), replace=False)
        truth = rng.choice(9, size=int(rng.integers(1, 5)), replace=False)
        scores = {int(i): float(rng.integers(1, 4)) for i in listed}
        users.append((scores, {int(i): float(rng.integers(0, 4)) for i in truth}))
    return users


USERS = some_users()
EXPECTED = {
    (n, name): np.array(
        [[oracles.value(name, s, t, k, d) for k in cutoffs(name, KS)] for s, t in USERS], dtype=float
    )
    for n, d in enumerate(DEFINITIONS)
    for name in NAMES
}


def close(one: Any, other: Any) -> bool:
    return bool(np.allclose(one, other, rtol=1e-11, atol=1e-11, equal_nan=True))


def equal_the_oracle() -> bool:
    rankings = oracles.make_rankings(USERS)
    return all(
        close(measure(rankings, [name], KS, DEFINITIONS[n])[name], expected)
        for (n, name), expected in EXPECTED.items()
    )


def batches_change_nothing() -> bool:
    rankings = oracles.make_rankings(USERS)
    for definition in DEFINITIONS:
        whole = measure(rankings, NAMES, KS, definition)
        parts = [measure(rankings.users(u, u + 1), NAMES, KS, definition) for u in range(len(USERS))]
        if any(not close(np.concatenate([part[n] for part in parts]), whole[n]) for n in NAMES):
            return False
    return True


def truth_order_changes_no_bit() -> bool:
    """Grades of which some sums round differently in another order."""
    grades = [0.1, 0.2, 0.3]
    definition = Definition(ties="expected", gain="linear")
    result = []
    for order in ([0, 1, 2], [2, 1, 0]):
        zeros = np.zeros(3, dtype=np.int64)
        rankings = Rankings(
            np.array([0, 3]), np.array(grades)[order], zeros, zeros + 5, zeros, np.array([9])
        )
        result.append(measure(rankings, ["ndcg"], KS, definition)["ndcg"].tobytes())
    return len(set(result)) == 1


def duplicates_change_nothing() -> bool:
    """Every truth row and list row twice: the same ranks, and no recall above 1."""
    result = []
    for times in (1, 2):
        keys = np.repeat([1, 3, 2], times).astype(np.int64)
        scores = np.repeat([0.9, 0.8, 0.7], times)
        truth_keys = np.repeat([1, 2], times).astype(np.int64)
        given = InputLists(np.array([0, len(keys)]), keys, score=scores)
        truth = HeldOutItems(np.array([0, len(truth_keys)]), truth_keys, np.ones(len(truth_keys)))
        rankings = rank_lists(given, truth, Definition(), UserItems(np.array([0, 0]), keys[:0])).rankings
        result.append(measure(rankings, ["recall", "ndcg"], [3], Definition()))
    return close(result[0]["recall"], result[1]["recall"]) and close(result[0]["ndcg"], result[1]["ndcg"])


PROPERTIES: tuple[Callable[[], bool], ...] = (
    equal_the_oracle,
    batches_change_nothing,
    truth_order_changes_no_bit,
    duplicates_change_nothing,
)

make_groups, lexsort = Chunk._make_groups, np.lexsort


def _keep_input_order(self: Chunk, above: Any, size: Any, keep: Any) -> Any:
    """Gains of a tie are added as they came."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(np, "lexsort", lambda keys: lexsort(keys[1:]))
        return make_groups(self, above, size, keep)


MUTANTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "ranks start at 0": lambda m: m.setattr(
        Chunk, "rank_p", property(lambda c: np.maximum(c.rankings.above + c.rankings.before, 0))
    ),
    "ties are broken for the model": lambda m: m.setattr(
        Chunk, "rank_p", property(lambda c: np.where(c.rankings.above < 0, 0, 1 + c.rankings.above))
    ),
    "expected ties are broken by id": lambda m: m.setattr(
        Chunk, "tie_groups", property(lambda c: c.certain_groups(c.rank_p))
    ),
    "unranked items stand first": lambda m: m.setattr(
        Chunk, "rank_p", property(lambda c: 1 + np.maximum(c.rankings.above, 0) + c.rankings.before)
    ),
    "the ideal list has k items": lambda m: m.setattr(
        Chunk, "reachable_hits", property(lambda c: c.k_uc.copy())
    ),
    "users without a list are left out": lambda m: m.setattr(
        Chunk, "_user_mask", lambda c, axis: c.length > 0
    ),
    "relevance is any grade": lambda m: m.setattr(
        chunk, "is_relevant", lambda relevance, definition: np.ones(len(relevance), dtype=bool)
    ),
    "k looks one rank further": lambda m: m.setattr(
        Chunk, "_last_k", property(lambda c: np.minimum(np.asarray(c.ks), c.depth - 1))
    ),
    "lists are as long as the batch's first": lambda m: m.setattr(
        chunk, "max_depth", lambda r, ks: int(max(1, min(max(ks), r.length[0] or 1)))
    ),
    "sums in the order of the input": lambda m: m.setattr(Chunk, "_make_groups", _keep_input_order),
    "duplicates of the truth are kept": lambda m: m.setattr(
        lists, "_distinct", lambda truth, definition: (truth, 0)
    ),
}


@pytest.mark.parametrize("property_", PROPERTIES, ids=lambda p: p.__name__)
def test_the_kernels_as_they_are_hold(property_: Callable[[], bool]) -> None:
    assert property_()


@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_kernel_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS[name](monkeypatch)
    assert not all(_holds(property_) for property_ in PROPERTIES)


def _holds(property_: Callable[[], bool]) -> bool:
    try:
        return property_()
    except (IndexError, ValueError, RuntimeWarning):
        return False
