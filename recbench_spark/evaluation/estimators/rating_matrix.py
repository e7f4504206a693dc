"""MSE and MAE of predicted ratings over all cells of the matrix, from a biased sample of known ratings.

Cells are added as whole numbers, so only one row per task is shuffled and the partitioning does not change
a bit. The bootstrap draws users: a cell has the weight of its user in every task.
Axes: n cells, l losses, s sums (`kernels.estimators.rating_matrix.SUMS`), b replicates.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame

from recbench_spark.config import Bootstrap
from recbench_spark.evaluation.estimators.sums import sum_batches
from recbench_spark.evaluation.metrics.predictions import MetricRow, estimate_row
from recbench_spark.kernels import sums
from recbench_spark.kernels.arrays import Floats, Ints
from recbench_spark.kernels.estimators import rating_matrix
from recbench_spark.kernels.estimators.rating_matrix import ESTIMATES, SUMS, Loss
from recbench_spark.kernels.sums import Sums

LOSSES: dict[str, Loss] = {"mse": "squared", "mae": "absolute"}
NAMES = {"naive": "holdout"}
"""Estimators with another name in the column `estimator`."""

MODEL_SUMS = [SUMS.index("correction"), SUMS.index("imputed")]


def compute_matrix_metrics(cells: DataFrame, bootstrap: Bootstrap, *, modelled: bool) -> list[MetricRow]:
    """Compute mse and mae by holdout (naive), ips, snips and, with a rating model, dr: rows of `metrics`.

    One pass; each task returns a row of replicates x 14 sums. `n` is the number of known ratings.

    Args:
        cells: user_key, prediction, rating and propensity (NULL: unknown rating), imputed.
        bootstrap: replicates over users, level, seed.
        modelled: cells have `imputed`, the rating that a model expects.
    """
    parts = partial(_batch_parts, modelled=modelled)

    def batch_sums(batch: pa.RecordBatch) -> list[Sums]:
        return cell_sums(batch.column("user_key").to_numpy(), parts(batch), bootstrap)

    columns = len(LOSSES) * len(SUMS)
    exact, boot = sum_batches(cells, batch_sums, [(columns,), (bootstrap.replicates, columns)])
    totals, boots = estimable_totals(exact, boot, modelled=modelled)
    values, replicates = rating_matrix.from_totals(totals), rating_matrix.from_totals(boots)
    n = int(totals[0, 0])

    def row(m: int, metric: str, name: str) -> MetricRow:
        value, drawn = float(values[name][m]), replicates[name][:, m]
        columns_of_row = estimate_row(metric, value, drawn, n, bootstrap.level)
        return {**columns_of_row, "estimator": NAMES.get(name, name)}

    names = [name for name in ESTIMATES if modelled or name != "dr"]
    return [row(m, metric, name) for m, metric in enumerate(LOSSES) for name in names]


def _batch_parts(batch: pa.RecordBatch, *, modelled: bool) -> Floats:
    columns = ("prediction", "rating", "propensity", "imputed")
    prediction, rating, propensity, imputed = (
        batch.column(name).to_numpy(zero_copy_only=False).astype(np.float64) for name in columns
    )
    return cell_parts(prediction, rating, propensity, imputed if modelled else None)


def cell_parts(
    prediction_n: Floats, rating_n: Floats, propensity_n: Floats, imputed_n: Floats | None = None
) -> Floats:
    """Return what each cell adds to the sums of both losses, (n, l x s); each cell counts as one user.

    rating, propensity: NaN for an unknown rating. The sums of a rating model are NaN without one.
    """
    known = ~np.isnan(rating_n)
    offsets = np.concatenate([[0], np.cumsum(known)])
    parts = []
    for loss in LOSSES.values():
        error = rating_matrix.losses(prediction_n[known], rating_n[known], loss)
        model = None if imputed_n is None else rating_matrix.losses(prediction_n, imputed_n, loss)
        expected = None if model is None else model[known]
        parts.append(
            rating_matrix.user_sums(offsets, error, propensity_n[known], 1, expected, imputed_u=model)
        )
    return np.concatenate(parts, axis=1)


def cell_sums(keys_n: Ints, parts_nc: Floats, bootstrap: Bootstrap) -> list[Sums]:
    """Return exact sums over cells, (c,), and those of each bootstrap replicate, (b, c).

    Each cell is rounded to 41 binary digits before the cells of a user are added up, so that their
    distribution over batches does not matter.
    """
    users, user_n = np.unique(keys_n, return_inverse=True)
    by_user = sums.group_sums(user_n, sums.round_binary(parts_nc), len(users))
    boot = sums.bootstrap_groups(users, by_user, bootstrap.replicates, bootstrap.seed)
    return [sums.exact_sums(parts_nc), boot]


def estimable_totals(exact: Sums, boot: Sums, *, modelled: bool) -> tuple[Floats, Floats]:
    """Split added `cell_sums` into totals, (l, s), and those of each replicate, (b, l, s)."""
    totals = exact.nearest().reshape(len(LOSSES), len(SUMS))
    replicates = boot.floats().reshape(-1, len(LOSSES), len(SUMS))
    if not modelled:
        totals[:, MODEL_SUMS] = np.nan
        replicates[:, :, MODEL_SUMS] = np.nan
    return totals, replicates
