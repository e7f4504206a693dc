"""Compute PinSage and GraphSAGE layers: project, pool, combine.

Each vector is projected once. Equations (Ying et al. 2018, algorithm 1; Hamilton et al. 2017, algorithm 1
and section 3.3), with n_v the aggregate over v's neighbours:

    convolve        z_u = relu(Q h_u + q),   h'_v = relu(W [h_v ; n_v(z)] + w)
    sage mean       h'_v = relu(W [h_v ; n_v(h)] + w)      (also sum, importance)
    sage max        z_u = relu(P h_u + p),   h'_v = relu(W [h_v ; max z] + w)
    sage gcn        h'_v = relu(W n_v(h) + w), n over the neighbours and v itself
    sage lstm       h'_v = relu(W [h_v ; LSTM(h)] + w)

then h' / |h'| if `normalise` is set. `join: add` takes W (h_v + n_v) for W [h_v ; n_v]. A linear
aggregate is computed over the smaller vectors: W n(h) = n(W h).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from recbench_spark.core.hashing import Hashes
from recbench_spark.errors import ConfigError, nearest
from recbench_spark.graphs.kernels.aggregate import Vectors, lstm, pool_neighbours
from recbench_spark.graphs.kernels.csr import Csr
from recbench_spark.graphs.kernels.dense import Dense, Matrix, add_product, make_dense, normalise
from recbench_spark.graphs.kernels.forms import LINEAR, Aggregator, LayerForm
from recbench_spark.graphs.kernels.ids import hash_numbers

Weights = Mapping[str, npt.NDArray[Any]]
Shape = tuple[int, ...]


def weight_shapes(form: LayerForm, d: int) -> dict[str, Shape]:
    """Name a layer's weights with their shapes.

    Torch stores them as (out, in).

    Args:
        form: the layer's settings.
        d: input dimensions.

    Raises:
        ConfigError: vectors with two different lengths would be added.
    """
    inner = form.hidden if _has_projection(form) else d
    shapes: dict[str, Shape] = {}
    if form.form == "convolve":
        shapes |= {"Q.weight": (form.hidden, d), "Q.bias": (form.hidden,)}
    elif form.aggregator == "max":
        shapes |= {"pool.weight": (form.hidden, d), "pool.bias": (form.hidden,)}
    elif form.aggregator == "lstm":
        gates = 4 * form.hidden
        shapes |= {"lstm.weight_ih_l0": (gates, d), "lstm.weight_hh_l0": (gates, form.hidden)}
        shapes |= {"lstm.bias_ih_l0": (gates,), "lstm.bias_hh_l0": (gates,)}
    if form.join == "add" and inner != d:
        raise ConfigError(f"join: add of {d} and {inner} dimensions", f"hidden: {d}, or join: concat")
    columns = d if form.join == "add" or form.aggregator == "gcn" else d + inner
    return shapes | {"W.weight": (form.width, columns), "W.bias": (form.width,)}


def _has_projection(form: LayerForm) -> bool:
    return form.form == "convolve" or form.aggregator in ("max", "lstm")


def model_weight_shapes(forms: tuple[LayerForm, ...], final: tuple[int, ...], d: int) -> dict[str, Shape]:
    """Name a model's weights with their shapes.

    Names are `layers.0.W.weight` ..., `final.0.weight` ...
    """
    shapes: dict[str, Shape] = {}
    for k, form in enumerate(forms):
        shapes |= {f"layers.{k}.{name}": shape for name, shape in weight_shapes(form, d).items()}
        d = form.width
    for k, width in enumerate(final):
        shapes |= {f"final.{k}.weight": (width, d), f"final.{k}.bias": (width,)}
        d = width
    return shapes


def random_weights(wanted: Mapping[str, Shape], seed: int) -> dict[str, Matrix]:
    """Draw weights from Glorot and Bengio's uniform law.

    See eq. 16 (2010). Draws are hashes of seed and name. Biases are 0.
    """
    weights = {}
    for name, shape in wanted.items():
        key = int.from_bytes(name.encode(), "little") % (2**61 - 1)
        hashes = hash_numbers(np.arange(math.prod(shape)) + key, seed)
        uniform = (hashes >> np.uint64(11)).astype(np.float64) * 2.0**-52 - 1
        bound = 0.0 if len(shape) == 1 else math.sqrt(6 / sum(shape))
        weights[name] = (uniform * bound).reshape(shape).astype(np.float32)
    return weights


def check_weights(weights: Weights, wanted: Mapping[str, Shape], where: str) -> dict[str, Matrix]:
    """Return a model's weights in float32.

    A missing bias is 0.

    Raises:
        ConfigError: there are more or fewer layers, or a weight is missing, unknown, not finite, or has
            another shape.
    """
    _check_names(weights, wanted, where)
    return {name: _check_weight(weights.get(name), name, shape, where) for name, shape in wanted.items()}


def _check_names(weights: Weights, wanted: Mapping[str, Shape], where: str) -> None:
    """Refuse weights for unknown layers, and missing or surplus layers."""
    stored = _count_entries(weights, "layers")
    if not stored:
        name, shape = next((name, shape) for name, shape in wanted.items() if len(shape) > 1)
        names = ", ".join(list(weights)[:3]) or "nothing"
        message = f"{where}: no weight {name} of shape {shape}; the weights are called {names}"
        raise ConfigError(message, f"rename them, {PAGE}; those of PyTorch Geometric: {PYG_PAGE}")
    for key, what in (("layers", "layers"), ("final", "dense layers at the end")):
        stored, needed = _count_entries(weights, key), _count_entries(wanted, key)
        if stored != needed:
            message = f"it has weights of {stored} {what}, and the settings name {needed}"
            hint = f"{key}: {stored} entries, or other weights"
            raise ConfigError(f"{where} does not fit the layers: {message}", hint)
    for name in weights:
        if name not in wanted:
            hint = f"{nearest(name, wanted)}; {PAGE}"
            raise ConfigError(f"{where}: the model has no weight {name}", hint)


PAGE = "the names of each form and aggregator stand in docs/how_to/graph_embeddings.md"
PYG_PAGE = "docs/how_to/embed_a_pyg_model.md"


def _count_entries(names: Iterable[str], key: str) -> int:
    """Count a settings list's entries that have weights."""
    numbers = [name.split(".")[1] for name in names if name.startswith(f"{key}.")]
    return 1 + max((int(number) for number in numbers if number.isdigit()), default=-1)


