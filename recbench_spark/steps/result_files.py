"""Files in `results/` beside the tables: some cluster modes lose the exit code of a job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import functions as F

from recbench_spark.journal import write_json
from recbench_spark.schemas import RUNS
from recbench_spark.steps.night import Night
from recbench_spark.store import Store


def write_result(
    store: Store, facts: Mapping[str, str], status: str, exit_code: int, error: str | None = None
) -> None:
    """`results/<run_id>.json`: how one run ended; `facts`: what names it, its `run_id` among them."""
    if store.folder is not None:
        result = {**facts, "status": status, "exit_code": exit_code, "error": error}
        write_json(store.folder / "results" / f"{facts['run_id']}.json", result)


def write_night(
    night: Night, exit_code: int, regressions: Sequence[str], failed: Mapping[str, str]
) -> None:
    """`results/night-SUITE-DATE.json`: how the night ended, and the run that counts of each model.

    A run's own file is written before the runs are compared, and knows of no regression.
    """
    folder, suite, day = night.store.folder, night.benchmark.name, night.logical_date
    if folder is None:
        return
    of_night = (F.col("suite") == suite) & (F.col("logical_date") == F.lit(day))
    newest = F.max_by("run_id", F.struct("finished_at", "attempt", "run_id")).alias("run_id")
    runs = night.store.read(RUNS).where(of_night & (F.col("status") == "succeeded"))
    found = runs.groupBy("model").agg(newest).orderBy("model").collect()
    content = {
        "suite": suite,
        "logical_date": day,
        "exit_code": exit_code,
        "regressions": regressions,
        "failed": failed,
        "run_ids": {row.model: row.run_id for row in found},
    }
    write_json(folder / "results" / f"night-{suite}-{day}.json", content)
