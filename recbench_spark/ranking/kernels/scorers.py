"""Models as scorers of pairs, and two ways to rank.

A scorer is anything with the four members of `Scorer`. If its scores are products of vectors, `products`
holds these, and ranks are counted by tiles on any device; else it gives whole float64 rows, counted by one
function. The result is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

import numpy as np

from recbench_spark.core.arrays import Bools, Floats, Floats32, Ints
from recbench_spark.core.compiling import compile_kernel
from recbench_spark.core.extras import explain_missing
from recbench_spark.core.hashing import splitmix64
from recbench_spark.errors import DataError
from recbench_spark.ranking.kernels import counting, cutoff, moments, positives
from recbench_spark.ranking.kernels.counting import CountingSettings
from recbench_spark.ranking.kernels.moments import NO_MOMENTS, UserMoments
from recbench_spark.ranking.kernels.positives import ItemLists, RankCounts
from recbench_spark.ranking.kernels.products import (
    Products,
    check_finite,
    exact_scores,
    make_pairing,
    make_products,
)
from recbench_spark.ranking.kernels.top import top_rows

if TYPE_CHECKING:
    import torch

WHOLE_ROWS = "whole rows"
"""Device for small jobs: every score in float64, pair by pair, without torch."""

NUMPY_TILES = "numpy tiles"
"""Device for jobs in one process: tiles as on "cpu", and no choice of a GPU."""

_ROW_CELLS = 2**21  # float64 scores in one block of whole rows: 16 MB


@dataclass(frozen=True)
class UserBlock:
    """A block of users; scorers read the parts they need.

    `keys_u` int64: user ids or hashed ones. `vectors_ud` float32. `histories`: each user's items. `rows_u`:
    each user's number in the model, -1 for an unknown one.
    """

    keys_u: Ints
    vectors_ud: Floats32 | None = None
    histories: ItemLists | None = None
    rows_u: Ints | None = None

    def vectors(self, dims: int) -> Floats32:
        """Return the vectors.

        Without dimensions (a bias alone) none are needed.
        """
        if self.vectors_ud is None and dims == 0:
            return np.zeros((len(self.keys_u), 0), np.float32)
        return _require(self.vectors_ud, "vectors")

    def history(self) -> ItemLists:
        """Return the histories.

        Raises:
            DataError: there are none.
        """
        return _require(self.histories, "histories")

    def rows(self) -> Ints:
        """Return each user's number in the model.

        Raises:
            DataError: there are no numbers.
        """
        return _require(self.rows_u, "rows")


_T = TypeVar("_T")


def _require(value: _T | None, name: str) -> _T:
    if value is None:
        raise DataError(f"this model needs the users' {name}", f"pass UserBlock({name}=...)")
    return value


class Scorer(Protocol):
    """Interface of a model for ranking; i are all items."""

    @property
    def scored_i(self) -> Bools:
        """Items with a score; others are never candidates."""

    @property
    def products(self) -> Products | None:
        """The item side of vector products; None for other scores."""

    def score_rows(self, users: UserBlock, start: int, stop: int) -> Floats:
        """Return float64 (stop - start, i): some users against all items.

        The users are `start` to `stop` in the block.
        """

    def score_listed(self, users: UserBlock, listed: ItemLists) -> Floats:
        """Return float64 (entries): scores for each user's listed items.

        Scores are in input order.
        """


def count_ranks(
    scorer: Scorer,
    users: UserBlock,
    truth: ItemLists,
    masked: ItemLists,
    *,
    device: str | torch.device = "cpu",
    settings: CountingSettings | None = None,
    as_of: UserMoments = NO_MOMENTS,
) -> RankCounts:
    """Count the truth items' ranks among scored, unmasked items.

    `as_of`: users' moments; items that are no candidates then are left out, on the CPU whatever the device.
    The truth has none of them.

    `device`: "cpu" and NUMPY_TILES are the compiled path, without torch; WHOLE_ROWS scores every pair in
    float64; any other torch device, also "cpu:0", is counted by `devices`. A masked, unscored or unknown
    (-1) truth item stays unranked: `above_p` is -1. The bits are equal for all tiles, user blocks, thread
    numbers and devices.

    Raises:
        DataError: numbers are not finite, or lists do not fit the catalogue or each other.
    """
    settings = settings or CountingSettings()
    if scorer.products is None or device == WHOLE_ROWS:
        return _count_whole_rows(scorer, users, truth, masked, settings, as_of=as_of)
    prepared, top = _prepare(scorer.products, users, truth, masked)._replace(moments=as_of), None
    if str(device) not in ("cpu", NUMPY_TILES) and not len(as_of.moment_u):
        with explain_missing():  # it loads torch
            from recbench_spark.ranking.kernels import devices  # noqa: PLC0415

        top = devices.count_products(prepared, settings, device)
    elif cutoff.applies(prepared, settings):
        cutoff.count_products(prepared, settings)
    else:
        top = counting.count_products(prepared, settings)
    return _gather(scorer, prepared, settings, top)


def _prepare(
    products: Products, users: UserBlock, truth: ItemLists, masked: ItemLists
) -> counting.PreparedBlock:
    return counting.prepare_products(products, users.vectors(products.dims), truth, masked)


def _gather(
    scorer: Scorer,
    prepared: counting.PreparedBlock,
    settings: CountingSettings,
    top: tuple[Ints, Floats] | None,
) -> RankCounts:
    candidates_u = moments.count_candidates(scorer.scored_i, prepared.moments, prepared.plan)
    return positives.gather_counts(prepared.plan, prepared.tally, candidates_u, settings.cutoff, top)


def _count_whole_rows(
    scorer: Scorer,
    users: UserBlock,
    truth: ItemLists,
    masked: ItemLists,
    settings: CountingSettings,
    *,
    as_of: UserMoments,
) -> RankCounts:
    plan = positives.make_positives(scorer.scored_i, truth, masked)
    tally, tops = positives.make_tally(plan), []
    for start, stop in _blocks(truth.users, len(scorer.scored_i)):
        scores_ui = scorer.score_rows(users, start, stop)
        _check_scores(scores_ui[:, scorer.scored_i])
        moments.hide_rows(scores_ui, start, as_of)
        counting.count_rows(scores_ui, start, scorer.scored_i, plan, tally)
        tops.append(top_rows(scores_ui, settings.top_k))
    candidates_u = moments.count_candidates(scorer.scored_i, as_of, plan)
    top = _stack_tops(tops, settings.top_k) if settings.top_k else None
    return positives.gather_counts(plan, tally, candidates_u, settings.cutoff, top)


def _stack_tops(tops: list[tuple[Ints, Floats]], top_k: int) -> tuple[Ints, Floats]:
    none = np.empty((0, top_k), np.int64), np.empty((0, top_k))
    items, scores = zip(none, *tops, strict=True)
    return np.concatenate(items), np.concatenate(scores)


def count_listed(
    scorer: Scorer, users: UserBlock, truth: ItemLists, candidates: ItemLists, *, top_k: int = 0
) -> RankCounts:
    """Count the truth items' ranks among given candidates.

    Candidates are scored in float64. A truth item stays unranked if it is unknown, unscored or no
    candidate.

    Raises:
        DataError: as `count_ranks`.
    """
    items = len(scorer.scored_i)
    nothing = ItemLists.empty(candidates.users)
    listed = positives.make_positives(scorer.scored_i, candidates, nothing)
    truth = truth.check_indices(items, "truth")
    if truth.users != candidates.users:
        raise DataError(
            f"truth of {truth.users} users, candidates of {candidates.users}",
            "give one row, possibly empty, to each user in both",
        )
    scores_c = scorer.score_listed(users, ItemLists(listed.slot_offsets, listed.slot_items))
    _check_scores(scores_c)
    return counting.count_scored_lists(truth, listed, scores_c, top_k)


def _check_scores(scores: Floats) -> None:
    check_finite(scores, "scores", "train again, or mark these items as not scored")


def _blocks(users: int, items: int) -> Iterator[tuple[int, int]]:
    step = max(1, _ROW_CELLS // max(1, items))
    for start in range(0, users, step):
        yield start, min(start + step, users)


# ------------------------------------------------------------------------------------------- models


class DotScorer:
    """User vector times item vector, plus the item's bias.

    Serves matrix factorisation and popularity. `vectors_id` float32, may be a memory-mapped file; `bias_i`
    float64; `scored_i` bool. Kind "cosine" divides by the item's length. A user's own bias is constant in
    the user's ranking: add it to reported scores. Popularity is a bias on vectors with 0 dimensions.
    `share` lets a host's processes have large arrays in common.
    """

    def __init__(
        self,
        vectors_id: Floats32,
        bias_i: Floats | None = None,
        scored_i: Bools | None = None,
        kind: Literal["dot", "cosine"] = "dot",
        share: Callable[[Callable[[], dict[str, Any]]], dict[str, Any]] | None = None,
    ) -> None:
        self.products = replace(make_products(vectors_id, bias_i, scored_i, kind), share=share)
        self.scored_i = self.products.scored_i

    def score_rows(self, users: UserBlock, start: int, stop: int) -> Floats:
        """Return scores by definition, pair by pair; NaN: not scored."""
        items = len(self.scored_i)
        every = ItemLists(np.arange(stop - start + 1) * items, np.tile(np.arange(items), stop - start))
        vectors_ud = users.vectors(self.products.dims)[start:stop]
        part = UserBlock(users.keys_u[start:stop], vectors_ud)
        return self.score_listed(part, every).reshape(stop - start, items)

    def score_listed(self, users: UserBlock, listed: ItemLists) -> Floats:
        """Return float64 (entries)."""
        pairing = make_pairing(self.products, users.vectors(self.products.dims))
        users_c = np.repeat(np.arange(listed.users), np.diff(listed.offsets_u))
        return exact_scores(pairing, users_c, listed.items_p)


def _score_listed_rows(scorer: Scorer, users: UserBlock, listed: ItemLists) -> Floats:
    """Score listed items by whole rows, block by block."""
    out = np.empty(len(listed.items_p))
    for start, stop in _blocks(listed.users, len(scorer.scored_i)):
        scores_ui = scorer.score_rows(users, start, stop)
        row_c = np.repeat(np.arange(stop - start), np.diff(listed.offsets_u[start : stop + 1]))
        cut = slice(listed.offsets_u[start], listed.offsets_u[stop])
        out[cut] = scores_ui[row_c, listed.items_p[cut]]
    return out


class NeighbourScorer:
    """Item-based neighbours and EASE.

    s_ui = sum_j s_ji over the user's history j, plus b_i. Row j of the CSR (`offsets_j`, `items_n`,
    `weights_n`) holds the items i whose score item j raises, and the similarity s_ji; transpose the matrix
    if a model stores it by i. The sum is exact in two float64 numbers and rounded once (Knuth's two-sum),
    so histories tie if they have equal similarities in another order; a repeated j counts once, an unknown
    j not at all; the bias is added last.
    """

    def __init__(
        self,
        offsets_j: Ints,
        items_n: Ints,
        weights_n: Floats | Floats32,
        bias_i: Floats | None = None,
        scored_i: Bools | None = None,
    ) -> None:
        items = len(offsets_j) - 1
        rows = ItemLists(offsets_j, items_n).check_indices(items, "similarities")
        check_finite(weights_n, "similarities", "compute them again")
        self.products: Products | None = None
        self.rows = ItemLists(rows.offsets_u.copy(), rows.items_p.copy())
        self.weights_n = np.array(weights_n, np.float64)
        self.bias_i = np.zeros(items) if bias_i is None else np.array(bias_i, np.float64)
        self.scored_i = np.ones(items, np.bool_) if scored_i is None else scored_i

    def knows(self, users: UserBlock) -> Bools:
        """Mark users whom the model can rank, (u,).

        Without biases these are users with neighbours of an item in their history. All scores of other
        users are 0, and would be ordered by item id.
        """
        if self.bias_i.any():
            return np.ones(len(users.keys_u), np.bool_)
        history = users.history()
        rows = np.append(np.diff(self.rows.offsets_u), 0)  # the last one is for unknown items, which are -1
        speaking = np.concatenate([[0], np.cumsum(rows[history.items_p] > 0)])
        return np.asarray(np.diff(speaking[history.offsets_u]) > 0)

    def score_rows(self, users: UserBlock, start: int, stop: int) -> Floats:
        """Return float64 (stop - start, i)."""
        offsets_u, items_h = users.history().offsets_u, users.history().items_p
        part = ItemLists(
            offsets_u[start : stop + 1] - offsets_u[start],
            items_h[offsets_u[start] : offsets_u[stop]],
        )
        everything = np.ones(len(self.scored_i), np.bool_)
        histories = positives.make_positives(everything, part, ItemLists.empty(part.users))
        return _sum_neighbours(
            histories.slot_offsets,
            histories.slot_items,
            self.rows.offsets_u,
            self.rows.items_p,
            self.weights_n,
            self.bias_i,
        )

    def score_listed(self, users: UserBlock, listed: ItemLists) -> Floats:
        """Return float64 (entries)."""
        return _score_listed_rows(self, users, listed)


@compile_kernel
def _sum_neighbours(
    offsets_u: Ints,
    items_h: Ints,
    offsets_j: Ints,
    items_n: Ints,
    weights_n: Floats,
    bias_i: Floats,
) -> Floats:
    users = len(offsets_u) - 1
    scores_ui = np.zeros((users, len(bias_i)))
    rest_i = np.empty(len(bias_i))
    for u in range(users):
        rest_i[:] = 0.0
        for h in range(offsets_u[u], offsets_u[u + 1]):
            j = items_h[h]
            for n in range(offsets_j[j], offsets_j[j + 1]):
                i, weight = items_n[n], weights_n[n]
                before = scores_ui[u, i]
                total = before + weight
                added = total - before
                rest_i[i] += (before - (total - added)) + (weight - added)
                scores_ui[u, i] = total
        for i in range(len(bias_i)):
            scores_ui[u, i] = (scores_ui[u, i] + rest_i[i]) + bias_i[i]
    return scores_ui


class BlockScorer:
    """A model with its own function `score(users, items)`.

    The function returns (users, items) numbers. It is called for one user at a time, with all scored items
    in catalogue order. So no block of users changes a score, even where the function multiplies matrices,
    whose sums depend on their shapes.
    """

    def __init__(self, score: Callable[[Ints, Ints], Floats], rows_i: Ints) -> None:
        """Take the function, and the items' model numbers, (i,).

        -1: the item is not scored.
        """
        self.products: Products | None = None
        self.score = score
        self.scored_i = np.asarray(rows_i >= 0)
        self.items = np.asarray(rows_i[self.scored_i], np.int64)

    def knows(self, users: UserBlock) -> Bools:
        """Mark users whom the model can rank, (u,)."""
        return np.asarray(users.rows() >= 0)

    def score_rows(self, users: UserBlock, start: int, stop: int) -> Floats:
        """Return float64 (stop - start, i).

        Unknown users, and items without a score, have zeros.
        """
        out = np.zeros((stop - start, len(self.scored_i)))
        for row_i, user in zip(out, users.rows()[start:stop], strict=True):
            if user >= 0:
                row_i[self.scored_i] = self._score_user(user)
        return out

    def score_listed(self, users: UserBlock, listed: ItemLists) -> Floats:
        """Return float64 (entries)."""
        return _score_listed_rows(self, users, listed)

    def _score_user(self, user: np.int64) -> Floats:
        scores = self.score(np.array([user], np.int64), self.items)
        row_i: Floats = check_block(scores, len(self.items), "scores")[0]
        return row_i


def check_block(scores: Any, items: int, what: str) -> Floats:
    """Return one user's (1, items) scores as float64.

    Raises:
        DataError: calling them `what`.
    """
    array = np.asarray(scores)
    if array.dtype.kind not in "fiu" or array.shape != (1, items):
        raise DataError(
            f"{what} of one user have shape {array.shape} and type {array.dtype}",
            f"return (1, {items}) numbers: a row for each user, a column for each item",
        )
    return array.astype(np.float64)


class HashScorer:
    """Random scores: 53 bits by (user, item, seed).

    Uniform, from user key, item key and seed. Three rounds of splitmix64 (Steele, Lea, Flood 2014, "Fast
    splittable pseudorandom number generators"), so a user's items have the same order in every block, night
    and machine.
    """

    def __init__(self, item_keys_i: Ints, seed: int = 0, scored_i: Bools | None = None) -> None:
        self.products: Products | None = None
        self.item_keys_i = np.array(item_keys_i, np.int64)
        self.seed = np.uint64(seed % 2**64)
        self.scored_i = np.ones(len(item_keys_i), np.bool_) if scored_i is None else scored_i

    def score_rows(self, users: UserBlock, start: int, stop: int) -> Floats:
        """Return float64 (stop - start, i), in [0, 1)."""
        keys_u = np.ascontiguousarray(users.keys_u[start:stop], np.int64)
        return _hash_rows(keys_u.view(np.uint64), self.item_keys_i.view(np.uint64), self.seed)

    def score_listed(self, users: UserBlock, listed: ItemLists) -> Floats:
        """Return float64 (entries)."""
        return _score_listed_rows(self, users, listed)


@compile_kernel
def _hash_rows(
    keys_u: np.typing.NDArray[np.uint64], keys_i: np.typing.NDArray[np.uint64], seed: np.uint64
) -> Floats:
    out = np.empty((len(keys_u), len(keys_i)))
    start = splitmix64(seed)
    for u in range(len(keys_u)):
        user = splitmix64(start ^ keys_u[u])
        for i in range(len(keys_i)):
            out[u, i] = np.float64(splitmix64(user ^ keys_i[i]) >> np.uint64(11)) * 2.0**-53
    return out


def centring_bias(
    mean_i: Floats,
    offsets_j: Ints,
    items_n: Ints,
    weights_n: Floats,
) -> Floats:
    """Return (i,) b_i = mean_i - sum_j s_ij mean_j.

    Then sum_j s_ij r_uj + b_i is the centred score: b_i is the part of mean_i + sum_j s_ij (r_uj - mean_j)
    that does not depend on the user.

    Args:
        mean_i: (i,) mean of each item's column over all users.
        offsets_j: (i + 1,) bounds of row j: the items with item j as a neighbour.
        items_n: (n,) these items.
        weights_n: (n,) similarities s_ij.
    """
    expected_n = np.repeat(mean_i, np.diff(offsets_j)) * weights_n
    # Terms are added by size, so items with the same terms in another order have the same sum.
    order_n = np.lexsort((expected_n, items_n))
    return mean_i - np.bincount(items_n[order_n], expected_n[order_n], minlength=len(mean_i))
