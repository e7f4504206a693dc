"""Define the layers of PinSage and GraphSAGE in torch.

Equations and names are those of `graphs.kernels.layers`. Trained weights go into `recbench embed`
unchanged: `state_dict` has the names from `model_weight_shapes`. Sources: Ying et al. 2018, algorithm 1;
Hamilton et al. 2017, algorithm 1 and section 3.3. On a CPU kernels compute the sums and maxima over a hop's
edges, elsewhere torch itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from recbench_spark.errors import ConfigError
from recbench_spark.graphs.kernels import gathering
from recbench_spark.graphs.kernels import layers as kernels
from recbench_spark.graphs.kernels.forms import AGGREGATORS, LayerForm
from recbench_spark.models.networks.subgraphs import Hop, Subgraph
from recbench_spark.storage.publish import replace_bytes


class GraphLayer(nn.Module):
    """One trainable graph layer; see `graphs.kernels.layers.Layer`."""

    def __init__(self, form: LayerForm, d: int) -> None:
        super().__init__()
        if form.aggregator not in AGGREGATORS:
            raise ConfigError(f"no aggregator '{form.aggregator}'", f"known: {', '.join(AGGREGATORS)}")
        self.form = form
        wanted = kernels.weight_shapes(form, d)
        self.W = _make_linear(wanted["W.weight"])
        if form.form == "convolve":
            self.Q = _make_linear(wanted["Q.weight"])
        elif form.aggregator == "max":
            self.pool = _make_linear(wanted["pool.weight"])
        elif form.aggregator == "lstm":
            self.lstm = nn.LSTM(d, form.hidden, batch_first=True)

    def forward(self, h: torch.Tensor, hop: Hop) -> torch.Tensor:
        """Return the destinations' new vectors, (r, width), in a hop.

        `h` has the layer before, (n, d).
        """
        own = take_rows(h, hop.own)
        if self.form.form == "convolve":
            messages = torch.relu(self.Q(h))
        else:
            messages = torch.relu(self.pool(h)) if self.form.aggregator == "max" else h
        n = self._pool(messages, hop, own)
        if self.form.aggregator == "gcn":
            joined = n
        else:
            joined = own + n if self.form.join == "add" else torch.cat([own, n], dim=1)
        out = self.W(joined)
        out = torch.relu(out) if self.form.relu else out
        return unit_rows(out) if self.form.normalise else out

    def _pool(self, z: torch.Tensor, hop: Hop, own: torch.Tensor) -> torch.Tensor:
        kind = self.form.aggregator
        if kind == "lstm":
            return final_states(self.lstm, z, hop)
        if kind == "max":
            return max_edges(z, hop)
        weight = hop.weight if kind == "importance" else None
        total = sum_edges(z, hop, weight)
        if kind == "sum":
            return total
        counts = hop.counts.to(z.dtype)[:, None]
        if kind == "gcn":
            return (total + own) / (counts + 1)
        if weight is not None:
            ones = torch.ones(len(weight), 1, dtype=z.dtype, device=z.device)
            places = torch.arange(len(weight), device=z.device)
            counts = sum_edges(ones, hop._replace(place=places), weight)
        return total / torch.where(counts == 0, torch.ones_like(counts), counts)


def _make_linear(shape: tuple[int, ...]) -> nn.Linear:
    return nn.Linear(shape[1], shape[0])


def unit_rows(x: torch.Tensor) -> torch.Tensor:
    """Scale rows to length 1.

    A zero row does not change and has a zero gradient.
    """
    total = (x * x).sum(dim=1, keepdim=True)
    return x / torch.where(total == 0, torch.ones_like(total), total).sqrt()


def final_states(lstm: nn.LSTM, z: torch.Tensor, hop: Hop) -> torch.Tensor:
    """Return each destination's last LSTM state, (r, hidden).

    The LSTM reads the sources in their order; without any, the state is zero. Sequences are packed: none
    runs on into padding, and none depends on the others.
    """
    counts = hop.counts
    with_sources = torch.nonzero(counts > 0).flatten()
    out = z.new_zeros(len(counts), lstm.hidden_size)
    if not len(with_sources):
        return out
    rows = torch.split(take_rows(z, hop.place), counts[with_sources].tolist())
    packed = nn.utils.rnn.pack_sequence(list(rows), enforce_sorted=False)
    _, (state, _) = lstm(packed)
    return out.index_copy(0, with_sources, state[0])


class GraphNetwork(nn.Module):
    """Stacks graph layers, and dense layers at the end.

    Source: Ying et al., algorithm 2.
    """

    def __init__(self, forms: Sequence[LayerForm], final: Sequence[int], d: int) -> None:
        super().__init__()
        self.forms, self.output_layers, self.dims = tuple(forms), tuple(final), d
        widths = [d, *(form.width for form in forms)]
        self.layers = nn.ModuleList(GraphLayer(form, w) for form, w in zip(forms, widths, strict=False))
        ins = [widths[-1], *final]
        self.final = nn.ModuleList(nn.Linear(a, b) for a, b in zip(ins, final, strict=False))

    def forward(self, features: torch.Tensor, batch: Subgraph) -> torch.Tensor:
        """Return the (r, o) vectors of a minibatch's nodes.

        `features` has its inputs, (n, d).
        """
        h = features
        for layer, hop in zip(self.layers, batch.hops, strict=True):
            h = layer(h, hop)
        for number, end in enumerate(self.final):
            h = end(h)
            h = torch.relu(h) if number + 1 < len(self.final) else h
        return h

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return each weight's name and shape, as in `graphs.kernels.layers`."""
        return kernels.model_weight_shapes(self.forms, self.output_layers, self.dims)

    def initialise(self, seed: int) -> None:
        """Set random weights by hash of seed and name.

        Inference without a file uses the same.
        """
        self.load_weights(kernels.random_weights(self.shapes(), seed), "random weights")

    def load_weights(self, weights: Mapping[str, Any], where: str) -> None:
        """Set the weights by name.

        Raises:
            ConfigError: a weight is missing, unknown, not finite, or has another shape.
        """
        checked = kernels.check_weights(weights, self.shapes(), where)
        like = next(self.parameters()).dtype
        self.load_state_dict({name: torch.from_numpy(array).to(like) for name, array in checked.items()})

    def export_weights(self) -> dict[str, np.ndarray]:
        """Return the weights by name, float32."""
        return {name: w.detach().to(torch.float32).numpy() for name, w in self.state_dict().items()}

    def save(self, path: Path) -> None:
        """Write a safetensors file for `recbench embed --weights`.

        The file is written completely or not at all.
        """
        from safetensors.numpy import save  # noqa: PLC0415

        content = save({name: np.ascontiguousarray(w) for name, w in self.export_weights().items()})
        replace_bytes(path, content)


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
