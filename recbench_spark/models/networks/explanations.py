"""Explain a user's best item by attention, and test the explanation.

Attention in a memory network need not explain a score. So each item is also taken out of the memory:
without the item of largest weight, a good explanation lets the score fall more than without another one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from recbench_spark.models.networks.sequence_networks import HistoryMemory
from recbench_spark.models.networks.sequences import TokenWindows

Floats = npt.NDArray[np.floating[Any]]


class Explanation(NamedTuple):
    """One user's attention, with each memory item's effect on the score.

    Attributes:
        best: the item with the largest score among those open for recommendation.
        weight: (hops, n) memory weights, from the newest item before the query on.
        score_change: (n,) change in the best item's score if this item is taken out.
    """

    best: int
    weight: Floats
    score_change: Floats


def explain_history(module: Any, tokens: Any, barred: Any = ()) -> Explanation:
    """Return a history's attention, and its best item's score changes.

    Args:
        module: a `HistoryMemory` in evaluation mode.
        tokens: (l,) items plus 1 as the network reads them, the oldest first; the newest one is the query.
        barred: further items which may not be best: the user's earlier ones, and those no list has.
    """
    assert isinstance(module, HistoryMemory)
    token = torch.from_numpy(np.asarray(tokens, np.int64))
    with torch.no_grad():
        reading = module.read_memory(make_one(token))
        score = module.item_vectors() @ reading.state[0]
        unseen = score.clone()
        unseen[token - 1] = -torch.inf
        unseen[torch.from_numpy(np.asarray(barred, np.int64))] = -torch.inf
        best = int(unseen.argmax())
        changes = [
            _score_without(module, token, place, best) - score[best] for place in range(len(token) - 1)
        ]
    weight = reading.attention[0, :, : len(token) - 1].numpy()
    return Explanation(best, weight, np.array([float(change) for change in reversed(changes)]))


def make_one(token: torch.Tensor) -> TokenWindows:
    """Return one history as a minibatch."""
    return TokenWindows(token[None], torch.tensor([len(token)]))


def _score_without(module: HistoryMemory, token: torch.Tensor, place: int, item: int) -> torch.Tensor:
    """Return an item's score when one token becomes empty.

    The other tokens stay.
    """
    without = token.clone()
    without[place] = 0
    return module.item_vectors()[item] @ module.read_memory(make_one(without)).state[0]


def compare_drops(explanations: list[Explanation], hop: int = 0) -> tuple[float, float]:
    """Return mean score changes without the top item, or another.

    The top item has the largest weight in a hop. The second mean is over all other memory items: the
    expectation for a random one. Histories with fewer than two memory items are left out.
    """
    top, others = [], []
    for one in explanations:
        if len(one.score_change) > 1:
            largest = int(one.weight[hop].argmax())
            top.append(one.score_change[largest])
            others.append(np.delete(one.score_change, largest).mean())
    return float(np.mean(top)), float(np.mean(others))
