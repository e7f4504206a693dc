"""Layers of PinSage and GraphSAGE as two steps: every vector projected once, then pooled and combined.

Equations (Ying et al. 2018, algorithm 1; Hamilton et al. 2017, algorithm 1 and section 3.3), with n_v the
aggregate over the neighbours of v:

    convolve        z_u = relu(Q h_u + q),   h'_v = relu(W [h_v ; n_v(z)] + w)
    sage mean       h'_v = relu(W [h_v ; n_v(h)] + w)      (also sum, importance)
    sage max        z_u = relu(P h_u + p),   h'_v = relu(W [h_v ; max z] + w)
    sage gcn        h'_v = relu(W n_v(h) + w), n over the neighbours and v itself
    sage lstm       h'_v = relu(W [h_v ; LSTM(h)] + w)

then h' / |h'| where asked for. `join: add` takes W (h_v + n_v) for W [h_v ; n_v]. A linear aggregate is
taken of the smaller vectors: W n(h) = n(W h).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from recbench_spark.errors import ConfigError, nearest
from recbench_spark.kernels.graph.aggregate import Vectors, lstm, pool_neighbours
from recbench_spark.kernels.graph.csr import Csr
from recbench_spark.kernels.graph.dense import Dense, Matrix, add_product, make_dense, normalise
from recbench_spark.kernels.graph.forms import LINEAR, Aggregator, LayerForm
from recbench_spark.kernels.graph.ids import hash_numbers
from recbench_spark.kernels.hashing import Hashes

Weights = Mapping[str, npt.NDArray[Any]]
Shape = tuple[int, ...]


def weight_shapes(form: LayerForm, d: int) -> dict[str, Shape]:
    """Name and shape of each weight of a layer, as torch keeps them (out, in).

    Args:
        form: the layer.
        d: dimensions that go in.

    Raises:
        ConfigError: vectors to be added are of two lengths.
    """
    inner = form.hidden if _has_projection(form) else d
    found: dict[str, Shape] = {}
    if form.form == "convolve":
        found |= {"Q.weight": (form.hidden, d), "Q.bias": (form.hidden,)}
    elif form.aggregator == "max":
        found |= {"pool.weight": (form.hidden, d), "pool.bias": (form.hidden,)}
    elif form.aggregator == "lstm":
        gates = 4 * form.hidden
        found |= {"lstm.weight_ih_l0": (gates, d), "lstm.weight_hh_l0": (gates, form.hidden)}
        found |= {"lstm.bias_ih_l0": (gates,), "lstm.bias_hh_l0": (gates,)}
    if form.join == "add" and inner != d:
        raise ConfigError(f"join: add of {d} and {inner} dimensions", f"hidden: {d}, or join: concat")
    columns = d if form.join == "add" or form.aggregator == "gcn" else d + inner
    return found | {"W.weight": (form.width, columns), "W.bias": (form.width,)}


def _has_projection(form: LayerForm) -> bool:
    return form.form == "convolve" or form.aggregator in ("max", "lstm")


def model_weight_shapes(forms: tuple[LayerForm, ...], final: tuple[int, ...], d: int) -> dict[str, Shape]:
    """Name and shape of each weight of a model: `layers.0.W.weight` ..., `final.0.weight` ..."""
    found: dict[str, Shape] = {}
    for k, form in enumerate(forms):
        found |= {f"layers.{k}.{name}": shape for name, shape in weight_shapes(form, d).items()}
        d = form.width
    for k, width in enumerate(final):
        found |= {f"final.{k}.weight": (width, d), f"final.{k}.bias": (width,)}
        d = width
    return found


def random_weights(wanted: Mapping[str, Shape], seed: int) -> dict[str, Matrix]:
    """Weights of Glorot and Bengio's uniform law (2010, eq. 16), by hash of seed and name; biases 0."""
    found = {}
    for name, shape in wanted.items():
        key = int.from_bytes(name.encode(), "little") % (2**61 - 1)
        hashes = hash_numbers(np.arange(math.prod(shape)) + key, seed)
        uniform = (hashes >> np.uint64(11)).astype(np.float64) * 2.0**-52 - 1
        bound = 0.0 if len(shape) == 1 else math.sqrt(6 / sum(shape))
        found[name] = (uniform * bound).reshape(shape).astype(np.float32)
    return found


def check_weights(given: Weights, wanted: Mapping[str, Shape], where: str) -> dict[str, Matrix]:
    """The weights of a model in float32; a bias that is not given is 0.

    Raises:
        ConfigError: one is missing, of another shape, not finite, or not known.
    """
    for name in given:
        if name not in wanted:
            raise ConfigError(f"{where}: the model has no weight {name}", nearest(name, wanted))
    found = {}
    for name, shape in wanted.items():
        if name not in given:
            if not (name.endswith("bias") or ".bias_" in name):
                raise ConfigError(f"{where}: no weight {name} of shape {shape}", nearest(name, given))
            found[name] = np.zeros(shape, np.float32)
            continue
        if tuple(given[name].shape) != shape:
            raise ConfigError(
                f"{where}: {name} is of shape {tuple(given[name].shape)}, and {shape} is needed",
                "rows are dimensions that come out, columns those that go in; see layers and features",
            )
        found[name] = np.ascontiguousarray(given[name], np.float32)
        if not np.isfinite(found[name]).all():
            raise ConfigError(f"{where}: {name} holds NaN or infinite numbers")
    return found


