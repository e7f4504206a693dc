"""Explain the best item of a user by the attention of a memory network, and test what attention explains.

Attention need not explain a score. So each item of the memory is also taken out of it: an explanation that
holds lets the score fall more without the item of the largest weight than without another one.
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
    """Explanation is the attention of one user.

    Attributes:
        best: the item with the largest score among those that may be recommended.
        weight: (hops, n) weights of the memory, from the newest item before the query on.
        score_change: (n,) change of the best item's score if this item is taken out of the memory.
    """

    best: int
    weight: Floats
    score_change: Floats


def explain_history(module: Any, tokens: Any, barred: Any = ()) -> Explanation:
    """Return the attention of a history, and the changes of the score of its best item.

    Args:
        module: a `HistoryMemory` in evaluation mode.
        tokens: (l,) items plus 1 that the network reads, the oldest first; the newest one is the query.
        barred: further items that may not be the best one: those that the user had before, and those
            that no list has.
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
    """Return the score of an item when the token at a place is an empty one, and the others stay."""
    without = token.clone()
    without[place] = 0
    return module.item_vectors()[item] @ module.read_memory(make_one(without)).state[0]


def compare_drops(explanations: list[Explanation], hop: int = 0) -> tuple[float, float]:
    """Return the mean change without the item of the largest weight in a hop, and without another one.

    The second mean is over all other items of the memory: the expectation for one drawn at random.
    Histories with a memory of one item or none are left out.
    """
    top, others = [], []
    for one in explanations:
        if len(one.score_change) > 1:
            largest = int(one.weight[hop].argmax())
            top.append(one.score_change[largest])
            others.append(np.delete(one.score_change, largest).mean())
    return float(np.mean(top)), float(np.mean(others))
