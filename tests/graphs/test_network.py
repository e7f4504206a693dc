"""Speed of an executor's network: set, measured on a real S3 server, or assumed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from recbench_spark.errors import ConfigError
from recbench_spark.graphs import machine_speed
from recbench_spark.graphs.kernels import costs
from recbench_spark.graphs.machine_speed import (
    NetworkCosts,
    combine_probes,
    describe_network,
    measure_network,
)
from recbench_spark.storage.block_arrays import publish_parts, write_part
from recbench_spark.storage.host_files import LIMIT_VARIABLE
from tests.graphs.local import Context


def describe(measured: bool = False, features: str = "", **settings: str) -> NetworkCosts:
    given = {name.replace("_", "."): value for name, value in settings.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Context, "read_setting", lambda _, name: given.get(name))
        return describe_network(Context(), features, measured)


def test_a_speed_is_set_or_assumed_and_a_wrong_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert describe() == NetworkCosts(1, costs.DEFAULT_FETCH_SECONDS, "assumed", None)
    assert describe(spark_recbench_network="4000") == NetworkCosts(1, 1 / 4000, "set", None)
    for wrong in ("0", "1.5", "fast", ""):
        with pytest.raises(ConfigError, match="no number of bytes a second"):
            describe(spark_recbench_network=wrong)
    monkeypatch.setenv(LIMIT_VARIABLE, "700")
    assert describe().disk_bytes == 700


def test_hosts_fetch_at_once_and_the_tasks_of_one_share_its_network() -> None:
    mega = 1 << 20
    probes = [("one", 3 * mega, 1.0), ("one", mega, 2.0), ("two", mega, 1.0), ("two", 0, 0.0)]
    assert combine_probes(probes) == pytest.approx((2 / (4 * mega) + 1 / mega) / 2)
    assert combine_probes([("one", 100, 0.5)]) is None, "a request takes as long"


def test_the_probe_reads_objects_and_keeps_none(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "writer"))
    place, rows = f"{bucket}/h", np.zeros((1 << 16, 8), np.float32)
    parts = [write_part(place, n, rows, n * len(rows)) for n in range(2)]
    publish_parts(place, parts, (2 * len(rows), 8), rows.dtype)
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "reader"))
    seconds = measure_network(Context(), place)
    assert seconds is not None and 1e-11 < seconds < 1e-5
    assert not list((tmp_path / "reader").rglob("*.npy"))
    assert describe(True, place).source == "measured"
    monkeypatch.setattr(machine_speed, "FEWEST_BYTES", 1 << 30)
    assert describe(True, place).source == "assumed"
