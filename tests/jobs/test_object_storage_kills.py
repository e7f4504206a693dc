"""kill -9 at random moments of a night on a real S3 server: the next run completes the tables of a folder.

RECBENCH_KILLS says how often (default 3; a kill costs about a night), RECBENCH_KILLS_SEED when. Every fifth
kill strikes a night over a bad network.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path

import pytest

from recbench_spark.config import Benchmark, parse
from recbench_spark.night.night_status import find_finished_night
from tests.cluster.test_kills import A_WAREHOUSE, KILLS, draw_moment
from tests.faulty_storage import Faults, disturb
from tests.jobs.test_object_storage_night import (
    DAY,
    SUITES,
    TRY_TASKS_AGAIN,
    delete_unpublished,
    start_night,
)
from tests.object_storage import S3Server
from tools import compare_warehouses

pytestmark = [pytest.mark.usefixtures("own_jvm"), pytest.mark.slow]

BAD_NETWORK = Faults(delay=0.03, refuse=100, cut=100, lose=20)
ON_BAD_NETWORK = 5
"""One of so many nights is killed behind a proxy that disturbs it."""


@contextmanager
def reach_server(server: S3Server, kill: int) -> Iterator[dict[str, str]]:
    """Yield the variables by which a night reaches the server."""
    if kill % ON_BAD_NETWORK < ON_BAD_NETWORK - 1:
        yield {}
        return
    with disturb(server, BAD_NETWORK) as proxy:
        yield {**proxy.server.environment, **TRY_TASKS_AGAIN}


def run_night(folder: Path, warehouse: str, name: str, **variables: str) -> float:
    """Run a night to its end; return its seconds."""
    started = time.monotonic()
    with start_night(folder, warehouse, "tiny", name, **variables) as job:
        assert job.popen.wait(500) == 0, job.remarks[-4000:]
    return time.monotonic() - started


def kill_night(folder: Path, warehouse: str, name: str, seconds: float, **variables: str) -> str:
    """Kill a night after some seconds; return what it said last."""
    with start_night(folder, warehouse, "tiny", name, **variables) as job:
        time.sleep(seconds)
        job.kill()
        return ([line for line in job.remarks.splitlines() if line.startswith("[")] or ["no word yet"])[-1]


def complete_night(folder: Path, warehouse: str, wanted: str, name: str) -> None:
    """Run a night that was killed to its end and compare its tables with those of a folder."""
    run_night(folder, warehouse, name)
    delete_unpublished(warehouse)
    assert compare_warehouses.main([wanted, warehouse]) == 0


def test_a_night_on_s3_that_is_killed_is_completed_by_the_next_run(
    s3_server: S3Server, bucket: str, tmp_path: Path
) -> None:
    folder, suite = str(tmp_path / "w"), parse(Benchmark, SUITES["tiny"], "tiny")
    run_night(tmp_path, folder, "folder")
    usual = run_night(tmp_path, f"{bucket}/usual/w", "s3")
    fresh = killed = 0
    for kill in range(KILLS):
        warehouse, moment = f"{bucket}/{fresh}/w", usual * (0.25 + 0.75 * draw_moment(kill))
        with reach_server(s3_server, kill) as variables:
            last = kill_night(tmp_path, warehouse, f"kill{kill}", moment, **variables)
        print(f"kill {kill + 1} of {KILLS} after {moment:.1f} s of {usual:.1f}: {last}", flush=True)
        killed += 1
        finished = find_finished_night(warehouse, suite, date.fromisoformat(DAY)) is not None
        # A night that was finished before the kill teaches nothing by further kills.
        if finished or killed == A_WAREHOUSE or kill == KILLS - 1:
            complete_night(tmp_path, warehouse, folder, f"again{kill}")
            fresh, killed = fresh + 1, 0
