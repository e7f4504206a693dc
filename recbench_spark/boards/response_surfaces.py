"""Estimate from few trials whether untried settings are better.

The loss over the settings is a Gaussian process with one length for each setting. A few trials do not
determine lengths and noise, so hundreds of sets are weighed by the trials' marginal likelihood. Points of
low discrepancy replace random numbers, so equal trials give equal answers. Source: Rasmussen and Williams,
"Gaussian processes for machine learning" (2006), sections 2.7 and 5.4.1.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

LENGTH, LENGTHS_SD = 1.2, 0.8
"""Median length, in widths of the space, and its standard deviation in logarithms, before any trial."""

NOISE = (1e-7, 3e-2)
"""Lowest and highest variance of the noise, as a share of the process's variance."""

HYPER_SETS, KEPT_SETS = 511, 48
"""Number of hyperparameter sets that are weighed, and number of the likeliest ones that predict."""

PRIOR_FREEDOM = 2.0
"""Degrees of freedom in the prior for the process's variance."""

REACH = 0.5
"""Distance beyond an edge, in widths of the space, to consider; extended searches go as far."""

OUTLIER = 4.0
"""Largest distance from the best loss, in median distances; larger ones are cut to it."""

MAX_TRIALS = 64
"""Most trials for fitting a surface; the best ones are taken."""

MIN_EXTRA_TRIALS = 3
"""Fewest trials beyond the number of settings that a surface needs."""


class BetterSetting(NamedTuple):
    """The setting with the largest chance to be better.

    Attributes:
        chance: probability that it is better by more than the required gain.
        place_d: (d,) its place; 0 and 1 are the edges of the space.
    """

    chance: float
    place_d: Floats


class Surface:
    """Losses over settings, predicted from one search's trials."""

    def __init__(self, places_nd: Floats, loss_n: Floats, noise: float = 0.0) -> None:
        """Fit the surface.

        Args:
            places_nd: (n, d) places of the trials; 0 and 1 are the edges of the space.
            loss_n: (n,) their losses, the smaller the better.
            noise: standard deviation of one loss; 0 if not known.
        """
        order = np.argsort(loss_n, kind="stable")[:MAX_TRIALS]
        self.places_nd, self.unit = places_nd[order], loss_scale(loss_n)
        self.best = float(loss_n.min())
        target_n = np.minimum((loss_n[order] - self.best) / self.unit, OUTLIER)
        self.variance = float(target_n.var()) or 1.0
        lengths_hd, noise_h = _draw_hypers(places_nd.shape[1])
        noise_h = np.maximum(noise_h, (noise / self.unit) ** 2 / self.variance)
        self._weigh_hypers(target_n, lengths_hd, noise_h)

    def _weigh_hypers(self, target_n: Floats, lengths_hd: Floats, noise_h: Floats) -> None:
        """Keep the likeliest lengths and noises, with matrices for predictions."""
        n = len(target_n)
        kernel_hnn = _kernel(self.places_nd, self.places_nd, lengths_hd)
        kernel_hnn += (noise_h[:, None, None] + 1e-8) * np.eye(n)
        root_hnn = np.linalg.cholesky(kernel_hnn)
        columns = np.stack([target_n, np.ones(n)], axis=1)
        whitened = np.linalg.solve(root_hnn, np.broadcast_to(columns, (len(root_hnn), n, 2)))
        ones_hn = whitened[..., 1]
        weight_h = np.square(ones_hn).sum(axis=1)
        mean_h = (whitened[..., 0] * ones_hn).sum(axis=1) / weight_h
        rest_hn = whitened[..., 0] - mean_h[:, None] * ones_hn
        self.freedom = PRIOR_FREEDOM + n - 1
        squares_h = PRIOR_FREEDOM * self.variance + np.square(rest_hn).sum(axis=1)
        halves_h = np.log(np.diagonal(root_hnn, axis1=1, axis2=2)).sum(axis=1) + np.log(weight_h) / 2
        likelihood_h = -halves_h - self.freedom / 2 * np.log(squares_h)
        top = np.argsort(-likelihood_h, kind="stable")[:KEPT_SETS]
        share = np.exp(likelihood_h[top] - likelihood_h[top[0]])
        self.share_k, self.lengths_kd, self.root_knn = share / share.sum(), lengths_hd[top], root_hnn[top]
        self.mean_k, self.rest_kn, self.ones_kn = mean_h[top], rest_hn[top], ones_hn[top]
        self.weight_k, self.scale_k = weight_h[top], squares_h[top] / self.freedom

    def chances(self, used_d: Floats, places_md: Floats, gain: float) -> Floats:
        """Return (m,) chances that places gain more than `gain`.

        Losses of the places are compared with the loss at `used_d`.
        """
        from scipy.special import stdtr  # noqa: PLC0415 (slow to import)

        every = np.vstack([used_d[None], places_md])
        cross_knm = _kernel(self.places_nd, every, self.lengths_kd)
        solved = np.linalg.solve(self.root_knn, cross_knm)
        mean_km = self.mean_k[:, None] + np.einsum("knm,kn->km", solved, self.rest_kn)
        left_km = 1 - np.einsum("knm,kn->km", solved, self.ones_kn)
        own_km = 1 - np.square(solved).sum(axis=1) + left_km**2 / self.weight_k[:, None]
        with_used = _kernel(every, used_d[None], self.lengths_kd)[..., 0]
        with_used -= np.einsum("knm,kn->km", solved, solved[..., 0])
        with_used += left_km * left_km[:, :1] / self.weight_k[:, None]
        spread_km = np.maximum(own_km + own_km[:, :1] - 2 * with_used, 1e-12) * self.scale_k[:, None]
        excess_km = mean_km[:, :1] - mean_km - gain / self.unit
        found_km = stdtr(self.freedom, excess_km / np.sqrt(spread_km))
        return np.asarray(self.share_k @ found_km[:, 1:])

    def find_better(self, used_d: Floats, gain: float, reach_d: Floats) -> BetterSetting:
        """Return the place most likely to gain more than `gain`.

        Args:
            used_d: (d,) setting to compare with.
            gain: required gain, in units of the loss.
            reach_d: (d, 2) largest distance of places beyond the lower and the upper edge.
        """
        places_md = np.clip(_candidates(self.places_nd[0]), -reach_d[:, 0], 1 + reach_d[:, 1])
        chance_m = self.chances(used_d, places_md, gain)
        return BetterSetting(float(chance_m.max()), places_md[chance_m.argmax()])