def _check_weight(weight: npt.NDArray[Any] | None, name: str, shape: Shape, where: str) -> Matrix:
    """Return one weight in float32; errors as in `check_weights`."""
    if weight is None:
        if not (name.endswith("bias") or ".bias_" in name):
            hint = f"{PAGE}; only a bias may be missing: it is 0"
            raise ConfigError(f"{where}: no weight {name} of shape {shape}", hint)
        return np.zeros(shape, np.float32)
    stored = tuple(weight.shape)
    if stored != shape:
        message = f"{where} does not fit the layers: {name} is of shape {stored}, and {shape} is needed"
        raise ConfigError(message, _explain_shape(stored, shape))
    with np.errstate(over="ignore"):  # too large for float32 becomes infinite, which is refused below
        checked = np.ascontiguousarray(weight, np.float32)
    bad = checked.size - int(np.isfinite(checked).sum())
    if bad:
        what = "beyond float32" if np.isfinite(weight).all() else "NaN or infinite"
        hint = "save the weights of an earlier step, or of a smaller learning rate"
        message = f"{where}: {bad} of {checked.size} numbers of {name} are {what}"
        raise ConfigError(message, f"the training has diverged: {hint}")
    return checked


def _explain_shape(stored: Shape, shape: Shape) -> str:
    """Explain what a wrong shape says about the settings."""
    if stored == shape[::-1] and len(shape) == 2:
        return "it is transposed: rows are output dimensions, columns are input dimensions"
    if len(stored) != len(shape) or stored[0] != shape[0]:
        rows = stored[0] if stored else 0
        return f"the file has {rows} output dimensions: set the layer's width or hidden"
    return (
        f"a node gives {shape[1]} numbers to this layer, and the weights take {stored[1]}: give the "
        "features of the training, or the form, join and width of its layers"
    )


