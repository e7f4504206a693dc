"""Random inputs that every library can read, and our own values on them.

An input is plain JSON: `lists` {user: [[item, score], ...] best first}, `truth` {user: [[item, grade],
...]}, `train` {user: [item, ...]}, `items` (items are 0 .. items - 1) and `ks`. A value is named
`metric@k`, or `metric` where it is uncut.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from recbench_spark.core.definitions import Definition
from recbench_spark.metrics.kernels.accuracy import METRICS, cutoffs, measure, relevant_counts
from recbench_spark.ranking.kernels.lists import HeldOutItems, InputLists, UserItems, rank_lists
from recbench_spark.ranking.kernels.rankings import Rankings

Input = dict[str, Any]
KS = (1, 2, 3, 5, 8, 10)
USERS, ITEMS = 40, 25


def random_input(
    seed: int,
    *,
    full: bool = False,
    grades: int = 1,
    ties: bool = False,
    users: int = USERS,
    lowest: int = 1,
) -> Input:
    """Short, long and missing lists, users without truth; `full`: a score for every item.

    grades: relevance is a whole number from `lowest` to this. ties: scores take five values only.
    """
    rng = np.random.default_rng(seed)
    lists, truth, train = {}, {}, {}
    for user in map(str, rng.permutation(users)):
        score = rng.permutation(ITEMS) + 1.0
        if ties:
            score = np.ceil(score / (ITEMS / 5))
        length = ITEMS if full else int(rng.choice([1, 2, 4, 9, 15, ITEMS]))
        shown = rng.choice(ITEMS, length, replace=False)
        shown = shown[np.lexsort((shown, -score[shown]))]
        chosen = rng.choice(ITEMS, int(rng.integers(1, 13)), replace=False)
        held_out, seen = (chosen, []) if not full else (chosen[:-1], chosen[-1:])
        kind = int(user) % 8
        if kind != 0:
            lists[user] = [[int(i), float(score[i])] for i in shown]
            train[user] = [int(i) for i in seen]
        if kind != 1 and len(held_out):
            truth[user] = [[int(i), int(rng.integers(lowest, grades + 1))] for i in held_out]
    return {"lists": lists, "truth": truth, "train": train, "items": ITEMS, "ks": list(KS)}


def ranked(given: Input, definition: Definition) -> Rankings:
    """The rankings of all users that have a list or a truth."""
    users = sorted({*given["lists"], *given["truth"]}, key=int)
    numbers = np.array([int(user) for user in users])
    lists = [given["lists"].get(user, []) for user in users]
    truth = [given["truth"].get(user, []) for user in users]
    train = [[[item, 0] for item in given["train"].get(user, [])] for user in users]
    offsets, items, score = _flat(lists)
    seen = _flat(train)
    return rank_lists(
        InputLists(offsets, items, score=score),
        HeldOutItems(*_flat(truth)),
        definition,
        UserItems(seen[0], seen[1]),
        user_numbers=numbers,
    ).rankings


def _flat(rows: list[list[list[float]]]) -> tuple[Any, Any, Any]:
    offsets = np.cumsum([0, *map(len, rows)])
    flat = np.array([pair for row in rows for pair in row], dtype=float).reshape(-1, 2)
    return offsets, flat[:, 0].astype(np.int64), flat[:, 1]


def our_values(given: Input, definition: Definition, metrics: Sequence[str] = ()) -> dict[str, float]:
    """Every metric, or some, at every cut-off, the mean over the averaged users."""
    result = measure(ranked(given, definition), list(metrics or METRICS), given["ks"], definition)
    means = {}
    for metric, values in result.items():
        for column, k in enumerate(cutoffs(metric, given["ks"])):
            value = values[:, column]
            value = value[~np.isnan(value)]
            means[metric if k is None else f"{metric}@{k}"] = float(value.mean()) if len(value) else 0.0
    return means


def weighted_auc(given: Input, definition: Definition) -> float:
    """GAUC: the mean of the users' AUC, weighted by their relevant items."""
    rankings = ranked(given, definition)
    auc = measure(rankings, ["auc"], [], definition)["auc"][:, 0]
    positives = np.diff(rankings.offsets)
    kept = ~np.isnan(auc)
    return float((auc[kept] * positives[kept]).sum() / positives[kept].sum())


def pool_precision(given: Input, definition: Definition) -> dict[str, float]:
    """Hits of all users / sum of their min(k, relevant): precision of implicit, no mean over users."""
    rankings, ks = ranked(given, definition), given["ks"]
    counted = definition.model_copy(update={"hit": "count"})
    hits = measure(rankings, ["hit"], ks, counted)["hit"]
    most = np.minimum(np.asarray(ks), relevant_counts(rankings, definition)[:, None])
    shares = np.nansum(hits, axis=0) / most.sum(axis=0)
    return {f"pooled_precision@{k}": float(share) for k, share in zip(ks, shares, strict=True)}


def largest_difference(ours: Mapping[str, float], theirs: Mapping[str, float]) -> tuple[float, str]:
    """The largest absolute difference, and the metric it occurs in."""
    return max((abs(ours[name] - value), name) for name, value in theirs.items())
