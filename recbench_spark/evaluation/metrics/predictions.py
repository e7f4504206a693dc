"""Metrics of predictions against outcomes: RMSE, log-loss, RIG, AUC and others, with their intervals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.checks import Check
from recbench_spark.config import Bootstrap, Views
from recbench_spark.definitions import VERSION
from recbench_spark.engine.versions import collect_arrow
from recbench_spark.errors import DataError, SchemaError
from recbench_spark.evaluation.metrics.prediction_ranges import (
    RangeRunner,
    count_ranges,
    edges_and_area,
    sort_predictions,
    spark_ranges,
)
from recbench_spark.kernels import resampling, sums
from recbench_spark.kernels.arrays import Floats
from recbench_spark.kernels.metrics import predictions as values
from recbench_spark.kernels.metrics import roc
from recbench_spark.kernels.ranking.rankings import raise_to_bounds
from recbench_spark.kernels.streams import Batches
from recbench_spark.kernels.sums import Sums
from recbench_spark.storage.shared_arrays import flatten_lists

if TYPE_CHECKING:  # the engine of this process loads no Spark
    from pyspark.sql import DataFrame

MetricRow = dict[str, str | float | int | None]

PER_USER = ("mse", "mae", "auc")
BY_QUANTILE = ("logloss", "rig", "pe", "mean_prediction", "mean_outcome")
"""Metrics of each bin of the prediction."""

QUANTILE_SUMS = ("n", "p", "y", "logloss", "unfit")
THRESHOLD_SUMS = ("n", "y", "unfit")
"""Sums of `values.SUMS` that metrics of bins need. The others are left out, which halves the bootstrap."""

_TOTALS = "sums ARRAY<LONG>, boot ARRAY<LONG>, users LONG"


def group_by_user(predictions: DataFrame) -> DataFrame:
    """Group predictions into one row per user, with arrays of prediction and outcome. Shuffles by user.

    Args:
        predictions: user_id, prediction, outcome.
    """
    from pyspark.sql import functions as F  # noqa: PLC0415

    entry = F.struct("prediction", "outcome")
    grouped = predictions.groupBy("user_id").agg(F.collect_list(entry).alias("rows"))
    return grouped.select(
        "user_id",
        F.xxhash64("user_id").alias("user_key"),
        F.col("rows.prediction").alias("prediction"),
        F.col("rows.outcome").alias("outcome"),
    )


def user_values(users: DataFrame) -> DataFrame:
    """Compute mse, mae and auc of each user, in the shape of `user_metrics`. No shuffle.

    Args:
        users: rows of `group_by_user`.
    """
    schema = (
        "user_id STRING, metric STRING, definition STRING, estimator STRING, ks ARRAY<INT>, "
        "values ARRAY<DOUBLE>, n_relevant INT"
    )
    return users.mapInArrow(user_value_batches, schema)


def user_value_batches(batches: Batches) -> Batches:
    """Compute `user_values` of batches of rows of `group_by_user`."""
    for batch in batches:
        offsets, p, y = _read_arrays(batch)
        metrics = values.from_totals(values.user_sums(offsets, p, y))
        binary = bool(((y == 0) | (y == 1)).all())
        metrics["auc"] = roc.user_aucs(offsets, p, y)[0] if binary else np.full(batch.num_rows, np.nan)
        positives = np.add.reduceat(np.append(y > 0, False), offsets[:-1]) * (np.diff(offsets) > 0)
        for metric in PER_USER:
            yield _user_batch(batch.column("user_id"), metric, metrics[metric], positives)


def _user_batch(users: pa.Array, metric: str, value_u: Floats, positives: Floats) -> pa.RecordBatch:
    n = len(users)
    bounds = pa.array(np.arange(n + 1), pa.int32())
    columns = {
        "user_id": users,
        "metric": pa.repeat(metric, n),
        "definition": pa.repeat(VERSION, n),
        "estimator": pa.repeat("holdout", n),
        "ks": pa.ListArray.from_arrays(bounds, pa.nulls(n, pa.int32())),
        "values": pa.ListArray.from_arrays(bounds, pa.array(value_u, mask=np.isnan(value_u))),
        "n_relevant": pa.array(positives, pa.int32()),
    }
    return pa.RecordBatch.from_pydict(columns)


def _read_arrays(batch: pa.RecordBatch) -> tuple[npt.NDArray[np.int64], Floats, Floats]:
    offsets, p = flatten_lists(batch.column("prediction"))
    return offsets, p, flatten_lists(batch.column("outcome"))[1]


# ------------------------------------------------------------------------------- overall


@dataclass(frozen=True)
class Cuts:
    """Inner edges of the bins, of equal mass and at the thresholds; all float64, ascending."""

    quantiles: Floats
    thresholds: Floats

    @property
    def columns(self) -> tuple[int, int, int, int]:
        """Return the numbers of sums of a user: of all rows, for GAUC, by quantile, between thresholds."""
        quantiles = len(QUANTILE_SUMS) * (len(self.quantiles) + 1)
        return len(values.SUMS), 2, quantiles, len(THRESHOLD_SUMS) * (len(self.thresholds) + 1)


def value_metrics(
    users: DataFrame, predictions: DataFrame, bootstrap: Bootstrap, views: Views
) -> tuple[list[MetricRow], list[Check]]:
    """Compute rows of `metrics`, and a check for each metric that is undefined, with the reason.

    One sort of the predictions by range for AUC, partial AUC and bins of equal mass; one pass over users,
    in which each task returns a row of sums.

    Args:
        users: rows of `group_by_user`.
        predictions: prediction, outcome.
        bootstrap: replicates over users, level, seed.
        views: bins, thresholds and false-positive rates.
    """
    binary = predictions.where("outcome NOT IN (0, 1)").isEmpty()
    ordered = sort_predictions(predictions)
    sorted_rows = PredictionOrder.from_ranges(spark_ranges(ordered), binary, views)
    ordered.unpersist()
    return value_rows(
        sorted_rows, PredictionTotals.from_users(users, sorted_rows.cuts(views), bootstrap), views
    )


@dataclass(frozen=True)
class PredictionOrder:
    """Results from all predictions in order: pairs of outcomes, inner edges of bins, the partial AUC."""

    pairs: roc.PairCounts
    edges: Floats
    area: float

    @classmethod
    def from_ranges(cls, each: RangeRunner, binary: bool, views: Views) -> PredictionOrder:
        """Compute the results from ranges of predictions; `binary`: all outcomes are 0 or 1."""
        ranges = count_ranges(each, binary)
        edges, area = edges_and_area(each, ranges, views.quantiles, views.fpr)
        return cls(roc.combine([part.pairs for part in ranges]), edges, area)

    def cuts(self, views: Views) -> Cuts:
        """Return the edges of the bins in which users' sums are computed."""
        return Cuts(self.edges, np.array(sorted(set(views.thresholds))))


