"""Metrics for predictions against outcomes, with their intervals.

Among them are RMSE, log-loss, RIG, PE and AUC.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from recbench_spark.config import Bootstrap, Views
from recbench_spark.core import resampling, sums
from recbench_spark.core.arrays import Floats, Ints
from recbench_spark.core.checks import Check
from recbench_spark.core.definitions import VERSION
from recbench_spark.core.hashed_ids import hash_ids
from recbench_spark.core.streams import Batches
from recbench_spark.core.sums import Sums
from recbench_spark.errors import DataError, SchemaError
from recbench_spark.metrics.kernels import predictions as values
from recbench_spark.metrics.kernels import roc
from recbench_spark.metrics.list_rows import user_batch
from recbench_spark.metrics.prediction_ranges import RangeRunner, are_binary, count_ranges, edges_and_area
from recbench_spark.ranking.kernels.rankings import raise_to_bounds
from recbench_spark.sources.arrow_rows import combine_column, distinct_ids, find_indices
from recbench_spark.storage.blocks import Engine, Rows, Side, Sides, TaskRows, deal_sides
from recbench_spark.storage.packed_blocks import unpack_blocks
from recbench_spark.storage.shared_arrays import bound_lists, flatten_lists

MetricRow = dict[str, str | float | int | None]
Label = tuple[str | None, str | None]
"""A slice's key and value."""

NO_SLICE: Label = (None, None)

PER_USER = ("mse", "mae", "auc")
BY_QUANTILE = ("logloss", "rig", "pe", "mean_prediction", "mean_outcome")
"""Metrics in each prediction bin."""

QUANTILE_SUMS = ("n", "p", "y", "logloss", "unfit")
THRESHOLD_SUMS = ("n", "y", "unfit")
"""`values.SUMS` needed for bin metrics. Leaving the others out halves the bootstrap."""

BATCH_USERS = 10_000
"""Users computed at once."""

PREDICTIONS = ("user_id", "prediction", "outcome")

WEIGHT = "weight"
"""Column with the rows' weights, if they have some."""


def deal_users(engine: Engine, rows: Rows, more: tuple[str, ...], n: int) -> TaskRows:
    """Deal predictions by user, one row per user.

    Shuffles by user.

    Args:
        engine: the runner.
        rows: user_id (text, no NULL), prediction, outcome, and further columns, such as weight.
        more: names of these.
        n: number of rows.

    Returns:
        user_id, user_key (its hash), and the other columns as arrays.
    """
    columns = (*PREDICTIONS, *more)
    dealt = deal_sides(engine, [Side(0, rows, columns)], engine.count_tasks(n))
    return dealt.then(_group_side, ("user_id", "user_key", *columns[1:]))


def _group_side(sides: Sides) -> pa.Table:
    rows = unpack_blocks(sides[0])
    assert rows is not None
    users = distinct_ids([rows.column("user_id")])
    user_r = find_indices(rows.column("user_id"), users)
    order = pa.array(np.argsort(user_r, kind="stable"))
    bounds = bound_lists(user_r, len(users))
    columns = {"user_id": users, "user_key": pa.array(hash_ids(users).view(np.int64))}
    for name in rows.column_names[1:]:
        columns[name] = pa.ListArray.from_arrays(bounds, combine_column(rows.column(name)).take(order))
    return pa.table(columns)


def select_predictions(users: pa.Table, column: str, value: str) -> pa.Table:
    """Select predictions with a value in a further column.

    Only their users are returned.

    Args:
        users: rows from `deal_users`.
        column: name of a column with text arrays.
        value: the wanted text; a NULL is another one.
    """
    offsets, labels_r = flatten_lists(users.column(column))
    is_kept = labels_r == value
    bounds = np.concatenate([[0], np.cumsum(is_kept)])[offsets]
    selected = users.select(["user_id", "user_key"])
    for name in [name for name in (*PREDICTIONS[1:], WEIGHT) if name in users.column_names]:
        kept = pa.array(flatten_lists(users.column(name))[1][is_kept])
        lists = pa.ListArray.from_arrays(pa.array(bounds, pa.int32()), kept)
        selected = selected.append_column(name, lists)
    return selected.filter(pa.array(np.diff(bounds) > 0))


