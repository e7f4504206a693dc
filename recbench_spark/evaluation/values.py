"""Value metrics of predictions against outcomes: RMSE, log-loss, RIG, AUC ... and their intervals."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from recbench_spark.config import Bootstrap
from recbench_spark.definitions import VERSION
from recbench_spark.evaluation.checks import Check
from recbench_spark.kernels import resampling, values
from recbench_spark.shared_files import flat

Batches = Iterator[pa.RecordBatch]
Floats = npt.NDArray[np.float64]
Row = dict[str, str | float | int | None]

PER_USER = ("mse", "mae", "auc")
SCALE = 2.0**-10
"""Sums of a user are scaled (exactly) into the range of `resampling.exact_sums`: 4 million rows."""
_TOTALS = "sums_s2 ARRAY<LONG>, boot_bs ARRAY<LONG>"


def by_user(predictions: DataFrame) -> DataFrame:
    """One row a user: user_id, user_key, prediction and outcome arrays. Shuffles rows by user.

    Args:
        predictions: user_id, prediction, outcome.
    """
    entry = F.struct("prediction", "outcome")
    grouped = predictions.groupBy("user_id").agg(F.collect_list(entry).alias("rows"))
    return grouped.select(
        "user_id",
        F.xxhash64("user_id").alias("user_key"),
        F.col("rows.prediction").alias("prediction"),
        F.col("rows.outcome").alias("outcome"),
    )


def user_values(users: DataFrame) -> DataFrame:
    """mse, mae and auc of each user, in the shape of `user_metrics`. No shuffle.

    Args:
        users: rows of `by_user`.
    """
    schema = (
        "user_id STRING, metric STRING, definition STRING, estimator STRING, ks ARRAY<INT>, "
        "values ARRAY<DOUBLE>, n_relevant INT"
    )
    return users.mapInArrow(_user_rows, schema)


def _user_rows(batches: Batches) -> Batches:
    for batch in batches:
        offsets, p, y = _arrays(batch)
        found = values.from_totals(values.user_sums(offsets, p, y))
        binary = bool(((y == 0) | (y == 1)).all())
        found["auc"] = values.user_aucs(offsets, p, y)[0] if binary else np.full(batch.num_rows, np.nan)
        positives = np.add.reduceat(np.append(y > 0, False), offsets[:-1]) * (np.diff(offsets) > 0)
        for metric in PER_USER:
            yield _user_batch(batch.column("user_id"), metric, found[metric], positives)


def _user_batch(users: pa.Array, metric: str, found: Floats, positives: Floats) -> pa.RecordBatch:
    n = len(users)
    bounds = pa.array(np.arange(n + 1), pa.int32())
    columns = {
        "user_id": users,
        "metric": pa.repeat(metric, n),
        "definition": pa.repeat(VERSION, n),
        "estimator": pa.repeat("holdout", n),
        "ks": pa.ListArray.from_arrays(bounds, pa.nulls(n, pa.int32())),
        "values": pa.ListArray.from_arrays(bounds, pa.array(found, mask=np.isnan(found))),
        "n_relevant": pa.array(positives, pa.int32()),
    }
    return pa.RecordBatch.from_pydict(columns)


def _arrays(batch: pa.RecordBatch) -> tuple[npt.NDArray[np.int64], Floats, Floats]:
    offsets, p = flat(batch.column("prediction"))
    return offsets, p, flat(batch.column("outcome"))[1]


# ------------------------------------------------------------------------------- overall


def value_metrics(
    users: DataFrame, predictions: DataFrame, bootstrap: Bootstrap
) -> tuple[list[Row], list[Check]]:
    """Rows of `metrics`, and a check for each metric that is undefined, with the reason.

    One pass over users (a row of sums a task comes back), one sort of the predictions by range for
    the AUC (a task holds its range; a row of whole numbers a task comes back).

    Args:
        users: rows of `by_user`.
        predictions: prediction, outcome.
        bootstrap: replicates over users, level, seed.
    """
    sums, boot = _totals(users, bootstrap)
    totals = sums[: len(values.SUMS)]
    estimates = {name: float(value) for name, value in values.from_totals(totals).items()}
    replicates = values.from_totals(boot[:, : len(values.SUMS)])
    estimates["gauc"] = values.gauc(sums[-2:])
    with np.errstate(divide="ignore", invalid="ignore"):
        replicates["gauc"] = boot[:, -2] / boot[:, -1]
    n = int(totals[0])
    rows = [_row(name, estimates[name], replicates[name], n, bootstrap.level) for name in estimates]
    why = {**values.reasons(totals)}
    rows.append(_auc_row(predictions, bool(totals[-1] == 0), n))
    missing = [str(row["metric"]) for row in rows if row["value"] is None]
    checks = [
        Check(f"{name} undefined", 1, None, "info", why.get(name, "needs outcomes of 0 and 1"))
        for name in missing
    ]
    return rows, checks


def _totals(users: DataFrame, bootstrap: Bootstrap) -> tuple[Floats, Floats]:
    """Sums over users (s + 2,) and of each replicate (b, s + 2): SUMS, then the parts of GAUC."""
    columns = len(values.SUMS) + 2

    def add(batches: Batches) -> Batches:
        sums, boot = np.zeros((columns, 2), np.int64), np.zeros((bootstrap.replicates, columns), np.int64)
        for batch in batches:
            found = _sums(batch)
            keys = batch.column("user_key").to_numpy()
            sums += resampling.exact_sums(found * SCALE)
            boot += resampling.bootstrap_sums(keys, found, bootstrap.replicates, bootstrap.seed)[0]
        lists = [pa.array([part.ravel()], pa.list_(pa.int64())) for part in (sums, boot)]
        yield pa.RecordBatch.from_arrays(lists, ["sums_s2", "boot_bs"])

    rows = users.mapInArrow(add, _TOTALS).toArrow()
    sums = sum(row.values.to_numpy() for row in rows.column("sums_s2")).reshape(columns, 2)
    boot = sum(row.values.to_numpy() for row in rows.column("boot_bs")).reshape(-1, columns)
    return resampling.from_sums(sums) / SCALE, boot.astype(np.float64)


def _sums(batch: pa.RecordBatch) -> Floats:
    offsets, p, y = _arrays(batch)
    binary = bool(((y == 0) | (y == 1)).all())
    parts = values.gauc_parts(offsets, p, y) if binary else np.zeros((batch.num_rows, 2))
    return np.concatenate([values.user_sums(offsets, p, y), np.nan_to_num(parts)], axis=1)


def _row(metric: str, value: float, replicates: Floats, n: int, level: float) -> Row:
    known = replicates[np.isfinite(replicates)]
    error = float(known.std(ddof=1)) if len(known) > 1 else math.nan
    low, high = resampling.percentile_interval(known[:, None], level) if len(known) else ([math.nan],) * 2
    return _number_row(metric, value, error, float(low[0]), float(high[0]), n)


def _number_row(metric: str, value: float, error: float, low: float, high: float, n: int) -> Row:
    numbers = {"value": value, "stderr": error, "ci_low": low, "ci_high": high}
    known = {name: None if math.isnan(number) else number for name, number in numbers.items()}
    return {"metric": metric, "definition": VERSION, "k": None, "estimator": "holdout", **known, "n": n}


def _auc_row(predictions: DataFrame, binary: bool, n: int) -> Row:
    if not binary:
        return _number_row("auc", math.nan, math.nan, math.nan, math.nan, n)
    counts = global_auc(predictions)
    value, error = values.auc(counts), values.auc_error(counts)
    # Normal interval of the DeLong error, cut at the bounds of an AUC.
    low, high = max(0.0, value - 1.959964 * error), min(1.0, value + 1.959964 * error)
    return _number_row("auc", value, error, low, high, n)


def global_auc(predictions: DataFrame) -> values.PairCounts:
    """Exact pair counts of all rows: sorted by range, counted in each range, combined here."""
    ranges = (
        predictions.select("prediction", "outcome").orderBy("prediction").mapInArrow(_count_range, _COUNTS)
    )
    rows = sorted(ranges.collect(), key=lambda row: row.first)
    return values.combine([values.PairCounts(*(int(number) for number in row[1:])) for row in rows])


_COUNTS = (
    "first DOUBLE, positives STRING, negatives STRING, wins STRING, squares_x STRING, squares_z STRING"
)


def _count_range(batches: Batches) -> Batches:
    rows = [batch for batch in batches if batch.num_rows]
    if not rows:
        return
    table = pa.Table.from_batches(rows)
    p, y = (table.column(name).to_numpy() for name in ("prediction", "outcome"))
    found = values.pair_counts(p, y)
    numbers = [str(getattr(found, name)) for name in found.__dataclass_fields__]
    columns = [pa.array([p.min()]), *(pa.array([number]) for number in numbers)]
    yield pa.RecordBatch.from_arrays(columns, [name.split()[0] for name in _COUNTS.split(", ")])
