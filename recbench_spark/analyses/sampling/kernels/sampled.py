"""Metrics from ranks among sampled negatives, raw and corrected.

Take an item with rank r among n candidates, and rank it again among 1 + m (itself and m drawn negatives).
It has a sampled rank j = 1 .. m + 1 with chance P(j | r), which depends on n, m and the kind of draw alone.
A raw sampled metric averages f(j) in place of the wanted f(r). A correction averages a table f^(j) instead,
made once for (f, n, m, draw): a value is a look-up.

Axes: r ranks, j sampled ranks (index 0 is rank 1), c cut-offs, u users, p truth items, b histograms.

Sources: Krichene and Rendle 2020, "On sampled metrics for item recommendation", sections 4 and 5; Jin, Li,
Mudrak, Gao and Liu 2021, "On estimating recommendation evaluation metrics under sampling".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise
from math import isqrt

import numpy as np
import numpy.typing as npt

from recbench_spark.core.arrays import Floats, Ints
from recbench_spark.core.definitions import Definition
from recbench_spark.errors import ConfigError, nearest
from recbench_spark.metrics.kernels.chunk import Chunk, divide
from recbench_spark.ranking.kernels.rankings import Rankings

Ks = Sequence[int | None]
"""Cut-offs; None: uncut."""

MOST_DRAWS = 4096
"""Largest m: tables take up to O(m^3) time, and so many draws save hardly anything."""

ONE_BY_ONE = 256
"""Ranks at either end of the catalogue, never merged into panels."""

POINTS = 24
"""Points standing for a panel of ranks (see `representative_ranks`)."""

CONDITION = 1e-10
"""Least-squares directions shrinking by more than this are left out."""

GAMMA = 0.01
"""Weight of variance in `bias_variance`."""

PLAIN = Definition()
"""Default definition for tables."""

DISCOUNTS: dict[str, Callable[[Floats], Floats]] = {
    "log2": lambda r: 1.0 / np.log2(r + 1.0),
    "log2_max2": lambda r: 1.0 / np.log2(np.maximum(r, 2.0)),
    "ln": lambda r: 1.0 / np.log(r + 1.0),
}
"""The discounts in `chunk.Chunk`, for real ranks."""

ITERATIONS = 200
"""EM steps in `rank_distribution`."""


@dataclass(frozen=True)
class NegativeDraw:
    """m negatives drawn from the n - 1 candidates beside the item.

    A stored draw by hash is without replacement.

    Raises:
        ConfigError: the draw is impossible.
    """

    n: int
    m: int
    replacement: bool = False

    def __post_init__(self) -> None:
        """Check the numbers."""
        most = MOST_DRAWS if self.replacement else min(MOST_DRAWS, self.n - 1)
        if self.n < 2 or not 1 <= self.m <= most:
            raise ConfigError(
                f"{self.m} negatives from a catalogue of {self.n} items", f"draw 1 to {max(most, 1)}"
            )

    def chances(self, rank_r: npt.NDArray[np.float64] | npt.NDArray[np.int64]) -> Floats:
        """Return P(j | r), float64 (r, m + 1).

        Binomial with replacement, else hypergeometric. P(j | r) ~ C(m, j - 1) prod_{i < j - 1} (r - 1 - s
        i) prod_{i < m - j + 1} (n - r - s i), s = 0 with replacement and 1 without; relative error about
        1e-12. Ranks may lie between whole numbers, without replacement from m + 1 to n - m.
        """
        s = 0 if self.replacement else 1
        step = s * np.arange(self.m)
        above = _log_products((rank_r[:, None] - 1.0 - step) / (self.n - 1))
        below = _log_products((self.n - rank_r[:, None] - step) / (self.n - 1))
        ways = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1.0, self.m + 1)))])
        log_rj = above + below[:, ::-1] - ways - ways[::-1]
        # The division supplies the factors without j: a rank's chances add up to 1.
        chance_rj = np.exp(log_rj - log_rj.max(axis=1, keepdims=True))
        normal: Floats = chance_rj / chance_rj.sum(axis=1, keepdims=True)
        return normal


def _log_products(factor_ri: Floats) -> Floats:
    """Return log products of the first 0, 1, .. m factors.

    -inf from a factor <= 0 on.
    """
    with np.errstate(divide="ignore"):
        logs = np.log(np.maximum(factor_ri, 0.0))
    return np.concatenate([np.zeros((len(logs), 1)), np.cumsum(logs, axis=1)], axis=1)


# ---------------------------------------------------------------------------- metrics of one rank


@dataclass(frozen=True)
class Cut:
    """Ranks and cut-offs for values under a definition.

    Attributes:
        rank, k, listed: (r, c): ranks, cut-offs (uncut: n), and true if the value is not 0.
        n: number of ranked candidates.
        definition: the evaluation definition.
    """

    rank: Floats
    k: Floats
    listed: npt.NDArray[np.bool_]
    n: float
    definition: Definition

    def discount(self, rank: Floats) -> Floats:
        """Return a rank's discount by the definition."""
        return np.asarray(DISCOUNTS[self.definition.discount](rank))

    @property
    def ideal(self) -> Floats:
        """Return the best DCG with one relevant item, (c,)."""
        first = self.discount(np.ones(1))
        if self.definition.ideal != "k":
            return np.broadcast_to(first, self.k.shape[1:])
        return np.array([self.discount(np.arange(1.0, k + 1)).sum() for k in self.k[0]])


