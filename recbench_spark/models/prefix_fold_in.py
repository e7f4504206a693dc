"""Fold-in of all prefixes: user vectors after 1, 2, ... L items.

A prefix needs one ridge regression, the user half-step of alternating least squares. The ridge grows with
each rating, so no factor carries over from one prefix to the next. But a prefix of l items has only l
unknowns: for l < d the dual system with l rows is solved, and for l >= d the primal one with d rows.

    explicit   x = Y_l' w,          (K_l + ridge_l I) w = r,               K_l = Y_l Y_l'
    implicit   x = Q S_l Z_l' w,    (C_l^-1 + Z_l S_l Z_l') w = C_l^-1 c,  Z_l = Y_l Q

The second line is Woodbury's identity in the eigenbasis Q, g of Y' Y, with S_l = (g + ridge_l)^-1. C_l are
the extra confidences, and c the positive items' confidences. Each solve is one Cholesky factorisation in a
fixed order, so a vector does not depend on other users in its batch.

Axes: u users, p given items, i items, d dimensions, n number of ratings, k place in a history.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from recbench_spark.core.arrays import Bools, Floats, Floats32, Ints
from recbench_spark.core.compiling import compile_kernel
from recbench_spark.errors import DataError

ITEMS_A_BLOCK = 1 << 14
"""Items converted to float64 together: 8 MB at 64 dimensions."""


class ItemSpectrum(NamedTuple):
    """Eigenbasis of all items' Gram matrix.

    One computation per model serves all tasks.

    Attributes:
        values_d: eigenvalues of weight Y' Y, at least 0.
        basis_dd: eigenvectors, one in each column.
    """

    values_d: Floats
    basis_dd: Floats


class WeightedRows(NamedTuple):
    """Given rows as the implicit solve sees them, each (p,).

    Attributes:
        extra_p: confidence beyond that of an item which is not given.
        right_p: weight in the right-hand side.
        counted_p: true for rows the ridge counts.
    """

    extra_p: Floats
    right_p: Floats
    counted_p: Bools


def ridge_per_rating(ridge: float, longest: int, frequency: float = 1.0) -> Floats:
    """Return ridge x n^frequency for n = 0 .. longest.

    ALS uses it, and SGD, which shrinks at each rating.

    >>> ridge_per_rating(0.5, 3).tolist()
    [0.0, 0.5, 1.0, 1.5]
    """
    return ridge * np.arange(longest + 1.0) ** frequency


def ridge_by_frequency(
    ridge: float, longest: int, n_items: int, unobserved_weight: float, frequency: float
) -> Floats:
    """Return ridge (n + weight x items)^frequency for n = 0 .. longest.

    iALS is fitted so. Source: Rendle, Krichene, Zhang and Koren, "Revisiting the performance of iALS on
    item recommendation benchmarks" (RecSys 2022), equation 6.
    """
    return ridge * (np.arange(longest + 1.0) + unobserved_weight * n_items) ** frequency


def decompose_items(factors_id: Floats | Floats32, weight: float = 1.0) -> ItemSpectrum:
    """Compute the eigenbasis of weight x Y' Y.

    The cost is one pass over the items, and a solve with d rows.

    Args:
        factors_id: (i, d) vectors of all items; zeros for those unknown to training.
        weight: alpha_0 of iALS; 1 for implicit ALS.
    """
    gram_dd = np.zeros((factors_id.shape[1], factors_id.shape[1]))
    for begin in range(0, len(factors_id), ITEMS_A_BLOCK):
        block = factors_id[begin : begin + ITEMS_A_BLOCK]
        _add_gram(np.ascontiguousarray(block, np.float64), gram_dd)
    values_d, basis_dd = np.linalg.eigh(weight * gram_dd)
    return ItemSpectrum(np.maximum(values_d, 0.0), np.ascontiguousarray(basis_dd))


def fold_in_prefixes(
    offsets: Ints, items: Ints, targets: Floats, factors_id: Floats | Floats32, ridge_n: Floats
) -> Floats:
    """Compute all prefixes' vectors by ridge regression on the targets.

    A user bias is a column of ones in `factors_id`; the targets are then ratings minus the mean and the
    item biases. A model of pairs alone, such as MF-BPR, has targets of 1.

    Args:
        offsets: (u + 1,) bounds of each user's rows, in the given order.
        items: (p,) item indices.
        targets: (p,) ratings or residuals.
        factors_id: (i, d) item vectors.
        ridge_n: ridge of a user with n ratings, at least up to the longest history.

    Returns:
        (p, d) vectors: row p is the vector after item p.

    Raises:
        DataError: the table of ridges is too short, or an entry for one rating or more is not above 0.
    """
    _check_ridges(offsets, ridge_n)
    vectors_pd = np.zeros((len(items), factors_id.shape[1]))
    arrays = (offsets.astype(np.int64), items.astype(np.int64), targets.astype(np.float64))
    _fold_explicit(*arrays, factors_id, ridge_n, vectors_pd)
    return vectors_pd


def fold_in_implicit_prefixes(
    offsets: Ints,
    items: Ints,
    ratings: Floats,
    factors_id: Floats | Floats32,
    spectrum: ItemSpectrum,
    *,
    ridge_n: Floats,
    alpha: float,
) -> Floats:
    """Compute all prefixes' vectors by confidence-weighted ridge regression.

    The regression runs over all items. As in Spark's ALS, the confidence is 1 + alpha |rating|, and all
    items have the weight 1.

    Args:
        offsets: (u + 1,) bounds of each user's rows, in the given order.
        items: (p,) item indices.
        ratings: (p,) strengths of feedback; an item counts as liked where its rating is above 0.
        factors_id: (i, d) item vectors.
        spectrum: eigenbasis of all items (`decompose_items`).
        ridge_n: ridge of a user with n liked items.
        alpha: growth of confidence.

    Returns:
        (p, d) vectors: row p is the vector after item p.
    """
    extra_p = alpha * np.abs(ratings.astype(np.float64))
    liked_p = ratings > 0
    rows = WeightedRows(extra_p, (1 + extra_p) * liked_p, liked_p)
    return _solve_implicit(offsets, items, rows, factors_id, spectrum, ridge_n=ridge_n)


def fold_in_ials_prefixes(
    offsets: Ints, items: Ints, factors_id: Floats | Floats32, spectrum: ItemSpectrum, ridge_n: Floats
) -> Floats:
    """Compute all prefixes' vectors as iALS is fitted.

    Pairs alone count: x = (alpha_0 Y' Y + Y_l' Y_l + ridge_l I)^-1 Y_l' 1. `spectrum` has the weight
    alpha_0, and `ridge_by_frequency` gives the ridges.

    Args:
        offsets: (u + 1,) bounds of each user's rows, in the given order.
        items: (p,) item indices.
        factors_id: (i, d) item vectors.
        spectrum: eigenbasis of all items with weight alpha_0.
        ridge_n: ridge of a user with n items.

    Returns:
        (p, d) vectors: row p is the vector after item p.
    """
    ones = np.ones(len(items))
    rows = WeightedRows(ones, ones, ones > 0)
    return _solve_implicit(offsets, items, rows, factors_id, spectrum, ridge_n=ridge_n)


def _solve_implicit(
    offsets: Ints,
    items: Ints,
    rows: WeightedRows,
    factors_id: Floats | Floats32,
    spectrum: ItemSpectrum,
    *,
    ridge_n: Floats,
) -> Floats:
    """Solve for all prefixes, user by user."""
    _check_ridges(offsets, ridge_n)
    vectors_pd = np.zeros((len(items), factors_id.shape[1]))
    places = (offsets.astype(np.int64), items.astype(np.int64))
    _fold_implicit(*places, rows, factors_id, spectrum, ridge_n, vectors_pd)
    return vectors_pd


def _check_ridges(offsets: Ints, ridge_n: Floats) -> None:
    longest = int(np.diff(offsets).max(initial=0))
    if len(ridge_n) <= longest:
        raise DataError(f"a history has {longest} rows, and ridges are given up to {len(ridge_n) - 1}")
    if not (ridge_n[1:] > 0).all():
        raise DataError("a ridge of 0 leaves short histories without a solution", "set it above 0")


# ------------------------------------------------------------------------------- compiled loops


@compile_kernel
def _add_gram(factors_id: Floats | Floats32, gram_dd: Floats) -> None:
    """Add Y' Y item by item, independent of a library's blocks."""
    for row in factors_id:
        for a in range(len(row)):
            for b in range(len(row)):
                gram_dd[a, b] += row[a] * row[b]


@compile_kernel
def _solve_in_place(matrix: Floats, right: Floats, n: int) -> None:
    """Solve matrix x = right for the first n rows, by Cholesky.

    The upper triangle gets L', so inner loops run over neighbouring numbers; `right` gets x.
    """
    for k in range(n):
        pivot = matrix[k, k]
        if not pivot > 0.0:
            return
        scale = 1.0 / np.sqrt(pivot)
        for j in range(k, n):
            matrix[k, j] *= scale
        for i in range(k + 1, n):
            factor = matrix[k, i]
            for j in range(i, n):
                matrix[i, j] -= factor * matrix[k, j]
    for k in range(n):
        right[k] /= matrix[k, k]
        for j in range(k + 1, n):
            right[j] -= matrix[k, j] * right[k]
    for k in range(n - 1, -1, -1):
        total = right[k]
        for j in range(k + 1, n):
            total -= matrix[k, j] * right[j]
        right[k] = total / matrix[k, k]


@compile_kernel
def _fill_kernel(rows_dk: Floats, scale_d: Floats, n: int, kernel: Floats) -> None:
    """Set the upper triangle to sum_d scale_d y_dk y_dj.

    The inner loop runs over neighbouring items. Four dimensions are added at once, so a sum is loaded and
    stored once per four.
    """
    for k in range(n):
        for j in range(k, n):
            kernel[k, j] = 0.0
    whole = len(scale_d) // 4 * 4
    for d in range(0, whole, 4):
        a, b, c, e = rows_dk[d], rows_dk[d + 1], rows_dk[d + 2], rows_dk[d + 3]
        for k in range(n):
            fa, fb, fc = scale_d[d] * a[k], scale_d[d + 1] * b[k], scale_d[d + 2] * c[k]
            fe = scale_d[d + 3] * e[k]
            for j in range(k, n):
                kernel[k, j] += (fa * a[j] + fb * b[j]) + (fc * c[j] + fe * e[j])
    for d in range(whole, len(scale_d)):
        for k in range(n):
            factor = scale_d[d] * rows_dk[d, k]
            for j in range(k, n):
                kernel[k, j] += factor * rows_dk[d, j]


@compile_kernel
def _fold_explicit(
    offsets: Ints,
    items: Ints,
    targets: Floats,
    factors_id: Floats | Floats32,
    ridge_n: Floats,
    out_pd: Floats,
) -> None:
    """Fill all prefixes' vectors, user by user."""
    dims = factors_id.shape[1]
    for u in range(len(offsets) - 1):
        start, length = offsets[u], offsets[u + 1] - offsets[u]
        rows_kd = np.empty((length, dims))
        for k in range(length):
            for d in range(dims):
                rows_kd[k, d] = factors_id[items[start + k], d]
        targets_k, out_kd = targets[start : start + length], out_pd[start : start + length]
        dual = min(length, dims - 1)
        _fold_dual(rows_kd[:dual], targets_k, ridge_n, out_kd)
        if length >= dims:
            ones = np.ones(length)
            _fold_primal(rows_kd, ones, targets_k, ones, np.zeros(dims), ridge_n, out_kd)


