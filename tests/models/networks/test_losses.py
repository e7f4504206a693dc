"""Losses by hand and by loops."""

from __future__ import annotations

import math

import pytest
import torch

from recbench_spark.errors import ConfigError
from recbench_spark.models.networks import factors, tasks


def test_max_margin_by_hand() -> None:
    query, item = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.tensor([[1.0, 1.0], [0.5, 0.25]])
    shared = torch.tensor([[0.9, 0.0], [0.0, 0.5]])
    # q.i = 1, .5; q.n = (.9, 0), (0, 1); margin .2 -> (.1, 0), (0, .7)
    assert tasks.max_margin(query, item, shared, None, 0.2).item() == pytest.approx(0.1 / 2 + 0.7 / 2)
    hard = torch.tensor([[[1.0, 5.0]], [[3.0, 0.0]]])  # q.h = 1, 0 -> .2, 0
    assert tasks.max_margin(query, item, shared, hard, 0.2).item() == pytest.approx(0.3 / 3 + 0.7 / 3)
    assert tasks.max_margin(query, item, None, hard, 0.2).item() == pytest.approx(0.2)
    with pytest.raises(ConfigError, match="margin"):
        tasks.max_margin(query, item, shared, None, -0.1)
    with pytest.raises(ConfigError, match="negatives"):
        tasks.max_margin(query, item, None, None, 0.1)


def test_other_losses_by_loops() -> None:
    torch.manual_seed(1)
    one, other, far = torch.randn(5, 3), torch.randn(5, 3), torch.randn(4, 3)
    log_sigma = lambda x: -math.log1p(math.exp(-x))  # noqa: E731
    expected = 0.0
    for u, v in zip(one, other, strict=True):
        expected -= log_sigma(float(u @ v)) + 2 * sum(log_sigma(-float(u @ n)) for n in far) / 4
    assert tasks.co_occurrence(one, other, far, 2.0).item() == pytest.approx(expected, rel=1e-5)
    a, b = torch.randn(6), torch.randn(6)
    ranked = -sum(log_sigma(float(x - y)) for x, y in zip(a, b, strict=True))
    assert factors.bayesian_ranking(a, b).item() == pytest.approx(ranked, rel=1e-5)
    scores, label = torch.randn(4, 3), torch.tensor([0, 2, 1, 1])
    plain = -sum(float(s[k] - s.exp().sum().log()) for s, k in zip(scores, label, strict=True))
    assert tasks.cross_entropy(scores, label).item() == pytest.approx(plain, rel=1e-5)
    many = torch.tensor([[1, 0, 1]] * 4)
    by_class = -sum(
        log_sigma(float(s if y else -s))
        for row, ys in zip(scores, many, strict=True)
        for s, y in zip(row, ys, strict=True)
    )
    assert tasks.cross_entropy(scores, many).item() == pytest.approx(by_class / 3, rel=1e-5)
