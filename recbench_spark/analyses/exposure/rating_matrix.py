"""MSE and MAE of predicted ratings over all matrix cells.

They are estimated from a biased sample of known ratings. Cells are added as whole numbers, so neither their
order nor the tasks change a bit. The bootstrap draws users: a cell has its user's weight in every task.
No Spark is needed. Axes: n cells, l losses, s sums (`analyses.exposure.kernels.rating_matrix.SUMS`), b
replicates.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from recbench_spark.analyses.exposure.kernels import rating_matrix
from recbench_spark.analyses.exposure.kernels.rating_matrix import ESTIMATES, SUMS, Loss
from recbench_spark.config import Bootstrap
from recbench_spark.core import sums
from recbench_spark.core.arrays import Floats, Ints
from recbench_spark.core.hashed_ids import hash_ids
from recbench_spark.core.sums import Sums
from recbench_spark.engine.measures import PIECE_ROWS
from recbench_spark.metrics.predictions import MetricRow, estimate_row
from recbench_spark.schemas import IDS

LOSSES: dict[str, Loss] = {"mse": "squared", "mae": "absolute"}
NAMES = {"naive": "holdout"}
"""Estimators named otherwise in the column `estimator`."""

MODEL_SUMS = [SUMS.index("correction"), SUMS.index("imputed")]


@dataclass(frozen=True)
class CellSums:
    """Counts and sums over some cells; tasks' sums are added.

    Attributes:
        cells, rated: number of cells, and of those with a rating.
        faults: unusable ratings by FAULTS; with one of them nothing is summed.
        twice: whether a cell occurs twice.
        most: the largest weight 1 / p.
        weights: summed weights and summed squares, (2,).
        exact, boot: `cell_sums`.
    """

    cells: int = 0
    rated: int = 0
    faults: tuple[int, ...] = (0, 0, 0)
    twice: bool = False
    most: float = 0.0
    weights: Sums | None = None
    exact: Sums | None = None
    boot: Sums | None = None

    def __add__(self, other: CellSums) -> CellSums:
        """Join both counts and sums."""
        return CellSums(
            self.cells + other.cells,
            self.rated + other.rated,
            tuple(map(sum, zip(self.faults, other.faults, strict=True))),
            self.twice or other.twice,
            max(self.most, other.most),
            _add_sums(self.weights, other.weights),
            _add_sums(self.exact, other.exact),
            _add_sums(self.boot, other.boot),
        )


FAULTS = ("without a prediction", "without a propensity", "with a propensity outside (0, 1]")


def _add_sums(one: Sums | None, other: Sums | None) -> Sums | None:
    return one + other if one and other else one or other


def sum_cells(cells: pa.Table, bootstrap: Bootstrap) -> CellSums:
    """Count and sum a task's cells, complete for each user.

    Args:
        cells: user_id, item_id, prediction, rating and propensity (NULL: unknown rating), and imputed where
            a model says which rating it expects.
        bootstrap: replicates over users, level, seed.
    """
    n = len(cells)
    values = {
        name: cells.column(name).to_numpy().astype(np.float64)
        for name in ("prediction", "rating", "propensity", "imputed")
        if name in cells.column_names
    }
    p = values["propensity"]
    rated, priced = ~np.isnan(values["rating"]), ~np.isnan(p)
    faults = np.isnan(values["prediction"]), rated & ~priced, priced & ~((p > 0) & (p <= 1))
    twice = cells.group_by(list(IDS)).aggregate([]).num_rows < n
    counts = CellSums(n, int(rated.sum()), tuple(int(fault.sum()) for fault in faults), twice)
    if twice or any(counts.faults):
        return counts
    keys = hash_ids(cells.column("user_id")).view(np.int64)
    order = np.argsort(keys, kind="stable")  # a user's cells together: fewer draws of weights
    for start in range(0, n, PIECE_ROWS):
        part = order[start : start + PIECE_ROWS]
        known = cell_parts(*(value[part] for value in values.values()))
        exact, boot = cell_sums(keys[part], known, bootstrap)
        priced_p = p[part][priced[part]]
        weights = sums.exact_sums(np.column_stack([1 / priced_p, 1 / priced_p**2]))
        most = float((1 / priced_p).max(initial=0.0))
        counts += CellSums(most=most, weights=weights, exact=exact, boot=boot)
    return counts


def make_metrics(total: CellSums, bootstrap: Bootstrap, *, modelled: bool) -> list[MetricRow]:
    """Compute mse and mae by each estimator: rows of `metrics`.

    The estimators are holdout (naive), ips, snips and, with a rating model, dr. `n` counts known ratings.
    """
    assert total.exact and total.boot
    totals, boots = estimable_totals(total.exact, total.boot, modelled=modelled)
    values, replicates = rating_matrix.from_totals(totals), rating_matrix.from_totals(boots)
    n, rows = int(totals[0, 0]), []
    for m, metric in enumerate(LOSSES):
        for name in ESTIMATES if modelled else ESTIMATES[:-1]:
            value, drawn = float(values[name][m]), replicates[name][:, m]
            row = estimate_row(metric, value, drawn, n, bootstrap.level)
            rows.append({**row, "estimator": NAMES.get(name, name)})
    return rows


def cell_parts(
    prediction_n: Floats, rating_n: Floats, propensity_n: Floats, imputed_n: Floats | None = None
) -> Floats:
    """Return cells' addends to both losses' sums, (n, l x s).

    Each cell counts as one user. rating, propensity: NaN for an unknown rating. Without a rating model its
    sums are NaN.
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
    """Sum cells exactly, (c,), and for each replicate, (b, c).

    Each cell is rounded to 41 binary digits before a user's cells are added up, so it does not matter how
    batches divide them.
    """
    users, user_n = np.unique(keys_n, return_inverse=True)
    by_user = sums.group_sums(user_n, sums.round_binary(parts_nc), len(users))
    boot = sums.bootstrap_groups(users, by_user, bootstrap.replicates, bootstrap.seed)
    return [sums.exact_sums(parts_nc), boot]


def estimable_totals(exact: Sums, boot: Sums, *, modelled: bool) -> tuple[Floats, Floats]:
    """Split added `cell_sums` into totals, (l, s) and (b, l, s).

    The second are those of the replicates.
    """
    totals = exact.nearest().reshape(len(LOSSES), len(SUMS))
    replicates = boot.floats().reshape(-1, len(LOSSES), len(SUMS))
    if not modelled:
        totals[:, MODEL_SUMS] = np.nan
        replicates[:, :, MODEL_SUMS] = np.nan
    return totals, replicates
