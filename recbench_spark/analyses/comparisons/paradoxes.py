"""Simpson's paradoxes: strata order two models against the whole.

The strata are a slice key's labels in the table `rankings`. Bootstrap weights are a function of user,
replicate and seed alone, so a difference's paired bootstrap subtracts two models' sums: each task adds up a
run's users, and pairs are formed from these sums. No user reaches the driver, and no shuffle by user is
needed. Axes: m models, s strata (0: the whole), r replicates, x pairs, c metrics x cut-offs, n rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.analyses.comparisons.differences import ComparedRun
from recbench_spark.analyses.comparisons.kernels import paradoxes as kernel
from recbench_spark.analyses.exposure.kernels.exposure import combine_strata
from recbench_spark.core import resampling
from recbench_spark.core.arrays import Bools, Floats, Ints
from recbench_spark.core.streams import Batches
from recbench_spark.engine.measures import Measure
from recbench_spark.metrics import accuracy as metric_rows
from recbench_spark.metrics.accuracy import RANKING_COLUMNS, MetricColumn, MetricTotals, TruthSelection
from recbench_spark.metrics.kernels.accuracy import measure
from recbench_spark.metrics.list_rows import make_lists
from recbench_spark.schemas import PARADOXES
from recbench_spark.storage.shared_arrays import flatten_lists

SIZE_UNIT = 2.0**-20
"""Unit for adding up truth items, beside values of about 1."""

CELLS = 1 << 22
"""Replicates x strata x pairs processed at once: 32 MB."""

MetricKey = tuple[str, str, int | None]
"""Part, metric, cut-off."""


@dataclass(frozen=True)
class ParadoxPlan:
    """Runs, metrics and strata in which to search paradoxes.

    Attributes:
        runs: one run per model, all with one split.
        measured: rank metrics, cut-offs, definition, bootstrap.
        ks: cut-offs in the results, None for the whole ranking.
        by: slice keys.
        parts: held-out parts.
        against: index in `runs`; all other models are compared with this one. None: all pairs.
        lower: metrics best when small.
    """

    runs: tuple[ComparedRun, ...]
    measured: metric_rows.MetricPlan
    ks: tuple[int | None, ...]
    by: tuple[str, ...]
    parts: tuple[str, ...]
    against: Mapping[MetricKey, int] | None = None
    lower: tuple[str, ...] = ()

    @property
    def table(self) -> list[MetricColumn]:
        """List all measured columns, with cut-offs beside those in `ks`."""
        return self.measured.table(self.measured.metrics)

    def direction(self, metric: str) -> float:
        """Return 1 for a metric best when large, else -1."""
        return -1.0 if metric in self.lower else 1.0


def model_pairs(m: int, against: Mapping[MetricKey, int] | None, key: MetricKey) -> tuple[Ints, Ints]:
    """Return every pair once, or every model with its baseline.

    An unknown baseline gives no pairs.
    """
    if against is None:
        a, b = np.triu_indices(m, 1)
        return a.astype(np.int64), b.astype(np.int64)
    baseline = against.get(key)
    others = np.array([a for a in range(m) if a != baseline and baseline is not None], dtype=np.int64)
    return others, np.full(len(others), -1 if baseline is None else baseline, dtype=np.int64)


DISAGREEMENTS = pa.schema(
    [
        field
        for field in PARADOXES.arrow_schema
        if field.name not in ("paradox_id", "suite", "logical_date", "split_id", "found_at")
    ]
)
"""Columns of the table `paradoxes` computed from the numbers."""


def disagreement_measure(plan: ParadoxPlan) -> Measure:
    """Return the measure comparing whole and strata.

    Its results are rows of `DISAGREEMENTS`: one per model pair, part, metric, cut-off and slice key. Pieces
    of any runs' rankings become each run's sums: parts x strata x columns x replicates whole numbers. A
    cell holds 16 KB x strata x pieces at 1,000 replicates, for any number of users.
    """
    sums, finish = partial(_task_totals, plan), partial(_finish, plan)
    return Measure(sums, ("part", "metric", "k"), finish, (*RANKING_COLUMNS, "run_id"), PARADOXES)


def split_by_run(
    batches: Batches, runs: Sequence[ComparedRun], parts: Sequence[str]
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield each run's rows in these parts, with its place.

    A file holds one run.
    """
    for batch in batches:
        rows = batch.filter(pc.is_in(batch.column("part"), value_set=pa.array(parts, pa.string())))
        for place, run in enumerate(runs):
            own = rows.filter(pc.equal(rows.column("run_id"), run.run_id))
            if own.num_rows:
                yield place, own


