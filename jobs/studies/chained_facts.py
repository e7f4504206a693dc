"""Generate histories whose next item follows from two facts.

After ?a, the facts a>b and b>c give c. Items are questions ?a, facts a>b and answers c over ENTITIES
entities. A user's facts are one cycle through all entities, in random order. Then QUESTIONS questions
follow, each with its answer. The answer to ?a is the entity two steps after a. With the chance NOISE it
is instead drawn from the entities that neither earlier answers nor later rules use for this user. So even
with all facts the noise is a guess, and the best possible values are known. No item is twice in a
history. A model needs two steps: the question leads to a fact, and the fact to another one. The world was
made for models with hops.

Models must predict every user's last answer. Users in part train keep it, and fits set it aside for
validation; the others' last answers are part test, and their earlier items are given.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

VERSION = 1
"""Version of the generator."""

ENTITIES, QUESTIONS, NOISE = 5, 3, 0.2
ITEMS = 2 * ENTITIES + ENTITIES**2
"""Answers c are items 0 .. ENTITIES - 1, questions the next ones, then facts a>b by a and b."""

LENGTH = ENTITIES + 2 * QUESTIONS
"""A user's items."""

Items = npt.NDArray[np.int64]


class BestValues(NamedTuple):
    """The values of a model that knows the rule.

    Candidates are the items a user does not have.
    """

    hit_at_1: float
    ndcg_at_10: float


def find_best_values() -> BestValues:
    """Return the best possible values.

    The rule's answer comes first; the others that are left are equally likely.

    >>> round(find_best_values().hit_at_1, 4), round(find_best_values().ndcg_at_10, 4)
    (0.8667, 0.9421)
    """
    left = ENTITIES - QUESTIONS + 1
    other = NOISE / left
    first = 1 - NOISE + other
    return BestValues(first, first + sum(other / math.log2(rank + 1) for rank in range(2, left + 1)))


def generate_histories(users: int, seed: int = 11) -> Items:
    """Return each user's items by time, (users, LENGTH)."""
    draw = np.random.default_rng(seed)
    return np.array([_draw_history(draw) for _ in range(users)], np.int64).reshape(users, LENGTH)


def _draw_history(draw: np.random.Generator) -> list[int]:
    cycle = draw.permutation(ENTITIES)
    after = np.empty(ENTITIES, np.int64)
    after[cycle] = np.roll(cycle, -1)
    history = [2 * ENTITIES + a * ENTITIES + after[a] for a in draw.permutation(ENTITIES)]
    sources = draw.permutation(ENTITIES)[:QUESTIONS]
    ruled = after[after[sources]]
    answers: list[int] = []
    for number, (question, expected) in enumerate(zip(sources, ruled, strict=True)):
        barred = {*answers, *ruled[number + 1 :].tolist()}
        others = [c for c in range(ENTITIES) if c not in barred]
        answer = draw.choice(others) if draw.random() < NOISE else expected
        answers.append(int(answer))
        history += [ENTITIES + question, answer]
    return [int(item) for item in history]


def write_log(folder: Path, users: int, test_users: int, seed: int = 11) -> None:
    """Write `log.parquet` as a night reads it.

    The columns are user_id, item_id, event_time (seconds) and part.

    Args:
        folder: the target; it is created if needed.
        users: users in part train.
        test_users: users whose last item is tested and whose others are given.
        seed: seed for all draws.
    """
    history_ul = generate_histories(users + test_users, seed)
    is_tested = np.arange(users + test_users) >= users
    part = np.where(is_tested[:, None], "given", "train").repeat(LENGTH, axis=1)
    part[is_tested, -1] = "test"
    table = {
        "user_id": np.repeat(np.arange(users + test_users), LENGTH),
        "item_id": history_ul.reshape(-1),
        "event_time": np.tile(np.arange(LENGTH), users + test_users),
        "part": part.reshape(-1),
    }
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(table), folder / "log.parquet")
