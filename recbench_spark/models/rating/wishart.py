"""Draws for a side's common mean and precision, and the noise's.

Rows theta ~ N(m, L^-1), L ~ Wishart(W0, n0), m ~ N(m0, (b0 L)^-1). Given N rows the conditional has the
same form (Salakhutdinov and Mnih 2008, equation 14). Each matrix is as wide as a row is long. Loops are
explicit, so the threads of a linear algebra library cannot change bits.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from recbench_spark.core.arrays import Floats, Ints
from recbench_spark.core.compiling import compile_kernel
from recbench_spark.models.rating.normals import draw_state, fill_normals, uniform


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