# ------------------------------------------------------------------------------- sums of a task


def _task_totals(plan: ParadoxPlan, batches: Batches) -> Batches:
    for run, rows in groupby(split_by_run(batches, plan.runs, plan.parts), key=itemgetter(0)):
        run_batches = (_keep_slices(batch, plan.by) for _, batch in rows)
        for totals in metric_rows.sum_by_slice(run_batches, partial(_measure_totals, plan)):
            yield _column_rows(plan, run, totals)


def _keep_slices(batch: pa.RecordBatch, keys: Sequence[str]) -> pa.RecordBatch:
    """Leave out labels of other slices; nobody needs their sums."""
    slices = batch.column("slices")
    kept_p = pc.is_in(slices.keys, value_set=pa.array(keys, slices.type.key_type))
    offsets = np.append(0, np.cumsum(kept_p.to_numpy(zero_copy_only=False)))[slices.offsets.to_numpy()]
    kept = pa.MapArray.from_arrays(
        pa.array(offsets, pa.int32()), slices.keys.filter(kept_p), slices.items.filter(kept_p)
    )
    return batch.set_column(batch.schema.get_field_index("slices"), "slices", kept)


def _measure_totals(plan: ParadoxPlan, selection: TruthSelection) -> MetricTotals:
    """Sum each column's values, and last the users' truth items."""
    metric_plan = plan.measured
    values = measure(selection.rankings, metric_plan.metrics, metric_plan.ks, metric_plan.definition)
    sizes = np.diff(selection.rankings.offsets)[:, None] * SIZE_UNIT
    return metric_rows.sum_users({**values, "": sizes}, selection.owners, metric_plan.bootstrap)


def _column_rows(plan: ParadoxPlan, run: int, totals: pa.RecordBatch) -> pa.RecordBatch:
    """Build one row per requested column."""
    table = plan.table
    selected = [c for c, column in enumerate(table) if column.k in plan.ks]

    def numbers(name: str, width: int) -> Ints:
        return flatten_lists(totals.column(name))[1].reshape(-1, width)

    moments = numbers("moments_c5", 5)
    boots, weights = (numbers(name, len(table) + 1).T for name in ("boot_bc", "weights_bc"))
    lists = {
        "moments": moments[selected],
        "boots": boots[selected],
        "weights": weights[selected],
        "size": moments[[-1] * len(selected), 1:3],
        "sizes": boots[[-1] * len(selected)],
    }
    columns = {
        "run": pa.repeat(pa.scalar(run, pa.int32()), len(selected)),
        "part": metric_rows.repeat_text(totals, "part", len(selected)),
        "metric": pa.array([table[c].metric for c in selected], pa.string()),
        "k": pa.array([table[c].k for c in selected], pa.int32()),
        "slice_key": metric_rows.repeat_text(totals, "slice_key", len(selected)),
        "slice_value": metric_rows.repeat_text(totals, "slice_value", len(selected)),
    }
    sums = {name: make_lists(rows) for name, rows in lists.items()}
    return pa.RecordBatch.from_pydict({**columns, **sums})


# ------------------------------------------------------------------------------- pairs


@dataclass(frozen=True)
class StratumMeans:
    """Model means in whole and strata, for one number.

    A number is a part, metric and cut-off; the whole has s = 0. mean_sm, users_sm: means and numbers of
    averaged users; mean_smr: the replicates' means; size_s, size_rs: the strata's truth items (without the
    whole), the same for all models.
    """

    labels: list[str]
    mean_sm: Floats
    users_sm: Ints
    mean_smr: Floats
    size_s: Floats
    size_rs: Floats