def _hit(cut: Cut) -> Floats:
    return np.where(cut.listed, 1.0, 0.0)


def _precision(cut: Cut) -> Floats:
    length = {"k": cut.k, "list": np.minimum(cut.k, cut.n), "min_k_relevant": np.ones_like(cut.k)}
    return np.where(cut.listed, 1.0 / length[cut.definition.precision_by], 0.0)


def _average_precision(cut: Cut) -> Floats:
    """Return 1 / r, or its continued mean of precisions.

    The mean is sum_{i = r}^k 1 / i / k, continued by the digamma function.
    """
    whole = cut.definition.map_cut == "uncut"
    k = np.full_like(cut.k, cut.n) if whole else cut.k
    shown = cut.rank <= cut.n if whole else cut.listed
    if cut.definition.ap == "mean_precision":
        from scipy.special import digamma  # noqa: PLC0415 (half a second that few need)

        value = (digamma(k + 1.0) - digamma(cut.rank)) / k
    else:
        value = 1.0 / cut.rank / (k if cut.definition.ap_by == "k" else 1.0)
    return np.where(shown, value, 0.0)


def _reciprocal_rank(cut: Cut) -> Floats:
    shown = cut.rank <= cut.n if cut.definition.mrr_cut == "uncut" else cut.listed
    return np.where(shown, 1.0 / cut.rank, 0.0)


def _ndcg(cut: Cut) -> Floats:
    return np.where(cut.listed, cut.discount(cut.rank) / cut.ideal, 0.0)


RANK_METRICS: dict[str, Callable[[Cut], Floats]] = {
    "hit": _hit,
    "recall": _hit,
    "precision": _precision,
    "map": _average_precision,
    "mrr": _reciprocal_rank,
    "ndcg": _ndcg,
}
"""Functions f(r), (r, c), for a user with one relevant item, under the definition.

At whole ranks they equal `metrics.kernels.accuracy` for such a user. Corrections need values between whole
ranks, too: there f uses the same formula with a real r.
"""


def no_value(metric: str, definition: Definition) -> str | None:
    """Return why one item's rank does not determine a metric.

    None: it does.
    """
    if metric not in RANK_METRICS:
        return "it does not follow from the rank of one item"
    axes = ("ties", "ndcg_ties") if metric == "ndcg" else ("ties",)
    expected = [axis for axis in axes if getattr(definition, axis) == "expected"]
    if expected:
        return f"with {expected[0]}=expected an item has no single rank"
    graded = definition.gain in ("linear", "exponential")
    if metric == "ndcg" and graded and definition.negative_grades != "clip":
        return "gains below 0 depend on more than the rank"
    threshold, origin = definition.threshold, definition.grade_origin
    admits_zero_gain = origin > 0 if threshold is None else threshold <= origin
    if metric == "ndcg" and graded and admits_zero_gain:
        return "relevant items may have no gain"
    if metric == "ndcg" and definition.negative_grades == "worst" and definition.candidates == "rated":
        return "of rated candidates alone, the worst list depends on more than the rank"
    return None


