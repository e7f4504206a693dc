"""Every accuracy metric, at every cut-off, from truth items' ranks.

A rank is a count: `rank = 1 + #{c : s_c > s} + tie term`. Each truth item has the number of candidates
above it, tied with it and (by item id) before it. From these follow every metric, every cut-off and every
rule for ties, without a list. To add a metric, write a function of a `Chunk` under `@metric`.

Axes: u users, p truth items, c cut-offs (a kernel's last column is the uncut value); see `chunk`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

import numpy as np

from recbench_spark.core.arrays import Floats, Ints
from recbench_spark.core.definitions import MOMENT_AXES, Definition
from recbench_spark.errors import ConfigError, nearest, show_value
from recbench_spark.metrics.kernels import chunk as shared
from recbench_spark.metrics.kernels.about import (
    EDGE,
    NO_LIST,
    NO_RELEVANT,
    NOT_NEGATIVE,
    ROC,
    About,
    register,
)
from recbench_spark.metrics.kernels.chunk import Chunk, Metric, divide, sum_by
from recbench_spark.ranking.kernels.rankings import Rankings

LARGEST_K = 2**31 - 1
"""Largest cut-off: they are stored in 32 bits."""

ROUNDED = 1e-12
"""Two DCGs with a smaller relative difference count as the same sum in another order."""

CELLS = 1 << 18
"""Users x ranks computed at once: 2 MB of float64 stay in the second-level cache."""

TIE_AXES = ("ties", "tie_seed")
COMMON_AXES = (
    *("users", "empty_users", "threshold", *TIE_AXES),
    *("duplicates", "gaps", "candidates", "draw", "weigh", *MOMENT_AXES),
)

about_rank = partial(About, edges=EDGE, family="accuracy")
"""Make the facts about a metric with the edge rules of all rank metrics."""

METRICS: dict[str, Metric] = {}
"""Every metric by name."""


def metric(
    name: str,
    axes: Sequence[str] = (),
    cuts: Literal["k", "both", "uncut"] = "k",
    *,
    common: Sequence[str] = COMMON_AXES,
    users_axis: str = "users",
    worst: float = 0.0,
    about: About,
) -> Callable[[Callable[[Chunk], Floats]], Callable[[Chunk], Floats]]:
    """Register a function of a `Chunk`; it returns (u, c + 1).

    Its array has one column per cut-off, and the uncut value last.

    Args:
        name: the metric.
        axes: definition axes it depends on, beside the common ones.
        cuts: publishes values at k, the uncut value, or both.
        common: axes shared by most metrics.
        users_axis: the axis that selects the averaged users.
        worst: the value for a user without a list.
        about: its direction, place in reports, and bounds.
    """

    def keep(function: Callable[[Chunk], Floats]) -> Callable[[Chunk], Floats]:
        METRICS[name] = Metric(name, function, (*common, *axes), cuts, users_axis, worst, about)
        return register(name, about)(function)

    return keep


def cutoffs(name: str, ks: Sequence[int], uncut: bool = True) -> list[int | None]:
    """Return a metric's columns: the ks, then None if uncut.

    The last one needs an uncut value of the metric, and `uncut`.

    >>> cutoffs("ndcg", [5, 10]), cutoffs("hit", [5]), cutoffs("auc", [5])
    ([5, 10, None], [5], [None])
    """
    if name not in METRICS:
        raise ConfigError(f"unknown metric '{name}'", nearest(name, METRICS))
    cuts = METRICS[name].cuts
    at_k: list[int | None] = [] if cuts == "uncut" else list(ks)
    return [*at_k, None] if uncut and cuts != "k" else at_k


def measure(
    rankings: Rankings,
    metrics: Sequence[str],
    ks: Sequence[int],
    definition: Definition,
    uncut: bool = True,
) -> dict[str, Floats]:
    """Compute each metric for each user: float64 (u, c).

    Columns as in `cutoffs`; NaN for users left out. Values depend neither on the users' batches nor on
    other requested cut-offs. Without `uncut`, ranks counted up to the largest k are enough.
    """
    columns = {name: len(cutoffs(name, ks, uncut)) for name in metrics}
    check_cutoffs(ks)
    u = len(rankings.length)
    values = {name: np.empty((u, c)) for name, c in columns.items()}
    step = max(1, CELLS // shared.max_depth(rankings, ks))
    for start in range(0, u, step):
        chunk = Chunk(rankings.users(start, min(start + step, u)), tuple(ks), definition)
        for name in metrics:
            values[name][start : start + step] = chunk.values(METRICS[name])[:, : columns[name]]
    return values


def relevant_counts(rankings: Rankings, definition: Definition) -> Ints:
    """Count each user's relevant truth items, int64 (u,)."""
    user_p = np.repeat(np.arange(len(rankings.length)), np.diff(rankings.offsets))
    relevant = shared.is_relevant(rankings.relevance, definition)
    return np.bincount(user_p[relevant], minlength=len(rankings.length)).astype(np.int64)


