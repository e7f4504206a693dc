"""GMF, MLP and NeuMF from neural collaborative filtering, fitted by Adam.

GMF weighs factor products, and ranks by vector products. MLP is a network over a user and an item; NeuMF
adds factor products. Neither is a product of two vectors, so they rank by their own scores
(`interface.ScoringModel`). Only the fit imports torch.

Source: He, Liao, Zhang, Nie, Hu and Chua, "Neural collaborative filtering" (WWW 2017), section 3.

Axes: u users, i items, d dimensions of products, h numbers in the first hidden layer, p pairs, l layers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import Field, field_validator

from recbench_spark.core.arrays import Floats, Floats32, Ints
from recbench_spark.core.compiling import compile_kernel, readonly
from recbench_spark.core.threads import use_one_thread
from recbench_spark.errors import DivergedError
from recbench_spark.models.rating import adam_factors, interface
from recbench_spark.models.rating.interface import Fit, Ratings
from recbench_spark.models.rating.sgd import make_score_fit

if TYPE_CHECKING:
    import torch

NETWORK_USERS, NETWORK_ITEMS, FIRST_LAYER = range(adam_factors.NEGATIVES + 1, adam_factors.NEGATIVES + 4)
"""Purposes of random draws beside those in `adam_factors`; layer l draws with FIRST_LAYER + l."""

TILE = 128
"""Pairs which pass through the network together; no score depends on it."""

Width = Annotated[int, Field(ge=1, le=4096)]
Batch = tuple[Ints, Ints, Floats32]


class GmfSettings(adam_factors.AdamSettings):
    """Settings of generalised matrix factorisation.

    Attributes:
        batch: rated pairs in a step.
        negatives: unrated items drawn for each rated pair.
        regulariser: factor on half the squared vector lengths in a step.
        init_sd: standard deviation of the vectors at the start.
    """

    kind: Literal["gmf"] = "gmf"
    dims: Annotated[int, Field(ge=1, le=1024)] = 50
    """Number of factors for each user and item."""
    batch: Annotated[int, Field(ge=1)] = 256
    negatives: Annotated[int, Field(ge=1, le=1000)] = 4
    regulariser: Annotated[float, Field(ge=0)] = 0.0
    init_sd: Annotated[float, Field(gt=0)] = 0.01


class MlpSettings(adam_factors.AdamSettings):
    """Settings of MLP; the published study's values are the defaults.

    Attributes:
        layers: sizes of the layers. One half of the first layer is the user's vector, the other half the
            item's, so its size is even.
        batch: rated pairs in a step.
        negatives: unrated items drawn for each rated pair.
        regulariser: factor on half the squared vector lengths in a step.
        init_sd: standard deviation of the vectors at the start.
    """

    kind: Literal["mlp", "neumf"] = "mlp"
    layers: Annotated[tuple[Width, ...], Field(min_length=2, max_length=16)] = (64, 32, 16, 8)
    batch: Annotated[int, Field(ge=1)] = 256
    negatives: Annotated[int, Field(ge=1, le=1000)] = 4
    regulariser: Annotated[float, Field(ge=0)] = 0.0
    init_sd: Annotated[float, Field(gt=0)] = 0.01

    @field_validator("layers")
    @classmethod
    def _check_halves(cls, layers: tuple[int, ...]) -> tuple[int, ...]:
        if layers[0] % 2:
            raise ValueError(f"the first layer is split between user and item: {layers[0]} is not even")
        return layers


class NeumfSettings(MlpSettings):
    """Settings of NeuMF: those of its network, and `dims`."""

    kind: Literal["neumf"] = "neumf"
    dims: Annotated[int, Field(ge=1, le=1024)] = 8
    """Length of the vectors whose products are added."""


class GmfModel(GmfSettings, interface.RatingModelConfig):
    """Generalised matrix factorisation, for ranking.

    Products have learnt weights and a logistic loss.
    """

    kind: Literal["gmf"]


class MlpModel(MlpSettings, interface.RatingModelConfig):
    """A user-item network with a logistic loss, for ranking."""

    kind: Literal["mlp"]


class NeumfModel(NeumfSettings, interface.RatingModelConfig):
    """NeuMF: a network plus factor products, for ranking.

    The loss is logistic.
    """

    kind: Literal["neumf"]


# ------------------------------------------------------------------------------------ the model


@dataclass(frozen=True)
class NetworkModel:
    """Scores pairs by a fitted network: p_u . q_i + h(x).

    x = relu(first_u + first_i). h passes x through the hidden layers and adds its last layer with the
    output weights. The output's constant is left out: the sigmoid and a constant keep the order. Each score
    is one float64 sum in a fixed order, so it does not depend on the pairs scored beside it.

    Attributes:
        p_ud: (u, d) factors of users times the output weights; d is 0 without products.
        q_id: (i, d) factors of items.
        first_uh: (u, h) the user's part of the first hidden layer, with the layer's constants.
        first_ih: (i, h) the item's part.
        widths_l: (l,) size of each hidden layer.
        weights: for each later layer its weights (after, before) and constants; then the output weights.
    """

    p_ud: Floats32
    q_id: Floats32
    first_uh: Floats32
    first_ih: Floats32
    widths_l: Ints
    weights: Floats32

    kind: ClassVar[str] = "network"

    def predict(self, users_p: Ints, items_p: Ints, times_p: Ints | None = None) -> Floats:
        """Return (p,) scores.

        An unseen user or item adds nothing, no constant either.
        """
        users = interface.indices_with_unseen(users_p, len(self.p_ud), "user")
        items = interface.indices_with_unseen(items_p, len(self.q_id), "item")
        tables = [
            interface.add_unseen_row(table)
            for table in (self.p_ud, self.q_id, self.first_uh, self.first_ih)
        ]
        out_p = np.zeros(len(users))
        _score_pairs(_as_inputs(*tables), _as_inputs(self.widths_l, self.weights), users, items, out_p)
        return out_p

    def score(self, users_b: Ints, items_i: Ints) -> Floats:
        """Return (b, i) scores for users and items by index.

        This method implements `interface.ScoringModel`.
        """
        tables = _as_inputs(self.p_ud, self.q_id, self.first_uh, self.first_ih)
        network = _as_inputs(self.widths_l, self.weights)
        out_bi = np.zeros((len(users_b), len(items_i)))
        items = np.ascontiguousarray(items_i, np.int64)
        for out_i, user in zip(out_bi, users_b, strict=True):
            _score_pairs(tables, network, np.full(len(items), user, np.int64), items, out_i)
        return out_bi


def _as_inputs(*arrays: npt.NDArray[Any]) -> tuple[Any, ...]:
    """Return arrays with one type for the kernel.

    Mapped files and fresh arrays have different types.
    """
    return tuple(readonly(np.ascontiguousarray(array)) for array in arrays)


@compile_kernel
def _score_pairs(
    tables: tuple[Floats32, ...], network: tuple[Any, ...], users_p: Ints, items_p: Ints, out_p: Floats
) -> None:
    """Write the scores of pairs, TILE at a time.

    Sums run over a layer's numbers in index order.
    """
    p_ud, q_id, first_uh, first_ih = tables
    widths_l, weights = network
    x_kp, y_kp = np.empty((widths_l.max(), TILE)), np.empty((widths_l.max(), TILE))
    for start in range(0, len(out_p), TILE):
        n = min(TILE, len(out_p) - start)
        users, items = users_p[start : start + n], items_p[start : start + n]
        _enter_network(first_uh, first_ih, users, items, x_kp)
        at = 0
        for layer in range(1, len(widths_l)):
            before, after = widths_l[layer - 1], widths_l[layer]
            _pass_layer(weights[at : at + after * (before + 1)], (before, after, n), x_kp, y_kp)
            at += after * (before + 1)
            x_kp, y_kp = y_kp, x_kp
        for p in range(n):
            total = 0.0
            for d in range(p_ud.shape[1]):
                total += np.float64(p_ud[users[p], d]) * np.float64(q_id[items[p], d])
            for k in range(widths_l[-1]):
                total += np.float64(weights[at + k]) * x_kp[k, p]
            out_p[start + p] = total


@compile_kernel
def _enter_network(first_uh: Floats32, first_ih: Floats32, users: Ints, items: Ints, x_kp: Floats) -> None:
    """Write relu(first_u + first_i) for a tile of pairs."""
    for k in range(first_uh.shape[1]):
        for p in range(len(users)):
            x_kp[k, p] = max(np.float64(first_uh[users[p], k]) + np.float64(first_ih[items[p], k]), 0.0)


@compile_kernel
def _pass_layer(weights: Floats32, sizes: tuple[int, int, int], x_kp: Floats, y_kp: Floats) -> None:
    """Write relu(W x + c) for a tile of pairs.

    Each sum begins with its constant.
    """
    before, after, n = sizes
    for j in range(after):
        y_kp[j, :n] = np.float64(weights[after * before + j])
        for k in range(before):
            weight = np.float64(weights[j * before + k])
            for p in range(n):
                y_kp[j, p] += weight * x_kp[k, p]
        for p in range(n):
            y_kp[j, p] = max(y_kp[j, p], 0.0)


# ------------------------------------------------------------------------------------ the fit


class Network(NamedTuple):
    """The parameters Adam changes, and the score they give.

    Attributes:
        factors: factors of the products, (u, d) and (i, d); empty without products.
        vectors: the network's input vectors for users and items, (u, h) and (i, h); empty without layers.
        layers: weights (after, before) and constants (after,) for each hidden layer, one after the other.
        out: (d + last,) output weights, those of the products first.
        constant: (1,) constant of the output.
    """

    factors: list[torch.Tensor]
    vectors: list[torch.Tensor]
    layers: list[torch.Tensor]
    out: torch.Tensor
    constant: torch.Tensor

    def list_tables(self) -> list[torch.Tensor]:
        """Return all tables, in a fixed order."""
        return [*self.factors, *self.vectors, *self.layers, self.out, self.constant]

    def score(self, users_b: torch.Tensor, items_b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (b,) scores for pairs, and their vectors' squares summed."""
        import torch  # noqa: PLC0415

        tables = (*self.vectors, *self.factors)
        rows = [table[(users_b, items_b)[at % 2]] for at, table in enumerate(tables)]
        squares = sum(((x**2).sum() for x in rows), start=torch.zeros(()))
        parts = [rows[-2] * rows[-1]] if self.factors else []
        if self.vectors:
            x = torch.cat(rows[:2], dim=1)
            for weights, constants in zip(self.layers[::2], self.layers[1::2], strict=True):
                x = torch.relu(torch.addmm(constants, x, weights.T))
            parts.append(x)
        return torch.cat(parts, dim=1) @ self.out + self.constant, squares