def rank_values(
    metric: str,
    rank: npt.NDArray[np.float64] | npt.NDArray[np.int64],
    ks: Ks,
    n: float,
    definition: Definition = PLAIN,
) -> Floats:
    """Return f(r) for one relevant item, at each cut-off.

    (r,) -> float64 (r, c); n candidates are ranked.

    Raises:
        ConfigError: a single rank does not determine the metric or definition (`no_value`).
    """
    if metric not in RANK_METRICS:
        raise ConfigError(f"'{metric}' has no value of a single rank", nearest(metric, RANK_METRICS))
    why = no_value(metric, definition)
    if why:
        raise ConfigError(f"'{metric}' has no value of a single rank: {why}", "leave draw.estimators empty")
    r = np.asarray(rank, dtype=np.float64)[:, None]
    k = np.array([n if k is None else k for k in ks], dtype=np.float64)
    shape = (len(r), len(k))
    wide_r, wide_k = np.broadcast_to(r, shape), np.broadcast_to(k, shape)
    return RANK_METRICS[metric](Cut(wide_r, wide_k, wide_r <= wide_k, n, definition))


def rank_definition(metric: str, definition: Definition) -> Definition:
    """Return the definition whose tie rule ranks for a metric."""
    if metric == "map" and definition.ap_ties == "last_rank" and definition.ap == "precision_at_hits":
        return definition.model_copy(update={"ties": "pessimistic"})
    return definition


def sampled_ranks(rankings: Rankings, definition: Definition) -> Ints:
    """Rank each truth item among itself and the negatives.

    Returns int64 (p,); 0: not ranked. The user's other truth items are removed: each is measured against
    negatives alone. Ties follow the definition's rule (see `rank_definition`).
    """
    chunk = Chunk(rankings, (1,), definition)
    rank = chunk.rank_p
    order = np.lexsort((rank, chunk.user_p))
    listed = (rank[order] > 0).astype(np.int64)
    earlier = np.cumsum(listed) - listed
    first = np.searchsorted(chunk.user_p[order], chunk.user_p[order])
    own = np.empty_like(rank)
    own[order] = earlier - earlier[first]
    return np.where(rank > 0, rank - own, 0)


def user_values(offsets: Ints, rank_p: Ints, table_jc: Floats) -> Floats:
    """Average the table over users' truth items, float64 (u, c).

    NaN for users without any. offsets: (u + 1,), each user's truth items; rank_p: as `sampled_ranks` gives
    them.
    """
    lookup = np.concatenate([np.zeros((1, table_jc.shape[1])), table_jc])[rank_p]
    count = np.diff(offsets)
    mean: Floats = np.full((len(count), table_jc.shape[1]), np.nan)
    has_items = count > 0
    if has_items.any():  # each user's rows by themselves: no bit depends on the batch's other users
        total = np.add.reduceat(lookup, offsets[:-1][has_items], axis=0)
        mean[has_items] = total / count[has_items, None]
    return mean


# ------------------------------------------------------------------------- sums over all the ranks


@dataclass(frozen=True)
class Ranks:
    """Weighted ranks for sums over all ranks, float64 (r,).

    sum_r w_r g(r) is the sum of g over 1 .. n.
    """

    rank: Floats
    weight: Floats


