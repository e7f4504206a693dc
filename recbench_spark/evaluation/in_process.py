"""Short form of `evaluate` for frames in this process.

List metrics come as one pandas frame.

    from recbench_spark import evaluate_frames
    evaluate_frames(truth, lists, k=(1, 3, 10))

A frame is any table exporting its columns as Arrow: pandas, polars, pyarrow, DuckDB. Column, metric and
model names are those of `recbench_spark.evaluate`, and so are the numbers, bit for bit.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import pandas as pd
import pyarrow.compute as pc

from recbench_spark.config import DEFAULT_METRICS, Bootstrap
from recbench_spark.core.checks import CheckWarning
from recbench_spark.evaluation.evaluate import evaluate
from recbench_spark.evaluation.options import EvaluationRequest
from recbench_spark.metrics.result import MODEL, to_arrow

DEFAULT = tuple(name for name in DEFAULT_METRICS if name not in ("auc", "coverage"))

COLUMNS = ["metric", "definition", "k", "value", "stderr", "ci_low", "ci_high", "n"]


def evaluate_frames(
    truth: Any,
    lists: Any,
    *,
    columns: Mapping[str, Any] | None = None,
    k: Sequence[int] | int = EvaluationRequest.k,
    metrics: Sequence[str] | str = DEFAULT,
    preset: str | None = EvaluationRequest.preset,
    definition: Mapping[str, Any] | None = EvaluationRequest.definition,
    bootstrap: Bootstrap | Mapping[str, Any] | int | None = EvaluationRequest.bootstrap,
) -> pd.DataFrame:
    """Compute list metrics against a ground truth, for frames.

    The frames must fit into memory several times.

    Args:
        truth: user_id, item_id[, relevance]; a user with an empty truth has one row, item NULL.
        lists: user_id, item_id, and rank (from 1) or score; with both, the rank decides. Users without
            truth are left out. Several models are a dict of their names and lists.
        columns: our column names and those in the frames, as in `evaluate`.
        k: cut-offs, or one.
        metrics: names in `metrics.kernels.accuracy.METRICS`, or one; `ndcg@10` also names a cut-off.
        preset: another library's definition.
        definition: single axes (`definitions.Definition`), replacing those in the preset.
        bootstrap: replicates, level and seed for the intervals, as `Bootstrap` or as keys and values; a
            number of replicates; 0 or False: none.

    Returns:
        model (if several), metric, definition, k (missing: the whole list), value, stderr (of the mean over
            users), ci_low, ci_high, n. `attrs["checks"]` holds one dict per check (check, observed,
            threshold, severity, detail, passed), with the checks in `recbench evaluate`.

    Raises:
        ConfigError: unknown metric or axis, a metric named twice; an option with a wrong type; a cut-off
            that is no whole number from 1 to 2^31 - 1.
        SchemaError: a column is missing, or its type holds no ids (`core.ids`).
        DataError: no frame; NULL, NaN or unusable values, with their number; frames without common ids.

    Warns:
        CheckWarning: for each failed check, with the message in `recbench evaluate`: users without a list,
            few common ids, heavy ties, duplicates, grades without a gain.
    """
    result = evaluate(
        truth, lists=lists, columns=columns, k=k, metrics=metrics, preset=preset,
        definition=definition, bootstrap=bootstrap, engine="local",
    )  # fmt: skip
    for check in result.checks:
        if not check.passed:
            warnings.warn(check.summary_line(), CheckWarning, stacklevel=2)
    rows = to_arrow(result.metrics)
    names = [name for name in (MODEL, *COLUMNS) if name in rows.column_names]
    rows = rows.filter(pc.is_null(rows.column("slice_key"))).select(names)
    frame: pd.DataFrame = rows.to_pandas().astype({"k": "Int64"})
    # Plain values, because pandas writes attributes into Parquet as JSON.
    frame.attrs["checks"] = [{**asdict(check), "passed": check.passed} for check in result.checks]
    return frame