def value_rows(
    order: PredictionOrder, totals: PredictionTotals, views: Views
) -> tuple[list[MetricRow], list[Check]]:
    """Compute the results of `value_metrics` from the passes over rows and users."""
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
"""Most values of a column by which predictions are cut: each adds all rows of metrics once more."""


def label_slice(rows: Sequence[MetricRow], column: str, label: str) -> list[MetricRow]:
    """Return rows of metrics as those of a value of a column: `block = main`, `block,fpr = main,0-0.1`."""
    return [
        {
            **row,
            "slice_key": column if row["slice_key"] is None else f"{column},{row['slice_key']}",
            "slice_value": label if row["slice_key"] is None else f"{label},{row['slice_value']}",
        }
        for row in rows
    ]


def refuse_many_slices(column: str, labels: int) -> None:
    """Refuse a column with too many values.

    Raises:
        DataError: more than MAX_SLICES.
    """
    if labels > MAX_SLICES:
        raise DataError(
            f"predictions: {column} has more than {MAX_SLICES} values", "slice by a column with few values"
        )


def slice_type_error(column: str) -> SchemaError:
    """Return the error for a column by which predictions cannot be cut."""
    return SchemaError(
        f"predictions: {column} holds no text, whole numbers or booleans",
        "slice by a column with few values",
    )


NO_CUTS = Cuts(np.zeros(0), np.zeros(0))
"""No bins: only the metrics of all rows together."""


def sum_ratings(tables: Iterable[pa.Table], bootstrap: Bootstrap) -> pa.RecordBatch:
    """Build the row of `sum_batches` of predicted ratings: one row a user, with arrays."""
    (row,) = sum_batches(NO_CUTS, bootstrap, (batch for table in tables for batch in table.to_batches()))
    return row


def add_ratings(rows: Sequence[pa.RecordBatch], bootstrap: Bootstrap) -> PredictionTotals:
    """Add up the rows of `sum_ratings`; there may be none."""
    table = pa.Table.from_batches([sum_ratings([], bootstrap), *rows])
    return PredictionTotals.from_rows(table, NO_CUTS, bootstrap)


