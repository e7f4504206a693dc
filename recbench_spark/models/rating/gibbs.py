"""Draws of the Gibbs sampler beside those of rows: priors, noise, bags.

Rows theta ~ N(m, L^-1), L ~ Wishart(W0, n0), m ~ N(m0, (b0 L)^-1). Given N rows the conditional has the
same form (Salakhutdinov and Mnih 2008, equation 14). Each matrix is as wide as a row is long. Loops are
explicit, so the threads of a linear algebra library cannot change bits.

A bag holds all items a user rated, or all users who rated an item. It belongs to a row a on a side (a user)
and holds features j (items), each with x_a = 1 / sqrt(bag size). It adds s_a = sum_j x_a z_j to all ratings
in its row. s_a interacts with all other features behind the rating, and the bag's features with each other,
1/2 (s_a^2 - sum_j x_a^2 z_j^2) per factor. So a rating's derivative by z_j is x_a (o_r + s_a - x_a z_j),
where o_r are the rating's other factors, and the draw of z_j needs just five sums over a row's ratings.
They are computed once per row and factor, and updated while features change: a sweep costs the bag sizes,
not bag sizes times ratings per row. Source: Rendle, "Scaling factorization machines to relational data"
(VLDB 2013), section 4; single factors as in Freudenthaler, Schmidt-Thieme and Rendle, "Bayesian
factorization machines" (2011).

Axes: a rows with a bag, j features, r ratings in the order of a, k = 1 + d numbers of a feature, bias
first; u users, i items, b users in a block, n samples whose scores are averaged.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from recbench_spark.core.arrays import Floats, Floats32, Ints
from recbench_spark.core.compiling import compile_kernel, readonly
from recbench_spark.models.rating.draws import draw_state, fill_normals, uniform


class NormalWishart(NamedTuple):
    """A prior or posterior on the mean and precision of rows.

    A row has k numbers.

    Attributes:
        mean: (k,) m0.
        strength: b0: weight of the prior mean, counted in rows.
        inverse_scale: (k, k) W0^-1.
        degrees: n0, at least k.
    """

    mean: Floats
    strength: float
    inverse_scale: Floats
    degrees: float


def update_prior(prior: NormalWishart, count: int, sums: Floats, products: Floats) -> NormalWishart:
    """Return the conditional given rows.

    Args:
        prior: the distribution without rows.
        count: number of rows.
        sums: their sum (k,).
        products: their summed outer products (k, k).
    """
    mean = sums / max(count, 1)
    scatter = products - count * np.outer(mean, mean)
    away, strength = mean - prior.mean, prior.strength + count
    shrunk = prior.strength * count / strength
    return NormalWishart(
        (prior.strength * prior.mean + sums) / strength,
        strength,
        prior.inverse_scale + scatter + shrunk * np.outer(away, away),
        prior.degrees + count,
    )


def draw_normal_wishart(given: NormalWishart, state: np.uint64) -> tuple[Floats, Floats]:
    """Draw a mean (k,) and a precision (k, k).

    The method is the decomposition by Bartlett (1933).
    """
    return _draw(given, np.uint64(state))


@compile_kernel
def row_sums(
    factors: npt.NDArray[np.floating], biases: npt.NDArray[np.floating], chosen_n: Ints, dims: int
) -> tuple[Floats, Floats]:
    """Return sum (k,) and summed outer products (k, k) of rows.

    A row is (bias, factors), so k = dims + 1. Sums are float64.
    """
    sums, products, row = np.zeros(dims + 1), np.zeros((dims + 1, dims + 1)), np.zeros(dims + 1)
    for n in chosen_n:
        row[0] = biases[n]
        for d in range(dims):
            row[1 + d] = factors[n, d]
        for i in range(dims + 1):
            sums[i] += row[i]
            for j in range(i + 1):
                products[i, j] += row[i] * row[j]
    for i in range(dims + 1):
        products[:i, i] = products[i, :i]
    return sums, products


@compile_kernel
def draw_gamma(shape: float, rate: float, state: np.uint64) -> float:
    """Draw Gamma(shape, rate) by rejection.

    Source: Marsaglia and Tsang 2000; section 6 below a shape of 1.
    """
    if shape < 1:
        return float(_gamma(shape + 1, state) * uniform(state, 0) ** (1 / shape) / rate)
    return float(_gamma(shape, state) / rate)


@compile_kernel
def _gamma(shape: float, state: np.uint64) -> float:
    d = shape - 1 / 3
    c = 1 / math.sqrt(9 * d)
    n = 1
    while True:
        radius = math.sqrt(-2.0 * math.log(uniform(state, n)))
        x = radius * math.cos(2.0 * math.pi * uniform(state, n + 1))
        v = (1 + c * x) ** 3
        if v > 0 and math.log(uniform(state, n + 2)) < 0.5 * x * x + d - d * v + d * math.log(v):
            return d * v
        n += 3


@compile_kernel
def _draw(given: NormalWishart, state: np.uint64) -> tuple[Floats, Floats]:
    """Draw a precision L and a mean m.

    W = R^-T R^-1, R R' = W^-1: L = (R^-T A)(R^-T A)' and m = mean + R A^-T z / sqrt(b).
    """
    k = len(given.mean)
    r = _cholesky(given.inverse_scale)
    a = _bartlett(k, given.degrees, state)
    z = np.zeros((k, 1))
    fill_normals(np.uint64(draw_state(state, 2, 0, 0)), z[:, 0])
    factor, y = _solve_transposed(r, a), _solve_transposed(a, z)[:, 0]
    mean, precision = given.mean.copy(), np.zeros((k, k))
    for i in range(k):
        for j in range(i + 1):
            mean[i] += r[i, j] * y[j] / math.sqrt(given.strength)
            for n in range(k):
                precision[i, j] += factor[i, n] * factor[j, n]
            precision[j, i] = precision[i, j]
    return mean, precision


@compile_kernel
def _bartlett(k: int, degrees: float, state: np.uint64) -> Floats:
    """Return Bartlett's lower triangle from normal draws.

    The diagonal has roots of chi square draws with degrees - i.
    """
    a = np.zeros((k, k))
    for i in range(k):
        fill_normals(np.uint64(draw_state(state, 0, 0, i)), a[i, :i])
        a[i, i] = math.sqrt(draw_gamma((degrees - i) / 2, 0.5, np.uint64(draw_state(state, 1, 0, i))))
    return a


@compile_kernel
def _cholesky(m: Floats) -> Floats:
    """Return R lower with R R' = m."""
    r = np.zeros_like(m)
    for i in range(len(m)):
        for j in range(i + 1):
            rest = m[i, j]
            for n in range(j):
                rest -= r[i, n] * r[j, n]
            r[i, j] = math.sqrt(rest) if i == j else rest / r[j, j]
    return r