def representative_ranks(draw: NegativeDraw, ks: Ks = ()) -> Ranks:
    """Return a few thousand ranks to stand for all n.

    The first and last max(k, m, 256) ranks stand for themselves. Between them lie panels of doubling length
    up to n / sqrt(m). Each has the 24 Gauss points of its whole numbers, exact for polynomials up to degree
    47: sums of P(i | r) P(j | r) and of P(j | r) f(r) differ from the full ones by less than 1e-13 of the
    largest (measured at n = 200,000). Up to about 1,000 items all ranks are returned.
    """
    ends = max(ONE_BY_ONE, draw.m, *(k or 1 for k in ks), 1)
    if draw.n <= 4 * ends:
        return Ranks(np.arange(1.0, draw.n + 1), np.ones(draw.n))
    ranks, weights = [np.arange(1.0, ends + 1)], [np.ones(ends)]
    for a, b in _panels(draw, ends):
        node, weight = _gauss(b - a)
        ranks.append(a + 1 + node)
        weights.append(weight)
    ranks.append(draw.n - ends + ranks[0])
    return Ranks(np.concatenate(ranks), np.concatenate([*weights, np.ones(ends)]))


def _panels(draw: NegativeDraw, ends: int) -> Iterator[tuple[int, int]]:
    """Yield panel bounds (a, b] from `ends` to n - `ends`.

    Panels are the same from both sides.
    """
    half, widest = draw.n // 2, max(POINTS, draw.n // isqrt(draw.m) // 2)
    edges = [ends]
    while edges[-1] < half:
        edges.append(min(2 * edges[-1], edges[-1] + widest, half))
    yield from pairwise(sorted({*edges, *(draw.n - edge for edge in edges)}))


@lru_cache(maxsize=256)
def _gauss(length: int) -> tuple[Floats, Floats]:
    """Return Gauss points in [0, length - 1], and their weights.

    The weights are exact for sums of polynomials over 0 .. length - 1. They follow from the recurrence for
    discrete Chebyshev polynomials, beta_i = i^2 (L^2 - i^2) / (4 (4 i^2 - 1)) (Gautschi 2004, "Orthogonal
    polynomials", table 1.2), by Golub and Welsch.
    """
    i = np.arange(1.0, min(POINTS, length))
    side = np.sqrt(i**2 * (length**2 - i**2) / (4 * (4 * i**2 - 1)))
    node, vectors = np.linalg.eigh(np.diag(side, 1) + np.diag(side, -1))
    return node + (length - 1) / 2, length * vectors[0] ** 2


# ---------------------------------------------------------------------------------- the estimators


def raw(metric: str, ks: Ks, draw: NegativeDraw, definition: Definition = PLAIN) -> Floats:
    """Return f(j): the plain sampled metric, (m + 1, c).

    This table does not estimate the metric over all items.
    """
    return rank_values(metric, np.arange(1, draw.m + 2), ks, draw.m + 1, definition)


def rank_estimate(metric: str, ks: Ks, draw: NegativeDraw, definition: Definition = PLAIN) -> Floats:
    """Return f(1 + (n - 1) (j - 1) / m), (m + 1, c).

    This is f at the unbiased estimate of the rank. It cannot distinguish ranks from 2 to (n - 1) / m: below
    that cut-off all depends on j = 1. Krichene and Rendle round the estimated rank down to a whole number;
    this function does not, since the rounded rank is biased. Between whole ranks f falls, so its values lie
    below theirs, by up to 8e-4 in NDCG at n = 1,000 with 99 negatives.
    """
    j = np.arange(1, draw.m + 2)
    return rank_values(metric, 1 + (draw.n - 1) * (j - 1) / draw.m, ks, draw.n, definition)


def least_squares(
    metric: str, ks: Ks, draw: NegativeDraw, definition: Definition = PLAIN, *, monotone: bool = False
) -> Floats:
    """Return the least biased table, (m + 1, c).

    This table minimises sum_r (E[f^(j) | r] - f(r))^2. Every rank has the same weight. With few draws from
    many items f^ takes huge values with either sign, and a mean over users is noise; directions shrunk by
    more than 1e-10 are left out. `monotone` keeps f^ from rising with j: this limits the values at the
    price of some bias.
    """
    ranks = representative_ranks(draw, ks)
    root = np.sqrt(ranks.weight / draw.n)[:, None]
    a_rj = root * draw.chances(ranks.rank)
    b_rc = root * rank_values(metric, ranks.rank, ks, draw.n, definition)
    if monotone:
        return _falling_least_squares(a_rj, b_rc)
    return np.asarray(np.linalg.lstsq(a_rj, b_rc, rcond=CONDITION)[0], dtype=np.float64)