def _missing_value_checks(rows: list[MetricRow], totals: PredictionTotals) -> list[Check]:
    why = values.reasons(totals.sums[: len(values.SUMS)])
    missing = [str(row["metric"]) for row in rows if row["value"] is None and row["slice_key"] is None]
    return [
        Check(f"{name} undefined", 1, None, "info", why.get(name, "needs outcomes of 0 and 1"))
        for name in missing
    ]


@dataclass(frozen=True)
class PredictionTotals:
    """Sums over users, (s,), and of each replicate, (b, s), in the order of `Cuts.columns`."""

    sums: Floats
    boot: Floats
    cuts: Cuts
    level: float
    users: int

    @classmethod
    def from_users(cls, users: DataFrame, cuts: Cuts, bootstrap: Bootstrap) -> PredictionTotals:
        """Add up users; each task returns one row of whole numbers."""
        rows = collect_arrow(users.mapInArrow(partial(sum_batches, cuts, bootstrap), _TOTALS))
        return cls.from_rows(rows, cuts, bootstrap)

    @classmethod
    def from_rows(cls, rows: pa.Table, cuts: Cuts, bootstrap: Bootstrap) -> PredictionTotals:
        """Add up the rows of `sum_batches`."""
        columns = sum(cuts.columns)
        exact = sums.total_from_rows(rows.column("sums"), (columns,))
        boot = sums.total_from_rows(rows.column("boot"), (bootstrap.replicates, columns))
        users = int(pc.sum(rows.column("users")).as_py())
        return cls(exact.nearest(), boot.floats(), cuts, bootstrap.level, users)

    @property
    def n(self) -> int:
        """Return the number of rows."""
        return int(self.sums[0])

    def _part(self, index: int) -> tuple[Floats, Floats]:
        """Return one of the four parts, of all users, (s,), and of each replicate, (b, s)."""
        ends = np.cumsum(self.cuts.columns)
        part = slice(ends[index] - self.cuts.columns[index], ends[index])
        return self.sums[part], self.boot[:, part]

    def _bins(self, index: int, names: Sequence[str]) -> tuple[Floats, Floats]:
        """Return sums of bins, (bins, s) and (b, bins, s); sums that bins do not have are NaN."""
        by_part: list[Floats] = []
        for part in self._part(index):
            bins = part.reshape(*part.shape[:-1], part.shape[-1] // len(names), len(names))
            wide = np.full((*bins.shape[:-1], len(values.SUMS)), np.nan)
            wide[..., [values.SUMS.index(name) for name in names]] = bins
            by_part.append(wide)
        return by_part[0], by_part[1]

    def overall(self) -> list[MetricRow]:
        """Compute the metrics of all rows together."""
        (total, boot), (gauc, gauc_boot) = self._part(0), self._part(1)
        (bins, bins_boot) = self._bins(2, QUANTILE_SUMS)
        metrics = {name: float(value) for name, value in values.from_totals(total).items()}
        replicates = values.from_totals(boot)
        metrics["gauc"] = roc.gauc(gauc)
        with np.errstate(divide="ignore", invalid="ignore"):
            replicates["gauc"] = gauc_boot[:, 0] / gauc_boot[:, 1]
        metrics["calibration_error"] = float(values.calibration_error(bins))
        replicates["calibration_error"] = values.calibration_error(bins_boot)
        return [
            estimate_row(name, metrics[name], replicates[name], self.n, self.level, users=self.users)
            for name in metrics
        ]

    def by_quantile(self) -> list[MetricRow]:
        """Compute log-loss, RIG, PE and both means in each bin of equal mass."""
        bins, boot = self._bins(2, QUANTILE_SUMS)
        metrics, replicates = values.from_totals(bins), values.from_totals(boot)
        return [
            estimate_row(
                name,
                float(metrics[name][b]),
                replicates[name][:, b],
                int(bins[b, 0]),
                self.level,
                users=self.users,
                slice_label=("prediction_quantile", f"{b + 1}/{len(bins)}"),
            )
            for name in BY_QUANTILE
            for b in range(len(bins))
        ]

    def by_threshold(self) -> list[MetricRow]:
        """Compute the four rates of calling predictions positive from each threshold."""
        bins, boot = self._bins(3, THRESHOLD_SUMS)
        rates, replicates = values.threshold_rates(bins), values.threshold_rates(boot)
        return [
            estimate_row(
                name,
                float(rates[name][t]),
                replicates[name][:, t],
                self.n,
                self.level,
                users=self.users,
                slice_label=("threshold", f"{threshold:g}"),
            )
            for name in values.RATES
            for t, threshold in enumerate(self.cuts.thresholds)
        ]


def sum_batches(cuts: Cuts, bootstrap: Bootstrap, batches: Batches) -> Batches:
    """Build one row of whole numbers: the sums over users, and those of each replicate.

    Args:
        cuts: edges of the bins.
        bootstrap: replicates over users, seed.
        batches: rows of `group_by_user`.
    """

    def both(keys: npt.NDArray[np.int64], values_uc: Floats) -> list[Sums]:
        boot = sums.bootstrap_sums(keys, values_uc, bootstrap.replicates, bootstrap.seed)
        return [sums.exact_sums(values_uc), boot]

    total, users = both(np.zeros(0, np.int64), np.zeros((0, sum(cuts.columns)))), 0
    for batch in batches:
        batch_sums = both(batch.column("user_key").to_numpy(), _sums(batch, cuts))
        total = [one + other for one, other in zip(total, batch_sums, strict=True)]
        users += batch.num_rows
    lists = [pa.array([part.numbers()], pa.list_(pa.int64())) for part in total]
    yield pa.RecordBatch.from_arrays([*lists, pa.array([users])], ["sums", "boot", "users"])


def _sums(batch: pa.RecordBatch, cuts: Cuts) -> Floats:
    offsets, p, y = _read_arrays(batch)
    binary = bool(((y == 0) | (y == 1)).all())
    parts = roc.gauc_parts(offsets, p, y) if binary else np.zeros((batch.num_rows, 2))
    raised = raise_to_bounds(p, cuts.thresholds)
    binned = (
        values.user_bin_sums(offsets, edges, placed, y, names).reshape(batch.num_rows, -1)
        for edges, placed, names in (
            (cuts.quantiles, p, QUANTILE_SUMS),
            (cuts.thresholds, raised, THRESHOLD_SUMS),
        )
    )
    return np.concatenate([values.user_sums(offsets, p, y), np.nan_to_num(parts), *binned], axis=1)


def estimate_row(
    metric: str,
    value: float,
    replicates: Floats,
    n: int,
    level: float,
    *,
    users: int | None = None,
    slice_label: tuple[str | None, str | None] = (None, None),
) -> MetricRow:
    """Build a row of `metrics` with error and interval from replicates, (b,); users: as in `number_row`."""
    finite = replicates[np.isfinite(replicates)]
    error = float(finite.std(ddof=1)) if len(finite) > 1 else math.nan
    low, high = resampling.percentile_interval(finite[:, None], level) if len(finite) else ([math.nan],) * 2
    numbers = (value, error, float(low[0]), float(high[0]))
    return number_row(metric, numbers, n, slice_label, users=users, level=level)


def number_row(
    metric: str,
    numbers: tuple[float, float, float, float],
    n: int,
    slice_label: tuple[str | None, str | None] = (None, None),
    *,
    users: int | None = None,
    level: float = 0.95,
) -> MetricRow:
    """Build a row of `metrics` from value, standard error and bounds of the interval; NaN becomes NULL.

    users: those behind the n rows, if they are known; too few have no interval of width 0.
    """
    value, error, *ends = numbers
    behind = np.array(n if users is None else users)
    low, high = resampling.hide_points(np.array(ends[0]), np.array(ends[1]), behind, level)
    names = ("value", "stderr", "ci_low", "ci_high")
    estimates = {
        name: None if math.isnan(number) else number
        for name, number in zip(names, (value, error, float(low), float(high)), strict=True)
    }
    facts: MetricRow = {"metric": metric, "definition": VERSION, "k": None, "estimator": "holdout", "n": n}
    return {**facts, **estimates, "slice_key": slice_label[0], "slice_value": slice_label[1]}


def _auc_row(counts: roc.PairCounts, totals: PredictionTotals) -> MetricRow:
    value, error = roc.auc(counts), roc.auc_error(counts)
    # This is the normal interval of the DeLong error, clipped to the bounds of an AUC.
    low, high = max(0.0, value - 1.959964 * error), min(1.0, value + 1.959964 * error)
    if math.isnan(error):
        low = high = math.nan
    return number_row("auc", (value, error, low, high), totals.n, users=totals.users)
