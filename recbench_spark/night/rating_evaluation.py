"""Evaluate one model on held-out ratings.

Pairs are predicted, and errors measured per user and overall.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.config import Bootstrap, ModelConfig
from recbench_spark.core.checks import Check, warn_above_zero
from recbench_spark.engine.versions import is_frame
from recbench_spark.metrics.predictions import PredictionTotals, UserSums, sum_users, user_value_batches
from recbench_spark.models.adapters.model_adapter import make_adapter
from recbench_spark.night.night import BenchmarkNight, check_night_gates
from recbench_spark.ranking.batch_schemas import USER_VALUES
from recbench_spark.ranking.part_users import PART_USERS, map_user_blocks, select_part_users
from recbench_spark.ranking.predict import PREDICTED
from recbench_spark.runtime.journal import Journal
from recbench_spark.schemas import METRICS, USER_METRICS
from recbench_spark.storage.blocks import PieceRows, return_rows
from recbench_spark.storage.commits import Addition, add_checks
from recbench_spark.storage.file_tables import TaskParts
from recbench_spark.storage.scratch import keep_results

PREDICTED_NAMES = tuple(PREDICTED.names)


def predict_model(
    night: BenchmarkNight, model: ModelConfig, run_id: str, journal: Journal
) -> tuple[list[Check], list[Addition]]:
    """Return a model's prediction checks, and its errors as rows.

    Each held-out part has its rows. A part's predictions stay in scratch files until the rows are
    committed: an array for each user.
    """
    checks, additions = check_night_gates(night), list[Addition]()
    settings = night.benchmark.evaluation
    for part in settings.parts:
        title = f"{model.name}: predict {part}"
        with journal.stage("predictions", title, run_id=run_id, model=model.name) as counts:
            predicted = _predict_part(night, model, part)
            summed = predicted.each(PREDICTED_NAMES, partial(_sum_part, bootstrap=settings.bootstrap))
            totals = PredictionTotals.from_sums((one for one, _ in summed), settings.bootstrap)
            checks += _prediction_checks(part, totals, sum(unknown for _, unknown in summed))
            counts["pairs"] = totals.n
            rows = [row for row in totals.overall() if row["metric"] in settings.metrics]
            named_rows = [{"run_id": run_id, "part": part, **row} for row in rows]
            additions.append(Addition(METRICS, rows=named_rows))
            if settings.user_metrics:
                measure = partial(_measure_users, metrics=("mse", *settings.metrics))
                values = predicted.open(PREDICTED_NAMES, measure, tuple(USER_VALUES.names))
                parts = TaskParts([(values, {"run_id": run_id})])
                additions.append(Addition(USER_METRICS, f"{run_id}/{part}", parts))
    return checks, [*additions, add_checks(run_id, checks)]


def _predict_part(night: BenchmarkNight, model: ModelConfig, part: str) -> PieceRows:
    """Return a part's predictions, computed once.

    A model from another package may need frames.
    """
    threshold, adapter = night.definition.threshold, make_adapter(model)
    select = partial(select_part_users, parts=[part], threshold=threshold, keep_empty=False)
    users: Any = map_user_blocks(night.store, night.split_id, select, PART_USERS.names)
    if not adapter.runs_local:
        users = night.open_frame(users)
    predicted = adapter.predict(users, night.data)
    if is_frame(predicted):
        rows = night.data.frames.FrameRows(predicted)
        predicted = rows.open(PREDICTED_NAMES, return_rows, PREDICTED_NAMES)
    return keep_results(night.store.scratch, predicted, night.store.engine)


def _sum_part(tables: Iterable[pa.Table], bootstrap: Bootstrap) -> tuple[UserSums, int]:
    """Sum a task's predictions, and count the unknown pairs."""
    kept = list(tables)
    return sum_users(kept, bootstrap), sum(pc.sum(rows.column("unknown")).as_py() or 0 for rows in kept)


def _measure_users(rows: pa.Table, metrics: Sequence[str]) -> pa.Table:
    """Make rows of `user_metrics` for a task's users.

    Rows of one metric stand side by side.
    """
    values = pa.Table.from_batches(user_value_batches(rows.combine_chunks().to_batches()))
    return values.filter(pc.is_in(values.column("metric"), pa.array(metrics)))


def _prediction_checks(part: str, totals: PredictionTotals, unknown: int) -> list[Check]:
    if not totals.users:
        return [
            Check(f"{part}: users", 0, None, "warning", "no user has truth in this part"),
            Check(f"{part}: predicted pairs", 0, None, "warning", "no held-out row"),
        ]
    return [
        Check(f"{part}: users", totals.users, None, "info", "users with held-out rows"),
        Check(f"{part}: predicted pairs", totals.n, None, "info", "held-out rows"),
        warn_above_zero(f"{part}: pairs unknown to the model", unknown, "the mean rating is predicted"),
    ]
