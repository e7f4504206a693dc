"""kill -9 at random moments of a night on a real S3 server: the next run completes the tables of a folder.

RECBENCH_KILLS says how often (default 3; a kill costs two nights), RECBENCH_KILLS_SEED when. Every fifth
kill strikes a night over a bad network.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster.test_kills import KILLS, draw_moment
from tests.faulty_storage import Faults, disturb
from tests.jobs.test_object_storage_night import TRY_TASKS_AGAIN, delete_unpublished, start_night
from tests.object_storage import S3Server
from tools import compare_warehouses

pytestmark = [pytest.mark.usefixtures("own_jvm"), pytest.mark.slow]

BAD_NETWORK = Faults(delay=0.03, refuse=100, cut=100, lose=20)
ON_BAD_NETWORK = 5
"""Every so-manieth night is killed behind a proxy that disturbs it, and completed there."""


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


def test_a_night_on_s3_that_is_killed_is_completed_by_the_next_run(
    s3_server: S3Server, bucket: str, tmp_path: Path
) -> None:
    folder = str(tmp_path / "w")
    run_night(tmp_path, folder, "folder")
    usual = run_night(tmp_path, f"{bucket}/usual/w", "s3")
    for kill in range(KILLS):
        warehouse, moment = f"{bucket}/{kill}/w", usual * (0.25 + 0.75 * draw_moment(kill))
        with reach_server(s3_server, kill) as variables:
            last = kill_night(tmp_path, warehouse, f"kill{kill}", moment, **variables)
            print(f"kill {kill + 1} of {KILLS} after {moment:.1f} s of {usual:.1f}: {last}", flush=True)
            run_night(tmp_path, warehouse, f"again{kill}", **variables)
        delete_unpublished(warehouse)
        assert compare_warehouses.main([folder, warehouse]) == 0