def user_value_batches(batches: Batches, definition: str = VERSION) -> Batches:
    """Compute users' mse, mae and auc: rows of `USER_VALUES`.

    Args:
        batches: rows of `USER_PREDICTIONS`, and weights if the rows have some.
        definition: of these values.
    """
    for batch in batches:
        offsets, p, y, w = _read_arrays(batch)
        metrics = values.from_totals(values.user_sums(offsets, p, y, w=w))
        binary = bool(are_binary(y).all())
        metrics["auc"] = roc.user_aucs(offsets, p, y, w)[0] if binary else np.full(batch.num_rows, np.nan)
        positives = np.add.reduceat(np.append(y > 0, False), offsets[:-1]) * (np.diff(offsets) > 0)
        relevant = pa.array(positives, pa.int32())
        ids, parts = batch.column("user_id"), batch.column("part")
        for name in PER_USER:
            values_uc = metrics[name][:, None]
            yield user_batch(ids, parts, name, values_uc, relevant, ks=[None], definition=definition)


def _read_arrays(batch: pa.RecordBatch) -> tuple[Ints, Floats, Floats, Floats | None]:
    offsets, p = flatten_lists(batch.column("prediction"))
    y = flatten_lists(batch.column("outcome"))[1]
    w = flatten_lists(batch.column(WEIGHT))[1] if WEIGHT in batch.schema.names else None
    return offsets, p, y, w


# ------------------------------------------------------------------------------- overall


@dataclass(frozen=True)
class Cuts:
    """Inner bin edges: equal mass and thresholds; float64, ascending."""

    quantiles: Floats
    thresholds: Floats

    @property
    def columns(self) -> tuple[int, int, int, int]:
        """Return how many sums a user has in each group.

        The groups are all rows, GAUC, quantiles, and bins between thresholds.
        """
        quantiles = len(QUANTILE_SUMS) * (len(self.quantiles) + 1)
        return len(values.SUMS), 2, quantiles, len(THRESHOLD_SUMS) * (len(self.thresholds) + 1)


@dataclass(frozen=True)
class PredictionOrder:
    """Results from ordered predictions: outcome pairs, bin edges, partial AUC."""

    pairs: roc.PairCounts
    edges: Floats
    area: float

    @classmethod
    def from_ranges(cls, each: RangeRunner, views: Views) -> PredictionOrder:
        """Compute the results from ranges of predictions."""
        ranges = count_ranges(each)
        edges, area = edges_and_area(each, ranges, views.quantiles, views.fpr)
        return cls(roc.combine([part.pairs for part in ranges if part.pairs]), edges, area)

    def cuts(self, views: Views) -> Cuts:
        """Return the bin edges for users' sums."""
        return Cuts(self.edges, np.array(sorted(set(views.thresholds))))


def value_rows(
    order: PredictionOrder, totals: PredictionTotals, views: Views
) -> tuple[list[MetricRow], list[Check]]:
    """Compute rows of `metrics`, and checks for undefined ones.

    A check names the reason.
    """
    label = f"{views.fpr[0]:g}-{views.fpr[1]:g}"
    rows = [
        *totals.overall(),
        _auc_row(order.pairs, totals),
        estimate_row("pauc", order.area, np.array([]), totals.n, 0.95, slice_label=("fpr", label)),
        *totals.by_quantile(),
        *totals.by_threshold(),
    ]
    defined = [row for row in rows if row["slice_key"] is None or row["value"] is not None]
    return defined, _missing_value_checks(rows, totals)


MAX_SLICES = 100
"""Most values in a column that slices predictions: each adds all rows of metrics once more."""


def label_slice(rows: Sequence[MetricRow], column: str, label: str) -> list[MetricRow]:
    """Return metric rows as rows of a slice.

    A row gets the slice `block = main`; a row with a slice already, `fpr = 0-0.1`, gets `block,fpr =
    main,0-0.1`.
    """
    sliced = []
    for row in rows:
        key, value = column, label
        if row["slice_key"] is not None:
            key, value = f"{column},{row['slice_key']}", f"{label},{row['slice_value']}"
        sliced.append({**row, "slice_key": key, "slice_value": value})
    return sliced


def refuse_many_slices(column: str, labels: int, what: str = "predictions") -> None:
    """Refuse a column with too many values.

    Raises:
        DataError: more than MAX_SLICES.
    """
    if labels > MAX_SLICES:
        raise DataError(
            f"{what}: {column} has more than {MAX_SLICES} values", "slice by a column with few values"
        )


def slice_type_error(column: str) -> SchemaError:
    """Return the error for a column unfit to slice predictions."""
    return SchemaError(
        f"predictions: {column} holds no text, whole numbers or booleans",
        "slice by a column with few values",
    )


NO_CUTS = Cuts(np.zeros(0), np.zeros(0))
"""No bins: only metrics over all rows together."""