@metric(
    "hit",
    ("hit",),
    about=about_rank(
        place=60,
        bounds=NOT_NEGATIVE,
        wide=True,
        title="hit rate (HR)",
        formula="1 if any relevant item is among the first k, else 0; or their number.",
    ),
)
def hit(chunk: Chunk) -> Floats:
    """Hits: 1 if a relevant item is among the first k.

    Or the number of such items, as the definition says.
    """
    return chunk.hits if chunk.definition.hit == "count" else chunk.first_hit[0]


@metric(
    "precision",
    ("precision_by",),
    about=about_rank(
        place=30,
        wide=True,
        title="precision",
        formula="hits among the first k / k. A list shorter than k is still divided by k.",
    ),
)
def precision(chunk: Chunk) -> Floats:
    """hits / k."""
    return divide(chunk.hits, chunk.precision_length)


@metric(
    "recall",
    ("recall_by",),
    about=about_rank(
        place=20,
        wide=True,
        title="recall",
        formula="hits among the first k / relevant items of the user.",
    ),
)
def recall(chunk: Chunk) -> Floats:
    """hits / relevant."""
    return divide(chunk.hits, chunk.recall_length)


@metric(
    "calibrated_recall",
    about=about_rank(
        title="calibrated recall",
        formula="hits among the first k / min(k, relevant): 1 can be reached at every k.",
    ),
)
def calibrated_recall(chunk: Chunk) -> Floats:
    """hits / min(k, relevant), whatever recall divides by.

    So 1 can be reached at every k.
    """
    return divide(chunk.hits, chunk.reachable_hits)


@metric(
    "f1",
    ("precision_by", "recall_by"),
    about=about_rank(
        place=90,
        wide=True,
        title="F1: harmonic mean of precision and recall",
        formula="2 P R / (P + R).",
    ),
)
def f1(chunk: Chunk) -> Floats:
    """2 P R / (P + R) = 2 hits / (P's + R's denominators)."""
    return divide(2 * chunk.hits, chunk.precision_length + chunk.recall_length)


@metric(
    "map",
    ("ap", "ap_by", "ap_ties", "map_cut"),
    "both",
    about=about_rank(
        place=40,
        wide=True,
        title="mean average precision (MAP)",
        formula="Sum of the precisions at the hits among the first k / min(k, relevant).",
        source="Buckley and Voorhees 2000, Evaluating evaluation measure stability",
    ),
)
def average_precision(chunk: Chunk) -> Floats:
    """Precisions at relevant items, summed, / min(k, relevant).

    Only items among the first k count.
    """
    definition = chunk.definition
    if definition.ap == "mean_precision":
        value = chunk.mean_precision
    elif definition.ap_by == "hits":
        value = chunk.mean_precision_at_hits
    else:
        shared = definition.ap_ties == "last_rank"
        total = chunk.shared_precision_sum if shared else chunk.precision_sum
        value = divide(total, average_precision_length(chunk))
    return value if definition.map_cut == "at_k" else value[:, [-1] * value.shape[1]]


