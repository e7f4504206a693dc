"""Take rows, sums and maxima over a hop's edges, in torch.

On a CPU kernels compute them, elsewhere torch itself.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch
from torch.nn import functional

from recbench_spark.graphs.kernels import gathering
from recbench_spark.models.networks.subgraphs import Hop


def take_rows(z: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Return rows from (n, m), as (..., m) for any shape.

    Several threads would add the gradient of `z[rows]` in any order. A lookup's gradient is added in the
    order of `rows`.
    """
    return functional.embedding(rows, z)


def sum_edges(z: torch.Tensor, hop: Hop, weight: torch.Tensor | None) -> torch.Tensor:
    """Return summed source rows, (r, m), weighted where there are weights."""
    weights = None if weight is None else weight.to(z.dtype)
    if z.device.type == "cpu":
        return cast(torch.Tensor, _Sum.apply(z, hop.indptr, hop.place, weights))
    return functional.embedding_bag(hop.place, z, hop.indptr[:-1], mode="sum", per_sample_weights=weights)


def max_edges(z: torch.Tensor, hop: Hop) -> torch.Tensor:
    """Return each column's maximum, (r, m); zeros without neighbours."""
    if z.device.type == "cpu":
        return cast(torch.Tensor, _Largest.apply(z, hop.indptr, hop.place))
    rows = torch.repeat_interleave(hop.counts)[:, None].expand(-1, z.shape[1])
    zeros = z.new_zeros(len(hop.own), z.shape[1])
    return zeros.scatter_reduce(0, rows, z[hop.place], "amax", include_self=False)


class _Sum(torch.autograd.Function):
    """Computes `sum_edges` on a CPU, with its gradient."""

    @staticmethod
    def forward(
        ctx: Any, z: torch.Tensor, indptr: torch.Tensor, place: torch.Tensor, weight: torch.Tensor | None
    ) -> torch.Tensor:
        edges = _array(indptr), _array(place), None if weight is None else _array(weight)
        ctx.edges, ctx.rows = edges, len(z)
        return torch.from_numpy(gathering.sum_rows(*edges, _array(z)))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        indptr, place, weight = ctx.edges
        gradient = gathering.sum_rows_gradient(indptr, place, weight, _array(grads[0]), ctx.rows)
        return torch.from_numpy(gradient), None, None, None


class _Largest(torch.autograd.Function):
    """Computes `max_edges` on a CPU, with its gradient."""

    @staticmethod
    def forward(ctx: Any, z: torch.Tensor, indptr: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        maxima, ctx.row = gathering.max_rows(_array(indptr), _array(place), _array(z))
        ctx.rows = len(z)
        return torch.from_numpy(maxima)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        gradient = gathering.max_rows_gradient(ctx.row, _array(grads[0]), ctx.rows)
        return torch.from_numpy(gradient), None, None


def _array(x: torch.Tensor) -> np.ndarray:
    return x.detach().contiguous().numpy()