class UserSums(NamedTuple):
    """Sums over users, (s,), and per replicate, (b, s); users.

    Columns are in the order of `Cuts.columns`. rows: number of rows in each bin of `Cuts.quantiles`.
    """

    exact: Sums
    boot: Sums
    users: int
    rows: Ints


def sum_users(tables: Iterable[pa.Table], bootstrap: Bootstrap, cuts: Cuts = NO_CUTS) -> UserSums:
    """Add up predictions, once plainly and once per replicate.

    Args:
        tables: rows from `deal_users`.
        bootstrap: replicates over users, seed.
        cuts: bin edges.
    """
    none = np.zeros(len(cuts.quantiles) + 1, np.int64)
    total = _add_keys(np.zeros(0, np.int64), np.zeros((0, sum(cuts.columns))), none, bootstrap)
    for batch in (batch for table in tables for batch in table.to_batches(BATCH_USERS)):
        if batch.num_rows:
            keys, p = batch.column("user_key").to_numpy(), flatten_lists(batch.column("prediction"))[1]
            rows = np.bincount(np.searchsorted(cuts.quantiles, p, side="right"), minlength=len(none))
            total = _add_sums(total, _add_keys(keys, _sums(batch, cuts), rows, bootstrap))
    return total


def _add_keys(keys: Ints, values_uc: Floats, rows: Ints, bootstrap: Bootstrap) -> UserSums:
    boot = sums.bootstrap_sums(keys, values_uc, bootstrap.replicates, bootstrap.seed)
    return UserSums(sums.exact_sums(values_uc), boot, len(keys), rows)


def _add_sums(one: UserSums, other: UserSums) -> UserSums:
    users, rows = one.users + other.users, one.rows + other.rows
    return UserSums(one.exact + other.exact, one.boot + other.boot, users, rows)


def _missing_value_checks(rows: list[MetricRow], totals: PredictionTotals) -> list[Check]:
    why = values.reasons(totals.sums[: len(values.SUMS)])
    missing = [str(row["metric"]) for row in rows if row["value"] is None and row["slice_key"] is None]
    return [
        Check(f"{name} undefined", 1, None, "info", why.get(name, "needs outcomes of 0 and 1"))
        for name in missing
    ]