def average_precision_length(chunk: Chunk) -> Floats:
    """Average precision's denominator, (u, c + 1)."""
    found_at_most = chunk.reachable_hits
    if chunk.definition.ap_by == "min_k_relevant":
        return found_at_most
    if chunk.definition.ap_by == "min_relevant_list":
        return shared.cap_by_user(found_at_most, chunk.length)
    if chunk.definition.ap_by == "k":
        return chunk.k_uc
    return np.broadcast_to(chunk.relevant[:, None], chunk.k_uc.shape)


@metric(
    "mrr",
    ("mrr_cut",),
    "both",
    about=about_rank(
        place=50,
        wide=True,
        title="mean reciprocal rank (MRR)",
        formula="1 / rank of the first relevant item; 0 where it is beyond k.",
        source="Voorhees 1999, The TREC-8 question answering track report",
    ),
)
def reciprocal_rank(chunk: Chunk) -> Floats:
    """1 / rank of the first relevant item."""
    value = chunk.first_hit[1]
    return value if chunk.definition.mrr_cut == "at_k" else value[:, [-1] * value.shape[1]]


@metric(
    "ndcg",
    ("ndcg_users", "ndcg_ties", "gain", "negative_grades", "grade_origin", "discount", "ideal"),
    "both",
    users_axis="ndcg_users",
    about=About(
        place=10,
        family="accuracy",
        wide=True,
        wider=(("negative_grades", "signed", (-math.inf, 1.0)),),
        title="normalised discounted cumulative gain (nDCG)",
        formula="DCG / ideal DCG; DCG is the sum of gain / log2(rank + 1) over the first k ranks; the ideal"
        " list has the relevant items first.",
        edges="nDCG of a user without relevant items has no value: the user is left out and counted, or"
        " counts 0 (`empty_users: zero`), also where it has gains above 0 (`grade_origin`) and no rating"
        f" from `threshold` on. {NO_LIST}",
        source="Järvelin and Kekäläinen 2002, Cumulated gain-based evaluation of IR techniques",
    ),
)
def ndcg(chunk: Chunk) -> Floats:
    """DCG / ideal DCG; NaN where no order gains anything.

    Source: Jarvelin and Kekalainen 2002.

    With rated candidates only, an uncut ideal (`ideal=relevant`) has every negative grade, and k places may
    gain more: the value is then 1. If even the worst k places gain more, there is no scale: NaN.

    With expected ties `negative_grades=zero_floor` cuts the expected value at 0.

    `negative_grades=signed` divides by the ideal DCG from gains above 0 and cuts nothing. A user whose
    gains are small or below 0 can have a value far below -1: at k = 50 down to -26 for whole stars around
    an origin of 3, and -64 for half stars.
    """
    if chunk.definition.negative_grades == "signed":
        return divide(chunk.dcg, chunk.ideal, empty=0.0)
    if chunk.definition.negative_grades != "worst":
        return divide(chunk.dcg, chunk.ideal, empty=np.nan)
    worst = -chunk.best_dcg(-chunk.gain_p)
    # The same grades, added in two orders.
    alike = np.isclose(chunk.ideal, worst, rtol=ROUNDED, atol=0.0)
    value = divide(chunk.dcg - worst, np.where(alike, 0.0, chunk.ideal - worst), empty=np.nan)
    return np.where(alike & (chunk.ideal > 0), 1.0, value)


