"""Scores averaged over several factor samples.

A score is the mean over samples of biases and products. Axes: n samples, u users, i items, b users in a
block, d dimensions.
"""

from __future__ import annotations

import numpy as np

from recbench_spark.core.arrays import Floats, Floats32, Ints
from recbench_spark.core.compiling import compile_kernel, readonly

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
