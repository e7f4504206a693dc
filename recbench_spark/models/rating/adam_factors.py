"""Factor models fitted by Adam: WMF, which weighs all pairs; and batches with drawn negatives.

By default WMF learns from every rated pair, as the published study of 104 models did, and ranks by vector
products. Only the fit imports torch, so settings are read without it.

Axes: u users, i items, d dimensions, r ratings, b examples in a batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import numpy as np
from pydantic import Field

from recbench_spark.core.arrays import Floats, Floats32, Ints
from recbench_spark.core.threads import use_one_thread
from recbench_spark.errors import DivergedError
from recbench_spark.models.networks.sampling import draw_unseen
from recbench_spark.models.rating.draws import permutation
from recbench_spark.models.rating.interface import MAX_RATE, Fit, RatingModelConfig, Ratings, RatingSettings
from recbench_spark.models.rating.sgd import make_score_fit
from recbench_spark.splits.kernels.positions import number_slots

if TYPE_CHECKING:
    import torch

USERS, ITEMS, WEIGHTS, NEGATIVES = range(4)
"""Purposes of random draws: each has draws of its own."""


class AdamSettings(RatingSettings):
    """Settings shared by all Adam learners.

    Attributes:
        positives: `all`: learn from every rated pair; `relevant`: only from those the metric counts.
        rate: Adam's step size.
    """

    epochs: Annotated[int, Field(ge=1)] = 20
    """Passes over the pairs."""
    rate: Annotated[float, Field(gt=0, le=MAX_RATE)] = 0.001
    positives: Literal["all", "relevant"] = "all"


class WmfSettings(AdamSettings):
    """Settings of weighted matrix factorisation.

    Attributes:
        batch_items: items in a step; all users take part in each.
        observed_weight: a, the weight of a rated pair.
        unobserved_weight: b, the weight of every other pair, whose target is 0.
        user_regulariser, item_regulariser: factors on half the squared lengths.
        target: score to learn for a rated pair: its rating, or 1.
        clip: largest size of a gradient's entry.
    """

    kind: Literal["wmf"] = "wmf"
    dims: Annotated[int, Field(ge=1, le=1024)] = 50
    """Number of factors for each user and item."""
    epochs: Annotated[int, Field(ge=1)] = 100
    batch_items: Annotated[int, Field(ge=1)] = 128
    observed_weight: Annotated[float, Field(gt=0)] = 1.0
    unobserved_weight: Annotated[float, Field(ge=0)] = 0.01
    user_regulariser: Annotated[float, Field(ge=0)] = 0.01
    item_regulariser: Annotated[float, Field(ge=0)] = 0.01
    target: Literal["rating", "one"] = "rating"
    clip: Annotated[float, Field(gt=0)] = 5.0


class WmfModel(WmfSettings, RatingModelConfig):
    """Weighted matrix factorisation by Adam, for ranking."""

    kind: Literal["wmf"]


class RatedPairs(NamedTuple):
    """Rated pairs, sorted by one side (users or items).

    Row a has the pairs `start_a[a] : start_a[a + 1]`.

    Attributes:
        start_a: (a + 1,) first pair of each row.
        other_r: (r,) row of the other side, ascending within a row.
        target_r: (r,) target of each pair.
    """

    start_a: Ints
    other_r: Ints
    target_r: Floats


def group_pairs(key_r: Ints, other_r: Ints, target_r: Floats, size: int) -> RatedPairs:
    """Sort pairs by (key, other); the given row order never decides."""
    order = np.lexsort((target_r, other_r, key_r))
    start_a = np.concatenate([[0], np.cumsum(np.bincount(key_r, minlength=size))]).astype(np.int64)
    return RatedPairs(start_a, other_r[order], target_r[order])


# ------------------------------------------------------------------------------------ WMF


def fit_wmf(
    train: Ratings, settings: WmfSettings, seed: int, watched: Ratings | None = None, threads: int = 1
) -> Fit:
    """Fit WMF, with a batch of items in each step.

    All users take part in each step. It minimises a sum_rated (t - p q)^2 + b sum_others (p q)^2 +
    regularisers. The sum over all pairs comes from the Gram matrix P'P, so a step costs (users + batch) d^2
    + rated d and not users x batch x d. A fit takes one thread, whatever `threads` says.

    Source: Hu, Koren and Volinsky, "Collaborative filtering for implicit feedback datasets" (ICDM 2008),
    equation 3, with the weights a and b by Pan et al., "One-class collaborative filtering" (ICDM 2008).

    Raises DivergedError if a vector is not finite.
    """
    import torch  # noqa: PLC0415

    target_r = np.ones(len(train)) if settings.target == "one" else train.ratings_r
    pairs = group_pairs(train.items_r, train.users_r, target_r, train.n_items)
    with use_one_thread():
        tables = [
            torch.tensor(draw_xavier(rows, settings.dims, seed, purpose), requires_grad=True)
            for purpose, rows in ((USERS, train.n_users), (ITEMS, train.n_items))
        ]
        adam = torch.optim.Adam(tables, lr=settings.rate)
        for epoch in range(settings.epochs):
            for items_b in cut_batches(train.n_items, settings.batch_items, seed, epoch):
                adam.zero_grad()
                _wmf_loss(tables[USERS], tables[ITEMS], pairs, items_b, settings).backward()  # type: ignore[no-untyped-call]
                torch.nn.utils.clip_grad_value_(tables, settings.clip)
                adam.step()
        p_ud, q_id = (table.detach().numpy().copy() for table in tables)
    error = DivergedError(f"{settings.kind} diverged", f"lower the rate {settings.rate:g}")
    return make_score_fit(train, (p_ud, q_id), settings.epochs, watched, error=error)


def _wmf_loss(
    p_ud: torch.Tensor, q_id: torch.Tensor, pairs: RatedPairs, items_b: Ints, settings: WmfSettings
) -> torch.Tensor:
    """Return the loss over all users and a batch of items."""
    import torch  # noqa: PLC0415

    a, b = settings.observed_weight, settings.unobserved_weight
    q_bd = q_id[torch.from_numpy(items_b)]
    start_b = pairs.start_a[items_b]
    column_r, number_r = number_slots(pairs.start_a[items_b + 1] - start_b)
    places_r = start_b[column_r] + number_r
    users = torch.from_numpy(pairs.other_r[places_r])
    target_r = torch.from_numpy(pairs.target_r[places_r].astype(np.float32))
    score_r = (p_ud[users] * q_bd[torch.from_numpy(column_r)]).sum(dim=1)
    all_pairs = ((p_ud.T @ p_ud) * (q_bd.T @ q_bd)).sum()
    rated = (a * (target_r - score_r) ** 2 - b * score_r**2).sum()
    lengths = settings.user_regulariser * (p_ud**2).sum() + settings.item_regulariser * (q_bd**2).sum()
    return b * all_pairs + rated + lengths / 2


class PairSampler:
    """Draws batches by hash, each with rated pairs and unrated items."""

    def __init__(self, train: Ratings, batch: int, negatives: int, seed: int) -> None:
        """Sort the pairs by user.

        A batch has `batch` rated pairs, and `negatives` drawn items for each.
        """
        self.pairs = group_pairs(train.users_r, train.items_r, train.ratings_r, train.n_users)
        self.users_r = np.repeat(np.arange(train.n_users), np.diff(self.pairs.start_a))
        self.n_items, self.batch, self.negatives, self.seed = train.n_items, batch, negatives, seed

    def draw_batches(self, epoch: int) -> Iterator[tuple[Ints, Ints, Floats32]]:
        """Yield (b,) users, (b,) items and (b,) labels.

        The label is 1 for a rated pair and 0 for a negative.
        """
        for rows in cut_batches(len(self.users_r), self.batch, self.seed, epoch):
            users_b = np.tile(self.users_r[rows], 1 + self.negatives)
            drawn = self._draw_negatives(users_b[len(rows) :], rows, epoch)
            label_b = np.repeat([1.0, 0.0], [len(rows), len(drawn)]).astype(np.float32)
            yield users_b, np.concatenate([self.pairs.other_r[rows], drawn]), label_b

    def _draw_negatives(self, users_b: Ints, rows: Ints, epoch: int) -> Ints:
        first = epoch * self.negatives * len(self.users_r)
        keys = np.arange(self.negatives)[:, None] * len(self.users_r) + rows[None, :] + first
        seed = int(make_generator(self.seed, NEGATIVES).integers(1 << 62))
        start_u, own = self.pairs.start_a, self.pairs.other_r
        return draw_unseen(start_u, own, users_b, keys.ravel(), self.n_items, seed=seed)


# ------------------------------------------------------------------------------------ both


def make_generator(seed: int, purpose: int) -> np.random.Generator:
    """Return the random generator for one purpose."""
    return np.random.Generator(np.random.Philox(key=[seed % (1 << 63), purpose]))


def draw_xavier(rows: int, dims: int, seed: int, purpose: int) -> Floats32:
    """Draw (rows, dims) numbers within sqrt(6 / (rows + dims)).

    Source: Glorot and Bengio 2010, equation 16.
    """
    bound = np.sqrt(6 / (rows + dims))
    return make_generator(seed, purpose).uniform(-bound, bound, (rows, dims)).astype(np.float32)


def cut_batches(n: int, size: int, seed: int, epoch: int) -> Iterator[Ints]:
    """Yield 0 .. n - 1 shuffled for this epoch, `size` at a time."""
    order = permutation(n, seed, epoch).astype(np.int64)
    for start in range(0, n, size):
        yield order[start : start + size]
