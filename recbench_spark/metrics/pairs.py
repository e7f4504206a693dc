"""Item-to-item metrics: hit rate and scaled reciprocal rank.

They need no Spark. A query is a user, and a labelled pair is one of its truth items. Hit rate at K and the
scaled mean reciprocal rank, mean 1 / ceil(R / 100) (Ying et al. 2018, section 4.2). Axes: u queries, p
pairs, c MRR and cut-offs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import partial

import numpy as np
import pyarrow as pa

from recbench_spark.core import sums
from recbench_spark.core.arrays import Floats, Ints
from recbench_spark.core.streams import Batches
from recbench_spark.engine.measures import Measure
from recbench_spark.metrics.accuracy import HOLDOUT
from recbench_spark.metrics.list_rows import user_batch
from recbench_spark.metrics.result import PART
from recbench_spark.ranking.batch_schemas import METRIC_ROWS
from recbench_spark.schemas import METRICS
from recbench_spark.storage.shared_arrays import flatten_lists

SCALE = 100
"""Ranks sharing one reciprocal value: 1 to 100 count 1, 101 to 200 count 1/2."""

HIT_RATE, SCALED_MRR = "hit_rate", "scaled_mrr"

DEFINITION = "v1 candidates=all_but_query pairs"

TOTALS = pa.schema({"sums": pa.list_(pa.int64())})
"""One row per task: exact sums over its queries (`core.sums`)."""


def query_values(batch: pa.RecordBatch, ks: Sequence[int]) -> tuple[Ints, Floats]:
    """Return each query's number of pairs, (u,), and summed values, (u, c).

    Sums are in item order.

    Args:
        batch: rows of `RANKED_USERS`; an item without a rank is a miss.
        ks: cut-offs for the hit rate.
    """
    offsets, above_p = flatten_lists(batch.column("above"))
    before_p = flatten_lists(batch.column("before"))[1]
    rank_p = np.where(above_p >= 0, above_p + before_p + 1, np.iinfo(np.int64).max)
    values = [np.where(above_p >= 0, 1.0 / np.ceil(rank_p / SCALE), 0.0)]
    values += [(rank_p <= k).astype(np.float64) for k in ks]
    user_p = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    columns = [np.bincount(user_p, weights, len(offsets) - 1) for weights in values]
    return np.diff(offsets), np.stack(columns, axis=1)


def value_batches(ks: Sequence[int], batches: Batches) -> Batches:
    """Average over each query's pairs: `USER_VALUES` from `RANKED_USERS`."""
    for batch in batches:
        n_u, values_uc = query_values(batch, ks)
        mean_uc = values_uc / n_u[:, None]
        relevant = pa.array(n_u, pa.int32())
        ids, parts = batch.column("user_id"), pa.repeat(PART, len(n_u))
        for metric, cuts, values in ((SCALED_MRR, [None], mean_uc[:, :1]), (HIT_RATE, ks, mean_uc[:, 1:])):
            yield user_batch(ids, parts, metric, values, relevant, ks=cuts, definition=DEFINITION)


def pair_measure(ks: Sequence[int]) -> Measure:
    """Return the measure for all pairs: rows of `metrics`.

    ks: cut-offs for the hit rate.
    """
    return Measure(partial(total_batches, ks), (), partial(metric_rows, ks), ("above", "before"), METRICS)


def total_batches(ks: Sequence[int], batches: Batches) -> Batches:
    """Build one row of `TOTALS` from a task's queries.

    The row has queries, pairs, summed values, and the queries' means and their squares, summed.
    """
    total = sums.exact_sums(np.zeros((0, totals_columns(ks))))
    for batch in batches:
        n_u, values_uc = query_values(batch, ks)
        mean_uc = values_uc / n_u[:, None]
        counts = np.stack([np.ones(len(n_u)), n_u.astype(np.float64)], axis=1)
        total = total + sums.exact_sums(np.concatenate([counts, values_uc, mean_uc, mean_uc**2], axis=1))
    yield pa.RecordBatch.from_arrays([pa.array([total.numbers()], pa.list_(pa.int64()))], schema=TOTALS)


def totals_columns(ks: Sequence[int]) -> int:
    """Return how many sums a task makes."""
    return 2 + 3 * (1 + len(ks))


def metric_rows(ks: Sequence[int], totals: pa.Table) -> pa.Table:
    """Compute `METRIC_ROWS` from all tasks' totals.

    stderr is over queries, n counts pairs.
    """
    totals_c = sums.total_from_rows(totals.column("sums"), (totals_columns(ks),)).fractions()
    queries, pairs, rest = totals_c[0], totals_c[1], totals_c[2:]
    c = 1 + len(ks)
    value_c, mean_c, square_c = (rest[at : at + c] for at in (0, c, 2 * c))
    rows = [
        {
            "part": PART, "metric": HIT_RATE if at else SCALED_MRR, "definition": DEFINITION,
            "k": ks[at - 1] if at else None, "estimator": HOLDOUT, "value": float(value_c[at] / pairs),
            "stderr": _standard_error(queries, mean_c[at], square_c[at]), "n": int(pairs),
        }
        for at in range(c)
    ]  # fmt: skip
    return pa.Table.from_pylist(rows, schema=METRIC_ROWS)


def _standard_error(n: Fraction, total: Fraction, squares: Fraction) -> float | None:
    """Return the standard error for a mean over n values.

    None for a single value.
    """
    if n < 2:
        return None
    # Squares are rounded: for equal values their sum can be too small in the last bit.
    variance = (squares - total**2 / n) / (n - 1) / n
    return math.sqrt(max(float(variance), 0.0))