def fit_gmf(
    train: Ratings, settings: GmfSettings, seed: int, watched: Ratings | None = None, threads: int = 1
) -> Fit:
    """Fit GMF on rated pairs and drawn negatives.

    The fit minimises the mean logistic loss of h . (p * q) + c. The users' vectors absorb the
    output weights h, and c is left out: the sigmoid and a constant keep the order. A fit takes one thread,
    whatever `threads` says.

    Raises DivergedError if a vector is not finite.
    """
    network = train_network(train, settings, seed)
    p_ud, q_id, h_d = (table.detach().numpy() for table in (*network.factors, network.out))
    error = DivergedError(f"{settings.kind} diverged", f"lower the rate {settings.rate:g}")
    return make_score_fit(train, (p_ud * h_d, q_id), settings.epochs, watched, error=error)


def fit_network(
    train: Ratings, settings: MlpSettings, seed: int, watched: Ratings | None = None, threads: int = 1
) -> Fit:
    """Fit MLP or NeuMF on rated pairs and drawn negatives.

    The fit minimises the mean logistic loss. A step costs batch (1 + negatives) times the number of
    weights, and Adam changes all vectors. A fit takes one thread, whatever `threads` says. There is no
    pretraining as in section 3.4.1.

    Raises DivergedError if a number is not finite.
    """
    model = make_network_model(train_network(train, settings, seed), train)
    tables = (model.p_ud, model.q_id, model.first_uh, model.first_ih, model.weights)
    if not all(np.isfinite(table).all() for table in tables):
        raise DivergedError(f"{settings.kind} diverged", f"lower the rate {settings.rate:g}")
    return interface.finish_fit(model, watched, settings.epochs)


