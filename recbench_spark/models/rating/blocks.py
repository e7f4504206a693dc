"""Draws of whole factor rows from their normal conditional distribution.

Row a has a bias w_a and factors v_a. Its ratings are t_r = w_a + v_a . h_r + noise with precision alpha,
where h_r and t_r follow from all other rows. With the prior N(m, L^-1) on (w_a, v_a), its conditional has
precision P = L + alpha sum_r (1, h_r)(1, h_r)' and mean P^-1 (L m + alpha sum_r t_r (1, h_r))
(Salakhutdinov and Mnih 2008, equations 11 to 13). Here P / alpha = U'U is factored row by row of U, the
bias first. A draw is U^-1 (U'^-1 rhs + z / sqrt(alpha)) with z standard normal.

Axes: a drawn rows, b and c rows on the two other sides, r ratings in the order of a, d factors (padded).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from recbench_spark.core.arrays import Floats, Floats32, Ints, Ints32
from recbench_spark.core.compiling import compile_kernel
from recbench_spark.models.rating.draws import draw_state, fill_normals
from recbench_spark.models.rating.simd import (
    DEEP,
    add_gram,
    add_rows,
    dot_rows,
    fetch_row,
    subtract_gram,
    zero_rows,
)

AHEAD = 16
"""Prefetch distance: how many ratings ahead the second side's rows are loaded."""

BLOCK = 128
"""Number of rows a thread takes at a time."""


class FactorSide(NamedTuple):
    """Factors and biases of one side, or its bag sums.

    Attributes:
        factors: (a + 1, d) float32; the last row is for unseen users, items or days.
        biases: (a + 1,) float32.
    """

    factors: Floats32
    biases: Floats32


class Grouped(NamedTuple):
    """Ratings sorted by one side, ready for its draws.

    Attributes:
        starts_a: (a + 1,) bounds of each row's ratings.
        b_r: (r,) row on the second side.
        c_r: (r,) row on the third side; 0 if there is none.
        targets_r: (r,) rating minus the overall mean.
        order_r: (r,) index of the rating in the log.
    """

    starts_a: Ints
    b_r: Ints32
    c_r: Ints32
    targets_r: Floats32
    order_r: Ints


class Prior(NamedTuple):
    """The prior N(m, L^-1) in the kernel's form, divided by alpha.

    The bias comes first.

    Attributes:
        rows: (d + 2, d) start of the matrix: L_0., L_i. for each factor, L m, all without their first
            column and divided by alpha.
        dims: number of factors without padding.
        bias: L_00 / alpha.
        rhs: (L m)_0 / alpha.
        spread: 1 / sqrt(alpha); 0 gives the conditional mean instead of a draw.
        ridge_a: (a,) value to add to each row's diagonal, bias included; empty if nothing.
    """

    rows: Floats32
    dims: int
    bias: float
    rhs: float
    spread: float
    ridge_a: Floats32


class DrawKey(NamedTuple):
    """Key for random draws: a seed, a purpose and a sweep."""

    seed: np.uint64
    what: int
    sweep: int


def group(a_r: Ints, n_a: int, others: list[Ints32], targets_r: Floats32) -> Grouped:
    """Sort ratings by side a (stable), ready to draw its rows."""
    order_r = np.argsort(a_r, kind="stable")
    starts_a = np.searchsorted(a_r[order_r], np.arange(n_a + 1))
    b_r = others[0][order_r]
    c_r = others[1][order_r] if len(others) > 1 else np.zeros(len(a_r), np.int32)
    return Grouped(starts_a, b_r, c_r, targets_r[order_r], order_r)


def make_prior(mean: Floats, precision: Floats, alpha: float, length: int, spread: float = 1.0) -> Prior:
    """Return a row's normal prior in the kernel's form.

    `length` is a padded row's length.
    """
    d = len(mean) - 1
    rows, weighed = zero_rows(length + 2, length), precision @ mean / alpha
    rows[: d + 1, :d] = precision[:, 1:] / alpha
    rows[length + 1, :d] = weighed[1:]
    nothing = np.zeros(0, np.float32)
    return Prior(
        rows, d, float(precision[0, 0] / alpha), float(weighed[0]), spread / math.sqrt(alpha), nothing
    )


