"""Logistic regression for cells (users x items) in a log.

It has draws, users' sums and Newton's steps. Axes: u users, i items, f user features, g item features, p =
1 + f + g weights, intercept first, m sums per user: cells not shown, cells shown, log-likelihood, p
derivatives, and the information's lower triangle, row by row.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from recbench_spark.core.arrays import Bools, Floats
from recbench_spark.core.compiling import compile_kernel, readonly
from recbench_spark.core.hashing import Hashes, Texts, hash_longs, hash_texts, place_hashes
from recbench_spark.errors import DataError

SLACK = 1e-9
"""A likelihood has not fallen if it falls by this share of its size, or less: sums are rounded."""

NEAR = 1e-10
"""Squared distance to the maximum, in standard errors, at which one more step is the last one."""

MOST_STEPS = 200


def draw_cells(hash_u: Hashes, items: Texts, rate: float, seed: int) -> Bools:
    """Draw cells by hash, (u, i).

    A cell is drawn if the hash of its user, item and seed is below a rate.

    Args:
        hash_u: hashed user ids (`hashed_ids`).
        items: item ids.
        rate: share of drawn cells.
        seed: the draw's seed.
    """
    n = len(items.starts_d) - 1
    which = np.tile(np.arange(n, dtype=np.int32), len(hash_u))
    hashes = hash_texts(items, which, np.repeat(hash_u, n))
    hashes = hash_longs(np.full(len(hashes), seed, np.int64), hashes)
    drawn: Bools = place_hashes(hashes) < rate
    return drawn.reshape(len(hash_u), n)


def count_sums(weights: int) -> int:
    """Return the number of sums per user with these weights."""
    return 3 + weights + weights * (weights + 1) // 2


def sum_users(
    used_ui: Bools, shown_ui: Bools, of_user_uf: Floats, of_item_ig: Floats, weights_p: Floats
) -> Floats:
    """Return each user's sums, (u, m), added in item order.

    Args:
        used_ui: cells that count.
        shown_ui: cells shown in the log.
        of_user_uf: user features.
        of_item_ig: item features.
        weights_p: weights at which the likelihood and its derivatives are taken.
    """
    sums_um = np.zeros((len(used_ui), count_sums(len(weights_p))))
    features = readonly(of_user_uf), readonly(of_item_ig)
    _add_cells(readonly(used_ui), readonly(shown_ui), *features, readonly(weights_p), sums_um)
    return sums_um


@compile_kernel
def _add_cells(
    used_ui: Bools,
    shown_ui: Bools,
    of_user_uf: Floats,
    of_item_ig: Floats,
    weights_p: Floats,
    sums_um: Floats,
) -> None:
    n_user = of_user_uf.shape[1]
    x_p = np.ones(len(weights_p))
    for u in range(used_ui.shape[0]):
        x_p[1 : 1 + n_user] = of_user_uf[u]
        for i in range(used_ui.shape[1]):
            if not used_ui[u, i]:
                continue
            x_p[1 + n_user :] = of_item_ig[i]
            logit = 0.0
            for a in range(len(x_p)):
                logit += x_p[a] * weights_p[a]
            chance = 1 / (1 + np.exp(-logit))
            if shown_ui[u, i]:
                sums_um[u, 1] += 1
                side, residual = logit, 1 - chance
            else:
                sums_um[u, 0] += 1
                side, residual = -logit, -chance
            sums_um[u, 2] += min(side, 0.0) - np.log1p(np.exp(-abs(side)))
            place = 3 + len(x_p)
            for a in range(len(x_p)):
                sums_um[u, 3 + a] += residual * x_p[a]
                for b in range(a + 1):
                    sums_um[u, place] += chance * (1 - chance) * x_p[a] * x_p[b]
                    place += 1


def climb(sums_at: Callable[[Floats], Floats], weights: int) -> Floats:
    """Return the most likely weights, (p,), by Newton's steps.

    A step is halved where the likelihood falls.

    Args:
        sums_at: returns (m,) sums over all users at some weights.
        weights: number of weights.

    Raises:
        DataError: there are no cells of both kinds, or the steps do not end.
    """
    at_p, step_p, best = np.zeros(weights), np.zeros(weights), -np.inf
    for _ in range(MOST_STEPS):
        sums_m = sums_at(at_p + step_p)
        if not sums_m[:2].all():
            raise DataError(
                f"logistic regression of {sums_m[1]:.0f} cells shown and {sums_m[0]:.0f} not shown",
                "it needs both; draw more",
            )
        if sums_m[2] < best - SLACK * abs(best):
            step_p = step_p / 2
            continue
        at_p, best = at_p + step_p, sums_m[2]
        slope_p = sums_m[3 : 3 + weights]
        step_p = _solve(sums_m[3 + weights :], slope_p)
        if slope_p @ step_p <= NEAR:
            nearest: Floats = at_p + step_p
            return nearest
    raise DataError("logistic regression does not converge", "leave out features that repeat others")


def _solve(triangle: Floats, slope_p: Floats) -> Floats:
    """Return the shortest solution for Newton's step.

    Several solutions are possible: a feature may be constant, or repeat others.
    """
    weights = len(slope_p)
    information = np.zeros((weights, weights))
    information[np.tril_indices(weights)] = triangle
    information += np.tril(information, -1).T
    scale_p = np.sqrt(np.maximum(np.diag(information), np.finfo(float).tiny))
    scaled = information / np.outer(scale_p, scale_p)
    step_p: Floats = np.linalg.lstsq(scaled, slope_p / scale_p, rcond=1e-12)[0] / scale_p
    return step_p


def mean_chances(logit_i: Floats, part_n: Floats, times_n: Floats) -> Floats:
    """Return each item's mean chance over n user groups, (i,).

    Args:
        logit_i: the items' part in the log-odds, with the intercept.
        part_n: each group's user part.
        times_n: users in each group.
    """
    sum_i = np.zeros(len(logit_i))
    with np.errstate(over="ignore"):
        for part, times in zip(part_n, times_n, strict=True):
            sum_i += times / (1 + np.exp(-logit_i - part))
    mean_i: Floats = sum_i / times_n.sum()
    return mean_i
