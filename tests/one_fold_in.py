"""Fold users in: compute the vector of a user whom training has not seen, with fixed item factors.

One ridge regression is solved for each user: the user half-step of alternating least squares. Explicit
(Zhou et al., "Large-scale Parallel Collaborative Filtering for the Netflix Prize", AAIM 2008, section 3.1),
weighted as in Spark MLlib:

    x_u = (Y_u' Y_u + lambda n_u I)^-1 Y_u' r_u        Y_u: the factors of the n_u items rated

Implicit (Hu, Koren and Volinsky, "Collaborative Filtering for Implicit Feedback Datasets", ICDM 2008,
equation 4), with confidence c = 1 + alpha |r| and preference p = 1 where r > 0, else 0:

    x_u = (Y' Y + Y_u' (C_u - I) Y_u + lambda n_u I)^-1 Y_u' C_u p_u        n_u: items with r > 0

A user without items gets zeros in both. By symmetry the same functions fold items in, with fixed user
factors.
"""

from __future__ import annotations

import numpy as np

from recbench_spark.core.arrays import Floats, Ints


def fold_in_explicit(
    offsets: Ints, items: Ints, ratings: Floats, factors_id: Floats, ridge: float
) -> Floats:
    """Compute vectors of users by ridge regression on their ratings. Users without items get zeros.

    Args:
        offsets: (u + 1,) bounds of each user's rows in `items` and `ratings`.
        items: (p,) item indices.
        ratings: (p,) ratings.
        factors_id: (i, d) item factors.
        ridge: lambda, times the number of a user's ratings.

    Returns:
        (u, d) user factors.
    """
    n_u = np.diff(offsets)
    ones = np.ones_like(ratings)
    return _solve_users(offsets, items, (ones, ratings), factors_id, ridge * n_u, gram_dd=None)


def fold_in_implicit(
    offsets: Ints, items: Ints, ratings: Floats, factors_id: Floats, ridge: float, *, alpha: float
) -> Floats:
    """Compute vectors of users by confidence-weighted ridge regression on all items.

    Users without items get zeros.

    Args:
        offsets: (u + 1,) bounds of each user's rows in `items` and `ratings`.
        items: (p,) item indices.
        ratings: (p,) strengths of feedback; confidence is 1 + alpha |rating|.
        factors_id: (i, d) item factors; all of them, for the items a user has not touched.
        ridge: lambda, times the number of a user's positive ratings.
        alpha: growth of confidence.

    Returns:
        (u, d) user factors.
    """
    extra = alpha * np.abs(ratings)
    positive = ratings > 0
    n_u = np.diff(np.concatenate([[0], np.cumsum(positive)])[offsets])
    gram_dd = factors_id.T @ factors_id
    return _solve_users(
        offsets, items, (extra, (1 + extra) * positive), factors_id, ridge * n_u, gram_dd=gram_dd
    )


def _solve_users(
    offsets: Ints,
    items: Ints,
    weights: tuple[Floats, Floats],
    factors_id: Floats,
    ridge_u: Floats,
    *,
    gram_dd: Floats | None,
) -> Floats:
    """Solve (gram + sum_p left_p y_p y_p' + ridge_u I) x = sum_p right_p y_p for each user."""
    factors_id = factors_id.astype(np.float64, copy=False)
    d = factors_id.shape[1]
    vectors_ud = np.zeros((len(offsets) - 1, d))
    for u in np.flatnonzero(np.diff(offsets)):
        rows = slice(offsets[u], offsets[u + 1])
        y_pd, left_p, right_p = factors_id[items[rows]], weights[0][rows], weights[1][rows]
        a_dd = (y_pd.T * left_p) @ y_pd + ridge_u[u] * np.eye(d)
        a_dd = a_dd if gram_dd is None else a_dd + gram_dd
        vectors_ud[u] = _solve_system(a_dd, y_pd.T @ right_p)
    return vectors_ud


def _solve_system(a_dd: Floats, b_d: Floats) -> Floats:
    """Solve a linear system. Return the shortest solution where it is singular (no ridge and few
    ratings).
    """
    try:
        return np.asarray(np.linalg.solve(a_dd, b_d), np.float64)
    except np.linalg.LinAlgError:
        return np.asarray(np.linalg.lstsq(a_dd, b_d, rcond=None)[0], np.float64)
