"""Measure how fast executors read vectors, and fetch objects.

A probe takes a second, before the pass runs. The seconds for each edge rise with the size of the
vector file: caches hold much of some hundred megabytes, and little of some gigabytes. A byte count does
not show this, and machines differ. So the probe aggregates a small part of the edges with the pass's
kernel, in as many tasks as the pass will have at once.

On a cluster each executor fetches its tasks' input into its own local directory (`host_files`). The cost
model counts these bytes. The network's speed is a setting, or measured by a probe where the graph is large,
or assumed.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Literal

import numpy as np

from recbench_spark.core.transfer_sizes import CHUNK_BYTES
from recbench_spark.errors import ConfigError
from recbench_spark.graphs.folders import Graph
from recbench_spark.graphs.kernels import costs
from recbench_spark.graphs.kernels.aggregate import sum_sources as pooled_part
from recbench_spark.graphs.kernels.csr import Csr, window
from recbench_spark.storage.block_arrays import map_whole, part_place, read_parts
from recbench_spark.storage.blocks import Engine
from recbench_spark.storage.host_files import LIMIT_VARIABLE
from recbench_spark.storage.object_access import explain_storage, open_filesystem
from recbench_spark.storage.shared_arrays import host_folder

PROBE_EDGES = 1 << 22
"""Most edges a task reads.

The second half is measured, when the caches are filled.
"""

WINDOW_ROWS = 1024
"""Destinations in a window.

They are few, so a window ends in time even where each source is read from the disk.
"""

READ_BYTES = 1 << 20
"""Bytes read at once."""

PROBE_SECONDS = 1.0
"""Seconds after which a task stops, in case vectors are read from the disk."""


def measure_read_throughput(engine: Engine, graph: Graph, features: str) -> float:
    """Return a core's seconds per vector byte, all cores reading.

    Without edges the result is `costs.DEFAULT_READ_SECONDS`.

    Args:
        engine: the runner.
        graph: the graph on disk.
        features: where vectors lie, by dense id.
    """
    tasks = engine.cores
    probe = partial(_probe_task, graph=graph, features=features, tasks=tasks)
    measured = [one for one in engine.parallelize(range(tasks), tasks).map(probe).collect() if one]
    return float(np.mean(measured)) if measured else costs.DEFAULT_READ_SECONDS


def _probe_task(number: int, graph: Graph, features: str, tasks: int) -> float | None:
    """Return a task's median seconds for a byte.

    Only the second half of its windows counts.
    """
    z = map_whole(features)
    if z.nbytes <= free_memory(0) // 2:
        _warm_cache(features, number, tasks)
    first = next(_make_windows(graph, number, tasks), None)
    if first is None:
        return None
    pooled_part("sum", _copy_to_memory(first), z)  # loads the kernel, which takes half a second or more
    start, edges_read, byte_seconds = time.monotonic(), 0, []
    for edges in _make_windows(graph, number, tasks):
        part = _copy_to_memory(edges)
        before = time.perf_counter()
        pooled_part("sum", part, z)
        seconds = time.perf_counter() - before
        byte_seconds.append(seconds / (part.edges * z.shape[1] * z.itemsize))
        edges_read += part.edges
        if edges_read >= PROBE_EDGES or time.monotonic() - start > PROBE_SECONDS:
            break
    return float(np.median(byte_seconds[len(byte_seconds) // 2 :]))


def _warm_cache(features: str, number: int, tasks: int) -> None:
    """Read a task's share of the vectors into memory.

    Disks read fastest in order. A file written a moment ago may be half gone from the cache. A pass pays
    for this once, but the probe reads here and there and would count it for every edge.
    """
    array, buffer = read_parts(features), bytearray(READ_BYTES)
    for part in sorted(array.parts.values())[number::tasks]:
        with array.open(part) as source:
            while source.readinto(buffer):  # type: ignore[attr-defined]
                pass


def free_memory(otherwise: int) -> int:
    """Return the memory bytes that are free or hold files.

    Without Linux's figures the result is `otherwise`.
    """
    with suppress(OSError):
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return otherwise


def _make_windows(graph: Graph, number: int, tasks: int) -> Iterator[Csr]:
    """Yield a task's destination windows.

    First comes each block's first window, then each block's next.
    """
    blocks = [block for block in graph.blocks[number::tasks] if block.edges]
    for first in count(0, WINDOW_ROWS):
        longer = [block for block in blocks if first < block.rows]
        if not longer:
            return
        for block in longer:
            part = window(graph.csr(block), first, min(first + WINDOW_ROWS, block.rows))
            if part.edges:
                yield part


def _copy_to_memory(part: Csr) -> Csr:
    """Copy edges to memory.

    A pass reads them in order, but the probe would read them here and there.
    """
    weight = None if part.weight is None else np.array(part.weight)
    return Csr(np.array(part.indptr), np.array(part.src), weight)


# --------------------------------------------------------------------------------- network

SETTING = "spark.recbench.network"
"""The Spark setting for an executor's bytes a second from object storage."""

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