@compile_kernel
def _solve_transposed(lower: Floats, b: Floats) -> Floats:
    """Return X with lower' X = b."""
    x = b.copy()
    for i in range(len(lower) - 1, -1, -1):
        for n in range(i + 1, len(lower)):
            for j in range(x.shape[1]):
                x[i, j] -= lower[n, i] * x[n, j]
        for j in range(x.shape[1]):
            x[i, j] /= lower[i, i]
    return x


class Bag(NamedTuple):
    """The features in each row's bag, and each feature's owners.

    Attributes:
        starts_a: (a + 1,) bounds of each bag.
        features_n: (n,) the features, bag after bag.
        starts_j: (j + 1,) bounds of each feature's owners.
        owners_n: (n,) the rows whose bags have the feature, feature after feature.
        weight_a: (a,) x_a.
    """

    starts_a: Ints
    features_n: Ints
    starts_j: Ints
    owners_n: Ints
    weight_a: Floats


class BagPrior(NamedTuple):
    """Prior N(mean, precision^-1) on a feature's numbers, with alpha."""

    mean: Floats
    precision: Floats
    alpha: float


class FeatureDraw(NamedTuple):
    """Key for draws: seed, purpose, sweep.

    `spread` 0 gives conditional means.
    """

    seed: np.uint64
    what: int
    sweep: int
    spread: float = 1.0


