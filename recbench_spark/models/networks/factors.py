"""Vectors of users and items fitted to which items users have: MF-BPR, and LightGCN over the same graph.

Sources: Rendle et al. 2009 (pairwise ranking); He et al. 2020, section 3 (LightGCN: the mean of 0 to K
symmetrically normalised sums over neighbours, no weights but the vectors themselves).
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

from recbench_spark.errors import ConfigError
from recbench_spark.kernels.graph.aggregate import sum_sources
from recbench_spark.kernels.graph.csr import Csr
from recbench_spark.kernels.graph.ids import hash_numbers
from recbench_spark.kernels.graph.simd import PREFETCH_EDGES
from recbench_spark.models.networks.devices import move_batch
from recbench_spark.models.networks.fitting import Rows, Step
from recbench_spark.models.networks.losses import bayesian_ranking
from recbench_spark.models.networks.sampling import draw_shared_negatives, draw_unseen, find_owned_items

Indices = npt.NDArray[np.int64]


class UserItemPairs(NamedTuple):
    """Which items users have.

    Attributes:
        users: their number; items: theirs.
        items: see users.
        indptr: (users + 1,) where each user's items begin.
        item: (e,) ascending within a user, each once.
    """

    users: int
    items: int
    indptr: Indices
    item: npt.NDArray[np.int32]

    @property
    def user(self) -> npt.NDArray[np.int32]:
        """(e,) user of each pair."""
        return np.repeat(np.arange(self.users, dtype=np.int32), np.diff(self.indptr))


def make_pairs(user_e: npt.NDArray[Any], item_e: npt.NDArray[Any], users: int, items: int) -> UserItemPairs:
    """Pairs sorted by user and item, each once."""
    keys = np.unique(user_e.astype(np.int64) * items + item_e)
    indptr = np.searchsorted(keys, np.arange(users + 1, dtype=np.int64) * items)
    return UserItemPairs(users, items, indptr.astype(np.int64), (keys % items).astype(np.int32))


def select_users(pairs: UserItemPairs, kept_u: npt.NDArray[np.bool_]) -> UserItemPairs:
    """Pairs of the users that are kept; others have none."""
    sizes = np.diff(pairs.indptr)
    indptr = np.concatenate([[0], np.cumsum(np.where(kept_u, sizes, 0))])
    return pairs._replace(indptr=indptr, item=pairs.item[np.repeat(kept_u, sizes)])


def order_users_by_hash(users: int, seed: int) -> Indices:
    """(users,) all of them in an order that the seed draws."""
    return np.argsort(hash_numbers(np.arange(users), seed), kind="stable")


def split_pairs(pairs: UserItemPairs, share: float, seed: int) -> tuple[UserItemPairs, UserItemPairs]:
    """Training and validation pairs: those whose hash is among the lowest `share`; a user keeps one at
    least."""
    user = pairs.user.astype(np.int64)
    hashes = hash_numbers(user * pairs.items + pairs.item, seed)
    held = hashes < np.uint64(min(share, 1) * 2.0**64 * (1 - 2.0**-53))
    least = np.full(pairs.users, 2**64 - 1, np.uint64)
    np.minimum.at(least, user, ~hashes)
    held &= ~hashes != least[user]
    parts = (make_pairs(user[rows], pairs.item[rows], pairs.users, pairs.items) for rows in (~held, held))
    return next(parts), next(parts)


class FactorNetwork(nn.Module):
    """A vector a user and an item; with layers, LightGCN's.

    `sparse`: a step moves the rows of its minibatch alone; without, or with layers, all rows.
    """

    def __init__(
        self,
        pairs: UserItemPairs,
        dims: int,
        layers: int,
        seed: int,
        spread: float = 0.1,
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
        """(users + items, dims) vectors whose products are scores."""
        h: torch.Tensor = self.vectors
        total = h
        for _ in range(self.layers):
            h = cast(torch.Tensor, _Product.apply(self.adjacency, h))
            total = total + h
        return total / (self.layers + 1) if self.layers else total

    def of(self, rows: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Final vectors of some rows; of a sparse one, gradients reach these rows alone."""
        return self._rows(self.final(), rows)

    def lengths(self, rows: Sequence[torch.Tensor]) -> torch.Tensor:
        """Sum over an example's rows of their squares before any layer; of several, of own or shared ones,
        their mean."""
        found, examples = self._rows(self.vectors, rows), len(rows[0])
        each = [(x**2).sum() * (examples / some.numel()) for x, some in zip(found, rows, strict=True)]
        return torch.stack(each).sum()

    def _rows(self, table: torch.Tensor, rows: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """By one lookup: that of a table that is not sparse has a gradient as large as the table."""
        flat = torch.cat([some.reshape(-1) for some in rows])
        found = functional.embedding(flat, table, sparse=self.sparse)
        parts = torch.split(found, [some.numel() for some in rows])
        return [part.reshape(*some.shape, -1) for part, some in zip(parts, rows, strict=True)]


def random_normals(rows: int, dims: int, seed: int) -> npt.NDArray[np.float32]:
    """(rows, dims) standard normal numbers by hash of seed and place (Box and Muller 1958)."""
    hashes = hash_numbers(np.arange(2 * rows * dims), seed % 2**31)
    u = ((hashes >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    radius, angle = np.sqrt(-2 * np.log(u[::2])), 2 * np.pi * u[1::2]
    return np.asarray(radius * np.cos(angle), np.float32).reshape(rows, dims)


@dataclass(frozen=True)
class SymmetricMatrix:
    """A sparse matrix that is its own transpose, by rows.

    Attributes:
        csr: its rows, n of them; weights are its numbers.
        placed: by device and type of numbers, `tensors` of it: it is moved to a GPU once.
    """

    csr: Csr
    placed: dict[Any, tuple[torch.Tensor, ...]] = field(default_factory=dict, repr=False, compare=False)

    def times(self, h: torch.Tensor) -> torch.Tensor:
        """(n, d) the product with (n, d); the same bits for any number of threads."""
        if h.device.type == "cpu" and h.dtype == torch.float32:
            return torch.from_numpy(_multiply(self.csr, h.detach().numpy(), torch.get_num_threads()))
        column, begins, weights = self.tensors(h)
        return functional.embedding_bag(column, h, begins, mode="sum", per_sample_weights=weights)

    def tensors(self, like: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """(e,) columns, (n,) where rows begin, (e,) numbers; on the device of other ones, of their type."""
        key = like.device, like.dtype
        if key not in self.placed:
            column = torch.from_numpy(self.csr.src[: self.csr.edges].astype(np.int64))
            weights = torch.from_numpy(self.csr.weight).to(like.dtype)
            self.placed[key] = move_batch(
                (column, torch.from_numpy(self.csr.indptr[:-1].copy()), weights), like.device
            )
        return self.placed[key]


def _multiply(csr: Csr, h: npt.NDArray[Any], threads: int) -> npt.NDArray[np.float32]:
    """Rows in as many parts as there are threads, of as many edges each."""
    cuts = np.searchsorted(csr.indptr, np.linspace(0, csr.edges, threads + 1)[1:-1])
    ends = [0, *cuts.tolist(), len(csr.indptr) - 1]
    parts = [csr._replace(indptr=csr.indptr[a : b + 1]) for a, b in itertools.pairwise(ends)]
    if threads == 1:
        return sum_sources("importance", parts[0], h)
    with ThreadPoolExecutor(threads) as pool:
        return np.concatenate(list(pool.map(lambda part: sum_sources("importance", part, h), parts)))


def normalise_adjacency(pairs: UserItemPairs) -> SymmetricMatrix:
    """D^-1/2 A D^-1/2 of the bipartite graph: users first, then items."""
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
    """A symmetric sparse matrix times vectors; its gradient is the same product."""

    @staticmethod
    def forward(ctx: Any, matrix: SymmetricMatrix, h: torch.Tensor) -> torch.Tensor:
        ctx.matrix = matrix
        return matrix.times(h)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[None, torch.Tensor]:
        return None, ctx.matrix.times(grads[0])


class FactorBatch(NamedTuple):
    """A minibatch, by rows of the vectors.

    Attributes:
        user: (b,) users; those of a group beside one another.
        item: (b,) items that they have.
        other: (b, n) items that they do not have; or (g, n) those of each group.
        known: (b, n) which of its group's items a user has; None where there are no groups.
        sizes: (g,) examples of each group.
    """

    user: torch.Tensor
    item: torch.Tensor
    other: torch.Tensor
    known: torch.Tensor | None = None
    sizes: tuple[int, ...] = ()


class FactorTask:
    """Pairs of training, each with n items that its user does not have; a `fitting.Task`.

    The loss of an example is the mean over them of -log sigma(x_ui - x_uj), and penalty / 2 times |u|^2 +
    |i|^2 + the mean of |j|^2, over the vectors before any layer. `groups`: a minibatch is cut into so many
    by hash, n items are drawn for each, and of these a user's mean is over those that it does not have; 0:
    each example has its own. Worth is recall at 20 over users drawn by hash, training items left out.
    """

    def __init__(
        self, train: UserItemPairs, held: UserItemPairs, module: FactorNetwork, penalty: float, negatives: int = 1,
        groups: int = 0, judged: int = 2000,
    ) -> None:  # fmt: skip
        self.train, self.held, self.module, self.penalty = train, held, module, penalty
        self.negatives, self.groups = negatives, groups
        self.examples, self.user = len(train.item), train.user
        some = np.flatnonzero(np.diff(held.indptr))
        self.validation_users = some[np.argsort(hash_numbers(some, 1), kind="stable")][:judged]

    def batch(self, at: Step, row_b: Rows, seed: int) -> FactorBatch:
        """See `FactorBatch`; a group's items are those of the whole minibatch in each process."""
        if self.groups:
            return self._make_shared_batch(row_b, seed)
        return self._rows(row_b, self._own(row_b, seed))

    def _rows(self, row_b: Rows, other: Indices) -> FactorBatch:
        user, item, users = self.user[row_b], self.train.item[row_b], self.train.users
        rows = (user.astype(np.int64), item.astype(np.int64) + users, other + users)
        one, two, three = (torch.from_numpy(x) for x in rows)
        return FactorBatch(one, two, three)

    def _make_shared_batch(self, row_b: Rows, seed: int) -> FactorBatch:
        group = (hash_numbers(row_b, seed % 2**31) % np.uint64(self.groups)).astype(np.int64)
        order = np.argsort(group, kind="stable")
        row_b, group = row_b[order], group[order]
        drawn = draw_shared_negatives(0, self.train.items, self.groups * self.negatives, seed)
        other = drawn.reshape(self.groups, self.negatives)
        known = find_owned_items(self.train.indptr, self.train.item, self.user[row_b], group, other)
        sizes = tuple(np.bincount(group, minlength=self.groups).tolist())
        return self._rows(row_b, other)._replace(known=torch.from_numpy(known), sizes=sizes)

    def _own(self, row_b: Rows, seed: int) -> Indices:
        user = self.user[row_b].astype(np.int64)
        key_bn = (row_b[:, None] * self.negatives + np.arange(self.negatives)).reshape(-1)
        user_bn = np.repeat(user, self.negatives)
        other_bn = draw_unseen(self.train.indptr, self.train.item, user_bn, key_bn, self.train.items, seed)
        return other_bn.reshape(-1, self.negatives)

    def loss(self, batch: FactorBatch) -> torch.Tensor:
        """See the class."""
        rows = (batch.user, batch.item, batch.other)
        user, item, other = self.module.of(rows)
        positive = (user * item).sum(dim=1, keepdim=True)
        if batch.known is None:
            ranked = bayesian_ranking(positive, (other @ user[:, :, None]).squeeze(2)) / self.negatives
        else:
            parts = torch.split(user, list(batch.sizes))
            scores = [some @ drawn.T for some, drawn in zip(parts, other, strict=True)]
            ranked = bayesian_ranking(positive, torch.cat(scores), batch.known)
        return ranked + self.penalty / 2 * self.module.lengths(rows) if self.penalty else ranked

    def worth(self) -> float:
        """Mean recall at 20 of the validation part; NaN where there is none."""
        if not len(self.validation_users):
            return math.nan
        with torch.no_grad():
            final = self.module.final()
        return mean_recall(final.detach().cpu().numpy(), self.train, self.held, self.validation_users, 20)


def mean_recall(
    final: npt.NDArray[Any],
    train: UserItemPairs,
    held: UserItemPairs,
    user_j: Indices,
    k: int,
    at_once: int = 256,
) -> float:
    """Mean over users of their held-out items among the k best that training does not hold, over their
    number."""
    found = 0.0
    for begin in range(0, len(user_j), at_once):
        users = user_j[begin : begin + at_once]
        scores = final[users] @ final[train.users :].T
        for row, user in enumerate(users.tolist()):
            scores[row, train.item[train.indptr[user] : train.indptr[user + 1]]] = -np.inf
        best = np.argpartition(-scores, min(k, scores.shape[1] - 1), axis=1)[:, :k]
        for row, user in enumerate(users.tolist()):
            truth = held.item[held.indptr[user] : held.indptr[user + 1]]
            found += np.isin(truth, best[row]).sum() / len(truth)
    return found / max(len(user_j), 1)