@dataclass(frozen=True)
class PredictionTotals:
    """All sums over users, (s,), and per replicate, (b, s).

    Columns are in the order of `Cuts.columns`. rows: as in `UserSums`.
    """

    sums: Floats
    boot: Floats
    cuts: Cuts
    level: float
    users: int
    rows: Ints

    @classmethod
    def from_sums(
        cls, tasks: Iterable[UserSums], bootstrap: Bootstrap, cuts: Cuts = NO_CUTS
    ) -> PredictionTotals:
        """Add up the tasks' sums; there may be none."""
        total = reduce(_add_sums, tasks, sum_users([], bootstrap, cuts))
        exact, drawn = total.exact.nearest(), total.boot.floats()
        return cls(exact, drawn, cuts, bootstrap.level, total.users, total.rows)

    @property
    def n(self) -> int:
        """Return how many rows there are."""
        return int(self.rows.sum())

    def _part(self, index: int) -> tuple[Floats, Floats]:
        """Return one of four parts: (s,), and replicates, (b, s)."""
        ends = np.cumsum(self.cuts.columns)
        part = slice(ends[index] - self.cuts.columns[index], ends[index])
        return self.sums[part], self.boot[:, part]

    def _bins(self, index: int, names: Sequence[str]) -> tuple[Floats, Floats]:
        """Return bin sums, (bins, s) and (b, bins, s).

        Sums not kept for bins are NaN.
        """
        by_part: list[Floats] = []
        for part in self._part(index):
            bins = part.reshape(*part.shape[:-1], part.shape[-1] // len(names), len(names))
            wide = np.full((*bins.shape[:-1], len(values.SUMS)), np.nan)
            wide[..., [values.SUMS.index(name) for name in names]] = bins
            by_part.append(wide)
        return by_part[0], by_part[1]

    def overall(self) -> list[MetricRow]:
        """Compute metrics over all rows together."""
        (total, boot), (gauc, gauc_boot) = self._part(0), self._part(1)
        (bins, bins_boot) = self._bins(2, QUANTILE_SUMS)
        metrics = {name: float(value) for name, value in values.from_totals(total).items()}
        replicates = values.from_totals(boot)
        metrics["gauc"] = roc.gauc(gauc)
        with np.errstate(divide="ignore", invalid="ignore"):
            replicates["gauc"] = gauc_boot[:, 0] / gauc_boot[:, 1]
        metrics["calibration_error"] = float(values.calibration_error(bins))
        replicates["calibration_error"] = values.calibration_error(bins_boot)
        return [self._row(name, metrics[name], replicates[name], self.n) for name in metrics]

    def by_quantile(self) -> list[MetricRow]:
        """Compute log-loss, RIG, PE and means per equal-mass bin."""
        bins, boot = self._bins(2, QUANTILE_SUMS)
        metrics, replicates = values.from_totals(bins), values.from_totals(boot)
        rows = []
        for name in BY_QUANTILE:
            for b, value in enumerate(metrics[name]):
                label = ("prediction_quantile", f"{b + 1}/{len(bins)}")
                rows.append(self._row(name, value, replicates[name][:, b], int(self.rows[b]), label))
        return rows

    def by_threshold(self) -> list[MetricRow]:
        """Compute the four rates from each threshold on.

        A prediction at or above the threshold counts as positive.
        """
        bins, boot = self._bins(3, THRESHOLD_SUMS)
        rates, replicates = values.threshold_rates(bins), values.threshold_rates(boot)
        rows = []
        for name in values.RATES:
            for t, threshold in enumerate(self.cuts.thresholds):
                label = ("threshold", f"{threshold:g}")
                rows.append(self._row(name, rates[name][t], replicates[name][:, t], self.n, label))
        return rows

    def _row(self, name: str, value: float, drawn: Floats, n: int, label: Label = NO_SLICE) -> MetricRow:
        return estimate_row(name, float(value), drawn, n, self.level, users=self.users, slice_label=label)


def _sums(batch: pa.RecordBatch, cuts: Cuts) -> Floats:
    offsets, p, y, w = _read_arrays(batch)
    binary = bool(are_binary(y).all())
    parts = roc.gauc_parts(offsets, p, y, w) if binary else np.zeros((batch.num_rows, 2))
    raised = raise_to_bounds(p, cuts.thresholds)
    quantiles = values.user_bin_sums(offsets, cuts.quantiles, p, y, QUANTILE_SUMS, w=w)
    thresholds = values.user_bin_sums(offsets, cuts.thresholds, raised, y, THRESHOLD_SUMS, w=w)
    binned = [sums.reshape(batch.num_rows, -1) for sums in (quantiles, thresholds)]
    overall = values.user_sums(offsets, p, y, w=w)
    return np.concatenate([overall, np.nan_to_num(parts), *binned], axis=1)


def estimate_row(
    metric: str,
    value: float,
    replicates: Floats,
    n: int,
    level: float,
    *,
    users: int | None = None,
    slice_label: Label = NO_SLICE,
) -> MetricRow:
    """Build a row of `metrics` from replicates, (b,).

    Replicates give error and interval; users: as in `number_row`.
    """
    finite = replicates[np.isfinite(replicates)]
    error = float(finite.std(ddof=1)) if len(finite) > 1 else math.nan
    low, high = resampling.percentile_interval(finite[:, None], level) if len(finite) else ([math.nan],) * 2
    numbers = (value, error, float(low[0]), float(high[0]))
    return number_row(metric, numbers, n, slice_label, users=users, level=level)


def number_row(
    metric: str,
    numbers: tuple[float, float, float, float],
    n: int,
    slice_label: Label = NO_SLICE,
    *,
    users: int | None = None,
    level: float = 0.95,
) -> MetricRow:
    """Build a row of `metrics` from finished numbers.

    numbers: value, standard error, interval bounds; NaN becomes NULL. users: those behind the n rows, if
    known; too few have no interval of width 0.
    """
    value, error, *ends = numbers
    behind = np.array(n if users is None else users)
    low, high = resampling.hide_points(np.array(ends[0]), np.array(ends[1]), behind, level)
    named = {"value": value, "stderr": error, "ci_low": float(low), "ci_high": float(high)}
    estimates = {name: None if math.isnan(number) else number for name, number in named.items()}
    facts: MetricRow = {"metric": metric, "definition": VERSION, "k": None, "estimator": "holdout", "n": n}
    return {**facts, **estimates, "slice_key": slice_label[0], "slice_value": slice_label[1]}


def _auc_row(counts: roc.PairCounts, totals: PredictionTotals) -> MetricRow:
    value, error = roc.auc(counts), roc.auc_error(counts)
    # DeLong's normal interval, clipped to the bounds of an AUC.
    low, high = max(0.0, value - 1.959964 * error), min(1.0, value + 1.959964 * error)
    if math.isnan(error):
        low = high = math.nan
    return number_row("auc", (value, error, low, high), totals.n, users=totals.users)
