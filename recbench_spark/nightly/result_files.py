"""Files in `results/` beside the tables, since some cluster modes lose the exit code of a job."""

from __future__ import annotations

from collections.abc import Mapping

from recbench_spark.nightly.night import BenchmarkNight, find_newest_runs
from recbench_spark.nightly.night_status import NightOutcome, hash_following, night_file
from recbench_spark.runtime.journal import write_json
from recbench_spark.storage.store import Store


def write_result(
    store: Store, facts: Mapping[str, str], status: str, exit_code: int, error: str | None = None
) -> None:
    """Write `results/<run_id>.json`, the outcome of one run; `facts` identify it and hold its `run_id`."""
    if store.folder is not None:
        result = {**facts, "status": status, "exit_code": exit_code, "error": error}
        write_json(store.folder / "results" / f"{facts['run_id']}.json", result)


def write_night(night: BenchmarkNight, outcome: NightOutcome) -> None:
    """Write `results/night-SUITE-DATE.json`: the outcome of the night, and the run of each model.

    The file of a run is written before the runs are compared, so it has no regressions.
    `night_status.find_finished_night` reads this file to see if the same night is complete.
    """
    folder, suite, day = night.store.folder, night.benchmark.name, night.logical_date
    if folder is None:
        return
    newest = find_newest_runs(night, [("logical_date", "=", day)])
    content = {
        "suite": suite,
        "logical_date": day,
        "exit_code": outcome.exit_code,
        "regressions": outcome.regressions,
        "failed": outcome.failed,
        "leaderboard": outcome.leaderboard,
        "sql_lines": outcome.sql_lines,
        "follows": hash_following(night.store, night.benchmark, day),
        "run_ids": {model: row["run_id"] for model, row in sorted(newest.items())},
    }
    write_json(night_file(folder, suite, day), content)
