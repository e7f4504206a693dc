"""Estimate the conditional position curve: how clicks fall by slot.

It is free of what stood at a slot. Clicks of a pair (query, ad) at slot s are taken as rare events with
rate attractiveness_g theta_s. Given a pair's clicks K_g, its clicks by slot are multinomial with shares
n_gs theta_s / sum_t n_gt theta_t, so attractiveness cancels. The likelihood is that of choices (Luce 1959),
concave in log theta. Its maximum solves theta_s = sum_g k_gs / sum_g [K_g n_gs / sum_t n_gt theta_t]
(Hunter 2004, "MM algorithms for generalized Bradley-Terry models"); Newton steps find it.

A finite maximum exists within a connected set alone: slots between which clicks lead both ways (Ford 1957).
The first slot in each set has the value 1. Axes: g pairs, s slots, b bootstrap replicates.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from recbench_spark.auctions.kernels.counts import UNIT, ImpressionCounts
from recbench_spark.core.arrays import Bools, Floats, Ints, Ints32
from recbench_spark.core.compiling import compile_kernel
from recbench_spark.errors import DivergedError

MOST_STEPS = 100
SMALLEST_STEP = 1e-8
"""A Newton step of log theta below this ends the search: the next one would be near 1e-16."""

LONGEST_STEP = 1.0
"""Longest step of log theta, so that a step from a flat part of the likelihood does not overshoot."""


class CurveDerivatives(NamedTuple):
    """Derivatives of the log-likelihood by log theta.

    Derivatives are whole sums in units of 2^-30.

    Attributes:
        gradient: int64 (..., s) first derivatives.
        information: int64 (..., s, s) second derivatives with the opposite sign.
    """

    gradient: Ints
    information: Ints


def find_links(counts: ImpressionCounts) -> Bools:
    """Return (s, s) which slots clicks link.

    [s, t] is true if a pair has clicks at s and impressions at t.
    """
    clicked = (counts.clicks_gs > 0).astype(np.float32)
    shown = (counts.shown_gs > 0).astype(np.float32)
    links: Bools = (clicked.T @ shown) > 0
    return links


def find_connected_sets(links_ss: Bools) -> Ints:
    """Return (s,) the first slot in each slot's connected set."""
    reach = links_ss | np.eye(len(links_ss), dtype=bool)
    for middle in range(len(reach)):
        reach |= reach[:, middle, None] & reach[None, middle]
    both: Ints = np.argmax(reach & reach.T, axis=1).astype(np.int64)
    return both


def compute_derivatives(
    counts: ImpressionCounts, starts_q: Ints, set_s: Ints, log_theta_s: Floats
) -> CurveDerivatives:
    """Compute derivatives by group, (q, s) and (q, s, s).

    Args:
        counts: pairs' impressions and clicks.
        starts_q: (q + 1,) each group's first pair.
        set_s: (s,) first slot in each slot's connected set.
        log_theta_s: (s,) logarithms of the curve.
    """
    groups, slots = len(starts_q) - 1, len(set_s)
    gradient = np.zeros((groups, slots), dtype=np.int64)
    information = np.zeros((groups, slots, slots), dtype=np.int64)
    curve = (set_s, np.exp(log_theta_s))
    _add_derivatives((counts.shown_gs, counts.clicks_gs), starts_q, curve, gradient, information)
    return CurveDerivatives(gradient, information)


@compile_kernel
def _add_derivatives(
    counts: tuple[Ints32, Ints32],
    starts_q: Ints,
    curve: tuple[Ints, Floats],
    gradient: Ints,
    information: Ints,
) -> None:
    shown_gs, clicks_gs = counts
    set_s = curve[0]
    share_s = np.empty(len(set_s))
    for q in range(len(starts_q) - 1):
        for g in range(starts_q[q], starts_q[q + 1]):
            if clicks_gs[g].sum() == 0:
                continue  # most pairs have no click, and say nothing about the curve
            for first in range(len(set_s)):
                if set_s[first] != first:
                    continue
                clicks = fill_shares(shown_gs[g], clicks_gs[g], first, curve, share_s)
                if clicks > 0:
                    _add_pair(clicks_gs[g], clicks, share_s, gradient[q], information[q])


@compile_kernel
def fill_shares(
    shown_s: Ints32, clicks_s: Ints32, first: int, curve: tuple[Ints, Floats], share_s: Floats
) -> int:
    """Fill in a pair's expected click shares; return its clicks.

    Shares and clicks are within one slot set. The result is 0 for a pair at one slot in the set, since it
    says nothing about the curve.
    """
    set_s, theta_s = curve
    clicks, mass, places = 0, 0.0, 0
    for s in range(len(set_s)):
        share_s[s] = shown_s[s] * theta_s[s] if set_s[s] == first else 0.0
        if share_s[s] > 0.0:
            clicks += clicks_s[s]
            mass += share_s[s]
            places += 1
    if clicks == 0 or places == 1:
        return 0
    for s in range(len(set_s)):
        share_s[s] /= mass
    return clicks


@compile_kernel
def _add_pair(
    clicks_s: Ints32, clicks: int, share_s: Floats, gradient_s: Ints, information_ss: Ints
) -> None:
    """Add one pair's derivatives within a slot set."""
    for s in range(len(share_s)):
        if share_s[s] == 0.0:
            continue
        gradient_s[s] += np.int64(np.rint((clicks_s[s] - clicks * share_s[s]) * UNIT))
        for t in range(len(share_s)):
            same = share_s[s] if s == t else 0.0
            information_ss[s, t] += np.int64(np.rint(clicks * (same - share_s[s] * share_s[t]) * UNIT))


def solve_step(gradient: Floats, information: Floats, set_s: Ints) -> Floats:
    """Return the Newton step of log theta, (..., s).

    The step is 0 for each set's first slot. A replicate in which a set falls apart takes the shortest
    possible step.

    Args:
        gradient: (..., s) first derivatives of the log-likelihood.
        information: (..., s, s) second derivatives with the opposite sign.
        set_s: (s,) first slot in each slot's connected set.
    """
    free = np.flatnonzero(set_s != np.arange(len(set_s)))
    step = np.zeros(gradient.shape)
    if len(free):
        inverse = np.linalg.pinv(information[..., free[:, None], free[None, :]], hermitian=True)
        step[..., free] = (inverse @ gradient[..., free, None])[..., 0]
    return step


def fit_curve(derive: Callable[[Floats], CurveDerivatives], set_s: Ints) -> Floats:
    """Return log theta, (s,), by Newton steps.

    Args:
        derive: function from log theta to the derivatives over all pairs, (s,) and (s, s).
        set_s: (s,) first slot in each slot's connected set.

    Raises:
        DivergedError: the steps do not become small.
    """
    log_theta = np.zeros(len(set_s))
    for _ in range(MOST_STEPS):
        derived = derive(log_theta)
        step = solve_step(derived.gradient / UNIT, derived.information / UNIT, set_s)
        largest = float(np.abs(step).max(initial=0.0))
        log_theta = log_theta + step * min(1.0, LONGEST_STEP / max(largest, LONGEST_STEP))
        if largest < SMALLEST_STEP:
            return log_theta
    raise DivergedError(
        f"the position curve does not converge in {MOST_STEPS} steps",
        "replay.curve: plain does without; or remove slots with few clicks from the log",
    )


def plain_curve(reference: Floats) -> Floats:
    """Return log theta, (..., s), from click rates alone.

    What stood at a slot does not matter.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(reference) - np.log(reference[..., :1])
    return np.where(np.isfinite(logs), logs, 0.0)
