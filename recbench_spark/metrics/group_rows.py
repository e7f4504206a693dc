"""Numbers of groups of items: rows of the table `metrics` from sums over users."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recbench_spark.core.arrays import Floats
from recbench_spark.core.resampling import hide_points, mean_and_error, percentile_interval, replicate_means
from recbench_spark.metrics import accuracy
from recbench_spark.metrics.accuracy import MetricPlan
from recbench_spark.metrics.kernels.item_groups import GROUP_METRICS, KINDS, GroupCounts

Labels = tuple[str, tuple[str, ...]] | tuple[()]
"""A column's name and its groups; empty: long tail and short head."""


def list_kinds(names: Sequence[str]) -> tuple[str, ...]:
    """List the counts that some metrics read, each once, in the order of KINDS."""
    wanted = {kind for name in names for kind in GROUP_METRICS[name].kinds}
    return tuple(kind for kind in KINDS if kind in wanted)


def shape_counts(names: Sequence[str], cuts: int, groups: int) -> dict[str, tuple[int, int]]:
    """Return each count's cut-offs and groups."""
    return {
        kind: (cuts if KINDS[kind][0] else 1, groups if KINDS[kind][1] else 1) for kind in list_kinds(names)
    }


def count_columns(names: Sequence[str], cuts: int, groups: int) -> int:
    """Count the columns of some metrics' counts."""
    return sum(map(math.prod, shape_counts(names, cuts, groups).values()))


def finish_groups(plan: MetricPlan, names: Sequence[str], table: pa.Table, labels: Labels = ()) -> pa.Table:
    """Compute metrics of groups, with intervals by users: `METRIC_ROWS`.

    A replicate's value comes from its users' counts.

    Args:
        plan: cut-offs, definition and bootstrap.
        names: the metrics.
        table: rows of `TOTALS`.
        labels: the groups, and the name of their column; empty: long tail and short head.
    """
    column, groups = labels or ("", ("tail", "head"))
    cuts = len(plan.ks)
    totals = accuracy.add_up(table, count_columns(names, cuts, len(groups)), plan.bootstrap.replicates)
    means, _, users = mean_and_error(totals.moments_c5)
    drawn = replicate_means(totals.boot_bc, totals.weights_bc)
    shapes = shape_counts(names, cuts, len(groups))
    parts = [_split_counts(part, shapes) for part in (means, drawn, users)]
    rows = []
    for name in names:
        metric, value = (
            GROUP_METRICS[name],
            _finish_metric(plan, name, *(GroupCounts(**one) for one in parts[:2])),
        )
        n = np.broadcast_to(parts[2][metric.kinds[0]][..., 0], cuts)
        for g, group in enumerate(groups if metric.each else [None]):
            numbers = [one[:, g] if metric.each else one for one in value]
            numbers[2:] = hide_points(numbers[2], numbers[3], n, plan.bootstrap.level)
            one = accuracy.metric_table(table, plan.table([name]), numbers, n)
            rows.append(_name_slice(one, column, group) if metric.each else one)
    return pa.concat_tables(rows)


def _name_slice(rows: pa.Table, key: str, value: str | None) -> pa.Table:
    """Return rows of one group: its column is the slice key."""
    for name, text in (("slice_key", key), ("slice_value", value)):
        at = rows.column_names.index(name)
        rows = rows.set_column(at, name, pa.repeat(pa.scalar(text, pa.string()), len(rows)))
    return rows


def _split_counts(
    values: npt.NDArray[Any], shapes: dict[str, tuple[int, int]]
) -> dict[str, npt.NDArray[Any]]:
    """Split columns by kind, (..., c or 1, g or 1) each."""
    ends = np.cumsum([math.prod(shape) for shape in shapes.values()])
    parts = np.split(values, ends[:-1], axis=-1)
    return {
        kind: part.reshape(*values.shape[:-1], *shape)
        for (kind, shape), part in zip(shapes.items(), parts, strict=True)
    }


def _finish_metric(
    plan: MetricPlan, name: str, counts: GroupCounts, drawn: GroupCounts
) -> tuple[Floats, Floats, Floats, Floats]:
    """Return a metric's value, standard error and interval, (c,) or (c, g) each."""
    metric = GROUP_METRICS[name]
    value, drawn_bc = metric.measure(counts), metric.measure(drawn)
    replicates = drawn_bc.reshape(len(drawn_bc), value.size)
    if metric.spread:
        ends = _find_spread_interval(value, replicates, plan.bootstrap.level)
    else:
        ends = percentile_interval(replicates, plan.bootstrap.level)
    low, high = (end.reshape(value.shape) for end in ends)
    stderr = np.full(value.shape, np.nan)
    if len(drawn_bc) > 1:
        stderr = np.std(drawn_bc, axis=0, ddof=1)
    if metric.signed:
        low, high = _fold_interval(low, high)
        value = np.abs(value)
    return value, stderr, low, high


def _find_spread_interval(value: Floats, drawn_bc: Floats, level: float) -> tuple[Floats, Floats]:
    """Return the interval of a spread, whose square is biased upward by the groups' noise.

    Replicates have the bias twice: in the value, and in their own draw. The lower end is shifted by both,
    the upper one by the draw's: by both it misses spreads of two groups just above their noise. Over five
    groups of 200 users plain percentiles held 0, .07 and .14 in 0, 61 and 87 % of 150 worlds, and these in
    97 % or more; over two groups of 300 users these held .05 to .08 in 93 to 96 % of 800 worlds.
    """
    if not len(drawn_bc):
        return percentile_interval(drawn_bc, level)
    known = ~np.isnan(drawn_bc)
    squares = np.where(known, drawn_bc, 0.0) ** 2
    bias = squares.sum(axis=0) / np.maximum(known.sum(axis=0), 1) - value**2
    low, high = percentile_interval(np.where(known, squares, np.nan), level)
    ends = [np.sqrt(np.maximum(end, 0.0)) for end in (low - 2 * bias, high - bias)]
    return np.minimum(ends[0], value), np.maximum(ends[1], value)


def _fold_interval(low: Floats, high: Floats) -> tuple[Floats, Floats]:
    """Return the interval of a size, from that of a signed number."""
    ends = np.sort(np.abs([low, high]), axis=0)
    return np.where((low <= 0) & (high >= 0), 0.0, ends[0]), ends[1]
