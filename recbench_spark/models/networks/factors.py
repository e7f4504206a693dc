"""Fit user and item vectors to interactions: MF-BPR and LightGCN.

Sources: Rendle et al. 2009 (pairwise ranking); He et al. 2020, section 3. LightGCN is the mean over 0 to K
symmetrically normalised sums over neighbours, without weights besides the vectors.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn import functional

from recbench_spark.core.arrays import Bools, Floats32, Ints, Ints32
from recbench_spark.errors import ConfigError
from recbench_spark.graphs.kernels.aggregate import sum_sources
from recbench_spark.graphs.kernels.csr import Csr
from recbench_spark.graphs.kernels.ids import hash_numbers
from recbench_spark.graphs.kernels.simd import PREFETCH_EDGES
from recbench_spark.models.networks.devices import move_batch
from recbench_spark.models.networks.fitting import Step, Watch
from recbench_spark.models.networks.sampling import draw_shared_negatives, draw_unseen, find_owned_items


class UserItemPairs(NamedTuple):
    """Each user's items, in compressed rows.

    Attributes:
        users: number of users.
        items: number of items.
        indptr: (users + 1,) place where each user's items begin.
        item: (e,) ascending within a user, each once.
    """

    users: int
    items: int
    indptr: Ints
    item: Ints32

    @property
    def user(self) -> Ints32:
        """Return each pair's user, (e,)."""
        return np.repeat(np.arange(self.users, dtype=np.int32), np.diff(self.indptr))


def make_pairs(user_e: npt.NDArray[Any], item_e: npt.NDArray[Any], users: int, items: int) -> UserItemPairs:
    """Sort pairs by user and item, each once."""
    keys = np.unique(user_e.astype(np.int64) * items + item_e)
    indptr = np.searchsorted(keys, np.arange(users + 1, dtype=np.int64) * items)
    return UserItemPairs(users, items, indptr.astype(np.int64), (keys % items).astype(np.int32))


def select_users(pairs: UserItemPairs, selected_u: Bools) -> UserItemPairs:
    """Return some users' pairs; other users have none."""
    sizes = np.diff(pairs.indptr)
    indptr = np.concatenate([[0], np.cumsum(np.where(selected_u, sizes, 0))])
    return pairs._replace(indptr=indptr, item=pairs.item[np.repeat(selected_u, sizes)])


def order_users_by_hash(users: int, seed: int) -> Ints:
    """Return all users, (users,), in a random order by hash."""
    return np.argsort(hash_numbers(np.arange(users), seed), kind="stable")


def split_pairs(pairs: UserItemPairs, share: float, seed: int) -> tuple[UserItemPairs, UserItemPairs]:
    """Split pairs into training and validation by hash.

    Validation gets those whose hash is in the lowest `share`. A user keeps at least one pair for training.
    """
    user = pairs.user.astype(np.int64)
    hashes = hash_numbers(user * pairs.items + pairs.item, seed)
    validation = hashes < np.uint64(min(share, 1) * 2.0**64 * (1 - 2.0**-53))
    least = np.full(pairs.users, 2**64 - 1, np.uint64)
    np.minimum.at(least, user, ~hashes)
    validation &= ~hashes != least[user]
    parts = (
        make_pairs(user[rows], pairs.item[rows], pairs.users, pairs.items)
        for rows in (~validation, validation)
    )
    return next(parts), next(parts)