def draw_side(
    own: FactorSide,
    fixed: FactorSide,
    b: FactorSide,
    c: FactorSide,
    ratings: Grouped,
    *,
    prior: Prior,
    key: DrawKey,
    threads: int = 1,
) -> None:
    """Draw all rows of `own` with ratings, in place.

    Other rows stay.

    Args:
        own: side to draw.
        fixed: bag sums of the same rows, which stay; an empty table if there are none.
        b: current state of the second side.
        c: current state of the third side; a one-row table if there is none.
        ratings: in the order of `own`.
        prior: prior of a row.
        key: key of the draws.
        threads: they share the rows and change no bit.
    """

    def draw(start: int) -> None:
        stop = min(start + BLOCK, len(ratings.starts_a) - 1)
        work = zero_rows(2 * DEEP + 2 + len(prior.rows), own.factors.shape[1])
        _draw_rows(own, fixed, (b, c), ratings, prior, key, (start, stop, work))

    in_threads(draw, range(0, len(ratings.starts_a) - 1, BLOCK), threads)


def in_threads(work: Callable[[int], None], starts: range, threads: int) -> None:
    """Call `work` with each start, on this thread or on several."""
    if threads <= 1:
        for start in starts:
            work(start)
        return
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, starts))


@compile_kernel
def _draw_rows(
    own: FactorSide,
    fixed: FactorSide,
    others: tuple[FactorSide, FactorSide],
    ratings: Grouped,
    prior: Prior,
    key: DrawKey,
    place: tuple[int, int, Floats32],
) -> None:
    """Draw rows start to stop.

    `work` holds the matrix, right side, solution, h for DEEP ratings, and z.
    """
    start, stop, work = place
    length = work.shape[1]
    matrix, h = work[: length + 2 + DEEP], work[length + 2 + DEEP : length + 2 + 2 * DEEP]
    z = work[length + 2 + 2 * DEEP :].ravel()
    for a in range(start, stop):
        count = ratings.starts_a[a + 1] - ratings.starts_a[a]
        if count == 0:
            continue
        _copy(prior.rows, matrix)
        bias = prior.bias + _add_ridge(matrix, prior, a)
        total = _add_ratings(matrix, h, fixed, others, ratings, a)
        fill_normals(np.uint64(draw_state(key.seed, key.what, key.sweep, a)), z[: prior.dims + 1])
        pivot = np.float32(math.sqrt(bias + count))
        y0 = np.float32(prior.rhs + total) / pivot
        _factor(matrix, prior.dims, pivot, y0)
        own.biases[a] = _solve_back(matrix, z, prior, pivot, y0)
        for n in range(length):
            own.factors[a, n] = matrix[length + 3, n]


@compile_kernel
def _add_ratings(
    matrix: Floats32,
    h: Floats32,
    fixed: FactorSide,
    others: tuple[FactorSide, FactorSide],
    ratings: Grouped,
    a: int,
) -> float:
    """Add a row's ratings to its matrix; return sum of t_r.

    h_r' goes to the first row, h_r h_r' to the others and t_r h_r' to the last.
    """
    total, zero, length = 0.0, np.float32(0), h.shape[1]
    t, ones = np.zeros(DEEP, np.float32), np.ones(DEEP, np.float32)
    last = ratings.starts_a[a + 1]
    for r in range(ratings.starts_a[a], last, DEEP):
        for n in range(DEEP):
            if r + n + AHEAD < len(ratings.b_r):
                fetch_row(others[0].factors, np.uint32(ratings.b_r[r + n + AHEAD]))
            if r + n < last:
                t[n] = _fill_fixed_part(h, n, fixed, others, ratings, (a, r + n))
                total += np.float64(t[n])
            else:
                t[n] = zero
                for d in range(length):
                    h[n, d] = zero
        add_rows(matrix, 0, h, 0, 0, _eight(ones))
        add_gram(matrix, 1, h, 0)
        add_rows(matrix, length + 1, h, 0, 0, _eight(t))
    return total


@compile_kernel
def _fill_fixed_part(
    h: Floats32,
    n: int,
    fixed: FactorSide,
    others: tuple[FactorSide, FactorSide],
    ratings: Grouped,
    which: tuple[int, int],
) -> np.float32:
    """Set h_n = b + c + fixed; return t_r.

    t_r is the rating minus what the other sides alone explain.
    """
    a, r = which
    # Unsigned, so compiled code does not test each index for a negative value.
    b, c = np.uint32(ratings.b_r[r]), np.uint32(ratings.c_r[r])
    second, third = others
    target = ratings.targets_r[r] - second.biases[b]
    for d in range(h.shape[1]):
        h[n, d] = second.factors[b, d]
    if len(third.biases) > 1:
        target -= third.biases[c] + dot_rows(h, n, third.factors, c, 0)
        for d in range(h.shape[1]):
            h[n, d] += third.factors[c, d]
    if len(fixed.biases) > 1:
        target -= fixed.biases[a] + dot_rows(h, n, fixed.factors, a, 0)
        for d in range(h.shape[1]):
            h[n, d] += fixed.factors[a, d]
    return np.float32(target)