def _finish(plan: ParadoxPlan, table: pa.Table) -> pa.Table:
    part, metric, k = (table.column(name)[0].as_py() for name in ("part", "metric", "k"))
    (column,) = (column for column in plan.table if (column.metric, column.k) == (metric, k))
    keys = table.column("slice_key")
    rows: list[dict[str, Any]] = []
    for key in plan.by:
        key_rows = table.filter(pc.fill_null(pc.equal(keys, key), True))
        strata = _strata(key_rows, len(plan.runs))
        cell = {"part": part, "metric": metric, "definition": column.definition, "k": k, "slice_key": key}
        if strata.labels:
            rows += [{**cell, **pair_row} for pair_row in _rows(plan, strata, (part, metric, k))]
    return pa.Table.from_pylist(rows, schema=DISAGREEMENTS)


def _strata(table: pa.Table, m: int) -> StratumMeans:
    """Add up all tasks' sums, and return means.

    Means are by stratum and model.
    """
    values = table.column("slice_value").to_pylist()
    # Order by length first, so that Q2 comes before Q10.
    labels = sorted({value for value in values if value is not None}, key=lambda value: (len(value), value))
    index_by_label = {None: 0, **{label: s for s, label in enumerate(labels, start=1)}}
    s_n, m_n = np.array([index_by_label[value] for value in values]), table.column("run").to_numpy()

    def total(name: str) -> Ints:
        numbers_nw = flatten_lists(table.column(name).combine_chunks())[1].reshape(len(values), -1)
        sums = np.zeros((len(index_by_label), m, numbers_nw.shape[1]), dtype=np.int64)
        np.add.at(sums, (s_n, m_n), numbers_nw)
        return sums

    mean, _, users = resampling.mean_and_error(total("moments").reshape(-1, 5))
    size = resampling.from_sums(total("size").max(axis=1)) / SIZE_UNIT
    return StratumMeans(
        labels,
        mean.reshape(len(index_by_label), m),
        users.reshape(len(index_by_label), m),
        resampling.replicate_means(total("boots"), total("weights")),
        size[1:],
        total("sizes").max(axis=1)[1:].T.astype(np.float64),
    )


