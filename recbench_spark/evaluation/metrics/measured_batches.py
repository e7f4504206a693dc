"""Batches whose metrics are computed once, for rows of users and for totals, in one process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa

from recbench_spark.evaluation.metrics import accuracy
from recbench_spark.evaluation.metrics.accuracy import MetricPlan, MetricTotals, SliceKey
from recbench_spark.evaluation.ranking.batches import to_rankings
from recbench_spark.kernels.arrays import Floats
from recbench_spark.kernels.streams import Batches


class MeasuredBatch(NamedTuple):
    """Rows of `RANKED_USERS`, and the values of their metrics, (u, c) each."""

    batch: pa.RecordBatch
    values: dict[str, Floats]


def measure_batch(plan: MetricPlan, batch: pa.RecordBatch) -> MeasuredBatch:
    """Compute all metrics of ranks of the users of a batch."""
    return MeasuredBatch(batch, accuracy.measure_ranks(plan, to_rankings(batch)))


def list_user_rows(plan: MetricPlan, measured: Sequence[MeasuredBatch]) -> Batches:
    """Return rows of `USER_VALUES` of measured batches."""
    for batch, values in measured:
        yield from accuracy.build_user_batches(plan, batch, values)


def sum_batches(plan: MetricPlan, measured: Sequence[MeasuredBatch]) -> Batches:
    """Sum values like `accuracy.total_batches`; slices of the measured batches are measured here."""
    totals: dict[SliceKey, MetricTotals] = {}
    for batch, values in measured:
        for number, (key, selection) in enumerate(accuracy.list_selections(iter([batch]))):
            is_whole = number == 0 and selection.batch.num_rows == batch.num_rows
            known = values if is_whole else accuracy.measure_ranks(plan, selection.rankings)
            sums = accuracy.sum_users(known, selection.keys_u, plan.bootstrap)
            accuracy.add_slice_totals(totals, key, sums)
    for key, sums in totals.items():
        yield accuracy.totals_batch(key, sums)
