"""Slow and obvious versions of the kernels: one user, one list, one loop at a time."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from recbench_spark.analyses.comparisons.kernels import paradoxes
from recbench_spark.analyses.sampling.kernels import sampled
from recbench_spark.core.arrays import Floats, Ints
from recbench_spark.core.definitions import Definition
from recbench_spark.core.ratios import exact_moments, exact_ratio_and_error, scaling
from recbench_spark.metrics.kernels import beyond_accuracy
from recbench_spark.ranking.kernels.rankings import Rankings

Scores = Mapping[int, float]
Grades = Mapping[int, float]


def make_rankings(users: Sequence[tuple[Scores, Grades]]) -> Rankings:
    """`Rankings` of users given as (score of each candidate, grade of each truth item)."""
    rows = [(grade, *_counts(scores, item)) for scores, truth in users for item, grade in truth.items()]
    grade, above, tied, before = (np.array(column) for column in zip(*rows, strict=True))
    offsets = np.cumsum([0, *(len(truth) for _, truth in users)])
    length = np.array([len(scores) for scores, _ in users])
    return Rankings(offsets, grade.astype(float), above, tied, before, length)


def _counts(scores: Scores, item: int) -> tuple[int, int, int]:
    if item not in scores:
        return -1, 0, 0
    above = sum(s > scores[item] for s in scores.values())
    tied = [other for other, s in scores.items() if s == scores[item] and other != item]
    return above, len(tied), sum(other < item for other in tied)


def orders(scores: Scores) -> Iterator[tuple[int, ...]]:
    """Every order of the candidates that agrees with the scores; the first has ties by id."""
    levels = sorted(set(scores.values()), reverse=True)
    groups = [sorted(item for item in scores if scores[item] == level) for level in levels]
    for parts in itertools.product(*(itertools.permutations(group) for group in groups)):
        yield tuple(itertools.chain(*parts))


def value(name: str, scores: Scores, truth: Grades, k: int | None, d: Definition) -> float:
    """A metric of one user, NaN where the user is left out of the average."""
    users = d.users if name != "ndcg" or d.ndcg_users == "same" else d.ndcg_users
    averaged = {"truth": truth, "output": scores, "both": truth and scores}[users]
    worst = 1.0 if name == "percentile_rank" else 0.0
    if not averaged:
        return math.nan
    if not relevant_items(truth, d):
        return math.nan if d.empty_users == "leave_out" else worst
    if not scores:
        return worst
    return _over_ties(name, scores, truth, k, d)


def _over_ties(name: str, scores: Scores, truth: Grades, k: int | None, d: Definition) -> float:
    if name == "auc":
        return _auc(scores, truth, d)
    if name == "map" and d.ap == "precision_at_hits" and d.ap_ties == "last_rank":
        return _ap_last_rank(scores, truth, None if d.map_cut == "uncut" else k, d)
    if name == "map" and d.ap_by == "hits" and d.ties in ("optimistic", "pessimistic"):
        return _ap_at_hits_by_extreme_order(scores, truth, k, d)
    values = [METRICS[name](order, truth, k, d) for order in orders(scores)]
    ties = "expected" if name == "ndcg" and d.ndcg_ties == "expected" else d.ties
    if ties in ("id", "id_descending", "hashed"):
        # The first order has the smaller id first in every tie, the last one the larger. Rankings of
        # `make_rankings` have no hash: their order is that of ids.
        one = values[-1 if ties == "id_descending" else 0]
    elif ties == "expected":
        one = math.fsum(values) / len(values)
    else:
        best = (ties == "optimistic") == (name != "percentile_rank")
        one = max(values) if best else min(values)
    if name == "ndcg" and d.negative_grades in ("worst", "zero_floor"):
        # An uncut ideal that has to show negative grades may lie below what k places gain.
        one = min(one, 1.0)
    return max(one, 0.0) if name == "ndcg" and d.negative_grades == "zero_floor" else one


def relevant_items(truth: Grades, d: Definition) -> set[int]:
    return {i for i, r in truth.items() if (r > 0 if d.threshold is None else r >= d.threshold)}


def has_harmful_relevant_item(truth: Grades, d: Definition) -> bool:
    """Return true if a relevant item has a negative gain: no order of a tie is best for every metric."""
    return any(_gain(truth[item], d) < 0 for item in relevant_items(truth, d))


Order = Sequence[int]


def _hits(order: Order, truth: Grades, k: int | None, d: Definition) -> int:
    return len(set(order[:k]) & relevant_items(truth, d))


def _cut(order: Order, k: int | None) -> int:
    return len(order) if k is None else k


def _hit(order: Order, truth: Grades, k: int | None, d: Definition) -> float:
    hits = _hits(order, truth, k, d)
    return float(hits if d.hit == "count" else hits > 0)


def _precision_length(order: Order, truth: Grades, k: int | None, d: Definition) -> int:
    limits = {"list": len(order), "min_k_relevant": len(relevant_items(truth, d))}
    return min(_cut(order, k), limits.get(d.precision_by, 10**9))


def _recall_length(order: Order, truth: Grades, k: int | None, d: Definition) -> int:
    relevant = len(relevant_items(truth, d))
    return relevant if k is None or d.recall_by == "relevant" else min(k, relevant)


def _precision(order: Order, truth: Grades, k: int | None, d: Definition) -> float:
    return _hits(order, truth, k, d) / _precision_length(order, truth, k, d)


def _recall(order: Order, truth: Grades, k: int | None, d: Definition) -> float:
    return _hits(order, truth, k, d) / _recall_length(order, truth, k, d)


def _calibrated_recall(order: Order, truth: Grades, k: int | None, d: Definition) -> float:
    relevant = len(relevant_items(truth, d))
    return _hits(order, truth, k, d) / (relevant if k is None else min(k, relevant))


def _f1(order: Order, truth: Grades, k: int | None, d: Definition) -> float:
    p, r = _precision(order, truth, k, d), _recall(order, truth, k, d)
    return 2 * p * r / (p + r) if p + r else 0.0


def _map(order: Order, truth: Grades, k: int | None, d: Definition) -> float:
    k = None if d.map_cut == "uncut" else k
    relevant = relevant_items(truth, d)
    if d.ap == "mean_precision":
        n = _cut(order, k)
        return sum(len(set(order[:i]) & relevant) / i for i in range(1, n + 1)) / n
    total = sum(
        len(set(order[:rank]) & relevant) / rank
        for rank, item in enumerate(order[:k], start=1)
        if item in relevant
    )
    length = _ap_length(len(order), len(relevant), k, d, hits=len(relevant & set(order[:k])))
    return total / length if length else 0.0


def _ap_length(length: int, relevant: int, k: int | None, d: Definition, *, hits: int) -> int:
    at_most = relevant if k is None else min(k, relevant)
    return {
        "min_k_relevant": at_most,
        "relevant": relevant,
        "k": length if k is None else k,
        "min_relevant_list": min(at_most, length),
        "hits": hits,
    }[d.ap_by]


def _ap_at_hits_by_extreme_order(scores: Scores, truth: Grades, k: int | None, d: Definition) -> float:
    """Relevant items first, or last. More hits can have a smaller mean precision, so no largest value."""
    by_relevant = d.model_copy(update={"ap_by": "relevant"})
    pick = max if d.ties == "optimistic" else min
    return _map(pick(orders(scores), key=lambda order: _map(order, truth, None, by_relevant)), truth, k, d)


def _ap_last_rank(scores: Scores, truth: Grades, k: int | None, d: Definition) -> float:
    relevant = relevant_items(truth, d)
    total, hits = 0.0, 0
    for item in relevant & set(scores):
        reach = {other for other, s in scores.items() if s >= scores[item]}
        if k is None or len(reach) <= k:
            total, hits = total + len(reach & relevant) / len(reach), hits + 1
    length = _ap_length(len(scores), len(relevant), k, d, hits=hits)
    return total / length if length else 0.0


def _mrr(order: Order, truth: Grades, k: int | None, d: Definition) -> float:
    k = None if d.mrr_cut == "uncut" else k
    ranks = [r for r, i in enumerate(order[:k], start=1) if i in relevant_items(truth, d)]
    return 1 / ranks[0] if ranks else 0.0


def _gain(grade: float, d: Definition) -> float:
    if d.gain == "binary":
        return float(grade > 0 if d.threshold is None else grade >= d.threshold)
    if d.gain == "exponential_above":
        relevant = grade > 0 if d.threshold is None else grade >= d.threshold
        return 2 ** (grade - (d.threshold or 0.0) + 1) - 1 if relevant else 0.0
    grade -= d.grade_origin
    grade = max(grade, 0.0) if d.negative_grades == "clip" else grade
    return grade if d.gain == "linear" else 2**grade - 1


def _discount(rank: int, d: Definition) -> float:
    return {
        "log2": 1 / math.log2(rank + 1),
        "log2_max2": 1 / math.log2(max(rank, 2)),
        "ln": 1 / math.log(rank + 1),
    }[d.discount]


def _best_dcg(gains: Sequence[float], k: int | None, length: int, d: Definition) -> float:
    """Best DCG of any order; negative gains count only where they have to be shown."""
    return _take_best_order(tuple(sorted(gains)), k, length, d)


@functools.cache
def _take_best_order(gains: tuple[float, ...], k: int | None, length: int, d: Definition) -> float:
    shown = length if d.candidates == "rated" else 0
    return max(
        sum(g * _discount(rank, d) for rank, g in enumerate(order[:k], start=1) if g > 0 or rank <= shown)
        for order in _distinct_orders(gains)
    )


def _distinct_orders(gains: tuple[float, ...]) -> Iterator[tuple[float, ...]]:
    """Every order once, where some are equal: of 3,628,800 orders of ten grades a few hundred are left."""
    for at in [gains.index(gain) for gain in sorted(set(gains))]:
        yield from ((gains[at], *rest) for rest in _distinct_orders(gains[:at] + gains[at + 1 :]))
    if not gains:
        yield ()


def _ndcg(order: Order, truth: Grades, k: int | None, d: Definition) -> float:
    gains = {item: _gain(grade, d) for item, grade in truth.items()}
    dcg = sum(gains.get(item, 0.0) * _discount(rank, d) for rank, item in enumerate(order[:k], start=1))
    signed = d.negative_grades == "signed"
    shown = [max(gain, 0.0) if signed else gain for gain in gains.values()]
    ideal = _best_dcg(shown, k, len(order), d)
    if d.ideal == "k":
        ones = sum(_discount(rank, d) for rank in range(1, _cut(order, k) + 1))
        ideal = max(0.0, *gains.values(), 0.0) * ones
    elif d.ideal == "relevant":
        ideal = _best_dcg(shown, None, len(order), d)
    elif d.ideal == "min_relevant_list":
        ideal = _best_dcg(shown, min(_cut(order, k), len(order)), len(order), d)
    if signed:
        return dcg / ideal if ideal > 0 else 0.0
    if d.negative_grades != "worst":
        return dcg / ideal if ideal > 0 else math.nan
    if d.ideal == "min_relevant_list":
        k = min(_cut(order, k), len(order))
    worst = -_best_dcg([-g for g in gains.values()], k, len(order), d)
    if math.isclose(ideal, worst, abs_tol=1e-12):
        return 1.0 if ideal > 0 else math.nan
    return (dcg - worst) / (ideal - worst) if ideal > worst else math.nan


def _auc(scores: Scores, truth: Grades, d: Definition) -> float:
    relevant = relevant_items(truth, d)
    listed = relevant & set(scores)
    negatives = set(scores) - relevant
    wins = math.fsum(_win(scores, p, n, d) for p in listed for n in negatives)
    if d.auc_by == "pairs_and_one":
        return (wins + len(listed)) / ((len(negatives) + 1) * len(relevant))
    if d.auc_by == "listed_pairs":
        if not listed:
            return 0.0
        return wins / (len(negatives) * len(listed)) if negatives else 1.0
    return wins / (len(negatives) * len(relevant)) if negatives else math.nan


def _win(scores: Scores, positive: int, negative: int, d: Definition) -> float:
    if scores[positive] != scores[negative]:
        return float(scores[positive] > scores[negative])
    return {"half": 0.5, "strict": 0.0, "id_descending": float(positive > negative)}[d.auc_ties]


def _r_precision(order: Order, truth: Grades, k: int | None, d: Definition) -> float:
    r = len(relevant_items(truth, d))
    return _hits(order, truth, r, d) / r


def _rbp(order: Order, truth: Grades, k: int | None, d: Definition) -> float:
    p, relevant = d.persistence, relevant_items(truth, d)
    return (1 - p) * sum(p**j for j, item in enumerate(order[:k]) if item in relevant)


def _percentile_rank(order: Order, truth: Grades, k: int | None, d: Definition) -> float:
    last = max(len(order) - 1, 1)
    places = {item: j / last for j, item in enumerate(order)}
    relevant = relevant_items(truth, d)
    return sum(places.get(item, 1.0) for item in relevant) / len(relevant)


METRICS: dict[str, Callable[[Order, Grades, int | None, Definition], float]] = {
    "hit": _hit,
    "precision": _precision,
    "recall": _recall,
    "calibrated_recall": _calibrated_recall,
    "f1": _f1,
    "map": _map,
    "mrr": _mrr,
    "ndcg": _ndcg,
    "r_precision": _r_precision,
    "rbp": _rbp,
    "percentile_rank": _percentile_rank,
}


def value_and_error(numerator_ne: Floats, denominator_ne: Floats) -> tuple[Floats, Floats, Ints]:
    """Value, standard error (rounds independent) and rounds, (e,) each, of rounds held in memory."""
    largest = [np.nanmax(np.abs(part), axis=0, initial=0.0) for part in (numerator_ne, denominator_ne)]
    f, g = (np.array([scaling(float(x)) for x in part]) for part in largest)
    value, error, n = exact_ratio_and_error(exact_moments(numerator_ne * f, denominator_ne * g))
    return value * g / f, error * g / f, n


def smallest_flip(contribution_n: Floats) -> paradoxes.Flip | None:
    """The smallest set whose removal turns the sum, by sorting; None where no set can turn it."""
    value = paradoxes.to_fixed_point(contribution_n)
    goal = abs(int(value.sum()))
    if not goal:
        return None
    largest = np.sort(value * np.sign(value.sum()))[::-1]
    running = np.cumsum(largest)
    # Everything positive sums to at least the goal; it exceeds it only where something opposes.
    count = int(np.searchsorted(running[largest > 0], goal, side="right")) + 1
    if count > int((largest > 0).sum()):
        return None
    threshold = int(largest[count - 1])
    at, unit = count - int((largest > threshold).sum()), 2.0**-paradoxes.BITS
    return paradoxes.Flip(count, threshold * unit, at, int(running[count - 1]) * unit, goal * unit)


def gini_from_counts(times_i: Ints) -> float:
    """The Gini coefficient from the number of lists of every item of the catalogue."""
    times, items = np.unique(times_i, return_counts=True)
    return beyond_accuracy.gini(times.tolist(), items.tolist(), len(times_i))


def count_sampled_ranks(rank_p: Ints, m: int) -> Ints:
    """The number of truth items at each sampled rank, (m + 1,); unranked items do not count."""
    return np.bincount(rank_p, minlength=m + 2)[1:].astype(np.int64)


def likely_means(
    count_bj: Ints, metric: str, ks: sampled.Ks, draw: sampled.NegativeDraw, steps: int = sampled.ITERATIONS
) -> Floats:
    """The means (b, c) over truth items, under the ranks that are most likely for each row of counts."""
    ranks, share = sampled.rank_distribution(count_bj, draw, ks, steps)
    value = share @ sampled.rank_values(metric, ranks.rank, ks, draw.n)
    return np.where(count_bj.sum(axis=1, keepdims=True) > 0, value, np.nan)