COUNT, SUM_O, SUM_OO, SUM_E, SUM_EO, BAG = range(6)
"""Columns in a row's sums: ratings, o, o^2, residual e, e o; and s_a for the current factor."""


def make_bag(a_r: Ints, j_r: Ints, n_a: int, n_j: int) -> Bag:
    """Return each row's bag: its distinct features."""
    pairs = np.unique(a_r * n_j + j_r)
    a_n, j_n = pairs // n_j, pairs % n_j
    by_feature = np.argsort(j_n, kind="stable")
    starts_a = np.searchsorted(a_n, np.arange(n_a + 1))
    starts_j = np.searchsorted(j_n[by_feature], np.arange(n_j + 1))
    weight_a = 1 / np.sqrt(np.maximum(np.diff(starts_a), 1))
    return Bag(starts_a, j_n, starts_j, a_n[by_feature], weight_a)


def bag_sums(bag: Bag, z_jk: Floats) -> tuple[Floats, Floats]:
    """Return s_a (a, d) and the bias (a,) each bag adds.

    The bias is sum_j x_a w_j + 1/2 sum_d (s_ad^2 - sum_j x_a^2 z_jd^2).
    """
    sums_ak, squares_a = _bag_sums(bag, z_jk)
    return sums_ak[:, 1:], sums_ak[:, 0] + (np.square(sums_ak[:, 1:]).sum(axis=1) - squares_a) / 2


@compile_kernel
def _bag_sums(bag: Bag, z_jk: Floats) -> tuple[Floats, Floats]:
    sums_ak, squares_a = np.zeros((len(bag.weight_a), z_jk.shape[1])), np.zeros(len(bag.weight_a))
    for a in range(len(bag.weight_a)):
        x, total = bag.weight_a[a], 0.0
        for n in range(bag.starts_a[a], bag.starts_a[a + 1]):
            j = bag.features_n[n]
            for k in range(z_jk.shape[1]):
                sums_ak[a, k] += x * z_jk[j, k]
            for k in range(1, z_jk.shape[1]):
                total += x * x * z_jk[j, k] ** 2
        squares_a[a] = total
    return sums_ak, squares_a


@compile_kernel
def draw_bag_factor(
    bag: Bag,
    starts_a: Ints,
    o_r: Floats,
    e_r: Floats,
    z_jk: Floats,
    k: int,
    prior: BagPrior,
    draw: FeatureDraw,
) -> None:
    """Draw number k of every feature in place, update the residuals.

    Args:
        bag: features of each row.
        starts_a: (a + 1,) bounds of each row's ratings.
        o_r: (r,) the rating's other factors for this number; ones for the bias (k = 0).
        e_r: (r,) residuals: rating minus prediction.
        z_jk: (j, 1 + d) the features.
        k: index of the number.
        prior: prior of a feature.
        draw: seed, purpose and sweep.
    """
    sums = _row_sums(bag, starts_a, o_r, e_r, z_jk, k)
    before = sums[:, BAG].copy()
    change_a = np.zeros(len(before))
    noise = np.zeros(z_jk.shape[0])
    fill_normals(np.uint64(draw_state(draw.seed, draw.what, draw.sweep, k)), noise)
    for j in range(len(z_jk)):
        if bag.starts_j[j] == bag.starts_j[j + 1]:
            continue
        new = _conditional(bag, sums, z_jk, j, k, prior, noise[j] * draw.spread)
        _replace(bag, sums, change_a, z_jk, j, k, new)
    for a in range(len(before)):
        moved = sums[a, BAG] - before[a]
        for r in range(starts_a[a], starts_a[a + 1]):
            e_r[r] -= moved * o_r[r] + change_a[a]


@compile_kernel
def _row_sums(bag: Bag, starts_a: Ints, o_r: Floats, e_r: Floats, z_jk: Floats, k: int) -> Floats:
    sums, own_j = np.empty((len(bag.weight_a), 6)), z_jk[:, k].copy()
    for a in range(len(sums)):
        o, oo, e, eo, s = 0.0, 0.0, 0.0, 0.0, 0.0
        for r in range(starts_a[a], starts_a[a + 1]):
            o += o_r[r]
            oo += o_r[r] * o_r[r]
            e += e_r[r]
            eo += e_r[r] * o_r[r]
        for n in range(bag.starts_a[a], bag.starts_a[a + 1]):
            s += bag.weight_a[a] * own_j[bag.features_n[n]]
        row = sums[a]
        row[COUNT], row[SUM_O], row[SUM_OO] = starts_a[a + 1] - starts_a[a], o, oo
        row[SUM_E], row[SUM_EO], row[BAG] = e, eo, s
    return sums


