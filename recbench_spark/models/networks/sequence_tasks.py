"""Train networks to predict items from earlier ones, and explain them.

Attention in a memory network need not explain a score. So each item is also taken out of the memory:
without the item of largest weight, a good explanation lets the score fall more than without another one.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from recbench_spark.core.arrays import Floats, Floats32, Ints
from recbench_spark.errors import ConfigError
from recbench_spark.graphs.kernels.ids import hash_numbers
from recbench_spark.models.networks import sequence_networks as networks
from recbench_spark.models.networks.devices import move_batch
from recbench_spark.models.networks.fitting import Step
from recbench_spark.models.networks.sampling import draw_shared_negatives, draw_unseen
from recbench_spark.models.networks.settings import MemN2NModel, SequenceModelConfig

CUTOFF = 10
"""Length of the validation lists."""

USERS_AT_ONCE = 256

MAX_SCORE_BYTES = 8 * 2**30
"""Most bytes for a minibatch's scores, with their softmax and their gradient."""


class SequenceBatch(NamedTuple):
    """A minibatch of histories with their next items.

    Attributes:
        histories: windows of the users' items.
        target: (b, l) the item after each token, -1 where none follows; or (b,) the item after all.
        negative: (n,) items which all targets share, or one for each target, row by row; empty: none.
        epoch: number of the epoch.
        seed: seed of dropout.
    """

    histories: networks.TokenWindows
    target: torch.Tensor
    negative: torch.Tensor
    epoch: int
    seed: int