def _falling_least_squares(a_rj: Floats, b_rc: Floats) -> Floats:
    """Return f^(j) = level + falls from j on, falls >= 0.

    Solved by non-negative least squares.
    """
    q_ri, r_ij = np.linalg.qr(a_rj)
    size = r_ij.shape[1]
    falls = np.triu(np.ones((size, size)))[:, :-1]
    level = np.ones((size, 1))
    basis = np.concatenate([falls, level, -level], axis=1)
    from scipy.optimize import nnls  # noqa: PLC0415 (half a second that few need)

    steps = [nnls(r_ij @ basis, q_ri.T @ b, maxiter=100 * size)[0] for b in b_rc.T]
    return np.asarray(basis @ np.array(steps).T, dtype=np.float64)


def bias_variance(
    metric: str, ks: Ks, draw: NegativeDraw, definition: Definition = PLAIN, *, gamma: float = GAMMA
) -> Floats:
    """Return the table (m + 1, c) trading bias for variance.

    This table minimises sum_r (E[f^(j) | r] - f(r))^2 + gamma Var[f^(j) | r]. f^ = ((1 - gamma) A'A + gamma
    diag(c))^-1 A'b, A = P(j | r), b = f(r), c_j = sum_r P(j | r); with gamma = 1 it is the mean of f(r)
    given j if all ranks are equally likely.

    Raises:
        ConfigError: not 0 < gamma <= 1.
    """
    if not 0 < gamma <= 1:
        raise ConfigError(f"gamma {gamma} is not above 0 and at most 1", "0.1 and 0.01 are usual")
    ranks = representative_ranks(draw, ks)
    a_rj = draw.chances(ranks.rank)
    weighted = (a_rj * ranks.weight[:, None]).T
    normal = (1 - gamma) * (weighted @ a_rj) + gamma * np.diag(weighted.sum(axis=1))
    # Not solve(): if draws repeat from 2 items, some sampled ranks never occur.
    b_rc = rank_values(metric, ranks.rank, ks, draw.n, definition)
    table = np.linalg.lstsq(normal, weighted @ b_rc, rcond=None)[0]
    return np.asarray(table, dtype=np.float64)


ESTIMATORS: dict[str, Callable[[str, Ks, NegativeDraw, Definition], Floats]] = {
    "sampled": raw,
    "rank_estimate": rank_estimate,
    "least_squares": least_squares,
    "monotone_least_squares": partial(least_squares, monotone=True),
    "bias_variance": bias_variance,
}
"""Tables built from the draw alone, by their name in the column `estimator`."""


def rank_distribution(
    count_bj: Ints | Floats, draw: NegativeDraw, ks: Ks = (), steps: int = ITERATIONS
) -> tuple[Ranks, Floats]:
    """Return the likeliest shares of true ranks, by EM.

    pi_r <- pi_r sum_j (h_j / N) P(j | r) / sum_q pi_q P(j | q), from pi_r = 1 / n. If n > m + 1, many
    shares are equally likely: the result depends on the start and the number of steps, so these are the
    same for all models. The grid of `representative_ranks` changes no more than its sums do.

    Args:
        count_bj: how often each sampled rank occurs, one histogram per row (e.g. one per bootstrap
            replicate).
        draw: how negatives were drawn.
        ks: cut-offs up to which each rank is its own point.
        steps: EM steps.

    Returns:
        The ranks, and each one's share (weights included), float64 (b, r).
    """
    ranks = representative_ranks(draw, ks)
    chance_rj = draw.chances(ranks.rank)
    observed = count_bj / np.maximum(count_bj.sum(axis=1, keepdims=True), 1)
    share = np.broadcast_to(ranks.weight / draw.n, (len(count_bj), len(ranks.weight)))
    for _ in range(steps):
        share = share * (divide(observed, share @ chance_rj) @ chance_rj.T)
    return ranks, share