class FactorNetwork(nn.Module):
    """Learns a vector for each user and item; LightGCN with layers.

    `sparse`: a step updates only its minibatch's rows. Otherwise, or with layers, it updates all rows.
    """

    def __init__(
        self,
        pairs: UserItemPairs,
        dims: int,
        layers: int,
        seed: int,
        spread: float = 0.1,
        *,
        sparse: bool = True,
    ) -> None:
        super().__init__()
        if layers < 0:
            raise ConfigError(f"layers: {layers} is negative", "0 is MF-BPR, 3 LightGCN's usual number")
        self.users, self.layers, self.sparse = pairs.users, layers, sparse and not layers
        self.vectors = nn.Parameter(
            torch.from_numpy(random_normals(pairs.users + pairs.items, dims, seed) * spread)
        )
        self.adjacency = normalise_adjacency(pairs) if layers else None

    def final(self) -> torch.Tensor:
        """Return the (users + items, dims) vectors whose products are scores."""
        h: torch.Tensor = self.vectors
        total = h
        for _ in range(self.layers):
            h = cast(torch.Tensor, _Product.apply(self.adjacency, h))
            total = total + h
        return total / (self.layers + 1) if self.layers else total

    def look_up(self, rows: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return some rows' final vectors.

        If sparse, gradients reach only these rows.
        """
        return self._take_rows(self.final(), rows)

    def lengths(self, rows: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the squares of all looked-up rows, summed over examples.

        Vectors are those before any layer. Where an example has several rows, its own or shared ones, their
        mean is taken.
        """
        vectors, examples = self._take_rows(self.vectors, rows), len(rows[0])
        each = [(x**2).sum() * (examples / row.numel()) for x, row in zip(vectors, rows, strict=True)]
        return torch.stack(each).sum()

    def _take_rows(self, table: torch.Tensor, rows: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Look up all rows at once.

        The gradient of each lookup in a dense table is as large as the table.
        """
        flat = torch.cat([row.reshape(-1) for row in rows])
        vectors = functional.embedding(flat, table, sparse=self.sparse)
        parts = torch.split(vectors, [row.numel() for row in rows])
        return [part.reshape(*row.shape, -1) for part, row in zip(parts, rows, strict=True)]


def random_normals(rows: int, dims: int, seed: int) -> Floats32:
    """Return (rows, dims) standard normal numbers by hash.

    The hash is over seed and place (Box and Muller 1958).
    """
    hashes = hash_numbers(np.arange(2 * rows * dims), seed % 2**31)
    u = ((hashes >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    radius, angle = np.sqrt(-2 * np.log(u[::2])), 2 * np.pi * u[1::2]
    return np.asarray(radius * np.cos(angle), np.float32).reshape(rows, dims)


@dataclass(frozen=True)
class SymmetricMatrix:
    """A sparse symmetric matrix, multiplied with equal bits everywhere.

    Attributes:
        csr: its n rows; weights are its numbers.
        placed: its `tensors` by device and number type, so it goes to a GPU once.
    """

    csr: Csr
    placed: dict[Any, tuple[torch.Tensor, ...]] = field(default_factory=dict, repr=False, compare=False)

    def times(self, h: torch.Tensor) -> torch.Tensor:
        """Return the (n, d) product with (n, d).

        Any number of threads gives the same bits.
        """
        if h.device.type == "cpu" and h.dtype == torch.float32:
            return torch.from_numpy(_multiply(self.csr, h.detach().numpy(), torch.get_num_threads()))
        column, begins, weights = self.tensors(h)
        return functional.embedding_bag(column, h, begins, mode="sum", per_sample_weights=weights)

    def tensors(self, like: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the matrix as tensors on the device of `like`.

        The tensors are (e,) columns, (n,) begins of rows and (e,) numbers, with the type of `like`.
        """
        key = like.device, like.dtype
        if key not in self.placed:
            column = torch.from_numpy(self.csr.src[: self.csr.edges].astype(np.int64))
            weights = torch.from_numpy(self.csr.weight).to(like.dtype)
            self.placed[key] = move_batch(
                (column, torch.from_numpy(self.csr.indptr[:-1].copy()), weights), like.device
            )
        return self.placed[key]


def _multiply(csr: Csr, h: npt.NDArray[Any], threads: int) -> Floats32:
    """Multiply one row range per thread, with equal edge counts."""
    cuts = np.searchsorted(csr.indptr, np.linspace(0, csr.edges, threads + 1)[1:-1])
    ends = [0, *cuts.tolist(), len(csr.indptr) - 1]
    parts = [csr._replace(indptr=csr.indptr[a : b + 1]) for a, b in itertools.pairwise(ends)]
    if threads == 1:
        return sum_sources("importance", parts[0], h)
    with ThreadPoolExecutor(threads) as pool:
        return np.concatenate(list(pool.map(lambda part: sum_sources("importance", part, h), parts)))


def normalise_adjacency(pairs: UserItemPairs) -> SymmetricMatrix:
    """Return D^-1/2 A D^-1/2 for the bipartite graph.

    Users come first, then items.
    """
    user, item = pairs.user.astype(np.int64), pairs.item.astype(np.int64) + pairs.users
    n = pairs.users + pairs.items
    rows, columns = np.concatenate([user, item]), np.concatenate([item, user])
    order = np.argsort(rows * n + columns, kind="stable")
    degree = np.bincount(rows, minlength=n)
    value = 1 / np.sqrt((degree[rows] * degree[columns])[order].astype(np.float64))
    indptr = np.concatenate([[0], np.cumsum(degree)]).astype(np.int64)
    src = np.append(columns[order], np.zeros(PREFETCH_EDGES, np.int64)).astype(np.uint32)
    return SymmetricMatrix(Csr(indptr, src, value.astype(np.float32)))


class _Product(torch.autograd.Function):
    """Multiplies a symmetric matrix with vectors; its gradient does too."""

    @staticmethod
    def forward(ctx: Any, matrix: SymmetricMatrix, h: torch.Tensor) -> torch.Tensor:
        ctx.matrix = matrix
        return matrix.times(h)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[None, torch.Tensor]:
        return None, ctx.matrix.times(grads[0])


class FactorBatch(NamedTuple):
    """A minibatch of pairs, as rows in the vectors.

    Attributes:
        user: (b,) users; those in a group follow one another.
        item: (b,) items of these users.
        other: (b, n) items the users do not have; or (g, n) items per group.
        known: (b, n) items in its group which a user has; None where there are no groups.
        sizes: (g,) examples per group.
    """

    user: torch.Tensor
    item: torch.Tensor
    other: torch.Tensor
    known: torch.Tensor | None = None
    sizes: tuple[int, ...] = ()


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


class FactorTask:
    """Trains on pairs with drawn negatives; a `fitting.Task`.

    A pair's negatives are n items its user does not have. An example's loss is the mean over them of -log
    sigma(x_ui - x_uj), plus penalty / 2 times |u|^2 + |i|^2 + the mean of |j|^2, over the vectors before
    any layer. With `groups` a hash cuts a minibatch into so many. Each group gets n items, and a user's
    mean is over those it does not have. With 0 each example has its own. The validation score is recall at
    20 over users drawn by hash, without training items.
    """

    def __init__(
        self, train: UserItemPairs, held: UserItemPairs, module: FactorNetwork, penalty: float,
        negatives: int = 1, *, groups: int = 0, judged: int = 2000,
    ) -> None:  # fmt: skip
        self.train, self.held, self.module, self.penalty = train, held, module, penalty
        self.negatives, self.groups = negatives, groups
        self.examples, self.user = len(train.item), train.user
        self.watch: Watch | None = None
        users = np.flatnonzero(np.diff(held.indptr))
        self.validation_users = users[np.argsort(hash_numbers(users, 1), kind="stable")][:judged]

    def batch(self, at: Step, row_b: Ints, seed: int) -> FactorBatch:
        """Make a `FactorBatch`.

        Each process draws the same group items, for the whole minibatch.
        """
        if self.groups:
            return self._make_shared_batch(row_b, seed)
        return self._take_rows(row_b, self._draw_negatives(row_b, seed))

    def _take_rows(self, row_b: Ints, other: Ints) -> FactorBatch:
        user, item, users = self.user[row_b], self.train.item[row_b], self.train.users
        rows = (user.astype(np.int64), item.astype(np.int64) + users, other + users)
        one, two, three = (torch.from_numpy(x) for x in rows)
        return FactorBatch(one, two, three)

    def _make_shared_batch(self, row_b: Ints, seed: int) -> FactorBatch:
        group = (hash_numbers(row_b, seed % 2**31) % np.uint64(self.groups)).astype(np.int64)
        order = np.argsort(group, kind="stable")
        row_b, group = row_b[order], group[order]
        drawn = draw_shared_negatives(0, self.train.items, self.groups * self.negatives, seed)
        other = drawn.reshape(self.groups, self.negatives)
        known = find_owned_items(self.train.indptr, self.train.item, self.user[row_b], group, other)
        sizes = tuple(np.bincount(group, minlength=self.groups).tolist())
        return self._take_rows(row_b, other)._replace(known=torch.from_numpy(known), sizes=sizes)

    def _draw_negatives(self, row_b: Ints, seed: int) -> Ints:
        user = self.user[row_b].astype(np.int64)
        key_bn = (row_b[:, None] * self.negatives + np.arange(self.negatives)).reshape(-1)
        user_bn = np.repeat(user, self.negatives)
        other_bn = draw_unseen(
            self.train.indptr, self.train.item, user_bn, key_bn, self.train.items, seed=seed
        )
        return other_bn.reshape(-1, self.negatives)

    def loss(self, batch: FactorBatch) -> torch.Tensor:
        """Return the examples' summed loss; see the class."""
        rows = (batch.user, batch.item, batch.other)
        user, item, other = self.module.look_up(rows)
        positive = (user * item).sum(dim=1, keepdim=True)
        if batch.known is None:
            ranked = bayesian_ranking(positive, (other @ user[:, :, None]).squeeze(2)) / self.negatives
        else:
            parts = torch.split(user, list(batch.sizes))
            scores = [users @ drawn.T for users, drawn in zip(parts, other, strict=True)]
            ranked = bayesian_ranking(positive, torch.cat(scores), batch.known)
        return ranked + self.penalty / 2 * self.module.lengths(rows) if self.penalty else ranked

    def worth(self) -> float:
        """Return mean recall at 20 on validation pairs; NaN without them."""
        if not len(self.validation_users):
            return math.nan
        with torch.no_grad():
            final = self.module.final()
        return mean_recall(final.detach().cpu().numpy(), self.train, self.held, self.validation_users, 20)


def mean_recall(
    final: npt.NDArray[Any],
    train: UserItemPairs,
    held: UserItemPairs,
    user_j: Ints,
    k: int,
    *,
    at_once: int = 256,
) -> float:
    """Return mean recall@k over users, without training items.

    Recall is the held-out share among a user's k best items.
    """
    total = 0.0
    for begin in range(0, len(user_j), at_once):
        users = user_j[begin : begin + at_once]
        scores = final[users] @ final[train.users :].T
        for row, user in enumerate(users.tolist()):
            scores[row, train.item[train.indptr[user] : train.indptr[user + 1]]] = -np.inf
        best = np.argpartition(-scores, min(k, scores.shape[1] - 1), axis=1)[:, :k]
        for row, user in enumerate(users.tolist()):
            truth = held.item[held.indptr[user] : held.indptr[user + 1]]
            total += np.isin(truth, best[row]).sum() / len(truth)
    return total / max(len(user_j), 1)
