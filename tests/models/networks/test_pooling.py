"""Sums and largest values over edges by kernels: torch's own values and gradients."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional

from recbench_spark.models.networks.layers import max_edges, sum_edges, take_rows
from recbench_spark.models.networks.subgraphs import Hop


def hop(seed: int) -> tuple[Hop, torch.Tensor]:
    draw = np.random.default_rng(seed)
    counts = draw.integers(0, 6, 30)
    indptr = torch.from_numpy(np.concatenate([[0], np.cumsum(counts)]))
    place = torch.from_numpy(draw.integers(0, 20, counts.sum()))
    weight = torch.from_numpy(draw.random(counts.sum()).astype(np.float32))
    return Hop(indptr, place, weight, torch.arange(20)), torch.from_numpy(draw.standard_normal((20, 7)))


def by_torch(kind: str, z: torch.Tensor, of: Hop) -> torch.Tensor:
    if kind == "largest":
        rows = torch.repeat_interleave(of.counts)[:, None].expand(-1, z.shape[1])
        return z.new_zeros(30, z.shape[1]).scatter_reduce(0, rows, z[of.place], "amax", include_self=False)
    weight = of.weight.to(z.dtype) if kind == "weighted" else None
    return functional.embedding_bag(of.place, z, of.indptr[:-1], mode="sum", per_sample_weights=weight)


@pytest.mark.parametrize("kind", ["sum", "weighted", "largest"])
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.float64, 1e-14)])
def test_values_and_gradients_are_torch_s(kind, dtype, bound) -> None:
    of, z = hop(1)
    one, other = (z.to(dtype).requires_grad_() for _ in range(2))
    result = (
        max_edges(one, of)
        if kind == "largest"
        else sum_edges(one, of, of.weight if kind == "weighted" else None)
    )
    expected = by_torch(kind, other, of)
    assert result.dtype == dtype and (result - expected).abs().max() <= bound
    toward = torch.linspace(-1, 1, result.numel(), dtype=dtype).reshape(result.shape)
    (result * toward).sum().backward()
    (expected * toward).sum().backward()
    assert (one.grad - other.grad).abs().max() <= bound


def test_without_edges_there_are_zeros_and_no_gradient() -> None:
    of, z = hop(1)
    none = of._replace(indptr=torch.zeros(31, dtype=torch.int64), place=of.place[:0], weight=None)
    z.requires_grad_()
    result = max_edges(z, none) + sum_edges(z, none, None)
    result.sum().backward()
    assert result.abs().max() == 0 and z.grad.abs().max() == 0


def test_gradients_of_rows_are_the_same_whatever_threads_add_them() -> None:
    """Many of the same rows, by two threads again and again: the bits of one."""
    draw = torch.Generator().manual_seed(0)
    z, rows = torch.randn(50, 32, generator=draw), torch.randint(50, (4000,), generator=draw)
    weights, threads, result = torch.randn(4000, 32, generator=draw), torch.get_num_threads(), set()
    try:
        for count in (1, *[2] * 20):
            torch.set_num_threads(count)
            given = z.clone().requires_grad_()
            (take_rows(given, rows) * weights).sum().backward()
            result.add(given.grad.numpy().tobytes())
    finally:
        torch.set_num_threads(threads)
    assert len(result) == 1 and torch.equal(take_rows(z, rows), z[rows])