def _rows(plan: ParadoxPlan, strata: StratumMeans, key: MetricKey) -> Iterator[dict[str, Any]]:
    """Yield one row per pair; the better model comes first.

    The first model is better in the whole.
    """
    a, b = model_pairs(len(plan.runs), plan.against, key)
    lead = (strata.mean_sm[0, a] - strata.mean_sm[0, b]) * plan.direction(key[1])
    a, b = (np.where(lead < 0, y, x)[~np.isnan(lead)] for x, y in ((a, b), (b, a)))
    step = max(1, CELLS // strata.mean_smr[:, 0].size)
    for start in range(0, len(a), step):
        yield from _pair_rows(plan, strata, a[start : start + step], b[start : start + step])


def _pair_rows(plan: ParadoxPlan, strata: StratumMeans, a: Ints, b: Ints) -> Iterator[dict[str, Any]]:
    """Yield rows for some pairs."""
    level = plan.measured.bootstrap.level
    numbers_by_name = compare_pairs(strata, a, b, level)
    listed = {name: numbers.T.tolist() for name, numbers in numbers_by_name.items() if numbers.ndim == 2}
    single = {name: numbers.tolist() for name, numbers in numbers_by_name.items() if numbers.ndim == 1}
    for x, (model, other) in enumerate(zip(a.tolist(), b.tolist(), strict=True)):
        numbers = {name: _none_if_nan(values[x]) for name, values in single.items()}
        arrays = {name: [_none_if_nan(value) for value in values[x]] for name, values in listed.items()}
        yield {
            "model": plan.runs[model].model,
            "other": plan.runs[other].model,
            "run_id": plan.runs[model].run_id,
            "other_run_id": plan.runs[other].run_id,
            "users": int(strata.users_sm[0, model]),
            "labels": strata.labels,
            "sizes": [round(size) for size in strata.size_s.tolist()],
            "stratum_users": strata.users_sm[1:, model].tolist(),
            **numbers,
            **arrays,
            "kind": kernel.KINDS[single["kind"][x]],
        }


def compare_pairs(strata: StratumMeans, a: Ints, b: Ints, level: float) -> dict[str, npt.NDArray[Any]]:
    """Compute numbers for model pairs a - b.

    Each array is (x,), or (s, x) in the strata. The stratified difference is |Q_s| / |Q| x the difference
    in s, summed over strata where both models have a mean.
    """
    users_sx = np.minimum(strata.users_sm[:, a], strata.users_sm[:, b])
    difference_sx, low_sx, high_sx = _differences(strata, a, b, users_sx, level)
    combined_x, _ = combine_strata(difference_sx[1:], strata.size_s)
    drawn_srx = (strata.mean_smr[1:, a] - strata.mean_smr[1:, b]).transpose(2, 0, 1)
    bounds_x = resampling.percentile_interval(combine_strata(drawn_srx, strata.size_rs)[0], level)
    low_x, high_x = resampling.hide_points(*bounds_x, users_sx[0], level)
    both = ~np.isnan(difference_sx[1:])
    means = (np.where(both, strata.mean_sm[1:, model], np.nan) for model in (a, b))
    value_x, other_x = (combine_strata(mean_sx, strata.size_s)[0] for mean_sx in means)
    kind_x = kernel.kinds(difference_sx[0], combined_x, difference_sx[1:].T)
    enough_sx = users_sx >= resampling.count_fewest_users(level)
    certain_x = _mark_certain(kind_x, (low_sx, high_sx), (low_x, high_x), enough_sx)
    return {
        "value": strata.mean_sm[0, a],
        "other_value": strata.mean_sm[0, b],
        "difference": difference_sx[0],
        "ci_low": low_sx[0],
        "ci_high": high_sx[0],
        "stratified_value": value_x,
        "other_stratified_value": other_x,
        "stratified_difference": combined_x,
        "stratified_low": low_x,
        "stratified_high": high_x,
        "differences": difference_sx[1:],
        "lows": low_sx[1:],
        "highs": high_sx[1:],
        "kind": kind_x,
        "certain": certain_x & (kind_x > 0),
        "opposed_share": kernel.opposing_share(difference_sx[0], difference_sx[1:].T, strata.size_s[None]),
    }


def _mark_certain(
    kind_x: Ints, bounds_sx: tuple[Floats, Floats], stratified_x: tuple[Floats, Floats], enough_sx: Bools
) -> Bools:
    """Mark pairs with enough users in opposing parts, (x,).

    Enough users must show the whole and, against it, the strata or one of them.
    """
    low_sx, high_sx = bounds_sx
    whole = low_sx[0], high_sx[0]
    by_strata = (kernel.intervals_oppose(*whole, low_sx[1:], high_sx[1:]) & enough_sx[1:]).any(axis=0)
    is_partial = kind_x == kernel.KINDS.index("partial")
    opposed_x = np.where(is_partial, by_strata, kernel.intervals_oppose(*whole, *stratified_x))
    marked: Bools = opposed_x & enough_sx[0]
    return marked


def _differences(
    strata: StratumMeans, a: Ints, b: Ints, users_sx: Ints, level: float
) -> tuple[Floats, Floats, Floats]:
    """Return differences and their bounds, (s, x) each.

    The differences are those in the whole and in the strata.
    """
    difference_sx = strata.mean_sm[:, a] - strata.mean_sm[:, b]
    drawn_sxr = strata.mean_smr[:, a] - strata.mean_smr[:, b]
    flat_rc = drawn_sxr.reshape(-1, drawn_sxr.shape[2]).T
    low, high = resampling.percentile_interval(flat_rc, level)
    shape = difference_sx.shape
    return difference_sx, *resampling.hide_points(low.reshape(shape), high.reshape(shape), users_sx, level)


def _none_if_nan(value: Any) -> Any:
    return None if isinstance(value, float) and math.isnan(value) else value
