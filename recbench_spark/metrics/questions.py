"""Questions: several rankings for one user, by query.

Rows of one user follow one another. Axes: q rows (a question each), u users, c columns.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from recbench_spark.core import resampling
from recbench_spark.core.arrays import Floats, Ints
from recbench_spark.engine.whole_users import has_questions, number_users


@dataclass(frozen=True)
class Owners:
    """Users behind some rows.

    keys_q: hashed user ids, (q,); user_q: each row's user, numbered from 0 in row order, (q,); None: every
    row is its own user.
    """

    keys_q: Ints
    user_q: Ints | None = None

    def take(self, rows: Ints) -> Owners:
        """Return the owners for some rows, in row order."""
        user_q = None if self.user_q is None else np.unique(self.user_q[rows], return_inverse=True)[1]
        return Owners(self.keys_q[rows], user_q)

    def weigh(self, values_qc: Floats, weigh: str) -> tuple[Owners, Floats]:
        """Return what enters the means: users' means, or all rows.

        Args:
            values_qc: a row's values; NaN: left out.
            weigh: the definition's axis: users or rows.
        """
        if weigh == "rows":  # the same moments in a piece where nobody has two rows
            user_q = np.arange(len(self.keys_q)) if self.user_q is None else self.user_q
            return Owners(self.keys_q, user_q), values_qc
        if self.user_q is None:
            return self, values_qc
        first_u = np.flatnonzero(np.diff(self.user_q, prepend=-1))
        return Owners(self.keys_q[first_u]), average_rows(self.user_q, values_qc)

    def moments(self, values_qc: Floats) -> Ints:
        """Return moments for means and errors: (c, 5), (c, 12) for rows alike.

        `resampling.moments` has the first 5, and `resampling.ratio_moments` the others.
        """
        plain = resampling.moments(values_qc)
        if self.user_q is None:
            return plain
        return np.concatenate([plain, resampling.ratio_moments(*_sum_rows(self.user_q, values_qc))], axis=1)


MOMENTS = 5
"""Moments for means over users; those over rows have more."""


def average_moments(moments: Ints) -> tuple[Floats, Floats, Ints, Ints]:
    """Return means, standard errors, averaged rows and users, (c,) each.

    `moments`: those of `Owners.moments`.
    """
    if moments.shape[1] == MOMENTS:
        value, stderr, n = resampling.mean_and_error(moments)
        return value, stderr, n, n
    return resampling.row_mean_and_error(moments)


def average_rows(user_q: Ints, values_qc: Floats) -> Floats:
    """Average each user's rows, (u, c); NaN where all are left out."""
    sums, counts = _sum_rows(user_q, values_qc)
    means: Floats = np.full(sums.shape, np.nan)
    np.divide(sums, counts, out=means, where=counts > 0)
    return means


def average_questions(
    batch: pa.RecordBatch, values_qc: Floats, relevant_q: pa.Array
) -> tuple[pa.RecordBatch, Floats, pa.Array]:
    """Return each user's first row, mean values, and relevant items."""
    user_q = number_users(batch)
    first_u = np.flatnonzero(np.diff(user_q, prepend=-1))
    relevant_u = np.add.reduceat(relevant_q.to_numpy(), first_u)
    return batch.take(pa.array(first_u)), average_rows(user_q, values_qc), pa.array(relevant_u, pa.int32())


def _sum_rows(user_q: Ints, values_qc: Floats) -> tuple[Floats, Floats]:
    """Return each user's sums and counted rows, (u, c) each.

    Rows add up one by one, in their order.
    """
    valid = ~np.isnan(values_qc)
    shape = (int(user_q[-1]) + 1 if len(user_q) else 0, values_qc.shape[1])
    sums, counts = np.zeros(shape), np.zeros(shape)
    np.add.at(sums, user_q, np.where(valid, values_qc, 0.0))
    np.add.at(counts, user_q, valid.astype(np.float64))
    return sums, counts


def read_owners(batch: pa.RecordBatch) -> Owners:
    """Read the owners from one part's rows of `RANKED_USERS`."""
    keys = batch.column("user_key").to_numpy()
    return Owners(keys, number_users(batch) if has_questions(batch) else None)
