"""Measure what executors pay for objects: network speed and disk.

On a cluster each executor fetches its tasks' input into its own local directory (`host_files`). The cost
model counts these bytes. The speed is a setting, or measured by a probe where the graph is large, or
assumed.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from recbench_spark.core.transfer_sizes import CHUNK_BYTES
from recbench_spark.errors import ConfigError
from recbench_spark.graphs.kernels import costs
from recbench_spark.storage.block_arrays import part_place, read_parts
from recbench_spark.storage.blocks import Engine
from recbench_spark.storage.host_files import LIMIT_VARIABLE
from recbench_spark.storage.object_access import explain_storage, open_filesystem
from recbench_spark.storage.shared_arrays import host_folder

SETTING = "spark.recbench.network"
"""The Spark setting for an executor's bytes a second from object storage."""

PROBE_SECONDS = 1.0
"""Seconds after which a probe task stops."""

FEWEST_BYTES = 1 << 20
"""Fewest bytes for a probe to measure the speed.

Smaller objects show how long a request takes.
"""


@dataclass(frozen=True)
class NetworkCosts:
    """The speed and disk with which executors reach objects.

    Attributes:
        hosts: executors, each with copies of its own; 1 for a local master.
        seconds: seconds an executor needs to fetch a byte.
        source: where the seconds are from.
        disk_bytes: most bytes of copies a host may hold; None: a share of its free disk.
    """

    hosts: int
    seconds: float
    source: Literal["set", "measured", "assumed"]
    disk_bytes: int | None


def describe_network(engine: Engine, features: str, measured: bool) -> NetworkCosts:
    """Return what executors pay for objects.

    Args:
        engine: the runner.
        features: where vectors lie on object storage.
        measured: true if a probe may fetch them for a second.

    Raises:
        ConfigError: the setting is no byte count above 0.
    """
    text, limit = engine.read_setting(SETTING), _read_limit(engine)
    if text is not None:
        if not text.isdigit() or not int(text):
            message = f"{SETTING}={text} is no number of bytes a second"
            raise ConfigError(message, f"--conf {SETTING}=500000000")
        return NetworkCosts(engine.count_hosts(), 1 / int(text), "set", limit)
    seconds = measure_network(engine, features) if measured else None
    hosts = engine.count_hosts()  # the probe has started executors
    if seconds is None:
        return NetworkCosts(hosts, costs.DEFAULT_FETCH_SECONDS, "assumed", limit)
    return NetworkCosts(hosts, seconds, "measured", limit)


def _read_limit(engine: Engine) -> int | None:
    """Read the limit on copies where it is set.

    The limit is set for executors, or for this host if it runs the tasks.
    """
    text = engine.read_setting(f"spark.executorEnv.{LIMIT_VARIABLE}")
    if text is None and engine.is_here:
        text = os.environ.get(LIMIT_VARIABLE)
    return int(text) if text and text.isdigit() else None


def measure_network(engine: Engine, features: str) -> float | None:
    """Measure an executor's seconds per byte fetched.

    All its cores fetch.

    The result is None where the objects are too small to tell.

    Args:
        engine: the runner.
        features: where vectors lie on object storage. Nothing fetched is kept.
    """
    tasks = engine.cores
    probe = partial(_fetch_parts, features=features, tasks=tasks)
    return combine_probes(engine.parallelize(range(tasks), tasks).map(probe).collect())


def combine_probes(probes: Sequence[tuple[str, int, float]]) -> float | None:
    """Return a host's mean seconds for a byte.

    Args:
        probes: for each task, its host's folder, its bytes and its seconds.
    """
    by_host: defaultdict[str, list[tuple[int, float]]] = defaultdict(list)
    for host, size, seconds in probes:
        by_host[host].append((size, seconds))
    paces = [
        max(seconds for _, seconds in done) / size
        for done in by_host.values()
        if (size := sum(size for size, _ in done)) >= FEWEST_BYTES
    ]
    return sum(paces) / len(paces) if paces else None


def _fetch_parts(number: int, features: str, tasks: int) -> tuple[str, int, float]:
    """Fetch a task's share of objects, at most a second."""
    array, size, begun = read_parts(features), 0, time.monotonic()
    for part in sorted(array.parts.values())[number::tasks]:
        place = part_place(features, part)
        with explain_storage(place):
            system, name = open_filesystem(place)
            with system.open_input_stream(name) as stream:
                while chunk := stream.read(CHUNK_BYTES):
                    size += len(chunk)
                    if time.monotonic() - begun > PROBE_SECONDS:
                        break
        if time.monotonic() - begun > PROBE_SECONDS:
            break
    return str(host_folder()), size, time.monotonic() - begun
