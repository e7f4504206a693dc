"""Users with several rows: batches are cut between users.

Rows of one user follow one another, those without a query first. Axes: q rows (a question each).
"""

from __future__ import annotations

from itertools import chain, pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.core.arrays import Ints
from recbench_spark.core.columns import QUERY_ID
from recbench_spark.core.streams import Batches


def number_users(batch: pa.RecordBatch) -> Ints:
    """Number the rows' users by part, from 0, (q,)."""
    new = np.zeros(batch.num_rows, np.int64)
    for name in ("user_id", "part"):
        column = batch.column(name)
        new[1:] |= pc.not_equal(column[1:], column[:-1]).to_numpy(zero_copy_only=False)
    return np.cumsum(new)


def has_questions(batch: pa.RecordBatch) -> bool:
    """Tell whether rows have queries."""
    return QUERY_ID in batch.schema.names and batch.column(QUERY_ID).null_count < batch.num_rows


def keep_users_whole(batches: Batches) -> Batches:
    """Cut batches with queries between users; others stay as they are.

    A user's rows without a query come first: a batch of such rows is one with queries if the next one goes
    on with its last user.
    """
    pending: list[pa.RecordBatch] = []
    for batch, following in pairwise(chain(batches, [None])):
        assert batch is not None
        is_cut = following is not None and _continues_user(batch, following)
        if not (pending or is_cut or has_questions(batch)):
            yield batch
            continue
        if pending and not _continues_user(pending[-1], batch):
            yield pa.concat_batches(pending)
            pending = []
        user_q = number_users(batch)
        start = int(np.searchsorted(user_q, user_q[-1]))
        if start:
            yield pa.concat_batches([*pending, batch.slice(0, start)])
            pending = []
        pending.append(batch.slice(start))
    if pending:
        yield pa.concat_batches(pending)


def _continues_user(one: pa.RecordBatch, other: pa.RecordBatch) -> bool:
    names = ("user_id", "part")
    has_rows = bool(one.num_rows and other.num_rows) and QUERY_ID in one.schema.names
    return has_rows and all(one.column(name)[-1] == other.column(name)[0] for name in names)