@dataclass(frozen=True)
class Layer:
    """A layer with its weights, in the order of its work.

    Attributes:
        aggregator: how messages are pooled.
        project: what each source's vector goes through, once; None: it is the message itself.
        own_t: (d, o) what is made of a node's own vector; None: nothing.
        pooled_t: (m, o) what is made of the aggregate; None: it is added as it is.
        bias: (o,).
        relu: see `LayerForm`.
        normalise: see `LayerForm`.
        recurrent_t: (h, 4 h) of the LSTM.
        most: see `LayerForm`.
        seed: of the LSTM's order.
    """

    aggregator: Aggregator
    project: Dense | None
    own_t: Matrix | None
    pooled_t: Matrix | None
    bias: Matrix
    relu: bool
    normalise: bool
    recurrent_t: Matrix | None = None
    most: int = 25
    seed: int = 0

    @property
    def width(self) -> int:
        """Dimensions that come out."""
        return len(self.bias)

    def message_width(self, d: int) -> int:
        """Dimensions of a message, of d dimensions that go in."""
        return d if self.project is None else len(self.project.bias)

    def messages(self, h: Vectors) -> Matrix:
        """(r, m) what nodes send, of their vectors (r, d)."""
        assert self.project is not None
        return self.project.of(h)

    def aggregate(
        self, csr: Csr, z: Vectors, z_own: Vectors | None, own_hash: Hashes, source_hash: Hashes
    ) -> Matrix:
        """(r, m') what each destination gets of its neighbours.

        Args:
            csr: edges into the destinations; `src` are rows of z and source_hash.
            z: (s, m) messages.
            z_own: (r, m) the destinations' own messages (GCN).
            own_hash: (r,) hashes of the destinations' raw ids (LSTM).
            source_hash: (s,) hashes of the sources' raw ids (LSTM).
        """
        if self.aggregator == "lstm":
            assert self.recurrent_t is not None
            return lstm(csr, z, self.recurrent_t, own_hash, source_hash, self.most, self.seed)
        return pool_neighbours(self.aggregator, csr, z, z_own)

    def combine(self, h: Vectors, n: Matrix) -> Matrix:
        """(r, o) new vectors of nodes.

        Args:
            h: (r, d) their vectors.
            n: (r, m') what `aggregate` gave.
        """
        out = np.repeat(self.bias[None, :], len(h), axis=0)
        if self.own_t is not None:
            add_product(h, self.own_t, out)
        if self.pooled_t is None:
            with np.errstate(over="ignore", invalid="ignore"):  # who stores the rows looks for it
                out += n
        else:
            add_product(n, self.pooled_t, out)
        if self.relu:
            np.maximum(out, 0, out=out)
        return normalise(out) if self.normalise else out


def make_layer(form: LayerForm, weights: Weights, d: int, seed: int = 0) -> Layer:
    """A layer from its weights, named as `weight_shapes` names them.

    Args:
        form: the layer.
        weights: float32, checked.
        d: dimensions that go in.
        seed: of the LSTM's order.
    """
    w, bias = weights["W.weight"], weights["W.bias"]
    own, other = (w, w) if form.join == "add" or form.aggregator == "gcn" else (w[:, :d], w[:, d:])
    project, recurrent_t = None, None
    if form.form == "convolve":
        project = make_dense(weights["Q.weight"], weights["Q.bias"], relu=True)
    elif form.aggregator == "max":
        project = make_dense(weights["pool.weight"], weights["pool.bias"], relu=True)
    elif form.aggregator == "lstm":
        biases = weights["lstm.bias_ih_l0"] + weights["lstm.bias_hh_l0"]
        project = make_dense(weights["lstm.weight_ih_l0"], biases)
        recurrent_t = np.ascontiguousarray(weights["lstm.weight_hh_l0"].T)
    elif form.aggregator in LINEAR and form.width < d:
        project = make_dense(other, None)
    before = project is not None and not _has_projection(form)
    own_t = None if form.aggregator == "gcn" else np.ascontiguousarray(own.T)
    pooled_t = None if before else np.ascontiguousarray(other.T)
    return Layer(
        form.aggregator,
        project,
        own_t,
        pooled_t,
        bias,
        form.relu,
        form.normalise,
        recurrent_t,
        form.most,
        seed,
    )


def make_layers(
    forms: tuple[LayerForm, ...], final: tuple[int, ...], weights: Weights, d: int, seed: int
) -> tuple[tuple[Layer, ...], tuple[Dense, ...]]:
    """All layers of a model, and the dense ones that end it (Ying et al., algorithm 2)."""
    layers = []
    for k, form in enumerate(forms):
        own = {name: weights[f"layers.{k}.{name}"] for name in weight_shapes(form, d)}
        layers.append(make_layer(form, own, d, seed + k))
        d = form.width
    ends = tuple(
        make_dense(weights[f"final.{k}.weight"], weights[f"final.{k}.bias"], relu=k < len(final) - 1)
        for k in range(len(final))
    )
    return tuple(layers), ends