@compile_kernel
def _fold_dual(rows_kd: Floats, targets_k: Floats, ridge_n: Floats, out_kd: Floats) -> None:
    """Fill prefixes shorter than d: systems with one row per item."""
    longest, dims = rows_kd.shape
    kernel, system, right = np.empty((longest, longest)), np.empty((longest, longest)), np.empty(longest)
    _fill_kernel(np.ascontiguousarray(rows_kd.T), np.ones(dims), longest, kernel)
    for n in range(1, longest + 1):
        for k in range(n):
            right[k] = targets_k[k]
            for j in range(k, n):
                system[k, j] = kernel[k, j]
            system[k, k] += ridge_n[n]
        _solve_in_place(system, right, n)
        _add_rows(rows_kd, right, n, out_kd[n - 1])


@compile_kernel
def _add_rows(rows_kd: Floats, weight_k: Floats, n: int, out_d: Floats) -> None:
    """Add the first n weighted rows, four at once, in order."""
    whole = n // 4 * 4
    for k in range(0, whole, 4):
        a, b, c, e = rows_kd[k], rows_kd[k + 1], rows_kd[k + 2], rows_kd[k + 3]
        wa, wb, wc, we = weight_k[k], weight_k[k + 1], weight_k[k + 2], weight_k[k + 3]
        for d in range(len(out_d)):
            out_d[d] += (wa * a[d] + wb * b[d]) + (wc * c[d] + we * e[d])
    for k in range(whole, n):
        for d in range(len(out_d)):
            out_d[d] += weight_k[k] * rows_kd[k, d]


