"""Compute the training losses for graph and factor models.

Each loss is a sum over its examples, so processes can add theirs. Divided by the examples of all processes,
it gives the gradient one process would compute.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from recbench_spark.errors import ConfigError


def max_margin(
    query: torch.Tensor,
    item: torch.Tensor,
    shared: torch.Tensor | None,
    hard: torch.Tensor | None,
    margin: float,
) -> torch.Tensor:
    """Return max-margin losses, averaged over negatives, summed over pairs.

    A negative n costs max(0, q . n - q . i + margin) (Ying et al. 2018, equation 1). `shared` are the
    minibatch's negatives, `hard` those of each pair.

    Args:
        query: (b, d).
        item: (b, d) positives.
        shared: (m, d), the same for all pairs; None: none.
        hard: (b, k, d); None: none.
        margin: at least 0.

    Raises:
        ConfigError: the margin is negative, or there are no negatives.
    """
    if margin < 0:
        raise ConfigError(f"margin: {margin} is negative", "give a margin of 0 or more, e.g. 0.1")
    positive = (query * item).sum(dim=1, keepdim=True)
    scores = [] if shared is None else [query @ shared.T]
    if hard is not None and hard.shape[1]:
        scores.append((hard @ query[:, :, None]).squeeze(2))
    if not scores:
        raise ConfigError("no negatives", "negatives: 500, or hard ones")
    return torch.relu(torch.cat(scores, dim=1) - positive + margin).mean(dim=1).sum()


def bayesian_ranking(
    positive: torch.Tensor, negative: torch.Tensor, known: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the sum of -log sigma(positive - negative) (Rendle et al. 2009).

    Args:
        positive: (b, 1) scores.
        negative: (b, n) scores.
        known: (b, n) true where a negative is one of the user's items: the result is then the sum over rows
            of the mean over the others, 0 where nothing is left. None: the sum over all.
    """
    losses = functional.softplus(negative - positive)
    if known is None:
        return losses.sum()
    left = (~known).sum(dim=1).clamp(min=1)
    return (losses.masked_fill(known, 0).sum(dim=1) / left).sum()


def co_occurrence(
    one: torch.Tensor, other: torch.Tensor, negatives: torch.Tensor, times: float
) -> torch.Tensor:
    """Return GraphSAGE's unsupervised loss over pairs met on walks.

    The loss is the sum of -log sigma(u . v) - Q mean over n of log sigma(-u . n) (Hamilton et al. 2017,
    equation 1).

    Args:
        one: (b, d) u.
        other: (b, d) v.
        negatives: (m, d), the same for all pairs.
        times: Q.
    """
    near = functional.softplus(-(one * other).sum(dim=1))
    far = functional.softplus(one @ negatives.T).mean(dim=1)
    return (near + times * far).sum()


def cross_entropy(scores: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    """Return the sum of -log softmax(scores)[label].

    Scores are (b, classes) and labels (b,). Labels (b, classes) with 0 and 1 use the sigmoid instead, with
    the mean over classes.
    """
    if label.dim() == 2:
        total = functional.binary_cross_entropy_with_logits(scores, label.to(scores.dtype), reduction="sum")
        return total / scores.shape[1]
    return functional.cross_entropy(scores, label, reduction="sum")