def train_network(train: Ratings, settings: GmfSettings | MlpSettings, seed: int) -> Network:
    """Return the parameters after all epochs, on one thread."""
    sampler = adam_factors.PairSampler(train, settings.batch, settings.negatives, seed)
    batches = (batch for epoch in range(settings.epochs) for batch in sampler.draw_batches(epoch))
    with use_one_thread():
        return descend(start_network(train, settings, seed), batches, settings)


def start_network(train: Ratings, settings: GmfSettings | MlpSettings, seed: int) -> Network:
    """Draw the parameters before the first step.

    Vectors are normal, weights lie within sqrt(3 / inputs) (LeCun et al. 1998), and constants are 0. GMF
    has no layers, MLP no products.
    """
    dims = getattr(settings, "dims", 0)
    widths: tuple[int, ...] = getattr(settings, "layers", ())

    def draw_vectors(length: int, *purposes: int) -> list[torch.Tensor]:
        sides = zip((train.n_users, train.n_items), purposes, strict=True)
        draws = ((rows, adam_factors.make_generator(seed, purpose)) for rows, purpose in sides)
        return [_learn(draw.normal(0, settings.init_sd, (rows, length))) for rows, draw in draws]

    def draw_weights(shape: tuple[int, ...], purpose: int) -> torch.Tensor:
        bound = np.sqrt(3 / shape[-1])
        return _learn(adam_factors.make_generator(seed, purpose).uniform(-bound, bound, shape))

    factors = draw_vectors(dims, adam_factors.USERS, adam_factors.ITEMS) if dims else []
    vectors = draw_vectors(widths[0] // 2, NETWORK_USERS, NETWORK_ITEMS) if widths else []
    layers: list[torch.Tensor] = []
    for at, (before, after) in enumerate(pairwise(widths)):
        layers += [draw_weights((after, before), FIRST_LAYER + at), _learn(np.zeros(after))]
    out = draw_weights((dims + sum(widths[-1:]),), adam_factors.WEIGHTS)
    return Network(factors, vectors, layers, out, _learn(np.zeros(1)))


def _learn(table: Floats) -> torch.Tensor:
    """Return a table Adam may change."""
    import torch  # noqa: PLC0415

    return torch.tensor(table, dtype=torch.float32, requires_grad=True)


def descend(network: Network, batches: Iterable[Batch], settings: GmfSettings | MlpSettings) -> Network:
    """Make an Adam step per batch; return the network.

    A batch has users, items and labels.
    """
    import torch  # noqa: PLC0415

    adam = torch.optim.Adam(network.list_tables(), lr=settings.rate)
    measure = torch.nn.functional.binary_cross_entropy_with_logits
    for users_b, items_b, label_b in batches:
        adam.zero_grad()
        score_b, squares = network.score(torch.from_numpy(users_b), torch.from_numpy(items_b))
        loss = measure(score_b, torch.from_numpy(label_b))
        if settings.regulariser:
            loss = loss + settings.regulariser * squares / 2
        loss.backward()  # type: ignore[no-untyped-call]
        adam.step()
    return network


def make_network_model(network: Network, train: Ratings) -> NetworkModel:
    """Return the network as arrays, first layer already applied.

    The first layer is applied once to all users and items. Those without a training pair get zero vectors.
    """
    e_uh, e_ih, *layers = (_to_array(table) for table in (*network.vectors, *network.layers))
    first, constants, *later = layers
    half = e_uh.shape[1]
    first_uh = np.einsum("uk,hk->uh", e_uh, first[:, :half]) + constants
    first_ih = np.einsum("ik,hk->ih", e_ih, first[:, half:])
    out = _to_array(network.out)
    dims = network.factors[0].shape[1] if network.factors else 0
    p_ud, q_id = (_to_array(table) for table in network.factors) if dims else (e_uh[:, :0], e_ih[:, :0])
    widths_l = np.array([first.shape[0], *(table.shape[0] for table in later[::2])], np.int64)
    weights = np.concatenate([table.ravel() for table in (*later, out[dims:])])
    tables: list[Floats32] = [
        table.astype(np.float32) for table in (p_ud * out[:dims], q_id, first_uh, first_ih)
    ]
    for table, key_r in zip(tables, (train.users_r, train.items_r) * 2, strict=True):
        table[np.bincount(key_r, minlength=len(table)) == 0] = 0
    return NetworkModel(tables[0], tables[1], tables[2], tables[3], widths_l, weights.astype(np.float32))


def _to_array(table: torch.Tensor) -> Floats:
    return np.asarray(table.detach().numpy(), np.float64)