@compile_kernel
def _fold_primal(
    rows_kd: Floats,
    left_k: Floats,
    right_k: Floats,
    counted_k: Floats,
    base_d: Floats,
    ridge_n: Floats,
    out_kd: Floats,
) -> None:
    """Fill prefixes with at least d items: systems with d rows.

    The system is diag(base) + sum_k left_k y_k y_k' + ridge I. The sums grow by one item for each prefix.
    """
    length, dims = rows_kd.shape
    gram, total = np.zeros((dims, dims)), np.zeros(dims)
    system, solution = np.empty((dims, dims)), np.empty(dims)
    counted = 0
    for k in range(length):
        counted += int(counted_k[k])
        for a in range(dims):
            factor = left_k[k] * rows_kd[k, a]
            total[a] += right_k[k] * rows_kd[k, a]
            for b in range(a, dims):
                gram[a, b] += factor * rows_kd[k, b]
        if k + 1 < dims:
            continue
        for a in range(dims):
            solution[a] = total[a]
            for b in range(a, dims):
                system[a, b] = gram[a, b]
            system[a, a] += base_d[a] + ridge_n[counted]
        _solve_in_place(system, solution, dims)
        for a in range(dims):
            out_kd[k, a] = solution[a]


@compile_kernel
def _fold_implicit(
    offsets: Ints,
    items: Ints,
    rows: WeightedRows,
    factors_id: Floats | Floats32,
    spectrum: ItemSpectrum,
    ridge_n: Floats,
    out_pd: Floats,
) -> None:
    """Fill all prefixes' vectors, user by user, in the items' eigenbasis."""
    dims = factors_id.shape[1]
    values_d, basis_dd = spectrum
    extra_p, right_p, counted_p = rows
    back_dd, given_d = np.ascontiguousarray(basis_dd.T), np.empty(dims)
    for u in range(len(offsets) - 1):
        start, length = offsets[u], offsets[u + 1] - offsets[u]
        rows_kd, rotated_kd = np.zeros((length, dims)), np.zeros((length, dims))
        for k in range(length):
            for d in range(dims):
                given_d[d] = factors_id[items[start + k], d]
            _add_rows(basis_dd, given_d, dims, rows_kd[k])
        extra, right = extra_p[start : start + length], right_p[start : start + length]
        counted = counted_p[start : start + length]
        dual = min(length, dims - 1)
        _fold_woodbury(rows_kd[:dual], extra, right, counted, values_d, ridge_n, rotated_kd[:dual])
        if length >= dims:
            _fold_primal(rows_kd, extra, right, counted.astype(np.float64), values_d, ridge_n, rotated_kd)
        for k in range(length):
            _add_rows(back_dd, rotated_kd[k], dims, out_pd[start + k])


