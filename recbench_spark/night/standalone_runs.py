"""Write runs without a night: evaluations and replays.

Either engine works; the row in `runs` comes last.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa

from recbench_spark import __version__
from recbench_spark.config import digest
from recbench_spark.core import revisions
from recbench_spark.core.checks import Check
from recbench_spark.core.inputs import require_unchanged
from recbench_spark.metrics.result import Result, to_arrow
from recbench_spark.night import code_provenance
from recbench_spark.schemas import CHECKS, METRICS, RANKINGS, REJECTS, REPLAYS, RUNS, USER_METRICS
from recbench_spark.storage.arrow_store import ArrowStore
from recbench_spark.storage.commits import Addition, add_checks, check_rows, commit, commit_together
from recbench_spark.storage.file_tables import FileTables, RowReader


def publish_standalone(store: FileTables, result: Result, run: dict[str, Any]) -> str:
    """Write an evaluation's result, and return the run's id.

    The result comes from `evaluation.evaluate.evaluate`; the row in `runs` is last. Spark frames need
    Spark's store; Arrow tables are written by each.
    """
    run_id = new_run_id(run["logical_date"], run["model"])
    store.note_run(run_id)
    checks = [*result.checks, *check_base_rates(store.rows, run["suite"], result)]
    frames = [(result.user_metrics, USER_METRICS), (result.metrics, METRICS)]
    if result.rankings is not None:
        frames.append((result.rankings, RANKINGS))
    store.create(*(table for _, table in frames))
    commit_together(store, *(Addition(table, rows=_add_run_id(rows, run_id)) for rows, table in frames))
    row = _standalone_row(run, result.truth, result.checks, (run["model_kind"],))
    require_unchanged()  # inputs may be read during the writes; the row in `runs` makes them visible
    runs = Addition(RUNS, rows=[make_run_row(row, run_id, run["started_at"])])
    commit(store, add_checks(run_id, checks), runs)
    store.end_runs()
    return run_id


def publish_replays(
    store: ArrowStore,
    rows: Sequence[dict[str, Any]],
    checks: Sequence[Check],
    rejects: Sequence[tuple[str, str]],
    run: dict[str, Any],
) -> list[str]:
    """Write a replay, a run for each model.

    All rows in `runs` come last in one commit.

    Args:
        store: the warehouse.
        rows: rows of `replays` without run ids.
        checks: checks of the log; they are written for each run.
        rejects: rows of the log that were left out, each with its reason.
        run: columns of `runs` that the models share; `models`: the identity of each model's input.
    """
    run_ids = {model: new_run_id(run["logical_date"], model) for model in run["models"]}
    for run_id in run_ids.values():
        store.note_run(run_id)
    truth = digest(run["inputs"]["truth"])
    rejected = [
        {"split_id": truth, "file": run["dataset"], "line": line, "reason": why} for line, why in rejects
    ]
    published = [
        make_run_row(_replay_row(run, model, checks), run_ids[model], run["started_at"])
        for model in run["models"]
    ]
    commit(
        store,
        Addition(REPLAYS, rows=[{**row, "run_id": run_ids[row["model"]]} for row in rows]),
        Addition(CHECKS, rows=[row for run_id in run_ids.values() for row in check_rows(run_id, checks)]),
        Addition(REJECTS, rows=rejected),
        Addition(RUNS, rows=published),
    )
    store.end_runs()
    return list(run_ids.values())


def find_finished_replay(read: RowReader, run: dict[str, Any]) -> list[str]:
    """Return a day's succeeded replay runs.

    The list is empty if a model lacks one.

    Args:
        read: reads rows of the warehouse.
        run: as in `publish_replays`.
    """
    wanted = {_replay_row(run, model, ())["run_key"] for model in run["models"]}
    day = ("logical_date", "=", run["logical_date"])
    filters = [("suite", "=", run["suite"]), ("status", "=", "succeeded"), day]
    rows = read(RUNS, filters, ["run_id", "run_key"])
    newest = {row["run_key"]: row["run_id"] for row in sorted(rows, key=lambda row: row["run_id"])}
    return [newest[key] for key in sorted(wanted)] if wanted <= newest.keys() else []


def _replay_row(run: dict[str, Any], model: str, checks: Sequence[Check]) -> dict[str, Any]:
    own = {**run, "model": model, "model_kind": "replay"}
    own["inputs"] = {**run["inputs"], "model": run["models"][model]}
    return _standalone_row(own, digest(run["inputs"]["truth"]), checks, ("replays",))


def _add_run_id(rows: Any, run_id: str) -> Any:
    if hasattr(rows, "withColumn"):  # a Spark frame
        from pyspark.sql import functions as F  # noqa: PLC0415

        return rows.withColumn("run_id", F.lit(run_id))
    return rows.append_column("run_id", pa.repeat(run_id, len(rows)))


def _standalone_row(
    run: dict[str, Any], truth: str | None, checks: Sequence[Check], parts: Sequence[str] = ()
) -> dict[str, Any]:
    """Make the row of an evaluation without a night.

    `truth` is a hash of the truth. `parts` are code parts it uses beside those of all such evaluations.
    """
    used_revisions = revisions.select_revisions(*code_provenance.STANDALONE, *parts)
    identity = digest(run["inputs"], run["settings"], run["model"], __version__, used_revisions)
    facts = {name: run[name] for name in ("suite", "logical_date", "model", "model_kind", "dataset")}
    split = truth or digest({"truth": run["inputs"]["truth"]})
    row = {**facts, "run_key": identity, "attempt": 1, "split": "given", "split_id": split}
    row |= {"inputs": run["inputs"], "settings": run["settings"], "source": "own", "ran_by": user_name()}
    return row | {
        "revisions": code_provenance.format_revisions(used_revisions),
        "n_users": count_users(checks),
    }


def check_base_rates(read: RowReader, suite: str, result: Result) -> list[Check]:
    """Warn about value metrics over another mean outcome.

    RIG depends on it, so the suite's other runs cannot be compared.
    """
    if result.truth is None:
        return []
    (base_rate,) = _base_rates(to_arrow(result.metrics).to_pylist())
    filters = [("suite", "=", suite), ("status", "=", "succeeded")]
    runs = {row["run_id"] for row in read(RUNS, filters, ["run_id"])}
    columns = ["run_id", "metric", "slice_key", "value"]
    known = read(METRICS, [("metric", "=", "mean_outcome")], columns)
    values = _base_rates([row for row in known if row["run_id"] in runs])
    return [_base_rate_check(sum(value not in (None, base_rate) for value in values), base_rate)]


def _base_rates(metrics: Sequence[Mapping[str, Any]]) -> list[Any]:
    return [row["value"] for row in metrics if row["metric"] == "mean_outcome" and row["slice_key"] is None]


def _base_rate_check(others: int, base_rate: float) -> Check:
    detail = f"base rate here {base_rate:g}: do not compare RIG, log-loss, NMSE or PE with theirs"
    return Check("runs of another base rate", others, 0.0, "warning", detail)


def make_run_row(
    row: dict[str, Any], run_id: str, started: datetime, seconds: float | None = None
) -> dict[str, Any]:
    """Complete a row of `runs` with values every run has."""
    now, settings = datetime.now(UTC), json.dumps(row["settings"], default=str)
    full = {
        "status": "succeeded",
        **row,
        "run_id": run_id,
        "config_json": settings,
        "config_hash": digest(settings),
        "inputs_json": json.dumps(row["inputs"]),
        "code_version": __version__,
        "started_at": started,
        "finished_at": now,
        "seconds": (now - started).total_seconds() if seconds is None else seconds,
    }
    return {name: full.get(name) for name in RUNS.names}


def count_users(checks: Sequence[Check]) -> int:
    """Count the users in the largest held-out part."""
    return int(max((check.observed for check in checks if check.check.endswith(": users")), default=0))


def user_name() -> str:
    """Return this process's user name."""
    return os.environ.get("USER", "unknown")


STAMP_FORMAT = "%Y%m%dT%H%M%S"
"""First part of a run id: the attempt's start in UTC."""


def new_run_id(logical_date: date, model: str) -> str:
    """Make a run id.

    The id starts with the start time, so it shows the run's age.
    """
    started = datetime.now(UTC).strftime(STAMP_FORMAT)
    return f"{started}-{logical_date:%Y%m%d}-{model}-{uuid.uuid4().hex[:8]}"