class SequenceTask:
    """Trains on all items but each user's last; a `fitting.Task`.

    An example is a user, with the newest `memory` items and the item after each. For a network which reads
    one query at a time, an example is one item with those before it. An example's loss is a sum over its
    targets, scaled so that the mean over targets is the mean over examples. The validation score is NDCG@10
    for the last items, ranked among items the user does not have, over users drawn by hash.

    Raises:
        ConfigError: a minibatch's scores need too much memory.
    """

    def __init__(self, sequences: networks.Sequences, settings: SequenceModelConfig) -> None:
        self.settings = settings
        self.train, self.last = networks.set_last_aside(sequences)
        check_score_bytes(self.train, settings)
        self.module = networks.make_network(settings, sequences.items)
        self.network = cast(networks.SequenceNetwork, self.module)
        self.owned = networks.sort_within_users(self.train)
        self.user, self.end = self._list_examples()
        self.examples = len(self.user)
        targets = self.examples
        if self.network.every_place:
            targets = int(np.minimum(self.train.sizes[self.user] - 1, settings.memory).sum())
        self.scale = self.examples / max(targets, 1)
        users = np.flatnonzero(self.last >= 0)
        drawn = users[np.argsort(hash_numbers(users, 1), kind="stable")]
        self.validation_users = drawn[: settings.validation_users]

    def _list_examples(self) -> tuple[Ints, Ints]:
        """Return each example's user, and the place of its last target."""
        sizes = self.train.sizes
        if self.network.every_place:
            users = np.flatnonzero(sizes >= 2)
            return users, self.train.indptr[users + 1] - 1
        user = np.repeat(np.arange(self.train.users), sizes)
        is_first = np.zeros(len(self.train.item), np.bool_)
        is_first[self.train.indptr[:-1][sizes > 0]] = True
        return user[~is_first], np.flatnonzero(~is_first)

    def batch(self, at: Step, row_b: Ints, seed: int) -> SequenceBatch:
        """Make a minibatch from these examples."""
        histories, target = self._cut(self.user[row_b], self.end[row_b], seed)
        negative = torch.from_numpy(self._draw_negatives(target, self.user[row_b], seed))
        return SequenceBatch(histories, target, negative, at.epoch, seed)

    def _cut(self, user_b: Ints, end_b: Ints, seed: int) -> tuple[networks.TokenWindows, torch.Tensor]:
        """Return some examples' histories and targets."""
        first, memory = self.train.indptr[user_b], self.settings.memory
        if self.network.every_place:
            begin = np.maximum(first, end_b - memory)
            histories = networks.cut_windows(self.train, begin, end_b)
            return histories, networks.cut_windows(self.train, begin + 1, end_b + 1).token - 1
        histories = networks.cut_windows(self.train, np.maximum(first, end_b - memory - 1), end_b)
        noise = self.settings.noise if isinstance(self.settings, MemN2NModel) else 0.0
        histories = networks.add_empty_places(histories, noise, memory, seed=seed)
        return histories, torch.from_numpy(self.train.item[end_b].astype(np.int64))

    def _draw_negatives(self, target: torch.Tensor, user_b: Ints, seed: int) -> Ints:
        """Return shared negatives, or one unseen item per target."""
        settings, items = self.settings, self.train.items
        if settings.loss == "shared_negatives":
            return draw_shared_negatives(0, items, settings.negatives, seed)
        if settings.loss == "softmax":
            return np.empty(0, np.int64)
        counts = (target.reshape(len(target), -1) >= 0).sum(dim=1).numpy()
        user = np.repeat(user_b, counts)
        keys = np.arange(len(user))
        return draw_unseen(self.train.indptr, self.owned, user, keys, items, seed=seed)

    def loss(self, batch: SequenceBatch) -> torch.Tensor:
        """Return the examples' summed loss; see the class."""
        self.module.train()
        if isinstance(self.module, networks.HistoryMemory) and isinstance(self.settings, MemN2NModel):
            self.module.linear.fill_(int(batch.epoch <= self.settings.linear_epochs))
        with torch.random.fork_rng():
            torch.manual_seed(batch.seed)
            state, target = self._read(batch)
        scored = (self.network.item_vectors(), self.network.item_biases())
        return sum_losses(self.settings.loss, state, target, scored, batch.negative) * self.scale

    def _read(self, batch: SequenceBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the (n, d) states before each target, and (n,) targets."""
        if not self.network.every_place:
            return self.network.read_last(batch.histories), batch.target
        has_target = batch.target >= 0
        return self.network.read_all(batch.histories)[has_target], batch.target[has_target]

    def score(self, state: torch.Tensor) -> torch.Tensor:
        """Return the states' scores, (b, items)."""
        return networks.score_items(state, self.network.item_vectors(), self.network.item_biases())

    def worth(self) -> float:
        """Return NDCG@10 on the users' last items.

        The score is NaN where no user has two items. An epoch in a linear start has the score -inf: it is
        never the best one.
        """
        users = self.validation_users
        if not len(users):
            return math.nan
        if isinstance(self.module, networks.HistoryMemory) and bool(self.module.linear):
            return -math.inf
        self.module.eval()
        with torch.no_grad():
            parts = [
                self._sum_gains(users[begin : begin + USERS_AT_ONCE])
                for begin in range(0, len(users), USERS_AT_ONCE)
            ]
        return sum(parts) / len(users)

    def _sum_gains(self, user_b: Ints) -> float:
        device = next(self.module.parameters()).device
        histories = move_batch(networks.cut_newest(self.train, user_b, read_length(self.settings)), device)
        state = self.network.read_last(histories)
        score = self.score(state).cpu()
        last = torch.from_numpy(self.last[user_b])
        truth = score.gather(1, last[:, None])
        for row, user in enumerate(user_b.tolist()):
            own = self.train.item[self.train.indptr[user] : self.train.indptr[user + 1]]
            score[row, torch.from_numpy(own.astype(np.int64))] = -math.inf
        place = count_better(score, last, truth).to(torch.float64)
        gain = torch.where(place < CUTOFF, 1 / torch.log2(place + 2), 0.0)
        return float(gain.sum())


def check_score_bytes(train: networks.Sequences, settings: SequenceModelConfig) -> None:
    """Check that the largest minibatch's scores fit into MAX_SCORE_BYTES.

    Raises:
        ConfigError: the scores do not fit.
    """
    columns = {"softmax": train.items, "shared_negatives": settings.negatives}.get(settings.loss, 1)
    targets = settings.batch
    if not isinstance(settings, MemN2NModel):
        longest = np.sort(np.minimum(train.sizes, settings.memory + 1) - 1)[-settings.batch :]
        targets = int(np.maximum(longest, 0).sum())
    needed = 3 * 4 * targets * columns
    if needed > MAX_SCORE_BYTES:
        raise ConfigError(
            f"model {settings.name}: loss '{settings.loss}' makes {targets:,} x {columns:,} scores in a "
            f"minibatch, which need {needed / 2**30:.0f} GiB; at most {MAX_SCORE_BYTES / 2**30:.0f}",
            "loss: shared_negatives with fewer negatives, a smaller batch, or a shorter memory",
        )


def count_better(score: torch.Tensor, item: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    """Return how many items rank before one item, (b,).

    Such items have larger scores, or equal scores and smaller indices. Rankings order equal scores in this
    way, too.

    Args:
        score: (b, items); -inf for items which do not compete.
        item: (b,) the item.
        truth: (b, 1) its score.
    """
    is_smaller = torch.arange(score.shape[1], device=score.device) < item[:, None]
    return ((score > truth) | ((score == truth) & is_smaller)).sum(dim=1)


def read_length(settings: SequenceModelConfig) -> int:
    """Return how many items a vector reads.

    The number is the memory, and for MemN2N also the query.
    """
    return settings.memory + isinstance(settings, MemN2NModel)


def sum_losses(
    loss: str,
    state: torch.Tensor,
    target: torch.Tensor,
    answers: tuple[torch.Tensor, torch.Tensor | None],
    negative: torch.Tensor,
) -> torch.Tensor:
    """Return a loss, summed over targets.

    Args:
        loss: `softmax`: over all items. `shared_negatives`: over the target and (m,) negatives, except
            copies of the target. `one_negative`: binary cross-entropy on the target and (n,) negatives.
        state: (n, d).
        target: (n,) items.
        answers: (items, d) vectors, and (items,) biases or None.
        negative: items.
    """
    vectors, biases = answers
    if loss == "softmax":
        return functional.cross_entropy(
            networks.score_items(state, vectors, biases), target, reduction="sum"
        )
    positive = (state * functional.embedding(target, vectors)).sum(dim=1) + take_biases(biases, target)
    other = functional.embedding(negative, vectors)
    if loss == "one_negative":
        drawn = (state * other).sum(dim=1) + take_biases(biases, negative)
        return functional.softplus(-positive).sum() + functional.softplus(drawn).sum()
    scores = state @ other.T + take_biases(biases, negative)
    scores = scores.masked_fill(target[:, None] == negative, -math.inf)
    return (torch.logsumexp(torch.cat([positive[:, None], scores], dim=1), dim=1) - positive).sum()


def take_biases(biases: torch.Tensor | None, item: torch.Tensor) -> torch.Tensor | float:
    """Return some items' biases; 0 where there are none."""
    return 0.0 if biases is None else biases[item]


def embed_history(module: nn.Module, tokens: Any) -> Any:
    """Return one user's vector, (d,) float32.

    The vector is computed alone and without padding, so it does not depend on users before or beside it.

    Args:
        module: a network in evaluation mode.
        tokens: (l,) items plus 1, the oldest first.
    """
    token = torch.from_numpy(np.asarray(tokens, np.int64))[None]
    with torch.no_grad():
        state = cast(networks.SequenceNetwork, module).read_last(
            networks.TokenWindows(token, torch.tensor([token.shape[1]]))
        )
    return state[0].numpy()


def embed_prefixes(module: nn.Module, items: Ints, length: int) -> Any:
    """Return one user's vectors after each item, (l, d) float32.

    Each vector is a forward pass of its own, as in `embed_history`. The passes share nothing: SASRec and
    MemN2N count places from the newest item, and a padded minibatch would change last bits.

    Args:
        module: a network in evaluation mode.
        items: (l,) numbers of the items, the oldest first; at least one.
        length: newest items which a vector reads.
    """
    ends = range(1, len(items) + 1)
    return np.stack([embed_history(module, items[max(0, end - length) : end] + 1) for end in ends])


class Explanation(NamedTuple):
    """One user's attention, with each memory item's effect on the score.

    Attributes:
        best: the item with the largest score among those open for recommendation.
        weight: (hops, n) memory weights, from the newest item before the query on.
        score_change: (n,) change in the best item's score if this item is taken out.
    """

    best: int
    weight: Floats32
    score_change: Floats


def explain_history(module: Any, tokens: Any, barred: Any = ()) -> Explanation:
    """Return a history's attention, and its best item's score changes.

    Args:
        module: a `HistoryMemory` in evaluation mode.
        tokens: (l,) items plus 1 as the network reads them, the oldest first; the newest one is the query.
        barred: further items which may not be best: the user's earlier ones, and those no list has.
    """
    assert isinstance(module, networks.HistoryMemory)
    token = torch.from_numpy(np.asarray(tokens, np.int64))
    with torch.no_grad():
        reading = module.read_memory(make_one(token))
        score = module.item_vectors() @ reading.state[0]
        unseen = score.clone()
        unseen[token - 1] = -torch.inf
        unseen[torch.from_numpy(np.asarray(barred, np.int64))] = -torch.inf
        best = int(unseen.argmax())
        changes = []
        for place in range(len(token) - 1):
            without = token.clone()
            without[place] = 0  # an empty one; the others stay
            state = module.read_memory(make_one(without)).state[0]
            changes.append(module.item_vectors()[best] @ state - score[best])
    weight = reading.attention[0, :, : len(token) - 1].numpy()
    return Explanation(best, weight, np.array([float(change) for change in reversed(changes)]))


def make_one(token: torch.Tensor) -> networks.TokenWindows:
    """Return one history as a minibatch."""
    return networks.TokenWindows(token[None], torch.tensor([len(token)]))


def compare_drops(explanations: list[Explanation], hop: int = 0) -> tuple[float, float]:
    """Return mean score changes without the top item, or another.

    The top item has the largest weight in a hop. The second mean is over all other memory items: the
    expectation for a random one. Histories with fewer than two memory items are left out.
    """
    top, others = [], []
    for one in explanations:
        if len(one.score_change) > 1:
            largest = int(one.weight[hop].argmax())
            top.append(one.score_change[largest])
            others.append(np.delete(one.score_change, largest).mean())
    return float(np.mean(top)), float(np.mean(others))