@compile_kernel
def _conditional(
    bag: Bag, sums: Floats, z_jk: Floats, j: int, k: int, prior: BagPrior, noise: float
) -> float:
    """Draw z_jk from its conditional; h_r is its derivative.

    Precision p = L_kk + alpha sum h^2, mean
    (L_kk m_k - sum_{l != k} L_kl (z_jl - m_l) + alpha (sum h e + z_jk sum h^2)) / p.
    """
    old, squares, products = z_jk[j, k], 0.0, 0.0
    for n in range(bag.starts_j[j], bag.starts_j[j + 1]):
        a = bag.owners_n[n]
        x, row = bag.weight_a[a], sums[a]
        rest = row[BAG] - x * old if k > 0 else 0.0
        squares += x * x * (row[SUM_OO] + 2 * rest * row[SUM_O] + rest * rest * row[COUNT])
        products += x * (row[SUM_EO] + rest * row[SUM_E])
    pull = prior.precision[k, k] * prior.mean[k]
    for other in range(z_jk.shape[1]):
        if other != k:
            pull -= prior.precision[k, other] * (z_jk[j, other] - prior.mean[other])
    precision = prior.precision[k, k] + prior.alpha * squares
    mean: float = (pull + prior.alpha * (products + old * squares)) / precision
    return mean + noise / math.sqrt(precision)


@compile_kernel
def _replace(bag: Bag, sums: Floats, change_a: Floats, z_jk: Floats, j: int, k: int, new: float) -> None:
    """Store the new number and correct its owners' sums.

    e_r falls by x (new - old) (o_r + rest).
    """
    old = z_jk[j, k]
    z_jk[j, k] = new
    for n in range(bag.starts_j[j], bag.starts_j[j + 1]):
        a = bag.owners_n[n]
        x, row = bag.weight_a[a], sums[a]
        rest = row[BAG] - x * old if k > 0 else 0.0
        step = x * (new - old)
        row[SUM_E] -= step * (row[SUM_O] + rest * row[COUNT])
        row[SUM_EO] -= step * (row[SUM_OO] + rest * row[SUM_O])
        row[BAG] += step
        change_a[a] += step * rest


Sides = tuple[Floats32, Floats32, Floats32, Floats32]
"""Users' factors (n, u, d) and biases (n, u), then the items'."""


def mean_products(sides: Sides, users_b: Ints, items_i: Ints) -> Floats:
    """Return (b, i) means over samples of b_u + b_i + p_u . q_i.

    The float64 sum has a fixed order. A score depends on its user and item alone, not on the block. Only
    the result is held.
    """
    out_bi = np.zeros((len(users_b), len(items_i)))
    tables = tuple(readonly(np.ascontiguousarray(table)) for table in sides)
    users, items = (np.ascontiguousarray(rows, np.int64) for rows in (users_b, items_i))
    _fill_means(tables, users, items, out_bi)
    return out_bi


@compile_kernel
def _fill_means(sides: Sides, users_b: Ints, items_i: Ints, out_bi: Floats) -> None:
    """Sum sample by sample: biases first, then products by dimension."""
    factors_u, biases_u, factors_i, biases_i = sides
    samples, dims = factors_u.shape[0], factors_u.shape[2]
    for b in range(len(users_b)):
        u = users_b[b]
        for at in range(len(items_i)):
            i, total = items_i[at], 0.0
            for n in range(samples):
                score = np.float64(biases_u[n, u]) + np.float64(biases_i[n, i])
                for d in range(dims):
                    score += np.float64(factors_u[n, u, d]) * np.float64(factors_i[n, i, d])
                total += score
            out_bi[b, at] = total / samples
