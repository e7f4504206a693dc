"""Evaluation of predictions in this process: `spark_predictions.evaluate_predictions` without Java."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.adhoc.options import make_bootstrap
from recbench_spark.adhoc.outputs import to_batches
from recbench_spark.checks import Check, warn_above_zero
from recbench_spark.config import Bootstrap, Views, digest
from recbench_spark.data.arrow_rows import (
    as_table,
    combine_column,
    distinct_ids,
    find_indices,
    is_text,
    read_column,
)
from recbench_spark.data.input_rows import check_input, open_table
from recbench_spark.engine.local import LocalEngine
from recbench_spark.errors import DataError
from recbench_spark.evaluation.batch_schemas import METRIC_ROWS, USER_VALUES
from recbench_spark.evaluation.metrics import predictions as values
from recbench_spark.evaluation.metrics.prediction_ranges import local_ranges
from recbench_spark.evaluation.metrics.predictions import MetricRow, PredictionOrder, PredictionTotals
from recbench_spark.evaluation.ranking_counts import mark_few_users
from recbench_spark.evaluation.result import PART, Result, ShownTable
from recbench_spark.kernels.hashed_ids import hash_ids
from recbench_spark.kernels.hashing import hash_longs, start
from recbench_spark.schemas import require_names
from recbench_spark.storage.shared_arrays import bound_lists

NAMES = ["user_id", "item_id", "prediction", "outcome"]


def evaluate_predictions(
    predictions: Any,
    bootstrap: Bootstrap | Mapping[str, Any] | int | None = None,
    views: Views | None = None,
    slice_by: str | None = None,
) -> Result:
    """Compute RMSE, log-loss, RIG, AUC and others: see `spark_predictions.evaluate_predictions`."""
    table, boot, wanted_views = (
        as_table(predictions, "predictions"),
        make_bootstrap(bootstrap),
        views or Views(),
    )
    require_names(table.column_names, NAMES, "predictions")
    values_read = {"prediction": "double", "outcome": "double"}
    rows = check_input(open_table(LocalEngine(""), table), values_read, "predictions").table
    assert rows is not None
    if not rows.num_rows:
        raise DataError("predictions: no rows", "check the path")
    users = _group_by_user(rows)
    numbers, checks = _measure_rows(rows, users, boot, wanted_views)
    checks.append(Check(f"{PART}: users", users.num_rows, None, "info", "users with predictions"))
    checks += mark_few_users(PART, users.num_rows)
    if slice_by is not None:
        label_r = _read_labels(table, slice_by)
        checks.append(warn_above_zero(f"rows without {slice_by}", label_r.null_count, "in no slice"))
        for label in sorted(pc.unique(label_r.drop_null()).to_pylist(), key=str.encode):
            part = rows.filter(pc.equal(label_r, label))
            part_numbers, _ = _measure_rows(part, _group_by_user(part), boot, wanted_views)
            numbers += values.label_slice(part_numbers, slice_by, label)
    metrics = pa.Table.from_pylist([{"part": PART, **row} for row in numbers], schema=METRIC_ROWS)
    per_user, truth = ShownTable(_user_metrics(users)), outcomes_hash(rows)
    return Result(ShownTable(metrics), per_user, None, checks, truth=truth)


def _measure_rows(
    rows: pa.Table, users: pa.Table, boot: Bootstrap, views: Views
) -> tuple[list[MetricRow], list[Check]]:
    """Compute rows of `metrics`, and checks of undefined ones, from rows and the same rows by user."""
    p, y = (rows.column(name).to_numpy() for name in ("prediction", "outcome"))
    ordered = PredictionOrder.from_ranges(local_ranges(p, y), bool(((y == 0) | (y == 1)).all()), views)
    cuts = ordered.cuts(views)
    totals = pa.Table.from_batches(values.sum_batches(cuts, boot, to_batches(users)))
    return values.value_rows(ordered, PredictionTotals.from_rows(totals, cuts, boot), views)


def _read_labels(table: pa.Table, name: str) -> pa.Array:
    """Return a column as text, one label for each row.

    Raises:
        SchemaError: no such column, or one of another type. DataError: too many labels.
    """
    column = read_column(table, name, "predictions")
    kind = column.type
    if not (pa.types.is_integer(kind) or pa.types.is_boolean(kind) or is_text(kind)):
        raise values.slice_type_error(name)
    labels = column.cast(pa.string())
    values.refuse_many_slices(name, pc.count_distinct(labels).as_py())
    return labels


def _group_by_user(rows: pa.Table) -> pa.Table:
    """Group predictions like `predictions.group_by_user`: one row per user, with arrays."""
    users = distinct_ids([rows.column("user_id")])
    user_r = find_indices(rows.column("user_id"), users)
    order = pa.array(np.argsort(user_r, kind="stable"))
    bounds = bound_lists(user_r, len(users))
    columns = {"user_id": users, "user_key": pa.array(hash_ids(users).view(np.int64))}
    for name in ("prediction", "outcome"):
        columns[name] = pa.ListArray.from_arrays(bounds, combine_column(rows.column(name)).take(order))
    return pa.table(columns)


def _user_metrics(users: pa.Table) -> pa.Table:
    rows = pa.Table.from_batches(values.user_value_batches(to_batches(users)))
    part = pa.repeat(pa.scalar(PART), rows.num_rows)
    return rows.append_column("part", part).select(USER_VALUES.names).cast(USER_VALUES)


def outcomes_hash(rows: pa.Table) -> str:
    """Hash the outcomes: the same text as `spark_predictions.outcomes_hash`."""
    hashes = start(rows.num_rows)
    for name in ("user_id", "item_id"):
        hashes = hash_ids(rows.column(name), hashes)
    # Spark hashes the bits of a float64; both zeros have the bits of 0.
    outcome = rows.column("outcome").to_numpy() + 0.0
    hashes = hash_longs(outcome.view(np.int64), hashes)
    return digest(str(sum(hashes.view(np.int64).tolist())), rows.num_rows)
