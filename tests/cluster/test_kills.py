"""kill -9 at random moments of a night: nothing wrong or doubled is ever visible, the next run completes.

RECBENCH_KILLS says how often (default 3; a kill costs about a night), RECBENCH_KILLS_SEED when.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd
import pytest
import yaml
from deltalake import DeltaTable

from recbench_spark.night.standalone_runs import STAMP_FORMAT
from recbench_spark.storage.store import Store
from tests.cluster.processes import ROOT, Process, properties, start_process
from tests.nights import TINY

pytestmark = [pytest.mark.usefixtures("own_jvm"), pytest.mark.slow]

KILLS = int(os.environ.get("RECBENCH_KILLS", "3"))
SEED = int(os.environ.get("RECBENCH_KILLS_SEED", "1"))
A_WAREHOUSE = 4
"""Kills that one warehouse goes through before its night is let through."""

KILLED_AFTER = 1.0
"""Seconds into the pass of all models."""
KEY = ["model", "part", "metric", "definition", "k", "slice_key", "slice_value"]
VALUES = ["value", "stderr", "ci_low", "ci_high", "n"]
ONCE = ("splits", "items", "user_blocks", "manifests", "embeddings", "similarities", "propensities")
"""Tables whose rows are there once, however often a night was begun."""


def table(warehouse: Path, name: str) -> pd.DataFrame | None:
    """The committed rows of a table, read without Spark; None where it is not there yet."""
    if not list((warehouse / name / "_delta_log").glob("*.json")):
        return None
    return DeltaTable(str(warehouse / name)).to_pandas()


def visible(warehouse: Path) -> pd.DataFrame:
    runs, metrics = table(warehouse, "runs"), table(warehouse, "metrics")
    if runs is None or metrics is None:
        return pd.DataFrame(columns=KEY + VALUES)
    rows = metrics.merge(runs[runs.status == "succeeded"][["run_id", "model"]], on="run_id")
    return rows.sort_values(KEY).reset_index(drop=True)[KEY + VALUES]


@contextmanager
def night(folder: Path, warehouse: Path, name: str = "night", day: str = "2026-01-01") -> Iterator[Process]:
    config, conf = folder / "tiny.yaml", folder / "spark.conf"
    if not config.exists():
        config.write_text(yaml.safe_dump(TINY))
        properties(conf, spark_driver_memory="1g")
    command = [
        sys.executable,
        str(ROOT / "jobs" / "recbench.py"),
        "nightly",
        "--engine=spark",
        "--config",
        str(config),
    ]
    command += ["--warehouse", str(warehouse), "--logical-date", day]
    with start_process(
        command, folder / f"{name}.log", folder, RECBENCH_SPARK_PROPERTIES=str(conf), PYTHONPATH=str(ROOT)
    ) as process:
        yield process


def run_to_end(folder: Path, warehouse: Path) -> float:
    """Run the night to its end; returns its seconds."""
    begun = time.monotonic()
    with night(folder, warehouse) as process:
        assert process.popen.wait(300) == 0, process.remarks[-4000:]
    return time.monotonic() - begun


def check_visible(warehouse: Path, wanted: pd.DataFrame, whole: bool) -> int:
    """Check that visible rows are whole models with the right numbers; return how many."""
    rows = visible(warehouse)
    done = set(rows.model)
    expected = wanted[wanted.model.isin(done)].reset_index(drop=True)
    assert len(rows) == len(expected)
    if done:
        pd.testing.assert_frame_equal(rows, expected, check_exact=True, check_dtype=False)
    assert not whole or done == set(wanted.model)
    return len(done)


def check_once(warehouse: Path, reference: Path) -> None:
    """Intermediates of a completed night: as many rows as of one that was never killed."""
    for name in ONCE:
        rows, wanted = table(warehouse, name), table(reference, name)
        assert (rows is None) == (wanted is None), name
        assert rows is None or len(rows) == len(wanted), name  # type: ignore[arg-type]


def test_kills_at_random_moments(tmp_path: Path) -> None:
    reference = tmp_path / "reference"
    run_to_end(tmp_path, reference)  # compiles what is not compiled yet
    (tmp_path / "second").mkdir()
    seconds = run_to_end(tmp_path / "second", tmp_path / "second" / "warehouse")
    wanted = visible(reference)
    assert set(wanted.model) == {"popular", "item_knn"}
    check_visible(tmp_path / "second" / "warehouse", wanted, whole=True)
    report = [f"a night: {seconds:.1f} s"]
    fresh = killed = 0
    for kill in range(KILLS):
        warehouse = tmp_path / f"warehouse{fresh}"
        moment = seconds * (0.25 + 0.75 * draw_moment(kill))
        with night(tmp_path, warehouse, f"kill{kill}") as process:
            time.sleep(moment)
            process.kill()
        done, killed = check_visible(warehouse, wanted, whole=False), killed + 1
        last = [line for line in process.remarks.splitlines() if line.startswith("[")][-1:]
        report.append(f"kill {kill + 1} after {moment:.1f} s ({last}): {done} models visible")
        # A night that was done before the kill teaches nothing by further kills.
        if done == len(TINY["models"]) or killed == A_WAREHOUSE or kill == KILLS - 1:
            run_to_end(tmp_path, warehouse)
            check_visible(warehouse, wanted, whole=True)
            check_once(warehouse, reference)
            report.append("the next run completed it: right, and nothing doubled")
            fresh, killed = fresh + 1, 0
    print("\n".join(report))


def draw_moment(kill: int) -> float:
    """A number in [0, 1) for each kill, the same in every run of a seed."""
    return random.Random(f"{SEED}/{kill}").random()


def test_two_jobs_at_once_lose_nothing_and_double_nothing(spark, tmp_path: Path) -> None:
    """The same night twice at the same time on an empty warehouse, then orphans of a killed one."""
    warehouse = tmp_path / "warehouse"
    with ExitStack() as stack:
        jobs = [stack.enter_context(night(tmp_path, warehouse, f"job{n}")) for n in range(2)]
        for job in jobs:
            assert job.popen.wait(300) == 0, job.remarks[-4000:]
    runs = table(warehouse, "runs")
    assert runs is not None and set(runs.model) == {"item_knn", "popular"}
    assert set(runs.status) == {"succeeded"}
    rows = visible(warehouse)
    # An attempt of each job, unless one was done before the other looked.
    assert len(rows) * 2 == len(rows.drop_duplicates(KEY)) * len(runs)
    assert len(rows.drop_duplicates()) == len(rows.drop_duplicates(KEY))
    splits = table(warehouse, "splits")
    assert splits is not None and not splits.duplicated(["split_id", "user_id", "item_id"]).any()
    store = Store(spark, str(warehouse))
    store.install_views()
    assert spark.table("leaderboard").where("metric = 'ndcg' AND k = 5").count() == 2

    with night(tmp_path, warehouse, "orphan", day="2026-01-02") as process:
        process.wait_for("rank popular, item_knn")
        time.sleep(KILLED_AFTER)
        process.kill()
    known = set(table(warehouse, "runs").run_id)  # type: ignore[union-attr]
    lost = set(table(warehouse, "rankings").run_id) - known  # type: ignore[union-attr]
    assert len(lost) in (0, 2), "the rows of both models come in one commit"
    store.delete_orphans(datetime.now(UTC).strftime(STAMP_FORMAT))
    assert set(table(warehouse, "rankings").run_id) <= known  # type: ignore[union-attr]
    assert not set(visible(warehouse).model) - {"popular", "item_knn"}