@dataclass(frozen=True)
class Layer:
    """A layer ready to compute: weights as kernels take them.

    Attributes:
        aggregator: how messages are pooled.
        project: projection applied once to each source's vector; None: the vector itself is the message.
        own_t: (d, o) weights for a node's own vector; None: it is not used.
        pooled_t: (m, o) weights for the aggregate; None: it is added as it is.
        bias: (o,).
        relu: see `LayerForm`.
        normalise: see `LayerForm`.
        recurrent_t: (h, 4 h), for the LSTM.
        most: see `LayerForm`.
        seed: seed for the LSTM's order.
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
        """Dimensions of the new vectors."""
        return len(self.bias)

    def message_width(self, d: int) -> int:
        """Return a message's dimensions, for d input dimensions."""
        return d if self.project is None else len(self.project.bias)

    def messages(self, h: Vectors) -> Matrix:
        """Compute nodes' messages (r, m) from their vectors (r, d)."""
        assert self.project is not None
        return self.project.apply(h)

    def aggregate(
        self, csr: Csr, z: Vectors, z_own: Vectors | None, own_hash: Hashes, source_hash: Hashes
    ) -> Matrix:
        """Aggregate over each destination's neighbours, (r, m').

        Args:
            csr: edges into the destinations; `src` are rows of z and source_hash.
            z: (s, m) messages.
            z_own: (r, m) the destinations' own messages (GCN).
            own_hash: (r,) the destinations' raw ids, hashed (LSTM).
            source_hash: (s,) the sources' raw ids, hashed (LSTM).
        """
        if self.aggregator == "lstm":
            assert self.recurrent_t is not None
            return lstm(csr, z, self.recurrent_t, own_hash, source_hash, most=self.most, seed=self.seed)
        return pool_neighbours(self.aggregator, csr, z, z_own)

    def combine(self, h: Vectors, n: Matrix) -> Matrix:
        """Compute nodes' new vectors, (r, o).

        Args:
            h: (r, d) their vectors.
            n: (r, m') result of `aggregate`.
        """
        out = np.repeat(self.bias[None, :], len(h), axis=0)
        if self.own_t is not None:
            add_product(h, self.own_t, out)
        if self.pooled_t is None:
            with np.errstate(over="ignore", invalid="ignore"):  # checked where the rows are stored
                out += n
        else:
            add_product(n, self.pooled_t, out)
        if self.relu:
            np.maximum(out, 0, out=out)
        return normalise(out) if self.normalise else out


def make_layer(form: LayerForm, weights: Weights, d: int, seed: int = 0) -> Layer:
    """Make a layer from its weights, named as in `weight_shapes`.

    Args:
        form: the layer's settings.
        weights: float32, checked.
        d: input dimensions.
        seed: seed for the LSTM's order.
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
    rules = (form.relu, form.normalise, recurrent_t, form.most, seed)
    return Layer(form.aggregator, project, own_t, pooled_t, bias, *rules)


def make_layers(
    forms: tuple[LayerForm, ...], final: tuple[int, ...], weights: Weights, d: int, seed: int
) -> tuple[tuple[Layer, ...], tuple[Dense, ...]]:
    """Make a model's layers, and its final dense layers.

    See Ying et al., algorithm 2.
    """
    layers = []
    for k, form in enumerate(forms):
        own = {name: weights[f"layers.{k}.{name}"] for name in weight_shapes(form, d)}
        layers.append(make_layer(form, own, d, seed + k))
        d = form.width
    output_layers = tuple(
        make_dense(weights[f"final.{k}.weight"], weights[f"final.{k}.bias"], relu=k < len(final) - 1)
        for k in range(len(final))
    )
    return tuple(layers), output_layers