@compile_kernel
def _fold_woodbury(
    rows_kd: Floats,
    extra_k: Floats,
    right_k: Floats,
    counted_k: Bools,
    values_d: Floats,
    ridge_n: Floats,
    out_kd: Floats,
) -> None:
    """Fill prefixes shorter than d in the eigenbasis.

    Systems have one row per item. With s the root of the extra weights and K = Z S Z': (I + s K s) t = s K
    c, and w = c - s t. So an item without extra weight needs no division.
    """
    longest, dims = rows_kd.shape
    rows_dk = np.ascontiguousarray(rows_kd.T)
    kernel, system = np.empty((longest, longest)), np.empty((longest, longest))
    solution, weight_k, shrink_d = np.empty(longest), np.empty(longest), np.empty(dims)
    root_k = np.sqrt(extra_k)
    counted = 0
    for n in range(1, longest + 1):
        counted += int(counted_k[n - 1])
        if counted == 0:
            continue
        for d in range(dims):
            shrink_d[d] = 1.0 / (values_d[d] + ridge_n[counted])
        _fill_kernel(rows_dk, shrink_d, n, kernel)
        for k in range(n):
            product = 0.0
            for j in range(n):
                product += kernel[min(k, j), max(k, j)] * right_k[j]
            solution[k] = root_k[k] * product
            for j in range(k, n):
                system[k, j] = root_k[k] * kernel[k, j] * root_k[j]
            system[k, k] += 1.0
        _solve_in_place(system, solution, n)
        for k in range(n):
            weight_k[k] = right_k[k] - root_k[k] * solution[k]
        _add_rows(rows_kd, weight_k, n, out_kd[n - 1])
        for d in range(dims):
            out_kd[n - 1, d] *= shrink_d[d]