@compile_kernel
def _factor(matrix: Floats32, dims: int, pivot: np.float32, y0: np.float32) -> None:
    """Compute U in place: bias row, then eight at once.

    U'^-1 rhs goes behind the right side.
    """
    rhs, spare = matrix.shape[1] + 1, matrix.shape[1] + 2
    _scale(matrix[0], np.float32(1) / pivot)
    for n in range(matrix.shape[1]):
        matrix[rhs, n] -= y0 * matrix[0, n]
        matrix[spare, n] = matrix[0, n]
        for m in range(1, DEEP):
            matrix[spare + m, n] = np.float32(0)
    subtract_gram(matrix, 1, matrix, spare, 0)
    for n in range(matrix.shape[1]):
        matrix[spare, n] = np.float32(0)
    for k in range(0, dims, DEEP):
        for i in range(k, min(k + DEEP, dims)):
            if i > k:
                add_rows(matrix, 1 + i, matrix, 1 + k, i, _before(matrix, k, i))
            scale = np.float32(1) / np.float32(math.sqrt(matrix[1 + i, i]))
            _scale(matrix[1 + i], scale)
            matrix[spare, i] = matrix[rhs, i] * scale
            for n in range(i + 1, min(k + DEEP, dims)):
                matrix[rhs, n] -= matrix[spare, i] * matrix[1 + i, n]
        subtract_gram(matrix, 1, matrix, 1 + k, k + DEEP)
        add_rows(matrix, rhs, matrix, 1 + k, k + DEEP, _minus_eight(matrix[spare], k))


@compile_kernel
def _solve_back(
    matrix: Floats32, z: Floats32, prior: Prior, pivot: np.float32, y0: np.float32
) -> np.float32:
    """Solve U x = y + noise; return the bias.

    The factors go into the row behind y.
    """
    y, x, spread = matrix.shape[1] + 2, matrix.shape[1] + 3, np.float32(prior.spread)
    for n in range(matrix.shape[1]):
        matrix[x, n] = np.float32(0)
    for i in range(prior.dims - 1, -1, -1):
        product = dot_rows(matrix, 1 + i, matrix, x, i)
        matrix[x, i] = (matrix[y, i] + spread * z[1 + i] - product) / matrix[1 + i, i]
    return np.float32((y0 + spread * z[0] - dot_rows(matrix, 0, matrix, x, 0)) / pivot)


@compile_kernel
def _add_ridge(matrix: Floats32, prior: Prior, a: int) -> float:
    """Add a row's ridge to the diagonal; return the bias's part."""
    if len(prior.ridge_a) == 0:
        return 0.0
    for d in range(prior.dims):
        matrix[1 + d, d] += prior.ridge_a[a]
    return float(prior.ridge_a[a])


@compile_kernel
def _copy(rows: Floats32, out: Floats32) -> None:
    for i in range(len(rows)):
        for n in range(rows.shape[1]):
            out[i, n] = rows[i, n]


@compile_kernel
def _scale(row: Floats32, by: np.float32) -> None:
    for n in range(len(row)):
        row[n] *= by


@compile_kernel
def _eight(t: Floats32) -> tuple[np.float32, ...]:
    return (t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7])


@compile_kernel
def _minus_eight(t: Floats32, k: int) -> tuple[np.float32, ...]:
    return (-t[k], -t[k + 1], -t[k + 2], -t[k + 3], -t[k + 4], -t[k + 5], -t[k + 6], -t[k + 7])


@compile_kernel
def _before(matrix: Floats32, k: int, i: int) -> tuple[np.float32, ...]:
    """Return minus column i of U for factors k to k + 7.

    Those from i on are 0.
    """
    zero = np.float32(0)
    return (
        -matrix[1 + k, i],
        -matrix[2 + k, i] if k + 1 < i else zero,
        -matrix[3 + k, i] if k + 2 < i else zero,
        -matrix[4 + k, i] if k + 3 < i else zero,
        -matrix[5 + k, i] if k + 4 < i else zero,
        -matrix[6 + k, i] if k + 5 < i else zero,
        -matrix[7 + k, i] if k + 6 < i else zero,
        zero,
    )