@metric(
    "auc",
    ("auc_ties", "auc_by"),
    "uncut",
    common=[axis for axis in COMMON_AXES if axis not in TIE_AXES],
    about=About(
        place=70,
        family="accuracy",
        needs=("uncut",),
        wide=True,
        title="area under the ROC curve (AUC)",
        formula="Share of pairs (relevant item, other item) in the right order; ties count half."
        " For predictions: the same over all rows.",
        edges="A user without such a pair has no value. An unranked relevant item loses to every other"
        " ranked item.",
        source=ROC,
    ),
)
def auc(chunk: Chunk) -> Floats:
    """Share of (relevant, other) pairs in the right order.

    Ties count one half; NaN without pairs. An unranked relevant item loses to every ranked other item.
    """
    by_id = chunk.definition.auc_ties == "id_descending"
    g = chunk.certain_groups(chunk.rank_by_larger_id) if by_id else chunk.tie_groups
    listed = sum_by(g.user, g.relevant, len(chunk.length))
    negatives = chunk.length - listed
    tied = g.size - g.relevant
    below = negatives[g.user] - (g.above - g.prior) - tied
    share = 0.0 if chunk.definition.auc_ties == "strict" else 0.5
    wins = sum_by(g.user, g.relevant * (below + share * tied), len(chunk.length))
    if chunk.definition.auc_by == "pairs_and_one":
        return divide(wins + listed, (negatives + 1) * chunk.relevant, empty=np.nan)[:, None]
    if chunk.definition.auc_by == "listed_pairs":
        return np.where(listed > 0, divide(wins, negatives * listed, empty=1.0), 0.0)[:, None]
    return divide(wins, negatives * chunk.relevant, empty=np.nan)[:, None]


@metric(
    "r_precision",
    (),
    "uncut",
    about=about_rank(
        place=100,
        needs=("uncut",),
        title="R-precision",
        formula="Share of relevant items among the first R ranks, R = relevant items of the user.",
    ),
)
def r_precision(chunk: Chunk) -> Floats:
    """Share of relevant items among the first `relevant` ranks."""
    g = chunk.groups
    share = np.clip(chunk.relevant[g.user] - g.above, 0, g.size) / g.size
    hits = sum_by(g.user, g.relevant * share, len(chunk.length))
    return divide(hits, chunk.relevant)[:, None]


@metric(
    "rbp",
    ("persistence",),
    "both",
    about=about_rank(
        place=110,
        title="rank-biased precision (RBP)",
        formula="(1 - p) times the sum of p^(rank - 1) over relevant items; p is the persistence.",
        source="Moffat and Zobel 2008, Rank-biased precision for measurement of retrieval effectiveness",
    ),
)
def rank_biased_precision(chunk: Chunk) -> Floats:
    """(1 - p) sum p^(r - 1) over relevant ranks r.

    p is the persistence (Moffat and Zobel 2008).
    """
    p = chunk.definition.persistence
    return chunk.total(chunk.groups, chunk.groups.relevant, lambda r: (1 - p) * p ** (r - 1))


@metric(
    "percentile_rank",
    (),
    "uncut",
    worst=1.0,
    about=About(
        "small",
        place=120,
        family="accuracy",
        needs=("uncut",),
        title="percentile rank",
        formula="Mean of (rank - 1) / (candidates - 1) of the relevant items; random order gives 1/2.",
        edges=f"An unranked item counts 1. {NO_RELEVANT}",
        source="Hu, Koren and Volinsky 2008, Collaborative filtering for implicit feedback datasets",
    ),
)
def percentile_rank(chunk: Chunk) -> Floats:
    """Mean (rank - 1) / (candidates - 1) of relevant items; random: 1/2.

    Lower is better. Unranked items count 1 (Hu, Koren and Volinsky 2008, section 5).
    """
    g = chunk.groups
    place = divide(g.above + (g.size - 1) / 2, (chunk.length - 1.0)[g.user])
    ranked = sum_by(g.user, g.relevant, len(chunk.length))
    places = sum_by(g.user, g.relevant * place, len(chunk.length))
    return divide(places + chunk.relevant - ranked, chunk.relevant)[:, None]


def check_cutoffs(ks: Sequence[int]) -> None:
    """Check cut-offs.

    Raises:
        ConfigError: one is no whole number from 1 to 2^31 - 1.
    """
    for k in ks:
        number = isinstance(k, int | float | np.integer | np.floating) and not isinstance(k, bool)
        if not number or not 1 <= k <= LARGEST_K or k != int(k):
            raise ConfigError(
                f"cut-off {show_value(k)} is not a whole number >= 1 and below 2^31",
                "give cut-offs such as 5,10,50",
            )
