"""MSE and MAE of predicted ratings over all cells, of which a biased part is known, with intervals.

Cells add whole numbers, so nothing is shuffled but a row per task and no partitioning changes a bit. The
bootstrap draws users: a cell has its user's weight in whichever task it lies. Axes: n cells, l losses,
s sums (`kernels.estimators.rating_matrix.SUMS`), b replicates.
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
"""Estimators whose name in the column `estimator` is another."""

MODEL_SUMS = [SUMS.index("correction"), SUMS.index("imputed")]


def compute_matrix_metrics(cells: DataFrame, bootstrap: Bootstrap, *, modelled: bool) -> list[MetricRow]:
    """Rows of `metrics`: mse and mae by holdout (naive), ips, snips and, with a model of ratings, dr.

    One pass; a row of replicates x 14 sums per task comes back. `n` is the number of known ratings.

    Args:
        cells: user_key, prediction, rating and propensity (NULL: rating not known), imputed.
        bootstrap: replicates over users, level, seed.
        modelled: whether `imputed`, the rating that a model expects of the cell, is given.
    """
    parts = partial(_batch_parts, modelled=modelled)

    def found(batch: pa.RecordBatch) -> list[Sums]:
        return cell_sums(batch.column("user_key").to_numpy(), parts(batch), bootstrap)

    columns = len(LOSSES) * len(SUMS)
    exact, boot = sum_batches(cells, found, [(columns,), (bootstrap.replicates, columns)])
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
    """What each cell adds to the sums of both losses, (n, l x s): a cell is a user of one item.

    rating, propensity: NaN where the rating is not known. Without a model its sums are NaN.
    """
    known = ~np.isnan(rating_n)
    offsets = np.concatenate([[0], np.cumsum(known)])
    found = []
    for loss in LOSSES.values():
        error = rating_matrix.losses(prediction_n[known], rating_n[known], loss)
        model = None if imputed_n is None else rating_matrix.losses(prediction_n, imputed_n, loss)
        expected = None if model is None else model[known]
        found.append(rating_matrix.user_sums(offsets, error, propensity_n[known], 1, expected, model))
    return np.concatenate(found, axis=1)


def cell_sums(keys_n: Ints, parts_nc: Floats, bootstrap: Bootstrap) -> list[Sums]:
    """Exact sums, (c,), and those of each replicate, (b, c), of what cells add.

    Each cell is rounded (to 41 binary digits) before it joins its user's others, so that it does not
    matter how a user's cells are spread over batches.
    """
    users, user_n = np.unique(keys_n, return_inverse=True)
    by_user = sums.group_sums(user_n, sums.round_binary(parts_nc), len(users))
    boot = sums.bootstrap_groups(users, by_user, bootstrap.replicates, bootstrap.seed)
    return [sums.exact_sums(parts_nc), boot]


def estimable_totals(exact: Sums, boot: Sums, *, modelled: bool) -> tuple[Floats, Floats]:
    """Totals, (l, s), and those of each replicate, (b, l, s), from added up `cell_sums`."""
    totals = exact.nearest().reshape(len(LOSSES), len(SUMS))
    replicates = boot.floats().reshape(-1, len(LOSSES), len(SUMS))
    if not modelled:
        totals[:, MODEL_SUMS] = np.nan
        replicates[:, :, MODEL_SUMS] = np.nan
    return totals, replicates
