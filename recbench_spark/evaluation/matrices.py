"""MSE and MAE of predicted ratings over all cells, of which a biased part is known, with intervals.

Cells add whole numbers, so nothing is shuffled but a row a task and no partitioning changes a bit. The
bootstrap draws users: a cell has its user's weight in whichever task it lies. Axes: n cells, l losses,
s sums (`kernels.matrices.SUMS`), b replicates.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import DataFrame

from recbench_spark.config import Bootstrap
from recbench_spark.evaluation.adding import added_up, largest
from recbench_spark.evaluation.values import Row, estimate_row
from recbench_spark.kernels import matrices
from recbench_spark.kernels.matrices import ESTIMATES, SUMS, Loss
from recbench_spark.kernels.ratios import scaling
from recbench_spark.kernels.resampling import BOOTSTRAP_BITS, bootstrap_sums, exact_sums, from_sums

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

LOSSES: dict[str, Loss] = {"mse": "squared", "mae": "absolute"}
NAMES = {"naive": "holdout"}
"""Estimators whose name in the column `estimator` is another."""

OF_A_MODEL = [SUMS.index("correction"), SUMS.index("imputed")]


def matrix_metrics(cells: DataFrame, bootstrap: Bootstrap, *, modelled: bool) -> list[Row]:
    """Rows of `metrics`: mse and mae by holdout (naive), ips, snips and, with a model of ratings, dr.

    Two passes, one for the largest parts and one for sums; a row of replicates x 14 numbers a task
    comes back. `n` is the number of known ratings.

    Args:
        cells: user_key, prediction, rating and propensity (NULL: rating not known), imputed.
        bootstrap: replicates over users, level, seed.
        modelled: whether `imputed`, the rating that a model expects of the cell, is given.
    """
    parts = partial(_batch_parts, modelled=modelled)
    scale_c = 1.0 / np.array([1024 / scaling(x) for x in largest(cells, parts)])

    def sums(batch: pa.RecordBatch) -> Ints:
        keys = batch.column("user_key").to_numpy()
        return cell_sums(keys, parts(batch) * scale_c, bootstrap)

    numbers = added_up(cells, sums)
    totals, boots = estimable(numbers, scale_c, bootstrap, modelled=modelled)
    values, replicates = matrices.from_totals(totals), matrices.from_totals(boots)
    n = int(totals[0, 0])

    def row(m: int, metric: str, name: str) -> Row:
        value, drawn = float(values[name][m]), replicates[name][:, m]
        found = estimate_row(metric, value, drawn, n, bootstrap.level)
        return {**found, "estimator": NAMES.get(name, name)}

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
        error = matrices.losses(prediction_n[known], rating_n[known], loss)
        model = None if imputed_n is None else matrices.losses(prediction_n, imputed_n, loss)
        expected = None if model is None else model[known]
        found.append(matrices.user_sums(offsets, error, propensity_n[known], 1, expected, model))
    return np.concatenate(found, axis=1)


def cell_sums(keys_n: Ints, parts_nc: Floats, bootstrap: Bootstrap) -> Ints:
    """Exact sums, (c, 2), and those of each replicate, (b, c), end to end; parts are at most 1.

    Each cell is rounded before it joins its user's others, so that it does not matter how a user's
    cells are spread over batches.
    """
    rounded = np.nan_to_num(np.rint(parts_nc * 2.0**BOOTSTRAP_BITS)) * 2.0**-BOOTSTRAP_BITS
    users, user_n = np.unique(keys_n, return_inverse=True)
    sums_uc = np.zeros((len(users), rounded.shape[1]))
    np.add.at(sums_uc, user_n, rounded)
    boots, _ = bootstrap_sums(users, sums_uc, bootstrap.replicates, bootstrap.seed)
    return np.concatenate([exact_sums(parts_nc).ravel(), boots.ravel()])


def estimable(
    numbers: Ints, scale_c: Floats, bootstrap: Bootstrap, *, modelled: bool
) -> tuple[Floats, Floats]:
    """Totals, (l, s), and those of each replicate, (b, l, s), from added up `cell_sums`."""
    c = len(scale_c)
    exact = from_sums(numbers[: 2 * c].reshape(c, 2)) / scale_c
    boots = numbers[2 * c :].reshape(bootstrap.replicates, c) * 2.0**-BOOTSTRAP_BITS / scale_c
    totals = exact.reshape(len(LOSSES), len(SUMS))
    replicates = boots.reshape(-1, len(LOSSES), len(SUMS))
    if not modelled:
        totals[:, OF_A_MODEL] = np.nan
        replicates[:, :, OF_A_MODEL] = np.nan
    return totals, replicates