def loss_scale(loss_n: Floats) -> float:
    """Return the losses' unit: the median distance from the best.

    If that is 0, it is the largest distance.
    """
    distance_n = loss_n - loss_n.min()
    return float(np.median(distance_n)) or float(distance_n.max()) or 1.0


def _kernel(one_nd: Floats, other_md: Floats, lengths_hd: Floats) -> Floats:
    """Return (h, n, m) covariances.

    A covariance is 1 at distance 0, and falls with the squared distance in lengths.
    """
    squared_nmd = np.square(one_nd[:, None] - other_md[None])
    return np.asarray(np.exp(-0.5 * np.einsum("nmd,hd->hnm", squared_nmd, lengths_hd**-2.0, optimize=True)))


def _draw_hypers(dims: int) -> tuple[Floats, Floats]:
    """Draw lengths (h, d) and noise shares (h,) for weighing."""
    from scipy.special import ndtri  # noqa: PLC0415 (slow to import)

    unit = np.clip(_sobol_points(HYPER_SETS, dims + 1), 1e-4, 1 - 1e-4)
    low, high = np.log(NOISE)
    return LENGTH * np.exp(LENGTHS_SD * ndtri(unit[:, :dims])), np.exp(low + (high - low) * unit[:, dims])


def _candidates(best_d: Floats) -> Floats:
    """Return places to try, in and around the space.

    Some are near the best trial, and some along each setting through it.
    """
    dims = len(best_d)
    unit = _sobol_points(255, dims)
    lines = np.repeat(best_d[None], dims * 17, axis=0)
    for at in range(dims):
        lines[at * 17 : (at + 1) * 17, at] = np.linspace(-REACH, 1 + REACH, 17)
    wide, near = (1 + 2 * REACH) * unit - REACH, best_d + 0.6 * (unit[:127] - 0.5)
    return np.vstack([wide, near, best_d + 0.2 * (unit[:63] - 0.5), lines])


def _sobol_points(count: int, dims: int) -> Any:
    """Return points of low discrepancy.

    The points are Sobol's without the first one, which is 0.
    """
    from scipy.stats import qmc  # noqa: PLC0415 (slow to import)

    sequence = qmc.Sobol(dims, scramble=False)
    return sequence.random_base2(int(np.ceil(np.log2(count + 1))))[1 : count + 1]
